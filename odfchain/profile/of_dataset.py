"""The profile of a dataset at a block: its rows, and what the chain and its publisher say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odfchain.branch.computing import Engine
from odfchain.codec.raw_arrow import schema_of_event
from odfchain.errors import UsageError
from odfchain.model.data_schema import DataSchema, DataTypeOption
from odfchain.model.events import AddPushSource, SetDataSchema, SetInfo, SetPollingSource, SetTransform
from odfchain.profile.languages import library
from odfchain.profile.profile_document import ProfileFacts, profile_document
from odfchain.profile.state_totals import profiled_columns, state_totals
from odfchain.profile.totals import Totals
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.text import one_line

_KINDS = {"FetchStepUrl": "http", "FetchStepFilesGlob": "file", "FetchStepContainer": "container"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What a publisher may say of a profile."""

    stage: str | None = None
    """`raw`, `cleaned`, `featurized`, …; roots are `raw` unless it is said."""
    description: str | None = None
    """What changed since the parent."""
    tags: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    """Columns of which only counts are published."""
    created_by: str | None = None
    near_duplicates: bool = False
    """Look for them among any number of rows, not only where there are few enough."""
    languages: bool = True
    """Tell the languages of texts, where the library is installed (`odfchain[languages]`)."""


def profile_of(
    dataset: DatasetFiles,
    state: DatasetState,
    options: ProfileOptions | None = None,
    progress: Progress = SILENT,
    *,
    totals: Totals | None = None,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """The profile at a state's block; `totals` are those of its rows, where they are known.

    The engine is for states that are too large for this process.

    Raises:
        UsageError: a hidden column is none.
        And all errors of `state_totals`.
    """
    options = options or ProfileOptions()
    schema = profiled_columns(state)
    for name in options.hidden:
        if name not in schema.names:
            raise UsageError(f"--hide {one_line(name)}: the dataset has no such column")
    if totals is None:
        near = options.near_duplicates
        totals = state_totals(dataset, state, progress, near_duplicates=near, engine=engine)
    return profile_document(totals, facts_of(dataset, state, options))


def facts_of(dataset: DatasetFiles, state: DatasetState, options: ProfileOptions) -> ProfileFacts:
    """What a profile says beside its statistics."""
    block = state.head_block
    return ProfileFacts(
        dataset_id=str(dataset.id),
        snapshot=state.head,
        parent=block.prev_block_hash,
        created_at=str(block.system_time),
        sequence_number=block.sequence_number,
        records=state.record_count,
        slices=[ref.slice.physical_hash for ref in state.slices()],
        descriptive=_descriptive(dataset, state, options),
        hidden=tuple(sorted(options.hidden)),
        languages=library() if options.languages else None,
        declared=_nullable(state),
    )


def _nullable(state: DatasetState) -> dict[str, bool]:
    event = state.chain.nearest_event(SetDataSchema, head=state.head)
    if event is None:
        return {}
    return nullable_columns(schema_of_event(event.raw_arrow_schema, event.schema))


def nullable_columns(schema: DataSchema) -> dict[str, bool]:
    """Whether each column may be null."""
    return {column.name: isinstance(column.type, DataTypeOption) for column in schema.fields}


def _descriptive(dataset: DatasetFiles, state: DatasetState, options: ProfileOptions) -> dict[str, Any]:
    info = state.chain.nearest_event(SetInfo, head=state.head)
    is_root = state.transform is None
    return {
        "created_by": options.created_by or str(dataset.id),
        "dataset_name": str(dataset.alias),
        "dataset_path": f"odf:{dataset.id}",
        "source_type": _source_type(state),
        "description": (info.description if info is not None else None) or "",
        "tags": dict(options.tags),
        "pipeline_stage": options.stage or ("raw" if is_root else ""),
        "transform_description": options.description or "",
    }


def _source_type(state: DatasetState) -> str:
    source = state.chain.nearest_event(SetPollingSource, AddPushSource, SetTransform, head=state.head)
    if isinstance(source, SetPollingSource):
        return _KINDS.get(type(source.fetch).__name__, "http")
    return "push" if isinstance(source, AddPushSource) else "odf"
