"""The history of a dataset: its blocks in pages, one block, and what changed between two points."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from odfchain import errors
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import EVENT_KINDS, is_merge
from odfchain.node.dataset_head import DatasetHead, head_of
from odfchain.node.overview import download
from odfchain.node.pages import DATASET, Page
from odfchain.node.visit import Refused, Visit, in_time, not_found
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.schema import format_ddl
from odfchain.odf.yaml import dump_yaml
from odfchain.query.row_formats import cell_text, python_values
from odfchain.text import cut, one_line
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.private_notes import last_verified

if TYPE_CHECKING:
    from odfchain.branches.diff import Diff

BLOCKS, MARKS, CHANGES = 50, 160, 1_000
"""Blocks on a page, marks of its time line, and changes that are compared."""
_TEXT, _LINES = 200, 2_000
_HASHES = ("logical ", "physical ", "checkpoint ")


@dataclass(frozen=True, slots=True)
class BlockLine:
    """A block in a line."""

    number: int
    hash: str
    time: str
    event: str
    """The kind of its event."""
    sentence: str
    records: int
    size: int
    """Of its slice [bytes]."""


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Fifty blocks, newest first."""

    dataset: DatasetHead
    newest: int
    blocks: tuple[BlockLine, ...]
    strip: dict[str, Any] | None
    """The time line of the blocks around them, as reports have it; for the page alone."""
    kind: str | None = None
    kinds: tuple[str, ...] = EVENT_KINDS
    newer: int | None = None
    older: int | None = None
    command: str = ""


def history(visit: Visit) -> HistoryPage:
    """The blocks from a number down, all or those with one kind of event; others are not read."""
    from odfchain.audit.page import strip_of

    files, kind = visit.files, visit.asked("kind")
    if kind is not None and kind not in EVENT_KINDS:
        raise Refused(
            400, f"no event is called {one_line(kind, 40)!r}", hint=f"kinds: {', '.join(EVENT_KINDS)}"
        )
    state = DatasetState.read(files.chain)
    newest, at = state.head_block.sequence_number, files.chain.by_number(state.head)
    start = min(visit.count("from", newest, 1 << 60), newest)
    first = at(start)
    assert first is not None  # noqa: S101 - it is one of the chain
    around = list(islice(files.chain.walk(first), MARKS)) if kind is None else []
    found = around if kind is None else list(islice(files.chain.nearest_all(kind, head=first), BLOCKS + 1))
    verified, _ = last_verified(files, state.head)
    strip = strip_of([_mark(block, verified) for block in reversed(around)], MARKS)
    shown = found[:BLOCKS]
    return HistoryPage(
        head_of(visit, files), newest, tuple(map(_line, shown)), strip, kind,
        newer=min(newest, start + BLOCKS) if start < newest else None,
        older=found[BLOCKS].block.sequence_number if len(found) > BLOCKS else None,
        command=f"odfchain log {files.alias}" + (f"@{start}" if start < newest else "") + f" -n {BLOCKS}",
    )  # fmt: skip


def _mark(found: HashedBlock, verified: int) -> dict[str, Any]:
    number, time, event = found.block.sequence_number, str(found.block.system_time), found.block.event
    marked = {"sequenceNumber": number, "systemTime": time, "event": event.KIND}
    merged = {"merged": "a branch"} if is_merge(event) else {}
    return marked | merged | {"state": "ok" if number < verified else ""}


def _line(found: HashedBlock) -> BlockLine:
    from odfchain.audit.event_texts import describe_event

    block = found.block
    data = getattr(block.event, "new_data", None)
    lines = [line for line in describe_event(block.event) if not line.startswith(_HASHES)]
    sentence = cut("; ".join(one_line(line, _TEXT) for line in lines[:4]), 2 * _TEXT)
    return BlockLine(
        block.sequence_number, str(found.hash), str(block.system_time), block.event.KIND, sentence,
        data.offset_interval.count if data else 0, data.size if data else 0,
    )  # fmt: skip


def _log(_: Visit, view: HistoryPage) -> Response:
    names = ("number", "hash", "time", "event", "records", "size", "sentence")
    rows = [[str(getattr(line, name)) for name in names] for line in view.blocks]
    return _csv([list(names), *rows], f"{view.dataset.name}-log")


def _csv(rows: list[list[str]], name: str) -> Response:
    import csv

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return Response(out.getvalue(), headers=download(f"{name}.csv"), media_type="text/csv; charset=utf-8")


# --- one block -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockPage:
    """A block: its event in words, and as YAML."""

    dataset: DatasetHead
    block: BlockLine
    words: tuple[str, ...]
    prev: str | None
    next: str | None
    """Of the chain of the head; null too for a block that is not in it."""
    bytes: int
    yaml: str
    command: str


def _found(visit: Visit) -> HashedBlock:
    files, text = visit.files, str(visit.request.path_params["hash"])
    try:
        name = Multihash.parse(text)
    except errors.InvalidIdError:
        raise not_found(f"{one_line(text, 80)!r} is not the hash of a block") from None
    if not files.chain.contains(name):
        raise not_found(f"{files.alias}: no block {name}")
    return HashedBlock(name, files.chain.get(name))


def block(visit: Visit) -> BlockPage:
    """One block, of any branch."""
    from odfchain.audit.event_texts import describe_event

    files, found = visit.files, _found(visit)
    number, head = found.block.sequence_number, files.chain.head()
    at = files.chain.by_number(head) if head is not None else None
    after = at(number + 1) if at is not None and at(number) == found.hash else None
    yaml, before = dump_yaml(found.to_document()), found.block.prev_block_hash
    words = tuple(one_line(line, 2_000) for line in describe_event(found.block.event))
    return BlockPage(
        head_of(visit, files), _line(found), words, str(before) if before else None,
        str(after) if after else None, len(files.chain.get_bytes(found.hash)), cut(yaml, 100_000),
        f"odfchain log {files.alias}@{found.hash} -n 1",
    )  # fmt: skip


def _raw(visit: Visit, view: BlockPage) -> Response:
    data = visit.files.chain.get_bytes(Multihash.parse(view.block.hash))
    return Response(data, headers=download(view.block.hash), media_type="application/octet-stream")


def _block_yaml(visit: Visit, _: BlockPage) -> Response:
    return Response(dump_yaml(_found(visit).to_document()), media_type="application/yaml")


# --- two points ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row that differs: its key, what happens to it, and of each column the values before and after."""

    key: tuple[str, ...]
    change: str
    cells: tuple[tuple[str | None, ...], ...]
    """Column, before, after."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of a text: `+` added, `-` removed, or nothing."""

    mark: str
    text: str


@dataclass(frozen=True, slots=True)
class Compared:
    """What is different at B from A."""

    dataset: DatasetHead
    a: str
    b: str
    key: tuple[str, ...] = ()
    counts: dict[str, int] | None = None
    rows: tuple[ChangedRow, ...] = ()
    rows_left: int = 0
    columns: tuple[TextLine, ...] = ()
    """Lines of the DDL that differ."""
    query: tuple[TextLine, ...] = ()
    """The lines of the SQL of a derivative, where it was changed."""
    problem: str | None = None
    command: str = ""


def compare(visit: Visit) -> Compared:
    """What changed between two points: rows, columns, SQL."""
    dataset, a, b = visit.dataset, visit.asked("a"), visit.asked("b") or "head"
    if a is None:
        raise Refused(400, "two points are compared: a and b", hint="each is a block, a time or a branch")
    one, two = visit.at("a"), visit.at("b") if visit.asked("b") else dataset
    first, second = one.summary, two.summary
    found = Compared(
        head_of(visit, visit.files), a, b, columns=_lines(_ddl(first), _ddl(second)),
        query=_lines(_sql(first), _sql(second)), command=f"odfchain diff {dataset.alias} {a} {b}",
    )  # fmt: skip
    try:
        diff = in_time(visit, lambda: dataset.diff(str(first.head), str(second.head)), found.command)
    except Refused as error:
        return replace(found, problem=error.message)
    counts = {change.value: number for change, number in diff.counts.items() if number}
    rows = tuple(_rows(diff))
    left = diff.changes.num_rows - len(rows)
    return replace(found, key=diff.key, counts=counts, rows=rows, rows_left=left)


def _rows(diff: Diff) -> Iterator[ChangedRow]:
    for batch in diff.changes.slice(0, CHANGES).to_batches():
        *keys, changes, befores, afters, columns = (python_values(column) for column in batch.columns)
        for place, change in enumerate(changes):
            before, after = befores[place] or {}, afters[place] or {}
            given = (after or before).items()
            chosen = columns[place] or [name for name, value in given if value is not None]
            cells = tuple((n, _cell(before.get(n)), _cell(after.get(n))) for n in chosen[:_TEXT])
            yield ChangedRow(tuple(_cell(key[place]) or "" for key in keys), str(change), cells)


def _cell(value: Any) -> str | None:
    return None if value is None else cut(cell_text(value), _TEXT)


def _ddl(state: DatasetState) -> list[str]:
    return format_ddl(state.schema) if state.schema is not None else []


def _sql(state: DatasetState) -> list[str]:
    from odfchain.audit.lineage import steps_of

    event = state.transform
    steps = steps_of(event.transform) if isinstance(event, ev.SetTransform) else ()
    return [line for step in steps for line in str(step["query"]).splitlines()]


def _lines(before: list[str], after: list[str]) -> tuple[TextLine, ...]:
    if before == after:
        return ()
    found = difflib.ndiff([cut(x, 400) for x in before[:_LINES]], [cut(x, 400) for x in after[:_LINES]])
    return tuple(TextLine(line[0].strip(), line[2:]) for line in found if line[0] != "?")


def _changes(_: Visit, view: Compared) -> Response:
    pairs = ((row, cells) for row in view.rows for cells in row.cells or ((),))
    rows = [[*row.key, row.change, *(cell or "" for cell in cells)] for row, cells in pairs]
    return _csv([[*view.key, "change", "column", "from", "to"], *rows], f"{view.dataset.name}-changes")


PAGES = (
    Page(f"{DATASET}/-/history", "history", history, {"csv": _log}),
    Page(f"{DATASET}/-/block/{{hash}}", "block", block, {"yaml": _block_yaml, "raw": _raw}),
    Page(f"{DATASET}/-/compare", "compare", compare, {"csv": _changes}, heavy=True),
)
