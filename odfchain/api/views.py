"""What datasets, logs and lists of them look like, as a line and as HTML.

Names and values come from publishers: in what is shown none of them acts (`odfchain.text`), and HTML is
escaped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from odfchain.api.known_errors import OwnErrors
from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.errors import OdfchainError
from odfchain.model.events import AddData, ExecuteTransform
from odfchain.model.metadata_block import MetadataBlock
from odfchain.text import one_line

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset

_SHOWN = 20
"""Rows of a table that stands for something longer."""


class Log(OwnErrors):
    """The blocks of a chain, newest first; read while they are walked, as often as they are."""

    def __init__(self, chain: MetadataChain, limit: int | None) -> None:
        self._chain = chain
        self._limit = limit

    def __iter__(self) -> Iterator[HashedBlock]:
        return itertools.islice(self._chain.walk(), self._limit)

    def __repr__(self) -> str:
        lines = [f"#{row[0]} {row[1]} {row[2]} {row[3]}" for row in self._rows()]
        return "\n".join(lines) or "<Log: no blocks>"

    def _repr_html_(self) -> str:
        return table_html(("block", "time", "event", "records", "hash"), self._rows())

    def _rows(self) -> list[tuple[str, ...]]:
        found = list(itertools.islice(self, _SHOWN + 1))
        rows = [
            (str(b.sequence_number), str(b.system_time), b.event.KIND, _records(b), str(name))
            for name, b in found[:_SHOWN]
        ]
        return [*rows, *[("…", "", "", "", "")] * (len(found) > _SHOWN)]


def _records(block: MetadataBlock) -> str:
    event = block.event
    data = event.new_data if isinstance(event, AddData | ExecuteTransform) else None
    return f"{data.offset_interval.count:,} records" if data else ""


def table_html(titles: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; every text in it is shown as it is, and none acts."""
    head = "".join(f"<th>{_shown(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{_shown(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    top = f"<caption>{_shown(caption)}</caption>" if caption else ""
    return f"<table>{top}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(value: object) -> str:
    return escape(one_line(str(value)))


def describe_dataset(dataset: Dataset) -> str:
    """A dataset in one line; never an error."""
    try:
        state = dataset.summary
    except OdfchainError as error:
        return f"<Dataset {dataset.alias}: damaged: {one_line(str(error))}>"
    kind = state.seed.dataset_kind.value.lower()
    found = [kind, f"{state.record_count:,} records", f"{state.head_block.sequence_number + 1:,} blocks"]
    found += [f"watermark {state.watermark}"] if state.watermark else []
    return f"<Dataset {dataset.alias}: {', '.join(found)}>"


def dataset_html(dataset: Dataset) -> str:
    """A dataset as a table of what it is, and one of its columns; never an error."""
    try:
        state = dataset.summary
        facts = [
            ("id", dataset.id),
            ("kind", state.seed.dataset_kind.value),
            ("records", f"{state.record_count:,}"),
            ("blocks", f"{state.head_block.sequence_number + 1:,}"),
            ("updated", state.head_block.system_time),
            ("watermark", state.watermark or ""),
            ("head", state.head),
        ]
        fields = state.schema.fields if state.schema else ()
    except OdfchainError as error:
        return table_html(("what", "value"), [("damaged", error)], str(dataset.alias))
    from odfchain.model.ddl import type_name

    columns = table_html(("column", "type"), [(field.name, type_name(field.type)) for field in fields])
    return table_html(("what", "value"), facts, str(dataset.alias)) + columns


def datasets_html(datasets: Iterable[Dataset]) -> str:
    """Datasets as the rows of a table; one that is damaged says so."""
    rows = []
    for dataset in datasets:
        try:
            state = dataset.summary
            kind, updated = state.seed.dataset_kind.value, str(state.head_block.system_time)
            rows.append((str(dataset.alias), kind, f"{state.record_count:,}", updated))
        except OdfchainError as error:
            rows.append((str(dataset.alias), "damaged", "", str(error)))
    return table_html(("dataset", "kind", "records", "updated"), rows)
