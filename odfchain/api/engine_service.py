"""Executing transformations for other processes (gRPC); the library for that is loaded on use."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.engine.remote.protocol import DEFAULT_PORT
from odfchain.engine.remote.service import EngineServer, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.api.workspace import Workspace

__all__ = ["DEFAULT_PORT", "EngineServer", "engine_service"]


@contextlib.contextmanager
def engine_service(
    workspace: Workspace | None, *, host: str, port: int, socket: Path | None, heap_mib: int
) -> Iterator[EngineServer]:
    """A server that executes at once what it is asked for: on the workspace's session, or on one of its own.

    `heap_mib` is Java's heap where there is no workspace. The session ends with the block.

    Raises:
        JavaNotFoundError, EngineError: Spark does not start, or the address cannot be listened on.
    """
    with _session(workspace, heap_mib) as session:
        session()  # "listening" means that a request is executed at once
        from odfchain.engine.inprocess import SparkTransformEngine

        with serve(SparkTransformEngine(session), host=host, port=port, socket=socket) as server:
            yield server


@contextlib.contextmanager
def _session(workspace: Workspace | None, heap_mib: int) -> Iterator[Callable[[], SparkSession]]:
    if workspace is not None:
        with workspace:
            yield workspace.session
        return
    from odfchain.spark.session import SparkEngine

    with tempfile.TemporaryDirectory(prefix="odfchain-engine-") as folder:
        spark = SparkEngine(Path(folder), driver_memory=f"{heap_mib}m")
        try:
            yield lambda: spark.session
        finally:
            spark.close()
