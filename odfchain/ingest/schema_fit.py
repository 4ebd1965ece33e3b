"""Does an input fit a dataset, and what schema does a new dataset get: pure rules over schemas.

Source: specification "Common Data Schema"; facts in `fixtures/conformance/writer_cases.json`. System columns
of datasets made here have the specification's types; the schema that a dataset declares decides how it is
appended to (RFC-001).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from odfchain import errors
from odfchain.chain.rules import canonical
from odfchain.ingest.fetch_files import match_pattern
from odfchain.ingest.fetch_url import check_url
from odfchain.ingest.read_csv import codec_name
from odfchain.ingest.read_formats import US_UTC, WHOLE, declared_schema, dialect_of
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.schema import check_recordable, recorded, type_name
from odfchain.spark.types import check_columns
from odfchain.storage.locations import Target
from odfchain.storage.template import names_in
from odfchain.text import one_line
from odfchain.workspace.attachments import path_fault
from odfchain.workspace.dataset_state import DatasetState, SystemColumns, operations_problem


def normalized(
    schema: ds.DataSchema, vocabulary: DatasetVocabulary, dataset: ds.DataSchema | None = None
) -> ds.DataSchema:
    """The input's schema as it is stored: timestamps UTC, event time to the millisecond."""
    # the dataset's declared types decide where they are stored alike; other columns keep microseconds
    return ds.DataSchema(fields=tuple(_normalized(f, vocabulary, dataset) for f in schema.fields))


def _normalized(f: ds.DataField, vocab: DatasetVocabulary, dataset: ds.DataSchema | None) -> ds.DataField:
    stored, known = recorded(f.value_type), dataset.field(f.name) if dataset is not None else None
    declared = known.value_type if known is not None else None
    if isinstance(stored, ds.DataTypeTimestamp):
        fine = stored == US_UTC and f.name != vocab.event_time_column
        if declared is not None and recorded(declared) in (ds.MS_UTC, US_UTC):
            fine = recorded(declared) == US_UTC
        stored = US_UTC if fine else ds.MS_UTC
    if declared is not None and _without_nullability(recorded(declared)) == _without_nullability(stored):
        stored = declared
    elif _without_nullability(stored) == _without_nullability(canonical(f.value_type)):
        return f
    return ds.DataField(name=f.name, type=ds.optional(stored) if f.optional else stored, extra=f.extra)


_INTEGERS: tuple[type, ...] = (ds.DataTypeInt8, ds.DataTypeUInt8, *WHOLE)


def check_declared(schema: ds.DataSchema, vocabulary: DatasetVocabulary) -> None:
    """Check a declared schema: the system columns come first, and no name comes twice."""
    names = schema.names
    problem = None
    twice = next((name for name in names if names.count(name) > 1), None)
    times = (ds.DataTypeTimestamp,)
    kinds = (_INTEGERS, _INTEGERS, times, (*times, ds.DataTypeDate))
    if names[:4] != vocabulary.columns:
        problem = f"begins with {', '.join(f'`{name}`' for name in names[:4])}"
    elif twice is not None:
        problem = f"has column `{twice}` twice"
    for field, kind in zip(schema.fields, kinds, strict=False):
        if problem is None and not isinstance(field.value_type, kind):
            problem = f"has {type_name(field.type)} for `{field.name}`"
    if problem is not None:
        raise errors.SchemaError(
            f"the declared schema {problem}: no rows can be recorded by it",
            hint=f"make another dataset whose schema begins with {', '.join(vocabulary.columns)}, or with no "
            "SetDataSchema: a schema is recorded with the first rows",
        )


def check_reserved(schema: ds.DataSchema, vocab: DatasetVocabulary, file: str, *, operations: bool) -> None:
    """Check that no input column has the name of a system column, and that event time has a type of time."""
    reserved = [vocab.offset_column, vocab.system_time_column]
    if not operations:
        reserved.append(vocab.operation_type_column)
    for name in reserved:
        if schema.field(name) is not None:
            message = f"column `{name}` conflicts with the system column name"
            hint = "rename the column, or the system column with a SetVocab event"
            raise errors.BadInputError(message, file=file, hint=hint)
    event_time = schema.field(vocab.event_time_column)
    if event_time is not None and not isinstance(
        event_time.value_type, ds.DataTypeDate | ds.DataTypeTimestamp
    ):
        raise errors.BadInputError(
            f"event time column `{event_time.name}` is {type_name(event_time.type)}, "
            "it must be DATE or TIMESTAMP",
            file=file,
        )


def with_event_time(
    schema: ds.DataSchema, dataset: ds.DataSchema | None, vocabulary: DatasetVocabulary
) -> ds.DataSchema:
    """The schema with an event time column, of the dataset's type, when it has none."""
    name = vocabulary.event_time_column
    if schema.field(name) is not None:
        return schema
    recorded = dataset.field(name) if dataset is not None else None
    data_type = recorded.value_type if recorded is not None else ds.MS_UTC
    extra = recorded.extra if recorded is not None else None
    added = ds.DataField(name=name, type=ds.optional(data_type), extra=extra)
    return ds.DataSchema(fields=(*schema.fields, added))


def dataset_schema(
    data: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    system_columns: SystemColumns = SystemColumns.SPECIFICATION,
) -> ds.DataSchema:
    """The schema of a dataset that starts with this input: system columns first, all of them required."""
    name = vocabulary.event_time_column
    given = data.field(name)
    time = ds.DataField(name=name, type=ds.MS_UTC)
    if given is not None:
        time = ds.DataField(name=name, type=given.value_type, extra=given.extra)
    return system_columns.before(data.fields, time, vocabulary)


@dataclass(frozen=True, slots=True)
class Fit:
    """Conversion of an input to the dataset's schema; columns are matched by name."""

    filled: tuple[ds.DataField, ...] = ()
    """Optional columns that the input lacks: null in all its rows."""
    added: tuple[ds.DataField, ...] = ()
    """Optional columns that are new to the dataset."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        notes = []
        if self.filled:
            notes.append(f"the input lacks {_names(self.filled)}: filled with null")
        if self.added:
            notes.append(f"the dataset gets {_shown(list(self.added))}: null in what is recorded")
        return tuple(notes)


def fit(
    dataset: ds.DataSchema,
    data: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    file: str,
    *,
    may_grow: bool = True,
) -> Fit:
    """The fit of an input: same types by name; optional columns are missing or new, not both (RFC-015)."""
    # a column that goes while another comes is probably renamed, so that is refused; nullability is coerced
    # later
    event_time = vocabulary.event_time_column
    expected = [f for f in dataset.fields if f.name not in vocabulary.columns]
    actual = [f for f in data.fields if f.name not in vocabulary.columns]
    recorded_time, given_time = dataset.field(event_time), data.field(event_time)
    pairs = [(f, data.field(f.name)) for f in expected]
    if recorded_time is not None:
        pairs.append((recorded_time, given_time))
    problems = [text for a, b in pairs if b is not None for text in _difference(a, b)]
    missing = [f for f in expected if data.field(f.name) is None]
    extra = [f for f in actual if dataset.field(f.name) is None]
    if missing and (extra or not all(f.optional for f in missing)):
        problems.append(f"missing {_names(missing)}")
    if extra and (missing or not may_grow):
        problems.append(f"unexpected {_names(extra)}")
    elif required := [f for f in extra if not f.optional]:
        problems.append(f"unexpected {_names(required)} (a new column must be optional)")
    if problems:
        changed = {f.name for f, other in pairs if other is not None and _difference(f, other)}
        before = [f for f in [*expected, recorded_time] if f and (f in missing or f.name in changed)]
        after = [f for f in [*actual, given_time] if f and (f in extra or f.name in changed)]
        raise errors.SchemaError(
            f"{file}: the input does not fit the dataset's schema: {'; '.join(problems)} "
            f"(dataset - {_shown(before) or 'nothing'} | input + {_shown(after) or 'nothing'})",
            hint="cast, rename or leave out columns with a preprocess query, or use a new dataset",
        )
    return Fit(tuple(missing), tuple(extra))


def settled(
    given: ds.DataSchema,
    dataset: ds.DataSchema | None,
    vocabulary: DatasetVocabulary,
    file: str,
    system_columns: SystemColumns = SystemColumns.SPECIFICATION,
    *,
    operations: bool,
    may_grow: bool = True,
) -> tuple[ds.DataSchema, ds.DataSchema, tuple[str, ...]]:
    """(schema of an input's data columns, filled ones included; schema of the dataset after; notes)."""
    data = normalized(given, vocabulary, dataset)
    check_reserved(data, vocabulary, file, operations=operations)
    data = with_event_time(data, dataset, vocabulary)
    if dataset is None:
        check_recordable(data.fields)
        return data, dataset_schema(data, vocabulary, system_columns), ()
    check_declared(dataset, vocabulary)
    fitting = fit(dataset, data, vocabulary, file, may_grow=may_grow)
    target = ds.DataSchema(fields=dataset.fields + fitting.added, extra=dataset.extra)
    check_recordable(target.fields)
    return ds.DataSchema(fields=data.fields + fitting.filled), target, fitting.notes


def check_strategy(
    strategy: src.MergeStrategy, schema: ds.DataSchema | None, file: str, *, operation: str = "op"
) -> None:
    """Check that the input has every column that the strategy names, and `operation` where needed."""
    # without a schema only faults are found that any schema would have
    if isinstance(strategy, src.MergeStrategyAppend):
        return
    named = [("primaryKey", strategy.primary_key)]
    if isinstance(strategy, src.MergeStrategySnapshot) and strategy.compare_columns is not None:
        named.append(("compareColumns", strategy.compare_columns))
    for what, names in named:
        if not names:
            raise errors.SchemaError(f"merge.{what} of the source is empty")
        for name in names:
            if names.count(name) > 1:
                raise errors.SchemaError(f"merge.{what} of the source names column {name!r} twice")
            if not name:
                raise errors.SchemaError(f"merge.{what} of the source names a column ''")
            if schema is not None and schema.field(name) is None:
                raise errors.SchemaError(
                    f"{file}: merge.{what} names column {name!r}, which the input does not have "
                    f"(it has {', '.join(schema.names)})"
                )
    if schema is not None and (problem := operations_problem(strategy, schema.names, operation, "the input")):
        message, hint = problem
        raise errors.SchemaError(f"{file}: {message}", hint=hint)


def _names(fields: Sequence[ds.DataField]) -> str:
    return ", ".join(f.name for f in fields)


def _difference(expected: ds.DataField, actual: ds.DataField) -> list[str]:
    a, b = canonical(expected.value_type), canonical(actual.value_type)
    if _without_nullability(a) == _without_nullability(b):
        return []
    return [f"column {expected.name} is {type_name(expected.type)}, the input has {type_name(actual.type)}"]


def _without_nullability(data_type: ds.DataType) -> ds.DataType:
    def change(part: ds.DataType) -> ds.DataType | None:
        match part:
            case ds.DataTypeOption(inner=inner):
                return _without_nullability(inner)
            case ds.DataTypeMap():
                return part
        return None

    return ds.with_types(data_type, change)


def _shown(fields: list[ds.DataField]) -> str:
    return ", ".join(f"{f.name} {type_name(f.type)}" for f in fields)


# Definitions that no run could execute are refused when they are added, by the rules of the runs over the
# declared columns. Pulled chains are not checked here (specification "DatasetSnapshot", "Metadata Events";
# RFC-005).

_INSIDE = re.compile(r"\b(?:read|merge)\.([a-zA-Z]+)\b")
"""Names of a source's parts in the rules of runs."""
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
                        raise errors.ManifestError("a keyword is expected", path=f"{path}.keywords[{number}]")


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
            raise errors.ManifestError("the name of a column is expected", path=f"{path}.{key}")
        with _at(f"{path}.{key}"):
            check_columns([name], "")
        other = next((k for k, n in names.items() if n == name and k != key), None)
        if other is not None:
            message = f"{one_line(name)!r} is the name that {other} has"
            raise errors.ManifestError(message, path=f"{path}.{key}")


def _declared(event: ev.SetDataSchema, vocabulary: ev.DatasetVocabulary, path: str) -> ds.DataSchema:
    with _at(f"{path}.schema"):
        schema = schema_of_event(event.raw_arrow_schema, event.schema)
        check_declared(schema, vocabulary)
        if "" in schema.names:
            raise errors.SchemaError("a column has no name")
        check_columns(schema.names, "")
        check_recordable(schema.fields)
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
            columns, *_ = settled(columns, dataset, vocabulary, _COLUMNS, operations=merge.TAKES_OPERATIONS)
    with _at(f"{path}.merge"):
        operation = vocabulary.operation_type_column
        check_strategy(merge, columns, _COLUMNS, operation=operation)
        _check_key(merge, vocabulary)
        field = columns.field(operation) if columns is not None and merge.TAKES_OPERATIONS else None
        if field is not None and isinstance(field.value_type, _NO_OPERATION):
            message = f"column {operation!r} cannot say what a row does: a whole number is expected"
            raise errors.SchemaError(message)


def _check_key(merge: src.MergeStrategy, vocabulary: ev.DatasetVocabulary) -> None:
    compared = merge.compare_columns if isinstance(merge, src.MergeStrategySnapshot) else None
    for what, names in (("primaryKey", merge.primary_key), ("compareColumns", compared or ())):
        for name in names:
            if name in vocabulary.columns[:3]:
                message = f"merge.{what} names {name!r}, which belongs to the change and not to the record"
                raise errors.SchemaError(message)


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
        raise errors.ManifestError("an absolute path like /data/*.csv is expected", path=f"{path}.fetch.path")
    time = getattr(fetch, "event_time", None)
    if isinstance(time, src.EventTimeSourceFromPath):
        with _at(f"{path}.fetch.eventTime.pattern"):
            match_pattern(time.pattern, "")
    for index, step in enumerate(event.prepare or ()):
        if isinstance(step, src.PrepStepPipe) and not (step.command and step.command[0]):
            raise errors.ManifestError("a command is expected", path=f"{path}.prepare[{index}].command")


def _check_license(event: ev.SetLicense, path: str) -> None:
    try:
        Target.parse(event.website_url)
    except errors.InvalidIdError:
        message = f"{one_line(event.website_url)!r} is not an http or https URL"
        hint = "write it like https://creativecommons.org/licenses/by/4.0/"
        raise errors.ManifestError(message, path=f"{path}.websiteUrl", hint=hint) from None


def _check_attachments(event: ev.SetAttachments, path: str) -> None:
    seen: set[str] = set()
    for index, item in enumerate(event.attachments.items):
        problem = path_fault(item.path)
        if item.path in seen:
            problem = f"{one_line(item.path)!r} is attached twice"
        if problem is not None:
            raise errors.ManifestError(problem, path=f"{path}.attachments.items[{index}].path")
        seen.add(item.path)


@contextmanager
def _at(path: str) -> Iterator[None]:
    try:
        yield
    except (errors.BadInputError, errors.CodecError, errors.FetchError, errors.SchemaError) as error:
        inside = _INSIDE.search(error.message)
        raise errors.ManifestError(
            one_line(error.message, 500), path=f"{path}.{inside[1]}" if inside else path, hint=error.hint
        ) from None
