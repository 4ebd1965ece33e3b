"""`odfchain log`: a dataset's metadata chain, newest block first."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from odfchain.cli import screen
from odfchain.cli.context import INTEGRITY_FAULT, open_workspace, opened, report_error, say
from odfchain.cli.parameters import DATASET, DATASET_AT, argument, command, formats, key_values, option
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.rows import TABLE_ROWS, print_rows
from odfchain.errors import OdfchainError, UsageError
from odfchain.query.row_formats import OPERATIONS, cell_text
from odfchain.text import counted, human_age, human_size

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain import Dataset, Workspace
    from odfchain.node.schedule import Planned
    from odfchain.results import DatasetState, HashedBlock, RowChange


_COLOURS = {
    "AddData": "green",
    "ExecuteTransform": "green",
    "Seed": "magenta",
    "SetDataSchema": "yellow",
    "SetPollingSource": "yellow",
    "AddPushSource": "yellow",
    "SetTransform": "yellow",
}


@command("log")
def log_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@POINT]"),
    limit: int | None = option("Show only the newest blocks.", "-n", least=1),
    graph: bool = option("Draw the blocks of the head and of all branches, one a line."),
    output: str = formats("table", "json", "ndjson", "csv", "yaml"),
) -> None:
    """Show a dataset's metadata chain, newest block first.

    DATASET@POINT begins at a branch, at a block (its number or hash), or at a time.
    """
    if graph:
        if output != "table" or "@" in dataset:
            raise UsageError("--graph draws the whole dataset: without a point, and not as data")
        _draw(open_workspace()[dataset], limit)
        return
    found = opened(dataset)
    entries = found.log(limit)
    match output:
        case "table":
            for entry in entries:
                _print_entry(entry)
            if (since := _unsigned_since(found)) is not None:
                say(f"note: unsigned commits since block {since}")
        case "csv":
            screen.print_records(map(_entry_record, entries), list(_LOG_COLUMNS), output)
        case "ndjson":  # each as it is read
            screen.echo_tree((entry.to_document() for entry in entries), output)
        case _:
            screen.echo_tree([entry.to_document() for entry in entries], output)


def _unsigned_since(dataset: Dataset) -> int | None:
    from odfchain import Dataset

    if not isinstance(dataset, Dataset) or dataset.ref != "head":  # a signature is of the newest block
        return None
    with contextlib.suppress(OdfchainError):  # `verify` and `status` are for signatures that are wrong
        return dataset.signature(verified=False).unsigned_since
    return None


def _draw(dataset: Dataset, limit: int | None) -> None:
    for drawn in dataset.log_graph(limit):
        block = drawn.block.block
        for line in drawn.before:
            screen.echo(line)
        screen.echo(f"{drawn.line} ", nl=False)
        screen.echo(f"#{block.sequence_number} ", fg="cyan", nl=False)
        screen.echo(f"{str(drawn.block.hash)[:12]}  {block.system_time}  ", nl=False)
        screen.echo(block.event.KIND, fg=_COLOURS.get(block.event.KIND), nl=False)
        if drawn.references:
            screen.echo(f"  ({', '.join(drawn.references)})", fg="yellow", nl=False)
        screen.echo(f"  {drawn.note}" if drawn.note else "")
        for line in drawn.after:
            screen.echo(line)


_LOG_COLUMNS = (
    "sequenceNumber", "blockHash", "prevBlockHash", "systemTime", "kind",
    "firstOffset", "lastOffset", "size", "watermark",
)  # fmt: skip


def _entry_record(entry: HashedBlock) -> dict[str, Any]:
    block = entry.block
    data = getattr(block.event, "new_data", None)
    values = (
        block.sequence_number, entry.hash, block.prev_block_hash, block.system_time, block.event.KIND,
        data and data.offset_interval.start, data and data.offset_interval.end, data and data.size,
        getattr(block.event, "new_watermark", None),
    )  # fmt: skip
    return dict(zip(_LOG_COLUMNS, values, strict=True))


def _print_entry(entry: HashedBlock) -> None:
    block = entry.block
    kind = block.event.KIND
    screen.echo(f"block {entry.hash}", fg="cyan", nl=False)
    screen.echo(f"  #{block.sequence_number}")
    screen.echo(f"  {block.system_time}  ", nl=False)
    screen.echo(kind, fg=_COLOURS.get(kind), bold=True)
    from odfchain.audit.event_texts import describe_event  # loaded here: it costs other commands time

    for line in describe_event(block.event):
        screen.echo(f"    {line}")
    screen.echo()


_NO_DATASETS = (
    "no datasets yet; `odfchain import FILE --as NAME` makes one of a file, `odfchain add MANIFEST` of a "
    "manifest, and `odfchain pull URL` brings one"
)


@command("list")
def list_command(output: str = formats()) -> int:
    """List the datasets of the workspace.

    --wide shows ids, heads and watermarks, too. Where a dataset has a schedule (`pull.every`), a column says
    when it is pulled next.
    """
    from odfchain.odf.times import Timestamp

    rows, people, code, now = [], output == "table", 0, Timestamp.now()
    workspace = open_workspace()
    datasets = list(workspace)
    planned = _schedules(workspace, datasets)
    for dataset in datasets:
        try:
            row = _list_row(dataset, people=people)
            if (plan := planned.get(row["id"])) is not None:
                row["next"] = plan.when(now) if people else str(plan.next)
            rows.append(row)
        except OdfchainError as error:  # one damaged dataset must not hide the others
            report_error(error, about=str(dataset.alias))
            code = error.exit_code
    columns = ["name", "kind", "records", "size", "blocks", "updated"]
    if not people or any(row["unsignedSince"] is not None for row in rows):
        columns.append("unsignedSince")
    if planned:
        columns.append("next")
    if any("slices" in row for row in rows):
        columns[4:4] = ["slices"] if people else ["slicesLocal", "slices"]
    if screen.is_wide() or not people:
        columns += ["watermark", "id", "head"]
    if not rows and people:
        say(_NO_DATASETS)
        return code
    shown = {"records": "{:,}".format, "size": human_size}
    titles = {c: c.capitalize() for c in columns} | {"unsignedSince": "Unsigned since"}
    right = [c for c in ("records", "size", "slices", "blocks", "unsignedSince") if c in columns]
    screen.print_records(rows, columns, output, shown=shown, titles=titles, right=right)
    return code


def _schedules(workspace: Workspace, datasets: list[Dataset]) -> dict[str, Planned]:
    if not any((dataset.path / "info" / "config").exists() for dataset in datasets):
        return {}  # most workspaces have none, and need not load what reads them
    from odfchain.node.schedule import Schedule

    return {each.id: each for each in Schedule(workspace.path, said=say).state()}


def _list_row(dataset: Dataset, *, people: bool) -> dict[str, Any]:
    state, slices = dataset.summary, dataset.local_slices()
    updated = state.head_block.system_time
    row: dict[str, Any] = {
        "name": str(dataset.alias),
        **screen.record(state, "kind:seed.dataset_kind", "records:record_count"),
        "size": dataset.data_size,
        "blocks": state.head_block.sequence_number + 1,
        "updated": human_age(updated.epoch_ns, time.time_ns()) if people else str(updated),
        "unsignedSince": _unsigned_since(dataset),
        **screen.record(state, "watermark", "id:seed.dataset_id", "head"),
    }
    if slices is not None and people:
        row["slices"] = f"{slices.present:,} of {slices.total:,}"
    elif slices is not None:
        row |= {"slicesLocal": slices.present, "slices": slices.total}
    return row


@command("status")
def status_command(datasets: tuple[str, ...] = argument(DATASET), output: str = formats()) -> int:
    """Show the state of each dataset, and the next command.

    behind: inputs have blocks that the dataset has not processed. due: its source, or the place that it is a
    copy of, was not asked for as long as `status.dueAfter` says. partial: slices are not here. unsigned: the
    owner has not signed the newest blocks. unverified: blocks since the last verification here that passed.
    new: blocks that are not where the dataset is pushed to.

    Other machines are not asked, and nothing is changed. Exit code 6: a dataset cannot be read.
    """
    from odfchain.api.status import MATTERS

    found, people = open_workspace().status(*datasets), output == "table"
    if not found and people:
        say(_NO_DATASETS)
        return 0
    rows = [
        {"name": each.name, "status": str(each)}
        | dict.fromkeys(MATTERS)
        | {item.matter: item.value for item in each.items}
        | {"next": next(iter(each.commands), None), "commands": each.commands}
        for each in found
    ]
    columns = ["name", *(["status"] if people else MATTERS), "next"]
    titles = {c: c.capitalize() for c in columns}
    screen.print_records(rows, columns, output, titles=titles, keys=2)
    return INTEGRITY_FAULT if any(row["fault"] for row in rows) else 0


@command("tail")
def tail_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@POINT]"),
    num_records: int = option("", "-n", default=10, least=0),
    skip_records: int = option("", "-s", default=0, least=0),
    output: str = formats(),
) -> None:
    """Show the newest records of a dataset.

    A table begins with the record: its offset, operation (+A, -R, -C or +C) and the day of its event time, as
    in #12 +C 2026-01-02. --wide shows the four system columns.

    DATASET@POINT is the dataset on a branch, as of a block (its number or hash), or as of a time.
    """
    found = opened(dataset)
    with TerminalProgress().later("Reading the newest records"):
        rows = found.tail(num_records, skip=skip_records)
    _print_rows(rows, found.summary, output)


@command("state")
def state_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@POINT]"),
    event_time: str | None = option("The state of this time, by everything known at the point.", "TIME"),
    newest: int | None = option("Only the newest N.", "-n", "--num-records", "N", least=0),
    output: str = formats(),
) -> None:
    """Show the rows in force, at any point of the history.

    For each primary key that is the newest row, unless it was retracted. Without a primary key, all rows are
    in force that were not retracted. POINT is a branch, a block (its number or hash), or a system time. The
    rows are then those that were known at that point.

    Rows come in order of offset. A table begins as in `tail`, and shows the newest 1,000 rows unless -n says
    another number.
    """
    found_at = opened(dataset)
    scan = found_at.state(key=found_at.summary.primary_key, event_time=event_time)
    with TerminalProgress().later("Reading the rows in force"):
        found = scan.to_arrow()
    most = TABLE_ROWS if newest is None and output == "table" else newest
    rows = found if most is None else found.slice(max(0, found.num_rows - most))
    _print_rows(rows, found_at.summary, output)
    if newest is None and rows.num_rows < found.num_rows:
        say(f"the newest {rows.num_rows:,} of {counted(found.num_rows, 'row')}")


def _print_rows(table: pa.Table, state: DatasetState, output: str) -> None:
    if output == "table":
        op = table.schema.get_field_index(state.vocabulary.operation_type_column)
        if screen.is_wide() and op >= 0:
            names = [OPERATIONS.get(str(code), str(code)) for code in table.column(op).to_pylist()]
            table = table.set_column(op, table.schema.names[op], [names])
        print_rows(table.schema, table.to_batches(), [state], None)
    else:
        rows = (row for batch in table.to_batches() for row in batch.to_pylist())
        screen.print_records(rows, table.schema.names, output)


@command("history")
def history_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@POINT]"),
    key: tuple[str, ...] = argument(required=True, metavar="COL=VALUE…"),
    limit: int | None = option("Only the newest N changes.", "-n", "--num-records", "N", least=0),
    output: str = formats(),
) -> None:
    """Show every change of one row.

    The newest change comes first. The row is named by its primary key, column by column, like icao=07FA.
    POINT is a branch, a block (its number or hash), or a time. The column VIA names the origin of a merged
    change: a branch, a block and an offset there.
    """
    found = opened(dataset)
    changes = found.history(key_values(key), limit=limit)
    if not changes:
        say("no row with this key was ever recorded there")
    if output == "table":
        last = found.summary.vocabulary.event_time_column
        rows: list[dict[str, Any]] = [
            screen.record(each, "block:sequence_number", "system_time")
            | {"change": _words(each, last), "via": _via(each)}
            for each in changes
        ]
        columns = ["block", "systemTime", "change", *["via"] * any(row["via"] for row in rows)]
        screen.print_records(rows, columns, output, titles={"systemTime": "system time"}, right=["block"])
        return
    columns = ["block", "blockHash", "offset", "systemTime", "change", "columns", "from", "to", "via"]
    screen.print_records(map(_document, changes), columns, output)


def _words(change: RowChange, last: str) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        return change.change.value
    names = sorted(change.columns, key=lambda name: name == last)
    parts = [f"{name} {_cell(before[name])} → {_cell(after[name])}" for name in names]
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
        **screen.record(change, "block:sequence_number", "blockHash:block"),
        **screen.record(change, "offset", "system_time", "change", "columns"),
        "from": change.before,
        "to": change.after,
        "via": via and {"branch": via.branch or None, **screen.record(via, "block", "offset")},
    }
