"""The totals of states that are too large for the memory: in three steps over files, here or by Spark.

    1. the rows of some row groups are hashed, and what says whether they are in force is put into files by
       the hash, so that equal rows come together
    2. the rows of each such place are netted as those of a small state are
    3. those in force are added up, again by row groups

Every step is a function of a number, so Spark's workers may call it as well as this process: what it makes is
the same. In memory are the rows of a place, and a byte for each record. Source: RFC-040.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.branch.computing import Engine
from odfchain.digest import row_hash
from odfchain.digest.row_hash import PAIR
from odfchain.profile.near_duplicates import MOST_ROWS
from odfchain.profile.totals import Totals
from odfchain.profile.totals_bytes import from_bytes, to_bytes
from odfchain.progress import Progress
from odfchain.slices.reader import fitted, open_parquet
from odfchain.slices.rows_in_force import SliceFile, Walk, hashed_rows, rows_of, takes_back

IN_MEMORY = 1 << 21
"""So many records are netted in memory, about 150 bytes each."""
_TASK_ROWS = 1 << 18
"""Records of the row groups that are read at a time."""
_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<u8"), ("back", "?")])
_MASK = "in-force"

Run = Callable[[Callable[[int], None], int], None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some row groups of a slice."""

    item: SliceFile
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """What steps are told."""

    tasks: tuple[tuple[_Piece, ...], ...]
    places: int
    first: int
    """The first offset of all."""
    schema: pa.Schema
    folder: str
    hash_key: bytes
    near_duplicates: bool = False

    def file(self, name: str) -> Path:
        """Where something is put that another step reads."""
        return Path(self.folder) / name


def large_state(
    files: Sequence[SliceFile],
    schema: pa.Schema,
    progress: Progress,
    *,
    engine: Engine | None,
    near_duplicates: bool,
) -> Totals:
    """The totals of the rows in force after slices; by Spark where they have more bytes than it is for.

    Raises:
        BadInputError, OversizedInputError: naming a slice that cannot be read.
        EngineError: Spark failed.
    """
    records = files[-1].interval.end + 1 - files[0].interval.start
    tasks = tuple(_tasks(files))
    size = sum(item.path.stat().st_size for item in files)
    run = _here if engine is None or size <= engine.above else _by_spark(engine)
    with tempfile.TemporaryDirectory(prefix="odfchain-") as folder:
        places = -(-records // IN_MEMORY)
        work = _Work(tasks, places, files[0].interval.start, schema, folder, row_hash.own_key())
        run(functools.partial(_scatter, work), len(tasks))
        run(functools.partial(_net, work), places)
        force = np.zeros(records, dtype=bool)
        for place in range(places):
            force[np.fromfile(work.file(f"net-{place}"), dtype="<u8") - np.uint64(work.first)] = True
        force.tofile(work.file(_MASK))
        wanted = near_duplicates or int(force.sum()) <= MOST_ROWS
        work = _Work(tasks, places, work.first, schema, folder, work.hash_key, wanted)
        run(functools.partial(_add_up, work), len(tasks))
        found = Totals(schema, near_duplicates=wanted)
        for number in range(len(tasks)):
            part = work.file(f"part-{number}")
            found.merge(from_bytes(part.read_bytes(), schema, near_duplicates=wanted))
            part.unlink()
            progress.advance(size * (number + 1) // len(tasks) - size * number // len(tasks))
    return found


def _here(function: Callable[[int], None], count: int) -> None:
    for number in range(count):
        function(number)


def _by_spark(engine: Engine) -> Run:
    from odfchain.spark.tasks import run_tasks  # noqa: PLC0415 - for large ones only

    return functools.partial(run_tasks, engine.session())


def _tasks(files: Sequence[SliceFile]) -> Iterator[tuple[_Piece, ...]]:
    """Row groups in order, cut into as many records as are read at a time."""
    pieces, rows = list[_Piece](), 0
    for item in files:
        groups: list[int] = []
        with open_parquet(item.path) as file:
            sizes = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
        for number, size in enumerate(sizes):
            groups.append(number)
            rows += size
            if rows >= _TASK_ROWS:
                yield (*pieces, _Piece(item, tuple(groups)))
                pieces, groups, rows = [], [], 0
        if groups:
            pieces.append(_Piece(item, tuple(groups)))
    if pieces:
        yield tuple(pieces)


# --- the steps -------------------------------------------------------------------------------------------


def _scatter(work: _Work, number: int) -> None:
    """What says whether the rows of a task are in force is where equal rows are, too."""
    row_hash.use_key(work.hash_key)
    found = [np.zeros(0, dtype=_RECORD)]
    for piece in work.tasks[number]:
        for offsets, operations, hashes in hashed_rows(piece.item, groups=piece.groups):
            records = np.empty(len(offsets), dtype=_RECORD)
            records["high"], records["low"] = hashes["high"], hashes["low"]
            records["offset"], records["back"] = offsets, takes_back(operations)
            found.append(records)
    records = np.concatenate(found)
    places = (records["high"] % np.uint64(work.places)).astype(np.intp)
    ordered = records[np.argsort(places, kind="stable")]
    ends = np.cumsum(np.bincount(places, minlength=work.places))
    for place, part in enumerate(np.split(ordered, ends[:-1])):
        part.tofile(work.file(f"records-{place}-{number}"))


def _net(work: _Work, place: int) -> None:
    """The offsets of the rows of a place that are in force are known."""
    paths = [work.file(f"records-{place}-{number}") for number in range(len(work.tasks))]
    records = np.concatenate([np.fromfile(path, dtype=_RECORD) for path in paths])
    for path in paths:
        path.unlink()
    hashes = np.empty(len(records), dtype=PAIR)
    hashes["high"], hashes["low"] = records["high"], records["low"]
    walk = Walk.of(records["offset"], records["back"], hashes)
    records["offset"][walk.net].tofile(work.file(f"net-{place}"))


def _add_up(work: _Work, number: int) -> None:
    """The rows of a task that are in force are added up."""
    force = np.memmap(work.file(_MASK), dtype=bool, mode="r")
    found = Totals(work.schema, near_duplicates=work.near_duplicates)
    for piece in work.tasks[number]:
        for rows, offsets, _ in rows_of(piece.item, (), None, also=work.schema.names, groups=piece.groups):
            chosen = force[offsets - np.uint64(work.first)]
            if chosen.any():
                found.update(fitted(rows.filter(pa.array(chosen)), work.schema), offsets[chosen])
    work.file(f"part-{number}").write_bytes(to_bytes(found))
