"""How the files of a step go between the driver and the workers: by folders that both see, or by the store.

The driver has what goes in, for it has to look at it: slices whose offsets it has checked, and rows that a
checkpoint remembers. Workers that see no folder of its own get a small file within the plan, a slice as it is
in the store from there, and what was cut or unpacked by `staging/`. What they write they put into the store,
where it may be to stay; what the driver needs of it is copied back and hashed (RFC-048).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.spark.executor_files import StoreFolder, files_of
from odfchain.spark.input_files import Handover, InputFile
from odfchain.spark.input_frames import parquet_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KeyOf = Callable[[Path], str | None]
"""The key under which a file of the driver is in the store in any case; None where it is not."""


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

    def rows(self, session: SparkSession, path: Path, struct: StructType) -> DataFrame:
        """The rows of a Parquet file of the driver, as Spark reads them under a schema, in their order.

        Raises:
            OdfchainError: as `ExecutorFiles.put`.
        """
        source = InputFile(path)
        if self._files is not None:
            source = self._handover.give(path, for_spark=False, key=self._key_of(path))
        return parquet_rows(session, source, struct)

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
