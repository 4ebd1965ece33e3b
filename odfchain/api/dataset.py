"""One dataset of a workspace: its log, its data, and what brings it up to date.

Heavy libraries (Spark, pyarrow) are loaded by the methods that need them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from odfchain.chain.chain import HashedBlock
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.model.data_schema import DataSchema
from odfchain.model.enums import DatasetKind
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.api.workspace import Workspace
    from odfchain.audit.report import Report
    from odfchain.audit.walk import BlockName
    from odfchain.ingest.ingest import IngestOptions, IngestOutcome
    from odfchain.ingest.polling import PullOptions, PullOutcome
    from odfchain.model.events import DisablePollingSource, DisablePushSource
    from odfchain.model.sources import WatermarkRule
    from odfchain.repo.system_columns import SystemColumns
    from odfchain.repo.workspace_config import WorkspaceConfig
    from odfchain.transform.execute import TransformOptions, TransformOutcome


class Dataset:
    """One dataset of a workspace. Reading its log never starts Spark."""

    def __init__(self, workspace: Workspace, files: DatasetFiles) -> None:
        self._workspace = workspace
        self._files = files

    @property
    def id(self) -> DatasetId:
        """The unique identity, `did:odf:…` (specification "Unique Identifiers")."""
        return self._files.id

    @property
    def alias(self) -> DatasetAlias:
        """The local name."""
        return self._files.alias

    @property
    def kind(self) -> DatasetKind:
        """Root or derivative."""
        return self._files.kind

    @property
    def path(self) -> Path:
        """The dataset's folder (specification "Dataset Layout")."""
        return self._files.folder

    @property
    def head(self) -> Multihash | None:
        """Hash of the newest block."""
        return self._files.chain.head()

    @property
    def state(self) -> DatasetState:
        """What the chain says about the present: schema, sources, offsets, watermark."""
        return DatasetState.read(self._files.chain)

    @property
    def schema(self) -> DataSchema | None:
        """The declared schema, system columns included; None before the first data."""
        return self.state.schema

    @property
    def data_size(self) -> int:
        """Size of all slice files [bytes]."""
        return sum(self._files.data.size(name) for name in self._files.data.names())

    def log(self, limit: int | None = None) -> Iterator[HashedBlock]:
        """Blocks from newest to oldest, at most `limit`, each with its hash.

        Raises:
            ObjectCorruptedError, ObjectNotFoundError, DecodeError, BrokenChainError: naming the file.
        """
        for count, found in enumerate(self._files.chain.walk()):
            if limit is not None and count >= limit:
                return
            yield found

    def block_bytes(self, name: Multihash) -> bytes | None:
        """The file of a block, exactly as it is hashed; None when the dataset does not have it.

        Raises:
            ObjectCorruptedError: the file does not hash to its name.
        """
        return self._files.chain.get_bytes(name) if self._files.chain.contains(name) else None

    def ingest(
        self,
        files: Sequence[str | Path],
        options: IngestOptions | None = None,
        *,
        progress: Progress = SILENT,
    ) -> IngestOutcome:
        """Ingest files in the order given: each is one transaction, all are published together or none.

        Raises:
            UsageError, BadInputError, IncompatibleSchemaError, GuardError, RefConflictError,
            StorageFullError, EngineError: the dataset is as it was.
        """
        from odfchain.ingest.ingest import IngestOptions, ingest_files, with_defaults

        config = self._workspace._files.config  # noqa: SLF001
        options = with_defaults(options or IngestOptions(), config.ingest)
        options = dataclasses.replace(options, system_columns=self._system_columns(config))
        paths = [Path(file).resolve() for file in files]
        return ingest_files(self._files, self._session(progress), paths, options, progress)

    def ingest_stream(
        self, stream: BinaryIO, options: IngestOptions | None = None, *, progress: Progress = SILENT
    ) -> IngestOutcome:
        """Ingest what a stream yields as one file; it is written to disk first, to be read more than once.

        Raises:
            As `ingest`.
        """
        from odfchain.ingest.read.preflight import spool

        with self._files.staging() as folder:
            path = folder / "stdin"
            progress.phase("Reading standard input")
            spool(stream, path)
            return self.ingest([path], options, progress=progress)

    def pull(self, options: PullOptions | None = None, *, progress: Progress = SILENT) -> PullOutcome:
        """Bring the dataset up to date with its polling source; every byte of it is ingested once.

        Raises:
            UsageError, IngestError: there is no source to pull from.
            FetchError, PrepareError, BadInputError, QueryError, IncompatibleSchemaError, GuardError,
            RefConflictError, StorageFullError, EngineError: the dataset is as it was, or as the last
            transaction of this pull left it.
        """
        from odfchain.ingest.ingest import with_defaults
        from odfchain.ingest.polling import PullOptions, pull_source
        from odfchain.limits import FetchLimits

        config = self._workspace._files.config  # noqa: SLF001 - same package
        options = options or PullOptions()
        limits = FetchLimits(
            deadline=config.fetch.deadline_seconds,
            retries=config.fetch.retries,
            max_bytes=config.fetch.max_bytes,
            allow_private=config.fetch.allow_private_redirects,
        )
        trusted = config.ingest.allow_commands or self._workspace._files.has_key(self.id)  # noqa: SLF001
        options = PullOptions(
            ingest=dataclasses.replace(
                with_defaults(options.ingest, config.ingest), system_columns=self._system_columns(config)
            ),
            fetch_uncacheable=options.fetch_uncacheable,
            allow_commands=options.allow_commands or trusted,
            variables=config.ingest.values | dict(options.variables),
            bindings=config.ingest.bindings | dict(options.bindings),
            limits=limits,
        )
        return pull_source(self._files, self._session(progress), options, progress)

    def transform(
        self, options: TransformOptions | None = None, *, progress: Progress = SILENT
    ) -> TransformOutcome:
        """Bring a derivative dataset up to date with its inputs, step by step.

        Raises:
            DatasetNotFoundError: an input is not in the workspace.
            QueryError, TransformError, DivergedInputError, BadInputError, RefConflictError, StorageFullError,
            EngineError: the dataset is as it was, or as the last step that was committed left it.
        """
        from odfchain.repo.dependencies import inputs_of
        from odfchain.transform.execute import TransformOptions, run_transform

        workspace = self._workspace
        inputs = inputs_of(workspace._files, self._files)  # noqa: SLF001
        config = workspace._files.config  # noqa: SLF001
        options = options or TransformOptions(retries=config.ingest.retries)
        options = dataclasses.replace(options, system_columns=self._system_columns(config))
        with workspace.engines_for(self, progress, timeout=options.timeout) as engines:
            return run_transform(self._files, inputs, engines, options, progress)

    def _system_columns(self, config: WorkspaceConfig) -> SystemColumns:
        from odfchain.repo.dataset_config import read_config

        return read_config(self._files).system_columns or config.datasets.system_columns

    def set_watermark(self, watermark: Timestamp, *, allow_future: bool = False) -> Multihash:
        """Record a watermark without data; returns the hash of the block.

        Raises:
            UsageError: the dataset is derivative.
            AppendError: the watermark would go back.
            GuardError: it lies further in the future than the workspace's settings allow.
            RefConflictError: another writer was faster.
        """
        from odfchain.ingest.polling import set_watermark

        config = self._workspace._files.config.ingest  # noqa: SLF001 - same package
        anything = allow_future or config.allow_future
        return set_watermark(self._files, watermark, max_future=None if anything else config.max_future)

    def disable_source(
        self, name: str | None = None, *, system_time: Timestamp | None = None
    ) -> tuple[DisablePollingSource | DisablePushSource, Multihash]:
        """End the source of this name, or the only one; what is recorded stays.

        Returns the event and the hash of its block.

        Raises:
            UsageError: the dataset is derivative, no source of this name is in force, or there are several.
            RefConflictError: another writer was faster.
        """
        from odfchain.ingest.disabling import disable_source

        return disable_source(self._files, name, system_time=system_time)

    @property
    def watermark_rules(self) -> Mapping[str, WatermarkRule]:
        """How the watermark of each source moves, by its name; kept beside the dataset, not in its chain."""
        from odfchain.repo.dataset_config import read_config

        return read_config(self._files).watermarks

    def _session(self, progress: Progress) -> Callable[[], SparkSession]:
        def start() -> SparkSession:
            engine = self._workspace._engine  # noqa: SLF001 - same package
            if engine is None or not engine.started:
                progress.phase("Starting Spark")
            return self._workspace.session()

        return start

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All records in order of offset, with the declared schema; held in memory.

        Raises:
            SchemaError: a column is not in the schema.
            ObjectCorruptedError, ObjectNotFoundError: naming the slice.
        """
        from odfchain.repo.records import read_all

        return read_all(self._files, self.state, columns)

    def tail(self, count: int = 10, *, skip: int = 0) -> pa.Table:
        """The newest records, in order of offset; reads only the slices that hold them.

        Raises:
            ObjectCorruptedError, ObjectNotFoundError: naming the slice.
        """
        from odfchain.repo.records import read_tail

        return read_tail(self._files, self.state, count, skip=skip)

    def to_spark(self) -> DataFrame:
        """All records as a Spark DataFrame; unsigned columns appear as the next larger signed type.

        Raises:
            JavaNotFoundError, EngineError: Spark does not start.
            ObjectCorruptedError, ObjectNotFoundError: naming the slice.
            BadInputError: a slice is not readable, or becomes more than the limits allow.
        """
        from odfchain.slices.reader import check_parquet
        from odfchain.spark.read import spark_path
        from odfchain.spark.types import physical_struct

        state = self.state
        struct = physical_struct(state.schema.fields if state.schema else ())
        session = self._workspace.session()
        data = self._files.data
        paths = [data.verified_path(ref.slice.physical_hash) for ref in state.slices()]
        if not paths:
            return session.createDataFrame([], struct)
        for path in paths:
            check_parquet(path)
        return session.read.schema(struct).parquet(*map(spark_path, paths))

    def verify(
        self,
        *,
        progress: Progress = SILENT,
        jobs: int = 2,
        replay: bool = False,
        after: BlockName | None = None,
        upto: BlockName | None = None,
    ) -> Report:
        """Check chain, rules, bytes and rows of the blocks `(after, upto]`; faults are in the report.

        With `replay`, the transactions of a derivative dataset in them are computed again; without it no
        engine is started.

        Raises:
            As `Workspace.verify`.
        """
        from odfchain.audit.verification import VerifyOptions

        options = VerifyOptions(jobs=jobs, replay=replay, after=after, upto=upto)
        return self._workspace.verify([self], options, progress=progress)[0]
