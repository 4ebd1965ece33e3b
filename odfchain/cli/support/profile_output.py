"""Profiles as tables: a line for each column, with its histogram in bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.cli.support.context import say
from odfchain.cli.support.output import count_of
from odfchain.cli.support.screen import echo_table

if TYPE_CHECKING:
    from odfchain import Profile


def print_profile(found: Profile, label: str) -> None:
    """Print a profile of the dataset that is called so."""
    from odfchain.api.rendering import line_of, percent

    document = found.document
    rows = [line_of(column, document["column_stats"][column["name"]]) for column in document["columns"]]
    echo_table(["column", "type", "nulls", "distinct", "values", ""], rows, right={2, 3})
    number = document["odf"]["sequence_number"]
    say(
        f"{label}, block {number}: {count_of(found.num_rows, 'row')}, "
        f"{percent(document['duplicate_row_fraction'])} repeat another one"
    )
