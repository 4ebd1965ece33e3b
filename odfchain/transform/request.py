"""From a planned step to the request that an engine gets: the step's files, and names for the new ones.

Source: specification "TransformRequest", "TransformRequestInput".
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from odfchain.errors import SchemaError
from odfchain.model.data_schema import DataSchema
from odfchain.model.engine_messages import TransformRequest, TransformRequestInput
from odfchain.model.rebuild import unmarked
from odfchain.model.sources import SqlQueryStep, Transform
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio
from odfchain.transform.planner import PlannedInput, PlannedStep


def build_request(
    step: PlannedStep,
    dataset: DatasetFiles,
    folder: Path,
    *,
    system_time: Timestamp,
    new_data_path: Path,
    new_checkpoint_path: Path,
) -> TransformRequest:
    """The request for a step; every file that it names was hashed, or is new and lies in `folder`.

    An input's watermarks begin with the one known before the step, so that an engine that keeps nothing
    between steps is held back by idle inputs, too.
    """
    checkpoint = step.read_checkpoint
    return TransformRequest(
        dataset_id=dataset.id,
        dataset_alias=dataset.alias,
        system_time=system_time,
        vocab=step.vocabulary,
        transform=normalized(step.transform.transform),
        query_inputs=tuple(
            _input(item, folder / f"schema-{index}.parquet") for index, item in enumerate(step.inputs)
        ),
        next_offset=step.next_offset,
        prev_checkpoint_path=(
            str(dataset.checkpoints.verified_path(checkpoint.physical_hash)) if checkpoint else None
        ),
        new_checkpoint_path=str(new_checkpoint_path),
        new_data_path=str(new_data_path),
    )


def normalized(transform: Transform) -> Transform:
    """The transform as engines know it, with `queries` in place of the short form `query`."""
    transform = unmarked(transform)
    if transform.query is None:
        return transform
    return dataclasses.replace(transform, query=None, queries=(SqlQueryStep(query=transform.query),))


def _input(item: PlannedInput, schema_file: Path) -> TransformRequestInput:
    _write_schema(item, schema_file)
    known = (item.known_watermark,) if item.known_watermark is not None else ()
    return TransformRequestInput(
        dataset_id=item.event.dataset_id,
        dataset_alias=item.dataset.alias,
        query_alias=item.alias,
        vocab=item.vocabulary,
        offset_interval=item.interval,
        data_paths=tuple(str(item.dataset.data.verified_path(s.physical_hash)) for s in item.slices),
        schema_file=str(schema_file),
        explicit_watermarks=known + item.watermarks,
    )


def _write_schema(item: PlannedInput, path: Path) -> None:
    try:
        write_empty_parquet(item.schema, path)
    except SchemaError as error:
        raise SchemaError(f"input {item.alias} ({item.dataset.alias}): {error}") from error


def write_empty_parquet(schema: DataSchema, path: Path) -> None:
    """Write a Parquet file that has a schema and no rows.

    Raises:
        SchemaError: the schema has no form in Arrow or Parquet.
        StoreError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from odfchain.codec.arrow import to_arrow

    arrow = to_arrow(schema)
    try:
        pq.write_table(arrow.empty_table(), path)
    except OSError as error:
        raise fsio.storage_error(error, path) from error
    except pa.ArrowException as error:
        raise SchemaError(
            f"the schema cannot be written as Parquet: {' '.join(str(error).split())}"
        ) from error
