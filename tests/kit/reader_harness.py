"""A dataset on disk whose inputs are written one by one, as the writer cases describe them."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from odfchain.ingest.history import WriterState
from odfchain.ingest.ingesting import Written, fitted, recorded_write, written
from odfchain.ingest.merge_input import MergeOptions, WriteOptions
from odfchain.ingest.read_formats import declared_schema, fix_up, open_input
from odfchain.odf.events import MetadataEvent, SourceState
from odfchain.odf.sources import MergeStrategy, MergeStrategyAppend, ReadStep, ReadStepCsv
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.commits import make_seeded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SYSTEM_TIME, EVENT_TIME = "2010-01-01T12:00:00Z", "2000-01-01T12:00:00Z"


def merge_in_force(state: DatasetState) -> MergeStrategy:
    """Polling source, else the push source, else Append."""
    if state.polling_source is not None:
        return state.polling_source.merge
    return next((s.merge for s in state.push_sources.values()), MergeStrategyAppend())


class Harness:
    def __init__(self, folder: Path, session: SparkSession, *events: MetadataEvent) -> None:
        self.dataset: DatasetFiles = make_seeded(folder / "dataset", *events)
        self.session = session
        self.folder = folder
        self.system_time = SYSTEM_TIME

    @property
    def state(self) -> DatasetState:
        return DatasetState.read(self.dataset.chain)

    def append(self, event: MetadataEvent) -> None:
        commit(self.dataset, self.state, [event], [], system_time=Timestamp.parse(self.system_time))

    def write(
        self,
        content: str | bytes,
        read: ReadStep,
        *,
        system_time: str | None = None,
        event_time: str = EVENT_TIME,
        source_state: SourceState | None = None,
        **options: Any,
    ) -> Written:
        system_time = system_time or self.system_time
        path = self.folder / "input"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        state = self.state
        writer = WriterState.of(self.dataset, state, merge_in_force(state), lambda: self.session)
        now = Timestamp.parse(system_time)
        with self.dataset.staging() as staging:
            source = open_input(lambda: self.session, path, read, scratch=staging)
            if source is not None and declared_schema(read) is None:
                source = fix_up(source, writer.vocabulary, operations=writer.merge.TAKES_OPERATIONS)
            write = WriteOptions(
                system_time=now,
                event_time=Timestamp.parse(event_time),
                staging=staging,
                new_source_state=source_state,
                merging=MergeOptions(**options),
            )
            merge = fitted(lambda: self.session, writer, source, write)
            done = (
                recorded_write(writer, None, (), None, write, input_rows=0)
                if merge is None
                else written(writer, merge, merge.run()[0][0])
            )
            slices = done.slices
            checkpoints = [done.checkpoint] if done.checkpoint else []
            commit(self.dataset, state, done.events, slices, checkpoints=checkpoints, system_time=now)
        return done

    def write_csv(
        self, header: Sequence[str], rows: Sequence[Sequence[Any]], ddl: str | None = None, **kwargs: Any
    ) -> Written:
        return self.write(to_csv(header, rows), csv_step(ddl), **kwargs)

    def newest_slice(self) -> Path:
        return self.dataset.data.verified_path(self.state.slices()[-1].slice.physical_hash)

    def rows(self, which: int = -1) -> list[list[Any]]:
        """Rows of a slice, system columns first, in the spelling of the case files."""
        name = self.state.slices()[which].slice.physical_hash
        table = pq.read_table(self.dataset.data.verified_path(name))
        return [[plain(v) for v in row.values()] for row in table.to_pylist()]

    def added(self, count: int) -> list[MetadataEvent]:
        """The newest events, oldest first."""
        return [hb.block.event for _, hb in zip(range(count), self.dataset.chain.walk(), strict=False)][::-1]


def csv_step(ddl: str | None) -> ReadStepCsv:
    columns = tuple(ddl.split(", ")) if ddl is not None else None
    return ReadStepCsv(header=True, ddl_schema=columns, infer_schema=columns is None)


def to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if v is None else v for v in row] for row in rows])
    return out.getvalue()


def plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        ms = f".{value.microsecond // 1000:03}" if value.microsecond else ""
        return value.strftime("%Y-%m-%dT%H:%M:%S") + ms + "Z"
    return str(value) if isinstance(value, dt.date) else value


def parquet_columns(path: Path) -> list[list[str]]:
    """`[name, physical and logical type, repetition]` as the case files spell it; integers physically."""
    schema = pq.ParquetFile(path).schema
    found = []
    for index in range(len(schema)):
        column = schema.column(index)
        logical = str(column.logical_type)
        text = column.physical_type
        if logical == "String":
            text += " STRING"
        elif logical.startswith("Timestamp"):
            unit = {"milliseconds": "MILLIS"}[logical.split("timeUnit=")[1].split(",", maxsplit=1)[0]]
            utc = logical.split("isAdjustedToUTC=")[1].split(",", maxsplit=1)[0]
            text += f" TIMESTAMP({unit},adjustedToUTC={utc})"
        found.append([column.name, text, "OPTIONAL" if column.max_definition_level else "REQUIRED"])
    return found
