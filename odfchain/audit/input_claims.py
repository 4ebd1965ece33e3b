"""Check 14: what executions say of their inputs is so in the chains of these inputs.

For every input of every execution: the blocks that it names are in one chain of the input (of its head, or of
a branch) and in their order, the offsets are those at these blocks, and what is read for the first time is
read from the beginning (that each execution continues the one before it is an append rule). An input that is
not here, or that was rewritten since, proves nothing either way. Source: specification
"ExecuteTransformInput".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from odfchain.audit.chain_checks import Run, StoredBlock, StoredChain
from odfchain.audit.report import INPUTS, Checking, Finding, LeftOut, Looked, Skipped, fault
from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.errors import OdfchainError
from odfchain.odf.events import AddData, ExecuteTransform, ExecuteTransformInput, SetTransform
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.points import branch_names


def missing_input(alias: str | None, target: object) -> str:
    """The message for an input that is not here."""
    return f"its input {f'{alias} ({target})' if alias else target} is not in this workspace"


Find = Callable[[DatasetId], DatasetFiles | None]


@dataclass(frozen=True, slots=True)
class _InputHead:
    """The state of an input at one of its blocks."""

    number: int
    last_offset: int | None
    watermark: Timestamp | None
    # The chain that it is on; of several, the first.
    line: int


@dataclass(slots=True)
class _InputChain:
    """The blocks of an input that its head, or a branch, leads to."""

    dataset: DatasetFiles
    places: dict[Multihash, _InputHead] = field(default_factory=dict)
    # For each chain, the block of an earlier one from which it goes its own way; None for the first.
    forks: list[_InputHead | None] = field(default_factory=list)
    head: Multihash | None = None

    def add(self, chain: MetadataChain) -> None:
        new: list[HashedBlock] = []
        for item in chain.walk():
            # another reference has led here before: the rest is known
            if item.hash in self.places:
                break
            new.append(item)
        before = self.places[new[-1].block.prev_block_hash] if new and new[-1].block.prev_block_hash else None
        offset = before.last_offset if before is not None else None
        mark = before.watermark if before is not None else None
        for name, block in reversed(new):
            if isinstance(block.event, AddData | ExecuteTransform):
                offset, mark = block.event.last_offset, block.event.new_watermark
            self.places[name] = _InputHead(block.sequence_number, offset, mark, len(self.forks))
        self.forks.append(before)

    def is_before(self, one: _InputHead, other: _InputHead) -> bool:
        place: _InputHead | None = other
        # a fork's chain continues on the line that it left
        while place is not None and place.line != one.line:
            place = self.forks[place.line]
        return place is not None and (one.number < place.number or (one == place and place is not other))


@dataclass(slots=True)
class InputChains:
    """The chains of the inputs, each walked once and only when it is asked for."""

    find: Find
    _known: dict[DatasetId, _InputChain | str | None] = field(default_factory=dict)

    def of(self, dataset_id: DatasetId) -> _InputChain | str | None:
        """An input; None when it is not here, and the reason when its chain cannot be read."""
        if dataset_id not in self._known:
            dataset = self.find(dataset_id)
            self._known[dataset_id] = None if dataset is None else _walked(dataset)
        return self._known[dataset_id]

    def watermarks(self, event: ExecuteTransform) -> Sequence[Timestamp | None] | None:
        """The inputs' watermarks at the blocks that an execution names; None when they are not at hand."""
        marks: list[Timestamp | None] = []
        for item in event.query_inputs:
            known = self.of(item.dataset_id)
            end = item.last_block_hash
            if not isinstance(known, _InputChain) or end is None or end not in known.places:
                return None
            marks.append(known.places[end].watermark)
        return marks

    def check(self, run: Run, *, wanted: bool) -> Checking[None]:
        """Those of the blocks `(after, upto]`; with `wanted`, what cannot be checked is not clean."""
        aliases = _aliases(run.chain)
        for stored, event, continued in _steps(run.chain, run.after, run.upto):
            path = run.block_file(stored.name)
            for item in event.query_inputs[continued:]:
                if item.prev_block_hash is not None or item.prev_offset is not None:
                    named = aliases.get(item.dataset_id)
                    where = f"input {f'{named} ' if named else ''}({item.dataset_id})"
                    message = (
                        f"{where}: it is read for the first time, and what comes before is left out: block "
                    )
                    message += f"{item.prev_block_hash or 'none'} and offset {_text(item.prev_offset)}"
                    yield fault(INPUTS, path, message, stored.number)
            for item in event.query_inputs:
                known = self.of(item.dataset_id)
                alias = aliases.get(item.dataset_id)
                if not isinstance(known, _InputChain):
                    reason = known if known is not None else missing_input(alias, item.dataset_id)
                    yield _left_out(reason, stored.number, wanted=wanted)
                    continue
                ends = (item.prev_block_hash, item.new_block_hash)
                lost = next((end for end in ends if end is not None and end not in known.places), None)
                if lost is not None:
                    from odfchain.transform.planner import diverged

                    where = f"block {stored.number}"
                    why = diverged(run.dataset, known.dataset, item.dataset_id, lost, known.head, where=where)
                    yield _left_out(why.message, stored.number, wanted=wanted)
                    continue
                yield Looked(INPUTS)
                for message in _contradictions(item, known, alias):
                    yield fault(INPUTS, path, message, stored.number)


def _walked(dataset: DatasetFiles) -> _InputChain | str:
    found = _InputChain(dataset)
    try:
        found.head = dataset.chain.head()
        found.add(dataset.chain)
    except OdfchainError as error:
        return f"the chain of its input {dataset.alias} cannot be followed: {error.message}"
    for name in branch_names(dataset):
        with contextlib.suppress(OdfchainError):  # its own verification says what is wrong
            found.add(dataset.on(name).chain)
    return found


def _steps(chain: StoredChain, after: int, upto: int) -> Iterator[tuple[StoredBlock, ExecuteTransform, int]]:
    before: int | None = 0 if chain.complete else None
    for stored in chain.blocks.of(ExecuteTransform.KIND):
        if not stored.sound:
            # the execution before cannot be read: the next one's inputs count as read for the first time
            before = None
        elif isinstance(event := stored.block.event, ExecuteTransform):
            count = len(event.query_inputs)
            if after < stored.number <= upto:
                yield stored, event, count if before is None else before
            before = None if before is None else count


def _left_out(reason: str, number: int, *, wanted: bool) -> Finding:
    return LeftOut(reason, number, INPUTS) if wanted else Skipped([INPUTS], reason)


def _contradictions(item: ExecuteTransformInput, known: _InputChain, alias: str | None) -> Iterator[str]:
    where = f"input {alias or known.dataset.alias} ({item.dataset_id})"
    prev, new = item.prev_block_hash, item.new_block_hash
    before = known.places[prev] if prev is not None else None
    if before is not None and new is not None and not known.is_before(before, known.places[new]):
        yield f"{where}: newBlockHash {new} does not come after prevBlockHash {prev}"
        return
    offset = before.last_offset if before is not None else None
    if item.prev_offset != offset:
        said = f"{where}: prevOffset is {_text(item.prev_offset)}"
        yield f"{said}, and at prevBlockHash the input ends at {_text(offset)}"
    end = known.places[new].last_offset if new is not None else offset
    if item.last_offset != end and item.prev_offset == offset:
        yield (
            f"{where}: it was read up to offset {_text(item.last_offset)}, and at block {new or prev} "
            f"the input ends at {_text(end)}"
        )
    elif item.new_offset is not None and item.new_offset == offset:
        yield f"{where}: newOffset {item.new_offset} brings no records"


def _text(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)


def _aliases(chain: StoredChain) -> dict[DatasetId, str]:
    from odfchain.audit.lineage import input_aliases

    found: dict[DatasetId, str] = {}
    for stored in chain.blocks.of(SetTransform.KIND):
        if stored.sound and isinstance(stored.block.event, SetTransform):
            found |= input_aliases(stored.block.event)
    return found
