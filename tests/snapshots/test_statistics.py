"""Numbers of profiles and drift against the fixtures, and the same bytes for every cut and order."""

from __future__ import annotations

import base64
import functools
import hashlib
import operator
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import CodecError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.physical_hash import hash_bytes
from odfchain.profiles import drift, sketches
from odfchain.profiles.document import column_statistics, merkle_root, schema_hash
from odfchain.profiles.drift import jaccard
from odfchain.profiles.reader import published_hashes
from odfchain.profiles.sketches import (
    BandKeys,
    EncodedColumn,
    Hll,
    Kmv,
    band_keys,
    distinct_hashes,
    splitmix64,
)
from odfchain.profiles.state_totals import from_bytes, to_bytes
from odfchain.profiles.totals import Totals, column_seed, sampled
from tests.kit.snapshot_columns import column, fixture, type_of

PROFILES, DRIFT = fixture("profiles"), fixture("drift")


def cases(name: str, source: dict[str, Any] = PROFILES) -> Any:
    return pytest.mark.parametrize("case", source[name], ids=lambda case: case["id"])


def sha(data: bytes, begins: int = 8) -> tuple[str, str]:
    """How the digest begins and ends."""
    digest = hashlib.sha3_256(data).hexdigest()
    return digest[:begins], digest[-4:]


def totals_of(table: pa.Table, offsets: Any = None) -> Totals:
    found = Totals(table.schema)
    for batch in table.to_batches():
        found.update(batch, np.arange(len(batch)) if offsets is None else offsets)
    return found


@cases("columns")
def test_statistics_of_columns(case: dict[str, Any]) -> None:
    totals = totals_of(pa.table({"c": column(case["type"], case["values"])}))
    found = column_statistics(totals.columns[0], totals.sampled_values(totals.columns[0]))
    if "bins" in case["expect"]:
        found["bins"] = [number for number, count in enumerate(found["histogram"]["counts"]) if count]
    for path, expected in case["expect"].items():
        assert functools.reduce(operator.getitem, path.split("."), found) == expected, path


@cases("schema_hashes")
def test_hashes_of_schemas(case: dict[str, Any]) -> None:
    assert str(schema_hash(pa.schema([(n, type_of(k)) for n, k in case["columns"]]))) == case["expect"]


@cases("source_hashes")
def test_hashes_of_sources(case: dict[str, Any]) -> None:
    found = merkle_root([hash_bytes(bytes([n])) for n in range(case["slices"])]).digest.hex()
    assert (found[:8], found[-4:]) == (case["begins"], case["ends"])


@cases("value_hashes")
def test_hashes_of_values(case: dict[str, Any]) -> None:
    assert {name: column_seed(name) for name in PROFILES["seeds"]} == PROFILES["seeds"]
    found = EncodedColumn.of(column(case["type"], [case["value"]]), column_seed(case["column"]))
    assert found.hashes.tolist() == [case["expect"]]


def row_hashes(rows: pa.RecordBatch) -> Any:
    found = np.zeros(len(rows), np.uint64)
    for name, values in zip(rows.schema.names, rows.columns, strict=True):
        found ^= EncodedColumn.of(values, column_seed(name)).hashes
    return found


def test_hashes_of_rows() -> None:
    case = PROFILES["rows"]
    batch = pa.table({name: column(*given) for name, given in case["columns"].items()}).to_batches()[0]
    found = row_hashes(batch)
    assert found.tolist() == case["hashes"]
    assert base64.b64encode(Kmv.of(found).to_bytes()).decode() == case["minhash"]
    hll = Hll()
    assert len(hll.to_bytes()) == 8
    hll.update(found)
    assert sha(hll.to_bytes()) == (case["hll_begins"], case["hll_ends"])
    assert round(hll.estimate, 4) == case["estimate"]
    more = batch.append_column("later", pa.nulls(3, pa.string()))
    assert row_hashes(more).tolist() == case["hashes"], "a column without values changes nothing"


def of_ids(first: int, end: int) -> Any:
    return row_hashes(pa.RecordBatch.from_pydict({"id": np.arange(first, end)}))


def test_sketches_of_many_rows() -> None:
    case = PROFILES["many"]
    hashes = of_ids(0, case["rows"])
    kmv, hll = Kmv.of(hashes), Hll()
    hll.update(hashes)
    assert (len(kmv.hashes), int(kmv.hashes[0])) == (case["kmv"], case["smallest"])
    assert sha(kmv.to_bytes()) == (case["kmv_begins"], case["kmv_ends"])
    assert sha(hll.to_bytes(), 10) == (case["hll_begins"], case["hll_ends"])
    assert round(hll.estimate, 2) == case["hll_estimate"]
    again = Hll()
    again.update(hll.hashes)
    assert again.to_bytes() == hll.to_bytes()
    assert kmv.duplicate_fraction == 0


@cases("jaccard")
def test_likeness_of_rows(case: dict[str, Any]) -> None:
    one, other = (published_hashes(Kmv.of(of_ids(*case[side])).to_bytes()) for side in ("one", "other"))
    assert jaccard(one, other) == case["expect"]


def test_the_sample_of_rows() -> None:
    case = PROFILES["sample"]
    assert splitmix64(np.zeros(1, np.uint64)).tolist() == [case["splitmix64_of_0"]]
    found = sampled(np.arange(case["offsets"]))
    assert found[:4].tolist() == case["begins"]
    digest = sha(np.sort(found).astype("<u8").tobytes())
    assert digest == (case["digest_begins"], case["digest_ends"])


def curve(given: dict[str, float]) -> list[float]:
    if "constant" in given:
        return [float(given["constant"])] * 101
    return [given["from"] + (given["to"] - given["from"]) * n / 100 for n in range(101)]


@cases("curves", DRIFT)
def test_distances_of_curves(case: dict[str, Any]) -> None:
    one, other = curve(case["one"]), curve(case["other"])
    assert round(drift.ks(one, other), 6) == case["ks"]
    assert round(drift.psi_of_quantiles(one, other), 4) == case["psi"]
    if "w1" in case:
        assert drift.w1(one, other) == pytest.approx(case["w1"])


@cases("shares", DRIFT)
def test_distances_of_shares(case: dict[str, Any]) -> None:
    one, other = case["one"], case["other"]
    shares = drift.shares_of_values(one, sum(one.values()), other, sum(other.values()), whole=(True, True))
    assert round(drift.jensen_shannon(*shares), 6) == case["js"]
    if "linf" in case:
        assert round(drift.largest_difference(*shares), 6) == case["linf"]


rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 3)),
        st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 1.5])),
        st.one_of(st.none(), st.text(max_size=3), st.sampled_from(["a b", "a"])),
        st.one_of(st.none(), st.booleans()),
        st.one_of(st.none(), st.lists(st.integers(0, 2), max_size=2)),
    ),
    max_size=30,
)
KINDS = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_(), "l": pa.list_(pa.int64())}
SCHEMA = pa.schema(list(KINDS.items()))


def totals_of_rows(chosen: list[tuple[int, Any]]) -> Totals:
    """Of rows with their offsets."""
    table = pa.table(
        [pa.array([row[n] for _, row in chosen], field.type) for n, field in enumerate(SCHEMA)], schema=SCHEMA
    )
    return totals_of(table, np.array([offset for offset, _ in chosen], np.uint64))


def facts(totals: Totals) -> bytes:
    stats = {c.name: column_statistics(c, totals.sampled_values(c)) for c in totals.columns}
    return canonical_bytes(stats) + totals.hll.to_bytes() + totals.kmv.to_bytes()


@given(rows, st.randoms(use_true_random=False), st.integers(1, 7))
def test_a_profile_follows_from_the_multiset_of_rows(
    given_rows: list[Any], chance: random.Random, size: int
) -> None:
    """P45: any batches, order and number of parts."""
    numbered = list(enumerate(given_rows))
    whole = facts(totals_of_rows(numbered))
    chance.shuffle(numbered)
    parts = [totals_of_rows(numbered[start : start + size]) for start in range(0, len(numbered) or 1, size)]
    chance.shuffle(parts)
    together = parts[0]
    for each in parts[1:]:
        together.merge(each)
    assert facts(together) == whole


def test_columns_of_more_values_than_are_counted() -> None:
    values = np.arange(40_000)
    table = pa.table(
        {"id": values, "s": pa.array([f"v{n % 20_000}" for n in values]), "k": pa.array(["x", "y"] * 20_000)}
    )
    whole = totals_of(table, values)
    cuts = [slice(start, start + 9_000) for start in range(0, 40_000, 9_000)]
    parts = [totals_of(table[cut], values[cut]) for cut in cuts]
    together = parts.pop(2)
    for each in parts:
        together.merge(each)
    assert facts(together) == facts(whole)
    number, text, few = (column_statistics(c, whole.sampled_values(c)) for c in whole.columns)
    assert number["estimated"] == ["histogram", "num_unique", "percentiles", "quantiles"]
    assert sum(number["histogram"]["counts"]) == 40_000
    assert (number["mean"], number["min"], number["max"]) == (19999.5, 0, 39_999)
    assert abs(number["percentiles"]["p50"] / 20_000 - 1) < 0.02
    assert abs(number["num_unique"] / 40_000 - 1) < 0.05
    assert (text["top_values"], text["top_values_coverage"]) == ({}, 0)
    assert few["top_values"] == {"x": 20_000, "y": 20_000}
    assert "estimated" not in few


@given(rows)
def test_totals_are_the_same_after_a_file(given_rows: list[Any]) -> None:
    found = totals_of_rows(list(enumerate(given_rows)))
    back = from_bytes(to_bytes(found), SCHEMA)
    assert facts(back) == facts(found)
    back.merge(from_bytes(to_bytes(found), SCHEMA))
    assert back.rows == 2 * found.rows
    with pytest.raises(CodecError):
        from_bytes(to_bytes(found)[:-40], SCHEMA.remove(0))


def test_rows_that_are_nearly_alike() -> None:
    case = PROFILES["near_duplicates"]
    seed = column_seed("t")
    keys, present = band_keys([EncodedColumn.of(pa.array(case["texts"]), seed)], [seed])
    bands = BandKeys()
    bands.add(keys, present)
    assert bands.share == case["expect"]
    assert int((keys[0] == keys[1]).sum()) == case["bands_of_the_first_two"]
    assert totals_of(pa.table({"t": case["texts"]})).kmv.duplicate_fraction == case["exact"]


def test_keys_of_rows_that_are_too_many_for_the_memory_are_compared_in_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(7)
    keys = chance.integers(0, 2**64, (500, 8), dtype=np.uint64)
    for one, other, band in ((3, 499, 0), (3, 250, 7), (10, 11, 5)):
        keys[one, band] = keys[other, band]
    present = chance.random(500) < 0.9
    present[[3, 499, 250, 10, 11]] = [True, True, True, True, False]

    def bands(part: int) -> BandKeys:
        found = BandKeys()
        for start in range(0, 500, part):
            found.add(keys[start : start + part], present[start : start + part])
        return found

    assert (bands(500).share, bands(500).is_small) == (3 / 500, True)
    monkeypatch.setattr(sketches, "_HELD_ROWS", 100)
    assert (bands(30).share, bands(30).is_small) == (3 / 500, False)
    both = bands(30)
    monkeypatch.setattr(sketches, "_HELD_ROWS", 10_000)
    both.merge(bands(500))
    assert both.share == 2 * present.sum() / 1_000, "every row is there twice"


def test_long_texts_are_shown_by_their_beginning_and_a_hash() -> None:
    long, longer = "ä" * 300, "b" * 1_500
    texts = [long, longer] * 4_000 + [f"id {n}" for n in range(17_000)]
    counted, estimated = totals_of(pa.table({"t": texts[:9_000]})), totals_of(pa.table({"t": texts}))
    shown = [f"{text[:200]}…#{xxhash.xxh64_hexdigest(text.encode())}" for text in (longer, long)]
    for totals in (counted, estimated, from_bytes(to_bytes(estimated), estimated.schema)):
        (column,) = totals.columns
        found = column_statistics(column, totals.sampled_values(column))
        assert list(found["top_values"])[:2] == shown or totals is not counted
        assert set(list(found["top_values"])[:2]) == set(shown)
        assert found["max_char_length"] == 1_500
        assert max(map(len, totals.sampled_values(column).to_pylist())) < 1_100
    assert found["estimated"] == ["num_unique", "top_values", "top_values_coverage"]
    assert abs(found["num_unique"] / 17_002 - 1) < 0.03


def test_lists_are_told_apart_by_what_the_logical_hash_feeds_for_them() -> None:
    lists = [
        [None, ["a"]],
        [["a"], None],
        [[], ["a"]],
        [["a"], []],
        [["", "a"]],
        [["a", ""]],
        [["a"]],
        [[]],
        [],
    ]
    found = totals_of(pa.table({"c": pa.array(lists, pa.list_(pa.list_(pa.string())))}))
    assert (found.columns[0].distinct, found.kmv.duplicate_fraction) == (len(lists), 0)


@pytest.mark.parametrize(
    ("value", "kind", "fed"),
    [
        ([1, None], pa.list_(pa.int16()), "0200000000000000" + "0100" + "00"),
        ([["a"], []], pa.list_(pa.list_(pa.string())), ("02" + "00" * 7) + ("01" + "00" * 7) + ("01" + "00" * 7 + "61") + "00" * 8),
        ({"x": 1, "y": "b"}, pa.struct([("x", pa.int32()), ("y", pa.string())]), "01000000" + "01" + "00" * 7 + "62"),
        ({"x": None, "y": ""}, pa.struct([("x", pa.int32()), ("y", pa.string())]), "00" + "00" * 8),
    ],
)  # fmt: skip
def test_nested_values_are_hashed_as_the_logical_hash_feeds_them(
    value: Any, kind: pa.DataType, fed: str
) -> None:
    seed = column_seed("c")
    found = distinct_hashes(pa.array([value, value], kind), seed)
    assert found.tolist() == [xxhash.xxh64_intdigest(bytes.fromhex(fed), seed)] * 2
