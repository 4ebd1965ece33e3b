"""What `DATASET@POINT` means: for what writes a branch, for what reads any point of the history."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.api.known_errors import OwnErrors
from odfchain.api.options import Time, as_time
from odfchain.errors import UsageError
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.repo import points
from odfchain.repo.points import OnBranch, Point, parse_point
from odfchain.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.api.dataset import Dataset
    from odfchain.api.scan import Scan
    from odfchain.api.views import Log
    from odfchain.api.workspace import Workspace
    from odfchain.branch.row_history import RowChange
    from odfchain.repo.dataset_files import DatasetFiles

AnyPoint = Multihash | int | Timestamp | dt.date | str
"""A point of a history: as text `BRANCH`, `[BRANCH:]NUMBER`, `[BRANCH:]TIME` or a block hash."""


@dataclass(frozen=True, slots=True)
class DatasetAt(OwnErrors):
    """A dataset as of one point of its history. What is committed later does not change it.

    Of a branch by name the point is its newest block at each call.
    """

    dataset: Dataset
    """The dataset as if that block were its newest; it is only read."""

    def scan(self, columns: Sequence[str] | None = None) -> Scan:
        """The records up to the point, as `Dataset.scan`."""
        return self.dataset.scan(columns)

    def state(
        self,
        columns: Sequence[str] | None = None,
        *,
        key: Sequence[str] | None = None,
        event_time: Time | None = None,
    ) -> Scan:
        """The records in force at the point, as `Dataset.state`; `to_arrow()` and `to_spark()` read them."""
        return self.dataset.state(columns, key=key, event_time=event_time)

    def history(self, key: Mapping[str, Any], *, limit: int | None = None) -> list[RowChange]:
        """The changes of one row up to the point, as `Dataset.history`."""
        return self.dataset.history(key, limit=limit)

    def tail(self, count: int = 10, *, skip: int = 0) -> pa.Table:
        """The newest records at the point, as `Dataset.tail`."""
        return self.dataset.tail(count, skip=skip)

    def log(self, limit: int | None = None) -> Log:
        """The blocks from the point to the Seed, as `Dataset.log`."""
        return self.dataset.log(limit)


def as_point(at: AnyPoint) -> Point:
    """The point that a value means.

    Raises:
        InvalidIdError: a text that is no point.
    """
    if isinstance(at, str):
        return parse_point(at)
    return at if isinstance(at, Multihash | int) else as_time(at)


def dataset_of(workspace: Workspace, files: DatasetFiles) -> Dataset:
    """The dataset of these files."""
    from odfchain.api.dataset import Dataset

    return Dataset(workspace, files)


def opened_at(files: DatasetFiles, workspace: Workspace, point: Point) -> Dataset:
    """The dataset on a branch, or as of a block and then only read.

    Raises:
        FuturePointError: a time in the future.
        BranchNotFoundError, PointNotFoundError, DatasetNotFoundError: there is no such branch or block.
    """
    return dataset_of(workspace, points.opened_at(files, point))


def at_point(workspace: Workspace, text: str) -> Dataset:
    """The dataset that `DATASET[@POINT]` names, for who reads.

    Raises:
        InvalidIdError: not a name, or not a point.
        DatasetNotFoundError: there is no such dataset.
        And as `opened_at`.
    """
    name, at, point = text.partition("@")
    found = workspace[name]
    return opened_at(found._files, workspace, parse_point(point)) if at else found


def matching_at(workspace: Workspace, text: str) -> list[Dataset]:
    """Every dataset that `PATTERN[@POINT]` names, for who reads; errors as `at_point`."""
    name, at, point = text.partition("@")
    found = workspace.matching(name)
    return [opened_at(d._files, workspace, parse_point(point)) for d in found] if at else found


def on_branch(workspace: Workspace, text: str) -> Dataset:
    """The dataset that `DATASET[@BRANCH]` names, for who writes.

    Raises:
        UsageError: the point is no branch.
        And as `at_point`.
    """
    check_branch(text)
    return at_point(workspace, text)


def check_branch(text: str) -> None:
    """What is behind the `@` of a dataset that is written to is a branch, or there is none.

    Raises:
        UsageError, InvalidIdError: it is another point, or none.
    """
    name, at, after = text.partition("@")
    if not at:
        return
    point = parse_point(after)
    if not isinstance(point, OnBranch) or point.at is not None:
        raise UsageError(
            f"{one_line(text)}: what is written to is a branch, not a point of the past",
            hint=f"`odfchain branch create {one_line(name)} NAME --at {one_line(after)}` makes one there",
        )
