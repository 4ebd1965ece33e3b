"""Datasets as DataFrames of a Spark session that is not the workspace's."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.dataset import Dataset
from odfchain.api.scan import At, Scan, scan
from odfchain.api.workspace import Workspace
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.api.opened import OpenedDataset

_ROOT = ".odfchain"
_kept: weakref.WeakKeyDictionary[SparkSession, list[Scan]] = weakref.WeakKeyDictionary()
"""What was opened elsewhere: its slices are brought here for as long as the session may read them."""


def native_frame(
    session: SparkSession, source: Any, *, state: bool, at: At, columns: Sequence[str] | None
) -> DataFrame:
    """What `odfchain.spark.read` gives; errors as there."""
    opened = _found(source, at)
    if isinstance(opened, Dataset):
        found = scan(opened, columns, at)
    else:
        if at is not None and opened is source:
            raise UsageError("an opened dataset is one block already", hint="give `at` to open_dataset")
        found = opened.scan(columns)
        _kept.setdefault(session, []).append(found)
    if state:
        found = dataclasses.replace(found, key=found.summary.primary_key)
    return found.on_spark(session, plain_offset=True)


def _found(source: Any, at: At) -> Dataset | OpenedDataset:
    """The dataset that is meant: itself, a workspace's by its path, or one that is read where it is."""
    from odfchain.api.opened import OpenedDataset, open_dataset

    if isinstance(source, Dataset | OpenedDataset):
        return source
    if not isinstance(source, str | Path):
        raise UsageError(
            f"a {type(source).__name__} is no dataset, and no path of one",
            hint="give a dataset, a URL, or a path such as folder/of/the/workspace/NAME",
        )
    if "://" not in str(source):
        path = Path(source).absolute()
        for folder in path.parents:
            # what is within the folder of a workspace is a path of files, not of names
            if (folder / _ROOT).is_dir() and not path.exists():
                return Workspace.open(folder)[path.relative_to(folder).as_posix()]
    return open_dataset(str(source), at=at)
