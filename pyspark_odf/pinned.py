"""A dataset at one block, as the driver finds it and tasks are given it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types as t

from odfchain.errors import PointNotFoundError, SchemaError, UsageError
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.identity import Multihash
from odfchain.odf.schema import DataSchema
from odfchain.spark.types import physical_struct
from odfchain.text import one_line
from odfchain.transfer.reading import Origin, private_folder, slice_objects
from odfchain.transfer.slice_files import DataObject
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import Point, block_at, is_referenced, parse_point, parse_time

_NAMES = {
    "path", "dataset", "point", "asat", "block", "projection", "verify", "requiresignature", "token",
    "cachedir", "filterpushdown", "startingoffset", "maxrecordspertrigger",
}  # fmt: skip
_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user says; Spark hands over names in lower case and values as text."""

    point: Point | None = None
    state: bool = False
    verify: bool = True
    require_signature: bool = False
    filter_pushdown: bool = False
    starting_offset: str = "earliest"
    most_records: int | None = None
    """Records of one micro-batch of a stream."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """The options of a read.

        Raises:
            UsageError: one is not known, or has no value that is known; points are given twice.
            InvalidIdError: a point is none.
        """
        if unknown := sorted(set(given) - _NAMES):
            raise UsageError(f"there is no option {one_line(unknown[0])!r}", hint="; ".join(sorted(_NAMES)))
        points = [name for name in ("point", "asat", "block") if name in given]
        if len(points) > 1:
            raise UsageError(f"the options {' and '.join(points)} say the same thing: give one of them")
        point: Point | None = None
        if points:
            point = (parse_time if points[0] == "asat" else parse_point)(given[points[0]])
        projection = given.get("projection", "records")
        if projection not in ("records", "state"):
            raise UsageError(f"projection is records or state, not {one_line(projection)!r}")
        most = given.get("maxrecordspertrigger")
        if most is not None and not (most.isascii() and most.isdecimal() and int(most)):
            raise UsageError(f"maxRecordsPerTrigger is a number of records, not {one_line(most)!r}")
        return cls(
            point,
            projection == "state",
            _flag(given, "verify", default=True),
            _flag(given, "requiresignature", default=False),
            _flag(given, "filterpushdown", default=False),
            given.get("startingoffset", "earliest"),
            None if most is None else int(most),
        )


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} is true or false, not {one_line(text)!r}")
    return text == "true"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A dataset at one block; goes with the plan to every task."""

    origin: Origin
    options: Options
    alias: str
    block: str
    declared: DataSchema
    vocabulary: DatasetVocabulary
    key: tuple[str, ...]
    """What tells the rows of a state apart."""
    slices: tuple[DataObject, ...]
    """Oldest first."""

    def struct(self) -> t.StructType:
        """The columns as Spark carries them; unsigned ones are wider, but offsets are whole numbers.

        Raises:
            SchemaError: Spark cannot carry a type.
        """
        offset = self.vocabulary.offset_column
        return t.StructType(
            [
                t.StructField(f.name, t.LongType() if f.name == offset else f.dataType)
                for f in physical_struct(self.declared.fields).fields
            ]
        )

    def check(self, wanted: t.StructType) -> None:
        """Nothing when these columns are there; whole numbers may be asked for in another width.

        Raises:
            SchemaError: one is not, or has another type.
        """
        present = {f.name: f.dataType for f in self.struct().fields}
        for column in wanted.fields:
            found = present.get(column.name)
            if found is None:
                raise SchemaError(f"{self.alias} has no column {column.name!r}; it has {', '.join(present)}")
            whole = isinstance(found, _WHOLE) and isinstance(column.dataType, _WHOLE)
            if found != column.dataType and not whole:
                raise SchemaError(
                    f"{self.alias}: column {column.name!r} is {found.simpleString()}, "
                    f"and {column.dataType.simpleString()} was asked for"
                )


class Chain:
    """The chain of a dataset in a private folder of this process, brought up to date when asked."""

    def __init__(self, origin: Origin, *, require_signature: bool) -> None:
        self._origin, self._signed = origin, require_signature
        self._open = contextlib.ExitStack()
        self._folder = self._open.enter_context(private_folder())

    def read(self) -> DatasetFiles:
        """The dataset with its newest head; errors as `Origin.chain`."""
        return self._origin.chain(self._folder, require_signature=self._signed)

    def close(self) -> None:
        """The folder is gone."""
        self._open.close()


def pin(given: Mapping[str, str]) -> Pinned:
    """The dataset that options name, at the block that they name, or the newest one.

    Raises:
        UsageError, InvalidIdError: an option says nothing that can be meant.
        PointNotFoundError, ObjectNotFoundError: the block is no part of the chain.
        And all errors of `Origin.of` and `Origin.chain`.
    """
    options = Options.of(given)
    if "path" not in given:
        raise UsageError("no dataset is named", hint='load("s3://bucket/name"), or another URL or folder')
    origin = Origin.of(
        given["path"], given.get("dataset"), token=given.get("token"), cache=given.get("cachedir")
    )
    chain = Chain(origin, require_signature=options.require_signature)
    try:
        files = chain.read()
        state = DatasetState.read(files.chain, block_of(files, options.point))
        return Pinned(
            origin,
            options,
            str(files.alias),
            str(state.head),
            state.schema or DataSchema(fields=()),
            state.vocabulary,
            state.primary_key if options.state else (),
            tuple(slice_objects(state)),
        )
    finally:
        chain.close()


def block_of(files: DatasetFiles, point: Point | None) -> Multihash | None:
    """The block of the chain that a point means.

    Raises:
        PointNotFoundError, ObjectNotFoundError, DatasetNotFoundError: it has none.
    """
    if point is None:
        return None
    block = block_at(files, point)
    if not is_referenced(files, block, head=DatasetState.read(files.chain).head):
        raise PointNotFoundError(f"{files.alias}: block {block} is not in its chain")
    return block
