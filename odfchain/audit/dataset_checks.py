"""Verifying a dataset: the chain, the rules, and every byte and row of every slice.

Numbered checks, each with its section of the specification. Faults are collected, not stopped at; every
fault names the file. Nothing derived (such as the chain index) is trusted.

     1  the head is a reference to a stored block                        "Metadata Chain"
     2  every block's bytes hash to its name and decode                  "Metadata Block Hashing"
     3  previous hashes and sequence numbers link the blocks to a Seed   "MetadataBlock"
     4  every block may follow the blocks before it                      "Metadata Reference"
     5  every slice and checkpoint is there, with its declared size      "DataSlice", "Checkpoint"
     6  its bytes hash to the physical hash                              "Physical and Logical Hashes"
     7  its records hash to the logical hash                             "Physical and Logical Hashes"
     8  its rows are as many as its offsets, which have no gaps          "Offset"
     9  system columns: names, types, order, operations, system time     "Common Data Schema"
    10  -C is followed by its +C; what is taken back was in force        "Representation of Retractions …"
    11  columns are as they are declared                                 "SetDataSchema"
    12  watermarks never go back and are not ahead of the data           "Watermark"
    13  a state checkpoint is the state                                  "Checkpoint"; RFC-018
    14  inputs are what executions say of them                           "ExecuteTransformInput"
    15  transactions computed again give what is recorded (replay.py)    "Dataset Validation"
    16  the owner signed the head                                        "Metadata Chain"
    17  merges are what their two sides merge into (merge_check.py)      "AddData"; RFC-036
    18  what rows refer to by foreign keys is there                      "SetAttachments"; RFC-037
    19  what footers report is true of the rows (slice_checks.py)        "DataSlice"; RFC-043
    20  signed manifests are what chain and footers give                 RFC-043
    21  signed profiles are what the rows give (where it is asked for)   RFC-043

A check that cannot run says why, and never passes. The reading of files is spread over threads: hashing and
decoding release the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.audit.chain_checks import (
    EVERYTHING,
    Range,
    StoredChain,
    check_rules,
    count_slices,
    describe_blocks,
    hash_at,
    note_index,
    read_chain,
    resolve_range,
)
from odfchain.audit.head_check import attested, check_signature, leave_out_signature
from odfchain.audit.input_claims import Find, InputChains, check_inputs
from odfchain.audit.report import CHECKS, FOREIGN_KEYS, MERGES, PROFILES, REPLAY, STATISTICS, Report
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.chain.statements import Attestation
from odfchain.errors import InvalidIdError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import DatasetId
from odfchain.progress import SILENT, Progress
from odfchain.workspace.dataset_files import DatasetFiles

_UNFOLLOWED = "the chain cannot be followed: what is below was not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How far a verification goes, and whose word is taken."""

    span: Range = EVERYTHING
    """Checks 4 to 15 are about these blocks; what comes before them is read, and its hashes are checked."""
    jobs: int = 2
    """Slices that are read side by side."""
    inputs_wanted: bool = False
    """True if inputs that are not here leave the result incomplete."""
    require_signature: bool = False
    """An unsigned head is a fault."""
    signature_unread: str | None = None
    """The reason for an unknown signature of the head; None where it can be read."""
    profiles: bool = False
    """Signed profiles are computed again."""
    trusted: tuple[str, ...] = ()
    """Auditors whose attestations are marked as trusted."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A report, and what a replay goes on with."""

    report: Report
    chain: StoredChain
    after: int
    upto: int
    attestations: tuple[Attestation, ...] = ()


_WHOLE = Scope()


def verify_dataset(dataset: DatasetFiles, progress: Progress = SILENT, *, jobs: int = 2) -> Report:
    """Run all checks but the replay on a dataset by itself; `jobs` slices are read side by side.

    Never raises for what is wrong with the dataset: that is in the report.
    """
    return examine(dataset, Scope(jobs=jobs), progress=progress).report


def examine(
    dataset: DatasetFiles, scope: Scope = _WHOLE, find: Find = lambda _: None, progress: Progress = SILENT
) -> Verified:
    """Run all checks but the replay; `find` finds the inputs."""
    report = Report("unknown", dataset.label, None)
    chain = read_chain(dataset, report, progress, last=scope.span.last)
    if not chain.blocks:
        report.skip((n for n in CHECKS if n > 1), "there is no chain that could be read")
        report.sort()
        return Verified(report, chain, -1, -1)
    after, upto = resolve_range(dataset, chain, scope.span)
    report.after = hash_at(chain, after) if scope.span.after is not None or chain.newest is not None else None
    report.upto = hash_at(chain, upto) if scope.span.upto is not None else None
    describe_blocks(chain, after, upto, report)
    check_rules(dataset, chain, after, upto, report)
    _check_data(dataset, chain, after, upto, scope, find, report, progress)
    if not chain.complete:
        report.skip([*range(3, REPLAY), MERGES, FOREIGN_KEYS, STATISTICS], _UNFOLLOWED)
    if report.kind is not DatasetKind.ROOT:
        report.skip([REPLAY], "it was not asked for (--replay)")
    identity = _identity(report)
    if scope.signature_unread is None:
        check_signature(dataset, chain, identity, report, required=scope.require_signature)
    else:
        leave_out_signature(scope.signature_unread, report, required=scope.require_signature)
    known = attested(dataset, chain, identity, scope.trusted, report)
    note_index(dataset, chain, report)
    report.sort()
    return Verified(report, chain, after, upto, tuple(known))


def _identity(report: Report) -> DatasetId | None:
    try:
        return DatasetId.parse(report.dataset_id) if report.kind is not None else None
    except InvalidIdError:
        return None


def _check_data(
    dataset: DatasetFiles,
    chain: StoredChain,
    after: int,
    upto: int,
    scope: Scope,
    find: Find,
    report: Report,
    progress: Progress,
) -> None:
    # Loaded here: reading slices needs Arrow, and following the chain does not.
    from odfchain.audit.merge_check import check_merges
    from odfchain.audit.slice_checks import (
        check_objects,
        check_system_times,
        read_slices,
    )
    from odfchain.audit.snapshot_checks import (
        check_manifests,
        signed_lines,
    )
    from odfchain.audit.state_checks import (
        check_corrections,
        check_foreign_keys,
        check_states,
        check_watermarks,
        has_several_keys,
        readable_slices,
    )

    jobs = check_objects(dataset, chain, after, upto, report)
    outcomes = read_slices(dataset, jobs, scope.jobs, report, progress)
    report.faults += check_system_times(dataset.data, jobs, outcomes)
    inputs = InputChains(find)
    if report.kind is not DatasetKind.ROOT:
        check_inputs(dataset, chain, after, upto, inputs, report, wanted=scope.inputs_wanted)
    check_watermarks(dataset, chain, after, upto, outcomes, inputs.watermarks, report)
    readable = readable_slices(dataset, jobs, outcomes)
    complete = chain.follows and chain.newest is None and len(readable) == count_slices(chain, upto)
    check_corrections(readable, report, complete=complete, in_force=not has_several_keys(chain))
    check_states(dataset, chain, after, upto, readable, report, complete=complete)
    check_foreign_keys(dataset, chain, upto, readable, find, report, complete=complete)
    check_merges(dataset, chain, after, upto, outcomes, find, report, jobs=scope.jobs, progress=progress)
    lines = signed_lines(dataset, chain, after, upto, _identity(report), report)
    hashed = {number for number, outcome in outcomes.items() if outcome.as_recorded}
    check_manifests(dataset, chain, [s for s in lines if s.kind is SnapshotKind.MANIFEST], hashed, report)
    profiles = [line for line in lines if line.kind is SnapshotKind.PROFILE]
    if profiles and scope.profiles:
        from odfchain.audit.snapshot_checks import check_profiles

        check_profiles(dataset, chain, profiles, report, progress)
    elif profiles:
        report.skip([PROFILES], "it was not asked for (--profiles)")
