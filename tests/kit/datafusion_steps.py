"""Queries for the engine on DataFusion: over one row of every type, and over made-up datasets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.odf.engine_messages import (
    RawQueryRequest,
    TransformRequest,
    TransformRequestInput,
    Watermark,
)
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.progress import SILENT
from odfchain.transform.datafusion_engine import DataFusionEngine
from odfchain.transform.engines import TransformEngine
from odfchain.transform.sandbox import sandboxed_engine
from tests.kit.query_corpus import TABLES
from tests.kit.support import T0, seeded_id

_TIME = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_UTC = pa.timestamp("us", "UTC")
ONE_ROW: dict[str, tuple[pa.DataType, Any]] = {
    "a": (pa.string(), "x"), "b": (pa.int64(), 1), "c": (pa.int32(), 2), "d": (pa.float64(), 1.5),
    "t": (_UTC, _TIME), "dt": (pa.date32(), _TIME.date()), "m": (pa.map_(pa.string(), pa.int32()), [("k", 1)]),
    "arr": (pa.list_(pa.int32()), [1, 2]),
    "st": (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": "z"}),
    "bo": (pa.bool_(), True), "dec": (pa.decimal128(10, 2), Decimal("1.50")),
    "event_time": (_UTC, _TIME), "sensor": (pa.string(), "s"), "level": (pa.int32(), 3),
}  # fmt: skip
"""The columns of the corpus of attacks, in Arrow's types."""


class OneRow:
    """The corpus's tables, each with one row, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kinds = [(name, kind) for name, (kind, _) in ONE_ROW.items()]
        row = {name: value for name, (_, value) in ONE_ROW.items()}
        pq.write_table(pa.Table.from_pylist([row], schema=pa.schema(kinds)), folder / "input.parquet")

    def ask(self, sql: str, engine: TransformEngine | None = None) -> int:
        """The number of rows; errors as the engine's."""
        views = [SqlQueryStep(alias=name, query="SELECT * FROM input") for name in TABLES if name != "input"]
        transform = TransformSql(engine="datafusion", queries=(*views, SqlQueryStep(query=sql)))
        output = self.folder / "output"
        output.unlink(missing_ok=True)
        paths = (str(self.folder / "input.parquet"),)
        request = RawQueryRequest(input_data_paths=paths, transform=transform, output_data_path=str(output))
        return (engine or DataFusionEngine(memory_mib=256)).query(request, progress=SILENT)


@contextmanager
def apart(folder: Path, *, walled: bool, **limits: Any) -> Iterator[TransformEngine]:
    """The engine in a process of its own."""
    with sandboxed_engine(
        [folder], folder, folder, progress=SILENT, engine="datafusion", walled=walled, **limits
    ) as engine:
        yield engine


def text_of(given: Any) -> str:
    """The SQL of a case: a text, or (before, repeated, how often, after, end)."""
    if isinstance(given, str):
        return given
    before, repeated, count, after, end = given["repeat"]
    closing = ")" * count if repeated == "(" else ""
    return f"{before}{repeated * count}{after}{closing}{end}"


# Made-up inputs, as fixtures write them: the type of each column, then its values.

_KINDS = {
    "string": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "date": pa.date32(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "event": pa.struct([(name, pa.string()) for name in ("from", "to", "amount", "ethAmount", "time")]),
}  # fmt: skip


def table_of(columns: dict[str, list[Any]]) -> pa.Table:
    """The rows of an input."""
    made = {}
    for name, (kind, *values) in columns.items():
        arrow = _KINDS[kind]
        plain = pa.types.is_timestamp(arrow) or pa.types.is_date(arrow)
        made[name] = pa.array(values, pa.string()).cast(arrow) if plain else pa.array(values, arrow)
    return pa.table(made)


def recorded_as(rows: pa.Table, folder: Path, name: str) -> tuple[tuple[str, ...], str, int]:
    """(paths of slices with these rows, the file of their schema, the number of rows): one row a slice."""
    system = {
        "offset": pa.array(range(len(rows)), pa.uint64()), "op": pa.repeat(pa.scalar(0, pa.uint8()), len(rows)),
        "system_time": pa.repeat(pa.scalar(0, pa.int64()).cast(pa.timestamp("ms", "UTC")), len(rows)),
    }  # fmt: skip
    fields = [pa.field(name, array.type, nullable=False) for name, array in system.items()]
    table = pa.table([*system.values(), *rows.columns], schema=pa.schema([*fields, *rows.schema]))
    paths = []
    for number in range(len(table)):
        # names that do not sort as the slices do: what a store gives has no order
        paths.append(str(folder / f"{name}-{len(table) - number}"))
        pq.write_table(table.slice(number, 1), paths[-1])
    schema = folder / f"{name}-schema"
    pq.write_table(table.slice(0, 0), schema)
    return tuple(paths), str(schema), len(table)


def as_texts(table: pa.Table, names: Sequence[str]) -> list[list[str | None]]:
    """Rows as fixtures write them."""
    return [[None if v is None else str(v) for v in row.values()] for row in table.select(names).to_pylist()]


def request_of(
    queries: Sequence[dict[str, str]],
    inputs: dict[str, dict[str, list[Any]]],
    folder: Path,
    vocabulary: DatasetVocabulary,
    marks: Mapping[str, Sequence[Watermark]] | None = None,
) -> TransformRequest:
    """A step over all rows of made-up inputs."""
    given = []
    for number, (alias, columns) in enumerate(inputs.items()):
        paths, schema, count = recorded_as(table_of(columns), folder, f"input-{number}")
        given.append(
            TransformRequestInput(
                dataset_id=seeded_id(f"input-{number}"),
                dataset_alias=DatasetAlias.parse(f"input-{number}"),
                query_alias=alias,
                vocab=DatasetVocabulary(),
                offset_interval=OffsetInterval(start=0, end=count - 1) if count else None,
                data_paths=paths,
                schema_file=schema,
                explicit_watermarks=tuple((marks or {}).get(alias, ())),
            )
        )
    steps = tuple(SqlQueryStep(alias=step.get("alias"), query=step["query"]) for step in queries)
    return TransformRequest(
        dataset_id=seeded_id("result"),
        dataset_alias=DatasetAlias.parse("result"),
        system_time=T0,
        vocab=vocabulary,
        transform=TransformSql(engine="datafusion", queries=steps),
        query_inputs=tuple(given),
        next_offset=7,
        prev_checkpoint_path=None,
        new_checkpoint_path=str(folder / "checkpoint"),
        new_data_path=str(folder / "data"),
    )
