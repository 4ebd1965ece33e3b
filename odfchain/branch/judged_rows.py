"""The rows of a dataset whose foreign keys are judged: what is recorded, and what is about to be."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from odfchain.codec.arrow import slice_schema
from odfchain.codec.raw_arrow import schema_of_event
from odfchain.errors import SliceNotFoundError
from odfchain.model import events as ev
from odfchain.model.data_schema import DataSchema
from odfchain.repo.commit import StagedFile, slice_path
from odfchain.repo.constraint_rules import Columns
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.declared_constraints import Constraints, recorded_constraints
from odfchain.slices.rows_in_force import SliceFile


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a dataset on a reference: those up to `state`, and new ones."""

    dataset: DatasetFiles
    columns: Columns
    constraints: Constraints
    state: DatasetState | None
    new: tuple[SliceFile, ...] = ()

    @property
    def name(self) -> str:
        """The alias, with the branch."""
        return self.dataset.label

    @property
    def schema(self) -> pa.Schema:
        """The declared columns."""
        return pa.schema([]) if self.columns.schema is None else slice_schema(self.columns.schema)

    def files(self) -> list[SliceFile]:
        """All slices, oldest first."""
        refs = self.state.slices() if self.state is not None else ()
        names = self.columns.vocabulary
        return [*(_file(self.dataset, ref.slice, names) for ref in refs), *self.new]

    @classmethod
    def up_to(cls, dataset: DatasetFiles, state: DatasetState) -> Rows:
        """All rows up to a head."""
        return cls(dataset, Columns.of(state, str(dataset.alias)), state.constraints, state)

    @classmethod
    def after(cls, dataset: DatasetFiles, before: DatasetState | None, head: DatasetState) -> Rows:
        """The rows up to `head`; those that `before` lacks (None: all) are new.

        Errors as `up_to`, `files`.
        """
        rows = cls.up_to(dataset, head)
        known = -1 if before is None else before.head_block.sequence_number
        later = (ref for ref in head.slices() if ref.sequence_number > known)
        new = tuple(_file(dataset, ref.slice, head.vocabulary) for ref in later)
        return replace(rows, state=before, new=new)

    def with_slice(self, item: SliceFile | None, schema: DataSchema | None) -> Rows:
        """The same, and one more slice that is about to be committed."""
        columns = replace(self.columns, schema=schema or self.columns.schema)
        return replace(self, columns=columns, new=(*self.new, *([item] if item is not None else [])))

    @classmethod
    def committed(
        cls,
        dataset: DatasetFiles,
        state: DatasetState,
        events: Sequence[ev.MetadataEvent],
        staged: Sequence[StagedFile],
    ) -> Rows:
        """The rows as they are when events are committed on top of a state. Errors as `up_to`, `files`."""
        names, schema, declared = state.vocabulary, state.schema, None
        paths = {item.physical_hash: functools.partial(slice_path, dataset, item) for item in staged}
        new = []
        for event in events:
            match event:
                case ev.SetVocab():
                    names = ev.DatasetVocabulary.from_event(event)
                case ev.SetDataSchema():
                    schema = schema_of_event(event.raw_arrow_schema, event.schema)
                case ev.SetAttachments():
                    declared = recorded_constraints(event)
                case ev.AddData(new_data=data) | ev.ExecuteTransform(new_data=data) if data is not None:
                    # nobody may want to look at rows that executors have put into the store
                    known = paths.get(data.physical_hash)
                    if known is None:
                        new.append(_file(dataset, data, names))
                    else:
                        new.append(SliceFile(known, names, data.offset_interval))
        declared = state.constraints if declared is None else declared
        columns = Columns(str(dataset.alias), names, schema, state.merge_key or declared.primary_key)
        return cls(dataset, columns, declared, state, tuple(new))


def _file(dataset: DatasetFiles, item: ev.DataSlice, names: ev.DatasetVocabulary) -> SliceFile:
    # not hashed: slices were checked when they came, and to hash them costs a multiple of reading their keys
    path = dataset.data.path(item.physical_hash)
    if not path.is_file():
        raise SliceNotFoundError.of(dataset.alias, path)
    return SliceFile(path, names, item.offset_interval)
