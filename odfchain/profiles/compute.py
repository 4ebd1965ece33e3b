"""The profile of a dataset at a block: its rows, and what the chain and its publisher say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from odfchain.branches.executor import Engine
from odfchain.branches.recording import described
from odfchain.errors import OdfchainError, UsageError
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.enums import OperationType
from odfchain.odf.events import AddPushSource, SetDataSchema, SetInfo, SetPollingSource, SetTransform
from odfchain.odf.schema import DataSchema, DataTypeOption
from odfchain.odf.sources import FetchStepUrl
from odfchain.profiles.document import ProfileFacts, library, profile_document
from odfchain.profiles.state_totals import profiled_columns, state_totals
from odfchain.profiles.totals import Totals
from odfchain.progress import SILENT, Progress
from odfchain.slices.reader import open_parquet
from odfchain.storage.template import public_name
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_KINDS = {"FetchStepUrl": "http", "FetchStepFilesGlob": "file", "FetchStepContainer": "container"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """Options of a profile."""

    stage: str | None = None
    """`raw`, `cleaned`, `featurized`, …; roots are `raw` unless it is said."""
    description: str | None = None
    """Changes since the parent."""
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

    Raises:
        UsageError: a hidden column is none.
    """
    # the engine is used only for states that are too large for this process
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
    """Facts of a profile other than its statistics."""
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
    """Columns by name, with true if they may be null."""
    return {column.name: isinstance(column.type, DataTypeOption) for column in schema.fields}


def _descriptive(dataset: DatasetFiles, state: DatasetState, options: ProfileOptions) -> dict[str, Any]:
    info = state.chain.nearest_event(SetInfo, head=state.head)
    source = state.chain.nearest_event(SetPollingSource, AddPushSource, SetTransform, head=state.head)
    changes = _changes(dataset, state)
    return {
        "created_by": options.created_by or str(dataset.id),
        "dataset_name": str(dataset.alias),
        "dataset_path": _path_of(source) or f"odf:{dataset.id}",
        "source_type": _type_of(source),
        "description": (info.description if info is not None else None) or "",
        "tags": dict(options.tags),
        "pipeline_stage": options.stage or ("raw" if state.transform is None else ""),
        "transform_description": changes if options.description is None else options.description,
    }


def _changes(dataset: DatasetFiles, state: DatasetState) -> str:
    # such as `43 added, 57 corrected`; empty where the block has no rows stored here
    data = getattr(state.head_block.event, "new_data", None)
    if data is None:
        return ""
    path = dataset.data.path(data.physical_hash)
    operation = state.vocabulary.operation_type_column
    counts = np.zeros(256, dtype=np.int64)
    try:
        with open_parquet(path) as file:
            for batch in file.batches([operation]):
                counts += np.bincount(batch.column(0).to_numpy(zero_copy_only=False), minlength=256)[:256]
    except (OSError, OdfchainError):
        return ""
    return described({OperationType.from_code(code).value: int(counts[code]) for code in range(4)})


def _path_of(source: Any) -> str | None:
    # without user names, passwords and values of variables
    fetch = source.fetch if isinstance(source, SetPollingSource) else None
    return public_name(fetch.url) if isinstance(fetch, FetchStepUrl) else None


def _type_of(source: Any) -> str:
    if isinstance(source, SetPollingSource):
        return _KINDS.get(type(source.fetch).__name__, "http")
    return "push" if isinstance(source, AddPushSource) else "odf"
