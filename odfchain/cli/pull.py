"""`odfchain pull`: datasets are brought up to date, and those of others here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branch_points import on_branch
from odfchain.api.pull_ahead import pulling
from odfchain.cli.support.context import open_workspace, options, say, silence_libraries
from odfchain.cli.support.output import format_option, human_size, print_records
from odfchain.cli.support.parameters import (
    DATASET_AT,
    PARALLEL_OPTION,
    TIMESTAMP,
    DurationParam,
    merge_options,
    part_options,
    together,
)
from odfchain.cli.support.peers import token_for
from odfchain.cli.support.progress_bar import TerminalProgress, TransferProgress
from odfchain.cli.support.rounds import one_by_one
from odfchain.cli.support.screen import echo
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import PullResult, PullTarget, Timestamp, Workspace
    from odfchain.progress import Progress

_COLUMNS = ("dataset", "status", "rows", "+A", "-R", "-C", "+C", "blocks", "watermark")
_TEXTS = ("dataset", "status", "watermark")
_FOR_ALL = ("datasets", "everything", "recursive", "watch", "output", "set_watermark", "source")


_OF_COPIES = ("objects", "bytes", "signature")
_copy_options = together(
    click.option(
        "--from",
        "source",
        metavar="URL",
        help="Bring the branch DATASET@BRANCH from this place.",
    ),
    click.option("--as", "name", metavar="NAME", help="What to call a dataset that is pulled from a URL."),
    click.option("--force", is_flag=True, help="Replace a copy that has other blocks than its peer."),
    click.option("--metadata-only", is_flag=True, help="Bring the chain of a dataset, and none of its data."),
    part_options,
    PARALLEL_OPTION,
    click.option(
        "--require-signature/--no-require-signature",
        default=None,
        help="Refuse a head that its owner has not signed, now and from now on.",
    ),
    click.option(
        "--max-age",
        type=DurationParam(),
        help="Refuse a head whose signature is older, such as 7d, now and from now on.",
    ),
)
"""The options that are for copies of datasets elsewhere, named as in `Workspace.pull`."""


@click.command("pull")
@click.argument("datasets", nargs=-1, type=DATASET_AT)
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Pull every dataset that has a source or is made of others.",
)
@click.option("-r", "--recursive", is_flag=True, help="Pull what the datasets come from first.")
@click.option(
    "--set-watermark", type=TIMESTAMP, help="Record this watermark instead of pulling; for one dataset."
)
@click.option(
    "--fetch-uncacheable", is_flag=True, help="Pull even where rows that are recorded might come again."
)
@click.option("--allow-commands", is_flag=True, help="Run the commands that prepare steps name.")
@merge_options
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Value for ${{ env.NAME }}."
)
@click.option(
    "--reset-derivatives-on-diverged-input",
    is_flag=True,
    help="Compute derivative datasets anew when an input was rewritten.",
)
@click.option(
    "--timeout", type=DurationParam(), help="Longest time for one step of a derivative dataset, such as 10m."
)
@click.option("--watch", type=DurationParam(), help="Pull again and again, with this pause; Ctrl-C ends it.")
@click.option(
    "--system-time", type=TIMESTAMP, hidden=True, help="System time of the run, for reproducible chains."
)
@_copy_options
@format_option()
@click.pass_context
def pull_command(
    context: click.Context,
    /,
    datasets: tuple[str, ...],
    everything: bool,
    recursive: bool,
    set_watermark: Timestamp | None,
    watch: float | None,
    source: str | None,
    name: str | None,
    output: str,
    **others: Any,
) -> int:
    """Bring datasets up to date with their polling sources, or with the datasets they are made of.

    A URL, or repository/dataset, is pulled from there, checked, and known here by a name from then on;
    pulling that name asks the same place again. DATASET@BRANCH is brought up to date on a branch: from its
    polling source, or from its inputs on the branch of that name, else on their heads. With --from URL it is
    the branch of that name at another place, which comes in beside the head and is verified before a merge
    uses it. ODFCHAIN_TOKEN is sent to the server that is named, and to no other.

    Every byte of a source is ingested once, however often and however interrupted this runs. One dataset that
    fails does not stop the others.
    """
    from odfchain.api.options import check_pull_options
    from odfchain.api.pull_targets import branch_target, check_branch_options

    if bool(datasets) == everything:
        raise UsageError("name the datasets to pull (names, ids, % patterns or URLs), or use --all")
    if not options().debug:
        silence_libraries()
    given = _given(context)
    with open_workspace() as workspace:
        if set_watermark is not None:
            if len(datasets) != 1 or source is not None or workspace.is_remote(datasets[0]):
                raise UsageError("--set-watermark is for one dataset of this workspace")
            check_pull_options(given, copies=0, others=1)
            return _set_watermark(workspace, datasets[0], set_watermark, others["allow_future"])
        if source is not None:
            if len(datasets) != 1 or name is not None or recursive:
                raise UsageError("--from is for one branch: pull DATASET@BRANCH --from URL")
            check_branch_options(given)
            targets = [branch_target(workspace, datasets[0], source)]
        else:
            targets = workspace.pull_targets(None if everything else datasets, recursive=recursive)
            copies = [target for target in targets if target.way.value == "peer"]
            check_pull_options(given, copies=len(copies), others=len(targets) - len(copies))
        remotes = [target.url for target in targets if target.url is not None]
        if name is not None and not (len(remotes) == len(targets) == 1):
            raise UsageError("--as names one dataset that is pulled from a URL or from repository/dataset")
        if others["violations"] is not None and len(targets) != 1:
            raise UsageError("--violations is for one dataset: each has foreign keys of its own")
        chosen = {key: value for key, value in others.items() if key in given}
        if "variables" in chosen:
            chosen["variables"] = dict(_variable(text) for text in chosen["variables"])
        run = _Run(workspace, name, token_for(remotes), chosen, output)
        while True:
            code = run.pull_all(targets)
            if watch is None:
                return code
            time.sleep(watch)


def _given(context: click.Context) -> dict[str, str]:
    """The options of the command line that are for some kinds of pull only, and how they are written."""
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name
        and param.name not in _FOR_ALL
        and context.get_parameter_source(param.name) is click.core.ParameterSource.COMMANDLINE
    }


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env {text!r}: expected NAME=VALUE")
    return name, value


def _set_watermark(workspace: Workspace, name: str, watermark: Timestamp, allow_future: bool) -> int:
    dataset = on_branch(workspace, name)
    head = dataset.set_watermark(watermark, allow_future=allow_future)
    say(f"{dataset.label}: watermark {watermark}, head is {head}")
    return 0


@dataclass(frozen=True, slots=True)
class _Run:
    """One round over all that is to be pulled."""

    workspace: Workspace
    name: str | None
    token: str | None
    chosen: dict[str, Any]
    output: str

    def pull_all(self, targets: list[PullTarget]) -> int:
        with (
            TerminalProgress(quiet=options().quiet) as progress,
            pulling(self.workspace, targets, self.name, self.token, self.chosen) as pull,
        ):
            rows, code = one_by_one(targets, lambda target: self._row(target, progress, pull), progress)
        if rows or code == 0:
            columns = _columns(targets, rows)
            right = [column for column in columns if column not in _TEXTS]
            print_records(rows, columns, self.output, right=right)
        return code

    def _row(
        self,
        target: PullTarget,
        progress: TerminalProgress,
        pull: Callable[[PullTarget, Progress], PullResult],
    ) -> dict[str, Any]:
        is_copy = target.way.value == "peer"
        result = pull(target, TransferProgress(progress) if is_copy else progress)
        if not is_copy:
            return _row(result)
        for text in result.warnings:
            progress.stop()
            echo(f"warning: {text}", err=True)
        return _copy_row(result, people=self.output == "table")


def _columns(targets: Sequence[PullTarget], rows: list[dict[str, Any]]) -> list[str]:
    """Those of sources, of copies, or of both."""
    missing = ["missing"] if any("missing" in row for row in rows) else []
    ways = {target.way.value == "peer" for target in targets}
    if True not in ways:
        return list(_COLUMNS)
    if False in ways:
        return [*_COLUMNS, *_OF_COPIES, *missing]
    return ["dataset", "status", "blocks", *_OF_COPIES, *missing]


def _row(result: PullResult) -> dict[str, Any]:
    return {
        "dataset": result.dataset.label,
        "status": result.status,
        "rows": result.rows,
        **result.operations,
        "blocks": result.blocks,
        "watermark": str(result.watermark) if result.watermark else None,
    }


def _copy_row(result: PullResult, *, people: bool) -> dict[str, Any]:
    """What is printed of a copy."""
    outcome: Any = result.details
    row: dict[str, Any] = {
        "dataset": result.dataset.label,
        "status": result.status,
        "blocks": outcome.blocks,
        "objects": outcome.objects,
        "bytes": human_size(outcome.bytes) if people else outcome.bytes,
        "signature": str(outcome.signature.status) if outcome.signature else None,
    }
    if outcome.missing_slices:
        row["missing"] = outcome.missing_slices
    if not people:
        row |= {"source": result.where, "head": str(outcome.new), "oldHead": outcome.old and str(outcome.old)}
        row |= {
            "signatureMessage": outcome.signature.message if outcome.signature else None,
            "attestations": outcome.attestations,
            "warnings": list(outcome.warnings),
        }
    return row
