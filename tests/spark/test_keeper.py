"""The session that stays: commands share one JVM, and whatever happens to it, the next command works."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.session_address import SOCKET
from odfchain.spark import session_client, session_server
from odfchain.spark.gateway import Gateway
from odfchain.spark.session_server import give_back, resident_mib
from tests.kit.processes import (
    ANY,
    HEEDS_INTERRUPTS,
    ODFCHAIN,
    THERE,
    TIMEOUT,
    begun_with,
    environment,
    has_ended,
    wait_until,
)
from tests.kit.support import ROOT, manifest

RIGHT = {"rows": 1_000, "sum": 999_000, "observed": 999_000}


class Client:
    """A process that does what it is told, line by line."""

    def __init__(self, home: Path, idle: float = 300, conf: dict[str, str] | None = None, **env: str) -> None:
        (home / "run").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            begun_with(
                HEEDS_INTERRUPTS,
                sys.executable, "-m", "tests.kit.kept_client", home / "run", idle, json.dumps(conf or {}),
            ),
            cwd=home, env=variables(home, PYTHONPATH=str(ROOT), **env), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return json.loads(line)

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.hear()

    def end(self) -> None:
        """Close the session, and the process has ended."""
        self.ask("close")
        self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT)


def used(home: Path, **options: Any) -> Any:
    """The session that a client finds, works in and leaves."""
    client = Client(home, **options)
    found = client.ask("session")
    for _ in range(2):
        assert client.ask("work") == RIGHT, "it does not end while it is used"
    client.end()
    return found


def variables(home: Path, **changes: str) -> dict[str, str]:
    env = environment(XDG_RUNTIME_DIR=str(home), XDG_CACHE_HOME=str(home / "cache"), **changes)
    return {k: v for k, v in env.items() if k != "CI"}


def engine(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ODFCHAIN, "engine", *args], cwd=home, env=variables(home), capture_output=True, text=True,
        timeout=TIMEOUT, check=True,
    )  # fmt: skip


def status(home: Path) -> Any:
    return json.loads(engine(home, "status", "-o", "json").stdout)


def log(home: Path) -> str:
    return (home / "odfchain" / session_client.LOG).read_text()


def new_home() -> Iterator[Path]:
    """Short, because the names of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="odf-", dir="/tmp") as folder:
        home = Path(folder)
        yield home
        engine(home, "stop")


home = pytest.fixture(new_home)
common = pytest.fixture(new_home, scope="module")
"""One home, whose session serves all tests that do not end it."""


# Every test that starts a session is soaked: together they take two minutes, and `make test` starts enough JVMs.


@pytest.mark.soak
def test_commands_one_after_the_other_share_a_session_and_see_nothing_of_each_other(common: Path) -> None:
    seen = [used(common) for _ in range(3)]
    assert [found["stays"] for found in seen] == [True] * 3
    assert len({found["jvm"] for found in seen}) == 1
    assert [found["views"] for found in seen] == [[]] * 3
    assert "3" not in {found["partitions"] for found in seen}
    assert seen[2]["objects"] <= seen[1]["objects"] + 2, "nothing stays behind in the JVM"
    assert (status(common)["attached"], status(common)["clients"]) == (3, [])


@pytest.mark.soak
def test_the_place_is_for_its_user_only(common: Path) -> None:
    client = Client(common)
    client.ask("session")
    folder = common / "odfchain"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}
    scratch = Path(client.ask("session")["scratch"])
    assert scratch.is_relative_to(common / "cache")
    assert [p.name for p in (common / "run").iterdir()] == [], "nothing is written where a command runs"
    client.end()


@pytest.mark.soak
def test_control_c_ends_the_job_of_its_command_only(common: Path, tmp_path: Path) -> None:
    first, second = Client(common), Client(common)
    jvm = first.ask("session")["jvm"]
    for name, client in (("a", first), ("b", second)):
        client.tell(f"hang {tmp_path / name} {tmp_path / 'go-on'}")
        wait_until((tmp_path / name).exists, client.process)
    first.process.send_signal(signal.SIGINT)
    assert first.hear() == {"interrupted": True}
    (tmp_path / "go-on").touch()
    assert second.hear() == {"rows": 7}
    assert first.ask("work") == RIGHT
    assert status(common)["clients"] == sorted([first.process.pid, second.process.pid])
    first.end()
    second.end()
    assert (status(common)["jvm"], status(common)["clients"]) == (jvm, [])


@pytest.mark.soak
def test_the_end_of_the_first_session_makes_a_class_archive(home: Path) -> None:
    """The next Java starts with it, and makes none."""
    archive = home / "classes.jsa"
    first = used(home, ODFCHAIN_CLASS_ARCHIVE=str(archive))
    assert not archive.exists(), "a command does not wait for it"
    engine(home, "stop")
    assert archive.stat().st_mode & 0o777 == 0o600
    assert f"made a class archive, so that the next Java starts faster: {archive}" in log(home)
    assert [p.name for p in home.glob("*.jsa*") if p != archive] == []
    client = Client(home, ODFCHAIN_CLASS_ARCHIVE=str(archive))
    second = client.ask("session")
    assert first["jvm"] != second["jvm"]
    assert str(archive) in Path(f"/proc/{second['jvm']}/maps").read_text()
    client.end()
    engine(home, "stop")
    assert log(home).count("made a class archive") == 1


@pytest.mark.soak
def test_a_cache_that_cannot_be_written_costs_only_the_class_archive(home: Path) -> None:
    (home / "cache").write_text("no folder")
    found = used(home, ODFCHAIN_CLASS_ARCHIVE=str(home / "cache" / "classes.jsa"))
    assert found["stays"] is True
    engine(home, "stop")
    assert log(home).count("no class archive was written") == 1
    assert not Path(found["scratch"]).exists()


def test_lines_that_are_no_request_do_no_harm(common: Path) -> None:
    client = Client(common)
    jvm = client.ask("session")["jvm"]
    asks = (b'{"ask": "attach"}\n', b'{"ask": "x"}\n')
    for said in (b"nonsense\n", b"{}\n", *asks, b"[1]\n", b"\xff\n", b"half"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(common / "odfchain" / SOCKET))
            connection.sendall(said)
    client.end()
    assert (status(common)["jvm"], status(common)["clients"]) == (jvm, [])


@pytest.mark.soak
def test_a_keeper_that_does_not_answer_is_passed_over(common: Path) -> None:
    first, keeper = used(common), status(common)["pid"]
    os.kill(keeper, signal.SIGSTOP)
    try:
        found = used(common)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert (found["stays"], found["jvm"] != first["jvm"]) == (False, True)
    assert "starts its own Java" in log(common)


@pytest.mark.soak
def test_two_commands_at_once_start_one_session(home: Path) -> None:
    clients = [Client(home), Client(home)]
    for client in clients:
        client.tell("session")
    one, two = (client.hear() for client in clients)
    assert (one["jvm"], one["stays"], two["stays"]) == (two["jvm"], True, True)
    for client in clients:
        client.tell("work")
    assert [client.hear() for client in clients] == [RIGHT, RIGHT]
    for client in clients:
        client.end()
    text = engine(home, "status").stdout
    assert f"jvm            {one['jvm']}\n" in text
    assert "clients        -\n" in text
    engine(home, "stop")
    assert has_ended(one["jvm"])
    assert not Path(one["scratch"]).exists()
    assert status(home) == {"running": False}
    assert "stop requested" in engine(home, "log").stdout


@pytest.mark.soak
def test_what_was_killed_is_replaced(home: Path) -> None:
    for victim in ("jvm", "pid"):
        before, found = used(home), status(home)
        assert found["jvm"] == before["jvm"]
        os.kill(found[victim], signal.SIGKILL)
        wait_until(lambda found=found: has_ended(found["jvm"]))
    client = Client(home)
    after = client.ask("session")
    assert (after["stays"], after["jvm"] != before["jvm"]) == (True, True)
    assert not Path(before["scratch"]).exists(), "what the dead one left is removed"
    client.kill()  # and nobody knows what a killed command leaves in a session
    wait_until(lambda: has_ended(after["jvm"]))
    assert "did not take leave" in log(home)


@pytest.mark.soak
def test_a_java_that_ends_before_it_is_used_is_replaced(home: Path) -> None:
    """A place may be given long before it is needed: a source is downloaded meanwhile."""
    first, second = Client(home), Client(home)
    jvm = first.ask("session")["jvm"]
    assert second.ask("begin") == {"begun": True}
    wait_until(lambda: len(status(home)["clients"]) == 2)
    os.kill(jvm, signal.SIGKILL)
    wait_until(lambda: has_ended(jvm))
    found = second.ask("session")
    assert (found["stays"], found["jvm"] != jvm) == (True, True)
    assert second.ask("work") == RIGHT
    second.end()
    assert "starts its own Java" not in log(home)
    first.kill()


@pytest.mark.soak
def test_other_settings_are_another_session(home: Path) -> None:
    first = Client(home)
    before = first.ask("session")
    second = Client(home, conf={"spark.sql.shuffle.partitions": "5"})
    after = second.ask("session")
    assert (after["stays"], after["partitions"]) == (True, "5")
    assert after["jvm"] != before["jvm"]
    assert first.ask("work") == RIGHT, "who has a place in the old one keeps it"
    first.end()
    wait_until(lambda: has_ended(before["jvm"]))
    assert status(home)["jvm"] == after["jvm"]
    second.end()
    assert "replaced, because a command differs in settings" in log(home)


@pytest.mark.soak
def test_nobody_was_there_for_a_while(home: Path) -> None:
    found = used(home, idle=0.1)
    wait_until(lambda: has_ended(found["jvm"]))
    wait_until(lambda: status(home) == {"running": False})
    wait_until(lambda: "idle timeout" in log(home) and not Path(found["scratch"]).exists())


@pytest.mark.soak
def test_memory_is_given_back_soon_after_the_last_command(home: Path) -> None:
    """A tenth of the time that the session stays; the next command finds the same session."""
    options: dict[str, Any] = {"idle": 100, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseG1GC"}
    client = Client(home, **options)
    jvm = client.ask("session")["jvm"]
    assert client.ask("fill 300") == {"filled": 300 << 20}
    full = status(home)["javaMiB"]
    client.end()
    if full is None:
        pytest.skip("the system does not say how much memory a process has")
    wait_until(lambda: status(home)["javaMiB"] < full - 200)
    assert used(home, **options)["jvm"] == jvm
    assert "gives no memory back" not in log(home)


@pytest.mark.parametrize("answers", [b"!yv\n!zjava.lang.ClassNotFoundException\n", b"!x\n", b""])
def test_a_java_that_gives_nothing_back_is_an_error(answers: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_server, "_ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answers)

        thread = threading.Thread(target=serve)
        gateway = Gateway(subprocess.Popen(["true"]), server.getsockname()[1], "secret", Path("log"), Path())
        thread.start()
        with pytest.raises(Exception, match=r"[Jj]ava|uthenticat"):
            give_back(gateway)
        thread.join()
        gateway.process.wait()


def test_the_memory_of_a_process_is_known_where_the_system_tells_it() -> None:
    assert resident_mib(-1) is None
    if Path("/proc/self/statm").exists():
        assert 5 < (resident_mib(os.getpid()) or 0) < 10_000


@pytest.mark.soak
def test_a_folder_that_others_can_enter_is_not_used(home: Path) -> None:
    (home / "odfchain").mkdir()
    (home / "odfchain").chmod(0o755)
    assert used(home)["stays"] is False
    assert list((home / "odfchain").iterdir()) == []
    (home / "odfchain").chmod(0o700)


@pytest.mark.soak
def test_the_command_line_leaves_its_session(home: Path) -> None:
    """What it says, records and leaves behind is the same in a session that was there before, and in a fork."""
    workspace = Workspace.init(home)
    workspace.add(manifest())
    config = home / ".odfchain" / "config.yaml"
    config.write_text(
        config.read_text().replace("local[*]", "local[2]").replace("driverMemory: 2g", "driverMemory: 512m")
    )
    said = []
    for n in range(3):
        (home / f"{n}.csv").write_text(f"city,population\nA{n},{n}\n")
        done = subprocess.run(
            [sys.executable, "-c", THERE if n == 1 else ANY, "ingest", "cities", f"{n}.csv"], cwd=home,
            env=variables(home) | ({"CI": "true"} if n == 2 else {}), timeout=TIMEOUT, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        said.append(done)
        left = {path.name for path in (home / ".odfchain" / "run").iterdir()}
        assert left <= {".lock"}
    assert "committed" in said[0].stderr
    assert [status(home)["attached"], status(home)["clients"]] == [2, []]
    workspace["cities"].verify().raise_if_faulty()


@pytest.mark.soak
def test_a_command_that_fails_early_leaves_the_session_it_began_to_start(home: Path) -> None:
    """Neither the one that it does not wait for, nor the one in which it was given a place."""
    Workspace.init(home).add(manifest())
    (home / "a.csv").write_text("city,population\nA,1\n")
    (home / "narrow.csv").write_text("city\nA\n")

    def ingest(file: str) -> int:
        return subprocess.run(
            [ODFCHAIN, "ingest", "cities", file], cwd=home, capture_output=True,
            env=variables(home), timeout=TIMEOUT, check=False,
        ).returncode  # fmt: skip

    assert ingest("narrow.csv") == 3
    wait_until(lambda: "keeps Java" in log(home))
    jvm = wait_until(lambda: status(home).get("jvm"))
    assert ingest("narrow.csv") == 3
    assert ingest("a.csv") == 0
    assert (status(home)["jvm"], status(home)["clients"]) == (jvm, [])
    assert "takes no more" not in log(home)
    assert "Traceback" not in log(home)


def test_where_no_session_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.init(tmp_path)
    idle = workspace._engines._idle_seconds
    monkeypatch.delenv("CI")
    assert idle() == 0, "only where the command line lets it"
    workspace._engines.may_stay = True
    assert idle() == 600
    monkeypatch.setenv("CI", "1")
    assert idle() == 0
    monkeypatch.delenv("CI")
    config = tmp_path / ".odfchain" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("idle: 10 minutes", "idle: 0 s"))
    assert idle() == 0
    config.write_text(text.replace("isolation: strangers", "isolation: never"))
    assert idle() == 0, "queries of untrusted publishers would run in it"


@pytest.mark.parametrize(
    "options", [{"master": "local-cluster[1,1,512]"}, {"master": "spark://a:7077"}, {"remote": "sc://a"}]
)
def test_only_local_sessions_stay(tmp_path: Path, options: dict[str, str]) -> None:
    from odfchain.spark.session import SparkEngine

    assert SparkEngine(tmp_path, idle=5, **options).idle == 0  # type: ignore[arg-type]
    assert SparkEngine(tmp_path, idle=5, master="local[2]").idle == 5


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("environment", lambda patch: patch.setenv("AWS_PROFILE", "x")),
        ("environment", lambda patch: patch.setenv("https_proxy", "http://x")),
        ("Java", lambda patch: patch.setenv("JAVA_HOME", "/nowhere")),
        ("limits", lambda patch: patch.setattr(os, "getgroups", lambda: [4711])),
        ("Python", lambda patch: patch.setattr(sys, "executable", "/other")),
        (None, lambda patch: patch.setenv("COLUMNS", "77")),
        (None, lambda patch: patch.setenv("ODFCHAIN_WORKSPACE", "/x")),
    ],
)  # fmt: skip
def test_what_makes_another_session(
    monkeypatch: pytest.MonkeyPatch, part: str | None, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    before = session_client.fingerprint({"a": "b"}, os.environ)
    change(monkeypatch)
    after = session_client.fingerprint({"a": "b"}, os.environ)
    assert part in {None, *before}
    assert [name for name in before if before[name] != after[name]][:1] == ([part] if part else [])
    assert session_client.fingerprint({"a": "c"}, os.environ)["settings"] != before["settings"]


@pytest.mark.soak
def test_a_secret_of_a_session_that_stays_is_on_no_command_line(home: Path) -> None:
    secret = f"s3cr3t-{os.getpid()}"
    client = Client(home, conf={"spark.hadoop.fs.s3a.secret.key": secret})
    found = client.ask("session")
    assert found["stays"]
    # but for the client's own, which was given it that way
    shown = [
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.parent.name != str(client.process.pid) and not has_ended(int(path.parent.name))
    ]  # fmt: skip
    files = [path for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    client.end()
    assert any(b"SparkSubmit" in line for line in shown)
    assert not [line for line in shown if secret.encode() in line]
    assert files == []
