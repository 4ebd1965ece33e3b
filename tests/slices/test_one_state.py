"""All that computes what is in force, held to one walk over random rows: one zero and one NaN at any depth."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.audit.state_checks import _difference
from odfchain.branches.intervals import _ranges
from odfchain.branches.key_lookup import WantedKeys, key_schema
from odfchain.branches.row_diff import net_of
from odfchain.odf.enums import TAKES_BACK
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.row_hash import hash_rows
from odfchain.odf.times import Timestamp
from odfchain.slices.state import SliceFile, in_force, newest_rows, state, state_at, taken_back_in_vain
from odfchain.workspace.read_slices import StateCheckpoint

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

NAMES = DatasetVocabulary()
FLOATS = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.float32()))])
VALUES = pa.schema(
    [
        ("d", pa.float64()), ("f", pa.float32()), ("l", pa.list_(pa.float64())), ("s", FLOATS),
        ("m", pa.map_(pa.string(), pa.float64())),
    ]
)  # fmt: skip
SCHEMA = pa.schema(
    [("offset", pa.uint64()), ("op", pa.uint8()), ("system_time", pa.timestamp("ms", "UTC")),
     ("event_time", pa.timestamp("ms", "UTC")), *VALUES]
)  # fmt: skip
NAN, OTHER = (
    struct.unpack("<d", number.to_bytes(8, "little"))[0] for number in (0x7FF8 << 48, 0xFFF8BAD << 36)
)
"""Two NaN of different bits."""
NUMBERS = [0.0, -0.0, NAN, OTHER, 1.5]
Row = tuple[int, Any, Any, Any, Any, Any]
"""Operation, then the values; the offset is the row's place."""


def drawn(draw: random.Random, kind: pa.DataType) -> Any:
    """A value, of few, so that many are equal."""
    if draw.random() < 0.2:
        return None
    if pa.types.is_map(kind):
        entries = [(key, drawn(draw, kind.item_type)) for key in ("a", "b")[: draw.randrange(3)]]
        return draw.sample(entries, len(entries))
    if pa.types.is_list(kind):
        return [drawn(draw, kind.value_type) for _ in range(draw.randrange(2))]
    if pa.types.is_struct(kind):
        return {field.name: drawn(draw, field.type) for field in kind}
    return draw.choice(NUMBERS)


def table(seed: int, count: int) -> list[Row]:
    """Rows of which some go back to one before, with other zeros."""
    draw, rows = random.Random(seed), list[Row]()
    for _ in range(count):
        chosen = draw.sample(VALUES.names, draw.randrange(1, 4))
        values = [drawn(draw, field.type) if field.name in chosen else None for field in VALUES]
        if rows and draw.random() < 0.5:
            values = [turned(draw, value) for value in draw.choice(rows)[1:]]
        rows.append((draw.randrange(4), *values))
    return rows


def turned(draw: random.Random, value: Any) -> Any:
    """An equal value that is written otherwise."""
    if isinstance(value, float):
        return draw.choice([each for each in NUMBERS if told(each) == told(value)])
    if isinstance(value, dict):
        return {name: turned(draw, part) for name, part in value.items()}
    if isinstance(value, list):
        found = [turned(draw, part) for part in value]
        return draw.sample(found, len(found)) if found and isinstance(found[0], tuple) else found
    return tuple(turned(draw, part) for part in value) if isinstance(value, tuple) else value


def told(value: Any) -> str:
    """What is equal where values are; the one definition of this file."""
    if isinstance(value, float):
        return repr(value + 0.0)
    if isinstance(value, dict):
        return repr([(name, told(part)) for name, part in value.items()])
    if isinstance(value, list):
        found = [told(part) for part in value]
        return repr(sorted(found) if value and isinstance(value[0], tuple) else found)
    return repr(tuple(told(part) for part in value)) if isinstance(value, tuple) else repr(value)


def key_of(row: Row, key: tuple[str, ...]) -> str:
    places = [VALUES.names.index(name) + 1 for name in key or VALUES.names]
    return told([row[place] for place in places])


def walked(rows: list[Row], key: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """(the offsets in force, those that take back what is not), by looking at one row after the other."""
    if key:
        newest = {key_of(row, key): offset for offset, row in enumerate(rows)}
        return sorted(offset for offset in newest.values() if rows[offset][0] not in TAKES_BACK), []
    kept: list[int] = []
    in_vain: list[int] = []
    for offset, row in enumerate(rows):
        if row[0] not in TAKES_BACK:
            kept.append(offset)
        elif equal := [other for other in kept if key_of(rows[other], ()) == key_of(row, ())]:
            kept.remove(equal[0])
        else:
            in_vain.append(offset)
    return kept, in_vain


def as_table(rows: list[Row]) -> pa.Table:
    columns = [
        range(len(rows)), [row[0] for row in rows], [0] * len(rows), [0] * len(rows),
        *([row[place] for row in rows] for place in range(1, len(VALUES) + 1)),
    ]  # fmt: skip
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def slices_of(folder: Path, rows: list[Row], cut: int) -> list[SliceFile]:
    found, whole = [], as_table(rows)
    for start, end in itertools.pairwise(sorted({0, cut, len(rows)})):
        path = folder / f"{start}.parquet"
        pq.write_table(whole.slice(start, end - start), path)
        found.append(SliceFile(path, NAMES, OffsetInterval(start=start, end=end - 1)))
    return found


def netted(rows: list[Row]) -> list[int]:
    """The offsets in force where what takes back what is not there counts against equal rows that come later."""
    backs = [key_of(row, ()) for row in rows if row[0] in TAKES_BACK]
    kept = []
    for offset, row in enumerate(rows):
        if row[0] not in TAKES_BACK:
            if (told_row := key_of(row, ())) in backs:
                backs.remove(told_row)
            else:
                kept.append(offset)
    return kept


def offsets(found: pa.Table) -> list[int]:
    return sorted(found["offset"].drop_null().to_pylist())


KEYS = [("d",), ("f", "d"), ("l",), ("s",), ("m",), ("s", "f")]
DRAWN = {"seed": st.integers(0, 1 << 32), "count": st.integers(1, 24), "cut": st.integers(0, 24)}


@settings(max_examples=40)
@given(**DRAWN, key=st.sampled_from(KEYS))
def test_by_a_key(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, cut: int, key: tuple[str, ...]
) -> None:
    rows = table(seed, count)
    slices = slices_of(tmp_path_factory.mktemp("state"), rows, min(cut, count))
    expected, _ = walked(rows, key)
    whole = as_table(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odfchain.slices.state._AT_ONCE", 4)  # keys are thinned out on the way
        kept, earlier = state(slices, key, SCHEMA), state(slices, key, SCHEMA, upto=cut)
    assert repr(kept.to_pylist()) == repr(whole.take(pa.array(expected, pa.int64())).to_pylist())
    assert earlier["offset"].to_pylist() == walked(rows[: cut + 1], key)[0]
    assert offsets(newest_rows(slices, key, SCHEMA)) == expected
    # who asks about keys leaves those with a null part out
    schema = key_schema(SCHEMA, key)
    (batch,) = whole.select(list(key)).rename_columns(schema.names).to_batches()
    wanted = WantedKeys.of(schema, [batch])
    numbers = wanted.numbers(batch)
    last = {int(number): offset for offset, number in enumerate(numbers) if number >= 0}
    force = wanted.newest(slices, key) == 1
    whole_keys = [offset for offset in expected if numbers[offset] >= 0]
    assert sorted(offset for number, offset in last.items() if force[number]) == whole_keys
    if "m" not in key:  # equal keys are sent to one task, whatever it makes of them; maps have no order
        ranges = _ranges(whole.select(list(key)), whole.select(list(key)).take(pa.array([0, count // 2])))
        of_key = {(key_of(row, key), int(number)) for row, number in zip(rows, ranges, strict=True)}
        assert len(of_key) == len({key_of(row, key) for row in rows})
    # at an event time, -C without its +C only deletes an entry, and the changes of an interval begin with +A
    rows = [(row[0] % 2, *row[1:]) for row in rows]
    slices = slices_of(tmp_path_factory.mktemp("state"), rows, min(cut, count))
    expected, _ = walked(rows, key)
    assert offsets(state_at(slices, key, SCHEMA, Timestamp.from_epoch_ms(1))) == expected
    first = {key_of(row, key): offset for offset, row in reversed(list(enumerate(rows)))}
    rows = [(0 if offset in first.values() else row[0], *row[1:]) for offset, row in enumerate(rows)]
    data = as_table(rows).drop_columns(["op", "system_time", "event_time"])
    assert offsets(net_of(np.array([row[0] for row in rows]), data, key).after) == walked(rows, key)[0]


@settings(max_examples=40)
@given(**DRAWN)
def test_without_a_key(tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, cut: int) -> None:
    rows = table(seed, count)
    folder = tmp_path_factory.mktemp("state")
    slices = slices_of(folder, rows, min(cut, count))
    kept, in_vain = walked(rows, ())
    found = state(slices, (), SCHEMA)
    assert repr(found.to_pylist()) == repr(as_table(rows).take(pa.array(kept, pa.int64())).to_pylist())
    assert offsets(state(slices, (), SCHEMA, net=True)) == netted(rows)
    assert offsets(state_at(slices, (), SCHEMA, Timestamp.from_epoch_ms(1))) == netted(rows)
    assert in_force(slices, (), upto=count // 2).tolist() == walked(rows[: count // 2 + 1], ())[0]
    assert taken_back_in_vain(slices, slices).tolist() == in_vain


def test_a_hash_may_be_exact() -> None:
    """For states that are held against what is recorded, and for what is recorded next."""
    rows: list[Row] = [(0, number, number, [number], {"x": number, "y": [number]}, []) for number in NUMBERS]
    batch = as_table(rows).drop_columns(["offset"]).to_batches()[0]
    assert len(set(hash_rows(batch, ()).tolist())) == 3
    assert len(set(hash_rows(batch, (), exact=True).tolist())) == 5


def test_a_state_checkpoint_has_its_rows_to_the_bit(tmp_path: Path) -> None:
    """Check 13: a zero that is written otherwise is another row than the recorded one."""
    rows: list[Row] = [(0, -0.0, 1.5, [0.0], None, None), (0, NAN, 1.5, [-0.0], None, None)]
    (item,) = slices_of(tmp_path, rows, 0)
    job = SimpleNamespace(slice=SimpleNamespace(offset_interval=item.interval))
    readable: Any = SimpleNamespace(job=job, expected=SimpleNamespace(vocabulary=NAMES), file=item)
    for place, number in ((1, 0.0), (3, [-0.0]), (1, OTHER)):
        stored = list(rows)
        which = 1 if number is OTHER else 0
        stored[which] = (*rows[which][:place], number, *rows[which][place + 1 :])
        for name, found in (("same", rows), ("other", stored)):
            pq.write_table(as_table(found), tmp_path / name)
        same, other = (StateCheckpoint(tmp_path / name, ("d",), 1, 2) for name in ("same", "other"))
        assert _difference(same, [readable]) is None
        assert "as it is recorded" in (_difference(other, [readable]) or "")


# --- those on Spark ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("histories", [20, pytest.param(2_000, marks=pytest.mark.soak)])
def test_on_spark(engine: SparkEngine, tmp_path: Path, histories: int) -> None:
    """Many small tables at a time, each told apart by the number of its history."""
    from pyspark.sql import functions as F

    from odfchain.spark.types import latest_rows
    from odfchain.transform import stream_flow as stream

    parts = [table(seed, 1 + seed % 12) for seed in range(histories)]
    starts = np.cumsum([0, *map(len, parts)])
    rows = [row for part in parts for row in part]
    numbers = np.repeat(np.arange(histories), [len(part) for part in parts])
    pq.write_table(as_table(rows).append_column("h", pa.array(numbers)), tmp_path / "rows.parquet")
    frame = engine.session.read.parquet(str(tmp_path / "rows.parquet")).coalesce(1)
    frame = frame.withColumn("offset", F.col("offset").cast("bigint"))

    def on_spark(found: Any) -> list[int]:
        return sorted(row["offset"] for row in found.select("offset").collect())

    def one_by_one(key: tuple[str, ...], which: int) -> list[int]:
        found = zip(starts, parts, strict=False)
        return [int(start) + offset for start, part in found for offset in walked(part, key)[which]]

    for key in [key for key in KEYS if "m" not in key]:  # Spark has no order of maps, and no key is one
        assert on_spark(latest_rows(frame, ("h", *key), NAMES)) == one_by_one(key, 0)
    back = frame.withColumn("back", stream.takes_back(F.col("op")))
    kept, in_vain = stream.in_force(back, ["h", *VALUES.names])
    assert on_spark(kept) == one_by_one((), 0)
    assert on_spark(in_vain) == one_by_one((), 1)
    # what the engine has emitted itself is taken back as it was recorded
    exact, _ = stream.in_force(back, ["h", *VALUES.names], to_the_bit=True)
    assert on_spark(exact) != on_spark(kept)
