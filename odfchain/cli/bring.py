"""`odfchain pull`: datasets are brought up to date, and those of others here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import on_branch
from odfchain.api.executing import engines_of
from odfchain.api.pulling import Pulls, check_pull_options
from odfchain.cli.context import open_workspace, print_outcome, say, silence_libraries
from odfchain.cli.parameters import (
    DATASET,
    DATASET_AT,
    MERGING,
    argument,
    command,
    formats,
    group,
    keywords,
    option,
    token_for,
)
from odfchain.cli.progress_bar import TerminalProgress, TransferProgress, one_by_one
from odfchain.cli.screen import echo, human_size, print_records, record, standard_input
from odfchain.errors import UsageError
from odfchain.text import counted
from odfchain.workspace.options import (
    CopyOptions,
    FileOptions,
    InputsOptions,
    MirrorOptions,
    PullOptions,
    RecordOptions,
    SourceOptions,
)

if TYPE_CHECKING:
    from odfchain import Timestamp, Workspace
    from odfchain.results import PullResult, PullTarget


_COLUMNS = ["dataset", "status", "rows", "+A", "-R", "-C", "+C", "blocks", "watermark"]
_OF_COPIES = ["objects", "bytes", "signature"]
_TEXTS = ("dataset", "status", "watermark")


@command("pull")
def pull_command(
    datasets: tuple[str, ...] = argument(DATASET_AT),
    everything: bool = option("Pull every dataset that has a source or is made of others.", "-a", "--all"),
    recursive: bool = option("Pull what the datasets come from first.", "-r"),
    set_watermark: Timestamp | None = option("Record this watermark instead of pulling; for one dataset."),
    sources: dict[str, Any] = keywords(
        SourceOptions, "fetch_uncacheable", "allow_commands", *MERGING, "variables", "system_time"
    ),
    transforms: dict[str, Any] = keywords(InputsOptions),
    watch: float | None = option("Pull again and again, with this pause; Ctrl-C ends it."),
    source: str | None = option("Bring the branch DATASET@BRANCH from this place.", "--from", "URL"),
    name: str | None = option("What to call a dataset that is pulled from a URL.", "--as", "NAME"),
    copies: dict[str, Any] = keywords(CopyOptions),
    output: str = formats(),
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
    from odfchain.api.pulling import branch_target, check_branch_options

    if bool(datasets) == everything:
        raise UsageError("name the datasets to pull (names, ids, % patterns or URLs), or use --all")
    silence_libraries()
    chosen = sources | transforms | copies
    named = chosen.keys() | ({"name"} if name is not None else set())
    params = click.get_current_context().command.params
    given = {str(each.name): each.opts[0] for each in params if each.name in named}
    with open_workspace() as workspace:
        if set_watermark is not None:
            if len(datasets) != 1 or source is not None or workspace.sharing.is_remote(datasets[0]):
                raise UsageError("--set-watermark is for one dataset of this workspace")
            check_pull_options(given, copies=0, others=1)
            return _set_watermark(workspace, datasets[0], set_watermark, sources.get("allow_future", False))
        if source is not None:
            if len(datasets) != 1 or name is not None or recursive:
                raise UsageError("--from is for one branch: pull DATASET@BRANCH --from URL")
            check_branch_options(given)
            targets = [branch_target(workspace, datasets[0], source)]
        else:
            targets = workspace.pull_targets(None if everything else datasets, recursive=recursive)
            number = sum(target.way.value == "peer" for target in targets)
            check_pull_options(given, copies=number, others=len(targets) - number)
        remotes = [target.url for target in targets if target.url is not None]
        if name is not None and not (len(remotes) == len(targets) == 1):
            raise UsageError("--as names one dataset that is pulled from a URL or from repository/dataset")
        if "violations" in chosen and len(targets) != 1:
            raise UsageError("--violations is for one dataset: each has foreign keys of its own")
        if "variables" in chosen:
            chosen["variables"] = dict(map(_variable, chosen["variables"]))
        asked, token = PullOptions(**chosen), token_for(remotes)
        while True:
            code = _pull_all(targets, Pulls(workspace, targets, asked, name=name, token=token), output)
            if watch is None:
                return code
            time.sleep(watch)


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


def _pull_all(targets: list[PullTarget], pulls: Pulls, output: str) -> int:
    with TerminalProgress() as progress, contextlib.closing(pulls):

        def row(target: PullTarget) -> dict[str, Any]:
            is_copy = target.way.value == "peer"
            result = pulls.pull(target, TransferProgress(progress) if is_copy else progress)
            if not is_copy:
                return _row(result)
            for text in result.warnings:
                progress.stop()
                echo(f"warning: {text}", err=True)
            return _copy_row(result)

        rows, code = one_by_one(targets, row, progress)
    if rows or code == 0:
        columns = _columns(targets, rows)
        right = [column for column in columns if column not in _TEXTS]
        print_records(rows, columns, output, shown={"bytes": human_size}, right=right)
    return code


def _columns(targets: Sequence[PullTarget], rows: list[dict[str, Any]]) -> list[str]:
    missing = ["missing"] if any("missing" in row for row in rows) else []
    # columns of sources, of copies, or of both
    ways = {target.way.value == "peer" for target in targets}
    if True not in ways:
        return _COLUMNS
    if False in ways:
        return [*_COLUMNS, *_OF_COPIES, *missing]
    return ["dataset", "status", "blocks", *_OF_COPIES, *missing]


def _row(result: PullResult) -> dict[str, Any]:
    return {
        **record(result, "dataset:dataset.label", "status", "rows"),
        **result.operations,
        **record(result, "blocks", "watermark"),
    }


def _copy_row(result: PullResult) -> dict[str, Any]:
    outcome: Any = result.details
    heads = ("head:new", "oldHead:old", "signatureMessage:signature.message")
    return {
        **record(result, "dataset:dataset.label", "status"),
        **record(outcome, "blocks", "objects", "bytes", "signature:signature.status"),
        **({"missing": outcome.missing_slices} if outcome.missing_slices else {}),
        "source": result.where,
        **record(outcome, *heads, "attestations", "warnings"),
    }


@command("ingest")
def ingest_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@BRANCH]"),
    files: tuple[Path, ...] = argument(),
    from_stdin: bool = option("Read one input from standard input.", "--stdin"),
    chosen: dict[str, Any] = keywords(
        FileOptions, "source_name", "input_format", "event_time", "system_time", *MERGING
    ),
    output: str = formats(),
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
    silence_libraries()
    with open_workspace() as workspace, TerminalProgress() as progress:
        target = on_branch(workspace, dataset)
        engines_of(workspace).begin()
        outcome = target.ingest(standard_input() if from_stdin else files, progress=progress, **chosen)
        progress.stop()
        print_outcome(outcome, output)


@command("fetch")
def fetch_command(
    dataset: str = argument(DATASET_AT),
    merged: bool = option("Bring what was merged into it, so that its merges can be checked."),
    chosen: dict[str, Any] = keywords(MirrorOptions),
    locks: tuple[Path, ...] = option(
        "From wherever this lock of slices says that they are; can be repeated.", "--lock", "FILE"
    ),
    trust_files: bool = option("With --lock: read absolute paths that it names."),
    output: str = formats(),
) -> None:
    """Bring the slices that a partial copy lacks, from where it was pulled or from any other copy.

    Every slice is checked against the hash that the dataset's own chain has for it. --merged brings instead
    the blocks and slices of branches that were merged: they are no part of the chain, and `verify` computes
    the merges again from them.

    --where is a condition on the columns, like "event_time >= '2026-01-01'". What is in slices that are not
    here is believed of the dataset's owner alone, by a manifest that he signed; a slice of which he says
    nothing is brought.

    --lock takes a lock that `odfchain assets derive --slices` made: the places that it names need no trust.
    """
    if locks and (merged or chosen.keys() - {"parallel"}):
        raise UsageError(
            "--lock brings all that is missing from the places of locks, and has no other options"
        )
    if merged and chosen.keys() - {"source", "parallel"}:
        raise UsageError("--merged brings all that was merged: --since, --last and --where do not apply")
    with open_workspace() as workspace, TerminalProgress() as progress:
        found, shown = on_branch(workspace, dataset), TransferProgress(progress)
        chosen["token"] = token_for(
            [workspace.sharing.url_of(chosen["source"])] if chosen.get("source") else []
        )
        row: dict[str, Any] = {"dataset": found.label}
        if merged:
            row |= record(found.fetch_merged(progress=shown, **chosen), "blocks", "objects", "bytes")
        else:
            if locks:
                from odfchain import AssetLock, StoreOptions
                from odfchain.api.settings import Configuration

                named = Configuration(workspace.path).get("assets.trustedEndpoints")
                stores = StoreOptions(trust_files=trust_files, endpoints=named)
                read = [AssetLock.read(lock) for lock in locks]
                parallel = chosen.get("parallel")
                outcome = found.fetch_from_locks(read, stores=stores, parallel=parallel, progress=shown)
            else:
                outcome = found.fetch(progress=shown, **chosen)
            row |= record(outcome, "objects", "bytes") | {"missing": outcome.missing_slices}
    if "where" in chosen:
        row |= record(outcome, "skipped", "unknown")
        if not outcome.understood:
            say("note: nothing is skipped: no part of the condition compares a column with a literal")
        elif outcome.unknown:
            say(
                f"note: no manifest that the owner signed is here that says what is in "
                f"{counted(outcome.unknown, 'slice')}"
            )
    columns = list(row)
    print_records([row], columns, output, shown={"bytes": human_size}, right=columns[1:])


@group("source")
def source_command() -> None:
    """Disable a source of a dataset."""


@command("disable", source_command)
def disable_command(
    dataset: str = argument(DATASET),
    name: str | None = option("Which source, when there are several.", "--source", "NAME"),
    chosen: dict[str, Any] = keywords(RecordOptions, "system_time"),
) -> None:
    """Record that the polling source, or a push source, is no longer used.

    What is recorded stays. The source can be defined again with `odfchain add --update`.
    """
    found = open_workspace()[dataset]
    event, head = found.disable_source(name, **chosen)
    say(f"{found.alias}: recorded {event.KIND}, head is {head}")
