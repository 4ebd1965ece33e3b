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
    from odfchain.api.branch_points import DatasetAt
    from odfchain.api.dataset import Dataset
    from odfchain.api.imported import Imported
    from odfchain.api.opened import OpenedDataset, open_dataset
    from odfchain.api.proofs import verify_proof
    from odfchain.api.pull_targets import PullResult, PullTarget
    from odfchain.api.push_targets import PushTarget
    from odfchain.api.scan import Scan
    from odfchain.api.snapshots import Manifest, Profile, compare_profiles
    from odfchain.api.views import Log
    from odfchain.api.workspace import Workspace
    from odfchain.api.workspace_at import init, open  # noqa: A004 - as `gzip.open`
    from odfchain.assets.checking import CheckedAsset
    from odfchain.audit.auditing import ListedAttestation, NewAttestation
    from odfchain.audit.checks import CHECKS
    from odfchain.audit.report import Fault, Report
    from odfchain.branch.branches import Branch
    from odfchain.branch.diffing import Change, Diff
    from odfchain.branch.merge_values import MergeOutcome, MergePlan, MergeStatus
    from odfchain.branch.recording import ChangeOutcome
    from odfchain.branch.row_history import ChangeOrigin, RowChange
    from odfchain.chain.chain import HashedBlock
    from odfchain.drift.drift_values import Drift, DriftLine, NotCompared
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
    from odfchain.export.exporting import Exported
    from odfchain.ids.did import DatasetId
    from odfchain.ids.multihash import Multihash
    from odfchain.ids.names import DatasetAlias, RepoName
    from odfchain.ingest.importing import ImportPlan
    from odfchain.ingest.ingesting import IngestOutcome
    from odfchain.lineage.graph import Graph
    from odfchain.lineage.graph_document import TextTree
    from odfchain.lineage.provenance import Blame
    from odfchain.lineage.queries import Definition
    from odfchain.manifest.published_objects import WrittenSnapshot
    from odfchain.model.data_schema import DataSchema
    from odfchain.model.duration import Duration
    from odfchain.model.enums import DatasetKind, OperationType
    from odfchain.model.events import (
        AddData,
        AddPushSource,
        DatasetVocabulary,
        DisablePollingSource,
        DisablePushSource,
        ExecuteTransform,
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
    from odfchain.model.metadata_block import DatasetSnapshot, MetadataBlock
    from odfchain.model.timestamp import Timestamp
    from odfchain.progress import Progress, WorkDone, WorkProgress
    from odfchain.query.answer import Answer
    from odfchain.query.answer_verdicts import ProofVerdict
    from odfchain.query.query_result import QueryResult
    from odfchain.repo.dataset_state import DatasetState
    from odfchain.repo.system_columns import SystemColumns
    from odfchain.serve.access_tokens import AccessToken, NewToken
    from odfchain.transfer.branch_pulling import FetchedSources
    from odfchain.transfer.catalog import RepositoryEntry
    from odfchain.transfer.partial import FetchOutcome
    from odfchain.transfer.public_layout import PeerUrl
    from odfchain.transfer.pushing import PushOutcome, PushPlan
    from odfchain.transform.state_change import StateChange
    from odfchain.trust.problems import Problem
    from odfchain.trust.proof_store import KeptEvidence
    from odfchain.trust.signature_policy import SignaturePolicy
    from odfchain.trust.snapshot_lines import SnapshotKind, SnapshotLine
    from odfchain.trust.two_histories import Evidence
    from odfchain.upkeep.batches import BatchLimits
    from odfchain.upkeep.downstream import Dependent, Remote
    from odfchain.upkeep.garbage import Collected
    from odfchain.upkeep.hard_compaction import CompactPlan
    from odfchain.upkeep.repair import Finding, FsckReport
    from odfchain.upkeep.rollback import ResetPlan
    from odfchain.upkeep.soft import SoftPlan

_PLACES = {
    "api.asset_locks": "AssetLock StoreOptions",
    "api.branch_points": "DatasetAt",
    "api.dataset": "Dataset",
    "api.imported": "Imported",
    "api.opened": "OpenedDataset open_dataset",
    "api.proofs": "verify_proof",
    "api.pull_targets": "PullResult PullTarget",
    "api.push_targets": "PushTarget",
    "api.scan": "Scan",
    "api.snapshots": "Manifest Profile compare_profiles",
    "api.views": "Log",
    "api.workspace": "Workspace",
    "api.workspace_at": "init open",
    "assets.checking": "CheckedAsset",
    "audit.auditing": "ListedAttestation NewAttestation",
    "audit.checks": "CHECKS",
    "audit.report": "Fault Report",
    "branch.branches": "Branch",
    "branch.recording": "ChangeOutcome",
    "branch.diffing": "Change Diff",
    "branch.merge_values": "MergeOutcome MergePlan MergeStatus",
    "branch.row_history": "ChangeOrigin RowChange",
    "chain.chain": "HashedBlock",
    "drift.drift_values": "Drift DriftLine NotCompared",
    "export.exporting": "Exported",
    "ids.did": "DatasetId",
    "ids.multihash": "Multihash",
    "ids.names": "DatasetAlias RepoName",
    "ingest.importing": "ImportPlan",
    "ingest.ingesting": "IngestOutcome",
    "lineage.graph": "Graph",
    "lineage.graph_document": "TextTree",
    "lineage.provenance": "Blame",
    "lineage.queries": "Definition",
    "manifest.published_objects": "WrittenSnapshot",
    "model.data_schema": "DataSchema",
    "model.duration": "Duration",
    "model.enums": "DatasetKind OperationType",
    "model.events": (
        "AddData AddPushSource DatasetVocabulary DisablePollingSource DisablePushSource "
        "ExecuteTransform MetadataEvent Seed SetAttachments SetDataSchema SetInfo SetLicense "
        "SetPollingSource SetTransform SetVocab"
    ),
    "model.metadata_block": "DatasetSnapshot MetadataBlock",
    "model.timestamp": "Timestamp",
    "progress": "Progress WorkDone WorkProgress",
    "query.answer": "Answer",
    "query.answer_verdicts": "ProofVerdict",
    "query.query_result": "QueryResult",
    "repo.dataset_state": "DatasetState",
    "repo.system_columns": "SystemColumns",
    "serve.access_tokens": "AccessToken NewToken",
    "transfer.branch_pulling": "FetchedSources",
    "transfer.catalog": "RepositoryEntry",
    "transfer.partial": "FetchOutcome",
    "transfer.public_layout": "PeerUrl",
    "transfer.pushing": "PushOutcome PushPlan",
    "transform.state_change": "StateChange",
    "trust.problems": "Problem",
    "trust.two_histories": "Evidence",
    "trust.proof_store": "KeptEvidence",
    "trust.signature_policy": "SignaturePolicy",
    "trust.snapshot_lines": "SnapshotKind SnapshotLine",
    "upkeep.batches": "BatchLimits",
    "upkeep.downstream": "Dependent Remote",
    "upkeep.garbage": "Collected",
    "upkeep.hard_compaction": "CompactPlan",
    "upkeep.repair": "Finding FsckReport",
    "upkeep.rollback": "ResetPlan",
    "upkeep.soft": "SoftPlan",
}
"""Where the public names are: loaded on use, because the command line promises a short start."""

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
