"""Where records come from, as documents for programs and as indented lines for people."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from odfchain.errors import OdfchainError
from odfchain.lineage.graph_document import TextTree
from odfchain.lineage.origins import Contribution, InputReads, Interval, Span
from odfchain.lineage.provenance import Blame, BlamedRow, Transaction
from odfchain.lineage.queries import steps_of
from odfchain.lineage.record_lookup import CorrectedRecord, StoredRecord
from odfchain.lineage.source_names import SourceUse, describe_merge, describe_merged
from odfchain.model.enums import DatasetKind
from odfchain.model.events import DataSlice, SetTransform
from odfchain.repo.merge_record import MergeRecord
from odfchain.text import one_line

# --- for programs --------------------------------------------------------------------------------------


def blame_document(blame: Blame) -> dict[str, Any]:
    """All that is known, for programs; `origins` is null where they were not asked for."""
    return {
        "dataset": {"id": blame.id, "alias": str(blame.dataset.alias), "kind": _kind(_kind_of(blame))},
        "offsets": [blame.first, blame.last],
        "transactions": [_transaction(item) for item in blame.transactions],
        "origins": None if blame.origins is None else [_span(span) for span in blame.origins],
    }


def _kind_of(blame: Blame) -> DatasetKind | None:
    try:
        return blame.dataset.kind
    except OdfchainError:
        return None


def _kind(kind: DatasetKind | None) -> str | None:
    return kind.value.lower() if kind else None


def _transaction(item: Transaction) -> dict[str, Any]:
    block = item.block.block
    return {
        "offsets": [item.first, item.last],
        "rows": [_row(row) for row in item.rows],
        "rowsProblem": item.rows_problem,
        "slice": _slice(item.ref.slice) | {"present": item.present},
        "block": {
            "hash": str(item.block.hash),
            "sequenceNumber": block.sequence_number,
            "systemTime": str(block.system_time),
            "event": block.event.KIND,
        },
        "source": _source(item.source),
        "transform": _transform(item),
        "inputs": [_reads(reads) for reads in item.reads],
        "earlier": item.earlier,
        "prevCheckpoint": item.checkpoint and str(item.checkpoint),
    }


def _slice(data: DataSlice) -> dict[str, Any]:
    return {
        "physicalHash": str(data.physical_hash),
        "logicalHash": str(data.logical_hash),
        "offsets": [data.offset_interval.start, data.offset_interval.end],
        "size": data.size,
    }


def _row(blamed: BlamedRow) -> dict[str, Any]:
    return {
        "offset": blamed.row.offset,
        "op": blamed.row.op,
        "values": _finite(blamed.row.values),
        "corrects": blamed.corrects
        and {
            "offset": blamed.corrects.row and blamed.corrects.row.offset,
            "sequenceNumber": blamed.corrects.sequence_number,
            "values": blamed.corrects.row and _finite(blamed.corrects.row.values),
            "problem": blamed.corrects.problem,
        },
    }


def _finite(value: Any) -> Any:
    """A value without the numbers that JSON has not: they become text."""
    match value:
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
    return {
        "kind": source.kind,
        "name": source.name,
        "fetch": source.fetch,
        "merge": describe_merge(source.definition.merge) if source.definition else None,
        "state": source.state and {"kind": source.state.kind, "value": source.state.value},
        "problem": source.problem,
        **({"merged": _merged(source.merged)} if source.merged is not None else {}),
    }


def _merged(record: MergeRecord) -> dict[str, Any]:
    return {
        "source": str(record.source),
        "base": [str(block) for block in record.base],
        "conflicts": record.conflicts,
        "resolution": record.resolution.value,
        "message": record.message,
    }


def _transform(item: Transaction) -> dict[str, Any] | None:
    block = item.transform
    if block is None or not isinstance(block.block.event, SetTransform):
        return None
    transform = block.block.event.transform
    return {
        "block": str(block.hash),
        "sequenceNumber": block.block.sequence_number,
        "engine": transform.engine,
        "version": transform.version,
        "steps": steps_of(transform),
    }


def _reads(reads: InputReads) -> dict[str, Any]:
    return {
        "id": reads.id,
        "alias": reads.alias,
        "name": reads.name,
        "missing": reads.missing,
        "prevBlock": reads.prev_block and str(reads.prev_block),
        "newBlock": reads.new_block and str(reads.new_block),
        "blocks": reads.blocks and list(reads.blocks),
        "offsets": reads.offsets and list(reads.offsets),
        "problem": reads.problem,
    }


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
        "block": str(item.ref.block_hash),
        "sequenceNumber": item.ref.sequence_number,
        "systemTime": str(item.system_time),
        "slice": _slice(item.ref.slice) | {"present": item.present},
        "source": _source(item.source),
    }


# --- for people ----------------------------------------------------------------------------------------

_SHOWN_TRANSACTIONS = 5
_SHOWN_VALUES = 400


def blame_tree(blame: Blame) -> TextTree:
    """The same for people: what was asked about, its transactions, and below each what it was made of."""
    asked = _span_of("record", (blame.first, blame.last))
    top = TextTree(f"{asked} of {blame.dataset.alias}", style="bold")
    top.below = [_transaction_tree(item) for item in blame.transactions]
    if blame.origins:
        top.below.append(TextTree("made of", [_span_tree(span) for span in blame.origins]))
    return top


def _span_of(what: str, interval: Interval) -> str:
    first, last = interval
    return f"{what} {first:,}" if first == last else f"{what}s {first:,} to {last:,}"


def _transaction_tree(item: Transaction) -> TextTree:
    block, data = item.block.block, item.ref.slice
    interval = (data.offset_interval.start, data.offset_interval.end)
    tree = TextTree(f"{_span_of('record', (item.first, item.last))}: block {block.sequence_number}")
    tree.below = [_row_tree(row) for row in item.rows]
    if item.rows_problem:
        tree.below.append(TextTree(item.rows_problem, style="red" if item.damaged else "yellow"))
    tree.below += [
        TextTree(f"slice {data.physical_hash} ({_span_of('record', interval)}, {data.size:,} bytes)"),
        TextTree(f"block {item.block.hash} ({block.event.KIND}, {block.system_time})"),
    ]
    if item.source is not None:
        tree.below.append(TextTree(_source_text(item.source)))
    if item.transform is not None and isinstance(item.transform.block.event, SetTransform):
        transform = item.transform.block.event.transform
        engine = f"{transform.engine} {transform.version or ''}".strip()
        below = [
            TextTree(
                one_line(
                    f"{step['alias']}: {step['query']}" if step["alias"] else step["query"], _SHOWN_VALUES
                )
            )
            for step in steps_of(transform)
        ]
        number = item.transform.block.sequence_number
        tree.below.append(TextTree(f"transform of block {number} ({one_line(engine)})", below))
    if item.reads:
        tree.below.append(TextTree("read", [TextTree(_reads_text(reads)) for reads in item.reads]))
    if item.earlier:
        tree.below.append(TextTree(item.earlier))
    return tree


def _row_tree(blamed: BlamedRow) -> TextTree:
    tree = TextTree(_row_text(blamed.row))
    if blamed.corrects is not None:
        tree.below.append(TextTree(_corrected_text(blamed.corrects)))
    return tree


def _row_text(row: StoredRecord) -> str:
    values = ", ".join(f"{name}={_value_text(value)}" for name, value in row.values.items())
    return one_line(f"{row.op or '(operation unknown)'} {values}", _SHOWN_VALUES)


def _value_text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        shown = value.isoformat().replace("+00:00", "Z")
        return shown.replace("000Z", "Z") if value.microsecond else shown  # thousandths are enough
    return "∅" if value is None else str(value)


def _corrected_text(corrected: CorrectedRecord) -> str:
    if corrected.row is None:
        return f"of the record: {corrected.problem}"
    block = corrected.sequence_number
    return f"of the record {corrected.row.offset:,} (block {block}): {_row_text(corrected.row)}"


def _source_text(source: SourceUse) -> str:
    if source.merged is not None:
        return describe_merged(source.merged)
    match source.kind:
        case "polling":
            text = f"polling source: {source.fetch}"
        case "push":
            text = f"push source {source.name!r}"
        case _:
            return f"source: {source.problem}"
    if source.state is not None:
        text += f", {one_line(source.state.kind)} {one_line(source.state.value)}"
    return text


def _reads_text(reads: InputReads) -> str:
    text = f"{reads.name or reads.alias or reads.id}: "
    text += _span_of("record", reads.offsets) if reads.offsets else "no records"
    if reads.blocks:
        text += f", {_span_of('block', reads.blocks)}"
    elif reads.new_block:
        text += f", up to block {reads.new_block}"
    if reads.problem:
        text += f" ({reads.problem})" if reads.name else f" ({reads.id}: {reads.problem})"
    return text


def _span_tree(span: Span) -> TextTree:
    tree = TextTree(_reads_text(span.reads))
    if span.problem and span.problem != span.reads.problem:
        tree.below.append(TextTree(span.problem, style="yellow"))
    listed = span.contributions[-_SHOWN_TRANSACTIONS:]
    if len(listed) < len(span.contributions) or span.left_out:
        first = span.left_out[0] if span.left_out else span.contributions[0].ref.sequence_number
        newest = span.contributions[-len(listed)].ref.sequence_number
        tree.below.append(TextTree(f"earlier transactions from block {first} on, before block {newest}"))
    for item in listed:
        interval = item.ref.slice.offset_interval
        records = _span_of("record", (interval.start, interval.end))
        text = f"{records}: block {item.ref.sequence_number}, {item.system_time}"
        if item.source is not None:
            text += f", {_source_text(item.source)}"
        tree.below.append(TextTree(text if item.present else f"{text} (the slice is not here)"))
    tree.below += [_span_tree(origin) for origin in span.origins]
    return tree
