"""Origins of records: the slice, block and transaction of a record, what the transaction read, and so on
down to the roots.

A transaction of a derivative dataset names for each input the blocks and records that it read, `(prev, new]`.
Consecutive transactions read on where the one before stopped, so what an interval of records comes from is
again one interval for each input, unless the transform was changed in between. That is followed down.
More cannot be known from chains: which of the records that were read made a certain record is in the query.
Source: specification "ExecuteTransform", "ExecuteTransformInput", "AddData".
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from odfchain import errors
from odfchain.audit.lineage import (
    SourceUse,
    TextTree,
    describe_merge,
    describe_merged,
    input_aliases,
    key_of,
    source_of,
    steps_of,
)
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import DATA_EVENTS, DataEvent
from odfchain.lazy import pa, pc
from odfchain.limits import LINEAGE, LineageLimits
from odfchain.odf import events as ev
from odfchain.odf.enums import TAKES_BACK, DatasetKind, OperationType
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import record_of
from odfchain.profiles.pages import text_of
from odfchain.text import one_line
from odfchain.transfer.slice_files import is_partial
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.workspace_files import WorkspaceFiles

# Inputs of an interval of records, dataset by dataset, down to the roots. Every answer is bounded: intervals
# that were followed already are named and not followed again, a dataset that comes from itself is not entered
# twice on one path, and long lists say how many of them are not shown.
#
# The block that added a record, and the blocks that added an interval.
# Offsets grow along the chain, so a block is found by bisection with a few dozen reads. Where a damaged
# chain breaks that rule, it is reported and no other block is named. Source: specification "Common Data
# Schema" (offsets).


def data_event(block: HashedBlock) -> DataEvent:
    """The data event of a block that has one."""
    event = block.block.event
    if not isinstance(event, ev.AddData | ev.ExecuteTransform):
        raise errors.ChainError(f"block {block.block.sequence_number} ({block.hash}) has no data event")
    return event


class Locator:
    """Finds blocks of one dataset, as of the head when it is made."""

    def __init__(self, dataset: DatasetFiles) -> None:
        self.dataset = dataset
        self.state = DatasetState.read(dataset.chain)
        self.last_offset = self.state.last_offset
        self._at = dataset.chain.by_number(self.state.head)

    def has(self, block: Multihash, sequence_number: int) -> bool:
        """True if a block is the one with this number in the chain."""
        return self._at(sequence_number) == block

    def last_data(self, upto: int) -> HashedBlock | None:
        """The last data block at or before a sequence number."""
        return self.dataset.chain.nearest(*DATA_EVENTS, head=self._at(upto))

    def input_aliases(self, upto: Multihash) -> dict[DatasetId, str]:
        """How the queries in force at a block call their inputs."""
        return input_aliases(self.dataset.chain.nearest_event(ev.SetTransform, head=upto))

    def first_data(self, since: int, upto: int) -> HashedBlock | None:
        """The first data block in `[since; upto]`."""
        return self._first(since, upto, lambda found: found.block.sequence_number >= since)

    def block_of(self, offset: int) -> HashedBlock:
        """The block that added a record of the dataset."""

        def has_added(found: HashedBlock) -> bool:
            last = data_event(found).last_offset
            return last is not None and last >= offset

        found = self._first(0, self.state.head_block.sequence_number, has_added)
        data = data_event(found).new_data if found is not None else None
        if found is None or data is None or data.offset_interval.start > offset:
            raise errors.ChainError(
                f"{self.dataset.alias}: no block adds the record {offset}, "
                f"though the chain goes to {self.last_offset}",
                hint=f"`odfchain verify {self.dataset.alias}` says what is wrong",
            )
        return found

    def _first(self, since: int, upto: int, fits: Callable[[HashedBlock], bool]) -> HashedBlock | None:
        # bisection: where a data block fits, all later ones do
        def is_reached(number: int) -> bool:
            found = self.last_data(number)
            return found is not None and fits(found)

        number = since + bisect_left(range(since, upto + 1), True, key=is_reached)
        return self.last_data(number) if number <= upto else None


Interval = tuple[int, int]
"""First and last, both included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReads:
    """The blocks `(prev, new]` and `offsets` of one input that a transaction, or several in a row, read."""

    id: str
    alias: str | None
    """How the queries call the input."""
    name: str | None
    """Its name here."""
    missing: bool = False
    prev_block: Multihash | None
    new_block: Multihash | None
    blocks: Interval | None = None
    """Sequence numbers, where the input is here."""
    offsets: Interval | None = None
    """None: no records."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Contribution:
    """A transaction that added some of the records."""

    ref: SliceRef
    system_time: Timestamp
    present: bool
    source: SourceUse | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval of an input's records, the transactions that added them, and what those were made of."""

    reads: InputReads
    kind: DatasetKind | None = None
    contributions: tuple[Contribution, ...] = ()
    """Oldest first; not more than `LINEAGE.transactions`, the newest ones."""
    left_out: Interval | None = None
    """Blocks before them whose transactions are not listed."""
    problem: str | None = None
    """The reason for knowing nothing more."""
    origins: tuple[Span, ...] = ()


class Origins:
    """Follows records through the datasets of a workspace."""

    def __init__(self, workspace: WorkspaceFiles, limits: LineageLimits) -> None:
        self._limits = limits
        # an input may be read by many transactions
        self._find = cache(partial(_find, workspace))
        self._followed: set[tuple[str, Interval]] = set()

    def reads_of(self, locator: Locator, block: HashedBlock) -> tuple[InputReads, ...]:
        """The reads of one transaction, in the order of the transform's inputs."""
        event, names = block.block.event, locator.input_aliases(block.hash)
        if not isinstance(event, ev.ExecuteTransform):
            return ()
        return tuple(
            self._reads(first, last, names.get(last.dataset_id))
            for first, last in zip(_read_from(locator, block, event), event.query_inputs, strict=True)
        )

    def _reads(
        self, first: ev.ExecuteTransformInput, last: ev.ExecuteTransformInput, alias: str | None
    ) -> InputReads:
        start = 0 if first.prev_offset is None else first.prev_offset + 1
        end = last.last_offset
        located = self._find(str(first.dataset_id))
        blocks, problem = None, located.problem
        prev, new = first.prev_block_hash, last.last_block_hash
        if located.locator is not None and new is not None and new != prev:
            blocks, problem = _numbers(located.locator, prev, new)
        return InputReads(
            id=str(first.dataset_id),
            alias=None if alias is None else one_line(alias),
            name=located.name,
            missing=located.missing,
            prev_block=prev,
            new_block=new if new != prev else None,
            blocks=blocks,
            offsets=(start, end) if end is not None and end >= start else None,
            problem=problem,
        )

    def of_interval(
        self, locator: Locator, first: HashedBlock, last: HashedBlock, path: tuple[str, ...] = ()
    ) -> tuple[Span, ...]:
        """The inputs of the transactions from block `first` to block `last`."""
        path = (*path, str(locator.state.seed.dataset_id))
        merged: dict[str, list[InputReads]] = {}
        for reads in self._reads_between(locator, first, last):
            known = merged.setdefault(reads.id, [])
            last_read = known[-1].offsets if known else None
            # reads that continue each other are one
            if known and (not last_read or not reads.offsets or reads.offsets[0] <= last_read[1] + 1):
                known[-1] = _joined(known[-1], reads)
            else:
                known.append(reads)
        return tuple(self._span(reads, path) for several in merged.values() for reads in several)

    def _reads_between(self, locator: Locator, first: HashedBlock, last: HashedBlock) -> Iterator[InputReads]:
        low, high = first.block.sequence_number, last.block.sequence_number
        starts = [low]
        transform = locator.dataset.chain.nearest("SetTransform", head=last.hash)
        while transform is not None and transform.block.sequence_number > low:
            # a new transform begins a new group of reads
            starts.insert(1, transform.block.sequence_number)
            prev = transform.block.prev_block_hash
            transform = locator.dataset.chain.nearest("SetTransform", head=prev) if prev else None
        for start, after in zip(starts, [*starts[1:], high + 1], strict=True):
            begin, end = locator.first_data(start, after - 1), locator.last_data(after - 1)
            if begin is None or end is None:
                continue
            opening, closing = begin.block.event, end.block.event
            if isinstance(opening, ev.ExecuteTransform) and isinstance(closing, ev.ExecuteTransform):
                names = locator.input_aliases(end.hash)
                closed = {item.dataset_id: item for item in closing.query_inputs}
                for item in _read_from(locator, begin, opening):
                    ended = closed.get(item.dataset_id, item)
                    yield self._reads(item, ended, names.get(item.dataset_id))

    def _span(self, reads: InputReads, path: tuple[str, ...]) -> Span:
        if reads.offsets is None:
            return Span(reads=reads, problem="no records were read")
        if (locator := self._find(reads.id).locator) is None:
            return Span(reads=reads, problem=reads.problem)
        key = (reads.id, reads.offsets)
        if reads.id in path:
            return Span(reads=reads, problem="comes from itself: a circle")
        if key in self._followed:
            return Span(reads=reads, problem="followed above")
        if len(self._followed) >= self._limits.spans or len(path) > self._limits.depth:
            return Span(reads=reads, problem="not followed: the answer is too long; ask for this dataset")
        self._followed.add(key)
        try:
            return self._follow(locator, reads, reads.offsets, path)
        except errors.OdfchainError as error:
            return Span(reads=reads, problem=str(error))

    def _follow(self, locator: Locator, reads: InputReads, offsets: Interval, path: tuple[str, ...]) -> Span:
        kind = locator.state.seed.dataset_kind
        start, end = offsets
        if locator.last_offset is None or end > locator.last_offset:
            here = 0 if locator.last_offset is None else locator.last_offset + 1
            return Span(reads=reads, kind=kind, problem=f"the copy here has {here:,} records only")
        first, last = locator.block_of(start), locator.block_of(end)
        contributions: list[Contribution] = []
        left_out: Interval | None = None
        for block in locator.dataset.chain.nearest_all("AddData", "ExecuteTransform", head=last.hash):
            number = block.block.sequence_number
            if number < first.block.sequence_number:
                break
            if (data := data_event(block).new_data) is None:
                continue
            if len(contributions) == self._limits.transactions:
                left_out = (first.block.sequence_number, number)
                break
            source = source_of(locator.dataset.chain, block) if kind is DatasetKind.ROOT else None
            ref = SliceRef(block.hash, number, data)
            present = locator.dataset.data.contains(data.physical_hash)
            contributions.insert(0, Contribution(ref, block.block.system_time, present, source))
        origins = () if kind is DatasetKind.ROOT else self.of_interval(locator, first, last, path)
        return Span(
            reads=reads,
            kind=kind,
            contributions=tuple(contributions),
            left_out=left_out,
            problem=reads.problem,
            origins=origins,
        )


def _read_from(
    locator: Locator, block: HashedBlock, event: ev.ExecuteTransform
) -> tuple[ev.ExecuteTransformInput, ...]:
    before = block.block.prev_block_hash
    if before is None or not DatasetState.read(locator.dataset.chain, before).awaits_rebuild:
        return event.query_inputs
    # a rebuild reads its inputs from the first record on
    return tuple(
        dataclasses.replace(
            item,
            prev_block_hash=None,
            new_block_hash=item.last_block_hash,
            prev_offset=None,
            new_offset=item.last_offset,
        )
        for item in event.query_inputs
    )


@dataclass(frozen=True, slots=True)
class _LocatedDataset:
    """A dataset as far as it is here."""

    name: str | None = None
    locator: Locator | None = None
    problem: str | None = None
    missing: bool = False


def _find(workspace: WorkspaceFiles, dataset_id: str) -> _LocatedDataset:
    name: str | None = None
    try:
        dataset = workspace.dataset(dataset_id)
        name = str(dataset.alias)
        return _LocatedDataset(name, Locator(dataset))
    except errors.DatasetNotFoundError:
        return _LocatedDataset(problem="not in this workspace", missing=True)
    except errors.OdfchainError as error:
        return _LocatedDataset(name, problem=f"damaged: {error}")


def _numbers(locator: Locator, prev: Multihash | None, new: Multihash) -> tuple[Interval | None, str | None]:
    numbers = []
    for name in (prev, new):
        if name is None:
            numbers.append(-1)
            continue
        try:
            number = locator.dataset.chain.get(name).sequence_number
            # the hash exists, but on another history than the copy's
            if not locator.has(name, number):
                problem = f"block {name} is not in the chain of the copy here: it differs from what was read"
                return None, problem
        except errors.OdfchainError as error:
            return None, f"block {name} cannot be read here: {error}"
        numbers.append(number)
    return (numbers[0] + 1, numbers[1]), None


def _joined(earlier: InputReads, later: InputReads) -> InputReads:
    offsets, blocks = earlier.offsets or later.offsets, earlier.blocks or later.blocks
    if earlier.offsets and later.offsets:
        offsets = (earlier.offsets[0], later.offsets[1])
    if earlier.blocks and later.blocks:
        blocks = (earlier.blocks[0], later.blocks[1])
    return dataclasses.replace(
        later,
        prev_block=earlier.prev_block,
        new_block=later.new_block or earlier.new_block,
        blocks=blocks,
        offsets=offsets,
        problem=earlier.problem or later.problem,
    )


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record: its offset, its operation (`+A`, `-R`, `-C`, `+C`; None: unknown) and its values."""

    offset: int
    op: str | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CorrectedRecord:
    """The record that another one corrects or retracts and its block, or why it is not known."""

    row: StoredRecord | None
    sequence_number: int | None = None
    problem: str | None = None


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
    """True if the slice file is here."""
    rows: tuple[BlamedRow, ...] = ()
    rows_problem: str | None = None
    """The reason for having no rows."""
    damaged: errors.OdfchainError | None = None
    source: SourceUse | None = None
    """Of a root dataset."""
    transform: HashedBlock | None = None
    """The block of the transform in force, of a derivative dataset."""
    reads: tuple[InputReads, ...] = ()
    earlier: str | None = None
    """Other records that these may depend on: those that earlier transactions read."""
    checkpoint: Multihash | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The history of some records of a dataset; `origins` only where requested."""

    dataset: DatasetFiles
    id: str
    first: int
    last: int
    transactions: tuple[Transaction, ...]
    origins: tuple[Span, ...] | None = None

    @classmethod
    def of(
        cls,
        workspace: WorkspaceFiles,
        dataset: DatasetFiles,
        first: int,
        last: int | None = None,
        *,
        recursive: bool = False,
        limits: LineageLimits = LINEAGE,
    ) -> Blame:
        """The origin of the records `[first; last]` (default: one), with what is missing or damaged."""
        last = first if last is None else last
        if first < 0 or last < first:
            message = f"records {first} to {last} are no interval"
            raise errors.UsageError(message, hint="--to is the last record, included")
        if last - first >= limits.rows:
            raise errors.UsageError(f"at most {limits.rows:,} records can be asked about at a time")
        locator = Locator(dataset)
        if locator.last_offset is None or last > locator.last_offset:
            known = "no records" if locator.last_offset is None else f"the records 0 to {locator.last_offset}"
            raise errors.UsageError(f"{dataset.alias} has {known}, not {last}")
        origins = Origins(workspace, limits)
        records = _Records(locator, origins, limits)
        found: list[Transaction] = []
        offset = first
        while offset <= last:
            found.append(records.transaction(locator.block_of(offset), offset, last))
            offset = found[-1].last + 1
        return cls(
            dataset=dataset,
            id=key_of(dataset),
            first=first,
            last=last,
            transactions=tuple(found),
            origins=origins.of_interval(locator, found[0].block, found[-1].block) if recursive else None,
        )

    def __repr__(self) -> str:
        what = f"records {self.first:,} to {self.last:,} of {self.dataset.alias}"
        return f"<{what}: {len(self.transactions):,} transactions>"

    @property
    def damage(self) -> errors.OdfchainError | None:
        """The first damaged slice, if one was met."""
        return next((t.damaged for t in self.transactions if t.damaged), None)

    def to_document(self) -> dict[str, Any]:
        """All that is known, for programs; `origins` is null where they were not asked for."""
        return {
            "dataset": {"id": self.id, "alias": str(self.dataset.alias), "kind": _kind(_kind_of(self))},
            "offsets": [self.first, self.last],
            "transactions": [_transaction_document(item) for item in self.transactions],
            "origins": None if self.origins is None else [_span(span) for span in self.origins],
        }

    def to_tree(self) -> TextTree:
        """The same for people: what was asked about, its transactions, and below each what it was made of."""
        words = {"describe_merged": describe_merged, "row_text": _row_text, "steps_of": steps_of}
        return TextTree.parse(text_of("audit", "blame.txt.j2", blame=self, **words))


class _Records:
    """Reads records of a dataset, and what their transactions were made of, as of its head."""

    def __init__(self, locator: Locator, origins: Origins, limits: LineageLimits) -> None:
        self._locator, self._origins, self._limits = locator, origins, limits
        self._dataset = locator.dataset

    def transaction(self, block: HashedBlock, first: int, last: int) -> Transaction:
        dataset, chain, event = self._dataset, self._dataset.chain, data_event(block)
        assert event.new_data is not None  # noqa: S101 - it adds a record
        ref = SliceRef(block.hash, block.block.sequence_number, event.new_data)
        last = min(last, event.new_data.offset_interval.end)
        source = source_of(chain, block) if isinstance(event, ev.AddData) else None
        rows, problem, damaged = self._rows(block, ref, first, last, source)
        transform: HashedBlock | None = None
        reads: tuple[InputReads, ...] = ()
        if isinstance(event, ev.ExecuteTransform):
            # the one in force at that block, which need not be the newest
            transform = chain.nearest("SetTransform", head=block.hash)
            reads = self._origins.reads_of(self._locator, block)
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
            transform=transform if transform and isinstance(transform.block.event, ev.SetTransform) else None,
            reads=reads,
            earlier=_earlier(event),
            checkpoint=event.prev_checkpoint if isinstance(event, ev.ExecuteTransform) else None,
        )

    def _rows(
        self, block: HashedBlock, ref: SliceRef, first: int, last: int, source: SourceUse | None
    ) -> tuple[tuple[BlamedRow, ...], str | None, errors.OdfchainError | None]:
        dataset = self._dataset
        if not dataset.data.contains(ref.slice.physical_hash):
            partial = is_partial(dataset)
            how = f"a partial copy: `odfchain fetch {dataset.alias}` brings it" if partial else "missing"
            return (), f"the slice is not here ({how})", None
        event = dataset.chain.nearest_event(ev.SetVocab, head=block.hash)
        vocabulary = ev.DatasetVocabulary.from_event(event)
        try:
            rows = self._stored(ref, vocabulary, first, last)
        except (errors.ObjectCorruptedError, errors.SchemaError) as error:
            return (), f"the slice is damaged: {error}", error
        # an unreadable disk is no damage
        except errors.StoreError as error:
            return (), f"the slice cannot be read: {error}", None
        key = source.primary_key if source else None
        blamed = []
        for row in rows:
            corrects = row.op not in (None, OperationType.APPEND.value)
            blamed.append(BlamedRow(row, self._corrected(block, row, key, vocabulary) if corrects else None))
        return tuple(blamed), None, None

    # Single records of local slices. A slice is hashed before it is read, and only the row groups with the
    # records are decoded. Columns keep the slice's names.

    def _stored(
        self, ref: SliceRef, vocabulary: ev.DatasetVocabulary, first: int, last: int
    ) -> list[StoredRecord]:
        from odfchain.slices.reader import plain_value

        start = ref.slice.offset_interval.start
        table = self._read(ref, None, first - start, last - start)
        rows = []
        for index in range(table.num_rows):
            columns = zip(table.column_names, table.columns, strict=True)
            values = {name: plain_value(column[index]) for name, column in columns}
            code = values.get(vocabulary.operation_type_column)
            op = None
            if code is not None:
                with contextlib.suppress(ValueError):
                    op = OperationType.from_code(code).value
            rows.append(StoredRecord(first + index, op, values))
        file = self._dataset.data.locate(ref.slice.physical_hash)
        if len(rows) != last - first + 1:
            interval = f"{start} to {ref.slice.offset_interval.end}"
            raise errors.SchemaError(
                f"{file}: block {ref.sequence_number} promises the records {interval}, and {last} is not "
                "there"
            )
        for row in rows:
            found = row.values.get(vocabulary.offset_column)
            # records are found by their place in the file, so their own word has to agree
            if found != row.offset:
                message = f"{file}: the record {row.offset} says that its offset is {one_line(str(found))}"
                raise errors.SchemaError(message)
        return rows

    def _read(self, ref: SliceRef, columns: Sequence[str] | None, first: int, last: int) -> pa.Table:
        from odfchain.slices.reader import open_parquet

        path = self._dataset.data.verified_path(ref.slice.physical_hash)
        try:
            with open_parquet(path) as file:
                return file.rows_between(first, last, columns)
        except errors.BadInputError as error:
            message = f"{path}: the slice cannot be read: {error.message}"
            raise errors.ObjectCorruptedError(message, hint=error.hint) from None

    def _corrected(
        self,
        block: HashedBlock,
        row: StoredRecord,
        key: Sequence[str] | None,
        vocabulary: ev.DatasetVocabulary,
    ) -> CorrectedRecord:
        # the newest record with the same key that was true until then; the search ends at the limits
        if not key:
            return CorrectedRecord(None, problem="not known: no primary key is recorded")
        size = count = 0
        for ref in DatasetState.read(self._dataset.chain, block.hash).slices_newest_first():
            size += ref.slice.size
            if count >= self._limits.searched_slices or size > self._limits.searched_bytes:
                return CorrectedRecord(
                    None, problem=f"not found in the {count} slices before it; there are older ones"
                )
            count += 1
            try:
                if (position := self._newest_match(ref, row, key, vocabulary)) is None:
                    continue
                offset = ref.slice.offset_interval.start + position
                (record,) = self._stored(ref, vocabulary, offset, offset)
            except errors.ObjectNotFoundError:
                # older slices are not asked: the newest match may be in this one
                return CorrectedRecord(
                    None, problem=f"not known: the slice of block {ref.sequence_number} is not here"
                )
            except errors.OdfchainError as error:
                return CorrectedRecord(None, problem=f"not known: {error}")
            return CorrectedRecord(record, ref.sequence_number)
        return CorrectedRecord(None, problem="no earlier record has the same key")

    def _newest_match(
        self, ref: SliceRef, row: StoredRecord, key: Sequence[str], vocabulary: ev.DatasetVocabulary
    ) -> int | None:
        interval = ref.slice.offset_interval
        # a correction refers to an earlier record
        last = min(interval.end, row.offset - 1) - interval.start
        if last < 0:
            return None
        op = vocabulary.operation_type_column
        if missing := [name for name in key if name not in row.values]:
            raise errors.SchemaError(f"the record has no column {missing[0]!r}, which is part of the key")
        table = self._read(ref, [op, *key], 0, last)
        if missing := [name for name in (op, *key) if name not in table.column_names]:
            raise errors.SchemaError(f"the slice of block {ref.sequence_number} has no column {missing[0]!r}")
        try:
            mask = pc.invert(pc.is_in(table[op], value_set=pa.array(TAKES_BACK, table[op].type)))
            for name in key:
                cells, value = table[name], row.values[name]
                # a null equals nothing in Arrow, and is a value of a key here
                same = pc.is_null(cells) if value is None else pc.equal(cells, pa.scalar(value, cells.type))
                mask = pc.and_(mask, pc.fill_null(same, fill_value=False))
            matches = pc.indices_nonzero(mask)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError):  # KeyError: a name twice
            raise errors.SchemaError(f"the keys of block {ref.sequence_number} cannot be compared") from None
        return int(matches[-1].as_py()) if len(matches) else None


def _earlier(event: ev.AddData | ev.ExecuteTransform) -> str | None:
    if not isinstance(event, ev.ExecuteTransform):
        return None
    if event.prev_checkpoint is not None:
        return "may also depend on records that earlier transactions read: the query keeps state between them"
    if event.new_checkpoint is not None:
        return "depends on nothing earlier: the query keeps state, and this is where it begins"
    return "depends on nothing earlier: the query keeps no state between transactions"


# Where records come from, as documents for programs and as indented lines for people.


def _kind_of(blame: Blame) -> DatasetKind | None:
    try:
        return blame.dataset.kind
    except errors.OdfchainError:
        return None


def _kind(kind: DatasetKind | None) -> str | None:
    return kind.value.lower() if kind else None


def _transaction_document(item: Transaction) -> dict[str, Any]:
    block = item.block.block
    return {
        "offsets": [item.first, item.last],
        "rows": [_row(row) for row in item.rows],
        "rowsProblem": item.rows_problem,
        "slice": _slice(item.ref.slice) | {"present": item.present},
        "block": {
            **record_of(item.block, "hash"),
            **record_of(block, "sequence_number", "system_time", "event:event.KIND"),
        },
        "source": _source(item.source),
        "transform": _transform(item),
        "inputs": [_reads(reads) for reads in item.reads],
        "earlier": item.earlier,
        "prevCheckpoint": item.checkpoint and str(item.checkpoint),
    }


def _slice(data: ev.DataSlice) -> dict[str, Any]:
    offsets = [data.offset_interval.start, data.offset_interval.end]
    return record_of(data, "physical_hash", "logical_hash") | {"offsets": offsets, "size": data.size}


def _row(blamed: BlamedRow) -> dict[str, Any]:
    return {
        **record_of(blamed.row, "offset", "op"),
        "values": _finite(blamed.row.values),
        "corrects": blamed.corrects
        and {
            **record_of(blamed.corrects, "offset:row.offset", "sequence_number"),
            "values": blamed.corrects.row and _finite(blamed.corrects.row.values),
            "problem": blamed.corrects.problem,
        },
    }


def _finite(value: Any) -> Any:
    match value:
        # JSON has no NaN and no infinities
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


def _source(source: SourceUse | None) -> dict[str, Any] | None:
    if source is None:
        return None
    found = record_of(source, "kind", "name", "fetch") | {
        "merge": describe_merge(source.definition.merge) if source.definition else None,
        "state": source.state and record_of(source.state, "kind", "value"),
        "problem": source.problem,
    }
    if source.merged is not None:
        names = ("source", "base", "conflicts", "resolution", "message")
        found["merged"] = record_of(source.merged, *names)
    return found


def _transform(item: Transaction) -> dict[str, Any] | None:
    if (block := item.transform) is None or not isinstance(block.block.event, ev.SetTransform):
        return None
    transform = block.block.event.transform
    return {
        **record_of(block, "block:hash", "sequenceNumber:block.sequence_number"),
        **record_of(transform, "engine", "version"),
        "steps": steps_of(transform),
    }


def _reads(reads: InputReads) -> dict[str, Any]:
    return record_of(
        reads, "id", "alias", "name", "missing", "prev_block", "new_block", "blocks", "offsets", "problem"
    )


def _span(span: Span) -> dict[str, Any]:
    return _reads(span.reads) | {
        "kind": _kind(span.kind),
        "problem": span.problem or span.reads.problem,
        "transactions": [_contribution(item) for item in span.contributions],
        "transactionsLeftOut": span.left_out
        and {"firstBlock": span.left_out[0], "lastBlock": span.left_out[1]},
        "origins": [_span(item) for item in span.origins],
    }


def _contribution(item: Contribution) -> dict[str, Any]:
    return {
        **record_of(item, "block:ref.block_hash", "sequenceNumber:ref.sequence_number", "system_time"),
        "slice": _slice(item.ref.slice) | {"present": item.present},
        "source": _source(item.source),
    }


def _row_text(row: StoredRecord) -> str:
    values = ", ".join(f"{name}={_value_text(value)}" for name, value in row.values.items())
    return one_line(f"{row.op or '(operation unknown)'} {values}", 400)


def _value_text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        shown = value.isoformat().replace("+00:00", "Z")
        return shown.replace("000Z", "Z") if value.microsecond else shown  # thousandths are enough
    return "∅" if value is None else str(value)
