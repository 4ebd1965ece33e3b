"""Bringing rows into a root dataset: files, a stream of bytes, or a frame."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.options import ingest_options
from odfchain.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.api.dataset import Dataset
    from odfchain.ingest.ingesting import IngestOptions, IngestOutcome


def ingest(dataset: Dataset, files: Any, options: Mapping[str, Any], progress: Progress) -> IngestOutcome:
    """What `Dataset.ingest` does; errors as there."""
    chosen = _options(dataset, options)
    start = functools.partial(dataset._workspace._engines.session, progress)
    run = functools.partial(_ingest_files, dataset, start, chosen, options, progress)
    if not hasattr(files, "read"):
        several: Any = (files,) if isinstance(files, str | Path) else files
        return run([Path(file).resolve() for file in several])
    from odfchain.ingest.read.preflight import spool

    with dataset._files.staging() as folder:
        path = folder / "stdin"
        progress.phase("Reading standard input")
        spool(files, path)
        return run([path.resolve()])


def _ingest_files(
    dataset: Dataset,
    start: Callable[[], SparkSession],
    options: IngestOptions,
    given: Mapping[str, Any],
    progress: Progress,
    paths: list[Path],
) -> IngestOutcome:
    from odfchain.api.commit_checks import commit_checks
    from odfchain.ingest.ingesting import ingest_files

    allowed = given.get("allow_drift", False)
    with commit_checks(dataset._workspace, progress, given.get("violations"), allow_drift=allowed) as check:
        return ingest_files(dataset._files, start, paths, options, progress, check=check)


def ingest_frame(
    dataset: Dataset,
    frame: Any,
    batch: tuple[str, int] | None,
    options: Mapping[str, Any],
    progress: Progress,
    *,
    name: str = "the frame",
) -> IngestOutcome:
    """What `Dataset.ingest_frame` does; errors as there. `name` is what messages call it."""
    from odfchain.ingest.frame_file import write_frame_file
    from odfchain.ingest.ingesting import already_ingested
    from odfchain.ingest.streamed_batch import Batch

    chosen = dataclasses.replace(
        _options(dataset, options),
        input_format="parquet",
        input_name=name,
        batch=None if batch is None else Batch(*batch),
    )
    if (outcome := already_ingested(dataset._files, dataset.summary, chosen)) is not None:
        return outcome  # nothing of it is computed again
    with dataset._files.staging() as folder:
        progress.phase(f"Writing {name}")
        path = write_frame_file(frame, folder)
        start = _session_for(dataset, frame, progress)
        return _ingest_files(dataset, start, chosen, options, progress, [path.resolve()])


def _session_for(dataset: Dataset, frame: Any, progress: Progress) -> Callable[[], SparkSession]:
    """The workspace's session, or one beside the frame's: there is one Spark in a process."""
    from odfchain.ingest.frame_file import is_of_spark
    from odfchain.spark.session import session_beside
    from odfchain.spark.session_kind import is_local

    engines = dataset._workspace._engines
    started = engines.spark is not None and engines.spark.started
    if is_of_spark(frame) and not started:
        given = frame.sparkSession

        def beside() -> SparkSession:
            return session_beside(given, engines.executor_files(local=is_local(given)))

        return functools.cache(beside)
    return functools.partial(engines.session, progress)


def _options(dataset: Dataset, options: Mapping[str, Any]) -> IngestOptions:
    config = dataset._workspace._files.config
    return ingest_options(options, config, dataset._system_columns(config))
