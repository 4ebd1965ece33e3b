"""Values as documents, texts and pages: what `-o json`, `-o yaml` and `-o html` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.codec.tree import to_tree
from odfchain.codec.yaml_writer import dump_json, dump_yaml
from odfchain.model.ddl import format_ddl, type_name
from odfchain.profile.profile_words import line_of, percent

if TYPE_CHECKING:
    from odfchain.audit.report import Report
    from odfchain.model.data_schema import DataSchema
    from odfchain.model.events import MetadataEvent, SetDataSchema

__all__ = [
    "document_of", "dump_json", "dump_yaml", "format_ddl", "line_of", "merged_text", "percent",
    "report_page", "schema_of", "type_name", "write_report",
]  # fmt: skip

document_of = to_tree
"""Any value of the model as JSON and YAML can hold it, spelled as in the specification."""


def schema_of(event: SetDataSchema) -> DataSchema:
    """The schema that an event declares, in whichever of the two ways.

    Raises:
        DecodeError, SchemaError: the bytes of an Arrow schema are malformed, or cannot be expressed.
    """
    from odfchain.codec.raw_arrow import schema_of_event

    return schema_of_event(event.raw_arrow_schema, event.schema)


def merged_text(event: MetadataEvent) -> str | None:
    """What a merge or a revert took over, in a line; None for every other event."""
    from odfchain.lineage.source_names import describe_merged
    from odfchain.repo.merge_record import understood_record

    record = understood_record(event)
    return None if record is None else describe_merged(record)


def report_page(reports: Sequence[Report]) -> str:
    """Reports as one HTML page that asks for nothing and runs nothing; faulty datasets come first."""
    from odfchain.audit.page import render_page

    return render_page([report.to_document() for report in reports])


def write_report(document: dict[str, Any], path: Path) -> None:
    """Durably write the document of a report, byte by byte as an attestation of it has its digest.

    Raises:
        StoreError: it cannot be written.
    """
    from odfchain.store.fsio import replace_file
    from odfchain.trust.canonical import canonical_json

    replace_file(path, canonical_json(document) + b"\n")
