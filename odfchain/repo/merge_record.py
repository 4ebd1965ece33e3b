"""What a merge says of itself, in the `newSourceState` of its AddData.

    sourceName: odfchain/merge    kind: odfchain/merge    value: canonical JSON (RFC 8785)

Every ODF tool keeps it, because it is a text to it, and it is hashed with the block. A record counts where it
first appears in a chain: tools may carry a source state on. Source: RFC-036.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.chain.index import MERGE
from odfchain.errors import CodecError, InvalidIdError, OdfchainError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model.events import AddData, MetadataEvent, SourceState
from odfchain.text import one_line
from odfchain.trust.canonical import canonical_json

SOURCE_NAME = MERGE
KIND = "odfchain/merge"
MOST_BYTES = 16 * 1024
_VERSION = 1


class MergeMode(Enum):
    """What the block does."""

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
    """What a conflict is about."""

    CELL = "cell"
    ROW = "row"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecord:
    """How a block was made from two heads, so that anybody who has both can make it again."""

    base: tuple[Multihash, ...]
    """The best common ancestors, in order of sequence number and hash."""
    source: Multihash
    """The block whose changes were taken over."""
    source_ref: str
    """What its reference was called."""
    target: Multihash
    """The head before the transaction."""
    mode: MergeMode = MergeMode.MERGE
    resolution: Resolution = Resolution.NONE
    granularity: Granularity = Granularity.CELL
    conflicts: int = 0
    """Cells (rows, where a side is absent) that somebody decided."""
    references: Mapping[DatasetId, Multihash] = field(default_factory=dict)
    """The blocks of other datasets that foreign keys were checked against."""
    message: str = ""

    def to_state(self) -> SourceState:
        """The record as an event carries it.

        Raises:
            CodecError: it would be longer than 16 KiB.
        """
        tree = {
            "base": [str(block) for block in self.base],
            "conflicts": self.conflicts,
            "granularity": self.granularity.value,
            "message": self.message,
            "mode": self.mode.value,
            "references": {str(name): str(block) for name, block in self.references.items()},
            "resolution": self.resolution.value,
            "source": str(self.source),
            "sourceRef": self.source_ref,
            "target": str(self.target),
            "version": _VERSION,
        }
        text = canonical_json(tree)
        if len(text) > MOST_BYTES:
            raise CodecError(
                f"the merge record would have {len(text):,} bytes, at most {MOST_BYTES:,} are allowed",
                hint="give a shorter --message",
            )
        return SourceState(source_name=SOURCE_NAME, kind=KIND, value=text.decode())


def is_merge_state(state: SourceState | None) -> bool:
    """Whether a source state is a merge record, and no source's."""
    return state is not None and state.source_name == SOURCE_NAME


def record_of(event: MetadataEvent) -> MergeRecord | None:
    """The merge record that an event carries, first here or carried on; None where it has none.

    Raises:
        CodecError: what calls itself a merge record is none that is understood.
    """
    state = event.new_source_state if isinstance(event, AddData) else None
    if state is None or not is_merge_state(state):
        return None
    try:
        return _parse(state)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidIdError) as error:
        raise CodecError(f"the merge record is not understood: {one_line(str(error))}") from None


def understood_record(event: MetadataEvent) -> MergeRecord | None:
    """As `record_of`; one that is not understood is none: nobody who merges as is done here has made it."""
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


def _parse(state: SourceState) -> MergeRecord:
    if state.kind != KIND or len(state.value.encode(errors="surrogatepass")) > MOST_BYTES:
        raise ValueError(f"kind {one_line(state.kind)!r}, {len(state.value):,} characters")
    tree: Any = json.loads(state.value)
    if tree["version"] != _VERSION:
        raise ValueError(f"version {one_line(str(tree['version']))}, not {_VERSION}")
    base = tuple(Multihash.parse(text) for text in tree["base"])
    conflicts, message, source_ref = tree["conflicts"], tree["message"], tree["sourceRef"]
    if not base or type(conflicts) is not int or conflicts < 0:
        raise ValueError("no base, or no number of conflicts")
    if not isinstance(message, str) or not isinstance(source_ref, str):
        raise TypeError("message and sourceRef are texts")
    return MergeRecord(
        base=base,
        source=Multihash.parse(tree["source"]),
        source_ref=source_ref,
        target=Multihash.parse(tree["target"]),
        mode=MergeMode(tree["mode"]),
        resolution=Resolution(tree["resolution"]),
        granularity=Granularity(tree["granularity"]),
        conflicts=conflicts,
        references={DatasetId.parse(k): Multihash.parse(v) for k, v in tree["references"].items()},
        message=message,
    )


def merged_names(event: MetadataEvent) -> tuple[Multihash, ...]:
    """What a merge names beside its target: the source, then the bases; nothing where it is no merge."""
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
    """As `merges`, of the AddData blocks of a whole chain; others than merges may be left out."""
    oldest: dict[str, HashedBlock] = {}
    for block in newest_first:
        state = _state_of(block)
        if state is not None and is_merge_state(state):
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
