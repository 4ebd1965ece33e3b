"""The command that keeps datasets up to date, and brings those of others here: pull."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.known_errors import known_error
from odfchain.cli.support.context import open_workspace, options, say, silence_libraries
from odfchain.cli.support.copies import (
    COLUMNS,
    CopyOptions,
    Remote,
    check_options,
    copy_options,
    copy_row,
    pull_copy,
)
from odfchain.cli.support.faults import report_error
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import DATASET, TIMESTAMP, DurationParam, merge_options
from odfchain.cli.support.peers import token_for
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo
from odfchain.errors import UsageError, was_interrupted

if TYPE_CHECKING:
    from odfchain import Dataset, Timestamp, Workspace
    from odfchain.ingest.polling import PullOptions, PullOutcome
    from odfchain.transfer.sharing import Sharing
    from odfchain.transform.execute import TransformOptions

_COLUMNS = ("dataset", "status", "rows", "+A", "-R", "-C", "+C", "blocks", "watermark")


@click.command("pull")
@click.argument("datasets", nargs=-1, type=DATASET)
@click.option(
    "--all", "everything", is_flag=True, help="Pull every dataset that has a source or is made of others."
)
@click.option("--recursive", is_flag=True, help="Pull what the datasets come from first.")
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
@copy_options
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
    copies: CopyOptions,
    output: str,
    **others: Any,
) -> int:  # fmt: skip
    """Bring datasets up to date with their polling sources, or with the datasets they are made of.

    A URL, or repository/dataset, is pulled from there, checked, and known here by a name from then on;
    pulling that name asks the same place again. ODFCHAIN_TOKEN is sent to the server that is named, and to
    no other.

    Every byte of a source is ingested once, however often and however interrupted this runs. One dataset that
    fails does not stop the others.
    """
    if bool(datasets) == everything:
        raise UsageError("name the datasets to pull (names, ids, % patterns or URLs), or use --all")
    if not options().debug:
        silence_libraries()
    with open_workspace() as workspace:
        if set_watermark is not None:
            return _set_watermark(
                context, workspace, datasets, set_watermark, allow_future=others["allow_future"]
            )
        targets = _targets(workspace, datasets, everything=everything, recursive=recursive)
        num_own = sum(isinstance(target, Own) for target in targets)
        check_options(context, copies=len(targets) - num_own, others=num_own)
        remotes = [target for target in targets if isinstance(target, Remote)]
        if copies.name is not None and not (len(remotes) == len(targets) == 1):
            raise UsageError("--as names one dataset that is pulled from a URL or from repository/dataset")
        run = _Run(
            workspace.sharing, copies, token_for(remote.url for remote in remotes), _Given(**others), output
        )
        while True:
            code = run.pull_all(targets)
            if watch is None:
                return code
            time.sleep(watch)


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The options of sources and queries, as they were given."""

    fetch_uncacheable: bool
    allow_commands: bool
    allow_empty: bool
    allow_retract: bool
    late_edits: str | None
    duplicate_keys: str | None
    allow_future: bool
    variables: tuple[str, ...]
    reset_derivatives_on_diverged_input: bool
    timeout: float | None
    system_time: Timestamp | None

    def __post_init__(self) -> None:
        for text in self.variables:
            _variable(text)

    @functools.cached_property
    def source(self) -> PullOptions:
        """For datasets with a polling source; slow to load."""
        from odfchain.ingest.ingest import IngestOptions
        from odfchain.ingest.polling import PullOptions
        from odfchain.repo.workspace_config import DuplicateKeys, LateEdits

        return PullOptions(
            ingest=IngestOptions(
                allow_empty=self.allow_empty,
                allow_retract=self.allow_retract,
                late_edits=LateEdits(self.late_edits) if self.late_edits else None,
                duplicate_keys=DuplicateKeys(self.duplicate_keys) if self.duplicate_keys else None,
                allow_future=self.allow_future,
                system_time=self.system_time,
            ),
            fetch_uncacheable=self.fetch_uncacheable,
            allow_commands=self.allow_commands,
            variables=dict(_variable(text) for text in self.variables),
        )

    @functools.cached_property
    def transform(self) -> TransformOptions:
        """For derivative datasets; slow to load."""
        from odfchain.transform.execute import TransformOptions

        return TransformOptions(
            system_time=self.system_time,
            reset_on_diverged_input=self.reset_derivatives_on_diverged_input,
            retries=3,
            timeout=self.timeout,
        )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env {text!r}: expected NAME=VALUE")
    return name, value


@dataclass(frozen=True, slots=True)
class Own:
    """A dataset of this workspace that has a source, or is made of others."""

    dataset: Dataset

    def __str__(self) -> str:
        return str(self.dataset.alias)


@dataclass(frozen=True, slots=True)
class Copy:
    """A dataset of this workspace that comes from a peer."""

    dataset: Dataset

    def __str__(self) -> str:
        return str(self.dataset.alias)


Target = Own | Copy | Remote


def _targets(
    workspace: Workspace, names: tuple[str, ...], *, everything: bool, recursive: bool
) -> list[Target]:
    sharing = workspace.sharing
    remotes: dict[str, Target] = {}
    named: dict[Any, Dataset] = {}
    for name in names:
        if sharing.is_remote(name):
            remotes[name] = Remote(name, sharing.url_of(name))
        else:
            if "%" not in name:
                sharing.named(name)  # says what `a/b` may have meant
            named |= {dataset.path: dataset for dataset in workspace.matching(name)}
    if everything:
        named = {d.path: d for d in workspace.datasets() if _is_pullable(sharing, d)}
    ordered = list(named.values())
    if recursive or (everything and any(_is_derivative(d) for d in ordered)):
        # what was not asked for by name may have no source to pull from: its data are pushed
        upstream = workspace.with_upstream(ordered)
        ordered = [d for d in upstream if d.path in named or _is_pullable(sharing, d)]
    # what comes from elsewhere may be an input of the others
    return [*remotes.values(), *(Copy(d) if sharing.is_copy(d.id) else Own(d) for d in ordered)]


def _is_derivative(dataset: Dataset) -> bool:
    from odfchain import DatasetKind

    return dataset.kind is DatasetKind.DERIVATIVE


def _is_pullable(sharing: Sharing, dataset: Dataset) -> bool:
    return _is_derivative(dataset) or dataset.state.polling_source is not None or sharing.is_copy(dataset.id)


def _set_watermark(
    context: click.Context,
    workspace: Workspace,
    names: tuple[str, ...],
    watermark: Timestamp,
    *,
    allow_future: bool,
) -> int:
    if len(names) != 1 or workspace.sharing.is_remote(names[0]):
        raise UsageError("--set-watermark is for one dataset of this workspace")
    check_options(context, copies=0, others=1)
    dataset = workspace.dataset(names[0])
    head = dataset.set_watermark(watermark, allow_future=allow_future)
    say(f"{dataset.alias}: watermark {watermark}, head is {head}")
    return 0


@dataclass(frozen=True, slots=True)
class _Run:
    """One round over all that is to be pulled."""

    sharing: Sharing
    copies: CopyOptions
    token: str | None
    given: _Given
    output: str

    def pull_all(self, targets: list[Target]) -> int:

        rows: list[dict[str, Any]] = []
        code = 0
        with TerminalProgress(quiet=options().quiet) as progress:
            for target in targets:
                try:
                    rows.append(self._row(target, progress))
                except Exception as error:
                    if was_interrupted(error):
                        raise KeyboardInterrupt from error
                    known = known_error(error)
                    if known is None:
                        raise
                    progress.stop()
                    report_error(known, about=str(target) if len(targets) > 1 else "")
                    code = code or known.exit_code
        if rows or code == 0:
            columns = _columns(targets, rows)
            right = [column for column in columns if column not in _TEXTS]
            print_records(rows, columns, self.output, right=right)
        return code

    def _row(self, target: Target, progress: TerminalProgress) -> dict[str, Any]:
        if isinstance(target, Own):
            return _pulled(target.dataset, self.given, progress)
        if isinstance(target, Copy):
            found = pull_copy(self.sharing, str(target.dataset.alias), self.copies, None, progress)
        else:
            found = pull_copy(self.sharing, target.ref, self.copies, self.token, progress)
        for text in found.outcome.warnings:
            progress.stop()
            echo(f"warning: {text}", err=True)
        return copy_row(found, people=self.output == "table")


_TEXTS = ("dataset", "status", "watermark")


def _columns(targets: list[Target], rows: list[dict[str, Any]]) -> list[str]:
    """Those of sources, of copies, or of both."""
    missing = ["missing"] if any("missing" in row for row in rows) else []
    if all(isinstance(target, Own) for target in targets):
        return list(_COLUMNS)
    if any(isinstance(target, Own) for target in targets):
        return [*_COLUMNS, *COLUMNS, *missing]
    return ["dataset", "status", "blocks", *COLUMNS, *missing]


def _pulled(dataset: Dataset, given: _Given, progress: TerminalProgress) -> dict[str, Any]:
    if not _is_derivative(dataset):
        return _row(dataset, dataset.pull(given.source, progress=progress))
    outcome = dataset.transform(given.transform, progress=progress)
    operations = ("+A", "-R", "-C", "+C")
    return {
        "dataset": str(dataset.alias),
        "status": "updated" if outcome.blocks else outcome.reason or "up to date",
        "rows": sum(step.input_rows for step in outcome.steps),
        **{op: sum(step.operations.get(op, 0) for step in outcome.steps) for op in operations},
        "blocks": outcome.blocks,
        "watermark": str(outcome.watermark) if outcome.watermark else None,
    }


def _row(dataset: Dataset, outcome: PullOutcome) -> dict[str, Any]:
    return {
        "dataset": str(dataset.alias),
        "status": outcome.status.value,
        "rows": sum(item.input_rows for item in outcome.inputs),
        **{op: sum(i.operations.get(op, 0) for i in outcome.inputs) for op in ("+A", "-R", "-C", "+C")},
        "blocks": outcome.blocks,
        "watermark": str(outcome.watermark) if outcome.watermark else None,
    }
