"""Checks 1 to 4: the chain as it is stored, read block by block; nothing derived is trusted.

A block whose bytes do not hash to its name is a fault, and what it says is believed in nothing: it is walked
through where its predecessor proves itself by its own hash and number, and the files that it names are not
accused. What depends on all earlier blocks (rules, names of columns, schemas) is not judged behind it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from odfchain.audit.checks import BLOCKS, HEAD, LINKS, RULES
from odfchain.audit.newest_blocks import add_what_is_in_force
from odfchain.audit.report import BlockLine, Report
from odfchain.audit.stored_blocks import StoredBlock, StoredBlocks
from odfchain.chain.chain import HashedBlock
from odfchain.chain.earlier_blocks import ReplayHistory
from odfchain.chain.index import MERGE
from odfchain.chain.rules import check_append
from odfchain.codec.blocks import decode_block
from odfchain.digest.physical import hash_bytes
from odfchain.errors import AppendError, CodecError, StoreError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS
from odfchain.model.events import AddData, ExecuteTransform, Seed
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.merge_record import MergeMode, MergeRecord, first_records
from odfchain.text import one_line
from odfchain.trust.files import read_regular

BlockName = Multihash | int
"""A block by its hash or by its sequence number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The blocks after `after` up to and including `upto`; None is the beginning, or the head."""

    after: BlockName | None = None
    upto: BlockName | None = None
    last: int | None = None
    """Only so many of the newest blocks; the chain is read no further."""


EVERYTHING = Range()


@dataclass(frozen=True, slots=True)
class StoredChain:
    """What could be read; `complete` if it begins with the first block of the chain."""

    blocks: StoredBlocks = field(default_factory=StoredBlocks)
    complete: bool = False
    newest: int | None = None
    """The number of the oldest block that was read in its turn; of those before it only what is in force was.
    None where all were read."""

    @property
    def follows(self) -> bool:
        """Whether everything that the chain says can be believed."""
        return self.complete and self.blocks.sound

    def within(self, after: int, upto: int, *kinds: str) -> Iterator[StoredBlock]:
        """The sound blocks `(after, upto]` with these events, oldest first."""
        for stored in self.blocks.of(*kinds):
            if after < stored.number <= upto and stored.sound:
                yield stored


def read_chain(
    dataset: DatasetFiles, report: Report, progress: Progress, *, last: int | None = None
) -> StoredChain:
    """The blocks from the head down; what is wrong with the reference, bytes and links is in the report.

    With `last`, so many of them, and what is in force before these.
    """
    reference = dataset.folder / "refs" / dataset.ref
    try:
        head = dataset.chain.head()
    except StoreError as error:
        report.fault(HEAD, reference, error.message)
        return StoredChain()
    if head is None:
        report.fault(HEAD, reference, "the dataset has no head")
        return StoredChain()
    report.head = str(head)
    report.count(HEAD)
    if reference.name != str(head) and _spelling(reference) != str(head):  # not as of a block
        report.notes.append(f"{reference}: the reference is not spelled as references are written: {head}")
    progress.phase(f"Reading the chain of {dataset.alias}")
    folder = dataset.folder / "blocks"
    blocks = StoredBlocks()
    current: Multihash | None = head
    expected: int | None = None
    believed = True
    while current is not None:
        read = _read(folder / str(current), current, expected, report, believed=believed)
        if read is None:
            break
        item, data = read
        progress.advance()
        report.blocks += 1
        if item.sound:
            _check_link(folder, item, expected, report)
        blocks.add(item, data)
        believed = item.sound
        expected = item.number - 1
        current = item.block.prev_block_hash
        if item.number == 0 or len(blocks) > LIMITS.chain_blocks:
            break
        if last is not None and len(blocks) >= last and item.sound and current is not None:
            known = add_what_is_in_force(dataset, blocks, current, report)
            chain = StoredChain(blocks, known and blocks.oldest.number == 0, item.number)
            _describe(chain, report)
            return chain
    if not blocks and not os.path.lexists(folder / str(head)):
        # either of the two files may be the damaged one
        report.fault(HEAD, reference, f"the reference names a block that is not here: {head}")
    chain = StoredChain(blocks, bool(blocks) and blocks.oldest.block.prev_block_hash is None)
    _describe(chain, report)
    return chain


def _spelling(reference: Path) -> str:
    try:
        return reference.read_text(encoding="ascii", errors="replace").rstrip("\n")
    except OSError:
        return ""


def _read(
    path: Path, name: Multihash, expected: int | None, report: Report, *, believed: bool
) -> tuple[StoredBlock, bytes] | None:
    """The block in a file, its bytes too; None where the walk ends. What is only claimed accuses nothing."""
    try:
        content = read_regular(path, LIMITS.block_bytes, follow=True)
        problem = "No such file or directory" if content is None else None
    except StoreError as error:
        content, problem = None, error.message.removeprefix(f"{path}: ")
    data = content[0] if content is not None else b""
    if len(data) > LIMITS.block_bytes:
        problem = f"it has more than {LIMITS.block_bytes:,} bytes"
    if problem is not None:
        if believed:
            report.fault(BLOCKS, path, f"the block cannot be read: {problem}", expected)
        return None
    actual = hash_bytes(data)
    sound = actual == name
    if not believed and not sound:
        return None
    report.count(BLOCKS)
    try:
        block = decode_block(data)
    except CodecError as error:
        why = "" if sound else f"the block's bytes hash to {actual}; "
        report.fault(BLOCKS, path, f"{why}the block cannot be decoded: {error}", expected)
        return None
    if not believed and block.sequence_number != expected:
        return None
    if not sound:
        report.fault(BLOCKS, path, f"the block's bytes hash to {actual}", expected)
    number = block.sequence_number if sound or expected is None else expected
    return StoredBlock(name, block, sound, number), data


def _check_link(folder: Path, item: StoredBlock, expected: int | None, report: Report) -> None:
    number = item.number
    report.count(LINKS)
    wrong = []
    if expected is not None and number != expected:
        wrong.append((f"sequence number {number} where {expected} is expected", expected))
    if item.block.prev_block_hash is None and number != 0:
        wrong.append((f"block {number} has no predecessor", number))
    if item.block.prev_block_hash is not None and number == 0:
        wrong.append(("the first block names a predecessor", number))
    for message, at in wrong:
        report.fault(LINKS, folder / str(item.name), message, at)


def _describe(chain: StoredChain, report: Report) -> None:
    if not chain.blocks:
        return
    report.sequence_number = chain.blocks.newest.number
    first = chain.blocks.oldest
    if first.sound and isinstance(first.block.event, Seed):
        report.dataset_id = str(first.block.event.dataset_id)
        report.kind = first.block.event.dataset_kind


# --- the range -------------------------------------------------------------------------------------


def resolve_range(dataset: DatasetFiles, chain: StoredChain, span: Range) -> tuple[int, int]:
    """Sequence numbers `(after, upto]` of the range.

    Raises:
        UsageError: a block is not in the chain, or the range is the wrong way round.
    """
    last = chain.blocks.newest.number if chain.blocks else -1
    if span.last is not None:
        return (chain.newest - 1 if chain.newest is not None else -1), last
    after = -1 if span.after is None else _number(dataset, chain, span.after)
    upto = last if span.upto is None else _number(dataset, chain, span.upto)
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


def hash_at(chain: StoredChain, number: int) -> Multihash | None:
    """The hash of the block with this number, None where there is none."""
    return chain.blocks.name_of(number)


def describe_blocks(chain: StoredChain, after: int, upto: int, report: Report) -> None:
    """One line of the report for each block of the range."""
    carrying = (HashedBlock(stored.name, stored.block) for stored in chain.blocks.newest_first(MERGE))
    merged = {item.block.hash: item.record for item in first_records(carrying)}
    report.lines = BlockLines(chain.blocks, after, upto, merged)


class BlockLines:
    """The lines of a report about the blocks of a range, made when they are asked for."""

    def __init__(
        self, blocks: StoredBlocks, after: int, upto: int, merged: Mapping[Multihash, MergeRecord]
    ) -> None:
        self._blocks, self._after, self._upto, self._merged = blocks, after, upto, merged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockLines | list) and all(
            one == another for one, another in zip_longest(self, other)
        )

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __len__(self) -> int:
        return sum(self._after < row.number <= self._upto for row in self._blocks.rows())

    def __iter__(self) -> Iterator[BlockLine]:
        for stored in self._blocks:
            if self._after < stored.number <= self._upto:
                yield _line(stored, self._merged.get(stored.name))


def _line(stored: StoredBlock, record: MergeRecord | None) -> BlockLine:
    event, count, mark = stored.block.event, 0, None
    if isinstance(event, AddData | ExecuteTransform) and stored.sound:
        count = event.new_data.offset_interval.count if event.new_data is not None else 0
        mark = event.new_watermark
    branch = one_line(record.source_ref) if record and record.mode is MergeMode.MERGE else None
    return BlockLine(stored.number, stored.name, stored.block.system_time, event.KIND, count, mark, branch)


def count_slices(chain: StoredChain, upto: int) -> int:
    """How many slices the chain names up to a block."""
    return sum(row.has_data for row in chain.blocks.rows() if row.number <= upto)


# --- 4: append rules -------------------------------------------------------------------------------


def check_rules(dataset: DatasetFiles, chain: StoredChain, after: int, upto: int, report: Report) -> None:
    """Every block of the range may follow the blocks before it, those outside the range included."""
    if not chain.complete:
        report.skip([RULES], "append rules were not checked: the chain cannot be followed to its Seed")
        return
    history = ReplayHistory()
    for index, stored in enumerate(chain.blocks):
        if not stored.sound:
            report.skip([RULES], f"block {stored.number} is damaged, so what follows it was not judged")
            return
        if after < stored.number <= upto:
            report.count(RULES)
            path = dataset.folder / "blocks" / str(stored.name)
            try:
                check_append(stored.block, history if index else None)
            except AppendError as error:
                report.fault(RULES, path, f"{error.message} (rule {error.rule})", stored.number)
        history.add(stored.block)
