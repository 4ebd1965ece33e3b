"""One Spark session for a process, made when it is first needed.

Everything Spark writes at run time goes under the workspace's run folder and is removed at the end; the
session's time zone is UTC, SQL is ANSI, names are case-sensitive, and there is no catalogue on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from odfchain.errors import EngineError, UsageError
from odfchain.progress import on_a_thread
from odfchain.spark import session_client
from odfchain.spark.executor_files import ExecutorFiles, give_files, session_like
from odfchain.spark.gateway import Gateway, start_gateway
from odfchain.spark.java import find_java
from odfchain.spark.plans import is_local, is_remote, jvm_of
from odfchain.spark.session_client import Lease, new_name, scratch_base
from odfchain.startup import allow_pandas
from odfchain.storage.fsio import private_folder
from odfchain.storage.locations import redact
from odfchain.text import SECRET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# One session of many in a JVM that was there before this process, and will be after it.
#
# PySpark can use a JVM and a context that exist. What it makes there for itself belongs to this
# process: its accumulator (a task reports to the driver whose function it runs, so a driver that has ended
# is not asked), its temporary views and its settings. What would stay behind is what Py4J holds for
# us by number, in one table for all drivers: our part of it is emptied before we go.


def enter(make: Callable[[], SparkSession]) -> SparkSession:
    """A new session in the JVM that PySpark's environment names; `make` makes its first one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # noqa: SLF001 - PySpark has no public way
    jvm = SparkContext._jvm  # noqa: SLF001
    default = SparkSession._get_j_spark_session_class(jvm).getDefaultSession()  # noqa: SLF001
    if default.isDefined() and not default.get().sparkContext().isStopped():
        base = default.get()
        java_context = jvm.JavaSparkContext.fromSparkContext(base.sparkContext())  # type: ignore[union-attr]
        context = SparkContext(conf=SparkConf(_jconf=java_context.getConf()), jsc=java_context)
        first = SparkSession(context, base)
    else:
        first = make()
    session = first.newSession()  # the first one stays the JVM's default: nothing is ever set there
    SparkSession._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = session  # noqa: SLF001
    return session


def leave(session: SparkSession | None) -> None:
    """Nothing of this process stays in the JVM; PySpark could connect to another one now."""
    from py4j.finalizer import ThreadSafeFinalizer
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context  # noqa: SLF001
    try:
        if session is None or gateway is None:
            raise RuntimeError("it was not entered")
        session._jsparkSession.interruptAll()  # noqa: SLF001 - the results are not wanted any more
        _release(gateway)
    finally:
        ThreadSafeFinalizer.clear_finalizers(clear_all=True)
        if (server := getattr(context, "_accumulatorServer", None)) is not None:
            # the server notices at its next look, up to a second later
            threading.Thread(target=server.shutdown, daemon=True).start()
        if gateway is not None:
            gateway.close(keep_callback_server=True)
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


def _release(gateway: Any) -> None:
    from py4j.finalizer import ThreadSafeFinalizer
    from py4j.java_gateway import JavaObject

    client = gateway._gateway_client  # noqa: SLF001
    # three calls in all: releasing objects one by one takes a call for each
    numbers = JavaObject("GATEWAY_SERVER", client).getGateway().getBindings().keySet()
    prefix = f"{client.address}{client.port}"
    ours = [key.removeprefix(prefix) for key in list(ThreadSafeFinalizer.finalizers)]
    waiting = [number for _, number in list(client.finalizer_deque)]
    # "o…" are objects; the table holds the server itself too, under a name
    numbers.removeAll([number for number in (*ours, *waiting) if number.startswith("o")])


BATCH_ROWS = 65_536
"""Rows of one Arrow batch between Spark and Python."""

# A query over many columns is one huge method; left to the interpreter it is five times slower.
#
# What runs ten times as often as by default is compiled by the optimising compiler: in a command over small
# files that took a quarter of all CPU, and large ones reach it all the same (RFC-011).
_JIT = (
    "-XX:-DontCompileHugeMethods -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

SAME_EVERYWHERE = "-Duser.language=en -Duser.country=US -Duser.timezone=UTC"
"""On a Turkish machine `upper('iä')` would be another text, in Tokyo `format_string('%tH', 0L)`."""

_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

# Masters whose session may stay: all of it is one process on this machine.
_LOCAL = re.compile(r"local(\[(\*|[0-9]+)\])?", re.ASCII)

# How long a command that needs no Spark waits to leave a place that it was just given; who is still
# starting the session that stays is not waited for: another command will need it.
_ATTACH_SECONDS = 0.5

# How long it waits for a JVM of its own, which notices within milliseconds that it is not needed.
_ENDING_SECONDS = 30

_LOG_DAYS = 7


@dataclass(eq=False)
class SparkEngine:
    """Owns the session; `session` starts it on first use, `close` ends it and removes what it left.

    `conf` are the user's own settings of Spark; by `files` executors reach those of the workspace.
    With `idle` a local session is shared with other commands, and stays so long after the last one [s].
    With `given` it is a second session in the Spark of that one, which only its maker ends.

    Raises:
        UsageError: a setting would change what is recorded.
    """

    _run_folder: Path
    _: KW_ONLY
    master: str = "local[*]"
    remote: str | None = None
    driver_memory: str = "2g"
    conf: dict[str, str] = field(default_factory=dict)
    record_classes: Path | None = None
    idle: float = 0
    files: ExecutorFiles | None = None
    given: SparkSession | None = None

    def __post_init__(self) -> None:
        for name, value in self.conf.items():
            if name in SQL_SETTINGS and value != SQL_SETTINGS[name]:
                raise UsageError(
                    f"the Spark setting {name} is {value}, and what is recorded depends on it: "
                    f"it is always {SQL_SETTINGS[name]}",
                    hint="take it out of spark.conf in the workspace's config.yaml",
                )
        # only a local session can be shared: others belong to a cluster
        if not _LOCAL.fullmatch(self.master) or self.remote is not None or self.record_classes is not None:
            self.idle = 0
        self._session: SparkSession | None = None
        self._launch: Future[Gateway | Lease] | None = None
        self._unwanted = threading.Event()
        self._beginning = threading.Lock()
        self._java: Gateway | Lease | None = None
        self._entered = False
        self._resources = contextlib.ExitStack()

    @property
    def started(self) -> bool:
        """True if Spark runs."""
        return self._session is not None or self.given is not None

    @property
    def session(self) -> SparkSession:
        """The session, started now if need be."""
        if self._session is None:
            given = self.given and session_like(self.given, SQL_SETTINGS)
            made = given or (self._connect() if self.remote else self._start())
            self._session = give_files(made, self.files)
            allow_pandas()
        return self._session

    def _settings(self, scratch: Path) -> dict[str, str]:
        local = self.master.startswith("local")
        settings = {
            "spark.master": self.master,
            "spark.app.name": "odfchain",
            "spark.driver.memory": self.driver_memory,
            "spark.ui.enabled": "false",
            "spark.redaction.regex": SECRET.pattern,
            "spark.ui.showConsoleProgress": "false",
            # noting the Python line of every expression takes a fifth of the time of a small step
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            # of larger ones the last may be alone: two cores take a twentieth longer over 320 MB of text
            "spark.sql.files.maxPartitionBytes": "32m",
            # what a page would show of the past fills the heap also where there is no page
            "spark.ui.retainedJobs": "20",
            "spark.ui.retainedStages": "20",
            "spark.ui.retainedTasks": "1000",
            "spark.sql.ui.retainedExecutions": "5",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={scratch / 'log4j2.properties'} "
            f"{SAME_EVERYWHERE} -Djava.io.tmpdir={scratch} -XX:-UsePerfData {_JIT}",
            "spark.executor.extraJavaOptions": f"{SAME_EVERYWHERE} {_JIT}",
        }
        if local:
            settings["spark.driver.host"] = "127.0.0.1"
            settings["spark.driver.bindAddress"] = "127.0.0.1"
            settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        if self.master.startswith("local-cluster"):
            # its work folders would land under SPARK_HOME
            settings["spark.executorEnv.SPARK_WORKER_DIR"] = str(scratch / "work")
        given = dict(self.conf)
        for key in _JAVA_OPTIONS:  # ours are needed; the user's come after them and win…
            if key in given:
                # …but for what results depend on: of a property that is given twice the last one counts
                given[key] = f"{settings[key]} {given[key]} {SAME_EVERYWHERE}"
        return settings | SQL_SETTINGS | given

    def begin(self) -> None:
        """Java starts now, or is found, while this process does what comes before it needs the session."""
        with self._beginning:
            if self.started or self._launch is not None or self.remote:
                return
            os.environ["PYSPARK_PYTHON"] = sys.executable
            os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            # in the background: Java takes most of the time of a short command
            unwanted = self._unwanted = threading.Event()
            find = self._find_place if self.idle else self._start_java
            self._launch = on_a_thread(lambda: find(unwanted.is_set), "odfchain-launch")

    def _start(self) -> SparkSession:
        again = True
        while True:
            self.begin()
            assert self._launch is not None  # noqa: S101 - begun
            try:
                self._java = self._launch.result()
                self._launch = None
                return self._enter(self._java)
            except Exception as error:
                own = self._java if isinstance(self._java, Gateway) else None
                self.close()
                if own is not None:
                    message = f"Spark did not start: {str(error).splitlines()[0]}"
                    raise EngineError(message, hint=f"its log is {own.log}") from error
                if not self.idle:
                    raise
                # the JVM of our place may have ended since we got it: once more, in another one
                if not again or not isinstance(error, ConnectionRefusedError):
                    # the session that stays is a gain of time, nothing else
                    session_client.note(f"command {os.getpid()} starts its own Java: {error!r}")
                    self.idle = 0
                again = False

    def _start_java(self, unwanted: Callable[[], bool]) -> Gateway:
        java = find_java()
        _remove_old_logs(self._run_folder)
        name = new_name()
        scratch = self._resources.enter_context(spark_scratch(scratch_base(self._run_folder), name))
        settings = self._settings(scratch)
        os.environ["SPARK_WORKER_DIR"] = str(scratch / "work")
        log = self._run_folder / f"{name}.log"
        try:
            return start_gateway(java, settings, log, scratch, record=self.record_classes, unwanted=unwanted)
        finally:
            # not needed any more, which is no failure that a log would explain
            if unwanted():
                log.unlink(missing_ok=True)

    def _find_place(self, unwanted: Callable[[], bool]) -> Lease:
        where = os.getcwd() if self.conf else "/"  # noqa: PTH109 - settings may hold relative paths
        return Lease.take(self._settings, idle=self.idle, where=where, unwanted=unwanted)

    def _enter(self, java: Gateway | Lease) -> SparkSession:
        shared = isinstance(java, Lease)
        alone = session_client.turn(session_client.server_folder()) if shared else contextlib.nullcontext()
        with alone, _connecting(java):
            self._entered = shared
            session = self._make(self._settings(java.scratch), shared=shared)
        _remember_names(jvm_of(session))
        return session

    def _make(self, settings: dict[str, str], *, shared: bool) -> SparkSession:
        # PySpark reads the address of the JVM from the environment
        from pyspark.sql import SparkSession

        make = SparkSession.builder.config(map={**settings}).getOrCreate
        return enter(make) if shared else make()

    def _connect(self) -> SparkSession:
        allow_pandas()  # its client needs it
        try:
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.remote(str(self.remote))
            session = builder.config(map={**SQL_SETTINGS, **self.conf}).getOrCreate()
            # a query shows whether the server answers
            session.range(1).count()
        except Exception as error:
            text = f"no Spark Connect session at {self.remote}: {str(error).splitlines()[0]}"
            _, *parts = str(self.remote).split(";")  # after the address; one may be a token
            hint = "pip install 'odfchain[connect]' brings the client's libraries"
            raise EngineError(redact(text, filter(None, parts)), hint=hint) from error
        return session

    def close(self) -> None:
        """Stop the session and the JVM and remove their temporary files; what is shared is only left."""
        if self._launch is not None:
            self._unwanted.set()
            wait((self._launch,), timeout=_ATTACH_SECONDS if self.idle else _ENDING_SECONDS)
            # afterwards, since waiting ends before callbacks are called, and this process may end then
            self._launch.add_done_callback(_undo)
            self._launch = None
        if isinstance(self._java, Lease):
            self._leave(self._java)
        elif self._session is not None and self.given is None:
            with contextlib.suppress(Exception):
                self._session.stop()
        if isinstance(self._java, Gateway):
            _disconnect(self._java)
        self._java = self._session = None
        self._resources.close()

    def _leave(self, place: Lease) -> None:
        try:
            if self._entered:
                self._entered = False
                leave(self._session)
        except Exception:  # noqa: BLE001 - after any failure the session must not be used again
            place.abandon()
        else:
            place.leave()


def _undo(launch: Future[Gateway | Lease]) -> None:
    if launch.exception() is None:
        if isinstance(java := launch.result(), Lease):
            java.leave()
        else:
            _end(java)


def _end(gateway: Gateway) -> None:
    gateway.close()
    gateway.log.unlink(missing_ok=True)


def _disconnect(gateway: Gateway) -> None:
    from pyspark import SparkContext

    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark has no public way
        with contextlib.suppress(Exception):
            # the connection is process-wide: an engine that is started later would use the closed one
            SparkContext._gateway.shutdown()  # noqa: SLF001
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    _end(gateway)


# Names of the JVM's classes and methods, looked up once.
#
# Py4J asks the JVM for every name each time it is written, and the JVM looks for `org` or `PythonUtils` as
# a class in some three hundred archives before it finds that it is none. Names never change their meaning
# while a JVM runs, so they are kept: checking a small query takes 403 calls instead of 656 to 900, and half
# of the time (RFC-029).


def _remember_names(jvm: Any) -> None:
    """From now on `jvm` (PySpark's view of the JVM) asks for packages, classes and methods only once."""
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    def remembering(base: Any) -> Any:
        class Remembering(base):  # type: ignore[misc]
            def __getattr__(self, name: str) -> Any:
                found = super().__getattr__(name)
                if isinstance(found, JavaPackage | JavaClass):
                    found.__class__ = package if isinstance(found, JavaPackage) else java_class
                # fields are asked for each time: they may change
                elif not isinstance(found, JavaMember):
                    return found
                self.__dict__[name] = found
                return found

        return Remembering

    package, java_class = remembering(JavaPackage), remembering(JavaClass)
    jvm.__class__ = remembering(JVMView)


SQL_SETTINGS = {
    # an empty result must not remove the nodes that count rows on the way to it
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.legacy.javaCharsets": "true",
    # bounds in a file leave NaN out, and what others wrote there may be wrong: every row is looked at
    "spark.sql.parquet.aggregatePushdown": "false",
    "spark.sql.parquet.filterPushdown": "false",
    # whether a record can be read must not depend on the query that asks for it
    "spark.sql.csv.filterPushdown.enabled": "false",
    "spark.sql.json.filterPushdown.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that results depend on or that every plan here assumes; a remote session takes them too.

They cannot be overridden (`SparkEngine`): recorded data would depend on the user's settings.
"""


def recording_session(session: SparkSession, files: ExecutorFiles | None = None) -> SparkSession:
    """A session for what is recorded, in the same Spark as a user's, whose settings stay as they are."""
    return give_files(session_like(session, SQL_SETTINGS), files)


@contextlib.contextmanager
def spark_scratch(base: Path, name: str) -> Iterator[Path]:
    """The folder for all that Spark writes while it runs; gone afterwards."""
    with private_folder(base, name) as scratch:
        for part in ("local", "warehouse", "work"):
            (scratch / part).mkdir()
        shutil.copy(Path(__file__).with_name("log4j2.properties"), scratch)
        yield scratch


@contextlib.contextmanager
def _connecting(java: Gateway | Lease) -> Iterator[None]:
    os.environ["PYSPARK_GATEWAY_PORT"] = str(java.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = java.secret
    # PySpark's own handler talks to the JVM while another answer is still awaited
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _remove_old_logs(folder: Path) -> None:
    limit = time.time() - _LOG_DAYS * 86_400
    for log in folder.glob("spark-*.log"):
        with contextlib.suppress(OSError):
            if log.stat().st_mtime < limit:
                log.unlink()


# A session given by the caller, such as one of `spark-submit`: data are recorded in a second session.
#
# What decides what is recorded is set in a session of our own in the same Spark (`recording_session`), so the
# user's keeps its settings. What cannot be set there is the locale and the time zone of Java, which was
# started with them: those are looked at, and other ones are refused.

_ON_DRIVER = "spark.driver.extraJavaOptions"
_ON_EXECUTORS = ("spark.executor.defaultJavaOptions", "spark.executor.extraJavaOptions")


def check_given(session: Any) -> None:
    """Refuse a session in whose Spark recorded data would depend on where it runs."""
    if not hasattr(session, "newSession"):
        raise UsageError(f"expected a SparkSession, got {type(session).__name__}", hint="pass a SparkSession")
    # nothing is known of the server's Java
    if is_remote(session):
        return
    if session.sparkContext._jsc is None or session.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - no public way
        raise UsageError("the session of Spark has ended", hint="give one that runs")
    java = jvm_of(session).java.util
    locale, zone = java.Locale.getDefault(), java.TimeZone.getDefault()
    wrong = []
    if str(locale.toString()) != "en_US":
        wrong.append((_ON_DRIVER, f"the locale of the driver's Java is {locale.toString()}"))
    if not zone.hasSameRules(java.TimeZone.getTimeZone("UTC")):
        wrong.append((_ON_DRIVER, f"the time zone of the driver's Java is {zone.getID()}"))
    if not is_local(session):
        conf = session.sparkContext.getConf()
        given = " ".join(conf.get(name, "") for name in _ON_EXECUTORS).split()
        # executors have Javas of their own, which must have the same options
        absent = [option for option in SAME_EVERYWHERE.split() if option not in given]
        if absent:
            wrong.append((_ON_EXECUTORS[-1], f"{_ON_EXECUTORS[-1]} has no {' '.join(absent)}"))
    if wrong:
        names = dict.fromkeys(name for name, _ in wrong)
        raise UsageError(
            f"what is recorded would depend on where Spark runs: {'; '.join(text for _, text in wrong)}",
            hint="start Spark with " + " ".join(f'--conf "{name}={SAME_EVERYWHERE}"' for name in names),
        )


# A session of the JVM that reads and resolves queries, and runs none: for the gate with Spark Connect.
#
# A Connect server hands out neither its parser nor its plans. So the queries that it shall run are read by
# a JVM on this machine, of the same Spark, over empty tables. PySpark has either a session of its own JVM
# or one of Connect in a process; the bridge to Java has no such rule, and nothing else is needed here.


@dataclass(eq=False)
class PlanSession:
    """A session for `jvm_of` and the gate; no frame can be made in it, and its JVM belongs to the starter."""

    _jvm: Any
    _jsparkSession: Any  # noqa: N815 - as PySpark calls it


class PlanEngine(SparkEngine):
    """A `SparkEngine` in local mode with a `PlanSession`; also next to a session of Spark Connect."""

    def _make(self, settings: dict[str, str], *, shared: bool) -> SparkSession:  # noqa: ARG002 - it is known there
        from pyspark import SparkContext

        SparkContext._ensure_initialized()  # noqa: SLF001 - PySpark has no public way
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        known = sessions.getDefaultSession()
        if known.isDefined() and not known.get().sparkContext().isStopped():
            java = known.get().newSession()
        else:
            java = sessions.builder().getOrCreate().newSession()
        for key, value in settings.items():
            if key.startswith("spark.sql.") and java.conf().isModifiable(key):
                java.conf().set(key, value)
        return cast("SparkSession", PlanSession(jvm, java))


_judges: weakref.WeakKeyDictionary[SparkSession, Callable[[], SparkSession]] = weakref.WeakKeyDictionary()


def give_judge(session: SparkSession, judge: Callable[[], SparkSession]) -> None:
    """From now on queries for a session of Spark Connect are judged by what `judge` returns."""
    _judges[session] = judge


def judge_of(session: SparkSession) -> SparkSession:
    """Where queries for a session of Spark Connect are read and resolved; started at the first use."""
    judge = _judges.get(session)
    if judge is None:
        hint = "set spark.remote in the workspace's config.yaml"
        raise EngineError("queries over Spark Connect run in a session that odfchain has opened", hint=hint)
    return judge()
