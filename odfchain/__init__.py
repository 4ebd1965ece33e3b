"""Open Data Fabric in Python, on Spark: content-addressed, verifiable ledgers of data.

import odfchain as odf

with odf.open(".") as workspace:
    airports = workspace["org.airports"]
    airports.ingest("2025-07.csv")
    airports.verify().raise_if_faulty()
    print(airports.state(["iata", "name"], at="2025-08").to_pandas())
"""

from __future__ import annotations

from odfchain.versions import SPEC_VERSION as SPEC_VERSION
from odfchain.versions import __version__ as __version__

TYPE_CHECKING = False  # as `typing` has it, which takes longer to load than all of this
if TYPE_CHECKING:
    from odfchain import errors as errors
    from odfchain import results as results
    from odfchain.api.dataset import Dataset as Dataset
    from odfchain.api.queries import verify_proof as verify_proof
    from odfchain.api.scan import Scan as Scan
    from odfchain.api.scan import open_dataset as open_dataset
    from odfchain.api.snapshots import Manifest as Manifest
    from odfchain.api.snapshots import Profile as Profile
    from odfchain.api.snapshots import compare_profiles as compare_profiles
    from odfchain.api.view import View as View
    from odfchain.api.workspace import Workspace as Workspace
    from odfchain.api.workspace import init as init
    from odfchain.api.workspace import open as open  # noqa: A004 - as `gzip.open`
    from odfchain.assets.checking import CheckedAsset as CheckedAsset
    from odfchain.assets.locks import AssetLock as AssetLock
    from odfchain.assets.objects import StoreOptions as StoreOptions
    from odfchain.chain.signed_lines import SnapshotKind as SnapshotKind
    from odfchain.errors import OdfchainError as OdfchainError
    from odfchain.odf import events as events
    from odfchain.odf.enums import DatasetKind as DatasetKind
    from odfchain.odf.enums import OperationType as OperationType
    from odfchain.odf.identity import DatasetId as DatasetId
    from odfchain.odf.identity import Multihash as Multihash
    from odfchain.odf.names import DatasetAlias as DatasetAlias
    from odfchain.odf.names import RepoName as RepoName
    from odfchain.odf.schema import DataSchema as DataSchema
    from odfchain.odf.times import Duration as Duration
    from odfchain.odf.times import Timestamp as Timestamp
    from odfchain.progress import Progress as Progress
    from odfchain.progress import WorkDone as WorkDone
    from odfchain.progress import WorkProgress as WorkProgress
    from odfchain.transfer.signed_statements import SignaturePolicy as SignaturePolicy
    from odfchain.transform.validate import StateChange as StateChange
    from odfchain.upkeep.compact import BatchLimits as BatchLimits
    from odfchain.workspace.dataset_state import SystemColumns as SystemColumns

# Where the public names are: loaded on use, because the command line promises a short start.
_PLACES = {
    "errors": "OdfchainError",
    "api.dataset": "Dataset",
    "api.queries": "verify_proof",
    "api.scan": "Scan open_dataset",
    "api.snapshots": "Manifest Profile compare_profiles",
    "api.view": "View",
    "api.workspace": "Workspace init open",
    "assets.checking": "CheckedAsset",
    "assets.locks": "AssetLock",
    "assets.objects": "StoreOptions",
    "transfer.signed_statements": "SignaturePolicy",
    "chain.signed_lines": "SnapshotKind",
    "odf.enums": "DatasetKind OperationType",
    "odf.identity": "DatasetId Multihash",
    "odf.names": "DatasetAlias RepoName",
    "odf.schema": "DataSchema",
    "odf.times": "Duration Timestamp",
    "progress": "Progress WorkDone WorkProgress",
    "transform.validate": "StateChange",
    "upkeep.compact": "BatchLimits",
    "workspace.dataset_state": "SystemColumns",
}
_MODULES = {"errors": "errors", "events": "odf.events", "results": "results"}

__all__ = ["SPEC_VERSION", "__version__", *_MODULES, *" ".join(_PLACES.values()).split()]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415

    if name in _MODULES:
        found = globals()[name] = import_module(f"odfchain.{_MODULES[name]}")
        return found
    for module, names in _PLACES.items():
        if name in names.split():
            found = globals()[name] = getattr(import_module(f"odfchain.{module}"), name)
            return found
    raise AttributeError(f"module 'odfchain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
