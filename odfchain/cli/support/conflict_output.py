"""Commands that may end in conflicts: how they are decided, written and printed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from odfchain.api.conflict_views import check_conflict_file, conflict_records, write_conflicts
from odfchain.cli.support.output import print_records
from odfchain.cli.support.parameters import together
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.errors import MergeConflictError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

conflict_options = together(
    click.option(
        "--resolve",
        metavar="WHO",
        help="Decide conflicts: ours, theirs, or a file of --conflicts, filled in.",
    ),
    click.option(
        "--conflicts",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write the conflicts to this .csv or .ndjson file.",
    ),
)
"""Who decides conflicts, and where they are written."""


def check_conflict_options(resolve: str | None, conflicts: Path | None) -> None:
    """Nothing where conflicts can be written to a file, if there is one, and that is not the one to be read.

    Raises:
        UsageError: they cannot.
    """
    if conflicts is None:
        return
    check_conflict_file(conflicts)
    if resolve is not None and Path(resolve) == conflicts:
        raise UsageError("--conflicts writes to a file that --resolve does not read")


@contextlib.contextmanager
def conflicts_shown(conflicts: Path | None, output: str, progress: TerminalProgress) -> Iterator[None]:
    """Write and print the conflicts that end what is done within; the error goes on."""
    try:
        yield
    except MergeConflictError as error:
        progress.stop()
        if conflicts is not None:
            write_conflicts(error.conflicts, conflicts)
        print_conflicts(error.conflicts, output)
        raise


def print_conflicts(conflicts: pa.Table, output: str) -> None:
    """Print what is open of the conflicts that an error has, as records."""
    columns = conflicts.column_names[: conflicts.column_names.index("theirs") + 1]
    print_records(conflict_records(conflicts), columns, output)
