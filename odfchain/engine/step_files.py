"""How the files of a step go between the driver and the workers: by folders that both see, or by the store.

The driver has what goes in, for it has to look at it: slices whose offsets it has checked, and rows that a
checkpoint remembers. Workers that see no folder of its own get a small file within the plan, slices from the
store, which they cut as the driver has, and what was unpacked by `staging/`. What they write they put into
the store, where it may be to stay; what the driver needs of it is copied back and hashed (RFC-048).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from odfchain.engine.input_slice import cut
from odfchain.model.events import DatasetVocabulary, OffsetInterval
from odfchain.spark.executor_files import ExecutorFiles, StoreFolder, files_of, kept_copy, worker_folder
from odfchain.spark.input_files import Handover, InputFile
from odfchain.spark.input_frames import parquet_rows
from odfchain.store import fsio

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KeyOf = Callable[[Path], str | None]
"""The key under which a file of the driver is in the store in any case; None where it is not."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What `odfchain.engine.input_slice.cut` is given."""

    paths: tuple[Path, ...]
    interval: OffsetInterval | None
    schema: pa.Schema
    vocabulary: DatasetVocabulary

    def into(self, folder: Path, name: str) -> Path | None:
        """The file; as `cut`."""
        return cut(self.paths, self.interval, self.schema, self.vocabulary, folder, name)


@dataclass(frozen=True, slots=True)
class CutByWorkers:
    """One file, which a worker cuts from slices of the store; fulfils `ReadableFiles`, whatever the key."""

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
        """How workers come to a file by what is in the store in any case; None where they do not."""
        if (key := self._key_of(path)) is not None:
            return InputFile(path, files, key)
        keys = [self._key_of(each) for each in made_of.paths] if made_of is not None else []
        found = tuple(key for key in keys if key is not None)
        if made_of is None or not found or len(found) < len(keys):
            return None
        return InputFile(path, CutByWorkers(files, found, dataclasses.replace(made_of, paths=())))

    @property
    def keeps_slices(self) -> bool:
        """Whether slices that workers write are put where they stay."""
        return self._files is not None and self._slices is not None

    def place(self, *, of_slice: bool = False) -> Callable[[], StoreFolder] | None:
        """What says where workers put what they write; None where they write into the folder."""
        files = self._files
        if files is None:
            return None
        if of_slice and self._slices is not None:
            return functools.partial(StoreFolder, files, self._slices)
        return functools.partial(self._handover.staging, files)
