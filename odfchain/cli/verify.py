"""`odfchain verify`: chain, rules, and every byte and row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, options
from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.peers import token_for
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo_json_text, echo_page
from odfchain.cli.support.verdicts import print_report
from odfchain.cli.support.verify_options import chosen_checks, exit_code_of, verify_options
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Report


@click.command("verify")
@click.argument("datasets", nargs=-1, type=DATASET_AT, metavar="[DATASET[@POINT]]…")
@verify_options
@click.option("--from", "after", metavar="BLOCK", help="Check what comes after this block (hash or number).")
@click.option("--to", "upto", metavar="BLOCK", help="Check up to this block, which is included.")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(min=1),
    help="Check the N newest blocks, and read the chain no further.",
)
@click.option(
    "--remote", metavar="URL", help="Verify a dataset elsewhere; it does not become one of this workspace."
)
@click.option("-v", "--verbose", is_flag=True, help="List all checks, also of what is clean.")
@format_option("table", "json", "ndjson", "html")
def verify_command(
    datasets: tuple[str, ...],
    after: str | None,
    upto: str | None,
    last: int | None,
    remote: str | None,
    output: str,
    *,
    verbose: bool,
    **checks: Any,
) -> int:
    """Verify datasets: chain, append rules, every byte and every row, and the signature of the head.

    DATASET@POINT is verified on a branch, up to a block (its number or hash), or up to a time.

    With --replay, what derivative datasets record must also come out when their inputs are put through their
    queries again. No other way of verifying starts an engine. With --profiles, its signed profiles must come
    out as they are, too.

    With --last N the time does not grow with the chain: of what comes before the N newest blocks only what is
    still in force is read, as the chain's index finds it, and the checks that rest on that say so.

    All faults are listed with the file they are in, and every check that did not run with the reason. Exit
    code 0: clean; 6: faults; 7: no faults, but something that was asked for could not be checked here.
    """
    from odfchain.api.branch_points import matching_at
    from odfchain.api.options import as_block

    chosen = chosen_checks(
        after=None if after is None else as_block(after),
        upto=None if upto is None else as_block(upto),
        last=last,
        **checks,
    )
    if not datasets and remote is None:
        raise UsageError(
            "which datasets? name them, or one elsewhere with --remote URL",
            hint="`odfchain verify %` verifies all datasets of the workspace; `odfchain list` names them",
        )
    if datasets and remote is not None:
        raise UsageError("--remote names the dataset: datasets of the workspace are verified on their own")
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        if remote is not None:
            token = token_for([workspace.url_of(remote)])
            reports = [workspace.verify_remote(remote, token=token, progress=progress, **chosen)]
        else:
            found = [d for text in datasets for d in matching_at(workspace, text)]
            reports = workspace.verify(found, progress=progress, **chosen)
    _print_reports(reports, output, verbose=verbose)
    return exit_code_of(reports)


def _print_reports(reports: list[Report], output: str, *, verbose: bool) -> None:
    if output == "table":
        for report in sorted(reports, key=lambda r: not r.faults):
            print_report(report, verbose=verbose)
        return
    from odfchain.api.rendering import dump_json, report_page

    if output == "html":
        echo_page(report_page(reports))
        return
    documents = [report.to_document() for report in reports]
    if output == "json":
        echo_json_text(dump_json(documents))
    else:
        for document in documents:
            echo_json_text(dump_json(document, indent=None))
