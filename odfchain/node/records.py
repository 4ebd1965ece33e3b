"""The records of a dataset: the newest, those in force, one with its sources; and as files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from starlette.responses import Response

from odfchain import errors
from odfchain.api.view import Readable
from odfchain.lazy import pa
from odfchain.node.dataset_head import DatasetHead, head_of
from odfchain.node.downloads import TYPES, Rows, Streamed, asked_rows
from odfchain.node.pages import DATASET, Page
from odfchain.node.visit import Refused, Visit, not_found
from odfchain.odf.schema import format_type
from odfchain.query.row_formats import OPERATIONS, numeric_columns, texts_of
from odfchain.slices.reader import fitted, open_parquet
from odfchain.text import cut, one_line
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import columns_of, read_tail, verified_slice

ROWS, COLUMNS, CHARACTERS = 50, 200, 200
"""What a page shows at most; a value, and the record's page behind it, has more."""
_WORDS = {"+A": "added", "-R": "retracted", "-C": "corrected, as it was", "+C": "corrected, as it is now"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of records."""

    name: str
    type: str
    system: bool
    """True for those that every dataset has."""
    numeric: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A row: of each column its value as text, null where there is none."""

    offset: int
    operation: str
    """+A, -R, -C or +C."""
    words: str
    values: tuple[str | None, ...]
    changed: tuple[int, ...]
    """The places of values that a correction changed."""


@dataclass(frozen=True, slots=True)
class Records:
    """One page of records, by offset."""

    dataset: DatasetHead
    view: str
    """`records`, or `state`: the rows in force."""
    at: str | None
    block: int
    total: int | None
    """How many records there are; null for the state, which is not counted."""
    columns: tuple[Column, ...] = ()
    columns_left: int = 0
    records: tuple[Record, ...] = ()
    skip: int = 0
    newer: int | None = None
    """What is passed over for newer records, null where there are none."""
    older: int | None = None
    problem: str | None = None
    hint: str | None = None
    command: str = ""


def records(visit: Visit) -> Records:
    """The newest records before those that are passed over; the two rows of a correction stay together."""
    opened, shown = visit.at(), visit.asked("view") or "records"
    if shown not in ("records", "state"):
        raise Refused(400, "view is records or state")
    if shown == "state" and visit.node.queries is None:
        raise not_found("this node computes no rows in force", hint="it would, started with --sql")
    skip = visit.count("skip", ROWS * (max(1, visit.count("page", 1, 1 << 40)) - 1), 1 << 60)
    state, at = opened.summary, visit.asked("at")
    name = f"{opened.alias}@{at}" if at else str(opened.alias)
    verb, more = ("state", "") if shown == "state" else ("tail", f" -s {skip}" if skip else "")
    found = Records(
        head_of(visit, visit.files), shown, at, state.head_block.sequence_number,
        state.record_count if shown == "records" else None, skip=skip,
        newer=max(0, skip - ROWS) if skip else None,
        command=f"odfchain {verb} {name} -n {ROWS}{more}",
    )  # fmt: skip
    try:
        return _in_force(visit, state, found) if shown == "state" else _newest(opened, state, found)
    except (errors.StoreError, errors.QueryError, errors.SchemaError, errors.UsageError) as error:
        return replace(found, problem=visit.node.public(str(error)), hint=error.hint)


def _newest(opened: Readable, state: DatasetState, found: Records) -> Records:
    extra = 1 if found.skip else 0  # a row more at either end shows if a correction is cut in two
    table = read_tail(opened._files, state, ROWS + 1 + extra, skip=found.skip - extra)  # noqa: SLF001
    operations = _operations(table, state)
    end = table.num_rows
    if extra and end and operations[end - 2 : end] != ["-C", "+C"]:
        end -= 1
    start = max(0, table.num_rows - extra - ROWS)
    if start and operations[start - 1 : start + 1] == ["-C", "+C"]:
        start -= 1
    made = _shown(table.slice(start, end - start), state, found)
    total = found.total or 0
    first = made.records[0].offset if made.records else 0
    return replace(made, older=total - first if made.records and first else None)


def _in_force(visit: Visit, state: DatasetState, found: Records) -> Records:
    with _rows_in_force(visit, state, f"limit {ROWS + 1} offset {found.skip}") as (schema, batches):
        import pyarrow as pa

        table = pa.Table.from_batches(list(batches), schema)
    more = found.skip + ROWS if table.num_rows > ROWS else None
    return replace(_shown(table.slice(0, ROWS)[::-1], state, found), older=more)


def _rows_in_force(visit: Visit, state: DatasetState, rest: str = "") -> AbstractContextManager[Rows]:
    """The newest first."""
    from odfchain.query.resolved_tables import Pins
    from odfchain.query.sql_text import Query

    alias, order = str(visit.files.alias), state.vocabulary.offset_column.replace('"', '""')
    pins = Pins(visit.to_ask, given={alias: (state.seed.dataset_id, state.head)})
    sql = f"select * from state('{alias}') order by \"{order}\" desc {rest}"  # noqa: S608 - no name has a quote
    return asked_rows(visit, Query(sql, pins))


def _operations(table: pa.Table, state: DatasetState) -> list[str]:
    place = table.schema.get_field_index(state.vocabulary.operation_type_column)
    if place < 0:
        return ["+A"] * table.num_rows
    return [OPERATIONS.get(str(code), str(code)) for code in table.column(place).to_pylist()]


def _shown(table: pa.Table, state: DatasetState, found: Records, most: int = CHARACTERS) -> Records:
    names, system = table.schema.names, set(state.vocabulary.columns)
    right = {names[place] for place in numeric_columns(table.schema)}
    fields = state.schema.fields if state.schema else ()
    columns = [
        Column(f.name, format_type(f.type, f.extra), f.name in system, f.name in right) for f in fields
    ]
    pieces = table.select(names[:COLUMNS]).to_batches()
    rows = [row for piece in pieces for row in zip(*texts_of(piece), strict=True)]
    operations, offsets, made = _operations(table, state), _offsets(table, state), list[Record]()
    for number, (op, values) in enumerate(zip(operations, rows, strict=True)):
        changed = tuple[int, ...]()
        if op == "+C" and number and operations[number - 1] == "-C":
            pairs = enumerate(zip(values, rows[number - 1], strict=True))
            changed = tuple(at for at, (new, old) in pairs if new != old and names[at] not in system)
        texts = tuple(value and cut(value, most) for value in values)
        made.append(Record(offsets[number], op, _WORDS.get(op, ""), texts, changed))
    shown, rest = tuple(columns[:COLUMNS]), max(0, len(columns) - COLUMNS)
    return replace(found, columns=shown, columns_left=rest, records=tuple(made))


def _offsets(table: pa.Table, state: DatasetState) -> list[int]:
    name = state.vocabulary.offset_column
    return list(table.column(name).to_pylist()) if name in table.schema.names else []


# --- files ---------------------------------------------------------------------------------------------


def _file(visit: Visit, form: str) -> Response:
    state = visit.at().summary
    at = f"-at-{state.head_block.sequence_number}" if visit.asked("at") else ""
    name = f"{visit.files.alias}{at}"
    if visit.asked("view") == "state" and visit.node.queries is not None:
        return Streamed(visit, form, f"{name}-state", _rows_in_force(visit, state))
    for ref in state.slices_newest_first():  # what is missing is said before a file begins
        verified_slice(visit.files, ref)
    return Streamed(visit, form, name, _recorded(visit, state), asked=False)


@contextmanager
def _recorded(visit: Visit, state: DatasetState) -> Iterator[Rows]:
    schema, files = columns_of(state, None), visit.files

    def batches() -> Generator[pa.RecordBatch, None, None]:
        for ref in state.slices():
            with open_parquet(verified_slice(files, ref)) as file:
                names = set(file.schema_arrow.names)
                for batch in file.batches([name for name in schema.names if name in names]):
                    yield fitted(batch, schema)

    with closing(batches()) as rows:  # its file is closed when the client leaves
        yield schema, rows


# --- one record ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of where a record is from, and how deep it is below the record."""

    depth: int
    text: str
    faulty: bool


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A record with its whole values, and its sources."""

    dataset: DatasetHead
    offset: int
    newest: int
    origin: tuple[SourceLine, ...]
    operation: str = ""
    words: str = ""
    columns: tuple[Column, ...] = ()
    values: tuple[str | None, ...] = ()
    problem: str | None = None
    command: str = ""


def record(visit: Visit) -> RecordPage:
    """One record down to its sources."""
    from odfchain.audit.blame import Blame
    from odfchain.audit.lineage import TextTree

    files, text = visit.files, str(visit.request.path_params["offset"])
    state = DatasetState.read(files.chain)
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) < state.record_count):
        hint = f"it has {state.record_count:,} records"
        raise not_found(f"{files.alias} has no record {one_line(text, 40)}", hint=hint)
    offset, lines, head = int(text), list[SourceLine](), head_of(visit, files)

    def walk(tree: TextTree, depth: int) -> None:
        if len(lines) < ROWS * 10:
            lines.append(SourceLine(depth, visit.node.public(cut(tree.text, 1_000)), tree.style == "red"))
        for below in tree.below:
            walk(below, depth + 1)

    walk(Blame.of(visit.node.files, files, offset, recursive=True).to_tree(), 0)
    newest, command = state.record_count - 1, f"odfchain blame {files.alias} {offset}"
    found = RecordPage(head, offset, newest, tuple(lines), command=command)
    try:
        table = read_tail(files, state, 1, skip=newest - offset)
    except errors.StoreError as error:
        return replace(found, problem=visit.node.public(str(error)))
    shown = _shown(table, state, Records(head, "records", None, 0, 1), most=10_000)
    (row,) = shown.records
    return replace(found, operation=row.operation, words=row.words, columns=shown.columns, values=row.values)


_IN_FORCE = ("view", "state")
PAGES = (
    Page(f"{DATASET}/-/data", "data", records, heavy_with=_IN_FORCE),
    Page(f"{DATASET}/-/record/{{offset}}", "record", record),
)
FILES = tuple(
    Page(f"{DATASET}/-/data.{form}", "", partial(_file, form=form), heavy_with=_IN_FORCE) for form in TYPES
)
"""No pages: downloads."""
