"""What the methods of workspaces and datasets return: plans, outcomes, reports and what they hold."""

from __future__ import annotations

from odfchain.api.definitions import Imported
from odfchain.api.pulling import PullResult, PullTarget, PushTarget
from odfchain.api.view import Log
from odfchain.audit.blame import Blame
from odfchain.audit.lineage import Definition, Graph, TextTree
from odfchain.audit.report import CHECKS, Fault, ListedAttestation, Report
from odfchain.audit.verification import NewAttestation
from odfchain.branches.branches import Branch
from odfchain.branches.diff import Change, Diff
from odfchain.branches.merging import MergeOutcome, MergePlan, MergeStatus
from odfchain.branches.recording import ChangeOutcome
from odfchain.branches.row_history import ChangeOrigin, RowChange
from odfchain.chain.chain import HashedBlock
from odfchain.chain.equivocation import Evidence, KeptEvidence
from odfchain.chain.signed_lines import SnapshotLine
from odfchain.chain.statements import Problem
from odfchain.ingest.importing import ImportPlan
from odfchain.ingest.ingesting import IngestOutcome
from odfchain.profiles.drift import Drift, DriftLine, NotCompared
from odfchain.profiles.export import Exported
from odfchain.profiles.published import WrittenSnapshot
from odfchain.query.answers import Answer
from odfchain.query.proofs import ProofVerdict
from odfchain.query.results import QueryResult
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.access_tokens import AccessToken, NewToken
from odfchain.transfer.branch_fetch import FetchedSources
from odfchain.transfer.pulling import FetchOutcome
from odfchain.transfer.pushing import PushOutcome, PushPlan
from odfchain.transfer.repositories import RepositoryEntry
from odfchain.upkeep.compact import CompactPlan, SoftPlan
from odfchain.upkeep.fsck import Finding, FsckReport
from odfchain.upkeep.garbage import Collected
from odfchain.upkeep.reset import Dependent, Remote, ResetPlan
from odfchain.workspace.dataset_state import DatasetState

__all__ = [
    "CHECKS",
    "AccessToken",
    "Answer",
    "Blame",
    "Branch",
    "Change",
    "ChangeOrigin",
    "ChangeOutcome",
    "Collected",
    "CompactPlan",
    "DatasetState",
    "Definition",
    "Dependent",
    "Diff",
    "Drift",
    "DriftLine",
    "Evidence",
    "Exported",
    "Fault",
    "FetchOutcome",
    "FetchedSources",
    "Finding",
    "FsckReport",
    "Graph",
    "HashedBlock",
    "ImportPlan",
    "Imported",
    "IngestOutcome",
    "KeptEvidence",
    "ListedAttestation",
    "Log",
    "MergeOutcome",
    "MergePlan",
    "MergeStatus",
    "NewAttestation",
    "NewToken",
    "NotCompared",
    "PeerUrl",
    "Problem",
    "ProofVerdict",
    "PullResult",
    "PullTarget",
    "PushOutcome",
    "PushPlan",
    "PushTarget",
    "QueryResult",
    "Remote",
    "Report",
    "RepositoryEntry",
    "ResetPlan",
    "RowChange",
    "SnapshotLine",
    "SoftPlan",
    "TextTree",
    "WrittenSnapshot",
]
