"""The state of a dataset: by one reading or by two, from slices or from a checkpoint, and what is refused."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import BadInputError, SchemaError
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.slices import state
from odfchain.slices.reader import open_parquet
from tests.kit.support import manifest

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace

NAMES = DatasetVocabulary()
SCHEMA = pa.schema(
    [
        ("offset", pa.uint64()), ("op", pa.uint8()), ("system_time", pa.timestamp("ms", "UTC")),
        ("event_time", pa.timestamp("ms", "UTC")), ("k", pa.float64()), ("s", pa.string()),
        ("n", pa.list_(pa.int64())),
    ]
)  # fmt: skip
Row = tuple[int, float | None, str | None, list[int] | None]
"""Operation and values; the offset is the row's place."""

ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([None, 0.0, -0.0, 1.5, math.nan]),
        st.sampled_from([None, "", "a"]),
        st.sampled_from([None, [], [1], [1, None]]),
    ),
    max_size=24,
)
KEYS = st.sampled_from([("k",), ("k", "s"), ("s", "n"), ("n",), ()])


def slices_of(folder: Path, rows: list[Row], cuts: list[int]) -> list[state.SliceFile]:
    """The rows as slices that are cut at these places."""
    table = pa.table(
        [
            range(len(rows)), [row[0] for row in rows], [0] * len(rows), [0] * len(rows),
            *([row[part] for row in rows] for part in (1, 2, 3)),
        ],
        schema=SCHEMA,
    )  # fmt: skip
    edges = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    found = []
    for start, end in itertools.pairwise(edges):
        path = folder / f"{start}.parquet"
        pq.write_table(table.slice(start, end - start), path)
        found.append(state.SliceFile(path, NAMES, OffsetInterval(start=start, end=end - 1)))
    return found


@given(rows=ROWS, cuts=st.lists(st.integers(0, 99), max_size=3), key=KEYS.filter(bool), data=st.data())
def test_one_reading_finds_the_same_state(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    cuts: list[int],
    key: tuple[str, ...],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("state")
    slices = slices_of(folder, rows, cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_AT_ONCE", data.draw(st.sampled_from([1, 200, 1 << 20])))
        patch.setattr(state, "_WHOLE", data.draw(st.sampled_from([3, 1 << 20])))
        found = state.newest_rows(slices, key, SCHEMA)
        expected = state.state(slices, key, SCHEMA)
        assert repr(found.to_pylist()) == repr(expected.to_pylist())
        if not slices:
            return
        # a checkpoint stands for the first slices, in whatever order
        count = data.draw(st.integers(1, len(slices)))
        before = state.state(slices[:count], key, SCHEMA)
        order = data.draw(st.permutations(range(len(before))))
        pq.write_table(before.take(pa.array(order, pa.int64())), folder / "state")
        interval = OffsetInterval(start=0, end=slices[count - 1].interval.end)
        stands = state.SliceFile(folder / "state", NAMES, interval)
        found = state.newest_rows([stands, *slices[count:]], key, SCHEMA)
        assert repr(found.to_pylist()) == repr(expected.to_pylist())
        pq.write_table(before, folder / "state")
        found = state.state([stands, *slices[count:]], key, SCHEMA)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([pa.array([3, None, 3, 5, None])], [0, 1, 0, 2, 1]),
        ([pa.array([2**63, 1, 2**63, 2**64 - 1, 1], pa.uint64())], [0, 1, 0, 2, 1]),
        ([pa.array([-(2**63), 1, 2**63 - 1, 1, 1])], [0, 1, 2, 1, 1]),
        ([pa.array([True, False, None, True, None])], [0, 1, 2, 0, 2]),
        ([pa.nulls(5)], [0, 0, 0, 0, 0]),
        ([pa.array(["", None, "", "a", None])], [0, 1, 0, 2, 1]),
        ([pa.array([1, 1, 2, 2, 1]), pa.array(["a", "b", "a", "b", "a"])], [0, 1, 2, 3, 0]),
        ([pa.array([10**9 * i for i in (1, 2, 3, 1, 3)]), pa.array([0, 0, 0, 1, 0])], [0, 1, 2, 3, 2]),
        ([pa.array([0.0, -0.0, math.nan, -math.nan, None])], [0, 0, 1, 1, 2]),
    ],
)
def test_codes_are_equal_where_keys_are(columns: list[pa.Array], expected: list[int]) -> None:
    names = [str(i) for i in range(len(columns))]
    whole = pa.table(columns, names)
    table = pa.concat_tables([whole.slice(0, 2), whole.slice(2)])  # codes do not depend on the pieces
    codes, count = state.codes_of(table, names)
    seen = list(dict.fromkeys(codes.tolist()))
    assert [seen.index(code) for code in codes.tolist()] == expected
    assert 0 <= min(codes) <= max(codes) < count


def test_columns_that_came_later_and_wider_types(tmp_path: Path) -> None:
    old = pa.table({"offset": pa.array([0, 1], pa.int64()), "op": pa.array([0, 0], pa.int32()), "k": [1, 2]})
    new = pa.table(
        {"offset": pa.array([2], pa.uint64()), "op": pa.array([3], pa.uint8()), "k": [2.0], "s": ["x"]}
    )
    slices = []
    for start, table in ((0, old), (2, new)):
        pq.write_table(table, tmp_path / str(start))
        interval = OffsetInterval(start=start, end=start + len(table) - 1)
        slices.append(state.SliceFile(tmp_path / str(start), NAMES, interval))
    schema = pa.schema([("s", pa.string()), ("k", pa.float64())])
    assert state.state(slices, ["k"], schema).to_pylist() == [{"s": None, "k": 1.0}, {"s": "x", "k": 2.0}]
    assert state.state([], ["k"], schema).to_pylist() == []


def test_keys_of_several_passes_may_have_wider_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = []
    for start, kind in ((0, pa.int32()), (50, pa.int64()), (100, pa.float64())):
        columns = {"offset": range(start, start + 50), "op": [0] * 50, "k": pa.array(range(50), kind)}
        pq.write_table(pa.table(columns), tmp_path / str(start), row_group_size=10)
        interval = OffsetInterval(start=start, end=start + 49)
        slices.append(state.SliceFile(tmp_path / str(start), NAMES, interval))
    opened: list[Path] = []

    def read(path: Path) -> Any:
        opened.append(path)
        return open_parquet(path)

    monkeypatch.setattr(state, "open_parquet", read)
    assert state.in_force(slices, ["k"]).tolist() == list(range(100, 150))
    assert len(opened) == 3, "what is small is read once"
    monkeypatch.setattr(state, "_AT_ONCE", 200)
    assert state.in_force(slices, ["k"]).tolist() == list(range(100, 150))
    assert len(opened) > 12


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"offset": [0, 9], "op": [0, 0], "k": [1, 2]}, "offsets that its block does not name"),
        ({"offset": [0, None], "op": [0, 0], "k": [1, 2]}, "is not a number"),
        ({"offset": [0, 1], "op": ["a", "b"], "k": [1, 2]}, "is not a number"),
        ({"offset": [0, 1], "op": [0, 0]}, "column `k` is not there"),
    ],
)
def test_slices_that_are_not_what_their_blocks_say(
    tmp_path: Path, columns: dict[str, list[Any]], message: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "slice")
    item = state.SliceFile(tmp_path / "slice", NAMES, OffsetInterval(start=0, end=1))
    with pytest.raises(BadInputError, match=message):
        state.state([item], ["k"], SCHEMA)


def test_a_dataset_s_state_is_its_checkpoint_and_its_verification(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odfchain.workspace import read_slices
    from odfchain.workspace.dataset_state import DatasetState
    from odfchain.workspace.read_slices import read_state

    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)
    (dataset,) = workspace.add(manifest("{kind: Snapshot, primaryKey: [city]}"))
    draw, path = random.Random(5), workspace.path / "in.csv"
    columns = ["offset", "op", "city", "population"]
    for _ in range(3):
        rows = {f"{city},{draw.randrange(3)}\n" for city in "ABCDEFGH" if draw.random() < 0.6}
        path.write_text("city,population\n" + "".join(sorted(rows)))
        dataset.ingest(path, allow_empty=True, allow_retract=True)
        there = DatasetState.read(dataset._files.chain)
        found = read_state(dataset._files, there, columns=["city", "population"])
        assert sorted(f"{row['city']},{row['population']}\n" for row in found.to_pylist()) == sorted(rows)
    stored = pq.read_table(dataset._files.checkpoints.verified_path(there.checkpoint.physical_hash))
    assert stored.select(columns).sort_by("offset").equals(read_state(dataset._files, there, columns=columns))
    assert dataset.verify().ok


def test_sources_that_disagree_on_the_key(workspace: Workspace) -> None:
    from odfchain.workspace.dataset_state import DatasetState

    text = manifest("{kind: Snapshot, primaryKey: [city]}")
    (dataset,) = workspace.add(
        text
        + text[text.index("    - kind: AddPush") :]
        .replace("default", "other")
        .replace("[city]", "[population]")
    )
    with pytest.raises(SchemaError, match="different primary keys"):
        _ = DatasetState.read(dataset._files.chain).primary_key
