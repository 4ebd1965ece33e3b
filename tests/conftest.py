"""Shared fixtures. One Spark session serves each process; it is started by the first test that asks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.plain_environment import HOME
from tests.kit.run_length import scaled
from tests.kit.scheduling import ordered
from tests.kit.support import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.api.workspace import Workspace
    from odfchain.spark.session import SparkEngine
    from odfchain.transform.spark_engine import SparkTransformEngine

# "ci" is what `make test` runs: reproducible. "local" explores, "soak" is what `make soak` runs; "deep" is for a long look
# before a release.
settings.register_profile(
    "ci", derandomize=True, max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("local", max_examples=300, deadline=None)
settings.register_profile("soak", max_examples=2_000, deadline=None)
settings.register_profile("deep", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


LONG = scaled(0, 1, 1)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of processes that are to read all tests each compiles a share first, and finds the others' compiled."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    if worker is None or count is None or session.config.args != ["tests"]:
        return
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[int(worker[2:]) :: int(count)]:
        with contextlib.suppress(Exception):  # it is reported when it is collected
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is `scaled` is also a part of `make soak`; the order is that of `scheduling`."""
    for item in items:
        if isinstance(item, pytest.Function) and getattr(item.module, "scaled", None) is scaled and LONG:
            item.add_marker("soak")
    items[:] = ordered(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Processes share the files as `scheduling` says, with `--dist loadfile`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.kit.scheduling import TwoEnds

    return TwoEnds(config, log)


def pytest_unconfigure() -> None:
    """The folders that tests had in place of the user's are gone."""
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def class_archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """Lets JVMs start faster once one of several test processes has made a class archive, beside its tests.

    A single process that runs a few tests makes none.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        yield None
        return
    path = tmp_path_factory.getbasetemp().parent / "spark.jsa"
    os.environ["ODFCHAIN_CLASS_ARCHIVE"] = str(path)
    if worker != "gw0":
        yield path
        return
    from tests.kit.processes import ODFCHAIN, environment

    maker = subprocess.Popen(
        [ODFCHAIN, "-q", "engine", "warm-up"],
        env=environment(ODFCHAIN_CLASS_ARCHIVE=str(path)),
        stdout=subprocess.DEVNULL,
    )
    yield path
    if maker.poll() is None:
        maker.terminate()
    maker.wait()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """The one Spark engine of each process that runs tests."""
    from odfchain.spark.session import SparkEngine

    conf = {
        "spark.sql.shuffle.partitions": "2",
        # the optimising compiler costs nothing in the first minutes, and saves a tenth after them
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    }
    # four task slots whatever the machine has: results must not depend on their number
    engine = SparkEngine(tmp_path_factory.mktemp("spark"), master="local[4]", driver_memory="3g", conf=conf)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def session(engine: SparkEngine) -> SparkSession:
    return engine.session


@pytest.fixture(scope="session")
def transforms(engine: SparkEngine) -> SparkTransformEngine:
    from odfchain.transform.spark_engine import SparkTransformEngine

    return SparkTransformEngine(lambda: engine.session)


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """A folder for slices that are not committed."""
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(tmp_path: Path, engine: SparkEngine) -> Workspace:
    """A new workspace that uses the session of the run."""
    from odfchain.api.workspace import Workspace

    workspace = Workspace.init(tmp_path / "workspace")
    workspace._engines.spark = engine
    return workspace


@pytest.fixture(scope="session")
def new_workspace(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine) -> Callable[[], Workspace]:
    """Makes workspaces that use the session of the run, for several tests that only read or `copied` them."""
    from odfchain.api.workspace import Workspace

    def make() -> Workspace:
        workspace = Workspace.init(tmp_path_factory.mktemp("made") / "workspace")
        workspace._engines.spark = engine
        return workspace

    return make


def in_this_process(capsys: pytest.CaptureFixture[str], *args: object) -> Result:
    from odfchain.cli.main import main

    capsys.readouterr()
    code = main([str(a) for a in args])
    return Result(code, *capsys.readouterr())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command line in this process, without Spark."""
    return functools.partial(in_this_process, capsys)


@pytest.fixture
def run_cli(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """The command line in this process, on the session of the run."""
    from odfchain.spark import session

    class Shared:
        """Starts nothing and stops nothing."""

        def __init__(self, *_: object, **__: object) -> None:
            self.started = True
            self.session = engine.session

        def begin(self) -> None:
            pass

        def close(self) -> None:
            pass

    def run(*args: object) -> Result:
        monkeypatch.setattr(session, "SparkEngine", Shared)
        return in_this_process(capsys, *args)

    return run
