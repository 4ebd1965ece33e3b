"""A folder of datasets, and the one Spark session that works on them.

Heavy libraries (Spark, pyarrow) are loaded by the methods that need them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from odfchain.api.dataset import Dataset
from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.model.block import DatasetSnapshot
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.api.imported import Imported
    from odfchain.audit.auditing import Auditing
    from odfchain.audit.report import Report
    from odfchain.audit.verification import VerifyOptions
    from odfchain.engine.inprocess import SparkTransformEngine
    from odfchain.engine.interface import TransformEngine
    from odfchain.ingest.importing import ImportPlan
    from odfchain.ingest.ingest import IngestOptions
    from odfchain.lineage.questions import Lineage
    from odfchain.model.events import MetadataEvent
    from odfchain.model.sources import Transform
    from odfchain.repo.signing import Signing
    from odfchain.repo.system_columns import SystemColumns
    from odfchain.repo.workspace_config import IngestConfig, TransformConfig
    from odfchain.spark.session import SparkEngine
    from odfchain.transfer.sharing import Sharing
    from odfchain.transform.state_change import StateChange
    from odfchain.transform.validate import Checker
    from odfchain.upkeep.jobs import Upkeep


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
    def ingest_config(self) -> IngestConfig:
        """The settings of ingestion; read anew at each call.

        Raises:
            ManifestError: the file is malformed.
        """
        return self._files.config.ingest

    @property
    def sharing(self) -> Sharing:
        """Carrying datasets from and to other places, and publishing this one."""
        from odfchain.transfer.sharing import Sharing

        return Sharing(self._files)

    @property
    def lineage(self) -> Lineage:
        """What datasets and single records come from."""
        from odfchain.lineage.questions import Lineage

        return Lineage(self._files)

    @property
    def signing(self) -> Signing:
        """Signing heads, and what their signatures are worth."""
        from odfchain.repo.signing import Signing

        return Signing(self._files)

    @property
    def upkeep(self) -> Upkeep:
        """Going back, clearing away, repairing, merging small slices."""
        from odfchain.upkeep.jobs import Upkeep

        return Upkeep(self._files)

    def serve(
        self,
        *,
        host: str | None = None,
        port: int | None = None,
        listening: Callable[[str], None] | None = None,
        on_request: Callable[[str], None] | None = None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        """Publish every dataset of the workspace, to be read, until SIGTERM or Ctrl-C.

        Raises:
            TransferError: the address cannot be listened on.
        """
        from odfchain.serve import server

        server.serve(
            self._files,
            host=server.HOST if host is None else host,
            port=server.PORT if port is None else port,
            listening=listening,
            on_request=on_request,
            on_problem=on_problem,
        )

    @property
    def auditing(self) -> Auditing:
        """What an auditor does: verifying, also elsewhere, and attesting."""
        from odfchain.audit.auditing import Auditing

        return Auditing(self._files, lambda files, told: self.engines_for(Dataset(self, files), told))

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
        from odfchain.repo.dependencies import with_upstream

        files = [d._files for d in datasets]  # noqa: SLF001 - same package
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
            UsageError: a range is given for several datasets, or is not one of the chain.
            JavaNotFoundError, EngineError, StorageFullError: there is no engine to replay with.
        """
        from odfchain.audit.verification import verify_datasets

        files = [d._files for d in datasets]  # noqa: SLF001 - same package
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
        leaves them to the first run). `name` replaces the name in a manifest of one dataset. Nobody is asked
        about commands and variables (RFC-014): the caller has read the manifest.

        Raises:
            ManifestError: naming file, line and path.
            NameCollisionError: a name is taken.
            QueryError, SchemaError, TransformError, EngineError: as `check`.
        """
        from odfchain.codec.manifest import read_snapshots
        from odfchain.repo.creation import in_creation_order

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

        check_definition(
            self._files, self._with_local_inputs(snapshot), among, self._checker(progress), progress
        )

    def _with_local_inputs(self, snapshot: DatasetSnapshot) -> DatasetSnapshot:
        from odfchain.transfer.remote_inputs import names_places, with_local_inputs

        if not names_places(snapshot):
            return snapshot
        return with_local_inputs(snapshot, self._files.resolve, self.sharing.local)

    def _checker(self, progress: Progress) -> Checker:
        from odfchain.transform.validate import Checker

        return Checker(lambda: self._spark_transforms(progress), lambda t: self._remote_engine(t) is None)

    def update(
        self,
        snapshot: DatasetSnapshot,
        *,
        alias: DatasetAlias | None = None,
        check: bool = True,
        state: StateChange | None = None,
        progress: Progress = SILENT,
    ) -> tuple[Dataset, list[MetadataEvent]]:
        """Append what a definition says and its dataset does not yet; returns what was appended.

        What the definition does not mention stays in force. `state` says what becomes of what a query that
        changes remembers; with `StateChange.FROM_NOW` the dataset is brought up to date first. Source:
        specification "Query Evolution".

        Raises:
            DatasetNotFoundError: there is no dataset of this name.
            ManifestError, AppendError: the definition breaks a rule.
            QueryError, SchemaError, TransformError, EngineError: as `check`.
            TransformError: the query changes, it remembers something, and `state` is None.
            RefConflictError: another writer was faster.
            And all errors of `Dataset.transform`.
        """
        from odfchain.transform.update import update_dataset

        dataset = self.dataset(alias or snapshot.name)
        checker = self._checker(progress) if check else None
        snapshot = self._with_local_inputs(snapshot)
        files = dataset._files  # noqa: SLF001 - same package
        events = update_dataset(
            self._files, files, snapshot, checker, progress,
            state=state, finish=lambda: dataset.transform(progress=progress),
        )  # fmt: skip
        self._files.set_watermarks(files, snapshot)
        return dataset, events

    def create(
        self,
        snapshot: DatasetSnapshot,
        *,
        alias: DatasetAlias | None = None,
        system_time: Timestamp | None = None,
        check: bool = True,
        system_columns: SystemColumns | None = None,
        progress: Progress = SILENT,
    ) -> Dataset:
        """Make a dataset with a new identity; it appears complete or not at all. `check` as in `add`.

        `system_columns` are the types of offsets and operations; None is what the settings say.

        Raises:
            NameCollisionError: the name is taken.
            ManifestError, AppendError: the snapshot breaks a rule.
            QueryError, SchemaError, TransformError, JavaNotFoundError, EngineError: as `check`.
        """
        from odfchain.transform.definition import with_versions

        if check:
            self.check(snapshot, progress=progress)
        config = self._files.config.transform
        made = self._files.create(
            with_versions(self._with_local_inputs(snapshot), config),
            alias=alias,
            system_time=system_time,
            system_columns=system_columns,
        )
        return Dataset(self, made)

    def import_(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        key: Sequence[str] = (),
        event_time: str | None = None,
        merge: str | None = None,
        input_format: str | None = None,
        force: bool = False,
        options: IngestOptions | None = None,
        on_inferred: Callable[[ImportPlan], None] | None = None,
        progress: Progress = SILENT,
    ) -> Imported:
        """Make a dataset of a file and ingest it; nothing stays behind when that fails.

        The columns and their types are inferred from every value and written into `NAME.yaml` beside the
        file; `on_inferred` is told of them before anything is made. `merge` is `snapshot`, `ledger` (both
        need a `key`) or `append`; `event_time` is the column of the event time. `force` replaces a manifest.

        Raises:
            UsageError: the format is not known, a column is not in the file, or there is a manifest.
            NameCollisionError: there is a dataset of this name.
            BadInputError, SchemaError: no columns can be made of the file.
            And all errors of `Dataset.ingest`.
        """
        from odfchain.api.imported import import_file

        keys = (key,) if isinstance(key, str) else tuple(key)
        return import_file(
            self, Path(path), name=name, key=keys, event_time=event_time, merge=merge,
            input_format=input_format, force=force, options=options, on_inferred=on_inferred,
            progress=progress,
        )  # fmt: skip

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

        Queries of datasets that were not created here run in a sandbox, as the settings say (RFC-020).
        """
        from odfchain.repo.dependencies import inputs_of
        from odfchain.transform.engines import is_isolated, sandboxed_engines

        config = self._transform_config(timeout)
        if not is_isolated(config, own=self._files.has_key(dataset.id)):
            yield functools.partial(self.transform_engine, timeout=timeout)
            return
        files = dataset._files  # noqa: SLF001 - same package
        remote = functools.partial(self._remote_engine, timeout=timeout)
        with sandboxed_engines(files, inputs_of(self._files, files), remote, config, progress) as engines:
            yield engines

    def close(self) -> None:
        """Stop the Spark session if one was started."""
        self._transforms = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from odfchain.spark.failure import explain, is_of_spark

        try:
            if isinstance(error, Exception) and is_of_spark(error):
                raise explain(error) from error  # what it says is lost with the session
        finally:
            self.close()


def _read_file(path: Path) -> bytes:
    from odfchain.errors import ManifestError
    from odfchain.limits import LIMITS

    try:
        with path.open("rb") as stream:
            return stream.read(LIMITS.manifest_bytes + 1)
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror}", source=str(path)) from None
