"""Foreign keys at a commit: new references have a target, and no row that is taken back is referred to.

    rows that come       their values against the keys of the dataset that they refer to
    rows that go         their keys against the datasets of this workspace that refer here
    changesOf            a text BLOCK#OFFSET: the block is stored, and a change ends at the offset

A dataset on a branch is checked against others on their branch of the same name, or on their head. Only keys
are read, and only as many slices as it takes. Source: RFC-037.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from odfchain import errors
from odfchain.branches.conflict_file import check_ending, write_rows
from odfchain.branches.key_lookup import TAKEN_BACK, KeyRows, WantedKeys, key_rows, key_schema, takes_any_back
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.enums import DatasetKind, OperationType
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.row_hash import Numbers
from odfchain.odf.schema import DataSchema
from odfchain.slices.reader import open_parquet
from odfchain.slices.state import SliceFile, in_force, takes_back
from odfchain.storage.local import HEAD
from odfchain.text import counted, cut, first_line, one_line
from odfchain.workspace.commit import Proposed, slice_path
from odfchain.workspace.constraint_rules import Columns, misfit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.declared_constraints import Constraints, ForeignKey, OnViolation, recorded_constraints
from odfchain.workspace.points import branch_names
from odfchain.workspace.read_slices import unreadable
from odfchain.workspace.workspace_files import WorkspaceFiles

# Violating rows as messages, and as a table; composite values are JSON.

SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("dataset", "key", "columns", "value", "missing in", "origin")]
)
SHOWN = 20
"""Rows that a message lists."""
MOST_LISTED = 1_000_000
"""Rows that are listed in all; the others are counted."""
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Broken:
    """The rows of one dataset that break one of its foreign keys."""

    alias: str
    columns: tuple[str, ...]
    missing_in: str
    """The dataset that lacks the keys, for messages."""
    count: int
    rows: pa.Table
    """The first of them, by `SCHEMA`."""
    refused: bool
    hint: str

    @property
    def message(self) -> str:
        """The number of rows, and their fault."""
        columns = ", ".join(map(one_line, self.columns))
        verb = "refers" if self.count == 1 else "refer"
        return f"{counted(self.count, 'row')} of {self.alias} {verb} by {columns} to what {self.missing_in}"

    @property
    def lines(self) -> list[str]:
        """The first rows for people."""
        return [_line(row) for row in self.rows.slice(0, SHOWN).to_pylist()]


def _line(row: dict[str, Any]) -> str:
    names = json.loads(row["columns"])
    values = json.loads(row["value"]) if len(names) > 1 else [row["value"]]
    shown = ", ".join(
        f"{one_line(name)} = {cut(one_line(str(value)), _SHOWN_CHARACTERS)}"
        for name, value in zip(names, values, strict=True)
    )
    key = cut(one_line(row["key"]), 2 * _SHOWN_CHARACTERS)
    return f"{shown}, in {key}{' (' + row['origin'] + ')' if row['origin'] else ''}"


def refusal(found: Sequence[Broken]) -> errors.IngestError:
    """The error of rows that are refused."""
    lines = [line for item in found for line in item.lines][:SHOWN]
    left = sum(item.count for item in found) - len(lines)
    lines += [f"… and {left:,} more"] if left > 0 else []
    return errors.IngestError(
        f"{'; '.join(item.message for item in found)}; nothing was committed",
        violations=list(found),
        excerpt=tuple(lines),
        hint=found[0].hint,
    )


def _texts(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    return [None if value is None else _text(value) for value in column.to_pylist()]


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bytes():
            return value.hex()
        case bool():
            return str(value).lower()
        case dt.datetime():
            text = value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
            return text.replace("+00:00", "Z")
        case list() | dict():
            return _json(value)
    return str(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_text)


# The rows that are checked: recorded ones and pending ones.


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a dataset on a reference: those up to `state`, and new ones."""

    dataset: DatasetFiles
    columns: Columns
    constraints: Constraints
    state: DatasetState | None
    new: tuple[SliceFile, ...] = ()

    @property
    def name(self) -> str:
        """The alias, with the branch."""
        return self.dataset.label

    @property
    def schema(self) -> pa.Schema:
        """The declared columns."""
        return pa.schema([]) if self.columns.schema is None else slice_schema(self.columns.schema)

    def files(self) -> list[SliceFile]:
        """All slices, oldest first."""
        refs = self.state.slices() if self.state is not None else ()
        names = self.columns.vocabulary
        return [*(_file(self.dataset, ref.slice, names) for ref in refs), *self.new]

    @classmethod
    def up_to(cls, dataset: DatasetFiles, state: DatasetState) -> Rows:
        """All rows up to a head."""
        return cls(dataset, Columns.of(state, str(dataset.alias)), state.constraints, state)

    @classmethod
    def after(cls, dataset: DatasetFiles, before: DatasetState | None, head: DatasetState) -> Rows:
        """The rows up to `head`; those that `before` lacks (None: all) are new."""
        rows = cls.up_to(dataset, head)
        known = -1 if before is None else before.head_block.sequence_number
        later = (ref for ref in head.slices() if ref.sequence_number > known)
        new = tuple(_file(dataset, ref.slice, head.vocabulary) for ref in later)
        return replace(rows, state=before, new=new)

    def with_slice(self, item: SliceFile | None, schema: DataSchema | None) -> Rows:
        """The same, and one more slice that is about to be committed."""
        columns = replace(self.columns, schema=schema or self.columns.schema)
        return replace(self, columns=columns, new=(*self.new, *([item] if item is not None else [])))

    @classmethod
    def committed(cls, proposed: Proposed) -> Rows:
        """The rows as they are when events are committed on top of a state."""
        dataset, state, names = proposed.dataset, proposed.state, proposed.vocabulary
        # rows that executors have put into the store may never be read
        paths = {each.physical_hash: functools.partial(slice_path, dataset, each) for each in proposed.staged}
        new = [
            SliceFile(paths[data.physical_hash], names, data.offset_interval)
            if data.physical_hash in paths
            else _file(dataset, data, names)
            for data in proposed.added
        ]
        attached = proposed.last(ev.SetAttachments)
        declared = state.constraints if attached is None else recorded_constraints(attached)
        key = state.merge_key or declared.primary_key
        columns = Columns(str(dataset.alias), names, proposed.schema, key)
        return cls(dataset, columns, declared, state, tuple(new))


def _file(dataset: DatasetFiles, item: ev.DataSlice, names: ev.DatasetVocabulary) -> SliceFile:
    # not hashed: slices were checked when they came, and to hash them costs a multiple of reading their keys
    path = dataset.data.path(item.physical_hash)
    if not path.is_file():
        raise errors.SliceNotFoundError.of(dataset.alias, path)
    return SliceFile(path, names, item.offset_interval)


# Rows are looked up last, and only where a key is missing.

_OLD, _NEW = OperationType.CORRECT_FROM.code, OperationType.CORRECT_TO.code


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Whose rows are looked for, and by which columns."""

    owner: Columns
    """The dataset whose rows they are."""
    columns: tuple[str, ...]
    wanted: WantedKeys
    bad: Numbers
    """A mask of the wanted keys that count."""
    missing_in: str
    origin: Callable[[SliceFile], str] = lambda _: ""
    changed_only: bool = False
    """Leave out corrections that leave these columns as they were."""

    def run(self, slices: Sequence[SliceFile]) -> tuple[int, pa.Table]:
        """(how many rows in force after `slices` there are, the first of them as violations)."""
        count, tables, kept = 0, [SCHEMA.empty_table()], None
        for item in slices:
            for rows, chosen in self._candidates(item):
                if kept is None:
                    kept = in_force(slices, self.owner.key)
                hit = chosen & np.isin(rows[2], kept)
                left = MOST_LISTED - count
                count += int(hit.sum())
                if left > 0 and hit.any():
                    tables.append(self._table(rows, np.flatnonzero(hit)[:left], self.origin(item)))
        return count, pa.concat_tables(tables)

    def _candidates(self, item: SliceFile) -> Iterator[tuple[KeyRows, Numbers]]:
        before, said = -1, -1
        for rows in key_rows(item, self.columns, self.wanted.schema, self.owner.key):
            keys, _, _, operations = rows
            numbers = self.wanted.numbers(keys)
            # -1 is a key that is not wanted; as an index it gives the last, hence the first condition
            chosen = (numbers >= 0) & self.bad[numbers] & ~takes_back(operations)
            if self.changed_only:
                # the old half of a correction is right before the new one
                old = np.concatenate(([before], numbers[:-1]))
                earlier = np.concatenate(([said], operations[:-1].astype(np.int64)))
                chosen &= ~((operations == _NEW) & (earlier == _OLD) & (old == numbers))
                # the two halves of a correction may be in two batches
                before, said = int(numbers[-1]), int(operations[-1])
            if chosen.any():
                yield rows, chosen

    def _table(self, rows: KeyRows, at: Numbers, origin: str) -> pa.Table:
        (keys, batch), count = (each.take(pa.array(at)) for each in rows[:2]), len(at)
        own: dict[str, Sequence[str | None]] = {
            name: _texts(batch.column(name)) if name in batch.schema.names else [None] * count
            for name in self.owner.key
        }
        own = own or {self.owner.vocabulary.offset_column: [str(offset) for offset in rows[2][at]]}
        values = zip(*(_texts(column) for column in keys.columns), strict=True)
        found = [
            [self.owner.name] * count,
            [_json(dict(zip(own, row, strict=True))) for row in zip(*own.values(), strict=True)],
            [_json(self.columns)] * count,
            [_json(row) if len(self.columns) > 1 else row[0] for row in values],
            [self.missing_in] * count,
            [origin] * count,
        ]
        return pa.table([pa.array(column, pa.string()) for column in found], schema=SCHEMA)


Find = Callable[[DatasetId], DatasetFiles | None]


@dataclass(slots=True)
class ForeignKeys:
    """The check of a commit (`workspace.commit.CommitCheck`); `found` is what it has found so far."""

    find: Find
    everyone: Callable[[], Iterable[DatasetFiles]] = tuple
    """The datasets that may refer to the one that is judged."""
    note: Callable[[str], None] = lambda _: None
    references: Mapping[DatasetId, Multihash] = field(default_factory=dict)
    """Blocks that are checked against; the others are the newest."""
    merging: bool = False
    """True if new rows are from others, so that it matters whose rows break a key."""
    found: list[Broken] = field(default_factory=list)
    pending: Mapping[DatasetId, Rows] = field(default_factory=dict)
    """Datasets that are about to have other rows: they are judged as they will be."""

    @classmethod
    def of(
        cls,
        workspace: WorkspaceFiles,
        note: Callable[[str], None] = lambda _: None,
        *,
        references: Mapping[DatasetId, Multihash] | None = None,
        merging: bool = False,
    ) -> ForeignKeys:
        """The check against the datasets of a workspace."""
        return cls(workspace.present, workspace.datasets, note, references or {}, merging)

    def __call__(self, proposed: Proposed) -> None:
        """Check that events may be committed on top of a state; what is only reported is noted."""
        self.settle(Rows.committed(proposed))

    def settle(self, rows: Rows) -> None:
        """As `__call__`, for given rows."""
        found = self.judge(rows)
        self.found += found
        if any(item.refused for item in found):
            raise refusal(found)
        for item in found:
            left = item.count - min(item.count, SHOWN)
            listed = "; ".join(item.lines) + (f"; and {left:,} more" if left else "")
            self.note(f"{item.message}; they are reported only: {listed}")

    def write(self, path: Path) -> None:
        """Durably write the rows that were found to a `.csv` or `.ndjson` file; without any it has none."""
        rows = (row for item in self.found for row in item.rows.to_pylist())
        write_rows(check_ending(path, "violations"), SCHEMA.names, rows, lambda _, value: value)

    def settle_together(self) -> None:
        """Check that all pending rows may be committed."""
        found = [broken for rows in self.pending.values() for broken in self.judge(rows)]
        if any(item.refused for item in found):
            self.found += found
            raise refusal(found)

    def judge(self, rows: Rows) -> list[Broken]:
        """The foreign keys that the new rows would break."""
        if not rows.new:
            return []
        with _readable(rows):
            keys = rows.constraints.foreign_keys
            own = (self._holds(key, rows, strict=_is_strict(key, rows)) for key in keys)
            return [*(broken for broken in own if broken is not None), *self._referred_to(rows)]

    def holds(self, key: ForeignKey, rows: Rows) -> Broken | None:
        """The new rows that break a key; that it cannot be checked is noted."""
        with _readable(rows):
            return self._holds(key, rows, strict=False)

    # --- rows that come ----------------------------------------------------------------------------

    def _holds(self, key: ForeignKey, rows: Rows, *, strict: bool) -> Broken | None:
        target = self._target(key, rows)
        problem: errors.OdfchainError | None = None
        if target is None:
            problem = errors.DatasetNotFoundError(
                f"{rows.name}: its foreign key {key} refers to {key.dataset}, which is not here",
                hint="pull it, or add it again",
            )
        elif (why := cannot_refer(key, rows, target)) is not None:
            problem = errors.SchemaError(f"{rows.name}: its foreign key {key} does not hold: {why}")
        if problem is not None and strict:
            raise problem
        if problem is not None:
            self.note(f"{problem.message}; it was not checked")
        if problem is not None or target is None:
            return None
        return self._changes(key, rows, target) if key.changes else self._missing(key, rows, target)

    def _target(self, key: ForeignKey, rows: Rows) -> Rows | None:
        if key.dataset == rows.dataset.id:
            return rows
        if (pending := self.pending.get(key.dataset)) is not None:
            return pending
        if (dataset := self.find(key.dataset)) is None:
            return None
        dataset = dataset.on_or_head(rows.dataset.ref)
        return Rows.up_to(dataset, DatasetState.read(dataset.chain, self.references.get(key.dataset)))

    def _missing(self, key: ForeignKey, rows: Rows, target: Rows) -> Broken | None:
        wanted = said_by(rows, key.columns)
        if not wanted.count:
            return None
        there = wanted.in_force(target.files(), target.columns.key)
        if there.all():
            return None
        lacks = f"{target.name} does not have as {', '.join(target.columns.key)}"
        return self._broken(key, rows, wanted, ~there, lacks, lambda: _where_it_is(wanted, ~there, target))

    def _changes(self, key: ForeignKey, rows: Rows, target: Rows) -> Broken | None:
        wanted = said_by(rows, key.columns)
        good = are_changes(target.dataset, wanted.texts)
        if good.all():
            return None
        alias = target.dataset.alias
        hint = f"it is BLOCK#OFFSET, of the last row of a change; `odfchain log {alias}` lists the blocks"
        return self._broken(key, rows, wanted, ~good, f"is no change of {alias}", lambda: hint)

    def _broken(
        self,
        key: ForeignKey,
        rows: Rows,
        wanted: WantedKeys,
        bad: Numbers,
        missing_in: str,
        hint: Callable[[], str],
    ) -> Broken | None:
        origin = "theirs" if self.merging else ""
        search = Search(
            rows.columns, key.columns, wanted, bad, missing_in,
            lambda _: origin, changed_only=rows.state is not None,
        )  # fmt: skip
        count, listed = search.run(rows.new)
        if not count:
            return None
        return Broken(rows.name, key.columns, missing_in, count, listed, _is_strict(key, rows), hint())

    # --- rows that go ------------------------------------------------------------------------------

    def _referred_to(self, rows: Rows) -> Iterator[Broken]:
        if not rows.columns.key:
            return
        # slices that executors put into the store are brought only if another dataset refers to this one
        if all(item.is_here for item in rows.new) and not any(map(takes_any_back, rows.new)):
            return
        referring = list(self._children(rows))
        if not referring or not any(map(takes_any_back, rows.new)):
            return
        schema = key_schema(rows.schema, rows.columns.key)
        back = (
            keys.filter(pa.array(takes_back(operations)))
            for item in rows.new
            for keys, _, _, operations in key_rows(item, rows.columns.key, schema)
        )
        wanted = WantedKeys.of(schema, back)
        gone = wanted.newest(rows.new, rows.columns.key) == TAKEN_BACK
        if not gone.any():
            return
        for child, key in referring:
            if cannot_refer(key, child, rows) is not None:
                continue  # said where its own rows come
            new = {item.path for item in (*rows.new, *child.new)}
            missing_in = f"{rows.name} would not have any more as {', '.join(rows.columns.key)}"
            search = Search(
                child.columns, key.columns, wanted, gone, missing_in,
                functools.partial(_origin, new) if self.merging else lambda _: "",
            )  # fmt: skip
            count, listed = search.run(child.files())
            if count:
                strict = _is_strict(key, child) and rows.dataset.kind is DatasetKind.ROOT
                hint = f"correct or retract these rows of {child.name} first"
                yield Broken(child.name, key.columns, missing_in, count, listed, strict, hint)

    def _children(self, rows: Rows) -> Iterator[tuple[Rows, ForeignKey]]:
        # datasets of this version that refer to this one, itself included, each with the key that does
        own, ref = rows.dataset.id, rows.dataset.ref
        for key in rows.constraints.foreign_keys:
            if key.dataset == own and not key.changes:
                yield rows, key
        for dataset in self.everyone():
            try:
                on = dataset.on_or_head(ref)
                if on.ref != ref or on.chain.head() is None or dataset.id == own:
                    continue
                child = self.pending.get(dataset.id) or Rows.up_to(on, DatasetState.read(on.chain))
            except errors.OdfchainError:
                continue  # it cannot be read, or what it declares is not understood: it refuses its own rows
            for key in child.constraints.foreign_keys:
                if key.dataset == own and not key.changes:
                    yield child, key


@contextlib.contextmanager
def _readable(rows: Rows) -> Iterator[None]:
    try:
        yield
    except errors.BadInputError as error:
        raise unreadable(Path(error.file or rows.dataset.folder), error.message) from None
    except (pa.ArrowException, ValueError) as error:
        message = f"{rows.name}: keys cannot be compared: {first_line(error)}"
        raise errors.ObjectCorruptedError(message) from None


def references_of(find: Find, dataset: DatasetFiles, state: DatasetState) -> dict[DatasetId, Multihash]:
    """The newest blocks of the datasets that the rows of one refer to, in its version; itself aside."""
    found = {}
    for key in state.constraints.foreign_keys:
        target = find(key.dataset) if not key.changes and key.dataset != dataset.id else None
        head = target.on_or_head(dataset.ref).chain.head() if target is not None else None
        if head is not None:
            found[key.dataset] = head
    return found


def _origin(new: Collection[Path], item: SliceFile) -> str:
    return "theirs" if item.path in new else "ours"


def _is_strict(key: ForeignKey, rows: Rows) -> bool:
    return key.on_violation is OnViolation.REFUSE and rows.dataset.kind is DatasetKind.ROOT


def cannot_refer(key: ForeignKey, rows: Rows, target: Rows) -> str | None:
    """Why no row can refer to a dataset by a key; None where some may."""
    present = rows.schema.names
    if (absent := next((name for name in key.columns if name not in present), None)) is not None:
        return f"there is no column `{absent}`"
    return misfit(key, rows.columns, target.columns)


def said_by(rows: Rows, columns: Sequence[str]) -> WantedKeys:
    """The distinct values of columns in rows that are put in force."""
    schema = key_schema(rows.schema, columns)
    some = (each for item in rows.new for each in key_rows(item, columns, schema))
    added = (keys.filter(pa.array(~takes_back(operations))) for keys, _, _, operations in some)
    return WantedKeys.of(schema, added)


def _where_it_is(wanted: WantedKeys, missing: Numbers, target: Rows) -> str:
    # the hint names the branch that has most of the missing keys
    alias, checked, most, best = target.dataset.alias, target.dataset.ref, 0, ""
    for branch in [HEAD, *branch_names(target.dataset)]:
        if branch == checked:
            continue
        try:
            on = target.dataset.on(branch)
            there = wanted.in_force(Rows.up_to(on, DatasetState.read(on.chain)).files(), target.columns.key)
        except (errors.OdfchainError, pa.ArrowException, ValueError):
            continue
        if (count := int((there & missing).sum())) > most:
            most, best = count, branch
    if not best:
        return f"record them in {target.name} first"
    some = "them" if most == int(missing.sum()) else f"{most:,} of them"
    into = "" if checked == HEAD else f" --into {checked}"
    return f"the branch {best} of {alias} has {some}: `odfchain merge {alias} {best}{into}` first"


# Changes are named `BLOCK#OFFSET`, with the offset of their last row.

_CHANGE = re.compile(r"(f1620[0-9a-f]{64})#(0|[1-9]\d{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChangeName:
    """What names a change: its block, and the offset of its last row."""

    block: Multihash
    offset: int

    @classmethod
    def parse(cls, text: str) -> ChangeName | None:
        """What a text names; None where it names no change."""
        match = _CHANGE.fullmatch(text)
        return None if match is None else cls(Multihash.parse(match[1]), int(match[2]))


def are_changes(dataset: DatasetFiles, texts: Sequence[str]) -> Numbers:
    """True for each text that names a change: its block is stored, and a change ends at the offset."""
    # the old half of a correction ends no change
    found = np.zeros(len(texts), bool)
    asked: dict[Multihash, list[tuple[int, int]]] = {}
    for place, name in enumerate(map(ChangeName.parse, texts)):
        if name is not None:
            asked.setdefault(name.block, []).append((place, name.offset))
    for block, offsets in asked.items():
        event = dataset.chain.get(block).event if dataset.chain.contains(block) else None
        if not isinstance(event, ev.AddData | ev.ExecuteTransform) or event.new_data is None:
            continue
        interval = event.new_data.offset_interval
        inside = [(place, offset) for place, offset in offsets if interval.start <= offset <= interval.end]
        if inside:
            operations = _operations(dataset, block, event.new_data)
            for place, offset in inside:
                row = offset - interval.start
                found[place] = row < len(operations) and operations[row] != _OLD
    return found


def _operations(dataset: DatasetFiles, block: Multihash, new: ev.DataSlice) -> Numbers:
    names = DatasetState.read(dataset.chain, block).vocabulary
    with open_parquet(_file(dataset, new, names).path) as file:
        batches = file.batches([names.operation_type_column])
        parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in batches]
    found: Numbers = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return found
