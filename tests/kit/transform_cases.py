"""The shared cases of transformations as requests to an engine, and what they expect as values.

The reader is strict: a key, a column type or a form of value that it does not know is an error, so a case
never passes because half of it was not looked at.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest, TransformRequestInput, Watermark
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import SqlQueryStep, TemporalTable, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.transform.engines import EngineRules
from tests.kit.support import conformance, seeded_id

MS = pa.timestamp("ms", "UTC")

SIGNED = (pa.int64(), pa.int32())
"""Offsets and operations as other engines write them."""

UNSIGNED = (pa.uint64(), pa.uint8())
"""Offsets and operations as the specification says."""

_TYPES = {
    "STRING": pa.string(), "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(),
    "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(),
    "DATE": pa.date32(), "TIMESTAMP": MS,
}  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")
_MANY_ROWS = re.compile(r"(\d+)e(\d+) rows over (\d+) sensors")

_REMARKS = {"category", "spark_mode", "modelled_on", "engines", "what", "verified_with", "canonical_order"}
_ALTERNATIVES = {"kamu_watermark", "flink_rows_also", "or_error", "note", "when"}
"""What other engines answer, and what may be answered instead."""

AT_ONCE = {
    "running_total": "rows count when they are recorded, and not when the watermark has passed them (RFC-019)",
    "top_n_with_retractions": "as running_total",
    "temporal_table_join": "as running_total",
}
"""Cases that only the first rules of the engine answer as they say: they wait for what can be taken back."""


class UnknownKeyError(Exception):
    """A case says something that the runner does not understand."""


def _known(tree: Mapping[str, Any], where: str, needed: Collection[str], others: Collection[str]) -> None:
    wrong = sorted((set(tree) - {*needed, *others}) | (set(needed) - set(tree)))
    if wrong:
        raise UnknownKeyError(f"{where}: {', '.join(wrong)}")


# --- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputSlice:
    """What a step brings of an input."""

    alias: str
    schema: pa.Schema
    files: Sequence[pa.Table] = ()
    offsets: tuple[int, int] | None = None
    watermarks: Sequence[Timestamp] = ()


def input_schema(columns: Mapping[str, pa.DataType], layout: tuple[pa.DataType, ...] = UNSIGNED) -> pa.Schema:
    """The schema of an input with these columns after those of the system."""
    offset, op = layout
    system = [
        pa.field("offset", offset, nullable=False),
        pa.field("op", op, nullable=False),
        pa.field("system_time", MS, nullable=False),
        pa.field("event_time", MS, nullable=False),
    ]
    return pa.schema([*system, *(pa.field(name, kind) for name, kind in columns.items())])


def dataset_id_of(alias: str) -> Any:
    """The identity of the input of this name, the same in every process."""
    return seeded_id(alias[:32])


def request_of(
    folder: Path,
    number: int,
    transform: TransformSql,
    inputs: Sequence[InputSlice],
    *,
    system_time: Timestamp,
    next_offset: int,
    vocabulary: DatasetVocabulary | None = None,
) -> TransformRequest:
    """Write the input files of a step into `folder` and ask for `data-N` and `checkpoint-N` there."""
    previous = folder / f"checkpoint-{number - 1}"
    return TransformRequest(
        dataset_id=seeded_id("output"),
        dataset_alias=DatasetAlias.parse("output"),
        system_time=system_time,
        vocab=vocabulary or DatasetVocabulary(),
        transform=transform,
        query_inputs=tuple(
            _input_of(folder, f"{number}-{index}", given, system_time) for index, given in enumerate(inputs)
        ),
        next_offset=next_offset,
        prev_checkpoint_path=str(previous) if previous.exists() else None,
        new_checkpoint_path=str(folder / f"checkpoint-{number}"),
        new_data_path=str(folder / f"data-{number}"),
    )


def _input_of(folder: Path, name: str, given: InputSlice, system_time: Timestamp) -> TransformRequestInput:
    schema_file = folder / f"schema-{name}.parquet"
    pq.write_table(given.schema.empty_table(), schema_file)
    paths = []
    for index, table in enumerate(given.files):
        paths.append(folder / f"input-{name}-{index}.parquet")
        pq.write_table(table, paths[-1])
    start, end = given.offsets or (0, 0)
    return TransformRequestInput(
        dataset_id=dataset_id_of(given.alias),
        dataset_alias=DatasetAlias.parse("input"),
        query_alias=given.alias,
        vocab=DatasetVocabulary(),
        offset_interval=None if given.offsets is None else OffsetInterval(start=start, end=end),
        data_paths=tuple(map(str, paths)),
        schema_file=str(schema_file),
        explicit_watermarks=tuple(Watermark(system_time=system_time, event_time=w) for w in given.watermarks),
    )


# --- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the shared file, checked; `folder` arguments are where its steps leave their files."""

    tree: dict[str, Any]

    def __post_init__(self) -> None:
        _known(
            self.tree,
            str(self.tree.get("id")),
            {"id", "inputs", "queries", "steps"},
            {*_REMARKS, "output_vocab", "temporal_tables"},
        )
        for query in self.tree["queries"]:
            _known(query, f"{self.id}: queries", {"query"}, {"alias", "note"})
        for table in self.tree.get("temporal_tables", []):
            _known(table, f"{self.id}: temporal_tables", {"name", "primary_key"}, ())
        for alias, given in self.tree["inputs"].items():
            _known(given, f"{self.id}: {alias}", {"columns"}, ())
        for number in range(self.steps):
            self._check_step(number)

    def _check_step(self, number: int) -> None:
        step, where = self.tree["steps"][number], f"{self.id}: step {number}"
        _known(step, where, {"system_time", "next_offset", "inputs", "expect"}, {"expect_flink_inclusive"})
        _known(step["inputs"], where, set(self.tree["inputs"]), ())
        for alias, given in step["inputs"].items():
            _known(given, f"{where}: {alias}", {"offset_interval", "files", "watermarks"}, ())
        expected = step["expect"]
        # rows are needed even where they are null: for errors
        _known(
            expected,
            f"{where}: expect",
            {"rows", "offset_interval"},
            {"watermark", "watermark_note", "data_file", "output_columns", "error", *_ALTERNATIVES},
        )
        for key, values in (
            ("error", ["InvalidQuery"]),
            ("data_file", ["empty-with-schema"]),
            ("watermark_note", ["not compared"]),
        ):
            if key in expected and expected[key] not in values:
                raise UnknownKeyError(f"{where}: {key}: {expected[key]!r}")

    @property
    def id(self) -> str:
        return self.tree["id"]

    @property
    def steps(self) -> int:
        return len(self.tree["steps"])

    @property
    def vocabulary(self) -> DatasetVocabulary:
        return DatasetVocabulary(**self.tree.get("output_vocab", {}))

    def expected(self, number: int) -> dict[str, Any]:
        return self.tree["steps"][number]["expect"]

    def fails(self, number: int) -> bool:
        return "error" in self.expected(number)

    def transform(self) -> TransformSql:
        tables = tuple(
            TemporalTable(name=t["name"], primary_key=tuple(t["primary_key"]))
            for t in self.tree.get("temporal_tables", [])
        )
        return TransformSql(
            engine="spark",
            queries=tuple(SqlQueryStep(alias=q.get("alias"), query=q["query"]) for q in self.tree["queries"]),
            temporal_tables=tables or None,
        )

    def request(
        self, number: int, folder: Path, layout: tuple[pa.DataType, ...] = SIGNED
    ) -> TransformRequest:
        """The request of a step; its files are written into `folder`."""
        step = self.tree["steps"][number]
        inputs = []
        for alias, columns in self.tree["inputs"].items():
            given = step["inputs"][alias]
            types = {name: _type(kind) for name, kind in columns["columns"].items()}
            schema = input_schema(types, layout)
            start_end = given["offset_interval"]
            files = [_table(rows, schema) for rows in given["files"]]
            watermarks = [Timestamp.parse(text) for text in given["watermarks"]]
            inputs.append(InputSlice(alias, schema, files, start_end and tuple(start_end), watermarks))
        transform = self.transform()
        if self.id in AT_ONCE:
            transform = dataclasses.replace(transform, version=EngineRules(1).version)
        return request_of(
            folder, number, transform, inputs,
            system_time=Timestamp.parse(step["system_time"]),
            next_offset=step["next_offset"],
            vocabulary=self.vocabulary,
        )  # fmt: skip


def all_cases() -> list[Case]:
    return [Case(tree) for tree in conformance("transform_cases")["transform_cases"]]


def rows_expected(case: Case, number: int, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows that a step must bring, as values of the output's types.

    Raises:
        UnknownKeyError: a row has other columns than the output, or has them in another order.
    """
    rows = case.expected(number)["rows"]
    for row in rows:
        if list(row) != schema.names:
            raise UnknownKeyError(f"{case.id}: step {number}: {list(row)} and not {schema.names}")
    return [{f.name: value_of(row[f.name], f.type) for f in schema} for row in rows]


def value_of(value: Any, kind: pa.DataType) -> Any:
    """A value of a case as PyArrow would give it."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(value)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    return value


def _type(name: str) -> pa.DataType:
    if found := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2]))
    if name not in _TYPES:
        raise UnknownKeyError(f"column type {name}")
    return _TYPES[name]


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    for row in rows:
        _known(row, "row", [f.name for f in schema if not f.nullable], schema.names)
    values = [{f.name: value_of(row.get(f.name), f.type) for f in schema} for row in rows]
    return pa.Table.from_pylist(values, schema=schema)


# --- raw queries ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RawCase:
    """A case of a query over raw files."""

    tree: dict[str, Any]

    def __post_init__(self) -> None:
        _known(self.tree, str(self.tree.get("id")), {"id", "what", "queries", "rows_in", "expect"}, ())
        for query in self.tree["queries"]:
            _known(query, f"{self.id}: queries", {"query"}, {"alias"})
        _known(self.expected, f"{self.id}: expect", (), {"rows", "num_records", "error", "files"})
        if self.expected.get("error", "InvalidQuery or InternalError") != "InvalidQuery or InternalError":
            raise UnknownKeyError(f"{self.id}: error")

    @property
    def id(self) -> str:
        return self.tree["id"]

    @property
    def expected(self) -> dict[str, Any]:
        return self.tree["expect"]

    def request(self, folder: Path) -> RawQueryRequest:
        """The request, over files that are written into `folder`."""
        queries = tuple(SqlQueryStep(alias=q.get("alias"), query=q["query"]) for q in self.tree["queries"])
        paths = []
        for index, table in enumerate(_raw_tables(self.tree["rows_in"])):
            paths.append(folder / f"raw-{index}.parquet")
            pq.write_table(table, paths[-1])
        return RawQueryRequest(
            input_data_paths=tuple(map(str, paths)),
            transform=TransformSql(engine="spark", queries=queries),
            output_data_path=str(folder / "result"),
        )


def all_raw_cases() -> list[RawCase]:
    return [RawCase(tree) for tree in conformance("transform_cases")["raw_query_cases"]]


def _raw_tables(rows: Any) -> list[pa.Table]:
    """Rows as they are spelled out, or as many as are asked for, in several files."""
    if not isinstance(rows, str):
        return [pa.Table.from_pylist(rows)] if rows else []
    found = _MANY_ROWS.fullmatch(rows)
    if found is None:
        raise UnknownKeyError(f"rows_in: {rows}")
    count, sensors, files = int(found[1]) * 10 ** int(found[2]), int(found[3]), 4
    return [
        pa.table({
            "sensor": [f"s{n % sensors}" for n in range(first, count, files)],
            "level": list(range(first, count, files)),
        })
        for first in range(files)
    ]  # fmt: skip
