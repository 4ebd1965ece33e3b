"""Commands of auditors: verify, attest, attestations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.common import DATASET, open_workspace, options
from odfchain.cli.data import silence_libraries
from odfchain.cli.output import format_option, print_records
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import echo, echo_json_text, echo_page
from odfchain.cli.verdicts import print_report
from odfchain.errors import InvalidIdError, UsageError

if TYPE_CHECKING:
    from odfchain.audit.auditing import Listed
    from odfchain.audit.report import Report
    from odfchain.audit.verification import VerifyOptions
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
    from odfchain.audit.verification import VerifyOptions

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
@click.option("-v", "--verbose", is_flag=True, help="List all checks, also of what is clean.")
@format_option("table", "json", "ndjson", "html")
def verify_command(
    datasets: tuple[str, ...],
    after: str | None,
    upto: str | None,
    remote: str | None,
    output: str,
    *,
    verbose: bool,
    **checks: Any,
) -> int:
    """Verify datasets: chain, append rules, every byte and every row, and the signature of the head.

    With --replay, what derivative datasets record must also come out when their inputs are put through their
    queries again. No other way of verifying starts an engine.

    All faults are listed with the file they are in, and every check that did not run with the reason. Exit
    code 0: clean; 6: faults; 7: no faults, but something that was asked for could not be checked here.
    """
    chosen = _chosen(after=_block(after), upto=_block(upto), **checks)
    if not datasets and remote is None:
        raise UsageError(
            "which datasets? name them, or one elsewhere with --remote URL",
            hint="`odfchain verify %` verifies all datasets of the workspace; `odfchain list` names them",
        )
    if datasets and remote is not None:
        raise UsageError("--remote names the dataset: datasets of the workspace are verified on their own")
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        if remote is not None:
            from odfchain.cli.copies import token_for

            token = token_for([workspace.sharing.url_of(remote)])
            reports = [workspace.auditing.verify_remote(remote, chosen, token=token, progress=progress)]
        else:
            found = [d for text in datasets for d in workspace.matching(text)]
            reports = workspace.verify(found, chosen, progress=progress)
    _print_reports(reports, output, verbose=verbose)
    return _exit_code(reports)


def _print_reports(reports: list[Report], output: str, *, verbose: bool) -> None:
    if output == "table":
        for report in sorted(reports, key=lambda r: not r.faults):
            print_report(report, verbose=verbose)
        return
    documents = [report.to_document() for report in reports]
    if output == "html":
        from odfchain.audit.page import render_page

        echo_page(render_page(documents))
        return
    from odfchain.codec.yaml_writer import dump_json

    if output == "json":
        echo_json_text(dump_json(documents))
    else:
        for document in documents:
            echo_json_text(dump_json(document, indent=None))


def _exit_code(reports: Iterable[Report]) -> int:
    verdicts = {report.verdict for report in reports}
    return INTEGRITY_FAULT if "faulty" in verdicts else UNCHECKED if "incomplete" in verdicts else 0


def _block(text: str | None) -> BlockName | None:
    from odfchain.ids.multihash import Multihash
    from odfchain.text import one_line

    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    try:
        return Multihash.parse(text)
    except InvalidIdError as error:
        raise UsageError(
            f"block {one_line(text)!r}: {error.message}",
            hint="a block is given by its hash or its sequence number; `odfchain log` lists them",
        ) from None


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
        from odfchain.store.fsio import replace_file
        from odfchain.trust.canonical import canonical_json

        replace_file(report_file, canonical_json(done.document) + b"\n")
    if output == "jws":
        echo(done.text)
    elif output == "json":
        from odfchain.codec.yaml_writer import dump_json

        found = {"auditor": str(done.attestation.auditor), **done.attestation.to_json()}
        echo_json_text(dump_json(found))
    else:
        print_report(done.report)
        echo(f"attested as {done.report.verdict} by {done.attestation.auditor}")
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
