"""`odfchain pull`: datasets are brought up to date, and those of others here."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import on_branch
from odfchain.api.pulling import Pulls, branch_target, check_branch_options, check_pull_options
from odfchain.cli import parameters as cli
from odfchain.cli.context import ended_by_sigterm, open_workspace, print_outcome, say, silence_libraries
from odfchain.cli.progress_bar import TerminalProgress, one_by_one
from odfchain.cli.screen import echo, echo_json, print_records, record, standard_input
from odfchain.errors import UsageError
from odfchain.storage.fsio import no_file
from odfchain.text import counted, human_size
from odfchain.workspace import options

if TYPE_CHECKING:
    from odfchain import Timestamp, Workspace
    from odfchain.results import PullResult, PullTarget


_COLUMNS = ["dataset", "status", "rows", "+A", "-R", "-C", "+C", "blocks", "watermark"]
_OF_COPIES = ["objects", "bytes", "signature"]
_TEXTS = ("dataset", "status", "watermark")


@cli.command("pull")
def pull_command(
    datasets: tuple[str, ...] = cli.argument(cli.DATASET_AT),
    everything: bool = cli.option(
        "Pull every dataset that has a source or is made of others.", "-a", "--all"
    ),
    recursive: bool = cli.option("Pull the inputs of the datasets first.", "-r"),
    set_watermark: Timestamp | None = cli.option(
        "Record this watermark instead of pulling; for one dataset."
    ),
    sources: dict[str, Any] = cli.keywords(
        options.SourceOptions, "fetch_uncacheable", "allow_commands", *cli.MERGING, "variables", "system_time"
    ),
    transforms: dict[str, Any] = cli.keywords(options.InputsOptions),
    watch: str | None = cli.option(
        "Pull again and again, with this pause, or as `pull.every` of each dataset says; Ctrl-C ends it.",
        "[DURATION]",
        is_flag=False,
        flag_value="",
    ),
    source: str | None = cli.option("Bring the branch DATASET@BRANCH from this place.", "--from", "URL"),
    name: str | None = cli.option("The name of a dataset that is pulled from a URL.", "--as", "NAME"),
    copies: dict[str, Any] = cli.keywords(options.CopyOptions),
    output: str = cli.formats(),
) -> int:
    """Bring datasets up to date, or take one from a URL.

    A root dataset is brought up to date from its polling source, and a derivative from its inputs. A copy
    asks the place that it came from. A new URL, or repository/dataset, is pulled, checked, and gets a local
    name.

    DATASET@BRANCH is brought up to date on a branch. A derivative then reads its inputs on the branch of that
    name, or else on their heads. With --from URL the branch comes from another place. The head stays where it
    is, and a merge verifies the branch first.

    ODFCHAIN_TOKEN is sent to the server that the command names, and to no other. Every byte of a source is
    ingested once, also after interruptions. A dataset that fails does not stop the others.

    `odfchain config set pull.every 1h --dataset NAME` gives a dataset a schedule. --watch without a pause
    pulls by the schedules, of all datasets or of those that are named. Each outcome is a line.
    """
    pause, datasets = _pause(watch, datasets)
    if watch is not None and pause is None:
        if sources or transforms or copies or recursive or set_watermark or source or name:
            message = "schedules pull without other options"
            raise UsageError(message, hint="with a pause they are taken: --watch 1h")
        return _by_schedule(datasets, output)
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
            chosen["variables"] = cli.key_values(chosen["variables"], "--env NAME=VALUE")
        asked, token = options.PullOptions(**chosen), cli.token_for(remotes)
        while True:
            code = _pull_all(targets, Pulls(workspace, targets, asked, name=name, token=token), output)
            if pause is None:
                return code
            time.sleep(pause)


def _pause(watch: str | None, datasets: tuple[str, ...]) -> tuple[float | None, tuple[str, ...]]:
    # `--watch cities` names a dataset
    if not watch:
        return None, datasets
    try:
        return cli.DURATION.convert(watch, None, None), datasets
    except click.BadParameter:
        return None, (watch, *datasets)


def _by_schedule(datasets: tuple[str, ...], output: str) -> int:
    from odfchain import Timestamp
    from odfchain.node.schedule import Planned, Schedule

    if output not in ("table", "ndjson"):
        raise UsageError(f"outcomes come one by one, not as {output}", hint="give -o ndjson")

    def ended(run: Planned) -> None:
        assert run.last is not None  # noqa: S101 - it is what has ended
        detail = f": {run.last.message}" if run.last.message else ""
        took = f"{run.last.outcome} in {run.last.seconds:.1f} s{detail}"
        echo(f"{run.dataset}: {took}; {run.when(Timestamp.now())}", err=True)
        if output == "ndjson":
            fields = [f"{name}:last.{name}" for name in ("begun", "seconds", "outcome", "message", "head")]
            echo_json(record(run, "dataset", *fields, "failures", "next"), indent=None)

    root = open_workspace(session_stays=False).path
    schedule = Schedule(root, only=datasets or None, said=say, ended=ended)
    known = {name for each in schedule.state() for name in (each.dataset, each.id)}
    for name in datasets if known else datasets or ("no dataset",):
        if name not in known:
            hint = "`odfchain config set pull.every 1h --dataset NAME` gives a dataset one"
            message = f"{name} has a schedule" if not datasets else f"{name} has no schedule"
            raise UsageError(message, hint=hint)
    with contextlib.suppress(KeyboardInterrupt), ended_by_sigterm():
        schedule.run_until(threading.Event())
    return 0


def _set_watermark(workspace: Workspace, name: str, watermark: Timestamp, allow_future: bool) -> int:
    dataset = on_branch(workspace, name)
    head = dataset.set_watermark(watermark, allow_future=allow_future)
    say(f"{dataset.label}: watermark {watermark}, head is {head}")
    return 0


def _pull_all(targets: list[PullTarget], pulls: Pulls, output: str) -> int:
    with TerminalProgress() as progress, contextlib.closing(pulls):

        def row(target: PullTarget) -> dict[str, Any]:
            is_copy = target.way.value == "peer"
            result = pulls.pull(target, progress)
            if not is_copy:
                counts = record(result, "dataset:dataset.label", "status", "rows")
                return counts | {**result.operations} | record(result, "blocks", "watermark")
            for text in result.warnings:
                progress.stop()
                echo(f"warning: {text}", err=True)
            signature: Any = getattr(result.details, "signature", None)
            if result.blocks and not result.warnings and signature and signature.status == "unsigned":
                progress.stop()
                say(f"note: {result.dataset.label}: {signature.message}")
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


@cli.command("ingest")
def ingest_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@BRANCH]"),
    files: tuple[Path, ...] = cli.argument(),
    from_stdin: bool = cli.option("Read one input from standard input.", "--stdin"),
    chosen: dict[str, Any] = cli.keywords(
        options.FileOptions, "source_name", "input_format", "again", "event_time", "system_time", *cli.MERGING
    ),
    output: str = cli.formats(),
) -> None:
    """Ingest files into a root dataset.

    Files are ingested in the order given. Each file becomes one transaction. All are published together, or
    none if one file is refused. A file beyond `slice.maxBytes` becomes several blocks. DATASET@BRANCH records
    on a branch, and the head stays where it is.

    Without a key, rows are appended. A file that was appended before then brings nothing new.
    """
    if bool(files) == from_stdin:
        raise UsageError("name the files to ingest, or use --stdin")
    for file in files:
        if not file.is_file():
            raise no_file(file)
    silence_libraries()
    with open_workspace() as workspace, TerminalProgress() as progress:
        target = on_branch(workspace, dataset)
        outcome = target.ingest(standard_input() if from_stdin else files, progress=progress, **chosen)
        progress.stop()
        print_outcome(outcome, output)


@cli.command("fetch")
def fetch_command(
    dataset: str = cli.argument(cli.DATASET_AT),
    merged: bool = cli.option("Bring merged branches, so that the merges can be checked."),
    chosen: dict[str, Any] = cli.keywords(options.MirrorOptions),
    locks: tuple[Path, ...] = cli.option(
        "Bring slices from the places in this lock; can be repeated.", "--lock", "FILE"
    ),
    trust_files: bool = cli.option("With --lock: read absolute paths that it names."),
    output: str = cli.formats(),
) -> None:
    """Bring the slices that a partial copy lacks.

    Slices come from the place that the dataset was pulled from, or from any other copy. Every slice is
    checked against its hash in the dataset's own chain.

    --merged brings the blocks and slices of merged branches instead. They are no part of the chain. With them
    `verify` computes the merges again.

    --where is a condition on columns, like "event_time >= '2026-01-01'". A manifest that the owner signed
    says which slices cannot hold such records. All others are brought.

    --lock takes a lock that `odfchain assets derive --slices` made. The places in it need no trust.
    """
    if locks and (merged or chosen.keys() - {"parallel"}):
        message = "--lock brings all that is missing from the places of locks, and has no other options"
        raise UsageError(message)
    if merged and chosen.keys() - {"source", "parallel"}:
        raise UsageError("--merged brings all that was merged: --since, --last and --where do not apply")
    with open_workspace() as workspace, TerminalProgress() as progress:
        found = on_branch(workspace, dataset)
        chosen["token"] = cli.token_for(
            [workspace.sharing.url_of(chosen["source"])] if chosen.get("source") else []
        )
        row: dict[str, Any] = {"dataset": found.label}
        if merged:
            row |= record(found.fetch_merged(progress=progress, **chosen), "blocks", "objects", "bytes")
        else:
            if locks:
                from odfchain import AssetLock, StoreOptions
                from odfchain.api.settings import Configuration

                named = Configuration(workspace.path).get("assets.trustedEndpoints")
                stores = StoreOptions(trust_files=trust_files, endpoints=named)
                read = [AssetLock.read(lock) for lock in locks]
                parallel = chosen.get("parallel")
                outcome = found.fetch_from_locks(read, stores=stores, parallel=parallel, progress=progress)
            else:
                outcome = found.fetch(progress=progress, **chosen)
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


@cli.group("source")
def source_command() -> None:
    """Disable a source of a dataset."""


@cli.command("disable", source_command)
def disable_command(
    dataset: str = cli.argument(cli.DATASET),
    name: str | None = cli.option("The source, if there are several.", "--source", "NAME"),
    chosen: dict[str, Any] = cli.keywords(options.RecordOptions, "system_time"),
) -> None:
    """Record that a source is no longer used.

    It is the polling source, or a push source. Recorded data stays. `odfchain add --update` defines the
    source again.
    """
    found = open_workspace()[dataset]
    event, head = found.disable_source(name, **chosen)
    say(f"{found.alias}: recorded {event.KIND}, head is {head}")
