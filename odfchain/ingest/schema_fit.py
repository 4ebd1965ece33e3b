"""Does an input fit a dataset, and what schema does a new dataset get: pure rules over schemas.

Source: specification "Common Data Schema"; facts in `fixtures/conformance/writer_cases.json`. System columns
of datasets made here have the specification's types; the schema that a dataset declares decides how it is
appended to (RFC-001).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odfchain.chain.schema_rules import canonical
from odfchain.codec.arrow import slice_schema
from odfchain.digest.logical import check_hashable
from odfchain.errors import BadInputError, IncompatibleSchemaError, SchemaError
from odfchain.model import data_schema as ds
from odfchain.model.ddl import type_name
from odfchain.model.enums import TimeUnit
from odfchain.model.events import DatasetVocabulary
from odfchain.model.recordable import check_recordable, recorded
from odfchain.repo.system_columns import SystemColumns

MS_UTC = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")


US_UTC = ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")


def normalized(
    schema: ds.DataSchema, vocabulary: DatasetVocabulary, dataset: ds.DataSchema | None = None
) -> ds.DataSchema:
    """The input's schema as it is stored: timestamps UTC, event time to the millisecond.

    Where the dataset declares what is stored alike, that decides; other data columns keep microseconds.
    """
    return ds.DataSchema(fields=tuple(_normalized(f, vocabulary, dataset) for f in schema.fields))


def _normalized(
    f: ds.DataField, vocabulary: DatasetVocabulary, dataset: ds.DataSchema | None
) -> ds.DataField:
    stored, known = recorded(f.value_type), dataset.field(f.name) if dataset is not None else None
    declared = known.value_type if known is not None else None
    if isinstance(stored, ds.DataTypeTimestamp):
        fine = stored == US_UTC and f.name != vocabulary.event_time_column
        if declared is not None and recorded(declared) in (MS_UTC, US_UTC):
            fine = recorded(declared) == US_UTC
        stored = US_UTC if fine else MS_UTC
    if declared is not None and _without_nullability(recorded(declared)) == _without_nullability(stored):
        stored = declared
    elif _without_nullability(stored) == _without_nullability(canonical(f.value_type)):
        return f
    return ds.DataField(name=f.name, type=ds.optional(stored) if f.optional else stored, extra=f.extra)


_INTEGERS: tuple[type, ...] = (
    ds.DataTypeInt8, ds.DataTypeInt16, ds.DataTypeInt32, ds.DataTypeInt64,
    ds.DataTypeUInt8, ds.DataTypeUInt16, ds.DataTypeUInt32, ds.DataTypeUInt64,
)  # fmt: skip


def check_declared(schema: ds.DataSchema, vocabulary: DatasetVocabulary) -> None:
    """Rows can be recorded by a declared schema: the system columns come first, and no name comes twice.

    Raises:
        SchemaError: it cannot.
    """
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
        raise SchemaError(
            f"the declared schema {problem}: no rows can be recorded by it",
            hint=f"make another dataset whose schema begins with {', '.join(vocabulary.columns)}, or with no "
            "SetDataSchema: a schema is recorded with the first rows",
        )


def check_reserved(
    schema: ds.DataSchema, vocabulary: DatasetVocabulary, file: str, *, operations: bool
) -> None:
    """No input column has the name of a system column; event time has a type of time.

    Raises:
        BadInputError: a column does.
    """
    reserved = [vocabulary.offset_column, vocabulary.system_time_column]
    if not operations:
        reserved.append(vocabulary.operation_type_column)
    for name in reserved:
        if schema.field(name) is not None:
            raise BadInputError(
                f"column `{name}` conflicts with the system column name",
                file=file,
                hint="rename the column, or the system column with a SetVocab event",
            )
    event_time = schema.field(vocabulary.event_time_column)
    if event_time is not None and not isinstance(
        event_time.value_type, ds.DataTypeDate | ds.DataTypeTimestamp
    ):
        raise BadInputError(
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
    data_type = recorded.value_type if recorded is not None else MS_UTC
    added = ds.DataField(
        name=name, type=ds.optional(data_type), extra=recorded.extra if recorded is not None else None
    )
    return ds.DataSchema(fields=(*schema.fields, added))


def dataset_schema(
    data: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    system_columns: SystemColumns = SystemColumns.SPECIFICATION,
) -> ds.DataSchema:
    """The schema of a dataset that starts with this input: system columns first, all of them required."""
    _, _, system_time, event_time = vocabulary.columns
    given = data.field(event_time)
    event_type = given.value_type if given is not None else MS_UTC
    system = (
        *system_columns.numbers(vocabulary),
        ds.DataField(name=system_time, type=MS_UTC),
        ds.DataField(name=event_time, type=event_type, extra=given.extra if given is not None else None),
    )
    return ds.DataSchema(fields=system + tuple(f for f in data.fields if f.name not in vocabulary.columns))


@dataclass(frozen=True, slots=True)
class Fit:
    """How an input that is not quite like the dataset is made to fit; columns are matched by name."""

    filled: tuple[ds.DataField, ...] = ()
    """Optional columns that the input lacks: null in all its rows."""
    added: tuple[ds.DataField, ...] = ()
    """Optional columns that are new to the dataset."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
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
    """How the input fits: same types by name; optional columns may be missing or new, but not both (RFC-015).

    A column that goes while another comes is a renamed one more often than not, so that is refused. So are
    new columns where nobody declared a source (`may_grow`). Nullability is coerced later.

    Raises:
        IncompatibleSchemaError: what differs is shown as a diff of both schemas.
    """
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
        raise IncompatibleSchemaError(
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
    """(schema of an input's data columns, filled ones included; schema of the dataset after; notes).

    Raises:
        BadInputError, IncompatibleSchemaError, SchemaError: as the rules above; or rows would have no hash.
    """
    data = normalized(given, vocabulary, dataset)
    check_reserved(data, vocabulary, file, operations=operations)
    data = with_event_time(data, dataset, vocabulary)
    if dataset is None:
        check_recordable(data.fields)
        return data, dataset_schema(data, vocabulary, system_columns), ()
    check_declared(dataset, vocabulary)
    fitting = fit(dataset, data, vocabulary, file, may_grow=may_grow)
    target = ds.DataSchema(fields=dataset.fields + fitting.added, extra=dataset.extra)
    check_recordable(fitting.added)
    check_hashable(slice_schema(target))
    return ds.DataSchema(fields=data.fields + fitting.filled), target, fitting.notes


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
