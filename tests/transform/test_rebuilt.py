"""The difference that a rebuild records, without an engine: rows are counted, whatever their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import BadInputError
from odfchain.odf.arrow_schema import from_arrow
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.odf.transform_options import is_rebuilt, rebuilt, unmarked
from odfchain.slices.state import SliceFile, taken_back_in_vain
from odfchain.slices.writer import SliceSpec
from odfchain.transform.execute import write_difference
from tests.kit.root_rows import START, records, schema_with

NAMES = DatasetVocabulary()
SCHEMA = schema_with(pa.field("k", pa.string()), pa.field("v", pa.float64()))

Row = tuple[int, str | None, float | None]
"""Operation, key, value."""

values = st.tuples(
    st.sampled_from(["a", "b", None]), st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), None])
)


@st.composite
def changelogs(draw: st.DrawFn) -> list[Row]:
    """Rows in which whatever is taken back is in force."""
    rows: list[Row] = []
    force: list[tuple[str | None, float | None]] = []
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["add", "retract", "correct"]))
        if kind == "add" or not force:
            force.append(draw(values))
            rows.append((0, *force[-1]))
            continue
        old = force.pop(draw(st.integers(0, len(force) - 1)))
        rows.append((1 if kind == "retract" else 2, *old))
        if kind == "correct":
            force.append(draw(values))
            rows.append((3, *force[-1]))
    return rows


def net(rows: Sequence[Row]) -> Counter[str]:
    """How often each row is in force; NaN and -0.0 are values like others."""
    found: Counter[str] = Counter()
    for op, *rest in rows:
        found[repr(rest)] += 1 if op in (0, 3) else -1
    return +found


def write(folder: Path, name: str, rows: Sequence[Row], start: int, schema: pa.Schema = SCHEMA) -> SliceFile:
    ops, *columns = zip(*rows, strict=True)
    path = folder / name
    table = records(schema, start, ops, [START] * len(rows), *columns[: len(schema) - 4])
    pq.write_table(table, path)
    return SliceFile(path, NAMES, OffsetInterval(start=start, end=start + len(rows) - 1))


def difference(folder: Path, earlier: Sequence[SliceFile], made: SliceFile | None, start: int) -> list[Row]:
    spec = SliceSpec(SCHEMA.serialize().to_pybytes(), NAMES, start, 7, str(folder))
    facts = write_difference(earlier, made, from_arrow(SCHEMA), spec)
    if facts is None:
        return []
    table = pq.ParquetFile(facts.path).read()
    assert table["offset"].to_pylist() == list(range(start, start + facts.rows))
    return list(zip(table["op"].to_pylist(), table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


@given(old=changelogs(), new=changelogs(), cut=st.integers(0, 12))
def test_the_output_is_what_the_query_says(old: list[Row], new: list[Row], cut: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        pieces = [piece for piece in (old[:cut], old[cut:]) if piece]
        earlier, start = [], 0
        for index, piece in enumerate(pieces):
            earlier.append(write(folder, f"old-{index}", piece, start))
            start += len(piece)
        made = write(folder, "new", new, start) if new else None
        rows = difference(folder, earlier, made, start)
        assert net([*old, *rows]) == net(new)
        changed = (net(old) - net(new)).total() + (net(new) - net(old)).total()
        assert len(rows) == changed, "what is in both stays"
        assert [op for op, _, _ in rows] == sorted((op for op, _, _ in rows), reverse=True)
        if rows:
            last = write(folder, "last", rows, start)
            assert not len(taken_back_in_vain([*earlier, last], [last]))


def test_the_sign_of_a_zero_is_put_right_and_equal_rows_take_each_other_back(tmp_path: Path) -> None:
    old = write(tmp_path, "old", [(0, "a", -0.0), (0, "b", 0.0), (1, "b", -0.0)], 0)
    new = write(tmp_path, "new", [(0, "a", 0.0)], 3)
    assert repr(difference(tmp_path, [old], new, 3)) == repr([(1, "a", -0.0), (0, "a", 0.0)])
    assert difference(tmp_path, [old], old, 3) == []


def test_columns_that_the_output_did_not_have(tmp_path: Path) -> None:
    """An older slice lacks a column: there it is null."""
    old = write(tmp_path, "old", [(0, "a", None), (0, "b", None)], 0, SCHEMA.remove(5))
    new = write(tmp_path, "new", [(0, "a", None), (0, "b", 1.5)], 2)
    assert difference(tmp_path, [old], new, 2) == [(1, "b", None), (0, "b", 1.5)]


def test_a_slice_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"no slice")
    old = SliceFile(tmp_path / "old", NAMES, OffsetInterval(start=0, end=0))
    with pytest.raises(BadInputError, match="not a readable Parquet file"):
        difference(tmp_path, [old], None, 1)


def test_the_mark() -> None:
    plain = TransformSql(engine="spark", version="odfchain_1-spark_4.3.0", queries=(SqlQueryStep(query="x"),))
    marked = rebuilt(plain)
    assert marked.version == "odfchain_1-spark_4.3.0+rebuild"
    assert (is_rebuilt(plain), is_rebuilt(marked)) == (False, True)
    assert rebuilt(marked) == marked
    assert unmarked(marked) == unmarked(plain) == plain
    bare = TransformSql(engine="spark", queries=(SqlQueryStep(query="x"),))
    assert unmarked(rebuilt(bare)) == bare
