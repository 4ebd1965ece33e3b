"""The one Spark session of a workspace, and the engines that execute its transforms."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import ManifestError
from odfchain.limits import QUERY
from odfchain.odf.transform_options import DATAFUSION
from odfchain.progress import SILENT, Progress
from odfchain.transform.engines import TransformEngine, check_version, is_named_datafusion, required_place
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.api.workspace import Workspace
    from odfchain.odf.sources import Transform
    from odfchain.spark.executor_files import ExecutorFiles
    from odfchain.spark.session import PlanEngine, SparkEngine
    from odfchain.transform.engine_protocol import RemoteEngine
    from odfchain.transform.spark_engine import SparkTransformEngine
    from odfchain.workspace.config import TransformConfig


class Engines:
    """Starts Spark at the first use, with the workspace's settings; `spark` is None before."""

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files
        self.spark: SparkEngine | None = None
        self._given: SparkSession | None = None
        self._judging: PlanEngine | None = None
        # True if the session may be shared by commands: its user changes nothing but its own settings, and
        # does not stop it (RFC-030).
        self.may_stay = False
        self._transforms: SparkTransformEngine | None = None
        self._making = threading.Lock()

    def give(self, session: SparkSession) -> None:
        """Whatever needs Spark uses that of this session, and starts none."""
        from odfchain.spark.session import check_given

        check_given(session)
        self._given = session

    def session(self, progress: Progress = SILENT) -> SparkSession:
        """The session."""
        from odfchain.spark.plans import is_remote

        if self.spark is None or not self.spark.started:
            progress.phase("Starting Spark")
        session = self._engine_of_settings().session
        if is_remote(session):
            from odfchain.spark.session import give_judge

            give_judge(session, lambda: self._judge().session)
        return session

    def _judge(self) -> PlanEngine:
        from odfchain.spark.session import PlanEngine

        with self._making:
            # a session of Spark Connect has no JVM in this process
            if self._judging is None:
                spark = self._files.config.spark
                self._judging = PlanEngine(
                    self._files.run_folder,
                    driver_memory=spark.driver_memory,
                    conf={key: value for key, value in spark.conf.items() if key.startswith("spark.sql.")},
                    idle=self._idle_seconds(),
                )
            return self._judging

    def begin(self) -> None:
        """Start Spark in the background, for a process that very likely needs the session.

        Only for commands (`may_stay`): they close the workspace at their end in any case.
        """
        if self.may_stay:
            self._engine_of_settings().begin()

    def _engine_of_settings(self) -> SparkEngine:
        from odfchain.spark.plans import is_local
        from odfchain.spark.session import SparkEngine

        with self._making:
            if self.spark is None and self._given is not None:
                files = self.executor_files(local=is_local(self._given))
                self.spark = SparkEngine(self._files.run_folder, given=self._given, files=files)
            if self.spark is None:
                spark = self._files.config.spark
                self.spark = SparkEngine(
                    self._files.run_folder,
                    master=spark.master,
                    remote=spark.remote,
                    driver_memory=spark.driver_memory,
                    conf=spark.conf,
                    idle=self._idle_seconds(),
                    files=self.executor_files(local=spark.is_local),
                )
            return self.spark

    def executor_files(self, *, local: bool) -> ExecutorFiles | None:
        """How executors of a Spark reach files that is `local`, or not; None: by the driver's folders.

        Raises:
            ManifestError: the settings are malformed, or name a store that is not there.
        """
        from odfchain.workspace.config import SparkFiles

        chosen, files = self._files.config.spark.files, self._files.shared.executor_files
        if chosen is SparkFiles.STORE and files is None:
            raise ManifestError(
                "`store`, and the datasets of this workspace are in its folder",
                path="spark.files",
                source=str(self._files.root / "config.yaml"),
            )
        return files if chosen is SparkFiles.STORE or (chosen is SparkFiles.AUTO and not local) else None

    def _idle_seconds(self) -> float:
        from odfchain.workspace.config import IsolationPolicy

        config = self._files.config
        # queries of untrusted publishers would share the session
        never = config.transform.isolation is IsolationPolicy.NEVER
        if never or not self.may_stay or os.environ.get("CI"):
            return 0
        return config.engine.idle.milliseconds / 1_000

    def transforms(self, progress: Progress = SILENT) -> SparkTransformEngine:
        """The one engine of this process that executes transforms."""
        from odfchain.transform.spark_engine import SparkTransformEngine

        if self._transforms is None:
            if self.spark is None or not self.spark.started:
                progress.phase("Starting Spark")
            self._transforms = SparkTransformEngine(self.session, key_of=self._files.key_of)
        return self._transforms

    def remote(self, transform: Transform, timeout: float | None = None) -> TransformEngine | None:
        """The engine that the settings name, None where this version of this one is meant."""
        from odfchain.transform.containers import ContainerEngine
        from odfchain.transform.engine_protocol import RemoteEngine

        config = self._config(timeout)
        place = required_place(transform, config)
        if place is None:
            check_version(transform, config)
        elif place.image is not None:
            return ContainerEngine(transform, config, place.image)
        return RemoteEngine.of(transform, config)

    @contextlib.contextmanager
    def of(
        self, dataset: DatasetFiles, progress: Progress = SILENT, *, timeout: float | None = None
    ) -> Iterator[Callable[[Transform], TransformEngine]]:
        """The engines that may execute the transforms of a dataset; a step may take `timeout` [s].

        Queries of datasets that were not created here run in a sandbox, as the settings say (RFC-020).
        """
        from odfchain.workspace.config import IsolationPolicy

        config = self._config(timeout)
        is_own = config.isolation is IsolationPolicy.NEVER or (
            config.isolation is IsolationPolicy.STRANGERS and self._files.has_key(dataset.id)
        )
        with contextlib.ExitStack() as resources:

            @functools.cache
            def apart(name: str) -> TransformEngine:
                # it sees the files of one dataset
                read = [item.folder / "data" for item in self._files.inputs_of(dataset)]
                folders = [*read, dataset.folder / "checkpoints"], dataset.folder / "staging"
                scratch = resources.enter_context(dataset.staging())
                deadline = config.timeout_seconds or (0 if is_own else config.isolated_seconds)
                walled = None if is_own else True
                started = self.process(name, *folders, scratch, progress, deadline, walled=walled)
                return resources.enter_context(started)

            def engine(transform: Transform) -> TransformEngine:
                if (remote := self.remote(transform, timeout)) is not None:
                    return remote
                if is_named_datafusion(transform):
                    return apart(DATAFUSION)
                return self._engine(timeout) if is_own else apart("spark")

            yield engine

    @contextlib.contextmanager
    def datafusion(self, progress: Progress = SILENT) -> Iterator[tuple[RemoteEngine, Path]]:
        """The engine on DataFusion, and a new folder, which alone it may write in."""
        with tempfile.TemporaryDirectory(prefix="odfchain-") as made:
            folder = Path(made)
            deadline = int(QUERY.reading_seconds)
            with self.process(DATAFUSION, [], folder, folder, progress, deadline) as engine:
                yield engine, folder

    def process(
        self,
        name: str,
        read: Sequence[Path],
        write: Path,
        scratch: Path,
        progress: Progress,
        deadline: int,
        *,
        walled: bool | None = None,
    ) -> contextlib.AbstractContextManager[RemoteEngine]:
        """An engine in a process that may read and write these folders; a step may take `deadline` [s].

        0 is no limit. `walled` as for `sandboxed_engine`, but for the settings.
        """
        from odfchain.transform.sandbox import sandboxed_engine
        from odfchain.workspace.config import IsolationPolicy

        config = self._files.config.transform
        if walled is None and config.isolation is IsolationPolicy.NEVER:
            walled = False
        return sandboxed_engine(
            read, write, scratch, progress=progress, deadline=deadline or None,
            memory_mib=config.isolated_memory_mib, engine=name, walled=walled,
        )  # fmt: skip

    def _engine(self, timeout: float | None) -> TransformEngine:
        return self.transforms().limited(timeout or self._files.config.transform.timeout_seconds or None)

    def _config(self, timeout: float | None) -> TransformConfig:
        config = self._files.config.transform
        return dataclasses.replace(config, timeout_seconds=math.ceil(timeout)) if timeout else config

    def close(self) -> None:
        """Stop the session if one was started; what other commands use is only left."""
        self._transforms = None
        if self._judging is not None:
            self._judging.close()
            self._judging = None
        if self.spark is not None:
            self.spark.close()
            self.spark = None

    def record_classes(self, file: Path) -> None:
        """The session will run on a JVM that writes the classes it loads to a file."""
        from odfchain.spark.session import SparkEngine

        self.spark = SparkEngine(self._files.run_folder, record_classes=file)


def say_unsigned(workspace: Workspace, note: Callable[[str], None]) -> None:
    """`note` hears the name of each dataset that gets a block which is not signed: no key is here."""
    workspace._files = dataclasses.replace(workspace._files, note=note)


def engines_of(workspace: Workspace) -> Engines:
    """The engines of a workspace, for commands."""
    return workspace._engines
