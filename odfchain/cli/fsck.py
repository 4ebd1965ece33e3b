"""`odfchain fsck`: damaged and missing files are found, and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import named_or_all, open_workspace, options
from odfchain.cli.support.faults import INTEGRITY_FAULT
from odfchain.cli.support.output import count_of, format_option, human_size, print_records
from odfchain.cli.support.parameters import DATASET, DRY_RUN
from odfchain.cli.support.peers import token_for
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Finding, FsckReport, Multihash


@click.command("fsck")
@click.argument("datasets", nargs=-1, type=DATASET)
@click.option(
    "--from", "source", metavar="URL", help="Any copy of the dataset to repair from; it need not be trusted."
)
@click.option("--head", metavar="BLOCK", help="What a lost head is to be (a hash), when you know it.")
@DRY_RUN
@format_option("table", "json", "ndjson")
def fsck_command(
    datasets: tuple[str, ...], source: str | None, head: str | None, dry_run: bool, output: str
) -> int:
    """Find damaged and missing files of datasets, and put good copies in their place.

    A copy is good when it hashes to its name; it may come from other datasets here or from --from. Damaged
    files are kept in info/quarantine of the dataset. Exit code 0: everything is good (now); 6: something is
    broken.
    """
    workspace = open_workspace()
    found = named_or_all(workspace, datasets)
    if (source is not None or head is not None) and (not datasets or len(found) != 1):
        raise UsageError(f"--from and --head are for one dataset, these are {len(found)}")
    lost = _block(head)
    token = token_for([workspace.url_of(source)] if source else [])
    with TerminalProgress(quiet=options().quiet) as progress:
        if datasets:
            reports = [
                dataset.fsck(source, head=lost, dry_run=dry_run, token=token, progress=progress)
                for dataset in found
            ]
        else:
            reports = workspace.fsck(dry_run=dry_run, progress=progress)
    _print_fsck(reports, output)
    return 0 if all(report.whole for report in reports) else INTEGRITY_FAULT


def _block(text: str | None) -> Multihash | None:
    from odfchain import Multihash

    return None if text is None else Multihash.parse(text)


def _print_fsck(reports: list[FsckReport], output: str) -> None:
    if output != "table":
        print_records([_fsck_tree(report) for report in reports], [], output)
        return
    for report in reports:
        word, colour = ("ok    ", "green") if report.whole else ("BROKEN", "red")
        echo(f"{word} ", fg=colour, bold=True, nl=False)
        absent = f", {count_of(report.absent, 'file')} not here (a partial copy)" if report.absent else ""
        echo(f"{report.dataset}: {count_of(report.objects, 'object')}, {human_size(report.bytes)}{absent}")
        for finding in report.findings:
            echo(f"  {finding.kind} {finding.state.value}: {_where(finding)}")
            echo(f"    {finding.message.removeprefix(f'{finding.file}: ')}")
            if finding.hint and finding.state.value == "broken":
                echo(f"    {finding.hint}")
        for note in report.notes:
            echo(f"  note: {note}")


def _where(finding: Finding) -> str:
    return f"{finding.file} (from {finding.source})" if finding.source else finding.file


def _fsck_tree(report: FsckReport) -> dict[str, Any]:
    return {
        "dataset": report.dataset,
        "whole": report.whole,
        "objects": report.objects,
        "bytes": report.bytes,
        "absent": report.absent,
        "findings": [
            {
                "kind": f.kind,
                "file": f.file,
                "message": f.message,
                "state": f.state.value,
                "source": f.source,
                "hint": f.hint,
            }
            for f in report.findings
        ],
        "notes": report.notes,
    }
