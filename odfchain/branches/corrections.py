"""Corrections: some columns of some rows, by their key, as a block of changes.

Any root dataset whose rows have a primary key can be corrected, also one that is polled or takes full lists
only. What is not named stays as it is, the event time too. Nothing is recorded for values that are there
already. Only the rows that are named are looked up.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from pyarrow import types as t

from odfchain import errors
from odfchain.branches import row_diff
from odfchain.branches.branches import BlockGraph
from odfchain.branches.conflict_file import csv_text, text_of
from odfchain.branches.foreign_keys import references_of
from odfchain.branches.key_lookup import WantedKeys, groups_with, key_schema, keys_of
from odfchain.branches.merging import MergeMeans, Sides
from odfchain.branches.recording import ChangeOutcome, stage_changes
from odfchain.branches.row_diff import MergeInput
from odfchain.odf.arrow_schema import nullable, slice_schema
from odfchain.odf.canonical_json import unique_members
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import AddData
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers
from odfchain.odf.times import Timestamp
from odfchain.slices.footers import quoted
from odfchain.slices.reader import ParquetSource, fitted, open_parquet
from odfchain.slices.skipping import Condition, with_any_of
from odfchain.slices.state import takes_back
from odfchain.storage.fsio import no_file
from odfchain.text import cut, first_line, one_line
from odfchain.workspace.commit import CommitCheck, both
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import ALLOW_FUTURE, DatasetState
from odfchain.workspace.merge_record import MergeMode, MergeRecord
from odfchain.workspace.options import CorrectOptions, RevertOptions, maybe_time, paths
from odfchain.workspace.points import is_referenced
from odfchain.workspace.read_slices import RecordedRows, readable

# Files of corrections: the key and some columns of some rows, read strictly and without Spark.
#
# - CSV: UTF-8, or UTF-16 with a mark; commas, semicolons or tabs. An empty field is null, `""` empty text.
# - NDJSON: an absent field is not changed, null is null.
# - Parquet: columns are cast where nothing is lost.

MOST_BYTES = 256 << 20
"""Of a file of text, and of the rows of any file [bytes]."""
FORMS = ("csv", "ndjson", "parquet")
_SUFFIXES = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
_SHOWN = 60


@dataclass(frozen=True, slots=True, eq=False)
class GivenRows:
    """Rows of a file, with the columns that it gives."""

    file: str
    rows: pa.Table
    """The columns that the file has, with their declared types; null where nothing is given."""
    given: dict[str, Numbers]
    """For each column whether the file says something of it, row by row."""

    def __len__(self) -> int:
        return int(self.rows.num_rows)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns that a file may have."""

    data: pa.Schema
    """Those of the dataset, but for offset, operation and system time."""
    key: tuple[str, ...]
    event_time: str
    """The column of the event time: to leave it empty is to leave it as it is."""

    def check(self, names: Sequence[str], file: str, row: int | None = None) -> None:
        """Check the names: columns of the data, each once, the key included."""
        for name in names:
            if names.count(name) > 1:
                raise errors.BadInputError(f"column {one_line(name)!r} comes twice", file=file, row=row)
            if name not in self.data.names:
                raise errors.BadInputError(
                    f"there is no column {one_line(name)!r} in the dataset (it has "
                    f"{', '.join(map(one_line, self.data.names))})",
                    file=file,
                    row=row,
                )
        if missing := [name for name in self.key if name not in names]:
            message = f"column {one_line(missing[0])!r} of the primary key is missing"
            raise errors.BadInputError(message, file=file, row=row)


def read_given(path: Path, wanted: Wanted, form: str | None = None) -> GivenRows:
    """The rows of a file; `form` is one of `FORMS`, else its name says which.

    Raises:
        UsageError: the name of the file does not say how it is to be read.
        BadInputError: it is not such a file, or a value is not one of its column; names row and column.
    """
    form = form or _SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise errors.UsageError(f"{path}: corrections are read from .csv, .ndjson and .parquet")
    if not path.is_file():
        raise no_file(path)
    readers = {"csv": _csv, "ndjson": _ndjson, "parquet": _parquet}
    if form != "parquet" and path.stat().st_size > MOST_BYTES:
        raise _oversized(path)
    found = readers[form](path, wanted)
    _check_nulls(found, wanted)
    return found


def _oversized(path: Path) -> errors.OversizedInputError:
    return errors.OversizedInputError(
        f"it has more than {MOST_BYTES:,} bytes; corrections are held in memory",
        file=str(path),
        hint="split it into several files, or ingest it as a source of its own",
    )


# --- the three forms -------------------------------------------------------------------------------------


def _csv(path: Path, wanted: Wanted) -> GivenRows:
    torn: list[int] = []

    def remember(row: pacsv.InvalidRow) -> str:
        torn.append(row.number - 1)  # the header is counted
        return "error"

    try:
        text, separator, names = csv_text(path.read_bytes(), wanted.data.names, path)
        wanted.check(names, str(path))
        if not text.partition("\n")[2].strip():
            none = pa.schema([wanted.data.field(name) for name in names]).empty_table()
            return GivenRows(str(path), none, dict.fromkeys(names, np.zeros(0, dtype=bool)))
        table = pacsv.read_csv(
            pa.BufferReader(text.encode()),
            # in one block, because no value may be longer than one
            pacsv.ReadOptions(use_threads=False, block_size=4 * len(text) + 1),
            pacsv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=remember),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                null_values=[""],
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, csv.Error) as error:
        row = torn[0] if torn else None
        raise errors.BadInputError(f"it is not CSV: {first_line(error)}", file=str(path), row=row) from None
    columns = {}
    for name in names:
        field = wanted.data.field(name)
        columns[name] = table.column(name).combine_chunks() if t.is_string(field.type) else _understood(
            table.column(name).to_pylist(), field, str(path)
        )  # fmt: skip
    every = np.ones(table.num_rows, dtype=bool)
    return GivenRows(str(path), pa.table(columns), dict.fromkeys(names, every))


class _Digits(float):
    """A number as it was written."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def _ndjson(path: Path, wanted: Wanted) -> GivenRows:
    rows: list[dict[str, Any]] = []
    for line in text_of(path.read_bytes(), path).split("\n"):
        if not line.strip():
            continue
        number = len(rows) + 1
        try:
            row = json.loads(
                line, parse_float=_Digits, parse_constant=_no_constant, object_pairs_hook=unique_members
            )
        except (ValueError, RecursionError) as error:
            message = f"it is not JSON: {one_line(str(error))}"
            raise errors.BadInputError(message, file=str(path), row=number) from None
        if not isinstance(row, dict):
            raise errors.BadInputError("it is not an object", file=str(path), row=number)
        wanted.check(list(row), str(path), number)
        rows.append(row)
    names = [name for name in wanted.data.names if name in wanted.key or any(name in row for row in rows)]
    columns, given = {}, {}
    for name in names:
        given[name] = np.array([name in row for row in rows], dtype=bool)
        trees = [row.get(name) for row in rows]
        columns[name] = _understood(trees, wanted.data.field(name), str(path), json_types=True)
    return GivenRows(str(path), pa.table(columns), given)


def _no_constant(text: str) -> Any:
    raise ValueError(f'{text} is not JSON; write "{text}"')


def _parquet(path: Path, wanted: Wanted) -> GivenRows:
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        wanted.check(names, str(path))
        batches, size = [], 0
        for batch in file.batches():
            size += batch.nbytes
            if size > MOST_BYTES:
                raise _oversized(path)
            batches.append(batch)
        table = pa.Table.from_batches(batches, file.schema_arrow)
    columns = {}
    for name in names:
        field, column = wanted.data.field(name), table.column(name).combine_chunks()
        columns[name] = _or_name_the_row(lambda part: part.cast(field.type), column, field, str(path))  # noqa: B023
    every = np.ones(table.num_rows, dtype=bool)
    return GivenRows(str(path), pa.table(columns), dict.fromkeys(names, every))


# --- values ----------------------------------------------------------------------------------------------


def _understood(trees: list[Any], field: pa.Field, file: str, *, json_types: bool = False) -> pa.Array:
    if json_types and t.is_string(field.type):
        for number, tree in enumerate(trees, 1):
            if tree is not None and not isinstance(tree, str):
                raise _wrong(field, file, number, f"{cut(json.dumps(tree), _SHOWN)} is not a text")
    if not json_types and t.is_nested(field.type):
        trees = [_nested(text, field, file, number) for number, text in enumerate(trees, 1)]
    return _or_name_the_row(lambda part: row_diff.array_of(part, field.type), trees, field, file)


def _nested(text: str | None, field: pa.Field, file: str, number: int) -> Any:
    try:
        return None if text is None else json.loads(text, parse_float=_Digits)
    except (ValueError, RecursionError):
        raise _wrong(field, file, number, f"{cut(text or '', _SHOWN)} is not JSON") from None


def _or_name_the_row(make: Callable[[Any], pa.Array], values: Any, field: pa.Field, file: str) -> pa.Array:
    # all values at once; only where that fails one by one, to name the first bad one
    try:
        return make(values)
    except (ValueError, pa.ArrowException):
        low, high = 0, len(values)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                make(values[low:middle])
                low = middle
            except (ValueError, pa.ArrowException):
                high = middle
        value = values[low]
        shown = value.as_py() if isinstance(value, pa.Scalar) else value
        raise _wrong(
            field, file, low + 1, f"{cut(str(shown), _SHOWN)} is not a value of type {field.type}"
        ) from None


def _wrong(field: pa.Field, file: str, row: int, problem: str) -> errors.BadInputError:
    return errors.BadInputError(f"column `{one_line(field.name)}`: {one_line(problem)}", file=file, row=row)


def _check_nulls(found: GivenRows, wanted: Wanted) -> None:
    # a key must not be all nulls, and a required column must not be set to null
    nameless = np.all([found.rows.column(name).is_null().to_numpy() for name in wanted.key], axis=0)
    if nameless.any():
        raise errors.BadInputError(
            f"the primary key ({', '.join(wanted.key)}) is null",
            file=found.file,
            row=int(nameless.argmax()) + 1,
        )
    for name in found.rows.column_names:
        field = wanted.data.field(name)
        null = found.given[name] & found.rows.column(name).is_null().to_numpy()
        free = field.nullable or (name == wanted.event_time and name not in wanted.key)
        if not free and null.any():
            raise _wrong(field, found.file, int(null.argmax()) + 1, "it cannot be null")


_SHOWN_CORRECTIONS = 5
"""Keys that a message names [count]."""


@dataclass(frozen=True, slots=True)
class ChangesByHand:
    """Corrections and reverts on the reference that a dataset is opened on."""

    dataset: DatasetFiles

    def correct(
        self,
        options: CorrectOptions,
        *,
        bound: Callable[[Timestamp], Timestamp | None] = lambda _: None,
        check: CommitCheck | None = None,
    ) -> ChangeOutcome:
        """Commit corrections, if anything differs.

        The watermark stays within `bound`, given the system time.
        """
        dataset = self.dataset
        state = DatasetState.read(dataset.chain)
        wanted = _wanted(dataset, state)
        files = [read_given(path, wanted, options.input_format) for path in paths(options.files)]
        gone = [
            GivenRows(given.file, given.rows.select(list(wanted.key)), {})
            for given in (read_given(path, wanted, options.input_format) for path in paths(options.remove))
        ]
        if not files and not gone:
            raise errors.UsageError("name the files of corrections, or --remove a file of keys")
        asked = _Asked(dataset, wanted, files, [*files, *gone])
        asked.check_distinct()
        system_time = state.next_system_time(maybe_time(options.system_time))
        asked.check_future(bound(system_time))
        diff = asked.diff(state, system_time, allow_new=options.allow_new)
        with dataset.staging() as staging:
            try:
                recorded = stage_changes(
                    dataset, state, row_diff.rows_of_changes(diff, state.vocabulary), staging=staging,
                    system_time=system_time, bound=bound(system_time),
                )  # fmt: skip
            except errors.NothingToCommitError:
                return ChangeOutcome.nothing(state)
            return recorded.commit(dataset, state, system_time, check)

    def revert(self, block: Multihash, options: RevertOptions, means: MergeMeans) -> ChangeOutcome:
        """Commit the inverse of a block's changes.

        Nothing is committed where all that it changed is as it was before.
        """
        dataset = self.dataset
        state = DatasetState.read(dataset.chain)
        before = _before(dataset, state, block)
        graph = BlockGraph(dataset)
        asked = MergeInput.between(graph, (block,), state.head, before)
        sides = Sides.of(graph, asked)
        system_time = state.next_system_time(maybe_time(options.system_time))
        with dataset.staging() as staging:
            decided, facts = sides.decided(options.resolve, means, staging, system_time, by_row=False)
            how, conflicts = decided.recorded
            if facts is None:
                return ChangeOutcome.nothing(state)
            references = references_of(means.check.find, dataset, state)
            record = MergeRecord(
                base=asked.bases,
                source=before,
                source_ref=dataset.ref,
                target=state.head,
                mode=MergeMode.REVERT,
                resolution=how,
                conflicts=conflicts,
                references=references,
                message=options.message,
            )
            recorded = stage_changes(
                dataset, state, facts, staging=staging, system_time=system_time, record=record,
                bound=means.bound(system_time),
            )  # fmt: skip
            check = dataclasses.replace(means.check, references=references)
            return recorded.commit(dataset, state, system_time, both(check, means.guard))


def _wanted(dataset: DatasetFiles, state: DatasetState) -> Wanted:
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise errors.UsageError(
            f"{dataset.alias} is a derivative dataset: its data are computed",
            hint="correct the inputs that it is computed from",
        )
    if (schema := state.schema) is None:
        raise errors.UsageError(f"{dataset.alias} has no rows yet, so there is nothing to correct")
    if not state.primary_key:
        raise errors.UsageError(
            f"{dataset.alias} has no primary key, so nothing says which row a correction is of",
            hint="a merge strategy with a key, or `primaryKey` in CONSTRAINTS.yaml, gives it one",
        )
    *system, time = state.vocabulary.columns
    columns = pa.schema([field for field in slice_schema(schema) if field.name not in system])
    return Wanted(columns, state.primary_key, time)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """Rows to be corrected and keys to be removed, file by file."""

    dataset: DatasetFiles
    wanted: Wanted
    files: Sequence[GivenRows]
    every: Sequence[GivenRows]
    """The same, and then the files of keys."""

    def _place(self, number: int) -> tuple[GivenRows, int]:
        # the file and the row in it of a row of all of them
        for each in self.every:
            if number < len(each):
                return each, number
            number -= len(each)
        raise AssertionError("unreachable")

    def check_distinct(self) -> None:
        # no key comes twice in all files together
        keys = pa.concat_tables([row_diff.key_columns(each.rows, self.wanted.key) for each in self.every])
        first, last = row_diff.ends_of(keys)
        if not (twice := first < last).any():
            return
        at = int(np.flatnonzero(twice)[np.argmin(last[twice])])
        (there, row), (here, again) = (self._place(int(number[at])) for number in (first, last))
        where = f"row {row + 1:,}" if there is here else f"{there.file}, row {row + 1:,}"
        raise errors.BadInputError(
            f"{row_diff.key_text(here.rows.select(self.wanted.key), again)} comes twice: also in {where}",
            file=here.file,
            row=again + 1,
        )

    def check_future(self, bound: Timestamp | None) -> None:
        if bound is None:
            return
        name = self.wanted.event_time
        for each in self.files:
            if name not in each.rows.column_names:
                continue
            times = each.rows.column(name).cast(pa.timestamp("ms", "UTC"), safe=False)
            late = pc.fill_null(pc.greater(times.cast(pa.int64()), bound.epoch_ms), False).to_numpy()
            if late.any():
                row = int(late.argmax())
                time = row_diff.tree_of(each.rows.column(name)[row])
                raise errors.IngestError(
                    f"{each.file}: row {row + 1:,}: the event time {time} is later than {bound}, the latest "
                    "that is taken without asking",
                    flag=ALLOW_FUTURE,
                )

    def diff(self, state: DatasetState, system_time: Timestamp, *, allow_new: bool) -> row_diff.RowDiff:
        every, wanted = self.every, self.wanted
        columns = nullable(wanted.data)
        rows = pa.concat_tables([fitted(each.rows, columns) for each in every])
        before, had = rows_of_keys(self.dataset, state, rows, wanted.key, columns)
        stays = np.arange(rows.num_rows) < sum(map(len, self.files))
        self._check_known(had, stays, allow_new=allow_new)
        new = stays & ~had
        after = before
        for index, field in enumerate(columns):
            said = rows.column(field.name)
            given = np.concatenate([each.given.get(field.name, np.zeros(len(each), bool)) for each in every])
            if field.name == wanted.event_time:
                now = pa.scalar(system_time.epoch_ms, pa.int64()).cast(pa.timestamp("ms", "UTC"))
                given &= said.is_valid().to_numpy()  # a missing event time is never a change
                said = said.fill_null(now.cast(field.type))
            if field.name in wanted.key:
                given = np.zeros(len(had), bool)  # 0.0 and -0.0 are one key: what is recorded stays
            made = row_diff.either(given | new, pa.table([said], [field.name]), before.select([field.name]))
            after = after.set_column(index, field, made.column(0))
        self._check_whole(after, new)
        diff = row_diff.RowDiff(wanted.key, before, had, after, stays, row_diff.key_columns(rows, wanted.key))
        return diff.only(row_diff.changed(diff))

    def _check_known(self, had: Numbers, stays: Numbers, *, allow_new: bool) -> None:
        # removed rows must be recorded; corrected ones too, unless new rows are allowed
        for unknown, removing in ((~had & ~stays, True), (~had & stays, False)):
            if not unknown.any() or (not removing and allow_new):
                continue
            at = np.flatnonzero(unknown)
            places = [self._place(number) for number in at[:_SHOWN_CORRECTIONS]]
            named = [row_diff.key_text(each.rows.select(self.wanted.key), row) for each, row in places]
            keys = "1 key is" if len(at) == 1 else f"{len(at):,} keys are"
            more = ", …" if len(at) > _SHOWN_CORRECTIONS else ""
            problem = f"{keys} not recorded in {self.dataset.alias}: {'; '.join(named)}{more}"
            first = self._place(int(at[0]))[0].file
            if removing:
                raise errors.BadInputError(f"{problem}; only what is there can be removed", file=first)
            raise errors.IngestError(f"{first}: {problem}", flag="--allow-new")

    def _check_whole(self, after: pa.Table, new: Numbers) -> None:
        # a new row needs a value in each required column
        for column in self.wanted.data:
            missing = new & after.column(column.name).is_null().to_numpy()
            if not column.nullable and column.name not in self.wanted.key and missing.any():
                given, row = self._place(int(missing.argmax()))
                message = f"column `{one_line(column.name)}`: a new row needs a value"
                raise errors.BadInputError(message, file=given.file, row=row + 1)


# Lookup of wanted keys, from the newest slice to the oldest or to a state checkpoint of this key.
# Only the key columns are read, then the other columns of row groups with a newest row; row groups are
# skipped by their statistics.


def rows_of_keys(
    dataset: DatasetFiles, state: DatasetState, asked: pa.Table, key: Sequence[str], schema: pa.Schema
) -> tuple[pa.Table, Numbers]:
    """(the row in force of each key, by a schema; whether there is one); nulls where there is none.

    `asked` has distinct keys, in the declared types.
    """
    operation, loose = state.vocabulary.operation_type_column, nullable(schema)
    names = key_schema(asked.schema, key)
    given = [keys_of(batch, key, names) for batch in asked.to_batches()]
    wanted = WantedKeys.of(names, given, nulls=True)
    own = wanted.numbers(*given)
    at, unknown = np.full(wanted.count, -1), np.ones(wanted.count, dtype=bool)
    found, count, first = [loose.empty_table()], 0, asked.column(key[0])
    condition = with_any_of(quoted(key[0]), first, first.type)
    files = _newest_first(dataset, state, tuple(key), condition)
    while unknown.any() and (path := next(files, None)) is not None:
        with readable(path), open_parquet(path) as file:
            for group, _ in reversed(list(groups_with(file, condition, key[:1]))):
                places, back = _newest_places(file, group, wanted, key, operation)
                kept = np.flatnonzero(unknown & (places >= 0) & ~back)
                if len(kept):
                    kept = kept[np.argsort(places[kept])]
                    found.append(_rows_at(file, group, places[kept], loose))
                    at[kept] = np.arange(count, count + len(kept))
                    count += len(kept)
                unknown &= places < 0
    return row_diff.take(pa.concat_tables(found), at[own]), at[own] >= 0


def _newest_first(
    dataset: DatasetFiles, state: DatasetState, key: tuple[str, ...], condition: Condition
) -> Iterator[Path]:
    # files are verified only when they are asked for
    recorded, _ = RecordedRows.since_checkpoint(dataset, state, key)
    for piece in reversed(recorded.slices):
        if not piece.may_hold(condition):
            continue
        try:
            yield piece.locate()
        except errors.ObjectNotFoundError:
            path = dataset.data.locate(piece.name) if piece.name is not None else dataset.folder
            raise errors.SliceNotFoundError.of(dataset.alias, path) from None
    if recorded.checkpoint is not None and state.checkpoint is not None:
        yield dataset.checkpoints.verified_path(state.checkpoint.physical_hash)


def _newest_places(
    file: ParquetSource, group: int, wanted: WantedKeys, key: Sequence[str], operation: str
) -> tuple[Numbers, Numbers]:
    # (place of the last row of each key in a row group, -1 if absent; whether it takes one back)
    place, back, start = np.full(wanted.count, -1, np.int64), np.zeros(wanted.count, dtype=bool), 0
    for batch in file.batches([operation, *key], groups=[group]):
        at, numbers = wanted.find(keys_of(batch, key, wanted.schema))
        codes = batch.column(operation).to_numpy(zero_copy_only=False)
        # of equal numbers the last one counts
        place[numbers], back[numbers] = start + at, takes_back(codes[at])
        start += batch.num_rows
    return place, back


def _rows_at(file: ParquetSource, group: int, places: Numbers, schema: pa.Schema) -> pa.Table:
    present = [name for name in file.schema_arrow.names if name in schema.names]
    parts, start = list[pa.RecordBatch](), 0
    for batch in file.batches(present, groups=[group]):
        low, high = np.searchsorted(places, [start, start + batch.num_rows])
        parts.append(fitted(batch.take(pa.array(places[low:high] - start)), schema))
        start += batch.num_rows
    return pa.Table.from_batches(parts, schema)


# Reverting a block is a merge: the base is the state after the block, theirs the state before it, ours the
# present one. The merge record has the mode `revert` and is no edge of the graph of blocks (RFC-036).


def _before(dataset: DatasetFiles, state: DatasetState, block: Multihash) -> Multihash:
    # the block before one that can be taken back
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise errors.UsageError(
            f"{dataset.alias} is a derivative dataset: its data are computed",
            hint="revert a block of the inputs that it is computed from",
        )
    if not is_referenced(dataset, block, head=state.head):
        raise errors.PointNotFoundError(
            f"{dataset.label} does not have block {block}, so there is nothing to take back",
            hint=f"`odfchain log {dataset.label}` lists its blocks",
        )
    found = dataset.chain.get(block)
    if not isinstance(found.event, AddData) or found.event.new_data is None or found.prev_block_hash is None:
        raise errors.UsageError(
            f"{dataset.label}: block {found.sequence_number:,} ({found.event.KIND}) has no data to take back",
            hint=f"`odfchain log {dataset.label}` lists the blocks that have",
        )
    if not state.primary_key:
        raise errors.UsageError(
            f"{dataset.alias} has no primary key, so nothing says which rows came after those of the block",
            hint=f"`odfchain reset {dataset.label} {found.sequence_number - 1}` drops it and all after it",
        )
    return found.prev_block_hash
