"""Open Data Fabric in Python, on Spark: content-addressed, verifiable ledgers of data.

with odfchain.Workspace.find() as workspace:
    flights = workspace.dataset("us.nyc.flights")
    flights.ingest(["2013-01.csv"])
    print(flights.verify().ok, flights.tail(5))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odfchain.version import SPEC_VERSION, __version__

if TYPE_CHECKING:
    from odfchain.api import Dataset, Workspace
    from odfchain.errors import OdfchainError

__all__ = ["SPEC_VERSION", "Dataset", "OdfchainError", "Workspace", "__version__"]


def __getattr__(name: str) -> Any:
    # Loaded on use: the command line asks for little of it, and start-up time is part of its promise.
    if name in ("Dataset", "Workspace"):
        from odfchain import api  # noqa: PLC0415

        return getattr(api, name)
    if name == "OdfchainError":
        from odfchain.errors import OdfchainError as Error  # noqa: PLC0415

        return Error
    raise AttributeError(f"module 'odfchain' has no attribute {name!r}")
