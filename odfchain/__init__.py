"""Open Data Fabric in Python, on Spark: content-addressed, verifiable ledgers of data.

with odfchain.Workspace.find() as workspace:
    flights = workspace.dataset("us.nyc.flights")
    flights.ingest(["2013-01.csv"])
    print(flights.verify().ok, flights.tail(5))
"""

from __future__ import annotations

from odfchain.version import SPEC_VERSION, __version__

TYPE_CHECKING = False  # as `typing` has it, which takes longer to load than all of this
if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.audit.auditing import ListedAttestation
    from odfchain.audit.checks import CHECKS
    from odfchain.audit.report import Report
    from odfchain.chain.chain import HashedBlock
    from odfchain.errors import OdfchainError
    from odfchain.ids.did import DatasetId
    from odfchain.ids.multihash import Multihash
    from odfchain.ids.names import DatasetAlias, RepoName
    from odfchain.ingest.importing import ImportPlan
    from odfchain.ingest.ingest import IngestOutcome
    from odfchain.lineage.blame import Blame
    from odfchain.lineage.graph import Graph
    from odfchain.lineage.graph_document import TextTree
    from odfchain.lineage.queries import Definition
    from odfchain.model.block import DatasetSnapshot, MetadataBlock
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
    from odfchain.model.timestamp import Timestamp
    from odfchain.repo.system_columns import SystemColumns
    from odfchain.transfer.catalog import RepositoryEntry
    from odfchain.transfer.public_layout import PeerUrl
    from odfchain.transfer.push import PushPlan
    from odfchain.transform.state_change import StateChange
    from odfchain.trust.policy import SignaturePolicy
    from odfchain.trust.problems import Problem
    from odfchain.trust.proof import Evidence
    from odfchain.trust.proof_store import KeptEvidence
    from odfchain.upkeep.batches import BatchLimits
    from odfchain.upkeep.compact import CompactPlan
    from odfchain.upkeep.downstream import Dependent, Remote
    from odfchain.upkeep.fsck import Finding, FsckReport
    from odfchain.upkeep.gc import Collected
    from odfchain.upkeep.reset import ResetPlan
    from odfchain.upkeep.soft import SoftPlan

_PLACES = {
    "api.dataset": "Dataset",
    "api.workspace": "Workspace",
    "audit.auditing": "ListedAttestation",
    "audit.checks": "CHECKS",
    "audit.report": "Report",
    "chain.chain": "HashedBlock",
    "errors": "OdfchainError",
    "ids.did": "DatasetId",
    "ids.multihash": "Multihash",
    "ids.names": "DatasetAlias RepoName",
    "ingest.importing": "ImportPlan",
    "ingest.ingest": "IngestOutcome",
    "lineage.blame": "Blame",
    "lineage.graph": "Graph",
    "lineage.graph_document": "TextTree",
    "lineage.queries": "Definition",
    "model.block": "DatasetSnapshot MetadataBlock",
    "model.data_schema": "DataSchema",
    "model.duration": "Duration",
    "model.enums": "DatasetKind OperationType",
    "model.events": (
        "AddData AddPushSource DatasetVocabulary DisablePollingSource DisablePushSource "
        "ExecuteTransform MetadataEvent Seed SetAttachments SetDataSchema SetInfo SetLicense "
        "SetPollingSource SetTransform SetVocab "
    ),
    "model.timestamp": "Timestamp",
    "repo.system_columns": "SystemColumns",
    "transfer.catalog": "RepositoryEntry",
    "transfer.public_layout": "PeerUrl",
    "transfer.push": "PushPlan",
    "transform.state_change": "StateChange",
    "trust.policy": "SignaturePolicy",
    "trust.problems": "Problem",
    "trust.proof": "Evidence",
    "trust.proof_store": "KeptEvidence",
    "upkeep.batches": "BatchLimits",
    "upkeep.compact": "CompactPlan",
    "upkeep.downstream": "Dependent Remote",
    "upkeep.fsck": "Finding FsckReport",
    "upkeep.gc": "Collected",
    "upkeep.reset": "ResetPlan",
    "upkeep.soft": "SoftPlan",
}
"""Where the public names are: loaded on use, because the command line promises a short start."""

__all__ = [
    "CHECKS", "SPEC_VERSION", "AddData", "AddPushSource", "BatchLimits", "Blame", "Collected",
    "CompactPlan", "DataSchema", "Dataset", "DatasetAlias", "DatasetId", "DatasetKind", "DatasetSnapshot",
    "DatasetVocabulary", "Definition", "Dependent", "DisablePollingSource", "DisablePushSource", "Duration",
    "Evidence", "ExecuteTransform", "Finding", "FsckReport", "Graph", "HashedBlock", "ImportPlan",
    "IngestOutcome", "KeptEvidence", "ListedAttestation", "MetadataBlock", "MetadataEvent", "Multihash",
    "OdfchainError", "OperationType", "PeerUrl", "Problem", "PushPlan", "Remote", "RepoName", "Report",
    "RepositoryEntry", "ResetPlan", "Seed", "SetAttachments", "SetDataSchema", "SetInfo", "SetLicense",
    "SetPollingSource", "SetTransform", "SetVocab", "SignaturePolicy", "SoftPlan", "StateChange",
    "SystemColumns", "TextTree", "Timestamp", "Workspace", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415

    for module, names in _PLACES.items():
        if name in names.split():
            found = globals()[name] = getattr(import_module(f"odfchain.{module}"), name)
            return found
    raise AttributeError(f"module 'odfchain' has no attribute {name!r}")
