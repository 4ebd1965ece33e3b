"""Where records come from: the slice, block and transaction of a record, what the transaction read, and so on
down to the roots.

A transaction of a derivative dataset names for each input the blocks and records that it read, `(prev, new]`.
Consecutive transactions read on where the one before stopped, so what an interval of records comes from is
again one interval for each input, unless the transform was changed in between. That is followed down.
More cannot be known from chains: which of the records that were read made a certain record is in the query.
Source: specification "ExecuteTransform", "ExecuteTransformInput", "AddData".
"""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.chain.chain import HashedBlock
from odfchain.errors import ObjectCorruptedError, OdfchainError, SchemaError, StoreError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.limits import LINEAGE, LineageLimits
from odfchain.lineage.graph import key_of
from odfchain.lineage.locate import Locator, data_event
from odfchain.lineage.origins import InputReads, Origins, Span
from odfchain.lineage.record_lookup import CorrectedRecord, StoredRecord, find_corrected, read_rows
from odfchain.lineage.source_names import SourceUse, source_of
from odfchain.model.enums import OperationType
from odfchain.model.events import AddData, DatasetVocabulary, ExecuteTransform, SetTransform, SetVocab
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import SliceRef
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.transfer.partial import is_partial


@dataclass(frozen=True, slots=True)
class BlamedRow:
    """A record, and of a correction or retraction the record that it is about."""

    row: StoredRecord
    corrects: CorrectedRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The transaction that added the records `[first; last]` of its slice."""

    block: HashedBlock
    ref: SliceRef
    first: int
    last: int
    present: bool
    """Whether the slice file is here."""
    rows: tuple[BlamedRow, ...] = ()
    rows_problem: str | None = None
    """Why there are no rows."""
    damaged: OdfchainError | None = None
    source: SourceUse | None = None
    """Of a root dataset."""
    transform: HashedBlock | None = None
    """The block of the transform in force, of a derivative dataset."""
    reads: tuple[InputReads, ...] = ()
    earlier: str | None = None
    """What else the records may depend on: records that earlier transactions read."""
    checkpoint: Multihash | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What is known of some records of a dataset; `origins` only where they were asked for."""

    dataset: DatasetFiles
    id: str
    first: int
    last: int
    transactions: tuple[Transaction, ...]
    origins: tuple[Span, ...] | None = None

    def __repr__(self) -> str:
        what = f"records {self.first:,} to {self.last:,} of {self.dataset.alias}"
        return f"<{what}: {len(self.transactions):,} transactions>"

    @property
    def damage(self) -> OdfchainError | None:
        """The first damaged slice, if one was met."""
        return next((t.damaged for t in self.transactions if t.damaged), None)


def blame_records(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    first: int,
    last: int | None = None,
    *,
    recursive: bool = False,
    limits: LineageLimits = LINEAGE,
) -> Blame:
    """Where the records `[first; last]` (default: one) come from; what is missing or damaged is said in it.

    Raises:
        UsageError: there are no such records, or too many.
    """
    last = first if last is None else last
    if first < 0 or last < first:
        raise UsageError(
            f"records {first} to {last} are no interval", hint="--to is the last record, included"
        )
    if last - first >= limits.rows:
        raise UsageError(f"at most {limits.rows:,} records can be asked about at a time")
    locator = Locator(dataset)
    if locator.last_offset is None or last > locator.last_offset:
        known = "no records" if locator.last_offset is None else f"the records 0 to {locator.last_offset}"
        raise UsageError(f"{dataset.alias} has {known}, not {last}")
    origins = Origins(workspace, limits)
    found: list[Transaction] = []
    offset = first
    while offset <= last:
        block = locator.block_of(offset)
        transaction = _transaction(locator, block, offset, last, origins, limits)
        found.append(transaction)
        offset = transaction.last + 1
    return Blame(
        dataset=dataset,
        id=key_of(dataset),
        first=first,
        last=last,
        transactions=tuple(found),
        origins=origins.of_interval(locator, found[0].block, found[-1].block) if recursive else None,
    )


def _transaction(
    locator: Locator,
    block: HashedBlock,
    first: int,
    last: int,
    origins: Origins,
    limits: LineageLimits,
) -> Transaction:
    dataset = locator.dataset
    event = data_event(block)
    assert event.new_data is not None  # noqa: S101 - it adds a record
    ref = SliceRef(block.hash, block.block.sequence_number, event.new_data)
    last = min(last, event.new_data.offset_interval.end)
    chain = dataset.chain
    source = source_of(chain, block) if isinstance(event, AddData) else None
    rows, problem, damaged = _rows(dataset, block, ref, first, last, source, limits)
    transform: HashedBlock | None = None
    reads: tuple[InputReads, ...] = ()
    if isinstance(event, ExecuteTransform):
        transform = chain.nearest("SetTransform", head=block.hash)
        reads = origins.reads_of(locator, block, transform)
    return Transaction(
        block=block,
        ref=ref,
        first=first,
        last=last,
        present=dataset.data.contains(ref.slice.physical_hash),
        rows=rows,
        rows_problem=problem,
        damaged=damaged,
        source=source,
        transform=transform if transform and isinstance(transform.block.event, SetTransform) else None,
        reads=reads,
        earlier=_earlier(event),
        checkpoint=event.prev_checkpoint if isinstance(event, ExecuteTransform) else None,
    )


def _earlier(event: AddData | ExecuteTransform) -> str | None:
    if not isinstance(event, ExecuteTransform):
        return None
    if event.prev_checkpoint is not None:
        return "may also depend on records that earlier transactions read: the query keeps state between them"
    if event.new_checkpoint is not None:
        return "depends on nothing earlier: the query keeps state, and this is where it begins"
    return "depends on nothing earlier: the query keeps no state between transactions"


def _rows(
    dataset: DatasetFiles,
    block: HashedBlock,
    ref: SliceRef,
    first: int,
    last: int,
    source: SourceUse | None,
    limits: LineageLimits,
) -> tuple[tuple[BlamedRow, ...], str | None, OdfchainError | None]:
    """The rows, or why there are none and the damage that it is due to."""
    if not dataset.data.contains(ref.slice.physical_hash):
        how = (
            f"a partial copy: `odfchain fetch {dataset.alias}` brings it"
            if is_partial(dataset)
            else "missing"
        )
        return (), f"the slice is not here ({how})", None
    vocabulary = DatasetVocabulary.from_event(dataset.chain.nearest_event(SetVocab, head=block.hash))
    try:
        rows = read_rows(dataset, ref, vocabulary, first, last)
    except (ObjectCorruptedError, SchemaError) as error:
        return (), f"the slice is damaged: {error}", error
    except StoreError as error:
        return (), f"the slice cannot be read: {error}", None
    key = source.primary_key if source else None
    blamed = []
    for row in rows:
        corrected = None
        if row.op not in (None, OperationType.APPEND.value):
            corrected = _corrected(dataset, block, row, key, vocabulary, limits)
        blamed.append(BlamedRow(row, corrected))
    return tuple(blamed), None, None


def _corrected(
    dataset: DatasetFiles,
    block: HashedBlock,
    row: StoredRecord,
    key: tuple[str, ...] | None,
    vocabulary: DatasetVocabulary,
    limits: LineageLimits,
) -> CorrectedRecord:
    if not key:
        return CorrectedRecord(None, problem="not known: no primary key is recorded")
    blocks = dataset.chain.nearest_all("AddData", head=block.hash)
    slices = (
        SliceRef(b.hash, b.block.sequence_number, data)
        for b in blocks
        if (data := data_event(b).new_data) is not None
    )
    return find_corrected(dataset, slices, row, key, vocabulary, limits)
