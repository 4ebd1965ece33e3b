"""The engine of this process with a limit on how long one step may take, and a place for its slices."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.engine.inprocess import SparkTransformEngine
from odfchain.engine.interface import Executed

if TYPE_CHECKING:
    from odfchain.model.data_schema import DataSchema
    from odfchain.model.engine_messages import RawQueryRequest, TransformRequest
    from odfchain.progress import Progress


@dataclass(frozen=True, slots=True)
class LimitedEngine:
    """Ends what takes longer than `seconds`, if any; starting Spark does not count."""

    engine: SparkTransformEngine
    seconds: float | None = None
    slices: str | None = None
    """As `SparkTransformEngine.execute` has it."""

    def keeping(self, slices: str) -> LimitedEngine:
        """As `KeepingEngine.keeping`."""
        return dataclasses.replace(self, slices=slices)

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        """As `SparkTransformEngine.execute`."""
        return self.engine.execute(
            request, schema=schema, progress=progress, deadline=self.seconds, slices=self.slices
        )

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """As `SparkTransformEngine.query`."""
        return self.engine.query(request, progress=progress, deadline=self.seconds)

    def rows_of(self, request: TransformRequest, *, progress: Progress) -> int | None:
        """As `SparkTransformEngine.rows_of`."""
        return self.engine.rows_of(request, progress=progress, deadline=self.seconds)

    def tasks(self) -> int:
        """As `SparkTransformEngine.tasks`."""
        return self.engine.tasks()
