"""Profiles of others: what is one is read and can be shown; whatever else is refused in words, and quickly."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from odfchain.api.snapshots import Profile
from odfchain.errors import CodecError, OdfchainError, UnsupportedVersionError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.profiles.drift import compare_profiles
from odfchain.profiles.pages import line_of, profile_page
from odfchain.profiles.reader import read_profile
from tests.kit.made_profiles import profile_of_table

SOME = (
    "", "x", "\x1b[2J", "f1620" + "0" * 64, 0, -1, 3, 1.5, 2**60, 1e300, True, None, [], [1], {}, {"a": 1},
)  # fmt: skip


def table() -> pa.Table:
    return pa.table(
        {
            "text": pa.array(["the quick brown fox jumps over the lazy dog", "b", None] * 4),
            "number": pa.array([1.5, -0.0, math.nan] * 4),
            "large": pa.array([2**53 + 1, -(2**62), 5] * 4),
            "far": pa.array([1e16, 1e300, -1e22] * 4),
            "time": pa.array([dt.datetime(2024, 1, n, tzinfo=dt.UTC) for n in range(1, 13)]),
            "flag": pa.array([True, False, None] * 4),
            "list": pa.array([[1], [], None] * 4),
            "nothing": pa.nulls(12, pa.float64()),
        }
    )


VALID = profile_of_table(table(), languages=True, tags={"a": "b"})
DOCUMENT: dict[str, Any] = json.loads(canonical_bytes(VALID))


@pytest.mark.parametrize(
    "made",
    [
        VALID,
        profile_of_table(table(), hidden=("text", "number")),
        profile_of_table(table().slice(0, 0), block=0),
    ],
)
def test_what_is_made_here_is_read_and_is_the_same_again(made: dict[str, Any]) -> None:
    data = canonical_bytes(made)
    assert canonical_bytes(read_profile(data)) == data
    assert canonical_bytes(read_profile(json.dumps(json.loads(data), indent=1).encode())) == data


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    if path:
        yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in children:
        yield from places(value, (*path, name))


PLACES = list(places(DOCUMENT))


def changed(rng: random.Random) -> dict[str, Any]:
    """The document with one value replaced, removed or added."""
    document = copy.deepcopy(DOCUMENT)
    *above, name = rng.choice(PLACES)
    inside = document
    for step in above:
        inside = inside[step]
    match rng.randrange(4):
        case 0:
            del inside[name]
        case 1 if isinstance(inside, dict):
            inside[f"{name}2"] = inside[name]
        case 2 if isinstance(inside, list):
            inside.insert(rng.randrange(len(inside) + 1), rng.choice(SOME))
        case _:
            inside[name] = rng.choice(SOME)
    return document


def show(document: dict[str, Any]) -> None:
    """Everything that is done with a profile that was read."""
    assert profile_page(document).startswith("<!DOCTYPE html>")
    for column in document["columns"]:
        assert line_of(column, document["column_stats"][column["name"]])
    assert canonical_bytes(document)
    assert repr(Profile(document))
    compare_profiles(VALID, document).to_document()
    compare_profiles(document, VALID).to_document()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_can_be_shown_and_compared(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(60):
        data = json.dumps(changed(rng)).encode()
        try:
            document = read_profile(data)
        except CodecError as error:
            assert error.exit_code == 3
            assert "\x1b" not in str(error)
            refused += 1
        else:
            show(document)
    assert 20 < refused < 60


@pytest.mark.parametrize("seed", range(2))
def test_bytes_are_refused_in_words(seed: int) -> None:
    rng, data = random.Random(seed), canonical_bytes(VALID)
    for _ in range(100):
        mutant = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            mutant[rng.randrange(len(mutant))] = rng.randrange(256)
        try:
            found = read_profile(bytes(mutant))
        except OdfchainError as error:
            assert error.exit_code == 3
        else:
            canonical_bytes(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(surprise=1), "unknown property 'surprise'"),
        (lambda d: d.pop("num_rows"), "the property 'num_rows' is missing"),
        (lambda d: d["column_stats"]["number"].update(mean="1.5"), r"column_stats.number.mean: must be a number"),
        (lambda d: d["column_stats"]["number"]["quantiles"].pop(), "101 numbers, or none"),
        (lambda d: d["column_stats"]["number"]["quantiles"].reverse(), "numbers that ascend"),
        (lambda d: d["column_stats"]["number"]["histogram"]["counts"].pop(), "one edge more than bins"),
        (lambda d: d["column_stats"].pop("flag"), "column_stats: the property 'flag' is missing"),
        (lambda d: d["columns"].append(d["columns"][0]), "as many different columns"),
        (lambda d: d["odf"].update(hidden=["other"]), "names of columns"),
        (lambda d: d["odf"].update(hidden=["number"]), r"column_stats.number: unknown property 'histogram'"),
        (lambda d: d["odf"].update(rows="records"), "odf.rows: must be 'state'"),
        (lambda d: d.update(row_minhash="AAAA"), "smallest hashes of rows"),
        (lambda d: d.update(snapshot_id="f1620zz"), "snapshot_id: must be a hash"),
        (lambda d: d.update(duplicate_row_fraction=1.5), "between 0 and 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: Any, message: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    with pytest.raises(CodecError, match=f"not a profile: .*{message}"):
        read_profile(json.dumps(document).encode())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "\xff", '{"format_version":"1","format_version":"1"}', '{"format_version":"1","x":NaN}',
     '{"format_version":"1","x":1e999}', '{"format_version":"1","x":' + "9" * 400 + "}", "[" * 100_000,
     '{"format_version":"1","x":"\\ud800"}'],
)  # fmt: skip
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(CodecError, match="not a profile"):
        read_profile(text.encode("latin-1"))


def test_another_version_is_said_before_anything_else() -> None:
    with pytest.raises(UnsupportedVersionError, match="a profile of format 2, 1 is read"):
        read_profile(b'{"format_version":"2","anything":true}')
