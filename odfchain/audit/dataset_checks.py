"""Verifying a dataset: the chain, the rules, and every byte and row of every slice.

The numbered checks are those of `report.CHECKS`. Faults are collected, not stopped at; every fault names the
file. Nothing derived (such as the chain index) is trusted.

A check that cannot run says why, and never passes. The reading of files is spread over threads: hashing and
decoding release the interpreter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from odfchain.audit.chain_checks import Run, StoredBlock, StoredChain, check_rules, read_chain
from odfchain.audit.input_claims import Find, InputChains
from odfchain.audit.report import CHECKS, FOREIGN_KEYS, MERGES, REPLAY, STATISTICS, BlockLine, Report, Skipped
from odfchain.audit.signature_checks import SignedStatements
from odfchain.audit.slice_checks import SliceReading
from odfchain.audit.state_checks import CheckedRows, readable_slices
from odfchain.chain.index import MERGE
from odfchain.errors import UsageError
from odfchain.odf.events import AddData, ExecuteTransform
from odfchain.odf.identity import Multihash
from odfchain.text import one_line
from odfchain.workspace.config import TrustConfig
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import MergeMode, MergeRecord
from odfchain.workspace.options import BlockName, VerifyOptions

_UNFOLLOWED = "the chain cannot be followed: what is below was not reached"


_DEFAULTS = VerifyOptions()


@dataclass(frozen=True, slots=True)
class Examined:
    """What was verified of a dataset, and the report of it."""

    run: Run
    report: Report


def examine(
    dataset: DatasetFiles,
    options: VerifyOptions = _DEFAULTS,
    find: Find = lambda _: None,
    *,
    trusted: Collection[str] = (),
    signature_unread: str | None = None,
    trust: TrustConfig | None = None,
    elsewhere: bool = False,
) -> Examined:
    """Run all checks but the replay; `find` finds the inputs, `trusted` are auditors.

    `signature_unread` is the reason for an unknown signature of the head; None where it can be read. `trust`
    says which witnesses are known, and how many of them are wanted. What is `elsewhere` was not seen before.
    """
    progress = options.progress
    if options.last is None:
        dataset = dataset.reindexed()
    report = Report("unknown", dataset.label, None)
    chain = report.take(read_chain(dataset, progress, last=options.last))
    report.head = str(chain.head) if chain.head is not None else None
    if not chain.blocks:
        report.add(Skipped([n for n in CHECKS if n > 1], "there is no chain that could be read"))
        report.sort()
        return Examined(Run(dataset, chain, -1, -1, progress), report)
    report.sequence_number = chain.blocks.newest.number
    if chain.seed is not None:
        report.dataset_id, report.kind = str(chain.seed.dataset_id), chain.seed.dataset_kind
    after, upto = _resolve_range(dataset, chain, options)
    report.after = chain.hash_at(after) if options.after is not None or chain.newest is not None else None
    report.upto = chain.hash_at(upto) if options.upto is not None else None
    run = Run(dataset, chain, after, upto, progress)
    statements = SignedStatements(run, not elsewhere)
    report.lines = _BlockLines(run, {item.block.hash: item.record for item in chain.merges()})
    report.take(check_rules(run))
    hashed = _check_data(run, report, options, find)
    report.take(statements.check_snapshots(hashed, profiles=options.profiles))
    if not chain.complete:
        report.add(Skipped([*range(3, REPLAY), MERGES, FOREIGN_KEYS, STATISTICS], _UNFOLLOWED))
    if not chain.is_root:
        report.add(Skipped([REPLAY], "it was not asked for (--replay)"))
    if signature_unread is None:
        report.take(statements.check_head(required=options.require_signature))
    else:
        report.take(statements.leave_out_head(signature_unread, required=options.require_signature))
    report.take(statements.check_note(trust or TrustConfig()))
    report.take(statements.check_attestations(trusted))
    report.sort()
    return Examined(run, report)


def _check_data(run: Run, report: Report, options: VerifyOptions, find: Find) -> set[int]:
    # the blocks whose slices have the recorded bytes
    checked, inputs = report.take(SliceReading.of(run, options.jobs)), InputChains(find)
    if not run.chain.is_root:
        report.take(inputs.check(run, wanted=options.replay or options.recursive))
    report.take(checked.check_watermarks(inputs.watermarks))
    rows = CheckedRows.of(run, readable_slices(checked))
    report.take(rows.check_corrections())
    report.take(rows.check_states({fault.file for fault in report.faults}))
    report.take(rows.check_foreign_keys(find))
    if any(run.chain.blocks.newest_first(MERGE)):
        from odfchain.audit.merge_check import MergeCheck

        report.take(MergeCheck(checked, find, options.jobs).check())
    return {number for number, outcome in checked.outcomes.items() if outcome.as_recorded}


def _resolve_range(dataset: DatasetFiles, chain: StoredChain, options: VerifyOptions) -> tuple[int, int]:
    """Sequence numbers `(after, upto]` of the range."""
    last = chain.blocks.newest.number if chain.blocks else -1
    if options.last is not None:
        return (chain.newest - 1 if chain.newest is not None else -1), last
    after = -1 if options.after is None else _number(dataset, chain, options.after)
    upto = last if options.upto is None else _number(dataset, chain, options.upto)
    if after > upto:
        raise UsageError(
            f"{dataset.alias}: the range begins after block {after} and ends with block {upto}",
            hint="a range is (from, to]: the older block first",
        )
    return after, upto


def _number(dataset: DatasetFiles, chain: StoredChain, name: BlockName) -> int:
    for row in chain.blocks.rows():
        if name in (row.name, row.number):
            return row.number
    raise UsageError(f"{dataset.alias}: block {name} is not in its chain")


class _BlockLines:
    """The lines of a report about the blocks of a range, made when they are asked for."""

    def __init__(self, run: Run, merged: Mapping[Multihash, MergeRecord]) -> None:
        self._run, self._merged = run, merged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BlockLines | list) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __iter__(self) -> Iterator[BlockLine]:
        for stored in self._run.chain.blocks:
            if self._run.after < stored.number <= self._run.upto:
                yield _line(stored, self._merged.get(stored.name))


def _line(stored: StoredBlock, record: MergeRecord | None) -> BlockLine:
    event, count, mark = stored.block.event, 0, None
    if isinstance(event, AddData | ExecuteTransform) and stored.sound:
        count = event.new_data.offset_interval.count if event.new_data is not None else 0
        mark = event.new_watermark
    branch = one_line(record.source_ref) if record and record.mode is MergeMode.MERGE else None
    return BlockLine(stored.number, stored.name, stored.block.system_time, event.KIND, count, mark, branch)
