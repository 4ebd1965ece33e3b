"""What the methods of workspaces and datasets return: plans, outcomes, reports and what they hold."""

from __future__ import annotations

from odfchain.api.definitions import Imported as Imported
from odfchain.api.pulling import PullResult as PullResult
from odfchain.api.pulling import PullTarget as PullTarget
from odfchain.api.pulling import PushTarget as PushTarget
from odfchain.api.status import DatasetStatus as DatasetStatus
from odfchain.api.status import StatusItem as StatusItem
from odfchain.api.view import Log as Log
from odfchain.audit.blame import Blame as Blame
from odfchain.audit.lineage import Definition as Definition
from odfchain.audit.lineage import Graph as Graph
from odfchain.audit.lineage import TextTree as TextTree
from odfchain.audit.report import CHECKS as CHECKS
from odfchain.audit.report import Fault as Fault
from odfchain.audit.report import ListedAttestation as ListedAttestation
from odfchain.audit.report import Report as Report
from odfchain.audit.verification import NewAttestation as NewAttestation
from odfchain.branches.branches import Branch as Branch
from odfchain.branches.diff import Change as Change
from odfchain.branches.diff import Diff as Diff
from odfchain.branches.merging import MergeOutcome as MergeOutcome
from odfchain.branches.merging import MergePlan as MergePlan
from odfchain.branches.merging import MergeStatus as MergeStatus
from odfchain.branches.recording import ChangeOutcome as ChangeOutcome
from odfchain.branches.row_history import ChangeOrigin as ChangeOrigin
from odfchain.branches.row_history import RowChange as RowChange
from odfchain.chain.chain import HashedBlock as HashedBlock
from odfchain.chain.equivocation import Evidence as Evidence
from odfchain.chain.equivocation import KeptEvidence as KeptEvidence
from odfchain.chain.signed_lines import SnapshotLine as SnapshotLine
from odfchain.chain.statements import Problem as Problem
from odfchain.ingest.importing import ImportPlan as ImportPlan
from odfchain.ingest.ingesting import IngestOutcome as IngestOutcome
from odfchain.profiles.drift import Drift as Drift
from odfchain.profiles.drift import DriftLine as DriftLine
from odfchain.profiles.drift import NotCompared as NotCompared
from odfchain.profiles.export import Exported as Exported
from odfchain.profiles.published import WrittenSnapshot as WrittenSnapshot
from odfchain.query.answers import Answer as Answer
from odfchain.query.proofs import ProofVerdict as ProofVerdict
from odfchain.query.results import QueryResult as QueryResult
from odfchain.storage.locations import PeerUrl as PeerUrl
from odfchain.transfer.access_tokens import AccessToken as AccessToken
from odfchain.transfer.access_tokens import NewToken as NewToken
from odfchain.transfer.branch_fetch import FetchedSources as FetchedSources
from odfchain.transfer.pulling import FetchOutcome as FetchOutcome
from odfchain.transfer.pushing import PushOutcome as PushOutcome
from odfchain.transfer.pushing import PushPlan as PushPlan
from odfchain.transfer.repositories import RepositoryEntry as RepositoryEntry
from odfchain.upkeep.compact import CompactPlan as CompactPlan
from odfchain.upkeep.compact import SoftPlan as SoftPlan
from odfchain.upkeep.fsck import Finding as Finding
from odfchain.upkeep.fsck import FsckReport as FsckReport
from odfchain.upkeep.garbage import Collected as Collected
from odfchain.upkeep.reset import Dependent as Dependent
from odfchain.upkeep.reset import Remote as Remote
from odfchain.upkeep.reset import ResetPlan as ResetPlan
from odfchain.workspace.dataset_state import DatasetState as DatasetState

__all__ = [name for name in [*globals()] if name[0].isupper()]
