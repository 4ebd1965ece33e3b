"""Rules of declared constraints, checked against the known columns when they are recorded (RFC-037).

What is not known then (a dataset has no schema before its first rows) is judged with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from odfchain.chain.rules import canonical
from odfchain.errors import IngestError
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.identity import DatasetId
from odfchain.odf.schema import DataSchema, DataTypeString, parse_ddl, type_name
from odfchain.text import one_line
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.declared_constraints import (
    FILE,
    Constraints,
    ForeignKey,
    attached_text,
    fault,
    recorded_constraints,
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The known columns of a dataset."""

    name: str
    """The dataset's name in messages."""
    vocabulary: ev.DatasetVocabulary
    schema: DataSchema | None
    """None while it is not known."""
    key: tuple[str, ...]
    whole: bool = True
    """True if there are no other columns than those of the schema."""

    @classmethod
    def of(cls, state: DatasetState, name: str) -> Columns:
        """Those of a dataset at a head."""
        schema, whole = state.schema, True
        if schema is None:
            sources = [state.polling_source, *state.push_sources.values()]
            schema, whole = _declared([source for source in sources if source is not None]), False
        return cls(name, state.vocabulary, schema, state.primary_key, whole)

    @classmethod
    def after(
        cls,
        events: Sequence[ev.MetadataEvent],
        name: str,
        vocabulary: ev.DatasetVocabulary,
        declared: Constraints,
    ) -> Columns:
        """Those that events define of a dataset without rows."""
        schema, whole = None, True
        sources = [e for e in events if isinstance(e, ev.AddPushSource | ev.SetPollingSource)]
        for event in events:
            if isinstance(event, ev.SetDataSchema):
                schema = schema_of_event(event.raw_arrow_schema, event.schema)
        if schema is None:
            schema, whole = _declared(sources), False
        keys = {source.merge.primary_key for source in sources} - {()}
        return cls(name, vocabulary, schema, keys.pop() if len(keys) == 1 else declared.primary_key, whole)

    def has(self, column: str) -> bool | None:
        """True if there is a column of this name; None where it is not known."""
        if self.schema is None:
            return None
        there = column in self.schema.names
        return True if there else (None if not self.whole and column in self.vocabulary.columns else False)


def _declared(sources: Sequence[ev.SetPollingSource | ev.AddPushSource]) -> DataSchema | None:
    if len(sources) != 1 or sources[0].preprocess is not None or sources[0].read.ddl_schema is None:
        return None
    return parse_ddl(sources[0].read.ddl_schema)


Find = Callable[[DatasetId], Columns | None]
"""The known columns of another dataset; None where it is not here."""


def check_declared(
    events: Sequence[ev.MetadataEvent],
    name: str,
    find: Find,
    own: DatasetId | None = None,
    before: DatasetState | None = None,
    *,
    may_drop: bool = False,
) -> None:
    """Constraints that events record can be held, as far as it is known; events have the form of blocks.

    `own` is the dataset's id, `before` its state, if it is there.
    """
    attached = next((e for e in reversed(events) if isinstance(e, ev.SetAttachments)), None)
    if attached is None:
        return
    if attached_text(attached) is None:
        if before is not None and not may_drop:
            refuse_to_drop(attached, before)
        return
    declared = recorded_constraints(attached)
    vocabulary = before.vocabulary if before is not None else ev.DatasetVocabulary()
    for event in events:
        if isinstance(event, ev.SetVocab):
            vocabulary = ev.DatasetVocabulary.from_event(event)
    columns = Columns.after(events, name, vocabulary, declared)
    if before is not None and before.schema is not None:
        present = before.merge_key or declared.primary_key
        columns = Columns(name, vocabulary, before.schema, present)
    check_columns(declared, columns)
    for index, key in enumerate(declared.foreign_keys):
        path = f"foreignKeys[{index}]"
        target = columns if key.dataset == own else find(key.dataset)
        if target is None:
            raise fault(
                f"the dataset {key.dataset} is not in this workspace",
                path=f"{path}.references",
                hint="add or pull it first",
            )
        if (problem := misfit(key, columns, target)) is not None:
            raise fault(problem, path=path)


def refuse_to_drop(attached: ev.SetAttachments, before: DatasetState) -> None:
    """Attachments keep the constraints that are in force, or `IngestError`."""
    present = before.chain.nearest_event(ev.SetAttachments, head=before.head)
    if attached_text(attached) is None and attached_text(present) is not None:
        raise IngestError(
            f"the attachments have no {FILE}: what it declares would not hold any more",
            flag="--drop-constraints",
        )


def check_columns(declared: Constraints, columns: Columns) -> None:
    """The dataset's own columns may be those of a key, and the key is that of the merge strategy."""
    lists = [("primaryKey", declared.primary_key)]
    lists += [(f"foreignKeys[{i}].columns", key.columns) for i, key in enumerate(declared.foreign_keys)]
    names = columns.vocabulary
    of_changes = (names.offset_column, names.operation_type_column, names.system_time_column)
    for path, wanted in lists:
        for index, column in enumerate(wanted):
            where = f"{path}[{index}]"
            if column in of_changes:
                raise fault(
                    f"column `{one_line(column)}` belongs to the change, not to the record: what refers to "
                    "records may not hang on it",
                    path=where,
                )
            if columns.has(column) is False:
                raise fault(
                    f"there is no column `{one_line(column)}`",
                    path=where,
                    hint=f"the dataset has {', '.join(columns.schema.names if columns.schema else ())}",
                )
    if declared.primary_key and columns.key and set(declared.primary_key) != set(columns.key):
        raise fault(f"the merge strategy has the key ({', '.join(columns.key)})", path="primaryKey")


def misfit(key: ForeignKey, own: Columns, target: Columns) -> str | None:
    """Why columns cannot refer to a dataset; None where they can, as far as it is known."""
    if key.changes:
        (name,) = key.columns
        field = own.schema.field(name) if own.schema is not None else None
        if field is not None and not isinstance(field.value_type, DataTypeString):
            return f"column `{one_line(name)}` is {type_name(field.type)}; BLOCK#OFFSET is a text"
        return None
    if not target.key:
        return f"{target.name} has no primary key (a primaryKey in its {FILE} would be one)"
    if len(key.columns) != len(target.key):
        return f"({key}) cannot refer to the key ({', '.join(target.key)}) of {target.name}"
    if own.schema is None or target.schema is None:
        return None
    for name, there in zip(key.columns, target.key, strict=True):
        field, other = own.schema.field(name), target.schema.field(there)
        guessed = name in own.vocabulary.columns or there in target.vocabulary.columns
        if field is None or other is None or (guessed and not (own.whole and target.whole)):
            continue
        if canonical(field.value_type) != canonical(other.value_type):
            return (
                f"column `{one_line(name)}` is {type_name(field.value_type)}, "
                f"`{one_line(there)}` of {target.name} is {type_name(other.value_type)}"
            )
    return None
