"""Commands of auditors: verify, attest, attestations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.common import DATASET, open_workspace, options
from odfchain.cli.data import silence_libraries
from odfchain.cli.output import format_option, human_size, print_records
from odfchain.cli.progress import TerminalProgress
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain.audit.auditing import Listed
    from odfchain.audit.report import Report
    from odfchain.audit.run import VerifyOptions
    from odfchain.audit.walk import BlockName

_Command = TypeVar("_Command", bound=Callable[..., Any])

INTEGRITY_FAULT = 6
UNCHECKED = 7
"""What was asked for needs what is not here: an environment's fault, and no proof against the dataset."""


def _check_options(command: _Command) -> _Command:
    """The options of every command that verifies."""
    for option in reversed(
        (
            click.option(
                "--replay",
                is_flag=True,
                help="Compute the transactions of derivative datasets again, and compare.",
            ),
            click.option("--integrity", is_flag=True, help="Compute nothing again (the default)."),
            click.option("--recursive", is_flag=True, help="Verify what the datasets come from first."),
            click.option(
                "--require-signature", is_flag=True, help="An unsigned head is a fault, not only a note."
            ),
            click.option(
                "--trusted-by",
                default=0,
                metavar="N",
                type=click.IntRange(min=0),
                help="With --replay: leave out what N auditors whom the settings trust have replayed.",
            ),
            click.option(
                "--jobs",
                default=2,
                show_default=True,
                type=click.IntRange(min=1),
                help="Slices read, or transactions replayed, side by side.",
            ),
        )
    ):
        command = option(command)
    return command


def _chosen(*, replay: bool, integrity: bool, **others: Any) -> VerifyOptions:
    from odfchain.audit.run import VerifyOptions

    if replay and integrity:
        raise UsageError("--integrity and --replay exclude each other")
    if replay and not options().debug:
        silence_libraries()
    return VerifyOptions(replay=replay, **others)


@click.command("verify")
@click.argument("datasets", nargs=-1, type=DATASET)
@_check_options
@click.option("--from", "after", metavar="BLOCK", help="Check what comes after this block (hash or number).")
@click.option("--to", "upto", metavar="BLOCK", help="Check up to this block, which is included.")
@click.option(
    "--remote", metavar="URL", help="Verify a dataset elsewhere; it does not become one of this workspace."
)
@format_option("table", "json", "ndjson", "html")
def verify_command(
    datasets: tuple[str, ...],
    after: str | None,
    upto: str | None,
    remote: str | None,
    output: str,
    **checks: Any,
) -> int:
    """Verify datasets: chain, append rules, every byte and every row, and the signature of the head.

    With --replay, what derivative datasets record must also come out when their inputs are put through their
    queries again. No other way of verifying starts an engine.

    All faults are listed with the file they are in, and every check that did not run with the reason. Exit
    code 0: clean; 6: faults; 7: no faults, but something that was asked for could not be checked here.
    """
    chosen = _chosen(after=_block(after), upto=_block(upto), **checks)
    if bool(datasets) == (remote is not None):
        raise UsageError("name datasets to verify, or one elsewhere with --remote")
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        if remote is not None:
            from odfchain.cli.copies import token_for

            token = token_for([workspace.sharing.url_of(remote)])
            reports = [workspace.auditing.verify_remote(remote, chosen, token=token, progress=progress)]
        else:
            found = [d for text in datasets for d in workspace.matching(text)]
            reports = workspace.verify(found, chosen, progress=progress)
    _print_reports(reports, output)
    return _exit_code(reports)


def _print_reports(reports: list[Report], output: str) -> None:
    if output == "table":
        for report in sorted(reports, key=lambda r: not r.faults):
            _print_report(report)
        return
    documents = [report.to_document() for report in reports]
    if output == "html":
        from odfchain.audit.page import render_page

        click.echo(render_page(documents))
        return
    from odfchain.metadata.yaml_writer import dump_json

    if output == "json":
        click.echo(dump_json(documents))
    else:
        for document in documents:
            click.echo(dump_json(document, indent=None))


def _exit_code(reports: Iterable[Report]) -> int:
    verdicts = {report.verdict for report in reports}
    return INTEGRITY_FAULT if "faulty" in verdicts else UNCHECKED if "incomplete" in verdicts else 0


def _block(text: str | None) -> BlockName | None:
    from odfchain.ids.multihash import Multihash

    if text is None:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else Multihash.parse(text)


def _print_report(report: Report) -> None:
    from odfchain.audit.checks import CHECKS

    word, colour = {"faulty": ("FAULT ", "red"), "clean": ("ok    ", "green")}.get(
        report.verdict, ("PART  ", "yellow")
    )
    click.secho(word, fg=colour, bold=True, nl=False)
    click.echo(
        f"{report.alias}: {report.blocks:,} blocks, {report.slices:,} slices, {report.records:,} records, "
        f"{human_size(report.data_bytes)}{_replayed(report)}"
    )
    for fault in report.faults:
        block = f", block {fault.sequence_number}" if fault.sequence_number is not None else ""
        click.echo(f"  check {fault.check} ({CHECKS[fault.check].name}){block}")
        click.echo(f"    {fault.file}")
        click.echo(f"    {fault.message}")
    for item in report.unchecked:
        click.echo(f"  not checked{', ' + item.where if item.where else ''}: {item.message}")
    known = {item.message for item in report.unchecked}
    for reason in dict.fromkeys(report.reasons.values()):
        if reason not in known:
            numbers = [
                n for n in CHECKS if report.reasons.get(n) == reason and report.state(n) == "notChecked"
            ]
            if numbers:
                click.echo(f"  not run, or not everywhere: {_listed(numbers)}: {reason}")
    for note in report.notes:
        if note not in report.reasons.values():
            click.echo(f"  note: {note}")


def _listed(numbers: list[int]) -> str:
    from odfchain.audit.checks import CHECKS

    if len(numbers) > 3:
        return "checks " + ", ".join(map(str, numbers))
    return ", ".join(f"check {n} ({CHECKS[n].name})" for n in numbers)


def _replayed(report: Report) -> str:
    if report.replay is None:
        return ""
    count, engines = report.replay.transactions, report.replay.engines
    said = f", replayed {count:,} transaction{'' if count == 1 else 's'}"
    return f"{said} with {' and '.join(engines)}" if engines else said


@click.command("attest")
@click.argument("dataset", type=DATASET)
@click.option(
    "--key",
    "key_file",
    required=True,
    type=click.Path(path_type=Path),
    help="The file with the auditor's private key (`odfchain key create`).",
)
@click.option("--report", "report_file", type=click.Path(path_type=Path), help="Write the report here, too.")
@click.option("--faulty", is_flag=True, help="Sign the outcome also when there are faults.")
@_check_options
@format_option("table", "json", "jws")
def attest_command(
    dataset: str, key_file: Path, report_file: Path | None, output: str, *, faulty: bool, **checks: Any
) -> int:
    """Verify a dataset and sign the outcome, for others to rely on.

    The statement names the head, the verdict, the checks that were and were not done, and the digest of the
    report. It is kept with the dataset and travels with it. Whoever is to check it against the report needs
    the file of --report. Exit codes are those of verify.
    """
    chosen = _chosen(**checks)
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        done = workspace.auditing.attest(dataset, key_file, chosen, faulty=faulty, progress=progress)
    if report_file is not None:
        from odfchain.attest.canonical import canonical_json
        from odfchain.store.fsio import replace_file

        replace_file(report_file, canonical_json(done.document) + b"\n")
    if output == "jws":
        click.echo(done.text)
    elif output == "json":
        from odfchain.metadata.yaml_writer import dump_json

        click.echo(dump_json({"auditor": str(done.attestation.auditor), **done.attestation.to_json()}))
    else:
        _print_report(done.report)
        click.echo(f"attested as {done.report.verdict} by {done.attestation.auditor}")
    return _exit_code([done.report])


@click.command("attestations")
@click.argument("dataset", type=DATASET)
@click.option(
    "--add", "file", type=click.File("r"), help="Keep the attestation in this file (- is standard input)."
)
@format_option()
def attestations_command(dataset: str, file: Any, output: str) -> int:
    """List what auditors have attested of a dataset, and check it.

    Anyone can attest anything: `trusted` are those whom the settings name (audit.trustedAuditors). Exit code
    6: a line is not a valid attestation of this dataset.
    """
    with open_workspace() as workspace:
        if file is not None:
            workspace.auditing.add(dataset, _read(file))
        found = workspace.auditing.attestations(dataset)
    rows = [_row(item) for item in found]
    columns = ["auditor", "verdict", "block", "time", "checks", "notChecked", "trusted", "status"]
    if output in ("table", "csv"):
        rows = [
            row | {name: " ".join(map(str, row[name] or ())) for name in ("checks", "notChecked")}
            for row in rows
        ]
    print_records(rows, columns, output, right=["block"])
    return INTEGRITY_FAULT if any(item.line.attestation is None for item in found) else 0


def _read(file: Any) -> str:
    from odfchain.limits import ATTEST

    try:
        text: str = file.read(ATTEST.statement_bytes + 2)
    except (UnicodeDecodeError, OSError):
        raise UsageError("the file of --add is not text") from None
    return text


def _row(item: Listed) -> dict[str, Any]:
    found = item.line.attestation
    if found is None:
        status = f"line {item.line.number}: {item.line.message}"
        return dict.fromkeys(
            ("auditor", "verdict", "block", "time", "checks", "notChecked", "head", "report", "tool")
        ) | {"trusted": False, "status": status}
    return {
        "auditor": str(found.auditor),
        "verdict": str(found.verdict),
        "block": found.sequence_number,
        "head": str(found.head),
        "time": str(found.time),
        "checks": list(found.checks),
        "notChecked": list(found.not_checked),
        "report": str(found.report),
        "tool": found.tool,
        "trusted": item.trusted,
        "status": "valid" if item.in_chain else "of a block that is not in this chain",
    }
