"""Open Data Fabric in Python, on Spark: content-addressed, verifiable ledgers of data.

import odfchain as odf

with odf.open(".") as workspace:
    airports = workspace["org.airports"]
    airports.ingest("2025-07.csv")
    airports.verify().raise_if_faulty()
    print(airports.state(["iata", "name"], at="2025-08").to_pandas())
"""

from __future__ import annotations

from odfchain.versions import SPEC_VERSION, __version__

TYPE_CHECKING = False  # as `typing` has it, which takes longer to load than all of this
if TYPE_CHECKING:
    from odfchain import errors, results
    from odfchain.api.dataset import Dataset
    from odfchain.api.queries import verify_proof
    from odfchain.api.scan import Scan, open_dataset
    from odfchain.api.snapshots import Manifest, Profile, compare_profiles
    from odfchain.api.view import View
    from odfchain.api.workspace import Workspace, init, open  # noqa: A004 - as `gzip.open`
    from odfchain.assets.checking import CheckedAsset
    from odfchain.assets.locks import AssetLock
    from odfchain.assets.objects import StoreOptions
    from odfchain.chain.signed_lines import SnapshotKind
    from odfchain.errors import OdfchainError
    from odfchain.odf import events
    from odfchain.odf.enums import DatasetKind, OperationType
    from odfchain.odf.identity import DatasetId, Multihash
    from odfchain.odf.names import DatasetAlias, RepoName
    from odfchain.odf.schema import DataSchema
    from odfchain.odf.times import Duration, Timestamp
    from odfchain.progress import Progress, WorkDone, WorkProgress
    from odfchain.transfer.signed_statements import SignaturePolicy
    from odfchain.transform.validate import StateChange
    from odfchain.upkeep.compact import BatchLimits
    from odfchain.workspace.dataset_state import SystemColumns

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

__all__ = [
    "SPEC_VERSION",
    "AssetLock",
    "BatchLimits",
    "CheckedAsset",
    "DataSchema",
    "Dataset",
    "DatasetAlias",
    "DatasetId",
    "DatasetKind",
    "Duration",
    "Manifest",
    "Multihash",
    "OdfchainError",
    "OperationType",
    "Profile",
    "Progress",
    "RepoName",
    "Scan",
    "SignaturePolicy",
    "SnapshotKind",
    "StateChange",
    "StoreOptions",
    "SystemColumns",
    "Timestamp",
    "View",
    "WorkDone",
    "WorkProgress",
    "Workspace",
    "__version__",
    "compare_profiles",
    "errors",
    "events",
    "init",
    "open",
    "open_dataset",
    "results",
    "verify_proof",
]


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
