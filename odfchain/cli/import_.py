"""`odfchain import`: a dataset of a file, without a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from odfchain.cli.support.context import open_workspace, options, say, silence_libraries
from odfchain.cli.support.ingested import print_outcome
from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import FORMATS, given
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo, echo_json
from odfchain.errors import UsageError
from odfchain.text import printable

if TYPE_CHECKING:
    from odfchain import ImportPlan
    from odfchain.api.imported import Imported


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--as", "name", metavar="NAME", help="Name of the dataset (default: made of the file's).")
@click.option(
    "--key", multiple=True, metavar="COLUMN", help="Column that names a record; several times for several."
)
@click.option("--event-time", metavar="COLUMN", help="Column that says when something happened.")
@click.option(
    "--merge",
    type=click.Choice(["snapshot", "ledger", "append"]),
    help="What a later file is: the whole present state, new and known records, or new rows "
    "(default: snapshot with a key, append without).",
)
@click.option(
    "--input-format", type=click.Choice(FORMATS), help="Format, when the file's name does not say it."
)
@click.option(
    "--duplicate-keys",
    type=click.Choice(["refuse", "first", "last"]),
    help="What to do with rows that have one key and other values.",
)
@click.option("--allow-future", is_flag=True, help="Accept rows far in the future.")
@click.option("--force", is_flag=True, help="Replace a manifest that is there.")
@format_option("table", "json")
def import_command(
    file: Path,
    name: str | None,
    key: tuple[str, ...],
    event_time: str | None,
    merge: str | None,
    input_format: str | None,
    duplicate_keys: str | None,
    allow_future: bool,
    force: bool,
    output: str,
) -> None:  # fmt: skip
    """Make a dataset of a file, without a manifest.

    The types of its columns are inferred and said, and written into a manifest beside the file: later files
    are read strictly as it says (`odfchain ingest`). A column whose type is in doubt stays text.
    """
    if not file.is_file():
        raise UsageError(f"{file}: {'is a folder' if file.is_dir() else 'no such file'}")
    if not options().debug:
        silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:

        def say_inferred(plan: ImportPlan) -> None:
            progress.stop()
            _say_inferred(file, plan)

        made = workspace.import_(
            file, name=name, key=key, event_time=event_time, merge=merge, input_format=input_format,
            force=force, on_inferred=say_inferred, progress=progress,
            **given(duplicate_keys=duplicate_keys, allow_future=allow_future),
        )  # fmt: skip
        progress.stop()
    if output == "json":
        echo_json(_document(made))
    else:
        print_outcome(made.outcome, output)
    say(f"wrote {made.manifest}; later files: odfchain ingest {made.dataset.alias} FILE")


def _say_inferred(file: Path, plan: ImportPlan) -> None:
    if options().quiet:
        return
    found = plan.file
    echo(f"{file}: {found.rows:,} rows, {found.read.KIND}, as dataset {plan.name}", err=True)
    lines = [(printable(c.name), c.type, c.note or "") for c in found.columns]
    widths = [max(len(line[i]) for line in lines) for i in (0, 1)]
    for column, kind, note in lines:
        echo(f"  {column:<{widths[0]}}  {kind:<{widths[1]}}  {note}".rstrip(), err=True)
    by = f" by {', '.join(plan.key)}" if plan.key else ""
    when = plan.event_time or "the time of ingestion"
    echo(f"  merge: {plan.merge}{by}; event time: {when}", err=True)
    for note in plan.notes:
        echo(f"  note: {note}", err=True)


def _document(made: Imported) -> dict[str, object]:
    plan, (brought,) = made.inferred, made.outcome.inputs
    return {
        "dataset": str(made.dataset.alias),
        "id": str(made.dataset.id),
        "manifest": str(made.manifest),
        "format": plan.file.read.KIND,
        "columns": [{"name": c.name, "type": c.type, "note": c.note} for c in plan.file.columns],
        "merge": plan.merge,
        "key": list(plan.key),
        "eventTime": plan.event_time,
        "notes": list(plan.notes),
        "rows": brought.input_rows,
        "offsets": list(brought.offsets) if brought.offsets else None,
        "head": str(made.outcome.head),
    }
