"""What every engine is to a coordinator: a pure function from a request to files.

An engine reads the files that a request names and writes the two that it asks for, a slice and a checkpoint.
It keeps nothing between requests, so a request can be repeated, by anybody, with the same result. Source:
specification "Engine Contract", "Engine Protocol"; RFC-019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from odfchain.model.data_schema import DataSchema
    from odfchain.model.engine_messages import RawQueryRequest, TransformRequest
    from odfchain.model.events import OffsetInterval
    from odfchain.model.timestamp import Timestamp
    from odfchain.progress import Progress
    from odfchain.slices.writer import SliceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What a step of a transformation brought.

    The file at `new_data_path` is there when there are rows; without rows it only shows the schema. The file
    at `new_checkpoint_path` is there when the next step needs another one than the step before left.
    """

    offset_interval: OffsetInterval | None
    """Offsets of the new records; None when there are none."""
    watermark: Timestamp | None
    """No later record of the output is older than this; None while that cannot be said."""
    facts: SliceFacts | None = None
    """Hashes and counts of the slice, where the engine computed them while it wrote."""
    keeps_checkpoint: bool = True
    """Whether the checkpoint before stays in force where no new one was written."""
    takes_back_own: bool = False
    """Whether every row that takes another back is known to take back one that the engine emitted."""
    version: str | None = None
    """What an engine elsewhere says that it is; None where it says nothing."""
    put_since: float = 0.0
    """The slice was put into the workspace's store after this [s, `time.monotonic`]; 0: it was not."""


class TransformEngine(Protocol):
    """Executes queries. Calls may come from several threads."""

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        """Execute the next step of a transformation.

        `schema` is what the output is declared as so far, for engines that can follow it.

        Raises:
            QueryError: the query is at fault (InvalidQuery).
            EngineError: the engine is (InternalError).
        """

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Run a query over raw files, exposed as the table `input`; returns the number of records written.

        Raises:
            QueryError: the query is at fault (InvalidQuery).
            EngineError: the engine is (InternalError).
        """


@runtime_checkable
class VersionedEngine(TransformEngine, Protocol):
    """An engine that says which one it is, to whoever asks it over the protocol."""

    @property
    def version(self) -> str:
        """Another one may give other results: visible ASCII, without blanks."""


@runtime_checkable
class CountingEngine(TransformEngine, Protocol):
    """An engine that can say what a step would bring, so that several are executed at the same time."""

    def rows_of(self, request: TransformRequest, *, progress: Progress) -> int | None:
        """How many records the step brings, where each comes of one row of one input; None for other queries.

        The records of such a step are in the order of the rows that they come of. Raises as `execute`.
        """

    def tasks(self) -> int:
        """How many steps are worth executing at the same time."""


@runtime_checkable
class KeepingEngine(TransformEngine, Protocol):
    """An engine that may put slices where they stay, before they are committed."""

    def keeping(self, slices: str) -> TransformEngine:
        """The engine, which puts slices into the workspace's store under this key where that saves a way."""
