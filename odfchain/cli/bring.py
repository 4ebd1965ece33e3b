"""`odfchain pull`: datasets are brought up to date, and those of others here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain import Timestamp
from odfchain.api.branching import on_branch
from odfchain.api.executing import start_spark_ahead
from odfchain.api.pulling import pulling
from odfchain.cli.change_output import print_outcome
from odfchain.cli.context import open_workspace, options, say, silence_libraries
from odfchain.cli.output import count_of, format_option, human_size, print_records
from odfchain.cli.parameters import (
    DATASET,
    DATASET_AT,
    FORMATS,
    PARALLEL_OPTION,
    TIMESTAMP,
    DurationParam,
    given,
    merge_options,
    part_options,
    together,
    token_for,
)
from odfchain.cli.progress_bar import TerminalProgress, TransferProgress, one_by_one
from odfchain.cli.screen import echo, standard_input
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Dataset, FetchOutcome, PullResult, PullTarget, Timestamp, Workspace
    from odfchain.progress import Progress


_COLUMNS = ("dataset", "status", "rows", "+A", "-R", "-C", "+C", "blocks", "watermark")
_TEXTS = ("dataset", "status", "watermark")
_FOR_ALL = ("datasets", "everything", "recursive", "watch", "output", "set_watermark", "source")


_OF_COPIES = ("objects", "bytes", "signature")
# The options that are for copies of datasets elsewhere, named as in `Workspace.pull`.
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
    the branch of that name at another place, which is fetched without moving the head and verified before a
    merge uses it. ODFCHAIN_TOKEN is sent to the server that is named, and to no other.

    Every byte of a source is ingested once, however often and however interrupted this runs. One dataset that
    fails does not stop the others.
    """
    from odfchain.api.options import check_pull_options
    from odfchain.api.pulling import branch_target, check_branch_options

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
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name
        and param.name not in _FOR_ALL
        # defaults do not count
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
    missing = ["missing"] if any("missing" in row for row in rows) else []
    # columns of sources, of copies, or of both
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


# `odfchain ingest`: files into a root dataset.


@click.command("ingest")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@BRANCH]")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--stdin", "from_stdin", is_flag=True, help="Read one input from standard input.")
@click.option("--source-name", metavar="NAME", help="Push source to use when there are several.")
@click.option(
    "--input-format",
    type=click.Choice(FORMATS),
    help="Format of the files, when it is not the source's.",
)
@click.option("--event-time", type=TIMESTAMP, help="Event time of rows that carry none.")
@click.option(
    "--system-time", type=TIMESTAMP, hidden=True, help="System time of the run, for reproducible chains."
)
@merge_options
@format_option()
def ingest_command(
    dataset: str,
    files: tuple[Path, ...],
    from_stdin: bool,
    output: str,
    **chosen: Any,
) -> None:
    """Ingest files into a root dataset, in the order given.

    Each file becomes one transaction; all of them are published together, or none when one is refused.
    A file beyond `slice.maxBytes` becomes several blocks.
    DATASET@BRANCH records them on a branch, and the head stays where it is.
    """
    if bool(files) == from_stdin:
        raise UsageError("name the files to ingest, or use --stdin")
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: {'is a folder' if file.is_dir() else 'no such file'}")
    if not options().debug:
        silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        target = on_branch(workspace, dataset)
        start_spark_ahead(workspace)
        outcome = target.ingest(
            standard_input() if from_stdin else files, progress=progress, **given(**chosen)
        )
        progress.stop()
        print_outcome(outcome, output)


# `odfchain fetch`: the slices that a partial copy lacks are brought.


@click.command("fetch")
@click.argument("dataset", type=DATASET_AT)
@click.option("--from", "source", metavar="URL", help="Any copy of the dataset; it need not be trusted.")
@click.option(
    "--merged",
    is_flag=True,
    help="Bring what was merged into it, so that its merges can be checked.",
)
@part_options
@click.option("--where", metavar="SQL", help="Leave out slices that hold no record of which this is true.")
@click.option(
    "--lock",
    "locks",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="From wherever this lock of slices says that they are; can be repeated.",
)
@click.option("--trust-files", is_flag=True, help="With --lock: read absolute paths that it names.")
@PARALLEL_OPTION
@format_option()
def fetch_command(
    dataset: str,
    source: str | None,
    merged: bool,
    since: Timestamp | None,
    last: int | None,
    where: str | None,
    locks: tuple[Path, ...],
    trust_files: bool,
    parallel: int | None,
    output: str,
) -> None:  # fmt: skip
    """Bring the slices that a partial copy lacks, from where it was pulled or from any other copy.

    Every slice is checked against the hash that the dataset's own chain has for it. --merged brings instead
    the blocks and slices of branches that were merged: they are no part of the chain, and `verify` computes
    the merges again from them.

    --where is a condition on the columns, like "event_time >= '2026-01-01'". What is in slices that are not
    here is believed of the dataset's owner alone, by a manifest that he signed; a slice of which he says
    nothing is brought.

    --lock takes a lock that `odfchain assets derive --slices` made: the places that it names need no trust.
    """
    if locks and not (source is None and since is None and last is None and where is None and not merged):
        raise UsageError(
            "--lock brings all that is missing from the places of locks, and has no other options"
        )
    if merged and not (since is None and last is None and where is None):
        raise UsageError("--merged brings all that was merged: --since, --last and --where do not apply")
    with open_workspace() as workspace:
        found = on_branch(workspace, dataset)
        token = token_for([workspace.url_of(source)] if source else [])
        if merged:
            with TerminalProgress(quiet=options().quiet) as progress:
                brought = found.fetch_merged(
                    source, parallel=parallel, token=token, progress=TransferProgress(progress)
                )
            row = {"dataset": found.label, "blocks": brought.blocks, "objects": brought.objects}
            row["bytes"] = human_size(brought.bytes) if output == "table" else brought.bytes
            print_records([row], list(row), output, right=list(row)[1:])
            return
        with TerminalProgress(quiet=options().quiet) as progress:
            shown = TransferProgress(progress)
            if locks:
                outcome = _from_locks(workspace, found, locks, trust_files, parallel, shown)
            else:
                outcome = found.fetch(
                    source,
                    since=since,
                    last=last,
                    where=where,
                    parallel=parallel,
                    token=token,
                    progress=shown,
                )
    row = {
        "dataset": found.label,
        "objects": outcome.objects,
        "bytes": human_size(outcome.bytes) if output == "table" else outcome.bytes,
        "missing": outcome.missing_slices,
    }
    if where is not None:
        row |= {"skipped": outcome.skipped, "unknown": outcome.unknown}
        if not outcome.understood:
            say("note: nothing is skipped: no part of the condition compares a column with a literal")
        elif outcome.unknown:
            say(
                f"note: no manifest that the owner signed is here that says what is in "
                f"{count_of(outcome.unknown, 'slice')}"
            )
    print_records([row], list(row), output, right=list(row)[1:])


def _from_locks(
    workspace: Workspace,
    dataset: Dataset,
    locks: tuple[Path, ...],
    trust_files: bool,
    parallel: int | None,
    progress: TransferProgress,
) -> FetchOutcome:
    from odfchain import AssetLock, StoreOptions
    from odfchain.api.asset_locks import trusted_endpoints

    stores = StoreOptions(trust_files=trust_files, endpoints=trusted_endpoints(workspace))
    read = [AssetLock.read(lock) for lock in locks]
    return dataset.fetch_from_locks(read, stores=stores, parallel=parallel, progress=progress)


# `odfchain source`: a dataset's source is disabled.


@click.group("source")
def source_command() -> None:
    """Disable a source of a dataset."""


@source_command.command("disable")
@click.argument("dataset", type=DATASET)
@click.option("--source", "name", metavar="NAME", help="Which source, when there are several.")
@click.option(
    "--system-time", type=TIMESTAMP, hidden=True, help="System time of the block, for reproducible chains."
)
def disable_command(dataset: str, name: str | None, system_time: Timestamp | None) -> None:
    """Record that the polling source, or a push source, is no longer used.

    What is recorded stays. The source can be defined again with `odfchain add --update`.
    """
    found = open_workspace()[dataset]
    event, head = found.disable_source(name, system_time=system_time)
    say(f"{found.alias}: recorded {event.KIND}, head is {head}")
