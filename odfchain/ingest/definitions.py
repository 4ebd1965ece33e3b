"""What a definition says can be done: what no run could ever do with it is refused when it is added.

The rules are those of the runs, asked about the columns that a source declares; what a query makes of them,
or a file brings, is known later. Chains of others may hold such events: they are pulled as the specification
says, and nothing here looks at them. Source: specification "DatasetSnapshot", "Metadata Events"; RFC-005.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from odfchain.codec.arrow import slice_schema
from odfchain.codec.raw_arrow import schema_of_event
from odfchain.digest.logical import check_hashable
from odfchain.errors import (
    BadInputError,
    CodecError,
    FetchError,
    IncompatibleSchemaError,
    ManifestError,
    SchemaError,
)
from odfchain.ingest.fetch.by_url import check_url
from odfchain.ingest.fetch.event_time import check_pattern
from odfchain.ingest.merge_strategies import check_strategy, takes_operations
from odfchain.ingest.read.formats import declared_schema, dialect_of
from odfchain.ingest.read.preflight import codec_name
from odfchain.ingest.schema_fit import check_declared, settled
from odfchain.model import data_schema as ds
from odfchain.model import events as ev
from odfchain.model import sources as src
from odfchain.net.template import names_in
from odfchain.net.url import read_target
from odfchain.repo.dataset_state import DatasetState
from odfchain.spark.columns import check_columns
from odfchain.text import first_line, one_line, printable

_INSIDE = re.compile(r"\b(?:read|merge)\.([a-zA-Z]+)\b")
"""How the rules of runs call a part of a source."""
_COLUMNS = "the declared columns"
_NO_OPERATION = (
    ds.DataTypeDate, ds.DataTypeTime, ds.DataTypeTimestamp, ds.DataTypeBinary,
    ds.DataTypeStruct, ds.DataTypeList, ds.DataTypeMap,
)  # fmt: skip


def check_usable(
    events: Sequence[ev.MetadataEvent],
    before: DatasetState | None = None,
    recorded: Collection[ev.MetadataEvent] | None = None,
) -> None:
    """Runs can do what the events of a definition say, as far as it is known; they have the form of blocks.

    `before` is the dataset so far, if it is there; `recorded` are those that are to be recorded (None: all).

    Raises:
        ManifestError: they cannot; with the path in the definition.
    """
    vocabulary = before.vocabulary if before is not None else ev.DatasetVocabulary()
    schema = before.schema if before is not None else None
    for index, event in enumerate(events):
        if isinstance(event, ev.SetVocab):
            _check_names(event, f"metadata[{index}]")
            vocabulary = ev.DatasetVocabulary.from_event(event)
    chosen = [(f"metadata[{i}]", e) for i, e in enumerate(events) if recorded is None or e in recorded]
    for path, event in chosen:
        if isinstance(event, ev.SetDataSchema):
            schema = _declared(event, vocabulary, path)
    for path, event in chosen:
        match event:
            case ev.SetPollingSource() | ev.AddPushSource():
                _check_source(event, vocabulary, schema, path)
            case ev.SetLicense():
                _check_license(event, path)
            case ev.SetAttachments():
                _check_attachments(event, path)
            case ev.SetInfo():
                for number, word in enumerate(event.keywords or ()):
                    if not word.strip():
                        raise ManifestError("a keyword is expected", path=f"{path}.keywords[{number}]")


# --- columns ---------------------------------------------------------------------------------------


def _check_names(event: ev.SetVocab, path: str) -> None:
    given = {
        "offsetColumn": event.offset_column,
        "operationTypeColumn": event.operation_type_column,
        "systemTimeColumn": event.system_time_column,
        "eventTimeColumn": event.event_time_column,
    }
    names = dict(zip(given, ev.DatasetVocabulary.from_event(event).columns, strict=True))
    for key, name in given.items():
        if name is None:
            continue
        if not name.strip():
            raise ManifestError("the name of a column is expected", path=f"{path}.{key}")
        with _at(f"{path}.{key}"):
            check_columns([name], "")
        other = next((k for k, n in names.items() if n == name and k != key), None)
        if other is not None:
            raise ManifestError(f"{one_line(name)!r} is the name that {other} has", path=f"{path}.{key}")


def _declared(event: ev.SetDataSchema, vocabulary: ev.DatasetVocabulary, path: str) -> ds.DataSchema:
    with _at(f"{path}.schema"):
        schema = schema_of_event(event.raw_arrow_schema, event.schema)
        check_declared(schema, vocabulary)
        if "" in schema.names:
            raise SchemaError("a column has no name")
        check_columns(schema.names, "")
        try:
            check_hashable(slice_schema(schema))
        except ValueError as error:  # such as a column that is null and may not be
            raise SchemaError(first_line(error)) from None
    return schema


def _check_source(
    event: ev.SetPollingSource | ev.AddPushSource,
    vocabulary: ev.DatasetVocabulary,
    dataset: ds.DataSchema | None,
    path: str,
) -> None:
    _check_reading(event.read, path)
    if isinstance(event, ev.SetPollingSource):
        _check_fetching(event, path)
    columns = declared_schema(event.read) if event.preprocess is None else None
    merge = event.merge
    if columns is not None:
        with _at(f"{path}.read.schema"):
            check_columns(columns.names, _COLUMNS)
            columns, *_ = settled(columns, dataset, vocabulary, _COLUMNS, operations=takes_operations(merge))
    with _at(f"{path}.merge"):
        operation = vocabulary.operation_type_column
        check_strategy(merge, columns, _COLUMNS, operation=operation)
        _check_key(merge, vocabulary)
        field = columns.field(operation) if columns is not None and takes_operations(merge) else None
        if field is not None and isinstance(field.value_type, _NO_OPERATION):
            raise SchemaError(f"column {operation!r} cannot say what a row does: a whole number is expected")


def _check_key(merge: src.MergeStrategy, vocabulary: ev.DatasetVocabulary) -> None:
    compared = merge.compare_columns if isinstance(merge, src.MergeStrategySnapshot) else None
    for what, names in (("primaryKey", src.primary_key(merge)), ("compareColumns", compared or ())):
        for name in names:
            if name in vocabulary.columns[:3]:
                raise SchemaError(
                    f"merge.{what} names {name!r}, which belongs to the change and not to the record"
                )


# --- reading and fetching --------------------------------------------------------------------------


def _check_reading(read: src.ReadStep, path: str) -> None:
    if isinstance(read, src.ReadStepCsv | src.ReadStepJson | src.ReadStepNdJson):
        with _at(f"{path}.read.encoding"):
            codec_name(read.encoding)
    if isinstance(read, src.ReadStepCsv):
        with _at(f"{path}.read"):
            dialect_of(read)


def _check_fetching(event: ev.SetPollingSource, path: str) -> None:
    fetch = event.fetch
    if isinstance(fetch, src.FetchStepUrl) and not names_in([fetch.url]):
        with _at(f"{path}.fetch.url"):
            check_url(fetch.url)
    glob = fetch.path if isinstance(fetch, src.FetchStepFilesGlob) else "/"
    if not (glob.startswith("/") or names_in([glob])):
        raise ManifestError("an absolute path like /data/*.csv is expected", path=f"{path}.fetch.path")
    time = getattr(fetch, "event_time", None)
    if isinstance(time, src.EventTimeSourceFromPath):
        with _at(f"{path}.fetch.eventTime.pattern"):
            check_pattern(time.pattern)
    for index, step in enumerate(event.prepare or ()):
        if isinstance(step, src.PrepStepPipe) and not (step.command and step.command[0]):
            raise ManifestError("a command is expected", path=f"{path}.prepare[{index}].command")


# --- what is said of a dataset ---------------------------------------------------------------------


def _check_license(event: ev.SetLicense, path: str) -> None:
    try:
        read_target(event.website_url)
    except ValueError:
        raise ManifestError(
            f"{one_line(event.website_url)!r} is not an http or https URL",
            path=f"{path}.websiteUrl",
            hint="write it like https://creativecommons.org/licenses/by/4.0/",
        ) from None


def _check_attachments(event: ev.SetAttachments, path: str) -> None:
    seen: set[str] = set()
    for index, item in enumerate(event.attachments.items):
        parts = item.path.split("/")
        problem = None
        if not {"", ".", ".."}.isdisjoint(parts) or printable(item.path) != item.path:
            problem = f"{one_line(item.path)!r} is not the path of a file below a folder, like docs/README.md"
        elif item.path in seen:
            problem = f"{one_line(item.path)!r} is attached twice"
        if problem is not None:
            raise ManifestError(problem, path=f"{path}.attachments.items[{index}].path")
        seen.add(item.path)


@contextmanager
def _at(path: str) -> Iterator[None]:
    """What a rule of a run says, said of a place in the definition."""
    try:
        yield
    except (BadInputError, CodecError, FetchError, IncompatibleSchemaError, SchemaError) as error:
        inside = _INSIDE.search(error.message)
        raise ManifestError(
            one_line(error.message, 500), path=f"{path}.{inside[1]}" if inside else path, hint=error.hint
        ) from None
