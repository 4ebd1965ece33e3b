"""The inputs of a step: what the request says of them, and their new rows for Spark."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.arrow import from_arrow, slice_schema
from odfchain.engine.input_slice import row_facts
from odfchain.engine.step_files import Cut, StepFiles
from odfchain.engine.stream.tables import TableColumns
from odfchain.errors import BadInputError, EngineError
from odfchain.model import data_schema as ds
from odfchain.model.engine_messages import TransformRequestInput
from odfchain.model.events import DatasetVocabulary
from odfchain.slices.reader import check_parquet, open_parquet
from odfchain.spark.columns import col
from odfchain.spark.types import physical_struct, physical_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SHORT_ROW = 2_048
"""Bytes of a row up to which Arrow batches may be cut by rows alone."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """The new rows of an input: columns `c0`, `c1`, … in the order of its schema, rows by offset."""

    alias: str
    frame: DataFrame
    columns: TableColumns
    has_changes: bool
    """Whether some rows retract or correct others."""
    short: bool
    oldest_ms: int | None
    """The oldest event time; None when there is none."""
    empty: bool

    def may_have_before(self, ms: int) -> bool:
        """Whether some row may be older than this."""
        return not self.empty and (self.oldest_ms is None or self.oldest_ms < ms)


@dataclass(frozen=True, slots=True)
class StepInput:
    """An input as the request describes it."""

    given: TransformRequestInput
    schema: ds.DataSchema

    @classmethod
    def of(cls, given: TransformRequestInput) -> StepInput:
        """The input of a request.

        Raises:
            EngineError: the schema file cannot be read, or lacks a system column.
        """
        try:
            with open_parquet(Path(given.schema_file)) as file:
                schema = from_arrow(file.schema_arrow.remove_metadata())
        except BadInputError as error:
            raise EngineError(f"{given.query_alias}: the schema file cannot be read: {error}") from None
        for name in given.vocab.columns:
            if schema.field(name) is None:
                raise EngineError(f"{given.query_alias}: the schema has no column `{name}`")
        return cls(given, schema)

    @property
    def identity(self) -> tuple[str, str, DatasetVocabulary, ds.DataSchema]:
        """What a plan and its digest depend on."""
        return str(self.given.dataset_id), self.given.query_alias, self.given.vocab, self.schema

    @property
    def columns(self) -> TableColumns:
        """Where the system columns stand."""
        names, vocabulary = list(self.schema.names), self.given.vocab
        return TableColumns(
            tuple(names),
            names.index(vocabulary.offset_column),
            names.index(vocabulary.operation_type_column),
            names.index(vocabulary.system_time_column),
            names.index(vocabulary.event_time_column),
        )

    def struct(self) -> StructType:
        """The table as queries see it: offsets and operations are signed integers."""
        from pyspark.sql import types as t

        signed = {
            self.given.vocab.offset_column: t.LongType(),
            self.given.vocab.operation_type_column: t.IntegerType(),
        }
        return t.StructType(
            [
                t.StructField(f.name, signed.get(f.name) or physical_type(f.type), f.optional)
                for f in self.schema.fields
            ]
        )

    def watermark(self, known: int | None) -> int | None:
        """The last watermark of the input [ms], those of earlier steps included."""
        given = [w.event_time.epoch_ms for w in self.given.explicit_watermarks]
        return max([*given, *([] if known is None else [known])], default=None)

    def rows(self, session: SparkSession, files: StepFiles, wanted: Collection[int] | None) -> InputRows:
        """The new rows, with the system columns and those at the places `wanted` (None: all)."""
        given, struct, folder = self.given, self.struct(), files.folder
        slices = tuple(map(Path, given.data_paths))
        made_of = Cut(slices, given.offset_interval, slice_schema(self.schema), given.vocab)
        path = made_of.into(folder, f"input-{len(list(folder.iterdir()))}")
        names = [f"c{index}" for index in range(len(struct.fields))]
        if path is None:
            return InputRows(
                given.query_alias, session.createDataFrame([], struct).toDF(*names).coalesce(1),
                self.columns, False, True, None, True,
            )  # fmt: skip
        stored = physical_struct(self.schema.fields)
        check_parquet(path)
        frame = files.rows(session, path, stored, made_of)
        system = self.columns
        kept = {system.offset, system.operation, system.event_time}
        kept.update(range(len(names)) if wanted is None else wanted)
        columns = [
            (col(f.name) if f.dataType == s.dataType else col(f.name).cast(f.dataType)).alias(n)
            for i, (f, s, n) in enumerate(zip(struct.fields, stored.fields, names, strict=True))
            if i in kept
        ]
        typed = frame.select(*columns)
        known = row_facts(path, given.vocab)
        return InputRows(
            given.query_alias, typed.coalesce(1), self.columns, known.has_changes, _has_short_rows(path),
            known.oldest_ms, False,
        )  # fmt: skip


def _has_short_rows(path: Path) -> bool:
    with open_parquet(path) as file:
        metadata = file.metadata
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return bool(size < _SHORT_ROW * max(1, metadata.num_rows))


def watermark_of(marks: Sequence[int | None], before: int | None) -> int | None:
    """The watermark of all inputs together: the least, none until every input has one, never going back."""
    known = [mark for mark in marks if mark is not None]
    if len(known) < len(marks):
        return before
    least = min(known)
    return least if before is None else max(least, before)
