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
    from odfchain.api.asset_locks import AssetLock, StoreOptions
    from odfchain.api.branching import DatasetAt
    from odfchain.api.dataset import Dataset, Log
    from odfchain.api.definitions import Imported
    from odfchain.api.pulling import PullResult, PullTarget
    from odfchain.api.pushing import PushTarget
    from odfchain.api.queries import verify_proof
    from odfchain.api.scan import OpenedDataset, Scan, open_dataset
    from odfchain.api.snapshots import Manifest, Profile, compare_profiles
    from odfchain.api.workspace import Workspace, init, open  # noqa: A004 - as `gzip.open`
    from odfchain.assets.checking import CheckedAsset
    from odfchain.audit.blame import Blame
    from odfchain.audit.lineage import Definition, Graph, TextTree
    from odfchain.audit.report import CHECKS, Fault, Report
    from odfchain.audit.verification import ListedAttestation, NewAttestation
    from odfchain.branches.branches import Branch
    from odfchain.branches.diff import Change, Diff
    from odfchain.branches.merging import MergeOutcome, MergePlan, MergeStatus
    from odfchain.branches.recording import ChangeOutcome
    from odfchain.branches.row_history import ChangeOrigin, RowChange
    from odfchain.chain.chain import HashedBlock
    from odfchain.chain.equivocation import Evidence, KeptEvidence
    from odfchain.chain.signed_lines import SnapshotKind, SnapshotLine
    from odfchain.chain.statements import Problem
    from odfchain.errors import (
        AccessError,
        AppendError,
        AssetError,
        BadInputError,
        BranchNotFoundError,
        BrokenChainError,
        BusyError,
        ChainError,
        ChainsDifferError,
        CodecError,
        CorruptedPeerError,
        DamagedLockError,
        DatasetNotFoundError,
        DatasetsDivergedError,
        DecodeError,
        DestinationAheadError,
        DivergedInputError,
        EngineError,
        FetchError,
        ForeignKeyError,
        FuturePointError,
        GuardError,
        IncompatibleSchemaError,
        IngestError,
        InvalidIdError,
        JavaNotFoundError,
        LockNotFoundError,
        ManifestError,
        MergeConflictError,
        NameCollisionError,
        NotAWorkspaceError,
        NothingToCommitError,
        ObjectCorruptedError,
        ObjectNotFoundError,
        OdfchainError,
        OutcomeUnknownError,
        OversizedInputError,
        PartialCopyError,
        PointNotFoundError,
        PrepareError,
        QueryError,
        RefConflictError,
        RefusedQueryError,
        RollbackError,
        SchemaError,
        SetBackError,
        SignatureError,
        SliceNotFoundError,
        SourceNotFoundError,
        StorageFullError,
        StoreError,
        TransferError,
        TransformError,
        UnsavedBlocksError,
        UnsupportedPeerError,
        UnsupportedVersionError,
        UsageError,
        WorkspaceError,
    )
    from odfchain.ingest.importing import ImportPlan
    from odfchain.ingest.ingesting import IngestOutcome
    from odfchain.odf.enums import DatasetKind, OperationType
    from odfchain.odf.events import (
        AddData,
        AddPushSource,
        DatasetSnapshot,
        DatasetVocabulary,
        DisablePollingSource,
        DisablePushSource,
        ExecuteTransform,
        MetadataBlock,
        MetadataEvent,
        Seed,
        SetAttachments,
        SetDataSchema,
        SetInfo,
        SetLicense,
        SetPollingSource,
        SetTransform,
        SetVocab,
    )
    from odfchain.odf.identity import DatasetId, Multihash
    from odfchain.odf.names import DatasetAlias, RepoName
    from odfchain.odf.schema import DataSchema
    from odfchain.odf.times import Duration, Timestamp
    from odfchain.profiles.drift import Drift, DriftLine, NotCompared
    from odfchain.profiles.export import Exported
    from odfchain.profiles.published import WrittenSnapshot
    from odfchain.progress import Progress, WorkDone, WorkProgress
    from odfchain.query.answers import Answer
    from odfchain.query.proofs import ProofVerdict
    from odfchain.query.results import QueryResult
    from odfchain.transfer.access_tokens import AccessToken, NewToken
    from odfchain.transfer.branch_fetch import FetchedSources
    from odfchain.transfer.public_layout import PeerUrl
    from odfchain.transfer.pushing import PushOutcome, PushPlan
    from odfchain.transfer.repositories import RepositoryEntry
    from odfchain.transfer.signed_statements import SignaturePolicy
    from odfchain.transfer.slice_files import FetchOutcome
    from odfchain.transform.validate import StateChange
    from odfchain.upkeep.compact import BatchLimits, CompactPlan, SoftPlan
    from odfchain.upkeep.fsck import Finding, FsckReport
    from odfchain.upkeep.garbage import Collected
    from odfchain.upkeep.reset import Dependent, Remote, ResetPlan
    from odfchain.workspace.dataset_state import DatasetState, SystemColumns

# Where the public names are: loaded on use, because the command line promises a short start.
_PLACES = {
    "api.asset_locks": "AssetLock StoreOptions",
    "api.branching": "DatasetAt",
    "api.dataset": "Dataset Log",
    "api.definitions": "Imported",
    "api.pulling": "PullResult PullTarget",
    "api.pushing": "PushTarget",
    "api.queries": "verify_proof",
    "api.scan": "OpenedDataset Scan open_dataset",
    "api.snapshots": "Manifest Profile compare_profiles",
    "api.workspace": "Workspace init open",
    "assets.checking": "CheckedAsset",
    "audit.blame": "Blame",
    "audit.lineage": "Definition Graph TextTree",
    "audit.report": "CHECKS Fault Report",
    "audit.verification": "ListedAttestation NewAttestation",
    "branches.branches": "Branch",
    "branches.diff": "Change Diff",
    "branches.merging": "MergeOutcome MergePlan MergeStatus",
    "branches.recording": "ChangeOutcome",
    "branches.row_history": "ChangeOrigin RowChange",
    "chain.chain": "HashedBlock",
    "chain.equivocation": "Evidence KeptEvidence",
    "transfer.signed_statements": "SignaturePolicy",
    "chain.signed_lines": "SnapshotKind SnapshotLine",
    "chain.statements": "Problem",
    "ingest.importing": "ImportPlan",
    "ingest.ingesting": "IngestOutcome",
    "odf.enums": "DatasetKind OperationType",
    "odf.events": (
        "AddData AddPushSource DatasetSnapshot DatasetVocabulary DisablePollingSource "
        "DisablePushSource ExecuteTransform MetadataBlock MetadataEvent Seed SetAttachments "
        "SetDataSchema SetInfo SetLicense SetPollingSource SetTransform SetVocab"
    ),
    "odf.identity": "DatasetId Multihash",
    "odf.names": "DatasetAlias RepoName",
    "odf.schema": "DataSchema",
    "odf.times": "Duration Timestamp",
    "profiles.drift": "Drift DriftLine NotCompared",
    "profiles.export": "Exported",
    "profiles.published": "WrittenSnapshot",
    "progress": "Progress WorkDone WorkProgress",
    "query.answers": "Answer",
    "query.proofs": "ProofVerdict",
    "query.results": "QueryResult",
    "transfer.access_tokens": "AccessToken NewToken",
    "transfer.branch_fetch": "FetchedSources",
    "transfer.public_layout": "PeerUrl",
    "transfer.pushing": "PushOutcome PushPlan",
    "transfer.repositories": "RepositoryEntry",
    "transfer.slice_files": "FetchOutcome",
    "transform.validate": "StateChange",
    "upkeep.compact": "BatchLimits CompactPlan SoftPlan",
    "upkeep.fsck": "Finding FsckReport",
    "upkeep.garbage": "Collected",
    "upkeep.reset": "Dependent Remote ResetPlan",
    "workspace.dataset_state": "DatasetState SystemColumns",
}

__all__ = [
    "CHECKS", "SPEC_VERSION", "AccessError", "AccessToken", "AddData", "AddPushSource", "Answer",
    "AppendError", "AssetError", "AssetLock", "BadInputError", "BatchLimits", "Blame", "Branch",
    "BranchNotFoundError", "BrokenChainError", "BusyError", "ChainError", "ChainsDifferError", "Change",
    "ChangeOrigin", "ChangeOutcome", "CheckedAsset", "CodecError", "Collected", "CompactPlan",
    "CorruptedPeerError", "DamagedLockError", "DataSchema", "Dataset", "DatasetAlias", "DatasetAt",
    "DatasetId", "DatasetKind", "DatasetNotFoundError", "DatasetSnapshot", "DatasetState",
    "DatasetVocabulary", "DatasetsDivergedError", "DecodeError", "Definition", "Dependent",
    "DestinationAheadError", "Diff", "DisablePollingSource", "DisablePushSource", "DivergedInputError",
    "Drift", "DriftLine", "Duration", "EngineError", "Evidence", "ExecuteTransform", "Exported", "Fault",
    "FetchError", "FetchOutcome", "FetchedSources", "Finding", "ForeignKeyError", "FsckReport",
    "FuturePointError", "Graph", "GuardError", "HashedBlock", "ImportPlan", "Imported",
    "IncompatibleSchemaError", "IngestError", "IngestOutcome", "InvalidIdError", "JavaNotFoundError",
    "KeptEvidence", "ListedAttestation", "LockNotFoundError", "Log", "Manifest", "ManifestError",
    "MergeConflictError", "MergeOutcome", "MergePlan", "MergeStatus", "MetadataBlock", "MetadataEvent",
    "Multihash", "NameCollisionError", "NewAttestation", "NewToken", "NotAWorkspaceError", "NotCompared",
    "NothingToCommitError", "ObjectCorruptedError", "ObjectNotFoundError", "OdfchainError",
    "OpenedDataset", "OperationType", "OutcomeUnknownError", "OversizedInputError",
    "PartialCopyError", "PeerUrl",
    "PointNotFoundError", "PrepareError", "Problem", "Profile", "Progress", "ProofVerdict", "PullResult",
    "PullTarget", "PushOutcome", "PushPlan", "PushTarget", "QueryError", "QueryResult",
    "RefConflictError", "RefusedQueryError", "Remote", "RepoName", "Report", "RepositoryEntry",
    "ResetPlan", "RollbackError", "RowChange", "Scan", "SchemaError", "Seed", "SetAttachments",
    "SetBackError", "SetDataSchema", "SetInfo", "SetLicense", "SetPollingSource", "SetTransform",
    "SetVocab", "SignatureError", "SignaturePolicy", "SliceNotFoundError", "SnapshotKind",
    "SnapshotLine", "SoftPlan", "SourceNotFoundError", "StateChange", "StorageFullError", "StoreError",
    "StoreOptions", "SystemColumns", "TextTree", "Timestamp", "TransferError", "TransformError",
    "UnsavedBlocksError", "UnsupportedPeerError", "UnsupportedVersionError", "UsageError", "WorkDone",
    "WorkProgress", "Workspace", "WorkspaceError", "WrittenSnapshot", "__version__", "compare_profiles",
    "init", "open", "open_dataset", "verify_proof",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415

    if name.endswith("Error") and name in __all__:
        return getattr(import_module("odfchain.errors"), name)
    for module, names in _PLACES.items():
        if name in names.split():
            found = globals()[name] = getattr(import_module(f"odfchain.{module}"), name)
            return found
    raise AttributeError(f"module 'odfchain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
