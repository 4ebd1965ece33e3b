"""Engines in images: what they are given and held to, and lies of all kinds, of which nothing is committed.

What needs no podman runs everywhere: arguments, paths, digests, and lies of the same engine as a plain process.
The rest is run by `make soak`, and by `make test` where podman is.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError, ManifestError, OdfchainError, TransformError
from odfchain.odf import engine_messages as messages
from odfchain.odf.events import DatasetVocabulary, SetTransform
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.odf.tree import to_tree
from odfchain.progress import SILENT
from odfchain.transform import containers
from odfchain.transform.engine_protocol import with_paths
from odfchain.workspace.config import OF_WORKSPACE, TransformConfig
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.engine_images import command, engine_entry, import_image, plain_engine
from tests.kit.node_process import COMMAND
from tests.kit.processes import wait_until
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.support import ROOT, derivative, tree_of

SCHEMA = schema_with(pa.field("city", pa.string()))
IMAGE = "localhost/engine:1"
NEEDS_PODMAN = [] if shutil.which("podman") else [pytest.mark.soak]


def slice_of(table: pa.Table) -> str:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


ROWS = records(SCHEMA, 0, [0, 0], [START] * 2, ["A", "B"])
GOOD = {"data": slice_of(ROWS), "interval": [0, 1]}


def settings(workspace: Workspace, place: str, more: str = "") -> None:
    engines = f"engines: {{datafusion: {place}}}, {more}"
    text = f"kind: WorkspaceConfig\nversion: 1\ncontent: {{transform: {{{engines}}}}}\n"
    (workspace.path / "config.yaml").write_text(text)


@pytest.fixture
def here(tmp_path: Path) -> Workspace:
    made = Workspace.init(tmp_path / "workspace")
    append(add_root(made, "cities", SCHEMA), ROWS, MADE)
    return made


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, str]]:
    """(the program that runs containers, the digest of the engine's image)."""
    # podman takes no long path of what runs
    folder = Path(tempfile.mkdtemp(prefix="podman-"))
    program = command(folder)
    try:
        yield program, import_image(program, IMAGE, engine_entry())
    finally:
        subprocess.run(
            [*shlex.split(program), "system", "reset", "--force"], capture_output=True, check=False
        )
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["process", pytest.param("image", marks=NEEDS_PODMAN)])
def where(request: pytest.FixtureRequest, here: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The engine, as a plain process and in an image; how messages call its place."""
    if request.param == "image":
        monkeypatch.setenv(containers.PROGRAM_VARIABLE, request.getfixturevalue("store")[0])
        settings(here, f"{{image: '{IMAGE}'}}")
        yield f"in {IMAGE}"
        return
    with plain_engine() as address:
        settings(here, f"'{address}'")
        yield f"at {address}"


def scripted(workspace: Workspace, name: str = "derived", **script: Any) -> Dataset:
    return workspace.add(derivative(json.dumps(script), name=name, engine="datafusion"))[0]


def version_of(dataset: Dataset) -> str | None:
    found = DatasetState.read(dataset._files.chain).transform
    assert isinstance(found, SetTransform)
    return found.transform.version


WITHOUT_TIME = slice_of(ROWS.drop_columns(["event_time"]))
LIES = {
    "other offsets": (GOOD | {"interval": [5, 6]}, "the offsets 5 to 6, 0 was to be the first"),
    "offsets within": (GOOD | {"data": slice_of(records(SCHEMA, 7, [0, 0], [START] * 2, "AB"))}, "offset"),
    "too many rows": (GOOD | {"interval": [0, 5]}, "6 records are declared, the file has 2"),
    "wrong schema": (GOOD | {"data": WITHOUT_TIME}, "event_time"),
    "no Parquet": (GOOD | {"data": base64.b64encode(b"PAR1").decode()}, "."),
    "hangs": ({"act": "hang"}, "did not finish within 4 s"),
    "dies": ({"act": "die"}, "went away in the middle of a call"),
    "writes elsewhere": (GOOD | {"act": "elsewhere"}, "it succeeded, but wrote no data file"),
    "a symbolic link": (GOOD | {"act": "symlink"}, "is not a plain file"),
}


IN_IMAGES = {"hangs", "other offsets", "a symbolic link"}
"""Lies that an image tells in `make test`, too; each costs a container."""
TOLD = [
    pytest.param(where, lie, marks=marks)
    for lie in LIES
    for where, marks in (
        ("process", []),
        ("image", NEEDS_PODMAN if lie in IN_IMAGES else [pytest.mark.soak]),
    )
]


@pytest.mark.parametrize(("where", "lie"), TOLD, indirect=["where"])
def test_lies_are_refused_with_nothing_committed(here: Workspace, where: str, lie: str) -> None:
    script, said = LIES[lie]
    made = scripted(here, **script)
    before = tree_of(made.path)
    with pytest.raises(OdfchainError, match=said) as caught:
        made.pull(system_time=MADE, timeout=4 if lie == "hangs" else None)
    if caught.value.message.startswith("the engine in "):
        assert where in caught.value.message
    assert tree_of(made.path) == before


def test_a_good_one_is_recorded_and_replayed(here: Workspace, where: str) -> None:
    made = scripted(here, **GOOD, checkpoint="state")
    assert made.pull(system_time=MADE).blocks
    assert made.scan().to_arrow()["city"].to_pylist() == ["A", "B"]
    assert made.verify(replay=True).ok
    (checkpoint,) = (path for path in (made.path / "checkpoints").iterdir() if path.is_file())
    assert (checkpoint.read_text(), checkpoint.stat().st_mode & 0o777) == ("state", 0o644)


class TestPodman:
    """The walls of real containers."""

    pytestmark = NEEDS_PODMAN

    @pytest.fixture(autouse=True)
    def in_an_image(
        self, here: Workspace, store: tuple[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        monkeypatch.setenv(containers.PROGRAM_VARIABLE, store[0])
        settings(here, f"{{image: '{IMAGE}'}}", "isolatedMemoryMib: 256")
        yield
        assert self.listed(store[0]) == [], "no container stays"

    def listed(self, program: str) -> list[str]:
        run = [*shlex.split(program), "ps", "--all", "--format", "{{.Names}}"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()

    @pytest.mark.parametrize(
        ("act", "said"),
        [
            (
                "wall",
                r"failed: wrote \[\], sees \['f1620[0-9a-f]{64}', 'schema-0\.parquet'\]",
            ),
            ("network", r"failed: OSError, ConnectionRefusedError"),
            ("memory", r"went away in the middle of a call|broke off the call"),
        ],
    )
    def test_the_walls(self, here: Workspace, act: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(EngineError, match=said):
            scripted(here, act=act).pull()

    def test_folders_within_folders_are_removed(self, here: Workspace) -> None:
        made = scripted(here, act="deep", **GOOD)
        assert made.pull(system_time=MADE).blocks
        assert [path for path in (made.path / "staging").iterdir() if path.is_dir()] == []

    @pytest.mark.soak
    def test_a_gigabyte_of_output_fills_nothing(self, here: Workspace, store: tuple[str, str]) -> None:
        folder = Path(shlex.split(store[0])[2]).parent
        before = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        made = scripted(here, act="print", **GOOD)
        assert made.pull(system_time=MADE).blocks
        after = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        assert after - before < 16 << 20

    def test_the_digest_is_recorded_and_asked_for(self, here: Workspace, store: tuple[str, str]) -> None:
        program, (tag, kept) = store[0], ("localhost/second:1", "localhost/second:kept")
        podman = functools.partial(subprocess.run, check=True, capture_output=True)
        digest = import_image(program, tag, [*engine_entry(), "second"])
        settings(here, f"{{image: '{tag}'}}")
        made = scripted(here, **GOOD)
        made.pull(system_time=MADE)
        assert version_of(made) == digest
        assert made.verify(replay=True).replay.engines == [f"datafusion_{digest}"]
        # the tag means another image: what is recorded counts
        podman([*shlex.split(program), "tag", tag, kept])
        import_image(program, tag, ["/nothing"])
        assert made.verify(replay=True).ok
        with pytest.raises(EngineError, match=r"podman run failed: .*/nothing"):
            scripted(here, "other", **GOOD).pull(system_time=MADE)
        podman([*shlex.split(program), "rmi", kept])
        report = made.verify(replay=True)
        assert report.verdict == "incomplete"
        assert f"the image localhost/second@{digest} is not here" in report.unchecked[0].message

    def test_raw_queries(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in ("one", "two")]
        for file in files:
            file.write_text(file.name)
        for script, said in (
            ({"records": 1}, None),
            ({"records": 1, "act": "elsewhere"}, "wrote no data file"),
        ):
            steps = (SqlQueryStep(alias=None, query=json.dumps(script)),)
            transform = TransformSql(engine="datafusion", queries=steps)
            engine = containers.ContainerEngine(transform, TransformConfig(), IMAGE)
            out = tmp_path / f"out-{said}"
            request = messages.RawQueryRequest(
                input_data_paths=tuple(map(str, files)), transform=transform, output_data_path=str(out)
            )
            if said is None:
                assert (engine.query(request, progress=SILENT), out.read_text()) == (1, "onetwo")
                continue
            with pytest.raises(EngineError, match=said):
                engine.query(request, progress=SILENT)

    @pytest.mark.parametrize(
        "end",
        [
            signal.SIGINT,
            signal.SIGKILL,
            *(pytest.param(end, marks=pytest.mark.soak) for end in (signal.SIGINT, signal.SIGKILL)),
        ],
    )
    def test_a_container_ends_with_its_command(
        self, here: Workspace, store: tuple[str, str], end: signal.Signals
    ) -> None:
        scripted(here, act="hang")
        words = [COMMAND, "-w", str(here.path.parent), "pull", "derived"]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
        ) as command:
            wait_until(lambda: self.listed(store[0]), command)
            command.send_signal(end)
            command.wait()
            wait_until(lambda: not self.listed(store[0]))

    def test_leftovers_are_removed_by_the_next_run(self, here: Workspace, store: tuple[str, str]) -> None:
        """Even the process that removes the container may have been killed."""
        left = ["run", "--detach", "--stop-timeout", "0", "--network", "none", "--ulimit", "nofile=99:99", "--ulimit", "nproc=99:99",
                "--label", "odfchain.folder=/gone", "--name", "odfchain-left", IMAGE]  # fmt: skip
        subprocess.run([*shlex.split(store[0]), *left], check=True, capture_output=True)
        made = scripted(here, **GOOD)
        made.pull(system_time=MADE)


def request_of(data: list[Path], schema: Path, before: Path | None, out: Path) -> messages.TransformRequest:
    item = messages.TransformRequestInput(
        dataset_id=DatasetId(bytes(32)), dataset_alias=DatasetAlias.parse("a"), query_alias="a",
        vocab=DatasetVocabulary(), data_paths=tuple(map(str, data)), schema_file=str(schema),
        explicit_watermarks=(),
    )  # fmt: skip
    return messages.TransformRequest(
        dataset_id=DatasetId(bytes(32)), dataset_alias=DatasetAlias.parse("b"), system_time=MADE,
        vocab=DatasetVocabulary(), transform=TransformSql(engine="x", query="SELECT 1"), query_inputs=(item,),
        next_offset=0, prev_checkpoint_path=before and str(before), new_checkpoint_path=str(out / "checkpoint"),
        new_data_path=str(out / "data"),
    )  # fmt: skip


def test_paths_are_those_of_the_container(tmp_path: Path) -> None:
    files = [
        tmp_path / name for name in ("one/f1620aa", "two/f1620bb", "three/f1620aa", "s.parquet", "f1620cc")
    ]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(file.parent.name)
    (tmp_path / "in").mkdir()
    shown = containers.shown_in(tmp_path)
    request: Any = with_paths(request_of(files[:3], files[3], files[4], tmp_path / "out"), shown)
    (item,) = request.query_inputs
    inside, out = "/opt/engine/in", "/opt/engine/out"
    assert item.data_paths == (f"{inside}/f1620aa", f"{inside}/f1620bb", f"{inside}/4-f1620aa")
    assert (item.schema_file, request.prev_checkpoint_path) == (f"{inside}/s.parquet", f"{inside}/f1620cc")
    assert (request.new_data_path, request.new_checkpoint_path) == (f"{out}/data", f"{out}/checkpoint")
    assert (tmp_path / "in/4-f1620aa").read_text() == "three"
    assert (tmp_path / "in/f1620bb").samefile(files[1]), "nothing is copied"
    raw = messages.RawQueryRequest(
        input_data_paths=(str(files[0]),),
        transform=request.transform,
        output_data_path=f"{tmp_path}/out/data",
    )
    found: Any = with_paths(raw, shown)
    assert (*found.input_data_paths, found.output_data_path) == (f"{inside}/f1620aa", f"{out}/data")


def test_what_bounds_a_container(tmp_path: Path) -> None:
    options = containers.run_options(tmp_path, 512, 60.0, podman=True)
    given = dict(zip(options, [*options[1:], ""], strict=True))
    assert {
        "--network": "none", "--cap-drop": "all", "--pull": "never", "--memory": "512m", "--memory-swap": "512m",
        "--pids-limit": "512", "--timeout": "91", "--log-opt": "max-size=1m", "--user": "0:0",
    }.items() <= given.items()  # fmt: skip
    assert {"--read-only", "no-new-privileges", f"{tmp_path}/in:/opt/engine/in:ro"} <= set(options)
    assert [o for o in options if o.startswith(str(tmp_path))] == [
        f"{tmp_path}/in:/opt/engine/in:ro", f"{tmp_path}/out:/opt/engine/out",
    ]  # fmt: skip
    assert [o for o in options if o.startswith("--ulimit=data=")] == [
        f"--ulimit=data={512 << 20}:{512 << 20}"
    ]
    docker = containers.run_options(tmp_path, 0, None, podman=False)
    assert not {"--memory", "--timeout", "--image-volume"} & set(docker)
    with pytest.raises(EngineError, match="cannot be shown to a container"):
        containers.run_options(tmp_path / "a:b", 0, None, podman=True)


A, B = (f"sha256:{digit * 64}" for digit in "ab")
HERE = {
    "r/engine:1": {"Id": "one", "Digest": A, "RepoDigests": [f"r/engine@{A}"]},
    f"r/engine@{B}": {"Id": "two", "RepoDigests": [f"r/engine@{B}"]},
    "host:5000/own": {"Id": "three", "RepoDigests": []},
}


@pytest.mark.parametrize(
    ("reference", "recorded", "found"),
    [
        ("r/engine:1", None, ("one", A)),
        ("r/engine:1", "0.9.0", ("one", A)),
        ("r/engine:1", A, ("one", A)),
        ("r/engine:1", B, ("two", B)),
        (f"r/engine@{B}", None, ("two", B)),
        (f"r/engine:7@{B}", None, ("two", B)),
        ("r/engine:1", f"sha256:{'c' * 64}", f"pull r/engine@sha256:{'c' * 64}"),
        ("host:5000/gone:2", A, f"pull host:5000/gone@{A}"),
        ("r/none:2", None, "pull r/none:2"),
        ("host:5000/own", None, "push it to a registry"),
        ("--privileged", None, "NAME:TAG"),
        ("a b", None, "NAME:TAG"),
        ("", None, "NAME:TAG"),
    ],
)
def test_which_image(tmp_path: Path, reference: str, recorded: str | None, found: Any) -> None:
    program = tmp_path / "podman"
    cases = "".join(
        f"{shlex.quote(name)}) echo {shlex.quote(json.dumps([it]))};;\n" for name, it in HERE.items()
    )
    program.write_text(f"#!/bin/sh\ncase $3 in\n{cases}*) echo '[]'; echo 'not known' >&2; exit 125;; esac\n")
    program.chmod(0o755)
    if isinstance(found, tuple):
        assert containers.chosen_image([str(program)], reference, recorded) == found
        return
    with pytest.raises(EngineError) as caught:
        containers.chosen_image([str(program)], reference, recorded)
    assert found in str(caught.value.hint)
    if found.startswith("pull"):
        assert caught.value.hint == f"{program} {found}", "the exact command"


def test_without_a_program(here: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings(here, f"{{image: '{IMAGE}'}}")
    made = scripted(here, **GOOD)  # nothing is started by `add`
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="need podman or docker, and neither is here") as caught:
        made.pull()
    assert "apt-get install podman" in str(caught.value.hint)
    monkeypatch.setenv(containers.PROGRAM_VARIABLE, "nerdctl --debug")
    with pytest.raises(EngineError, match="and nerdctl is not here"):
        made.pull()


@pytest.mark.parametrize("place", ["{}", "{address: 'h:1', image: 'i'}", "{image: ''}", "''"])
def test_an_engine_has_one_place(here: Workspace, place: str) -> None:
    settings(here, place)
    with pytest.raises(ManifestError, match="must be either an address or an image") as caught:
        OF_WORKSPACE.load(here.path)
    assert caught.value.path == "transform.engines.datafusion"


def test_the_setting_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init").code == 0

    def config(*words: str) -> tuple[int, Any]:
        code = run("config", *words).code
        return code, to_tree(OF_WORKSPACE.load(tmp_path / ".odfchain").transform.engines)

    name = "transform.engines.flink"
    assert config("set", f"{name}.image", IMAGE) == (0, {"flink": {"image": IMAGE}})
    assert config("set", name, "h:1") == (3, {"flink": {"image": IMAGE}}), "either or"
    assert config("unset", name) == (0, {})
    assert config("set", name, "h:1") == (0, {"flink": "h:1"})
    assert config("set", f"{name}.image", IMAGE) == (3, {"flink": "h:1"})


TEMPORAL = ", temporalTables: [{name: cities, primaryKey: [city]}]"


@pytest.mark.parametrize(
    ("engine", "place", "more", "said"),
    [
        ("flink", None, "", "the transform is for the engine `flink`, which is not this one"),
        ("risingwave", None, "", "the transform is for the engine `risingwave`, which is not this one"),
        ("flink", None, TEMPORAL, "the transform is for the engine `flink`, which is not this one"),
        ("datafusion", None, TEMPORAL, "temporalTables, which the engine `datafusion` does not know"),
        ("datafusion", "h:1", TEMPORAL, "temporalTables, which the engine `datafusion` does not know"),
        (
            "risingwave",
            "{image: r/w:1}",
            TEMPORAL,
            "temporalTables, which the engine `risingwave` does not know",
        ),
        ("flink", "{image: r/f:1}", TEMPORAL, None),
        ("flink", "h:1", TEMPORAL, None),
    ],
)
def test_engines_that_are_not_here(
    here: Workspace, engine: str, place: str | None, more: str, said: str | None
) -> None:
    """`add`, `pull` and a replay say the same."""
    if place is not None:
        settings(here, place)
        path = here.path / "config.yaml"
        path.write_text(path.read_text().replace("datafusion", engine))
    text = derivative(f'query: "SELECT event_time, city FROM cities"{more}', engine=engine)
    if said is None:
        here.add(text)
        return
    with pytest.raises(TransformError, match=said) as added:
        here.add(text)
    assert "write the query for odfchain-spark" in str(added.value.hint)
    assert "temporalTables" in said or f"transform.engines.{engine}" in str(added.value.hint)
    (made,) = here.add(text, check=False)
    with pytest.raises(TransformError, match=said):
        made.pull()


def test_a_replay_without_the_engine_says_the_same(here: Workspace) -> None:
    config = here.path / "config.yaml"
    with plain_engine() as address:
        settings(here, f"'{address}'")
        config.write_text(config.read_text().replace("datafusion", "flink"))
        (made,) = here.add(derivative(json.dumps(GOOD), engine="flink"))
        made.pull(system_time=MADE)
    config.unlink()
    report = made.verify(replay=True)
    assert report.verdict == "incomplete"
    assert report.unchecked[0].message == "the transform is for the engine `flink`, which is not this one"
