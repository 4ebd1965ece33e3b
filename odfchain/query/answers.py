"""A signed answer: the query, its result, hashes of both, and a signature.

    {"input": {…, "datasets": [{id, alias, blockHash}]}, "output": {data, dataFormat}, "subQueries": [],
     "commitment": {inputHash, outputHash, subQueriesHash}, "proof": {type, verificationMethod, proofValue}}

It is the reference node's envelope, byte for byte. `engine` is next to it, unsigned: it says which version
of the engine computed the answer, since another one may compute it otherwise.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from odfchain.chain.statements import Problem, check_public_key, read_regular, verify_signature
from odfchain.errors import InvalidIdError, QueryError, SignatureError
from odfchain.lazy import pa, pc
from odfchain.odf.arrow_schema import mapped
from odfchain.odf.block_codec import shortest_text
from odfchain.odf.canonical_json import unique_members
from odfchain.odf.identity import DatasetId, DatasetKey, DidKey, Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage import fsio
from odfchain.text import one_line

if TYPE_CHECKING:
    from odfchain.query.results import QueryResult


# The columns of an answer as the reference node writes them: Arrow's schema as its Rust library has it.

SCHEMA_FORMAT = "ArrowJson"

_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
# Arrow's names of types, and of the units of intervals, by the names of their types in Python.
_PLAIN = {
    "null": "Null", "bool": "Boolean", "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64",
    "uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
    "halffloat": "Float16", "float": "Float32", "double": "Float64",
    "string": "Utf8", "large_string": "LargeUtf8", "string_view": "Utf8View",
    "binary": "Binary", "large_binary": "LargeBinary", "binary_view": "BinaryView",
    "date32[day]": "Date32", "date64[ms]": "Date64",
}  # fmt: skip
_INTERVAL_UNITS = {
    "month_interval": "YearMonth",
    "day_time_interval": "DayTime",
    "month_day_nano_interval": "MonthDayNano",
}


def _field(column: pa.Field) -> dict[str, Any]:
    found = {"data_type": _type(column.type), "dict_id": 0, "dict_is_ordered": False, "metadata": {}}
    return found | {"name": column.name, "nullable": column.nullable}


def _type(kind: pa.DataType) -> Any:
    from pyarrow import types as t

    if plain := _PLAIN.get(str(kind)):
        return plain
    if t.is_timestamp(kind):
        return {"Timestamp": [_UNITS[kind.unit], kind.tz]}
    if t.is_time(kind):
        return {"Time32" if t.is_time32(kind) else "Time64": _UNITS[kind.unit]}
    if t.is_duration(kind):
        return {"Duration": _UNITS[kind.unit]}
    if t.is_decimal(kind):
        return {f"Decimal{kind.bit_width}": [kind.precision, kind.scale]}
    if t.is_fixed_size_binary(kind):
        return {"FixedSizeBinary": kind.byte_width}
    if t.is_list(kind) or t.is_large_list(kind):
        return {"List" if t.is_list(kind) else "LargeList": _field(kind.value_field)}
    if t.is_list_view(kind) or t.is_large_list_view(kind):
        return {"ListView" if t.is_list_view(kind) else "LargeListView": _field(kind.value_field)}
    if (interval := _INTERVAL_UNITS.get(str(kind))) is not None:
        return {"Interval": interval}
    if t.is_fixed_size_list(kind):
        return {"FixedSizeList": [_field(kind.value_field), kind.list_size]}
    if t.is_struct(kind):
        return {"Struct": [_field(kind.field(i)) for i in range(kind.num_fields)]}
    if t.is_map(kind):
        entry = pa.field("entries", pa.struct([kind.key_field, kind.item_field]), nullable=False)
        return {"Map": [_field(entry), kind.keys_sorted]}
    if t.is_dictionary(kind):
        return {"Dictionary": [_type(kind.index_type), _type(kind.value_type)]}
    message = f"the type {one_line(str(kind), 80)} has no name in {SCHEMA_FORMAT}"
    raise QueryError(message, hint="cast the column to another")


# JSON as the reference node hashes and writes it: numbers keep their text.
# Not the canonical form of attestations (`odfchain.odf.canonical_json`, RFC 8785): non-ASCII characters are
# escaped, and doubles have their shortest digits, plain from 1e-5 to below 1e16.

DEPTH = 64
"""Lists and objects within each other [levels]; answers of nodes have some five."""
VALUES = 5_000_000
"""Values of one document [count], by its commas and brackets."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def canonical(value: Any) -> bytes:
    """The one text that is hashed and signed: members by name, no blanks, ASCII."""
    return _text(value, sorts=True, quoted=encode_basestring_ascii).encode("ascii")


def written(value: Any) -> str:
    """The text that is sent and kept: members in their own order, characters as they are."""
    return _text(value, sorts=False, quoted=encode_basestring)


def _text(value: Any, *, sorts: bool, quoted: Callable[[str], str]) -> str:
    parts: list[str] = []
    put = parts.append

    def text(found: str) -> str:
        if not found.isascii() and _SURROGATE.search(found):
            raise ValueError("a text with half a character")
        return quoted(found)

    def write(found: Any, left: int) -> None:
        kind = type(found)
        if kind is str:
            put(text(found))
        elif kind is Number:
            put(found)
        elif found is None or kind is bool:
            put("null" if found is None else "true" if found else "false")
        elif kind is int:
            put(int.__repr__(found))
        elif not left:
            raise ValueError(f"lists and objects lie more than {DEPTH} levels deep")
        elif kind is dict:
            opening = "{"
            for name in sorted(found) if sorts else found:
                put(f"{opening}{text(name)}:")
                write(found[name], left - 1)
                opening = ","
            put("}" if found else "{}")
        elif kind in (list, tuple):
            put("[")
            for number, item in enumerate(found):
                if number:
                    put(",")
                write(item, left - 1)
            put("]")
        else:
            raise ValueError(f"JSON has no {kind.__name__}")

    write(value, DEPTH)
    return "".join(parts)


def read(data: bytes) -> Any:
    """Parse an untrusted JSON document; numbers are `Number`s.

    Raises:
        ValueError: it is not strict JSON, names a member twice, or has too many values.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > VALUES:
        raise ValueError(f"it has more than {VALUES:,} values")
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=unique_members, parse_float=Number, parse_int=Number,
            parse_constant=_no_number,
        )  # fmt: skip
    except RecursionError:
        raise ValueError(f"lists and objects lie more than {DEPTH} levels deep") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


# --- numbers --------------------------------------------------------------------------------------------


def double(value: float) -> Number | None:
    """A double by its shortest digits; None where it is not finite."""
    return _shortest(value, repr(abs(value)), -5, 15)


def single(value: float) -> Number | None:
    """A single, given as the double of the same value, by its own shortest digits; None as `double`."""
    import numpy as np

    return _shortest(value, np.format_float_scientific(np.float32(abs(value)), trim="-"), -6, 12)


def _shortest(value: float, text: str, least: int, most: int) -> Number | None:
    return Number(shortest_text(value, text, least, most, plus="+")) if math.isfinite(value) else None


FILE_BYTES = 16 << 20
"""A file with an answer [bytes]."""
QUERY_BYTES = 64 << 10
"""Size limit of the query [bytes]; a third party wrote it."""
DATASETS = 1_000
"""Datasets that it reads [count]."""
SIGNATURE = "Ed25519Signature2020"
_OUTPUT_BYTES = FILE_BYTES - (1 << 20)
_FEWER = "ask for fewer rows"

_PARTS = {"input", "output", "subQueries", "commitment", "proof", "engine"}
_HASHES = {"inputHash": "input", "outputHash": "output", "subQueriesHash": "subQueries"}
_INPUT = {"query", "queryDialect", "dataFormat", "include", "schemaFormat", "datasets", "skip", "limit"}
_DATASET = {"id", "alias", "blockHash"}
_PROOF = {"type", "verificationMethod", "proofValue"}
_SIGNED = re.compile("u[A-Za-z0-9_-]{86}")


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """A signed answer to a query; whether it is true is for `odfchain.verify_proof` to find out."""

    input: dict[str, Any]
    """The query and its blocks."""
    output: dict[str, Any] | None
    """The rows; None where they were left out."""
    commitment: dict[str, str]
    """The hashes of input, output and answers of others."""
    proof: dict[str, str]
    """Signature and signer."""
    sub_queries: list[Any] = field(default_factory=list)
    """Answers of others that it is made of; none here."""
    engine: str | None = None
    """The engine's version; not signed."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    result: QueryResult | None = field(default=None, compare=False)
    """The rows with their types, where the answer was computed here."""

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Answer:
        """The answer in a file, whose form was checked and nothing else."""
        found = read_regular(Path(path), FILE_BYTES, follow=True)
        if found is None:
            raise fsio.no_file(path)
        return read_answer(found[0], str(path))

    @property
    def query(self) -> str:
        """The SQL."""
        return str(self.input["query"])

    @property
    def datasets(self) -> dict[str, tuple[DatasetId, Multihash]]:
        """The dataset and block of each name in the query."""
        return {
            item["alias"]: (DatasetId.parse(item["id"]), Multihash.parse(item["blockHash"]))
            for item in self.input["datasets"]
        }

    @property
    def signer(self) -> str:
        """The `did:key` of who signed."""
        return self.proof["verificationMethod"]

    def __repr__(self) -> str:
        return f"<answer signed by {self.signer}: {one_line(self.query, 80)}>"

    def to_json(self, *, engine: bool = True) -> str:
        """The text of the file; without `engine` as other nodes take it."""
        parts: dict[str, Any] = {"input": self.input, "output": self.output, "subQueries": self.sub_queries}
        parts |= {"commitment": self.commitment, "proof": self.proof}
        parts["engine"] = self.engine if engine else None
        return written({name: part for name, part in parts.items() if part is not None})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        fsio.replace_file(Path(path), (self.to_json() + "\n").encode())

    def hash_of(self, name: str) -> str:
        """The hash that a member of the commitment should be, from what is here."""
        part = {"input": self.input, "output": self.output, "subQueries": self.sub_queries}[_HASHES[name]]
        return hash_of(part)

    def check_signature(self) -> None:
        """The commitment was signed with the key that the answer names."""
        key = DidKey.parse(self.signer).public_key
        check_public_key(key)
        encoded = self.proof["proofValue"][1:]
        signature = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        verify_signature(key, signature, canonical(self.commitment))

    def problem(self) -> str | None:
        """The fault of the file itself, a hash or the signature; None where both fit."""
        for name in _HASHES:
            absent = name == "outputHash" and self.output is None
            if not absent and self.hash_of(name) != self.commitment[name]:
                return f"what is here does not hash to the {name} that was signed"
        try:
            self.check_signature()
        except SignatureError as error:
            return error.message
        return None

    @classmethod
    def signed(cls, asked: dict[str, Any], output: dict[str, Any], key: DatasetKey, **about: Any) -> Answer:
        """The answer over the hashes of both, signed; `about` are the members that are not."""
        parts = {"input": asked, "output": output, "subQueries": []}
        texts = {name: canonical(parts[part]) for name, part in _HASHES.items()}
        if (size := len(texts["outputHash"])) > _OUTPUT_BYTES:
            message = f"the answer has {size:,} bytes; at most {_OUTPUT_BYTES:,} are signed"
            raise QueryError(message, hint=_FEWER)
        commitment = {name: str(hash_bytes(text)) for name, text in texts.items()}
        signature = base64.urlsafe_b64encode(key.sign(canonical(commitment))).rstrip(b"=").decode()
        signer = str(key.dataset_id.as_did_key())
        proof = {"type": SIGNATURE, "verificationMethod": signer, "proofValue": f"u{signature}"}
        return cls(asked, output, commitment, proof, **about)


def hash_of(value: Any) -> str:
    """The sha3-256 multihash of a value's canonical JSON, as text."""
    return str(hash_bytes(canonical(value)))


def read_answer(data: bytes, source: str) -> Answer:
    """The answer that a text is, whose form was checked and nothing else; `source` is for messages."""
    try:
        return _parsed(data)
    except (ValueError, InvalidIdError) as error:
        message = f"{source}: not a signed answer: {one_line(str(error))}"
        raise SignatureError(Problem.DAMAGED, message) from None


def _parsed(data: bytes) -> Answer:
    _check(len(data) <= FILE_BYTES, f"it is longer than {FILE_BYTES:,} bytes")
    found = read(data)
    _check_members(found, "it", _PARTS, optional=("output", "engine"))
    written(found)  # what lies too deep is said here
    asked, commitment, proof = found["input"], found["commitment"], found["proof"]
    _check_input(asked)
    _check_members(commitment, "commitment", _HASHES, texts=_HASHES)
    _check_members(proof, "proof", _PROOF, texts=_PROOF)
    _check(proof["type"] == SIGNATURE, f"its signature is not of type {SIGNATURE}")
    signer, value = proof["verificationMethod"], proof["proofValue"]
    _check(str(DidKey.parse(signer)) == signer, "its signer is in another spelling than nodes write")
    _check(bool(_SIGNED.fullmatch(value)), "its signature is not 64 bytes in base64url")
    output, engine = found.get("output", {}), found.get("engine", "")
    _check(type(output) is dict, "output is not an object")
    _check(type(found["subQueries"]) is list, "subQueries is not a list")
    _check(type(engine) is str and len(engine) <= 100, "engine is not a short text")
    return Answer(asked, found.get("output"), commitment, proof, found["subQueries"], found.get("engine"))


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(what)


def _check_members(
    value: Any, name: str, members: Collection[str], *, optional: Collection[str] = (),
    texts: Iterable[str] = (),
) -> None:  # fmt: skip
    _check(type(value) is dict, f"{name} is not an object")
    # an unknown member could change the meaning of a signed answer
    for strange in sorted(value.keys() - set(members)):
        raise ValueError(f"{name} has a member {strange!r}, which nothing is known of")
    for missing in sorted(set(members) - set(optional) - value.keys()):
        raise ValueError(f"{name} has no {missing}")
    for text in texts:
        found = value.get(text, "")
        _check(type(found) is str and len(found) <= QUERY_BYTES, f"{text} of {name} is not a short text")


def _check_input(asked: Any) -> None:
    texts = ("query", "queryDialect", "dataFormat", "schemaFormat")
    _check_members(asked, "input", _INPUT, optional=("schemaFormat",), texts=texts)
    size = len(asked["query"].encode("utf-8", "surrogatepass"))
    _check(size <= QUERY_BYTES, f"the query is longer than {QUERY_BYTES:,} bytes")
    for name in ("skip", "limit"):
        found = asked[name]
        right = type(found) is Number and found.isdecimal() and len(found) <= 18
        _check(right, f"{name} of input is not a number of rows")
    include, datasets = asked["include"], asked["datasets"]
    are_texts = type(include) is list and all(type(part) is str for part in include)
    _check(are_texts, "include of input is not a list of texts")
    fits = ("Schema" in include) == ("schemaFormat" in asked)
    _check(fits, "include and schemaFormat of input contradict each other")
    are_few = type(datasets) is list and len(datasets) <= DATASETS
    _check(are_few, f"datasets are not a list of at most {DATASETS:,}")
    for item in datasets:
        _check_members(item, "a dataset", _DATASET, texts=_DATASET)
        plain = str(DatasetId.parse(item["id"])), str(Multihash.parse(item["blockHash"]))
        _check(plain == (item["id"], item["blockHash"]), "a dataset is in another spelling than nodes write")
    _check(len({item["alias"] for item in datasets}) == len(datasets), "datasets have a name twice")


# Intervals of months, and of days and milliseconds, are read from memory: PyArrow has no arrays of these
# types, only of months, days and nanoseconds.


def number_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with numbers for such intervals, at any depth."""
    kinds = {"month_interval": pa.int32(), "day_time_interval": pa.int64()}
    return mapped(schema, lambda f: f.with_type(kinds.get(str(f.type), f.type)))


def reread(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The memory of a batch under another schema, which must be of the same widths."""
    return batch if batch.schema.types == schema.types else pa.record_batch(_Memory(batch, schema))


class _Memory:
    """An array exported over Arrow's C interface."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


# The rows of an answer as JSON, in the three formats of the reference node.
# Decimals, times, dates and intervals are text, bytes are hex, numbers that are not finite are null. Types
# that the node does not support: maps are lists of `{key, value}`, views of lists are lists, dictionaries
# are their values.

FORMATS = ("JsonAoS", "JsonSoA", "JsonAoA")
"""Rows as objects, columns as lists, rows as lists."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH_ORDINAL = 719_163
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH_ORDINAL, dt.date.max.toordinal() - _EPOCH_ORDINAL
_LONGEST = 2**63 - 1
_T = TypeVar("_T")


def output_of(table: pa.Table, data_format: str, *, schema: bool, sorts: bool = True) -> dict[str, Any]:
    """The member `output` of an answer: the rows in one of `FORMATS`, members by name if it `sorts`."""
    output = {"data": _json_rows(table, data_format, sorts), "dataFormat": data_format}
    if schema:
        columns = {"fields": [_field(column) for column in table.schema], "metadata": {}}
        output |= {"schema": columns, "schemaFormat": SCHEMA_FORMAT}
    return output


def _json_rows(table: pa.Table, data_format: str, sorts: bool) -> Any:
    names = table.schema.names
    if data_format != "JsonAoA":
        _check_names(names)
    named = data_format != "JsonAoA"
    kinds, schema = table.schema.types, number_schema(table.schema)
    table = pa.Table.from_batches([reread(batch, schema) for batch in table.to_batches()], schema)
    columns = [
        _values(table.column(i).combine_chunks(), kind, names[i], named) for i, kind in enumerate(kinds)
    ]
    order = sorted(range(len(names)), key=names.__getitem__) if sorts else range(len(names))
    if data_format == "JsonSoA":
        return {names[i]: columns[i] for i in order}
    if data_format == "JsonAoA":
        return [list(row) for row in zip(*columns, strict=True)]
    keys, sorted_columns = [names[i] for i in order], [columns[i] for i in order]
    return [dict(zip(keys, row, strict=True)) for row in zip(*sorted_columns, strict=True)]


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        message = f"two columns are called {one_line(twice, 80)}: an answer has one value for each name"
        raise QueryError(message, hint="give one of them another name with AS")


def _values(array: pa.Array, kind: pa.DataType, name: str, named: bool) -> list[Any]:
    from pyarrow import types as t

    if t.is_null(kind) or t.is_boolean(kind) or t.is_integer(kind):
        return list(array.to_pylist())
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return list(array.to_pylist())
    # PyArrow has no Python values of these intervals
    if (interval := _INTERVALS.get(str(kind))) is not None:
        return _each(interval, array.to_pylist())
    if t.is_float64(kind):
        return _each(double, array.to_pylist())
    if t.is_floating(kind):
        return _each(single, array.cast(pa.float32()).to_pylist())
    if t.is_decimal(kind):
        return _each(lambda v: format(v, "f"), array.to_pylist())
    if any(of(kind) for of in (t.is_binary, t.is_large_binary, t.is_fixed_size_binary, t.is_binary_view)):
        return _each(bytes.hex, array.to_pylist())
    if t.is_date(kind):
        if t.is_date32(kind):
            return _each(_day, array.cast(pa.int32()).to_pylist())
        return _each(lambda v: _moment(v, 1_000), array.cast(pa.int64()).to_pylist())
    if t.is_timestamp(kind):
        numbers = array.cast(pa.int64()).to_pylist()
        return _each(_in_zone(kind.tz, _PER_SECOND[kind.unit]), numbers)
    if t.is_time(kind):
        numbers = array.cast(pa.int32() if t.is_time32(kind) else pa.int64()).to_pylist()
        return _each(lambda v: _time_of_day(v, _PER_SECOND[kind.unit]), numbers)
    if t.is_duration(kind):
        return _each(lambda v: _span(v, _PER_SECOND[kind.unit]), array.cast(pa.int64()).to_pylist())
    if t.is_dictionary(kind):
        return _values(array.dictionary_decode(), kind.value_type, name, named)
    if t.is_map(kind):
        keys = _values(array.keys, kind.key_type, name, named)
        items = _values(array.items, kind.item_type, name, named)
        inner = [{"key": k, "value": v} for k, v in zip(keys, items, strict=True)]
        ends, there = array.offsets.to_pylist(), array.is_valid().to_pylist()
        return [inner[a:b] if ok else None for a, b, ok in zip(ends, ends[1:], there, strict=False)]
    lists = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    if any(of(kind) for of in lists):
        flat = iter(_values(array.flatten(), kind.value_type, name, named))
        return _each(lambda count: list(islice(flat, count)), pc.list_value_length(array).to_pylist())
    if t.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if named:
            _check_names(names)
        parts = [_values(part, f.type, name, named) for part, f in zip(array.flatten(), kind, strict=True)]
        rows = zip(*parts, strict=True) if parts else [() for _ in range(len(array))]
        made = ((dict(sorted(zip(names, row, strict=True))) if named else list(row)) for row in rows)
        there = array.is_valid().to_pylist()
        return [value if ok else None for value, ok in zip(made, there, strict=True)]
    raise QueryError(
        f"the column {one_line(name, 80)} is of type {one_line(str(kind), 80)}, which JSON does not have",
        hint="cast it to text: CAST(column AS VARCHAR)",
    )


def _each(make: Callable[[_T], Any], values: list[_T | None]) -> list[Any]:
    return [None if value is None else make(value) for value in values]


# --- times: 0, 3, 6 or 9 digits of a second, as many as there are ---------------------------------------


def _day(days: int) -> str:
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise QueryError("a date before the year 1 or after 9999, which answers do not have")
    return dt.date.fromordinal(days + _EPOCH_ORDINAL).isoformat()


def _time_of_day(value: int, per_second: int) -> str:
    seconds, part = divmod(value, per_second)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{_fraction(part * (10**9 // per_second))}"


def _fraction(nanoseconds: int) -> str:
    if not nanoseconds:
        return ""
    if nanoseconds % 1_000:
        return f".{nanoseconds:09}"
    return f".{nanoseconds // 1_000:06}" if nanoseconds % 1_000_000 else f".{nanoseconds // 1_000_000:03}"


def _moment(value: int, per_second: int) -> str:
    days, rest = divmod(value, 86_400 * per_second)
    return f"{_day(days)}T{_time_of_day(rest, per_second)}"


def _in_zone(zone: str | None, per_second: int) -> Callable[[int], str]:
    if zone is None:
        return lambda value: _moment(value, per_second)
    # only zones without tables: an answer's text must not depend on the version of a time zone database
    if zone in ("UTC", "Z", "+00:00", "Etc/UTC"):
        return lambda value: _moment(value, per_second) + "Z"
    message = f"times of the zone {one_line(zone, 40)} depend on tables that change, so they are not signed"
    raise QueryError(message, hint="give them in UTC, or cast them to text")


def _span(value: int, per_second: int) -> str:
    # the node's library overflows beyond 2⁶³ milliseconds and writes this
    if abs(value) * 1_000 // per_second > _LONGEST:
        return "<invalid>"
    sign = "-" if value < 0 else ""
    seconds, part = divmod(abs(value), per_second)
    if not value:
        return "P0D"
    fraction = f"{part * (10**9 // per_second):09}".rstrip("0")
    return f"{sign}PT{seconds}{'.' if fraction else ''}{fraction}S"


# --- intervals, as the node's library shows them -----------------------------------------------------


def _days_and_milliseconds(value: int) -> str:
    days, milliseconds = struct.unpack("<ii", struct.pack("<q", value))
    return _interval([(days, "days")], milliseconds, 3)


def _interval(parts: list[tuple[int, str]], rest: int, digits: int) -> str:
    seconds, part = divmod(abs(rest), 10**digits)
    sign = -1 if rest < 0 else 1
    # parts that are 0 are left out, as the node's library does
    parts = [*parts, (sign * (seconds // 3_600), "hours"), (sign * (seconds // 60 % 60), "mins")]
    texts = [f"{number} {unit}" for number, unit in parts if number]
    if seconds % 60 or part:
        texts.append(f"{'-' if rest < 0 else ''}{seconds % 60}.{part:0{digits}} secs")
    return " ".join(texts) or "0 secs"


_INTERVALS: dict[str, Callable[[Any], str]] = {
    "month_interval": lambda months: f"{months // 12} years {months % 12} mons",
    "day_time_interval": _days_and_milliseconds,
    "month_day_nano_interval": lambda v: _interval([(v[0], "mons"), (v[1], "days")], v[2], 9),
}
