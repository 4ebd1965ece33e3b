"""The totals of a dataset's state at a block: the multiset of rows over all columns but the system's.

`+A` and `+C` add a row, `-R` and `-C` take one away; of equal rows those with the largest offsets are in
force. Where the footers say that nothing was ever taken back, slices are added up one by one and merged, and
what was found of a slice is kept (`info/profile-parts`, private): the next profile reads new slices only.
Otherwise rows are netted by their hashes. Both ways end in the same bytes. Source: RFC-040, specification
"Projection".
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from odfchain.branches.intervals import Engine
from odfchain.branches.key_lookup import takes_any_back
from odfchain.errors import BadInputError, CodecError
from odfchain.odf import row_hash
from odfchain.odf.events import DatasetVocabulary, DataSlice
from odfchain.odf.row_hash import PAIR, Numbers
from odfchain.profiles.published import KeptParts
from odfchain.profiles.sketches import BANDS, MOST_ROWS, Hashes, Kmv
from odfchain.profiles.totals import Totals
from odfchain.progress import SILENT, Progress
from odfchain.slices.reader import fitted, open_parquet
from odfchain.slices.state import (
    SliceFile,
    Walk,
    hashed_rows,
    in_force,
    rows_of,
    rows_with_offsets,
    takes_back,
)
from odfchain.spark.executor_files import StoreFolder, files_of, staged, worker_folder
from odfchain.text import first_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import columns_of, verified_slice

# Totals of states that are larger than the memory, in three steps over files, here or on Spark:
#
#     1. hash the rows of some row groups, and write offset and operation to a file, partitioned by hash
#     2. net the rows of each partition, as for a small state
#     3. add up the rows in force, again by row groups
#
# A step is a function of a number, with the same result in either place. In memory are the rows of a
# partition, and a byte for each record. Executors without access to the driver's folder use the store
# (RFC-040, RFC-048).

T = TypeVar("T")
Data = bytes | memoryview
Ends = tuple[int, ...]

IN_MEMORY = 1 << 21
"""So many records are netted in memory, about 150 bytes each."""
_TASK_ROWS = 1 << 18
"""Records of the row groups that are read at a time."""
_RECORD = np.dtype([("hash", PAIR), ("offset", "<u8"), ("back", "?")])
_MASK = "in-force"

Run = Callable[[Callable[[int], T], int], list[T]]
"""Results of a function for each number below a count."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some row groups of a slice."""

    item: SliceFile
    key: str
    """The slice's key in the store."""
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """Arguments of steps."""

    tasks: tuple[tuple[_Piece, ...], ...]
    places: int
    first: int
    """The first offset of all."""
    schema: pa.Schema
    folder: str
    hash_key: bytes
    place: StoreFolder | None = None
    """The place of files for executors on other machines."""
    ends: tuple[Ends, ...] = ()
    """Of each task, which records of its file are of which place."""
    near_duplicates: bool = False

    def put(self, name: str, data: Data) -> None:
        if self.place is None:
            (Path(self.folder) / name).write_bytes(data)
            return
        with worker_folder() as folder:
            (folder / name).write_bytes(data)
            self.place.files.put(folder / name, f"{self.place.key}/{name}")

    def read(self, name: str, start: int, end: int) -> bytes:
        if self.place is not None:
            return self.place.files.read(f"{self.place.key}/{name}", start, end)
        with (Path(self.folder) / name).open("rb") as stream:
            stream.seek(start)
            return stream.read(end - start)

    def file(self, name: str) -> Path:
        if self.place is not None:
            return self.place.files.bring(f"{self.place.key}/{name}")
        return Path(self.folder) / name

    def slice(self, piece: _Piece) -> SliceFile:
        if self.place is None:
            return piece.item
        return dataclasses.replace(piece.item, at=self.place.files.bring(piece.key))


def large_state(
    files: Sequence[SliceFile],
    keys: Sequence[str | None],
    schema: pa.Schema,
    progress: Progress,
    *,
    engine: Engine | None,
    near_duplicates: bool,
) -> Totals:
    """The totals of the rows in force after slices; by Spark where they have more bytes than it is for.

    `keys` are those of the slices that are in the workspace's store.
    """
    size = sum(item.path.stat().st_size for item in files)
    with tempfile.TemporaryDirectory(prefix="odfchain-") as folder, contextlib.ExitStack() as resources:
        run: Run[Any] = _here
        place = None
        if engine is not None and size > engine.above:
            run, place = _by_spark(engine, resources)
        there = [
            _key_in(place, item, key, number)
            for number, (item, key) in enumerate(zip(files, keys, strict=True))
        ]
        tasks, records = tuple(_tasks(files, there)), files[-1].interval.end + 1 - files[0].interval.start
        places = -(-records // IN_MEMORY)
        work = _Work(tasks, places, files[0].interval.start, schema, folder, row_hash.own_key(), place)
        work = dataclasses.replace(work, ends=tuple(run(functools.partial(_scatter, work), len(tasks))))
        force = np.zeros(records, dtype=bool)
        for number, count in enumerate(run(functools.partial(_net, work), places)):
            offsets = np.frombuffer(work.read(f"net-{number}", 0, 8 * count), dtype="<u8")
            force[offsets - np.uint64(work.first)] = True
        work.put(_MASK, force.data)
        wanted = near_duplicates or int(force.sum()) <= MOST_ROWS
        work = dataclasses.replace(work, near_duplicates=wanted, ends=())
        found = Totals(schema, near_duplicates=wanted)
        for number, length in enumerate(run(functools.partial(_add_up, work), len(tasks))):
            part = work.read(f"part-{number}", 0, length)
            found.merge(from_bytes(part, schema, near_duplicates=wanted))
            progress.advance(size * (number + 1) // len(tasks) - size * number // len(tasks))
    return found


def _here(function: Callable[[int], T], count: int) -> list[T]:
    return [function(number) for number in range(count)]


def _by_spark(engine: Engine, resources: contextlib.ExitStack) -> tuple[Run[Any], StoreFolder | None]:
    # a function that runs others on executors, and the folder of files if they do not see the driver's
    from odfchain.spark.jobs import task_results

    session = engine.session()
    files = files_of(session)
    place = None if files is None else StoreFolder(files, resources.enter_context(staged(files)))
    return functools.partial(task_results, session), place


def _key_in(place: StoreFolder | None, item: SliceFile, key: str | None, number: int) -> str:
    # the slice is uploaded for the workers if the store lacks it
    if place is None or key is not None:
        return key or ""
    key = f"{place.key}/slice-{number}"
    place.files.put(item.path, key)
    return key


def _tasks(files: Sequence[SliceFile], keys: Sequence[str]) -> Iterator[tuple[_Piece, ...]]:
    # row groups in order, cut into as many records as are read at a time
    pieces, rows = list[_Piece](), 0
    for item, key in zip(files, keys, strict=True):
        groups: list[int] = []
        with open_parquet(item.path) as file:
            sizes = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
        for number, size in enumerate(sizes):
            groups.append(number)
            rows += size
            if rows >= _TASK_ROWS:
                yield (*pieces, _Piece(item, key, tuple(groups)))
                pieces, groups, rows = [], [], 0
        if groups:
            pieces.append(_Piece(item, key, tuple(groups)))
    if pieces:
        yield tuple(pieces)


# --- the steps -------------------------------------------------------------------------------------------


def _scatter(work: _Work, number: int) -> Ends:
    # rows of one place go together into the task's file
    row_hash.use_key(work.hash_key)
    found = [np.zeros(0, dtype=_RECORD)]
    for piece in work.tasks[number]:
        for offsets, operations, hashes in hashed_rows(work.slice(piece), groups=piece.groups):
            records = np.empty(len(offsets), dtype=_RECORD)
            records["hash"], records["offset"], records["back"] = hashes, offsets, takes_back(operations)
            found.append(records)
    records = np.concatenate(found)
    places = (records["hash"]["high"] % np.uint64(work.places)).astype(np.intp)
    work.put(f"records-{number}", records[np.argsort(places, kind="stable")].tobytes())
    return (0, *np.cumsum(np.bincount(places, minlength=work.places)).tolist())


def _net(work: _Work, place: int) -> int:
    found = [np.zeros(0, dtype=_RECORD)]
    for number, ends in enumerate(work.ends):
        start, end = (_RECORD.itemsize * at for at in ends[place : place + 2])
        if start < end:
            found.append(np.frombuffer(work.read(f"records-{number}", start, end), dtype=_RECORD))
    records = np.concatenate(found)
    walk = Walk.of(records["offset"], records["back"], row_hash.numbered(records["hash"]))
    offsets = records["offset"][walk.net]
    work.put(f"net-{place}", offsets.tobytes())
    return len(offsets)


def _add_up(work: _Work, number: int) -> int:
    force = np.memmap(work.file(_MASK), dtype=bool, mode="r")
    found = Totals(work.schema, near_duplicates=work.near_duplicates)
    for piece in work.tasks[number]:
        for rows, offsets, _ in rows_of(
            work.slice(piece), (), None, also=work.schema.names, groups=piece.groups
        ):
            chosen = force[offsets - np.uint64(work.first)]
            if chosen.any():
                found.update(fitted(rows.filter(pa.array(chosen)), work.schema), offsets[chosen])
    data = to_bytes(found)
    work.put(f"part-{number}", data)
    return len(data)


def state_totals(
    dataset: DatasetFiles,
    state: DatasetState,
    progress: Progress = SILENT,
    *,
    keep: bool = True,
    near_duplicates: bool = False,
    engine: Engine | None = None,
) -> Totals:
    """The totals of the rows in force at a state's block; parts are kept and used, unless all is to be read.

    Near duplicates are looked for among at most 262,144 rows, or among all of them where that is asked. Where
    rows are taken back and there are more than two million records, they are netted in files; by the engine,
    if there are more bytes than it is for.
    """
    slices, schema = state_slices(dataset, state), profiled_columns(state)
    return totals_of_slices(
        dataset,
        schema,
        state.vocabulary,
        slices,
        progress,
        keep=keep,
        near_duplicates=near_duplicates,
        engine=engine,
    )


@dataclass(frozen=True, slots=True)
class ProfiledSlice:
    """A slice that can be relied on, or one that is about to be committed."""

    path: Path
    named: DataSlice
    """As its block names it."""


def state_slices(dataset: DatasetFiles, state: DatasetState) -> list[ProfiledSlice]:
    """All slices up to a block, oldest first."""
    return [ProfiledSlice(verified_slice(dataset, ref), ref.slice) for ref in state.slices()]


def totals_of_slices(
    dataset: DatasetFiles,
    schema: pa.Schema,
    names: DatasetVocabulary,
    slices: Sequence[ProfiledSlice],
    progress: Progress = SILENT,
    *,
    keep: bool = True,
    near_duplicates: bool = False,
    engine: Engine | None = None,
) -> Totals:
    """The totals of the rows that slices, oldest first, leave in force."""
    progress.phase(f"Profiling {dataset.alias}", sum(item.named.size for item in slices))
    files = [SliceFile(item.path, names, item.named.offset_interval) for item in slices]
    if not any(map(takes_any_back, files)):
        rows = sum(item.named.offset_interval.count for item in slices)
        found = Totals(schema, near_duplicates=near_duplicates or rows <= MOST_ROWS)
        for item in slices:
            empty = Totals(schema, near_duplicates=found.bands is not None)
            found.merge(_part(dataset, names, item, empty, keep=keep))
            progress.advance(item.named.size)
        return found
    if sum(item.interval.count for item in files) > IN_MEMORY:
        keys = [_key_of(dataset, item) for item in slices]
        return large_state(files, keys, schema, progress, engine=engine, near_duplicates=near_duplicates)
    offsets = in_force(files, (), net=True)
    found = Totals(schema, near_duplicates=near_duplicates or len(offsets) <= MOST_ROWS)
    for file in files:
        for rows, numbers in rows_with_offsets(file, offsets, schema):
            found.update(rows, numbers)
        progress.advance(file.path.stat().st_size)
    return found


def _key_of(dataset: DatasetFiles, item: ProfiledSlice) -> str | None:
    # None for a slice that is not committed yet
    name = item.named.physical_hash
    return dataset.key("data", name) if item.path == dataset.data.path(name) else None


def profiled_columns(state: DatasetState) -> pa.Schema:
    """The declared columns but offset, operation and system time."""
    return without_system(columns_of(state, None), state.vocabulary)


def without_system(schema: pa.Schema, names: DatasetVocabulary) -> pa.Schema:
    """The columns of a schema that a profile is of."""
    system = {names.offset_column, names.operation_type_column, names.system_time_column}
    return pa.schema([field for field in schema if field.name not in system])


def _part(
    dataset: DatasetFiles, names: DatasetVocabulary, item: ProfiledSlice, empty: Totals, *, keep: bool
) -> Totals:
    # the kept totals of a slice, else new ones from its rows
    parts, name = KeptParts(dataset), item.named.physical_hash
    data = parts.get(name) if keep else None
    if data is not None:
        with contextlib.suppress(CodecError):
            return from_bytes(data, empty.schema, near_duplicates=empty.bands is not None)
    for rows, offsets in _all_rows(item.path, names, empty.schema):
        empty.update(rows, offsets)
    if keep:
        parts.keep(name, to_bytes(empty))
    return empty


def _all_rows(
    path: Path, names: DatasetVocabulary, schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
    offset, operation = names.columns[:2]
    with open_parquet(path) as file:
        present = file.schema_arrow.names
        if missing := next((name for name in (offset, operation) if name not in present), None):
            raise BadInputError(f"column `{missing}` is not there", file=str(path))
        for batch in file.batches([n for n in present if n in schema.names or n == offset]):
            numbers = batch.column(offset).to_numpy(zero_copy_only=False).astype(np.uint64)
            yield fitted(batch, schema), numbers


# Totals as one Arrow row with JSON scalars, for the cache and for executors. Private: bytes that cannot be
# read are computed again (RFC-040).

_VERSION = 2
_KEY = b"odfchain.totals"


def to_bytes(totals: Totals) -> bytes:
    """The totals as one Arrow stream."""
    arrays: dict[str, pa.Array] = {
        "kmv": _numbers(totals.kmv.hashes),
        "kmv counts": _numbers(totals.kmv.counts),
        "hll": _numbers(totals.hll.hashes),
        "sample offsets": _numbers(totals.sample_offsets),
    }
    if totals.bands is not None and totals.bands.is_small:
        arrays["bands"] = _numbers(totals.bands.held.reshape(-1))
    for number, values in enumerate(totals.sample.columns):
        arrays[f"sample {number}"] = _as_list(values)
    for number, column in enumerate(totals.columns):
        arrays[f"hll {number}"] = _numbers(column.hll.hashes)
        if column.counts is not None:
            arrays[f"keys {number}"] = _as_list(column.counts.keys)
            arrays[f"counts {number}"] = _numbers(column.counts.numbers)
    scalars = {"version": _VERSION, "rows": totals.rows, "columns": [c.scalars() for c in totals.columns]}
    schema = totals.schema.serialize().to_pybytes().hex()
    metadata = {_KEY: json.dumps({**scalars, "schema": schema}).encode()}
    table = pa.table(arrays).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes, schema: pa.Schema, *, near_duplicates: bool = False) -> Totals:
    """The totals of rows with these columns.

    Raises:
        CodecError: the bytes are none, of other columns, or say nothing of what is asked.
    """
    try:
        return _read(data, schema, near_duplicates=near_duplicates)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CodecError(f"not the totals of a slice: {first_line(error)}") from None


def _read(data: bytes, schema: pa.Schema, *, near_duplicates: bool) -> Totals:
    table = pa.ipc.open_stream(data).read_all()
    scalars = json.loads(table.schema.metadata[_KEY])
    own = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(scalars["schema"])))
    if scalars["version"] != _VERSION or own != schema:
        raise ValueError("another version, or other columns")

    def listed(name: str) -> pa.Array:
        return table.column(name)[0].values

    found = Totals(schema, near_duplicates=near_duplicates)
    found.rows = scalars["rows"]
    found.kmv = Kmv(listed("kmv").to_numpy(), listed("kmv counts").to_numpy())
    found.hll.update(listed("hll").to_numpy())
    found.sample_offsets = listed("sample offsets").to_numpy()
    samples = [listed(f"sample {number}") for number in range(len(found.sample.schema))]
    found.sample = pa.Table.from_arrays(samples, schema=found.sample.schema)
    if found.bands is not None:
        keys = listed("bands").to_numpy().reshape(-1, BANDS)
        found.bands.add(keys, np.ones(len(keys), dtype=bool))
        found.bands.rows = found.rows
    present = set(table.column_names)
    for number, (column, given) in enumerate(zip(found.columns, scalars["columns"], strict=True)):
        column.hll.update(listed(f"hll {number}").to_numpy())
        counted = f"keys {number}" in present
        column.restore(
            given, (listed(f"keys {number}"), listed(f"counts {number}").to_numpy()) if counted else None
        )
    return found


def _numbers(values: Numbers) -> pa.Array:
    return _as_list(pa.array(values))


def _as_list(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    return pa.LargeListArray.from_arrays(pa.array([0, len(whole)], pa.int64()), whole)
