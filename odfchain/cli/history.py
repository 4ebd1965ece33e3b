"""`odfchain history`: every change of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import cell_text, format_option, plain, print_records
from odfchain.cli.support.parameters import DATASET_AT, key_values

if TYPE_CHECKING:
    from odfchain import RowChange


@click.command("history")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.argument("key", nargs=-1, required=True, metavar="COL=VALUE…")
@click.option(
    "-n", "--num-records", "limit", type=click.IntRange(min=0), metavar="N", help="Only the newest N changes."
)
@format_option()
def history_command(dataset: str, key: tuple[str, ...], limit: int | None, output: str) -> None:
    """Show every change of the row with this primary key, newest first.

    The key is named column by column: iata=ZRH. POINT is a branch, a block (its number or hash), or a time.
    VIA says where a merge has a change from: a branch, and the change there, by block and offset.
    """
    from odfchain.api.branch_points import at_point

    changes = at_point(open_workspace(), dataset).history(key_values(key), limit=limit)
    if not changes:
        say("no row with this key was ever recorded there")
    if output == "table":
        print_records(
            map(_for_people, changes),
            ["block", "systemTime", "change", "via"],
            output,
            titles={"systemTime": "system time"},
            right=["block"],
        )
        return
    columns = ["block", "blockHash", "offset", "systemTime", "change", "columns", "from", "to", "via"]
    print_records(map(_document, changes), columns, output)


def _for_people(change: RowChange) -> dict[str, Any]:
    return {
        "block": change.sequence_number,
        "systemTime": change.system_time,
        "change": _words(change),
        "via": _via(change),
    }


def _words(change: RowChange) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        return change.change.value
    parts = [f"{name} {_cell(before[name])} → {_cell(after[name])}" for name in change.columns]
    return ", ".join(parts) or "recorded again"


def _cell(value: Any) -> str:
    return "∅" if value is None else cell_text(value) or '""'


def _via(change: RowChange) -> str:
    if change.via is None:
        return ""
    place = f"{str(change.via.block)[:7]}…"
    if change.via.offset is not None:
        place += f"#{change.via.offset}"
    return f"{change.via.branch or 'revert of'} {place}"


def _document(change: RowChange) -> dict[str, Any]:
    via = change.via
    return {
        "block": change.sequence_number,
        "blockHash": str(change.block),
        "offset": change.offset,
        "systemTime": str(change.system_time),
        "change": change.change.value,
        "columns": list(change.columns),
        "from": _values_of(change.before),
        "to": _values_of(change.after),
        "via": None
        if via is None
        else {"branch": via.branch or None, "block": str(via.block), "offset": via.offset},
    }


def _values_of(row: Any) -> dict[str, Any] | None:
    return None if row is None else {name: _json(value) for name, value in row.items()}


def _json(value: Any) -> Any:
    return (
        value if value is None or isinstance(value, str | int | float | bool | list | dict) else plain(value)
    )
