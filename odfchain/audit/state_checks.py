"""Check 10: a retraction, or the old half of a correction, equals a row that is in force.

The rule is that of commits (`odfchain/slices/state.py`). Where there is a primary key, the row in
force is that of the key. Where sources have several keys, what one of them took back another may take back
again, so the row must only have been there. Only datasets with retractions pay for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.audit.chain_checks import Run, StoredChain
from odfchain.audit.input_claims import Find
from odfchain.audit.report import (
    CHECKPOINTS,
    CORRECTIONS,
    FOREIGN_KEYS,
    OF_ENGINES,
    Checking,
    Fault,
    Looked,
    Note,
    Skipped,
    Unjudged,
    fault,
)
from odfchain.audit.slice_checks import UNREADABLE, SliceJob, SliceReading
from odfchain.chain.index import DATA_EVENTS, SOURCES, ReplayHistory, are_of_several_keys
from odfchain.errors import OdfchainError
from odfchain.limits import AUDIT
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.enums import TAKES_BACK
from odfchain.odf.events import AddData, ExecuteTransform, OffsetInterval
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers
from odfchain.slices.state import SliceFile, first_other_row, in_force, taken_back_in_vain
from odfchain.text import one_line
from odfchain.workspace.constraint_rules import Columns
from odfchain.workspace.dataset_state import key_of_sources
from odfchain.workspace.declared_constraints import attached_text, recorded_constraints
from odfchain.workspace.read_slices import StateCheckpoint, read_description


@dataclass(frozen=True, slots=True)
class ReadableSlice:
    """A slice whose rows were found to be as its block says, and the operations in it."""

    job: SliceJob
    file: SliceFile
    operations: tuple[int, ...]

    @property
    def takes_back(self) -> int:
        """How many rows of it take others back."""
        return sum(self.operations[code] for code in TAKES_BACK)

    def in_vain(self, offsets: Numbers, where: str) -> Fault | None:
        """The fault of those of its rows, by their offsets, that take back what is not there."""
        interval = self.job.slice.offset_interval
        mine = offsets[(offsets >= interval.start) & (offsets <= interval.end)]
        if not len(mine):
            return None
        more = f" ({len(mine):,} such rows)" if len(mine) > 1 else ""
        message = f"row at offset {int(mine[0]):,} takes back values that no row {where} has{more}"
        return fault(CORRECTIONS, self.file.path, message, self.job.number)


def readable_slices(checked: SliceReading) -> list[ReadableSlice]:
    """The slices whose rows can be relied on, oldest first."""
    readable = []
    for job in checked.jobs:
        outcome = checked.outcomes[job.number]
        file = job.file(checked.run.dataset.data.path(job.slice.physical_hash), outcome.kept)
        if outcome.operations is None or outcome.faults or file is None:
            continue
        readable.append(ReadableSlice(job, file, outcome.operations))
    return readable


def has_several_keys(chain: StoredChain) -> bool:
    """True if the sources of a dataset have different primary keys."""
    return are_of_several_keys(s.block.event for s in chain.blocks.of(*SOURCES) if s.sound)


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The slices whose rows can be relied on, oldest first; `complete` where they are all that there are."""

    run: Run
    slices: Sequence[ReadableSlice]
    complete: bool

    @classmethod
    def of(cls, run: Run, slices: Sequence[ReadableSlice]) -> CheckedRows:
        """These slices, of those that the chain names up to the end of the range."""
        all_read = run.chain.follows and run.chain.newest is None
        return cls(run, slices, all_read and len(slices) == run.chain.count_slices(run.upto))

    def check_corrections(self) -> Checking[None]:
        """Every row that takes another back finds it."""
        if not (asked := [item for item in self.slices if item.takes_back]):
            return
        if not self.complete:
            yield Skipped(
                [CORRECTIONS], "not all slices could be read that may have the rows which are taken back"
            )
            return
        count = sum(item.takes_back for item in asked)
        # bounded: earlier rows are looked up for each of them
        if count > AUDIT.retractions:
            yield Skipped(
                [CORRECTIONS],
                f"{count:,} rows are taken back; no more than {AUDIT.retractions:,} are compared",
            )
            return
        in_force = not has_several_keys(self.run.chain)
        try:
            files, those = [item.file for item in self.slices], [item.file for item in asked]
            wrong = taken_back_in_vain(files, those, in_force=in_force)
        except MemoryError:
            yield Skipped([CORRECTIONS], "there is not enough memory to compare the rows that are taken back")
            return
        except UNREADABLE as error:
            yield Skipped(
                [CORRECTIONS], f"a slice changed while it was read: {str(error).partition(chr(10))[0]}"
            )
            return
        for item in asked:
            if (found := item.in_vain(wrong, "in force" if in_force else "before")) is not None:
                yield found

    def check_states(self, damaged: Collection[str]) -> Checking[None]:
        """The state checkpoints that blocks `(after, upto]` name, each at the block that names it first.

        What is wrong with the bytes of `damaged` files is found elsewhere.
        """
        for named in (yield from _named(self.run, damaged)):
            path, last = named.described.path, named.described.last_offset
            yield Looked(CHECKPOINTS)
            if named.last_offset is None or last > named.last_offset:
                message = (
                    f"the state is said to be as of offset {last:,}, which comes after block {named.number}"
                )
                yield fault(CHECKPOINTS, path, message, named.number)
                continue
            if not self.complete:
                yield Skipped([CHECKPOINTS], "not all slices are here that the state follows from")
                continue
            if last >= AUDIT.state_rows:
                yield Skipped(
                    [CHECKPOINTS], f"states of more than {AUDIT.state_rows:,} records are not computed anew"
                )
                continue
            try:
                message_or_none = _difference(named.described, self.slices)
            except MemoryError:
                yield Skipped([CHECKPOINTS], "there is not enough memory to compute a state anew")
                continue
            except UNREADABLE as error:
                reason = one_line(error.message if isinstance(error, OdfchainError) else str(error))
                message_or_none = f"the state cannot be read: {reason}"
            if message_or_none is not None:
                yield fault(CHECKPOINTS, path, message_or_none, named.number)

    def check_foreign_keys(self, find: Find) -> Checking[None]:
        """The foreign keys that are declared at the block `upto`, for the rows in force there."""
        run = self.run
        # from the blocks, not from the chain's index: a verification trusts nothing derived
        history = ReplayHistory()
        for stored in run.chain.blocks.of(*_DECLARING):
            if stored.number <= run.upto:
                history.add(stored.block)
        attached = history.nearest_event(ev.SetAttachments)
        try:
            if attached is None or attached_text(attached) is None:
                return
            declared = recorded_constraints(attached)
            if not declared.foreign_keys:
                return
            if not self.complete:
                yield Skipped([FOREIGN_KEYS], "not all slices could be read that have the rows in force")
                return
            from odfchain.branches.foreign_keys import ForeignKeys, Rows

            rows = Rows(
                run.dataset, _columns(run, history, declared.primary_key), declared, None,
                tuple(item.file for item in self.slices),
            )  # fmt: skip
            unknown: list[str] = []
            check = ForeignKeys(find, note=unknown.append)
            for key in rows.constraints.foreign_keys:
                yield Looked(FOREIGN_KEYS)
                broken = check.holds(key, rows)
                yield from (Skipped([FOREIGN_KEYS], text) for text in unknown)
                unknown.clear()
                if broken is not None and broken.refused and key.dataset == run.dataset.id:
                    yield fault(FOREIGN_KEYS, run.dataset.folder, f"{broken.message}: {broken.lines[0]}")
                elif broken is not None:
                    yield Note(f"{broken.message} (check {FOREIGN_KEYS}), such as {broken.lines[0]}")
        except MemoryError:
            yield Skipped([FOREIGN_KEYS], "there is not enough memory to compare keys")
        except OdfchainError as error:
            yield Skipped([FOREIGN_KEYS], error.message)


# Check 13: a state checkpoint has the rows in force up to its offset (RFC-018).
# The state is computed from the slices (`odfchain.slices.state`) and compared by offset, operation and
# values. Checkpoints of engines are opaque: only a replay can check them.


@dataclass(frozen=True, slots=True)
class _Named:
    """A state checkpoint and the block that names it first."""

    number: int
    described: StateCheckpoint
    last_offset: int | None


def _named(run: Run, damaged: Collection[str]) -> Checking[list[_Named]]:
    if not run.chain.blocks.has_checkpoints:
        return []
    found: list[_Named] = []
    seen: set[Multihash] = set()
    for stored in run.chain.within(run.after, run.upto, *DATA_EVENTS):
        event = stored.block.event
        if not isinstance(event, AddData | ExecuteTransform) or event.new_checkpoint is None:
            continue
        name = event.new_checkpoint.physical_hash
        if name in seen:
            continue
        seen.add(name)
        path = Path(run.dataset.checkpoints.locate(name))
        if str(path) in damaged or not path.is_file():
            yield Skipped([CHECKPOINTS], "a checkpoint is missing or damaged")
            continue
        if isinstance(event, ExecuteTransform):
            yield Unjudged(name)
            continue
        try:
            described = read_description(path)
        except OdfchainError as error:
            yield fault(CHECKPOINTS, path, error.message, stored.number)
            continue
        if described is None:
            yield Skipped([CHECKPOINTS], OF_ENGINES)
            continue
        found.append(_Named(stored.number, described, event.last_offset))
    return found


def _difference(described: StateCheckpoint, slices: Sequence[ReadableSlice]) -> str | None:
    recorded = [item for item in slices if item.job.slice.offset_interval.start <= described.last_offset]
    if not recorded:
        return "there are no records that the state could follow from"
    assert described.path is not None  # noqa: S101 - the file was read
    vocabulary, last = recorded[-1].file.vocabulary, described.last_offset
    files = [item.file for item in recorded]
    chosen = in_force(files, described.key, upto=last)
    state = SliceFile(described.path, vocabulary, OffsetInterval(start=0, end=last))
    count, wrong = first_other_row(state, files, chosen, last)
    if count != len(chosen):
        return f"the state has {count:,} rows, its slices leave {len(chosen):,} in force"
    if wrong == len(chosen):
        return None
    return f"the state does not have the row at offset {int(chosen[wrong]):,} as it is recorded"


# Check 18: foreign keys of the rows in force (RFC-037).
# A dangling reference into the same dataset is a fault. Into another one it is a counted note, because that
# one has a history of its own; so is one that the dataset declares as reported only.

_DECLARING = (
    "SetAttachments", "SetDataSchema", "SetVocab", "SetPollingSource", "DisablePollingSource",
    "AddPushSource", "DisablePushSource",
)  # fmt: skip


def _columns(run: Run, history: ReplayHistory, declared: tuple[str, ...]) -> Columns:
    schema = history.nearest_event(ev.SetDataSchema)
    polling = history.nearest_event(ev.SetPollingSource, ev.DisablePollingSource)
    last = history.nearest_event(ev.SetPollingSource, ev.AddPushSource)
    polled = polling if isinstance(polling, ev.SetPollingSource) else None
    known = last if isinstance(last, ev.SetPollingSource | ev.AddPushSource) else None
    key = key_of_sources(polled, history.push_sources(), known)
    found = None if schema is None else schema_of_event(schema.raw_arrow_schema, schema.schema)
    names = ev.DatasetVocabulary.from_event(history.nearest_event(ev.SetVocab))
    return Columns(str(run.dataset.alias), names, found, key or declared)
