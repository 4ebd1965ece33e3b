"""The result of a query as a slice: which columns it must have, their types, the order of its rows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.chain.rules import without_units
from odfchain.errors import QueryError
from odfchain.lazy import F, Window
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.enums import OperationType, TimeUnit
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.schema import check_recordable, recorded
from odfchain.slices.writer import SliceFacts, SliceSpec, parquet_writer
from odfchain.spark.executor_files import (
    ExecutorFiles,
    Handover,
    InputFile,
    StoreFolder,
    copy_put,
    files_of,
    kept_copy,
    worker_folder,
)
from odfchain.spark.input_frames import parquet_rows
from odfchain.spark.stage import write_frame
from odfchain.spark.types import result_schema
from odfchain.storage import fsio
from odfchain.transform.engine_check import Cut
from odfchain.transform.operators import QueryKind
from odfchain.transform.retracting import OPERATION, in_place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


# Files of a step go between driver and executors by shared folders, or by the store (RFC-048). The driver has
# the inputs, because it checks their offsets. Executors without access to its folder read slices from the
# store, and unpacked files from `staging/`; they write to the store, and what the driver needs is copied back
# and hashed.

KeyOf = Callable[[Path], str | None]
"""The key under which a file of the driver is in the store in any case; None where it is not."""


@dataclass(frozen=True, slots=True)
class CutByWorkers:
    """One file, which a worker cuts from slices of the store; fulfils `ReadableFiles` for any key."""

    files: ExecutorFiles
    keys: tuple[str, ...]
    made_of: Cut
    """Without the paths, which are the worker's."""

    def bring(self, key: str) -> Path:  # noqa: ARG002 - there is one file
        """As `ReadableFiles`; it is kept with what was brought."""
        cut_as = self.made_of
        what = (self.keys, cut_as.interval, cut_as.schema.serialize().to_pybytes(), cut_as.vocabulary)
        path, is_there = kept_copy("cut", repr(what).encode())
        if is_there:
            return path
        paths = tuple(self.files.bring(each) for each in self.keys)
        with worker_folder() as folder:
            made = dataclasses.replace(self.made_of, paths=paths).into(folder, "cut")
            assert made is not None  # noqa: S101 - the driver has cut it, too
            if made in paths:
                return made
            with fsio.storage_errors(path):
                made.replace(path)
        return path

    def read(self, key: str, start: int, end: int) -> bytes:
        """As `ReadableFiles`."""
        with self.bring(key).open("rb") as stream:
            stream.seek(start)
            return stream.read(end - start)


class StepFiles:
    """Those of one step; what it put into a store, but for slices that stay, is gone with `resources`."""

    def __init__(
        self,
        session: SparkSession,
        folder: Path,
        resources: contextlib.ExitStack,
        *,
        key_of: KeyOf,
        slices: str | None = None,
    ) -> None:
        """`session` or one like it computes the step, and `folder` is a private one of the driver.

        `slices` is what the keys of slices begin with that are to stay in the store.
        """
        self.folder = folder
        self._files = files_of(session)
        self._handover = Handover(lambda: session, folder, resources)
        self._key_of, self._slices = key_of, slices

    def rows(
        self, session: SparkSession, path: Path, struct: StructType, made_of: Cut | None = None
    ) -> DataFrame:
        """The rows of a Parquet file of the driver, as Spark reads them under a schema, in their order.

        `made_of` is what the file was cut from.
        """
        source = InputFile(path)
        if self._files is not None:
            source = self._handover.give(path, for_spark=False, known=self._known(self._files, path, made_of))
        return parquet_rows(session, source, struct)

    def _known(self, files: ExecutorFiles, path: Path, made_of: Cut | None) -> InputFile | None:
        # None where the store does not have the file
        if (key := self._key_of(path)) is not None:
            return InputFile(path, files, key)
        keys = [self._key_of(each) for each in made_of.paths] if made_of is not None else []
        found = tuple(key for key in keys if key is not None)
        if made_of is None or not found or len(found) < len(keys):
            return None
        return InputFile(path, CutByWorkers(files, found, dataclasses.replace(made_of, paths=())))

    @property
    def keeps_slices(self) -> bool:
        """True if slices that workers write are put where they stay."""
        return self._files is not None and self._slices is not None

    def place(self, *, of_slice: bool = False) -> Callable[[], StoreFolder] | None:
        """The place where executors write files; None where they write into the folder."""
        files = self._files
        if files is None:
            return None
        if of_slice and self._slices is not None:
            return functools.partial(StoreFolder, files, self._slices)
        return functools.partial(self._handover.staging, files)


_MS_UTC = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
_INTEGERS = frozenset({"byte", "short", "integer", "long"})


def check_result(result: StructType, vocabulary: DatasetVocabulary, kind: QueryKind) -> None:
    """The columns of a query's result can become a slice.

    Raises:
        QueryError: naming the column.
    """
    names = result.names
    for name in names:
        if names.count(name) > 1:
            raise QueryError(
                f"the result has two columns `{name}`", hint="give one of them another name: AS …"
            )
        if not name.strip():
            raise QueryError("the result has a column without a name", hint="give it one: AS …")
    for made in (vocabulary.offset_column, vocabulary.system_time_column):
        if made in names:
            raise QueryError(
                f"the result has a column `{made}`, which is made when the slice is written",
                hint="leave it out, or select the columns by name instead of *",
            )
    _check_event_time(result, vocabulary)
    _check_operation(result, vocabulary, kind)
    if kind is not QueryKind.STATELESS:
        for field in result.fields:
            if "map<" in field.dataType.simpleString():
                raise QueryError(
                    f"column `{field.name}` is a map, and maps have no order",
                    hint="use map_entries: sort_array(map_entries(…))",
                )


def _check_event_time(result: StructType, vocabulary: DatasetVocabulary) -> None:
    name = vocabulary.event_time_column
    if name not in result.names:
        raise QueryError(
            f"the result has no column `{name}`: every row needs an event time",
            hint=f"select it, or name a time so: … AS {name}",
        )
    kind = result[name].dataType.typeName()
    if kind not in ("timestamp", "date"):
        raise QueryError(
            f"the event time `{name}` is a {result[name].dataType.simpleString()}, not a timestamp or a date",
            hint="cast it to TIMESTAMP (times are UTC)",
        )


def _check_operation(result: StructType, vocabulary: DatasetVocabulary, kind: QueryKind) -> None:
    name = vocabulary.operation_type_column
    if name not in result.names:
        return
    if result[name].dataType.typeName() not in _INTEGERS:
        raise QueryError(
            f"the operation `{name}` is a {result[name].dataType.simpleString()}, not an integer",
            hint="0 appends, 1 retracts, 2 and 3 correct",
        )
    if kind is not QueryKind.STATELESS:
        raise QueryError(
            f"`{name}` cannot be chosen in a query that looks at more than one row",
            hint="leave it out: the operations follow from what changes in the result",
        )


def result_fields(
    result: StructType, inputs: Iterable[ds.DataSchema], vocabulary: DatasetVocabulary
) -> ds.DataSchema:
    """The schema of the slices of a query: system columns first, then the result's columns in their order.

    Source: specification "Common Data Schema".
    """
    known: dict[str, ds.DataField] = {}
    for schema in inputs:
        for field in schema.fields:
            known.setdefault(field.name, field)
    found = result_schema(result, ds.DataSchema(fields=tuple(known.values())))
    check_recordable(found.fields)
    offset, op, system_time, event_time = vocabulary.columns
    time = found.field(event_time)
    assert time is not None  # noqa: S101 - check_result
    kind: ds.DataType = ds.DataTypeDate() if isinstance(time.value_type, ds.DataTypeDate) else _MS_UTC
    if result[event_time].nullable:
        kind = ds.optional(kind)
    system = (
        ds.DataField(name=offset, type=ds.DataTypeUInt64()),
        ds.DataField(name=op, type=ds.DataTypeUInt8()),
        ds.DataField(name=system_time, type=_MS_UTC),
        ds.DataField(name=event_time, type=kind),
    )
    return ds.DataSchema(fields=system + tuple(f for f in found.fields if f.name not in vocabulary.columns))


def settled_schema(found: ds.DataSchema, declared: ds.DataSchema | None) -> ds.DataSchema:
    """The schema to write: the declared one, with what a new query adds at its end.

    The declared unit of a time stays.

    Source: specification "Schema Evolution".

    Raises:
        QueryError: a declared column is gone or has another type.
    """
    if declared is None:
        return found
    # the first four are the system columns, which `result_fields` makes
    for field in declared.fields[4:]:
        now = found.field(field.name)
        if now is None:
            raise QueryError(
                f"the result has no column `{field.name}` any more, and readers of the dataset count on it",
                hint="select it, or make another dataset",
            )
        if without_units(recorded(now.value_type)) != without_units(recorded(field.value_type)):
            raise QueryError(
                f"column `{field.name}` is {now.value_type.KIND} now and was {field.value_type.KIND}",
                hint="cast it to what it was, or make another dataset",
            )
    names = set(declared.names)
    added = tuple(f for f in found.fields if f.name not in names)
    return ds.DataSchema(fields=declared.fields + added, extra=declared.extra)


def whole_pairs(frame: DataFrame, operation: str) -> DataFrame:
    """The rows with corrections in pairs: where a query kept one half, that is an append or a retraction."""
    # both halves are next to each other; whether two halves are of one pair is not known here
    codes = {op: op.code for op in OperationType}
    in_order = Window.orderBy("i")
    op = F.col(operation)
    # the last row has no next one: a null would make the whole condition null
    following = F.coalesce(F.lead(op).over(in_order), F.lit(-1)) == codes[OperationType.CORRECT_TO]
    leading = F.coalesce(F.lag(op).over(in_order), F.lit(-1)) == codes[OperationType.CORRECT_FROM]
    whole = (
        F.when((op == codes[OperationType.CORRECT_FROM]) & ~following, codes[OperationType.RETRACT])
        .when((op == codes[OperationType.CORRECT_TO]) & ~leading, codes[OperationType.APPEND])
        .otherwise(op)
    )
    # these ids have the order of the rows within one partition only
    numbered = frame.coalesce(1).withColumn("i", F.monotonically_increasing_id())
    return numbered.withColumn(operation, whole).sortWithinPartitions("i").drop("i")


def in_order(frame: DataFrame, names: Sequence[str], event_time: str, kind: QueryKind) -> DataFrame:
    """The rows in the order in which they are recorded (RFC-019).

    Stateless: as they come. Windowed: by event time, then by every column from left to right; a correction
    takes the place of the row that it corrects. Retracting: what is taken back first, then by every column
    from left to right. Nulls come first, NaN last.
    """
    columns = [F.col(f"c{index}").asc_nulls_first() for index in range(len(names))]
    order: list[Column]
    if kind is QueryKind.STATELESS:
        return frame
    if kind is QueryKind.WINDOWED and OPERATION in frame.columns:
        order = in_place(frame, names.index(event_time))
    elif kind is QueryKind.WINDOWED:
        order = [F.col(f"c{names.index(event_time)}").asc_nulls_first(), *columns]
    else:
        order = [F.col(OPERATION).desc(), *columns]
    return frame.coalesce(1).sortWithinPartitions(*order)


def write_output(
    frame: DataFrame,
    names: Sequence[str],
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    *,
    start_offset: int,
    system_time_ms: int,
    files: StepFiles,
    target: Path,
    short: bool,
    few: int,
) -> SliceFacts | None:
    """Write rows as a slice at `target`; without rows a file that only has the schema, and None.

    `short` and `few` as in `write_frame`. The facts have no path where a worker has put the slice into the
    store, too.

    Raises:
        BadInputError, QueryError: a value that does not fit.
    """
    op = vocabulary.operation_type_column
    named = {name: F.col(f"c{index}") for index, name in enumerate(names)}
    if OPERATION in frame.columns:
        named[op] = F.col(OPERATION)
    elif op not in named:
        named[op] = F.lit(0)
    made = (vocabulary.offset_column, vocabulary.system_time_column)
    selected = frame.select(*[named[f.name].alias(f.name) for f in schema.fields if f.name not in made])
    spec = SliceSpec.of(schema, vocabulary, start_offset, system_time_ms, files.folder)
    place = files.place(of_slice=True)
    facts = write_frame(selected, None, spec, short=short, few=few, place=place)
    if facts is None:
        with target.open("xb") as sink:
            parquet_writer(sink, slice_schema(schema), vocabulary).close()
        return None
    wrong = [code for code in facts.ops if int(code) > 3]
    if wrong:
        raise QueryError(
            f"the operation `{op}` is {wrong[0]} in some rows", hint="0 appends, 1 retracts, 2 and 3 correct"
        )
    if facts.path:
        Path(facts.path).replace(target)
    elif place is not None:
        copy_put(place(), facts.physical_hash, facts.size, target)
    return facts
