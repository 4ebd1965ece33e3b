"""Checks 1 to 4: the chain as it is stored, read block by block; nothing derived is trusted.

A block whose bytes do not hash to its name is a fault, and what it says is believed in nothing: it is walked
through where its predecessor proves itself by its own hash and number, and the files that it names are not
accused. What depends on all earlier blocks (rules, names of columns, schemas) is not judged behind it.
"""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from odfchain.audit.report import (
    BLOCKS,
    HEAD,
    LINKS,
    RULES,
    SCHEMA,
    SYSTEM,
    Checking,
    LeftOut,
    Looked,
    Note,
    Read,
    Skipped,
    fault,
)
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import EVENT_KINDS, MERGE, ReplayHistory, link_kind
from odfchain.chain.rules import check_append
from odfchain.chain.statements import read_regular
from odfchain.errors import AppendError, CodecError, OdfchainError, StoreError
from odfchain.limits import LIMITS
from odfchain.odf import events as ev
from odfchain.odf.block_codec import decode_block
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import AddData, ExecuteTransform, MetadataBlock, Seed
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import RecordedMerge, first_records

# The blocks of a chain, in bounded memory.
# Blocks of a short chain stay decoded. Those of a long one are bytes in unnamed temporary files (`TMPDIR`),
# newest first, and decoded again for each check: all checks see what was hashed, even if someone changes the
# dataset's files meanwhile.

DECODED_BLOCKS = 50_000
"""Chains of up to so many blocks stay decoded, where their bytes are not many."""
_DECODED_BYTES = 64 << 20
# Bytes of blocks that are in memory before they are written to a file.
_IN_MEMORY = 8 << 20
_KINDS = (*EVENT_KINDS, MERGE)
_ROW = struct.Struct("<32sBBBxIQQ")
_ROWS_AT_ONCE = 1_024


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as it was found; one that is not `sound` does not hash to its name."""

    name: Multihash
    block: MetadataBlock
    sound: bool
    number: int
    """Its sequence number; that of its place in the chain where it is not sound."""


class StoredRow(NamedTuple):
    """Facts of a block, without decoding it again."""

    name: Multihash
    kind: str
    sound: bool
    has_data: bool
    number: int
    start: int
    size: int


class StoredBlocks:
    """Blocks that are added newest first, and asked for oldest first."""

    def __init__(self, decoded: int | None = None) -> None:
        self._limit = DECODED_BLOCKS if decoded is None else decoded
        self._decoded: list[StoredBlock] | None = []
        self._rows, self._data = self._spool(), self._spool()
        self._count = self._start = 0
        # True if all blocks hash to their names.
        self.sound = True
        # True if any block names a checkpoint.
        self.has_checkpoints = False

    def __len__(self) -> int:
        return self._count

    def add(self, stored: StoredBlock, data: bytes) -> None:
        """The block before those that were added, and its bytes."""
        kind = _KINDS.index(link_kind(stored.block.event))
        adds = stored.block.new_data is not None
        row = _ROW.pack(stored.name.digest, kind, stored.sound, adds, len(data), stored.number, self._start)
        for file, end, part in ((self._rows, self._count * _ROW.size, row), (self._data, self._start, data)):
            with fsio.storage_errors(tempfile.gettempdir()):
                file.seek(end)
                file.write(part)
        self._start += len(data)
        self._count += 1
        self.sound = self.sound and stored.sound
        event = stored.block.event
        if isinstance(event, AddData | ExecuteTransform) and event.new_checkpoint is not None:
            self.has_checkpoints = True
        if self._decoded is not None:
            self._decoded.append(stored)
            if self._count > self._limit or self._start > _DECODED_BYTES:
                self._decoded = None

    def _spool(self) -> IO[bytes]:
        stream = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it lives as long as this object
        weakref.finalize(self, stream.close)
        return stream

    # --- reading -----------------------------------------------------------------------------------

    def rows(self) -> Iterator[StoredRow]:
        """The facts of each block, oldest first."""
        for end in range(self._count, 0, -_ROWS_AT_ONCE):
            yield from reversed(self._rows_between(max(0, end - _ROWS_AT_ONCE), end))

    def __iter__(self) -> Iterator[StoredBlock]:
        return self.of(*_KINDS)

    def of(self, *kinds: str) -> Iterator[StoredBlock]:
        """The blocks with these events, and those that are not sound, oldest first."""
        if self._decoded is not None:
            for stored in reversed(self._decoded):
                if not stored.sound or _is_of(link_kind(stored.block.event), kinds):
                    yield stored
            return
        for end in range(self._count, 0, -_ROWS_AT_ONCE):
            for row in reversed(self._rows_between(max(0, end - _ROWS_AT_ONCE), end)):
                if not row.sound or _is_of(row.kind, kinds):
                    yield self._again(row)

    def newest_first(self, *kinds: str) -> Iterator[StoredBlock]:
        """The sound blocks with these events, newest first."""
        for begin in range(0, self._count, _ROWS_AT_ONCE):
            for index, row in enumerate(self._rows_between(begin, begin + _ROWS_AT_ONCE), start=begin):
                if row.sound and _is_of(row.kind, kinds):
                    yield self._at(index, row)

    @property
    def newest(self) -> StoredBlock:
        """The block that was added first."""
        return self._at(0, self._rows_between(0, 1)[0])

    @property
    def oldest(self) -> StoredBlock:
        """The block that was added last."""
        return self._at(self._count - 1, self._rows_between(self._count - 1, self._count)[0])

    def numbered(self, number: int) -> StoredBlock | None:
        """The oldest block with a sequence number."""
        found = self.find(number)
        return None if found is None else self._at(*found)

    def find(self, number: int) -> tuple[int, StoredRow] | None:
        """Place and facts of the oldest block with a sequence number."""
        if not self._count:
            return None
        # one look-up where numbers have no gaps
        index = self._rows_between(0, 1)[0].number - number
        if 0 <= index < self._count:
            row = self._rows_between(index, index + 1)[0]
            older = self._rows_between(index + 1, index + 2)
            if row.number == number and (not older or older[0].number < number):
                return index, row
        return next(
            ((self._count - 1 - place, row) for place, row in enumerate(self.rows()) if row.number == number),
            None,
        )

    def _at(self, index: int, row: StoredRow) -> StoredBlock:
        return self._again(row) if self._decoded is None else self._decoded[index]

    def _again(self, row: StoredRow) -> StoredBlock:
        data = _piece(self._data, row.start, row.start + row.size)
        return StoredBlock(row.name, decode_block(data), row.sound, row.number)

    def _rows_between(self, begin: int, end: int) -> list[StoredRow]:
        begin, end = begin * _ROW.size, min(end, self._count) * _ROW.size
        return [
            StoredRow(Multihash.sha3_256(digest), _KINDS[kind], bool(sound), bool(data), number, start, size)
            for digest, kind, sound, data, size, number, start in _ROW.iter_unpack(
                _piece(self._rows, begin, end)
            )
        ]


def _is_of(kind: str, kinds: tuple[str, ...]) -> bool:
    return kind in kinds or (kind == MERGE and AddData.KIND in kinds)


def _piece(stream: IO[bytes], begin: int, end: int) -> bytes:
    with fsio.storage_errors(tempfile.gettempdir()):
        stream.seek(begin)
        return stream.read(end - begin)


# Verifying only the newest blocks of a chain.
# Walking to the Seed takes as long as the chain is. The earlier blocks that checks need (the one before,
# the newest of each kind, all sources and schemas) are found by the index, read and hashed. That there are
# no others rests on the index, so the report limits these checks (RFC-051).

# Events of which all count, not only the newest; they are few.
_ALL_OF = (
    (ev.AddPushSource.KIND, ev.DisablePushSource.KIND),
    (ev.SetPollingSource.KIND, ev.DisablePollingSource.KIND),
    (ev.SetDataSchema.KIND,),
    (MERGE,),
)
_RESTS_ON_THE_INDEX = (BLOCKS, LINKS, RULES, SYSTEM, SCHEMA)


def add_what_is_in_force(dataset: DatasetFiles, blocks: StoredBlocks, before: Multihash) -> Checking[bool]:
    """Add the earlier blocks that count from `before` on; False where they cannot be looked up."""
    number = blocks.oldest.number
    yield Skipped(
        _RESTS_ON_THE_INDEX,
        f"the chain was read down to block {number:,}: what is in force before it was looked up in its index",
    )
    try:
        for found in _in_force(dataset, before):
            data = dataset.chain.get_bytes(found.hash)
            blocks.add(StoredBlock(found.hash, found.block, True, found.block.sequence_number), data)
    except OdfchainError as error:
        yield LeftOut(
            f"what is in force before block {number:,} cannot be looked up: {error.message}", check=RULES
        )
        return False
    return True


def _in_force(dataset: DatasetFiles, before: Multihash) -> list[HashedBlock]:
    chain = dataset.chain
    found = {before: HashedBlock(before, chain.get(before))}
    nearest = (chain.nearest(kind, head=before) for kind in EVENT_KINDS)
    # events of which older ones count, too
    others = (block for kinds in _ALL_OF for block in chain.nearest_all(*kinds, head=before))
    for block in (*nearest, *others):
        if block is not None:
            found[block.hash] = block
    return sorted(found.values(), key=lambda item: -item.block.sequence_number)


@dataclass(frozen=True, slots=True)
class StoredChain:
    """The readable blocks; `complete` if they begin with the first block of the chain."""

    head: Multihash | None = None
    """What the reference says."""
    blocks: StoredBlocks = field(default_factory=StoredBlocks)
    complete: bool = False
    newest: int | None = None
    """The number of the oldest block that was read in its turn; of those before it only what is in force was.
    None where all were read."""

    @property
    def follows(self) -> bool:
        """True if all blocks are sound and linked."""
        return self.complete and self.blocks.sound

    @property
    def seed(self) -> Seed | None:
        """None where the chain cannot be followed to it."""
        first = self.blocks.oldest if self.blocks else None
        event = first.block.event if first is not None and first.sound else None
        return event if isinstance(event, Seed) else None

    @property
    def is_root(self) -> bool:
        """True if the Seed can be reached, and is that of a root dataset."""
        return self.seed is not None and self.seed.dataset_kind is DatasetKind.ROOT

    def hash_at(self, number: int) -> Multihash | None:
        """The hash of the block with this number, None where there is none."""
        found = self.blocks.find(number)
        return None if found is None else found[1].name

    def count_slices(self, upto: int) -> int:
        """How many slices the chain names up to a block."""
        return sum(row.has_data for row in self.blocks.rows() if row.number <= upto)

    def merges(self, damaged: list[tuple[HashedBlock, OdfchainError]] | None = None) -> list[RecordedMerge]:
        """The merges, oldest first; records that are not understood are added to `damaged`."""
        carrying = (HashedBlock(item.name, item.block) for item in self.blocks.newest_first(MERGE))
        return first_records(carrying, damaged)

    def within(self, after: int, upto: int, *kinds: str) -> Iterator[StoredBlock]:
        """The sound blocks `(after, upto]` with these events, oldest first."""
        for stored in self.blocks.of(*kinds):
            if after < stored.number <= upto and stored.sound:
                yield stored


@dataclass(frozen=True, slots=True)
class Run:
    """A verification of the blocks `(after, upto]` of a chain."""

    dataset: DatasetFiles
    chain: StoredChain
    after: int
    upto: int
    progress: Progress = SILENT

    @property
    def dataset_id(self) -> DatasetId | None:
        """None where the chain cannot be followed to its Seed."""
        seed = self.chain.seed
        return seed.dataset_id if seed is not None else None

    def block_file(self, block: Multihash) -> Path:
        """The file of a block."""
        return self.dataset.folder / "blocks" / str(block)


def read_chain(
    dataset: DatasetFiles, progress: Progress, *, last: int | None = None
) -> Checking[StoredChain]:
    """The blocks from the head down; finds what is wrong with the reference, bytes and links.

    With `last`, so many of them, and what is in force before these.
    """
    reference = dataset.folder / "refs" / dataset.ref
    try:
        head = dataset.chain.head()
    except StoreError as error:
        yield fault(HEAD, reference, error.message)
        return StoredChain()
    if head is None:
        yield fault(HEAD, reference, "the dataset has no head")
        return StoredChain()
    yield Looked(HEAD)
    if reference.name != str(head) and _spelling(reference) != str(head):  # not as of a block
        yield Note(f"{reference}: the reference is not spelled as references are written: {head}")
    progress.phase(f"Reading the chain of {dataset.alias}")
    folder = dataset.folder / "blocks"
    blocks = StoredBlocks()
    current: Multihash | None = head
    expected: int | None = None
    believed = True
    while current is not None:
        read = yield from _read(folder / str(current), current, expected, believed=believed)
        if read is None:
            break
        item, data = read
        progress.advance()
        yield Read(blocks=1)
        if item.sound:
            yield from _check_link(folder, item, expected)
        blocks.add(item, data)
        believed = item.sound
        expected = item.number - 1
        current = item.block.prev_block_hash
        if item.number == 0 or len(blocks) > LIMITS.chain_blocks:
            break
        if last is not None and len(blocks) >= last and item.sound and current is not None:
            known = yield from add_what_is_in_force(dataset, blocks, current)
            return StoredChain(head, blocks, known and blocks.oldest.number == 0, item.number)
    if not blocks and not os.path.lexists(folder / str(head)):
        # either of the two files may be the damaged one
        yield fault(HEAD, reference, f"the reference names a block that is not here: {head}")
    return StoredChain(head, blocks, bool(blocks) and blocks.oldest.block.prev_block_hash is None)


def _spelling(reference: Path) -> str:
    try:
        return reference.read_text(encoding="ascii", errors="replace").rstrip("\n")
    except OSError:
        return ""


def _read(
    path: Path, name: Multihash, expected: int | None, *, believed: bool
) -> Checking[tuple[StoredBlock, bytes] | None]:
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
            yield fault(BLOCKS, path, f"the block cannot be read: {problem}", expected)
        return None
    actual = hash_bytes(data)
    sound = actual == name
    # a link that is only claimed proves no damage
    if not believed and not sound:
        return None
    yield Looked(BLOCKS)
    try:
        block = decode_block(data)
    except CodecError as error:
        why = "" if sound else f"the block's bytes hash to {actual}; "
        yield fault(BLOCKS, path, f"{why}the block cannot be decoded: {error}", expected)
        return None
    if not believed and block.sequence_number != expected:
        return None
    if not sound:
        yield fault(BLOCKS, path, f"the block's bytes hash to {actual}", expected)
    number = block.sequence_number if sound or expected is None else expected
    return StoredBlock(name, block, sound, number), data


def _check_link(folder: Path, item: StoredBlock, expected: int | None) -> Checking[None]:
    number = item.number
    path = folder / str(item.name)
    yield Looked(LINKS)
    if expected is not None and number != expected:
        yield fault(LINKS, path, f"sequence number {number} where {expected} is expected", expected)
    if item.block.prev_block_hash is None and number != 0:
        yield fault(LINKS, path, f"block {number} has no predecessor", number)
    if item.block.prev_block_hash is not None and number == 0:
        yield fault(LINKS, path, "the first block names a predecessor", number)


# --- 4: append rules -------------------------------------------------------------------------------


def check_rules(run: Run) -> Checking[None]:
    """Every block of the range may follow the blocks before it, those outside the range included."""
    if not run.chain.complete:
        yield Skipped([RULES], "append rules were not checked: the chain cannot be followed to its Seed")
        return
    history = ReplayHistory()
    for index, stored in enumerate(run.chain.blocks):
        if not stored.sound:
            yield Skipped([RULES], f"block {stored.number} is damaged, so what follows it was not judged")
            return
        if run.after < stored.number <= run.upto:
            yield Looked(RULES)
            path = run.block_file(stored.name)
            try:
                check_append(stored.block, history if index else None)
            except AppendError as error:
                yield fault(RULES, path, f"{error.message} (rule {error.rule})", stored.number)
        history.add(stored.block)
