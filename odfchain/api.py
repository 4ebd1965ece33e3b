"""The public Python API: workspaces and datasets. The command line is built on nothing else.

Heavy libraries (Spark, pyarrow) are loaded by the methods that need them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from odfchain.chain.chain import HashedBlock
from odfchain.dataset.files import DatasetFiles
from odfchain.dataset.state import DatasetState
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.metadata.block import DatasetSnapshot
from odfchain.metadata.data_schema import DataSchema
from odfchain.metadata.enums import DatasetKind
from odfchain.metadata.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.workspace.workspace import WorkspaceFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.audit.report import Report
    from odfchain.audit.run import VerifyOptions
    from odfchain.engine.base import TransformEngine
    from odfchain.engine.inprocess import SparkTransformEngine
    from odfchain.ingest.ingest import IngestOptions, IngestOutcome
    from odfchain.ingest.pull import PullOptions, PullOutcome
    from odfchain.metadata.events import MetadataEvent
    from odfchain.metadata.sources import Transform
    from odfchain.share.sharing import Sharing
    from odfchain.spark.session import SparkEngine
    from odfchain.transform.execute import TransformOptions, TransformOutcome
    from odfchain.transform.validate import Checker
    from odfchain.workspace.config import TransformConfig


class Workspace:
    """A folder of datasets, and the one Spark session that works on them.

    Use it as a context manager (or call `close`): a session that was started is stopped at the end.
    """

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files
        self._engine: SparkEngine | None = None
        self._transforms: SparkTransformEngine | None = None

    @classmethod
    def init(cls, path: str | Path = ".", *, exists_ok: bool = False) -> Workspace:
        """Make a workspace in a folder.

        Raises:
            NameCollisionError: there is one already (unless `exists_ok`).
            StoreError: it cannot be written.
        """
        return cls(WorkspaceFiles.init(Path(path), exists_ok=exists_ok))

    @classmethod
    def find(cls, path: str | Path = ".") -> Workspace:
        """The workspace of a folder or of the nearest folder above it.

        Raises:
            NotAWorkspaceError: there is none.
        """
        return cls(WorkspaceFiles.find(Path(path)))

    @property
    def path(self) -> Path:
        """The `.odfchain` folder."""
        return self._files.root

    @property
    def sharing(self) -> Sharing:
        """Carrying datasets from and to other places, and publishing this one."""
        from odfchain.share.sharing import Sharing

        return Sharing(self._files)

    # --- datasets ----------------------------------------------------------------------------------

    def datasets(self) -> list[Dataset]:
        """Every dataset, ordered by alias."""
        return [Dataset(self, files) for files in self._files.datasets()]

    def dataset(self, ref: str | DatasetId | DatasetAlias) -> Dataset:
        """The dataset that an alias or `did:odf` id names (names ignore case).

        Raises:
            InvalidIdError: not a reference.
            DatasetNotFoundError: there is no such dataset.
        """
        return Dataset(self, self._files.dataset(ref))

    def matching(self, pattern: str) -> list[Dataset]:
        """The datasets that a reference or a `%` pattern names.

        Raises:
            DatasetNotFoundError: none does.
        """
        return [Dataset(self, files) for files in self._files.matching(pattern)]

    def with_upstream(self, datasets: Iterable[Dataset]) -> list[Dataset]:
        """The datasets and all they are made of here, each once, inputs before what is made of them.

        Raises:
            DatasetNotFoundError: an input is not in the workspace.
            WorkspaceError: a dataset comes from itself.
        """
        from odfchain.workspace.lineage import with_upstream

        files = [d._files for d in datasets]  # noqa: SLF001 - same module
        return [Dataset(self, found) for found in with_upstream(self._files, files, self.sharing.is_copy)]

    def verify(
        self,
        datasets: Iterable[Dataset],
        options: VerifyOptions | None = None,
        *,
        progress: Progress = SILENT,
    ) -> list[Report]:
        """Check chains, rules, sizes and hashes, and what is computed from what; faults are in the reports.

        Raises:
            UsageError: a range is given for several datasets or without a replay, or is not one of the chain.
            JavaNotFoundError, EngineError, StorageFullError: there is no engine to replay with.
        """
        from odfchain.audit.run import verify_datasets

        files = [d._files for d in datasets]  # noqa: SLF001 - same module
        return verify_datasets(
            self._files, files, lambda f, p: self.engines_for(Dataset(self, f), p), options, progress
        )

    def add(
        self,
        manifest: str | bytes | Path,
        *,
        name: str | None = None,
        check: bool = True,
        progress: Progress = SILENT,
    ) -> list[Dataset]:
        """Make every dataset that a manifest (YAML or JSON text, or a file) defines.

        All of the manifest is checked before the first dataset is made, its queries included (`check=False`
        leaves them to the first run). `name` replaces the name in a manifest of one dataset.

        Raises:
            ManifestError: naming file, line and path.
            NameCollisionError: a name is taken.
            QueryError, SchemaError, TransformError, EngineError: as `check`.
        """
        from odfchain.dataset.creation import in_creation_order
        from odfchain.metadata.manifest import read_snapshots

        if isinstance(manifest, Path):
            snapshots = read_snapshots(_read_file(manifest), source=str(manifest))
        else:
            snapshots = read_snapshots(manifest)
        alias = DatasetAlias.parse(name) if name is not None else None
        ordered = in_creation_order(snapshots)
        for snapshot in ordered if check else ():
            self.check(snapshot, among=snapshots, progress=progress)
        return [self.create(snapshot, alias=alias, check=False) for snapshot in ordered]

    def check(
        self, snapshot: DatasetSnapshot, *, among: Sequence[DatasetSnapshot] = (), progress: Progress = SILENT
    ) -> None:
        """The queries of a definition can be executed, as far as that is known before there are data.

        `among` are the definitions that it will be made together with. Starts Spark if there are queries.

        Raises:
            ManifestError: the definition breaks a rule, or its inputs are not known.
            QueryError, SchemaError, TransformError: a query cannot be executed, or its result not recorded.
            JavaNotFoundError, EngineError: there is no Spark to check them with.
        """
        from odfchain.transform.update import check_definition

        check_definition(self._files, snapshot, among, self._checker(progress), progress)

    def _checker(self, progress: Progress) -> Checker:
        from odfchain.transform.validate import Checker

        return Checker(lambda: self._spark_transforms(progress), lambda t: self._remote_engine(t) is None)

    def update(
        self,
        snapshot: DatasetSnapshot,
        *,
        alias: DatasetAlias | None = None,
        check: bool = True,
        progress: Progress = SILENT,
    ) -> tuple[Dataset, list[MetadataEvent]]:
        """Append what a definition says and its dataset does not yet; returns what was appended.

        What the definition does not mention stays in force. Source: specification "Query Evolution".

        Raises:
            DatasetNotFoundError: there is no dataset of this name.
            ManifestError, AppendError: the definition breaks a rule.
            QueryError, SchemaError, TransformError, EngineError: as `check`.
            RefConflictError: another writer was faster.
        """
        from odfchain.transform.update import update_dataset

        dataset = self.dataset(alias or snapshot.name)
        checker = self._checker(progress) if check else None
        return dataset, update_dataset(self._files, dataset._files, snapshot, checker, progress)  # noqa: SLF001

    def create(
        self,
        snapshot: DatasetSnapshot,
        *,
        alias: DatasetAlias | None = None,
        system_time: Timestamp | None = None,
        check: bool = True,
        progress: Progress = SILENT,
    ) -> Dataset:
        """Make a dataset with a new identity; it appears complete or not at all. `check` as in `add`.

        Raises:
            NameCollisionError: the name is taken.
            ManifestError, AppendError: the snapshot breaks a rule.
            QueryError, SchemaError, TransformError, JavaNotFoundError, EngineError: as `check`.
        """
        from odfchain.transform.creation import with_versions

        if check:
            self.check(snapshot, progress=progress)
        made = self._files.create(with_versions(snapshot), alias=alias, system_time=system_time)
        return Dataset(self, made)

    def rename(self, ref: str, name: str) -> None:
        """Give a dataset another alias; its id and history stay.

        Raises:
            DatasetNotFoundError, NameCollisionError, InvalidIdError.
        """
        self._files.rename(self._files.dataset(ref), DatasetAlias.parse(name))

    def delete(self, ref: str) -> None:
        """Remove a dataset from this workspace; its private key is kept.

        Raises:
            DatasetNotFoundError: there is no such dataset.
        """
        self._files.delete(self._files.dataset(ref))

    # --- Spark -------------------------------------------------------------------------------------

    def session(self) -> SparkSession:
        """The workspace's Spark session, started at the first call with the workspace's settings.

        Raises:
            JavaNotFoundError, EngineError: Spark does not start.
            ManifestError: the settings are malformed.
        """
        if self._engine is None:
            from odfchain.spark.session import SparkEngine

            spark = self._files.config.spark
            self._engine = SparkEngine(
                self._files.run_folder,
                master=spark.master,
                remote=spark.remote,
                driver_memory=spark.driver_memory,
                conf=spark.conf,
            )
        return self._engine.session

    def transform_engine(self, transform: Transform, *, timeout: float | None = None) -> TransformEngine:
        """The engine that executes a transform: Spark here, or one whose address the settings give.

        A step may take `timeout` [s]; None is what the settings say.

        Raises:
            TransformError: the transform is for another engine, and its address is not known; or it asks for
                a version that gives other results.
        """
        if (remote := self._remote_engine(transform, timeout)) is not None:
            return remote
        from odfchain.engine.limited import LimitedEngine

        engine = self._spark_transforms()
        seconds = timeout or self._files.config.transform.timeout_seconds
        return LimitedEngine(engine, seconds) if seconds else engine

    def _spark_transforms(self, progress: Progress = SILENT) -> SparkTransformEngine:
        """The one engine of this process."""
        from odfchain.engine.inprocess import SparkTransformEngine

        if self._transforms is None:
            if self._engine is None or not self._engine.started:
                progress.phase("Starting Spark")
            self._transforms = SparkTransformEngine(self.session)
        return self._transforms

    def _transform_config(self, timeout: float | None) -> TransformConfig:
        config = self._files.config.transform
        return dataclasses.replace(config, timeout_seconds=math.ceil(timeout)) if timeout else config

    def _remote_engine(self, transform: Transform, timeout: float | None = None) -> TransformEngine | None:
        """The engine behind an address, None where this version of this one is meant."""
        from odfchain.transform.engines import check_version, remote_engine

        config = self._transform_config(timeout)
        remote = remote_engine(transform, config)
        if remote is None:
            check_version(transform, config)
        return remote

    @contextlib.contextmanager
    def engines_for(
        self, dataset: Dataset, progress: Progress = SILENT, *, timeout: float | None = None
    ) -> Iterator[Callable[[Transform], TransformEngine]]:
        """The engines that may execute the transforms of a dataset; `timeout` as in `transform_engine`.

        Queries of datasets that were not created here run behind walls, as the settings say (RFC-020).
        """
        from odfchain.transform.engines import engines_behind_walls, is_isolated
        from odfchain.workspace.lineage import inputs_of

        config = self._transform_config(timeout)
        if not is_isolated(config, own=self._files.has_key(dataset.id)):
            yield functools.partial(self.transform_engine, timeout=timeout)
            return
        files = dataset._files  # noqa: SLF001 - same module
        remote = functools.partial(self._remote_engine, timeout=timeout)
        with engines_behind_walls(files, inputs_of(self._files, files), remote, config, progress) as engines:
            yield engines

    def close(self) -> None:
        """Stop the Spark session if one was started."""
        self._transforms = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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

        options = with_defaults(options or IngestOptions(), self._workspace._files.config.ingest)  # noqa: SLF001
        paths = [Path(file).resolve() for file in files]
        return ingest_files(self._files, self._session(progress), paths, options, progress)

    def ingest_stream(
        self, stream: BinaryIO, options: IngestOptions | None = None, *, progress: Progress = SILENT
    ) -> IngestOutcome:
        """Ingest what a stream yields as one file; it is written to disk first, to be read more than once.

        Raises:
            As `ingest`.
        """
        from odfchain.ingest.preflight import spool

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
        from odfchain.fetch.base import FetchLimits
        from odfchain.ingest.ingest import with_defaults
        from odfchain.ingest.pull import PullOptions, pull_source

        config = self._workspace._files.config  # noqa: SLF001 - same module
        options = options or PullOptions()
        limits = FetchLimits(
            deadline=config.fetch.deadline_seconds,
            retries=config.fetch.retries,
            max_bytes=config.fetch.max_bytes,
            allow_private=config.fetch.allow_private_redirects,
        )
        trusted = config.ingest.allow_commands or self._workspace._files.has_key(self.id)  # noqa: SLF001
        options = PullOptions(
            ingest=with_defaults(options.ingest, config.ingest),
            fetch_uncacheable=options.fetch_uncacheable,
            allow_commands=options.allow_commands or trusted,
            variables=config.ingest.variables | dict(options.variables),
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
        from odfchain.transform.execute import TransformOptions, run_transform
        from odfchain.workspace.lineage import inputs_of

        workspace = self._workspace
        inputs = inputs_of(workspace._files, self._files)  # noqa: SLF001
        options = options or TransformOptions(retries=workspace._files.config.ingest.retries)  # noqa: SLF001
        with workspace.engines_for(self, progress, timeout=options.timeout) as engines:
            return run_transform(self._files, inputs, engines, options, progress)

    def set_watermark(self, watermark: Timestamp) -> Multihash:
        """Record a watermark without data; returns the hash of the block.

        Raises:
            UsageError: the dataset is derivative.
            AppendError: the watermark would go back.
            RefConflictError: another writer was faster.
        """
        from odfchain.ingest.pull import set_watermark

        return set_watermark(self._files, watermark)

    def _session(self, progress: Progress) -> Callable[[], SparkSession]:
        def start() -> SparkSession:
            engine = self._workspace._engine  # noqa: SLF001 - same module
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
        from odfchain.dataset.records import read_all

        return read_all(self._files, self.state, columns)

    def tail(self, count: int = 10, *, skip: int = 0) -> pa.Table:
        """The newest records, in order of offset; reads only the slices that hold them.

        Raises:
            ObjectCorruptedError, ObjectNotFoundError: naming the slice.
        """
        from odfchain.dataset.records import read_tail

        return read_tail(self._files, self.state, count, skip=skip)

    def to_spark(self) -> DataFrame:
        """All records as a Spark DataFrame; unsigned columns appear as the next larger signed type.

        Raises:
            JavaNotFoundError, EngineError: Spark does not start.
            ObjectCorruptedError, ObjectNotFoundError: naming the slice.
        """
        from odfchain.spark.read import spark_path
        from odfchain.spark.types import carrier_struct

        state = self.state
        struct = carrier_struct(state.schema.fields if state.schema else ())
        session = self._workspace.session()
        data = self._files.data
        paths = [spark_path(data.verified_path(ref.slice.physical_hash)) for ref in state.slices()]
        if not paths:
            return session.createDataFrame([], struct)
        return session.read.schema(struct).parquet(*paths)

    def verify(
        self,
        *,
        progress: Progress = SILENT,
        jobs: int = 2,
        replay: bool = False,
        after: Multihash | None = None,
        upto: Multihash | None = None,
    ) -> Report:
        """Check chain, rules, sizes and hashes; faults are in the report, not raised.

        With `replay`, the transactions of a derivative dataset in the blocks `(after, upto]` are computed
        again; without it no engine is started.

        Raises:
            As `Workspace.verify`.
        """
        from odfchain.audit.run import VerifyOptions

        options = VerifyOptions(jobs=jobs, replay=replay, after=after, upto=upto)
        return self._workspace.verify([self], options, progress=progress)[0]


def _read_file(path: Path) -> bytes:
    from odfchain.errors import ManifestError
    from odfchain.limits import LIMITS

    try:
        with path.open("rb") as stream:
            return stream.read(LIMITS.manifest_bytes + 1)
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror}", source=str(path)) from None
