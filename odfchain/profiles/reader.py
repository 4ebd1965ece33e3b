"""Reading a profile from the bytes that it was published as; they may be anybody's.

What reads profiles only (`diff --profile`) loads neither Arrow nor numpy for it. Source: RFC-040.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Never, TypeVar

from odfchain.errors import CodecError, ManifestError, UnsupportedVersionError
from odfchain.text import TEXT_CHARACTERS, cut, one_line

# The fields of a profile. Documents are untrusted: a field that is missing, unknown or of another type is
# refused by its path, and so are contradictions (edges without bins, quantiles that descend) (RFC-040).

N = TypeVar("N", int, float)
_Reader = Callable[["_Node"], object]
_HASH = re.compile("f1620[0-9a-f]{64}")
_INTEGER = re.compile("-?[0-9]{16,80}")
_QUANTILES = 101
BINS, TOP_VALUES, LISTED_LANGUAGES = 50, 50, 10
_SKETCH_BYTES = 8_192
KMV_SIZE = 4_096
"""The smallest distinct row hashes that a profile has."""
PERCENTILES = (5, 25, 50, 75, 95, 99)
DESCRIPTIVE = (
    "created_by", "dataset_name", "dataset_path", "source_type", "description", "tags", "pipeline_stage",
    "transform_description",
)  # fmt: skip
"""The publisher's words: hashed and signed, never computed again."""


_LARGEST, _LARGEST_REAL = 1 << 96, sys.float_info.max


@dataclass(frozen=True, slots=True)
class _Node:
    """A value inside a document and the path to it; errors name the path."""

    value: Any
    path: str = ""

    def __getitem__(self, name: str) -> _Node:
        if not isinstance(self.value, Mapping):
            self.refuse("an object")
        path = f"{self.path}.{name}" if self.path else name
        if name not in self.value:
            raise ManifestError("the field is missing", path=path)
        return _Node(self.value[name], path)

    def items(self) -> list[_Node]:
        if not isinstance(self.value, Sequence) or isinstance(self.value, str | bytes):
            self.refuse("a list")
        return [_Node(item, f"{self.path}[{index}]") for index, item in enumerate(self.value)]

    def word(self, *allowed: str) -> str:
        if not isinstance(self.value, str) or self.value not in allowed:
            self.refuse(" or ".join(f'"{word}"' for word in allowed))
        return self.value

    def refuse(self, expected: str) -> Never:
        raise ManifestError(f"{expected} is expected", path=self.path)


def by_share(counts: Mapping[str, N]) -> list[tuple[str, N]]:
    """Values and their numbers, the commonest first, then in order of the values."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def published_hashes(data: bytes) -> tuple[int, ...]:
    """The row hashes of a profile, from little-endian numbers of 8 bytes.

    Raises:
        ValueError: they are no ascending hashes, or too many.
    """
    # plain Python: comparing profiles must not load numpy
    if len(data) % 8 or len(data) > 8 * KMV_SIZE:
        raise ValueError("not the smallest hashes of rows")
    found = struct.unpack(f"<{len(data) // 8}Q", data)
    if any(after <= before for before, after in pairwise(found)):
        raise ValueError("hashes of rows are not in order")
    return found


def _check_profile(tree: object) -> None:
    top = _Node(tree)
    _fields(top, _TOP)
    hidden = {node.value for node in top["odf"]["hidden"].items()}
    names = [node["name"].value for node in top["columns"].items()]
    statistics = top["column_stats"]
    if len(set(map(str, names))) != len(names) or top["num_columns"].value != len(names):
        top["columns"].refuse("as many different columns as `num_columns` says")
    _only(statistics, map(str, names))
    if not hidden <= set(names):
        top["odf"]["hidden"].refuse("names of columns")
    for name in names:
        _column(statistics[str(name)], hidden=name in hidden)


def _column(node: _Node, *, hidden: bool) -> None:
    kind = node["kind"].word(*_KINDS)
    _fields(node, COUNTS | ({} if hidden else _KINDS[kind]) | ON_OCCASION)


def _fields(node: _Node, readers: Mapping[str, _Reader]) -> None:
    # exactly these fields: unknown ones are refused
    _only(node, readers)
    for name, read in readers.items():
        if name in node.value or (name not in ON_OCCASION and name != "parent_snapshot_id"):
            read(node[name])


def _only(node: _Node, names: Iterable[str]) -> None:
    if not isinstance(node.value, Mapping):
        node.refuse("an object")
    if unknown := sorted(set(map(str, node.value)) - set(names))[:1]:
        raise ManifestError("the field is not known", path=node[unknown[0]].path)


# --- values ----------------------------------------------------------------------------------------


def _passes(*tests: tuple[str, Callable[[Any], bool]]) -> _Reader:
    # a value that passes these tests; what is expected is the name of the first that it fails
    def check(node: _Node) -> None:
        for expected, test in tests:
            if not test(node.value):
                node.refuse(expected)

    return check


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_REAL


def _is_large(value: object) -> bool:
    # integers beyond the exact range of doubles are text
    return isinstance(value, str) and _INTEGER.fullmatch(value) is not None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


_text = _passes(("text", lambda value: isinstance(value, str)))
_flag = _passes(("true or false", lambda value: isinstance(value, bool)))
_hash = _passes(("a hash", lambda value: isinstance(value, str) and _HASH.fullmatch(value) is not None))
_real = ("a number", _is_real)
_number = _passes(("a number", lambda value: _is_large(value) or _is_real(value)))
_share = _passes(_real, ("a number between 0 and 1", lambda value: 0 <= value <= 1))
_small_count = _passes(
    ("a whole number", _is_whole), ("a number that is not negative", lambda value: value >= 0)
)


def _count(node: _Node) -> None:
    if not _is_large(node.value) or str(node.value).startswith("-"):
        _small_count(node)


def _or_null(read: _Reader) -> _Reader:
    return lambda node: read(node) if node.value is not None else None


def _list_of(read: _Reader, most: int | None = None) -> _Reader:
    def check(node: _Node) -> None:
        items = node.items()
        if most is not None and len(items) > most:
            node.refuse(f"at most {most:,} items")
        for item in items:
            read(item)

    return check


def _map_of(read: _Reader, most: int | None = None) -> _Reader:
    def check(node: _Node) -> None:
        if not isinstance(node.value, Mapping) or (most is not None and len(node.value) > most):
            node.refuse("an object" if most is None else f"an object of at most {most:,} fields")
        for name in node.value:
            read(node[str(name)])

    return check


def _ascending(node: _Node) -> None:
    _list_of(_passes(_real))(node)
    found = [item.value for item in node.items()]
    if any(after < before for before, after in pairwise(found)):
        node.refuse("numbers that ascend")


def _quantiles(node: _Node) -> None:
    _ascending(node)
    if len(node.items()) not in (0, _QUANTILES):
        node.refuse(f"{_QUANTILES} numbers, or none")


def _percentiles(node: _Node) -> None:
    if node.value != {}:
        _fields(node, {f"p{percent}": _number for percent in PERCENTILES})


def _histogram(node: _Node) -> None:
    _fields(node, {"bin_edges": _ascending, "counts": _list_of(_small_count, BINS)})
    edges, counts = len(node["bin_edges"].items()), len(node["counts"].items())
    if edges != (counts + 1 if counts else 0):
        node.refuse("one edge more than bins")


def _decoded(node: _Node, most: int) -> bytes:
    try:
        data = base64.b64decode(str(node.value), validate=True)
    except (ValueError, binascii.Error):
        node.refuse("base64")
    if len(data) > most:
        node.refuse(f"at most {most:,} bytes")
    return data


def _hashes(node: _Node) -> None:
    _text(node)
    try:
        published_hashes(_decoded(node, _SKETCH_BYTES * 4))
    except ValueError:
        node.refuse("the smallest hashes of rows, in order")


def _sketch(node: _Node) -> None:
    _text(node)
    _decoded(node, _SKETCH_BYTES)


def _declared(node: _Node) -> None:
    _fields(node, {"name": _text, "dtype": _text, "nullable": _flag})


def _odf(node: _Node) -> None:
    _fields(
        node,
        {
            "dataset_id": _text, "sequence_number": _count, "num_records": _count,
            "rows": lambda rows: rows.word("state"), "languages": _or_null(_text), "hidden": _list_of(_text),
        },
    )  # fmt: skip


COUNTS: dict[str, _Reader] = {
    "kind": _text, "null_count": _count, "null_fraction": _share, "num_unique": _count,
}  # fmt: skip
ON_OCCASION: dict[str, _Reader] = {"estimated": _list_of(_text, 8), "non_finite_count": _count}
FIGURES = {"mean": "mean", "std": "standard deviation", "range_days": "days"}
"""Figures that pages show one by one, and their labels."""
LENGTHS = [f"{of}_{what}" for of in ("avg", "min", "max") for what in ("char_length", "token_count")]
_VALUES: dict[str, _Reader] = {"top_values": _map_of(_small_count, TOP_VALUES), "top_values_coverage": _share}
_KINDS: dict[str, dict[str, _Reader]] = {
    "numeric": {
        **dict.fromkeys(("mean", "std", "min", "max"), _or_null(_number)),
        "percentiles": _percentiles, "quantiles": _quantiles, "histogram": _histogram,
    },
    "string": {
        **_VALUES, **dict.fromkeys(LENGTHS, _or_null(_number)),
        "detected_languages": _map_of(_share, LISTED_LANGUAGES),
    },
    "datetime": {
        "min": _or_null(_text), "max": _or_null(_text), "range_days": _or_null(_number),
    },
    "boolean": _VALUES,
    "other": {},
}  # fmt: skip
_TOP: dict[str, _Reader] = {
    "format_version": _text, "snapshot_id": _hash, "parent_snapshot_id": _hash, "source_hash": _hash,
    "schema_hash": _hash, "num_columns": _count, "columns": _list_of(_declared),
    "num_rows": _small_count, "duplicate_row_fraction": _share, "near_duplicate_estimate": _or_null(_share),
    **dict.fromkeys(("constant_columns", "high_null_columns"), _list_of(_text)),
    "created_at": _text, **{name: _map_of(_text) if name == "tags" else _text for name in DESCRIPTIVE},
    "row_minhash": _hashes, "row_hyperloglog": _sketch, "column_stats": _map_of(lambda _: None),
    "odf": _odf,
}  # fmt: skip


FORMAT_VERSION = "1"
MOST_BYTES = 64 * 1024 * 1024
_LARGEST_INTEGER = 2**53 - 1


def read_profile(data: bytes) -> dict[str, Any]:
    """The document of a profile's bytes; its canonical text is that of the profile again.

    Raises:
        CodecError: it is none, and where it is not.
        UnsupportedVersionError: it has another format version.
    """
    if len(data) > MOST_BYTES:
        raise CodecError(f"a profile of {len(data):,} bytes, at most {MOST_BYTES:,} are read")
    try:
        tree = json.loads(
            data, parse_int=_integer, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_object
        )
        json.dumps(tree, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a profile: {one_line(str(error))}") from None
    if not isinstance(tree, dict) or "format_version" not in tree:
        raise CodecError("not a profile: it has no format_version")
    if tree["format_version"] != FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"a profile of format {one_line(str(tree['format_version']))}, {FORMAT_VERSION} is read",
            hint="make it again with this program",
        )
    try:
        _check_profile(tree)
    except ManifestError as error:
        raise CodecError(f"not a profile: {one_line(error.path or '')}: {error.message}") from None
    return tree


def _integer(text: str) -> int | float:
    # larger integers are text; digits alone are then a double that is whole
    return int(text) if len(text) < 16 or abs(int(text)) <= _LARGEST_INTEGER else _finite(text)


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:40]} is not a number that a profile has")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


# The fields of a profile that are compared. Numbers beyond the exact range of doubles are strings in profiles
# and doubles here (RFC-040, RFC-041).


class ComparedColumn:
    """The statistics of a column; what its kind has none of is empty, or None."""

    def __init__(self, declared: Mapping[str, Any], found: Mapping[str, Any], *, hidden: bool) -> None:
        self.name, self.dtype, self.nullable = declared["name"], declared["dtype"], declared["nullable"]
        self.kind, self.hidden = found["kind"], hidden
        self.null_count: int = found["null_count"]
        self.null_fraction: float = found["null_fraction"]
        self.num_unique, self.estimated = found["num_unique"], found.get("estimated", ())
        # of 0, 1, … 100 %, or none
        self.quantiles: tuple[float, ...] = tuple(map(float, found.get("quantiles", ())))
        # times have none that are compared
        known = (*FIGURES, *LENGTHS) if self.kind != "datetime" else ()
        self.figures = {name: float(found[name]) for name in known if found.get(name) is not None}
        # the bounds of times are texts
        self.low, self.high = (
            _double(found.get(name)) if self.kind == "numeric" else found.get(name) for name in ("min", "max")
        )
        histogram = found.get("histogram") or {"bin_edges": (), "counts": ()}
        self.edges: tuple[float, ...] = tuple(map(float, histogram["bin_edges"]))
        self.counts: tuple[int, ...] = tuple(histogram["counts"])
        self.top_values: Mapping[str, int] = found.get("top_values", {})
        # the share of all values that the common ones are; None where there are no such
        self.coverage: float | None = found.get("top_values_coverage")
        self.languages: Mapping[str, float] = found.get("detected_languages", {})


def _double(value: float | str | None) -> float | None:
    return None if value is None else float(value)


class ComparedProfile:
    """What is compared of a profile that was computed here or checked by `read_profile`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        odf, statistics = document["odf"], document["column_stats"]
        self.dataset_id = cut(odf["dataset_id"], TEXT_CHARACTERS)
        self.name = cut(document["dataset_name"], TEXT_CHARACTERS)
        self.snapshot_id = cut(document["snapshot_id"], TEXT_CHARACTERS)
        self.sequence_number: int = odf["sequence_number"]
        self.created_at = cut(document["created_at"], TEXT_CHARACTERS)
        self.rows: int = document["num_rows"]
        self.duplicate_row_fraction: float = document["duplicate_row_fraction"]
        self.row_hashes = published_hashes(base64.b64decode(document["row_minhash"]))
        self.columns = {
            name: ComparedColumn(column, statistics[name], hidden=name in odf["hidden"])
            for column in document["columns"]
            for name in (column["name"],)
        }


def share(quantiles: Sequence[float], x: float, *, below: bool) -> float:
    """The share of values that are below x, or not above it: linear between two quantiles."""
    steps = len(quantiles) - 1
    first, after = bisect.bisect_left(quantiles, x), bisect.bisect_right(quantiles, x)
    if first == after:  # between two quantiles
        if first == 0:
            return 0.0
        if first > steps:
            return 1.0
        low, high = quantiles[first - 1], quantiles[first]
        return (first - 1 + (x - low) / (high - low)) / steps
    if below:
        return 0.0 if first == 0 else first / steps
    return (after - 1) / steps
