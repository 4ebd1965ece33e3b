"""The command that keeps datasets up to date: pull."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.common import DATASET, TIMESTAMP, merge_options, open_workspace, options
from odfchain.cli.data import silence_libraries
from odfchain.cli.output import format_option, print_records
from odfchain.cli.progress import TerminalProgress
from odfchain.errors import OdfchainError, UsageError, was_interrupted

if TYPE_CHECKING:
    from odfchain.api import Dataset, Workspace
    from odfchain.ingest.pull import PullOptions, PullOutcome
    from odfchain.metadata.timestamp import Timestamp
    from odfchain.transform.execute import TransformOptions

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_COLUMNS = ("dataset", "status", "rows", "+A", "-R", "-C", "+C", "blocks", "watermark")


class DurationParam(click.ParamType[float]):
    """A length of time such as `60s`, `5m`, `1h`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"([0-9]+)(ms|[smhd])", str(value))
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is not a length of time like 60s, 5m or 1h", param, ctx)
        return int(found[1]) / 1_000 if found[2] == "ms" else int(found[1]) * _UNITS[found[2]]


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
@format_option()
def pull_command(
    datasets: tuple[str, ...],
    everything: bool,
    recursive: bool,
    set_watermark: Timestamp | None,
    fetch_uncacheable: bool,
    allow_commands: bool,
    allow_empty: bool,
    allow_retract: bool,
    late_edits: str | None,
    variables: tuple[str, ...],
    reset_derivatives_on_diverged_input: bool,
    timeout: float | None,
    watch: float | None,
    system_time: Timestamp | None,
    output: str,
) -> int:  # fmt: skip
    """Bring datasets up to date with their polling sources, or with the datasets they are made of.

    Every byte of a source is ingested once, however often and however interrupted this runs. One dataset that
    fails does not stop the others.
    """
    if bool(datasets) == everything:
        raise UsageError("name the datasets to pull (names, ids or % patterns), or use --all")
    if set_watermark is not None:
        return _set_watermark(datasets, set_watermark)
    if not options().debug:
        silence_libraries()
    from odfchain.ingest.ingest import IngestOptions
    from odfchain.ingest.pull import PullOptions
    from odfchain.transform.execute import TransformOptions
    from odfchain.workspace.config import LateEdits

    chosen = PullOptions(
        ingest=IngestOptions(
            allow_empty=allow_empty,
            allow_retract=allow_retract,
            late_edits=LateEdits(late_edits) if late_edits else None,
            system_time=system_time,
        ),
        fetch_uncacheable=fetch_uncacheable,
        allow_commands=allow_commands,
        variables=dict(_variable(text) for text in variables),
    )
    transform = TransformOptions(
        system_time=system_time,
        reset_on_diverged_input=reset_derivatives_on_diverged_input,
        retries=3,
        timeout=timeout,
    )
    with open_workspace() as workspace:
        targets = _targets(workspace, datasets, everything=everything, recursive=recursive)
        while True:
            code = _pull_all(targets, chosen, transform, output)
            if watch is None:
                return code
            time.sleep(watch)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env {text!r}: expected NAME=VALUE")
    return name, value


def _targets(
    workspace: Workspace, names: tuple[str, ...], *, everything: bool, recursive: bool
) -> list[Dataset]:
    if everything:
        pullable = [d for d in workspace.datasets() if _is_pullable(d)]
        return workspace.with_upstream(pullable) if any(_is_derivative(d) for d in pullable) else pullable
    named = {d.path: d for name in names for d in workspace.matching(name)}
    if not recursive:
        return list(named.values())
    # what was not asked for by name may have no source to pull from: its data are pushed
    upstream = workspace.with_upstream(named.values())
    return [d for d in upstream if d.path in named or _is_pullable(d)]


def _is_derivative(dataset: Dataset) -> bool:
    from odfchain.metadata.enums import DatasetKind

    return dataset.kind is DatasetKind.DERIVATIVE


def _is_pullable(dataset: Dataset) -> bool:
    return _is_derivative(dataset) or dataset.state.polling_source is not None


def _set_watermark(names: tuple[str, ...], watermark: Timestamp) -> int:
    if len(names) != 1:
        raise UsageError("--set-watermark is for one dataset")
    dataset = open_workspace().dataset(names[0])
    head = dataset.set_watermark(watermark)
    if not options().quiet:
        click.echo(f"{dataset.alias}: watermark {watermark}, head is {head}", err=True)
    return 0


def _pull_all(targets: list[Dataset], chosen: PullOptions, transform: TransformOptions, output: str) -> int:
    from odfchain.cli.main import report_error

    rows, code = [], 0
    with TerminalProgress(quiet=options().quiet) as progress:
        for dataset in targets:
            try:
                rows.append(_pulled(dataset, chosen, transform, progress))
            except OdfchainError as error:
                if was_interrupted(error):
                    raise KeyboardInterrupt from error
                progress.stop()
                report_error(error, about=str(dataset.alias) if len(targets) > 1 else "")
                code = code or error.exit_code
    if rows or code == 0:
        print_records(rows, list(_COLUMNS), output, right=_COLUMNS[2:8])
    return code


def _pulled(
    dataset: Dataset, chosen: PullOptions, transform: TransformOptions, progress: TerminalProgress
) -> dict[str, Any]:
    if not _is_derivative(dataset):
        return _row(dataset, dataset.pull(chosen, progress=progress))
    outcome = dataset.transform(transform, progress=progress)
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
