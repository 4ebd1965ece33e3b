"""Sources in containers: the contract with the program inside, and nothing that survives a failure.

A simulator stands for podman: a program that reads the real command line and runs the image's program on this
machine, in a process group of its own as an engine would, with the folder of the contract mapped.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import IngestError, StorageFullError
from odfchain.ingest.fetch_container import _write, fetch_container
from odfchain.ingest.fetching import UP_TO_DATE, etag_state, last_modified_state
from odfchain.odf.events import SourceState
from odfchain.odf.sources import EnvVar, FetchStepContainer
from odfchain.odf.times import Timestamp
from odfchain.progress import Silent
from tests.kit.plain_environment import BASIC_PROGRAMS
from tests.kit.processes import is_gone
from tests.kit.servers import MODIFIED_TIME, context
from tests.kit.support import conformance

CASES = {case["id"]: case for case in conformance("polling_cases")["cases"]}
CSV = conformance("polling_cases")["common_input"]["CSV37"]

SIMULATOR = """
import json, os, pathlib, signal, subprocess, sys
home = pathlib.Path(__file__).resolve().parent
with open(home / "calls", "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
args = sys.argv[2:]
if sys.argv[1] == "rm":
    assert args[0] == "--force"
    os.killpg(int((home / args[1]).read_text()), signal.SIGKILL)
    (home / args[1]).unlink()
    sys.exit()
assert sys.argv[1] == "run"
env, entrypoint, name = {}, None, None
while args[0].startswith("-"):
    option = args.pop(0)
    if option == "--rm":
        continue
    value = args.pop(0)
    if option == "--name":
        name = value
    elif option == "-v":
        host, inside, _ = value.split(":")
    elif option == "--env-file":
        assert os.stat(value).st_mode & 0o077 == 0
        env = dict(line.split("=", 1) for line in open(value).read().splitlines())
    elif option == "--entrypoint":
        entrypoint = value
    else:
        sys.exit("unknown option " + option)
assert os.stat(host).st_mode & 0o777 == 0o777
image = args.pop(0)
if not (home / "images" / image).exists():
    sys.stderr.write("Error: no such image " + image + "\\n")
    sys.exit(125)
(home / "environment").write_text(json.dumps(env))
mapped = {key: value.replace(inside, host) for key, value in env.items()}
command = [entrypoint, *args] if entrypoint else [sys.executable, "-S", str(home / "images" / image), *args]
process = subprocess.Popen(command, env=mapped | {"PATH": os.environ["PATH"]}, start_new_session=True)
(home / name).write_text(str(process.pid))
code = process.wait()
(home / name).unlink()
sys.exit(code if code >= 0 else 128 - code)
"""


class Engine:
    """The simulated container engine, and a dataset that polls a container."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "bin"
        (self.home / "images").mkdir(parents=True)
        self.program = self.home / "podman"
        self.program.write_text(f"#!{sys.executable} -S\n{SIMULATOR}")
        self.program.chmod(0o755)
        self.folder = tmp_path / "run"
        self.folder.mkdir()
        self.outside = tmp_path / "outside"
        self.outside.mkdir()
        self.state: SourceState | None = None
        self.image("busybox", "")

    def image(self, name: str, program: str) -> None:
        (self.home / "images" / name).write_text(textwrap.dedent(program))

    def nothing_left(self) -> bool:
        """Neither a file nor a container."""
        return not [*self.folder.iterdir(), *self.home.glob("odfchain-*")]

    def poll(self, image: str = "busybox", variables: dict[str, str] | None = None, **kwargs: Any) -> Any:
        limits = {key: kwargs.pop(key) for key in ("deadline", "max_bytes", "progress") if key in kwargs}
        given = context(self.folder, self.state, variables=variables or {}, **limits)
        result = fetch_container(FetchStepContainer(image=image, **kwargs), given)
        left = [] if result is UP_TO_DATE else [result.path]
        assert list(self.folder.iterdir()) == left
        assert not list(self.home.glob("odfchain-*")), "no container is left"
        return result

    def data(self, *args: Any, **kwargs: Any) -> str:
        result = self.poll(*args, **kwargs)
        text: str = result.path.read_text()
        result.path.unlink()
        return text

    def refused(self, *args: Any, **kwargs: Any) -> str:
        with pytest.raises(IngestError) as caught:
            self.poll(*args, **kwargs)
        assert self.nothing_left()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    @property
    def calls(self) -> list[list[str]]:
        log = self.home / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.home / "environment").read_text())
        return found


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine(tmp_path)
    monkeypatch.setenv("PATH", f"{engine.home}:{BASIC_PROGRAMS}")
    return engine


# --- the cases ---------------------------------------------------------------------------------------


def test_case_ok(engine: Engine) -> None:
    result = engine.poll(command=("printf",), args=(CSV,))
    assert result.path.read_text() == CSV
    assert (result.state, result.event_time, result.has_more) == (None, None, False)


def test_case_env(engine: Engine) -> None:
    case = CASES["container.env"]
    env = tuple(EnvVar(name=v["name"], value=v.get("value")) for v in case["given"]["env"])
    printed = engine.data(command=("env",), env=env, variables=case["given"]["dataset_env"])
    assert [line for line in sorted(printed.splitlines()) if line.startswith("KAMU_TEST")] == case["expect"]
    said = engine.refused(command=("env",), env=env[2:])
    assert said == "container busybox: env KAMU_TEST_PROPAGATED: has no value"


def test_case_args_template(engine: Engine) -> None:
    case = CASES["container.args_template"]
    step: dict[str, Any] = {"command": ("sh",), "args": ("-c", "echo ${{ env.VAR }}")}
    assert engine.data(**step, variables={"VAR": "foobar"}) == case["expect"]
    assert "VAR" in engine.refused(**step)
    assert engine.data("${{ env.IMAGE }}", {"IMAGE": "busybox"}, command=("echo",)) == "\n"
    assert engine.data(command=("echo", "${{ env.VAR }}"), variables={"VAR": "x"}) == "${{ env.VAR }}\n"


def test_cases_batch_default_and_batch_set(engine: Engine) -> None:
    step: dict[str, Any] = {"command": ("sh", "-c", "echo $ODF_BATCH_SIZE")}
    assert engine.data(**step) == "10000\n"
    assert engine.data(**step, env=(EnvVar(name="ODF_BATCH_SIZE", value="40000"),)) == "40000\n"


def test_case_no_output(engine: Engine) -> None:
    result = engine.poll(command=("true",))
    assert result.path.read_bytes() == b""
    assert result.state is None


ROWS = """
    import os
    start, batch, total = int(os.environ["ODF_ETAG"] or 0), int(os.environ["ODF_BATCH_SIZE"]), 100
    end = min(start + batch, total)
    for row in range(start, end):
        print(row)
    with open(os.environ["ODF_NEW_ETAG_PATH"], "w") as out:
        print(end, file=out)
    if end < total:
        open(os.environ["ODF_NEW_HAS_MORE_DATA_PATH"], "w").close()
"""


def test_case_iter(engine: Engine) -> None:
    engine.image("rows", ROWS)
    env = (EnvVar(name="ODF_BATCH_SIZE", value="40"),)
    rows = ""
    for step in CASES["container.iter"]["expect"]:
        assert engine.state == (etag_state(step["prev"]) if step["prev"] else None)
        result = engine.poll("rows", env=env)
        if step.get("result") == "UpToDate":
            assert result is UP_TO_DATE
            continue
        assert (result.state, result.has_more) == (etag_state(step["state"]), step["has_more"])
        engine.state = result.state
        rows += result.path.read_text()
        result.path.unlink()
    assert rows.split() == [str(n) for n in range(100)]


def test_case_single_batch(engine: Engine) -> None:
    engine.image("rows", ROWS)
    result = engine.poll("rows", env=(EnvVar(name="ODF_BATCH_SIZE", value="150"),))
    assert (result.state, result.has_more) == (etag_state("100"), False)


def test_case_protocol_in(engine: Engine) -> None:
    engine.data(command=("true",), env=(EnvVar(name="ODF_ETAG", value="forged"),))
    assert engine.environment == {
        "ODF_ETAG": "",
        "ODF_LAST_MODIFIED": "",
        "ODF_BATCH_SIZE": "10000",
        "ODF_NEW_ETAG_PATH": "/opt/odf/out/new-etag",
        "ODF_NEW_LAST_MODIFIED_PATH": "/opt/odf/out/new-last-modified",
        "ODF_NEW_HAS_MORE_DATA_PATH": "/opt/odf/out/new-has-more-data",
    }
    engine.state = last_modified_state(MODIFIED_TIME)
    engine.poll(command=("true",))
    assert engine.environment["ODF_LAST_MODIFIED"] == "2015-10-21T07:28:00Z"
    assert engine.environment["ODF_ETAG"] == ""


def says(etag: str | None = None, time: str | None = None, out: str = "") -> dict[str, Any]:
    script = f"printf '{out}'"
    for text, path in ((etag, "$ODF_NEW_ETAG_PATH"), (time, "$ODF_NEW_LAST_MODIFIED_PATH")):
        if text is not None:
            script += f"; printf '{text}' > {path}"
    return {"command": ("sh", "-c", script)}


def test_case_protocol_states(engine: Engine) -> None:
    result = engine.poll(**says(etag="a", time="2020-01-01T00:00:00Z", out="x"))
    assert result.state == etag_state("a"), "the etag wins"
    result.path.unlink()
    result = engine.poll(**says(time="2020-01-01T00:00:00.000+00:00", out="x"))
    assert result.state == last_modified_state(Timestamp.parse("2020-01-01T00:00:00Z"))
    result.path.unlink()
    engine.state = result.state
    assert engine.poll(**says(time="2020-01-01T01:00:00+01:00")) is UP_TO_DATE, "the same time"
    said = engine.refused(**says(time="2020-01-01T00:00:00Z", out="xyz"))
    assert said == "container busybox: printed 3 bytes and left the state as it was"
    assert engine.poll(**says()) is UP_TO_DATE, "it says nothing: what is remembered stays"
    assert engine.data(**says(etag="b")) == "", "a new state without rows is news"


def test_case_protocol_failure(engine: Engine) -> None:
    step: dict[str, Any] = {
        "command": ("sh", "-c", "echo partial; echo first >&2; echo last $TOKEN >&2; exit 3")
    }
    said = engine.refused(**step, env=(EnvVar(name="TOKEN"),), variables={"TOKEN": "pass-word"})
    assert said == "container busybox: ended with exit code 3: first | last ***"
    assert "ended with exit code 125: Error: no such image nope" in engine.refused("nope")


def test_case_protocol_command_is_a_list(engine: Engine) -> None:
    """Not joined by spaces, as the reference does."""
    assert engine.data(command=("printf", "%s|", "a b", "$HOME"), args=("c d",)) == "a b|$HOME|c d|"
    engine.image("own", "import sys; print(sys.argv[1:])")
    assert engine.data("own", args=("a b",)) == "['a b']\n"


# --- what the program inside may try -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("ln -s /etc/hostname $ODF_NEW_ETAG_PATH", "new-etag cannot be read: Too many levels"),
        ("mkfifo $ODF_NEW_ETAG_PATH", "new-etag is not a regular file"),
        ("mkdir $ODF_NEW_ETAG_PATH", "new-etag is not a regular file"),
        ("head -c 70000 /dev/zero > $ODF_NEW_ETAG_PATH", "new-etag is larger than 65,536 bytes"),
        ("printf '\\377' > $ODF_NEW_ETAG_PATH", "new-etag is not UTF-8"),
        ("printf 'a\\nb' > $ODF_NEW_ETAG_PATH", "new-etag has more than one line"),
        ("echo yesterday > $ODF_NEW_LAST_MODIFIED_PATH", "new-last-modified: 'yesterday' is not an RFC 3339"),
        ("touch $ODF_NEW_HAS_MORE_DATA_PATH", "says that there is more, and not from where on"),
    ],
)
def test_hostile_states(engine: Engine, script: str, said: str) -> None:
    assert said in engine.refused(command=("sh", "-c", script))


def test_secrets_are_not_shown_on_the_command_line(engine: Engine) -> None:
    value = "pass-word"
    engine.data(command=("true",), env=(EnvVar(name="TOKEN"),), variables={"TOKEN": value})
    assert engine.environment["TOKEN"] == value
    assert value not in str(engine.calls)


@pytest.mark.parametrize("image", ["", "--privileged", "a b", "a\nb"])
def test_names_that_are_no_images(engine: Engine, image: str) -> None:
    assert "is not the name of an image" in engine.refused(image)
    assert engine.calls == []


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A*", "x"), ("A", "x\ny")])
def test_variables_that_cannot_be_told(engine: Engine, name: str, value: str) -> None:
    said = "the value of A has a line break" if name == "A" else "is not the name of a variable"
    assert said in engine.refused(env=(EnvVar(name=name, value=value),))
    assert engine.calls == []


# --- ends --------------------------------------------------------------------------------------------


def pid_of(engine: Engine, name: str, program: str) -> Path:
    """Makes an image whose program first says which process it is, in this file."""
    pid = engine.outside / "pid"
    begin = f"import os, signal\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
    engine.image(name, begin + textwrap.dedent(program))
    return pid


ENDLESS = """
    while True:
        print("y" * 1000)
"""


def test_the_output_is_bounded(engine: Engine) -> None:
    pid = pid_of(engine, "endless", ENDLESS)
    said = engine.refused("endless", max_bytes=100_000)
    assert said == "container endless: prints more than 100,000 bytes (limit max_bytes)"
    assert is_gone(pid)
    assert [call[0] for call in engine.calls] == ["run", "rm"]


@pytest.mark.parametrize("value", ["0", "-1", "+5", "1.5", "1e4", "ten", "", " 10", "99999999999999999999"])
def test_a_batch_size_that_is_none_is_refused_before_the_container_starts(engine: Engine, value: str) -> None:
    said = engine.refused(env=(EnvVar(name="ODF_BATCH_SIZE", value=value),))
    assert said.startswith("container busybox: env ODF_BATCH_SIZE: ")
    assert said.endswith("is not a positive whole number")
    given = engine.refused(variables={"ODF_BATCH_SIZE": value}, env=(EnvVar(name="ODF_BATCH_SIZE"),))
    assert given == "container busybox: env ODF_BATCH_SIZE: its value is not a positive whole number"
    assert engine.calls == []


def test_the_deadline(engine: Engine) -> None:
    pid = pid_of(engine, "endless", ENDLESS)
    said = engine.refused("endless", deadline=1.5, max_bytes=1 << 50)
    assert said == "container endless: has not ended after 1.5 s (the deadline of a fetch)"
    assert is_gone(pid)


class Interrupted(Silent):
    """The user presses Ctrl-C once data flows."""

    def advance(self, steps: int = 1) -> None:
        raise KeyboardInterrupt


def test_an_interrupt(engine: Engine) -> None:
    pid = pid_of(engine, "endless", ENDLESS)
    with pytest.raises(KeyboardInterrupt):
        engine.poll("endless", progress=Interrupted())
    assert is_gone(pid)
    assert engine.nothing_left()


def test_a_runtime_that_is_killed_takes_its_container_with_it(engine: Engine) -> None:
    kill = "os.kill(os.getppid(), signal.SIGKILL)"
    pid = pid_of(engine, "killer", f"{kill}\nos.close(1)\nos.close(2)\nsignal.pause()")
    assert "container killer: was killed by signal 9" in engine.refused("killer")
    assert is_gone(pid)


def test_no_runtime(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(engine.outside))
    assert "neither podman nor docker is installed" in engine.refused()


def test_docker_is_taken_where_podman_is_not(engine: Engine) -> None:
    engine.program.rename(engine.home / "docker")
    assert engine.data(command=("echo",)) == "\n"


def test_a_runtime_that_cannot_be_started(engine: Engine) -> None:
    engine.program.write_text("no program")
    assert "podman cannot be started: Exec format error" in engine.refused()


def test_a_full_disk(engine: Engine) -> None:
    with Path("/dev/full").open("wb", buffering=0) as stream, pytest.raises(StorageFullError):
        _write(stream, b"x", Path("/dev/full"))
