"""One input as one transaction: check, read, preprocess, merge, write a slice (staged, not committed).

Pushed files and polled sources come through here alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, EngineError, NothingToCommitError, OdfchainError
from odfchain.ingest.merge_strategies import looks_back, takes_operations
from odfchain.ingest.read.formats import declared_schema, open_input
from odfchain.ingest.read.inference import fix_up
from odfchain.ingest.write import write_input
from odfchain.ingest.writer_state import WriteOptions, WriterState, Written
from odfchain.model.sources import ReadStep, ReadStepEsriShapefile, ReadStepParquet, Transform
from odfchain.progress import Progress
from odfchain.slices.reader import open_parquet
from odfchain.spark.columns import col
from odfchain.spark.few_rows import FEW_BYTES, FEW_ROWS, session_for_few
from odfchain.spark.input_frames import ROW_ID, FinerTimes, InputFrame, first_bad_row
from odfchain.spark.tally import Steps
from odfchain.spark.types import result_schema
from odfchain.spark.watching import watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INPUT_TABLE = "input"
"""What the queries of a preprocess step call the rows that were read."""


@dataclass(frozen=True, slots=True)
class FileInput:
    """Bytes and what to make of them."""

    path: Path
    name: str
    """What messages call the input."""
    read: ReadStep
    preprocess: Transform | None = None


def stage_input(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: FileInput,
    options: WriteOptions,
    progress: Progress,
) -> Written:
    """Read, preprocess and merge an input and write what is new as a slice in `options.staging`.

    The session is started only after the checks that need none.

    Raises:
        NothingToCommitError: nothing is new.
        BadInputError, SchemaError, IncompatibleSchemaError, QueryError, GuardError: naming the input.
        StorageFullError, EngineError: from Spark.
    """
    try:
        with contextlib.ExitStack() as resources:
            if source.preprocess is not None:
                session = functools.cache(functools.partial(_session_for_queries, session, resources))
            return _stage(session, state, source, options, progress, resources)
    except OdfchainError as error:
        if source.preprocess is not None and isinstance(error, EngineError):
            from odfchain.sql.messages import failed_query

            cause = error.__cause__
            fault = failed_query(cause, transform=source.preprocess) if isinstance(cause, Exception) else None
            if fault is not None:
                raise fault from error
        # where the bytes lie is nobody's business: messages name where they are from
        error.message = error.message.replace(str(source.path), source.name)
        if isinstance(error, BadInputError) and error.file == str(source.path):
            error.file = source.name
        raise


def _stage(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: FileInput,
    options: WriteOptions,
    progress: Progress,
    resources: contextlib.ExitStack,
) -> Written:
    size = source.path.stat().st_size if source.path.is_file() else None
    progress.phase(f"Checking {source.name}", size)
    large = _is_large(source, options.slice_bytes)
    few = not large and _are_few(source, state)
    if few:
        in_any, session = session, lambda: session_for_few(in_any())
    opened = open_input(
        session,
        source.path,
        source.read,
        scratch=options.staging,
        progress=progress.advance,
        resources=resources,
    )
    for note in opened.notes:
        progress.note(f"{source.name}: {note}")
    frame = opened.frame
    malformed: Callable[[], OdfchainError | None] | None = opened.malformed
    if frame is not None and source.preprocess is not None:
        # what is wrong in the input as it was before its queries
        read, found = frame, opened.malformed
        malformed = lambda: (found() if found is not None else None) or first_bad_row(read, frozenset())  # noqa: E731
        frame = _preprocessed(session(), frame, source.preprocess, progress)
    elif frame is not None and declared_schema(source.read) is None:
        frame = fix_up(frame, state.vocabulary, operations=takes_operations(state.merge))
    if frame is not None:
        frame = dataclasses.replace(frame, size=size, few=few, large=large)
    progress.phase(f"Merging {source.name}")
    notes: Sequence[str] = ()
    try:
        with watched(progress, _steps(source, state, size, opened.rows)):
            written = write_input(session, state, frame, options, malformed=malformed)
        notes = written.notes
    except NothingToCommitError as nothing:
        notes = nothing.notes
        raise
    finally:
        for note in notes:
            progress.note(f"{source.name}: {note}")
    return written


def _steps(source: FileInput, state: WriterState, size: int | None, rows: int | None) -> Steps:
    """What is known of an input; not how much is read beside it, nor how much of a Parquet file."""
    if looks_back(state.merge) and state.next_offset:
        size = rows = None
    if isinstance(source.read, ReadStepParquet):
        size = None
    name = source.name.rstrip("/").rpartition("/")[2]
    return Steps(
        reading=f"Reading {name}", merging=f"Merging {name}", writing=f"Writing {name}", rows=rows, size=size
    )


def _is_large(source: FileInput, slice_bytes: int) -> bool:
    """Whether the input is larger than one slice may be: its file, or what is in one that is compressed."""
    try:
        if not slice_bytes:
            return False
        if not isinstance(source.read, ReadStepParquet):
            return source.path.stat().st_size > slice_bytes
        with open_parquet(source.path) as file:
            footer = file.metadata
            groups = range(footer.num_row_groups)
            return bool(sum(footer.row_group(group).total_byte_size for group in groups) > slice_bytes)
    except (OSError, BadInputError):
        return False  # whoever reads it says what is wrong


def _are_few(source: FileInput, state: WriterState) -> bool:
    """Whether the input and what it is compared with have few rows, as their sizes say."""
    if looks_back(state.merge) and state.next_offset > FEW_ROWS:
        return False
    if source.preprocess is not None or isinstance(source.read, ReadStepEsriShapefile):
        return False
    try:
        if source.path.stat().st_size > FEW_BYTES:
            return False
        if not isinstance(source.read, ReadStepParquet):
            return True
        with open_parquet(source.path) as file:
            return bool(file.metadata.num_rows <= FEW_ROWS)
    except (OSError, BadInputError):
        return False  # whoever reads it says what is wrong


def _session_for_queries(
    session: Callable[[], SparkSession], resources: contextlib.ExitStack
) -> SparkSession:
    """The session in which one input is read, preprocessed and merged."""
    from odfchain.spark.session_kind import is_remote
    from odfchain.sql.over_connect import session_for_queries

    made = session()
    return resources.enter_context(session_for_queries(made)) if is_remote(made) else made


def _preprocessed(
    session: SparkSession, source: InputFrame, transform: Transform, progress: Progress
) -> InputFrame:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from odfchain.spark.session_kind import is_remote
    from odfchain.sql.over_connect import run_queries_over_connect
    from odfchain.sql.query import run_queries

    counted = FinerTimes(Observation(), source.finer)
    observed = source.frame.observe(counted.observation, *counted.sums) if counted.numbers else source.frame
    given = observed.select(*[col(name) for name in source.schema.names])
    run = run_queries_over_connect if is_remote(session) else run_queries
    result = run(session, transform, {INPUT_TABLE: given}, note=progress.note)
    schema = result_schema(result.schema, source.schema)
    numbered = result.select(F.monotonically_increasing_id().alias(ROW_ID), *[col(n) for n in schema.names])
    return InputFrame(numbered, schema, source.file, counted=counted)
