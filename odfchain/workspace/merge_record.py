"""The record of a merge, in the `newSourceState` of its AddData.

    sourceName: odfchain/merge    kind: odfchain/merge    value: canonical JSON (RFC 8785)

Every ODF tool keeps it, because it is a text to it, and it is hashed with the block. A record counts where it
first appears in a chain: tools may carry a source state on. Source: RFC-036.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.chain.index import MERGE
from odfchain.errors import CodecError, ManifestError, OdfchainError, StoreError
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.events import AddData, MetadataEvent, SourceState
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import is_branch_name
from odfchain.odf.tree import Form, Rule, read_json, to_tree
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles

SOURCE_NAME = MERGE
KIND = "odfchain/merge"
MOST_BYTES = 16 * 1024


class MergeMode(Enum):
    """The kind of the block."""

    MERGE = "merge"
    REVERT = "revert"
    """The inverse of one block: `base` is that block, `source` its predecessor. No edge of the graph."""


class Resolution(Enum):
    """Who decided the conflicts."""

    NONE = "none"
    OURS = "ours"
    THEIRS = "theirs"
    ROWS = "rows"
    """One by one: what was taken is in the slice."""


class Granularity(Enum):
    """The kind of a conflict."""

    CELL = "cell"
    ROW = "row"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecord:
    """How a block was made from two heads, so that anybody who has both can make it again."""

    FORM: ClassVar = Form(others=True, whole=True)
    version: Literal[1] = 1
    base: Annotated[tuple[Multihash, ...], Rule("at least one block", bool)]
    """The best common ancestors, in order of sequence number and hash."""
    source: Multihash
    """The block whose changes were taken over."""
    source_ref: str
    """The name of its reference."""
    target: Multihash
    """The head before the transaction."""
    mode: MergeMode = MergeMode.MERGE
    resolution: Resolution = Resolution.NONE
    granularity: Granularity = Granularity.CELL
    conflicts: int = 0
    """Cells (rows, where a side is absent) that the user decided."""
    references: Mapping[DatasetId, Multihash] = field(default_factory=dict)
    """The blocks of other datasets that foreign keys were checked against."""
    message: str = ""

    def to_state(self) -> SourceState:
        """The record as an event carries it; `CodecError` where it would be longer than 16 KiB."""
        text = canonical_json(to_tree(self))
        if len(text) > MOST_BYTES:
            raise CodecError(
                f"the merge record would have {len(text):,} bytes, at most {MOST_BYTES:,} are allowed",
                hint="give a shorter --message",
            )
        return SourceState(source_name=SOURCE_NAME, kind=KIND, value=text.decode())


def is_merge_state(state: SourceState | None) -> bool:
    """True if a source state is a merge record, and no source's."""
    return state is not None and state.source_name == SOURCE_NAME


def record_of(event: MetadataEvent) -> MergeRecord | None:
    """The merge record of an event, first here or carried on; `CodecError` if it is not understood."""
    state = event.new_source_state if isinstance(event, AddData) else None
    if state is None or not is_merge_state(state):
        return None
    try:
        if state.kind != KIND:
            raise ManifestError(f"kind {one_line(state.kind)!r}")  # noqa: TRY301 - said as the others are
        return read_json(MergeRecord, state.value.encode(errors="surrogatepass"), MOST_BYTES)
    except ManifestError as error:
        raise CodecError(f"the merge record is not understood: {one_line(str(error))}") from None


def understood_record(event: MetadataEvent) -> MergeRecord | None:
    """The merge record of an event; None also for one that this build does not understand."""
    try:
        return record_of(event)
    except CodecError:
        return None


def first_record(chain: MetadataChain, block: HashedBlock) -> MergeRecord | None:
    """The merge record of a block in which it first appears; None where it has none, or carries one on."""
    record, prev = record_of(block.block.event), block.block.prev_block_hash
    before = chain.nearest(MERGE, head=prev) if record is not None and prev is not None else None
    return None if before is not None and _state_of(before) == _state_of(block) else record


def _state_of(block: HashedBlock) -> SourceState | None:
    event = block.block.event
    return event.new_source_state if isinstance(event, AddData) else None


def merged_names(event: MetadataEvent) -> tuple[Multihash, ...]:
    """The parents of a merge other than its target: the source, then the bases; empty for other blocks."""
    record = understood_record(event)
    return (record.source, *record.base) if record is not None else ()


@dataclass(frozen=True, slots=True)
class RecordedMerge:
    """A merge record and the block in which it first appears."""

    block: HashedBlock
    record: MergeRecord


def merges(
    chain: MetadataChain, head: Multihash, *, damaged: list[tuple[HashedBlock, OdfchainError]] | None = None
) -> list[RecordedMerge]:
    """The merges of a chain up to `head`, oldest first, each where its record first appears.

    Records that are not understood are no merges; they are added to `damaged`.
    """
    return first_records(chain.nearest_all(MERGE, head=head), damaged)


def first_records(
    newest_first: Iterable[HashedBlock], damaged: list[tuple[HashedBlock, OdfchainError]] | None = None
) -> list[RecordedMerge]:
    """The merge records of a whole chain from its AddData blocks; others than merges may be left out."""
    oldest: dict[str, HashedBlock] = {}
    for block in newest_first:
        if (state := _state_of(block)) is not None and is_merge_state(state):
            # later blocks carry the record on: the oldest one is the merge
            oldest[state.value] = block
    found = []
    for block in sorted(oldest.values(), key=lambda block: block.block.sequence_number):
        try:
            record = record_of(block.block.event)
        except CodecError as error:
            if damaged is not None:
                damaged.append((block, error))
            continue
        if record is not None:
            found.append(RecordedMerge(block, record))
    return found


# Fetched branches: their source, and the block up to which they were verified here.
#
#     info/branches.json      [{"branch": "fix", "from": "https://…", "block": "f1620…", "verified":
#     "f1620…"}]
#
# What is merged is believed to say what the rows were before (RFC-036), so blocks of others are verified
# first. An entry outlives its branch until that is done: another branch may have begun there. Source:
# RFC-038.

_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FetchedBranch:
    """A branch as it was fetched last; it may have gone on here since."""

    FORM: ClassVar = Form(others=True, nulls=True, names={"where": "from"})
    branch: Annotated[str, Rule("the name of a branch", is_branch_name)] | None
    """Its name here; None once it is gone."""
    where: str
    """The URL, or `repo/name`, that it came from."""
    block: Multihash
    """Its newest block there."""
    verified: Multihash
    """The newest of its blocks that was here before it came, or that was verified here."""

    @property
    def is_verified(self) -> bool:
        """True if nothing of it is left to be verified."""
        return self.block == self.verified


@dataclass(frozen=True, slots=True)
class Unverified:
    """Blocks that were fetched and not verified, as far as a chain has them."""

    entry: FetchedBranch
    after: Multihash
    upto: Multihash


@dataclass(frozen=True, slots=True)
class FetchedBranches:
    """What is known of a dataset's fetched branches; every change is durable, `StoreError` if damaged."""

    dataset: DatasetFiles

    def entries(self) -> tuple[FetchedBranch, ...]:
        """Records of fetched references that are still branches, or unverified."""
        if (data := fsio.read_start(self._path, _MOST_BYTES)) is None:
            return ()
        try:
            return read_json(tuple[FetchedBranch, ...], data, _MOST_BYTES)
        except ManifestError as error:
            raise StoreError(
                f"{self._path}: what is known of fetched branches is damaged: {error}",
                hint=f"remove {self._path}, and fetch the branches again: until then they are taken for your "
                "own",
            ) from None

    def find(self, name: str) -> FetchedBranch | None:
        """The record of a fetched branch; None where it was made here."""
        return next((found for found in self.entries() if found.branch == name), None)

    def remember(self, fetched: FetchedBranch) -> None:
        """Note that a branch came in; what is verified of it stays verified."""
        self._change(
            lambda found: [
                *(replace(old, branch=None) if old.branch == fetched.branch else old for old in found),
                fetched,
            ]
        )

    def mark_verified(self, entry: FetchedBranch, block: Multihash) -> None:
        """Note that the blocks of an entry up to one of them were verified."""
        self._change(lambda found: [replace(old, verified=block) if old == entry else old for old in found])

    def rename(self, old: str, new: str | None) -> None:
        """Note that a branch has another name, or is gone."""
        if self._path.exists():
            self._change(lambda found: [replace(e, branch=new) if e.branch == old else e for e in found])

    def forget_gone(self) -> None:
        """Forget what names blocks that are not stored any more."""
        if self._path.exists():
            self._change(lambda found: [e for e in found if self.dataset.chain.contains(e.block)])

    def unverified(self, upto: Multihash) -> list[Unverified]:
        """Unverified blocks of fetched branches in the chain up to a block."""
        found = []
        chain, top = self.dataset.chain, self.dataset.chain.get(upto).sequence_number
        for entry in self.entries():
            if entry.is_verified or not chain.contains(entry.block):
                continue
            for name, block in chain.walk(entry.block, tail=entry.verified):
                if block.sequence_number <= top and chain.hash_at(block.sequence_number, upto) == name:
                    found.append(Unverified(entry, entry.verified, name))
                    break
        return found

    def is_known_here(self, after: Multihash, upto: Multihash, *, owner: bool) -> bool:
        """True if the blocks after one, up to another, were all made or verified here."""
        chain = self.dataset.chain
        foreign = {
            name for part in self.unverified(upto) for name, _ in chain.walk(part.upto, tail=part.after)
        }
        # without the owner's key no block of the head was made here: a copy's head moves by pulls alone
        if not owner:
            lowest, head = chain.get(after).sequence_number, chain.head(HEAD)
            for name, block in chain.walk(head) if head is not None else ():
                if block.sequence_number <= lowest:
                    break
                foreign.add(name)
        return not any(name in foreign for name, _ in chain.walk(upto, tail=after)) if foreign else True

    @property
    def _path(self) -> Path:
        return self.dataset.folder / "info" / "branches.json"

    def _change(self, change: Callable[[Sequence[FetchedBranch]], list[FetchedBranch]]) -> None:
        with fsio.locked(self.dataset.folder / "info" / "branches.lock"):
            before = self.entries()
            after = [entry for entry in change(before) if entry.branch is not None or not entry.is_verified]
            if after == [*before]:
                return
            if not after:
                fsio.remove_file(self._path)
                return
            fsio.replace_file(self._path, json.dumps(to_tree(tuple(after)), indent=1).encode())
