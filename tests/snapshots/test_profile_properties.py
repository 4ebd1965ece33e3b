"""A profile follows from the multiset of rows: random tables of all types, in every cut, order and way (P45)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.events import DatasetVocabulary, DataSlice, OffsetInterval
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.profiles.document import ProfileFacts, profile_document
from odfchain.profiles.reader import DESCRIPTIVE
from odfchain.profiles.sketches import BANDS, splitmix64
from odfchain.profiles.state_totals import ProfiledSlice, from_bytes, to_bytes, totals_of_slices
from odfchain.profiles.totals import Totals, column_seed
from odfchain.slices import state as slice_state
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit import profiled_tables as plain
from tests.kit.root_rows import add_root, schema_with
from tests.kit.snapshot_columns import fixture

NOTHING = hash_bytes(b"")
FACTS = {
    "dataset_id": "did", "snapshot": NOTHING, "parent": None, "created_at": "", "sequence_number": 0, "records": 0,
    "slices": (), "descriptive": dict.fromkeys(DESCRIPTIVE, ""),
}  # fmt: skip
SHORT, LONG = range(80), range(1_000_000, 1_005_000)


def document(totals: Totals) -> dict[str, Any]:
    return profile_document(totals, ProfileFacts(**FACTS))


def profile(totals: Totals) -> bytes:
    return canonical_bytes(document(totals))


class RandomTable:
    """Columns of some types, as Arrow and as plain Python."""

    def __init__(self, rng: random.Random) -> None:
        rows = rng.choice([0, 1, 2, rng.randint(3, 40), rng.randint(3, 40)])
        kinds = [rng.choice(plain.TYPES) for _ in range(rng.randint(1, 6))]
        names = rng.sample(["id", "name", "a.b", "ÄÖ", "`", "value", "x y", "event_time"], len(kinds))
        self.values = {name: plain.column(rng, kind, rows) for name, kind in zip(names, kinds, strict=True)}
        self.schema = pa.schema(list(zip(names, kinds, strict=True)))
        arrays = [plain.array(self.values[f.name], f.type) for f in self.schema]
        self.batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def __len__(self) -> int:
        return self.batch.num_rows

    def totals(self, rows: Sequence[int], rng: random.Random) -> Totals:
        """Of some rows in this order, in batches of chosen sizes: windows of one, or batches of their own."""
        found = Totals(self.schema, near_duplicates=True)
        chosen = self.batch.take(pa.array(rows, pa.int64()))
        start = 0
        while start < len(rows):
            size = rng.randint(1, len(rows))
            window = chosen.slice(start, size)
            own = window.take(pa.array(range(window.num_rows), pa.int64()))
            offsets = np.array(rows[start : start + size], dtype=np.uint64)
            found.update(window if rng.random() < 0.5 else own, offsets)
            start += size
        return found

    def in_parts(self, rng: random.Random) -> Totals:
        """Cut, shuffled, written and read, merged in any order."""
        order = rng.sample(range(len(self)), len(self))
        cuts = sorted(rng.randint(0, len(self)) for _ in range(rng.randint(0, 6)))
        parts = [self.totals(order[a:b], rng) for a, b in zip([0, *cuts], [*cuts, len(self)], strict=True)]
        while len(parts) > 1:
            one, other = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
            if rng.random() < 0.3:
                other = from_bytes(to_bytes(other), self.schema, near_duplicates=True)
            one.merge(other)
            parts.append(one)
        return parts[0]


def check_one_profile(seed: int) -> None:
    rng = random.Random(seed)
    table = RandomTable(rng)
    whole = Totals(table.schema, near_duplicates=True)
    whole.update(table.batch, np.arange(len(table), dtype=np.uint64))
    assert profile(table.in_parts(rng)) == profile(whole), f"seed {seed}"
    found = document(whole)
    for field in table.schema:
        expected = plain.expected(table.values[field.name], field.type)
        stats = dict(found["column_stats"][field.name])
        if stats["kind"] == "datetime" and stats["min"] is not None:
            stats |= {name: Timestamp.parse(stats[name]).epoch_ns for name in ("min", "max")}
        assert {name: stats.get(name) for name in expected} == expected, (
            f"seed {seed}: {field.name} {field.type}"
        )
    rows, distinct = len(table), plain.distinct_rows(list(table.values.values()), table.schema.types)
    assert found["duplicate_row_fraction"] == ((rows - distinct) / rows if rows else 0), f"seed {seed}"
    assert found["near_duplicate_estimate"] == nearly_alike(table), f"seed {seed}"


def nearly_alike(table: RandomTable) -> float:
    """The share of rows that have a band key in common with another, row by row."""
    factors, summands = (
        splitmix64(np.arange(first, first + 64, dtype=np.uint64)) | np.uint64(odd)
        for first, odd in ((1, 1), (1001, 0))
    )
    seen: dict[tuple[int, int], set[int]] = {}
    for row in range(len(table)):
        tokens = [
            token for field in table.schema for token in plain.tokens(table.batch, row, field, column_seed)
        ]
        if not tokens:
            continue
        minima = (np.array(tokens, np.uint64)[:, None] * factors + summands).min(axis=0)
        for band in range(BANDS):
            key = np.zeros(1, np.uint64)
            for minimum in minima[band * 8 : band * 8 + 8]:
                key = splitmix64(key ^ minimum)
            seen.setdefault((band, int(key[0])), set()).add(row)
    alike = set().union(*(rows for rows in seen.values() if len(rows) > 1))
    return len(alike) / len(table) if len(table) else 0.0


def test_one_profile_for_every_cut_and_order() -> None:
    for seed in SHORT:
        check_one_profile(seed)


@pytest.mark.soak
def test_one_profile_for_every_cut_and_order_of_thousands() -> None:
    for seed in LONG:
        check_one_profile(seed)


# --- what is taken back ----------------------------------------------------------------------------------


class RandomLog:
    """Records that put the rows of a table in force, and take some back; the rest is in force."""

    def __init__(self, rng: random.Random, rows: int) -> None:
        self.records: list[tuple[int, int]] = []
        """(operation, row of the table), in order of offset."""
        waiting, self.force = list(range(rows)), list[int]()
        while waiting:
            row = waiting.pop()
            match rng.choice("AARCX") if self.force else "A":
                case "A":
                    self.records.append((0, row))
                case "X":  # put in force as a correction that corrects nothing
                    self.records.append((3, row))
                case "R":
                    self.records += [(1, self._taken(rng)), (0, row)]
                case "C":
                    self.records += [(2, self._taken(rng)), (3, row)]
            self.force.append(row)

    def _taken(self, rng: random.Random) -> int:
        return self.force.pop(rng.randrange(len(self.force)))


class Slices:
    """Records in Parquet files, cut as chance wants."""

    def __init__(self, folder: Path, table: RandomTable) -> None:
        self.folder, self.table, self.count = folder, table, 0

    def of(self, records: list[tuple[int, int]], rng: random.Random, *, cuts: int) -> list[ProfiledSlice]:
        ends = sorted({0, len(records), *(rng.randint(0, len(records)) for _ in range(cuts))})
        return [self._slice(records[a:b], a, rng) for a, b in pairwise(ends) if a < b]

    def _slice(self, records: list[tuple[int, int]], first: int, rng: random.Random) -> ProfiledSlice:
        rows = self.table.batch.take(pa.array([row for _, row in records], pa.int64()))
        system = [
            pa.array(range(first, first + len(records)), pa.uint64()),
            pa.array([operation for operation, _ in records], pa.uint8()),
            pa.array([0] * len(records), pa.timestamp("ms", "UTC")),
        ]
        names = ["offset", "op", "system_time", *self.table.schema.names]
        self.count += 1
        path = self.folder / f"slice-{self.count}"
        pq.write_table(
            pa.table([*system, *rows.columns], names=names), path, row_group_size=rng.randint(1, 30)
        )
        interval = OffsetInterval(start=first, end=first + len(records) - 1)
        name: Multihash = hash_bytes(str(path).encode())
        return ProfiledSlice(
            path, DataSlice(logical_hash=name, physical_hash=name, offset_interval=interval, size=1)
        )


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    with Workspace.init(tmp_path) as workspace:
        return add_root(workspace, "any", schema_with())


def check_one_state(seed: int, dataset: DatasetFiles, folder: Path) -> None:
    rng = random.Random(seed)
    table = RandomTable(rng)
    log, slices = RandomLog(rng, len(table)), Slices(folder, table)

    def profiled(records: list[tuple[int, int]], cuts: int, most: int = 1 << 20) -> bytes:
        of, keep = slices.of(records, rng, cuts=cuts), rng.random() < 0.5
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slice_state, "_AT_ONCE", most)
            found = totals_of_slices(dataset, table.schema, DatasetVocabulary(), of, keep=keep)
        return profile(found)

    alone = [(0, row) for row in log.force]
    expected = profiled(alone, cuts=1)
    rng.shuffle(alone)
    ways = {
        "slices": profiled(log.records, cuts=4),
        "one slice": profiled(log.records, cuts=0),
        "piece by piece": profiled(log.records, cuts=2, most=rng.randint(1, 200)),
        "other slices and order": profiled(alone, cuts=3),
        "rows": profile(table.totals(log.force, rng)),
    }
    assert {name for name, found in ways.items() if found != expected} == set(), f"seed {seed}"


def test_one_profile_for_what_is_in_force(dataset: DatasetFiles, tmp_path: Path) -> None:
    for seed in SHORT[:40]:
        check_one_state(seed, dataset, tmp_path)


@pytest.mark.soak
def test_one_profile_for_what_is_in_force_in_thousands_of_logs(dataset: DatasetFiles, tmp_path: Path) -> None:
    for seed in LONG[:1_000]:
        check_one_state(seed, dataset, tmp_path)


def test_a_slice_with_other_offsets_is_no_slice(dataset: DatasetFiles, tmp_path: Path) -> None:
    table = RandomTable(random.Random(3))
    records = [(0, 0), (1, 0), (0, 0)]
    (item,) = Slices(tmp_path, table).of(records, random.Random(3), cuts=0)
    wrong = replace(item, named=replace(item.named, offset_interval=OffsetInterval(start=4, end=6)))
    with pytest.raises(BadInputError, match="offsets that its block does not name"):
        totals_of_slices(dataset, table.schema, DatasetVocabulary(), [wrong])


def test_case_43_null_counts_as_a_value_of_constant_columns() -> None:
    case = fixture("profiles")["lists_of_columns"]
    columns = {name: pa.array(values, pa.int64()) for name, values in case["columns"].items()}
    table = pa.table(columns)
    totals = Totals(table.schema)
    totals.update(table.to_batches()[0], np.arange(len(table), dtype=np.uint64))
    found = document(totals)
    assert found["constant_columns"] == case["constant"]
    assert found["high_null_columns"] == case["high_null"]
