"""Images for tests: a root folder with an engine and no more than it loads, imported into a store of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

from odfchain.odf.flatbuffers import schema_path
from tests.kit import scripted_engine

# it answers one call, so that modules are loaded that calls need
_MODULES = """\
import json, sys
from tests.kit.scripted_engine import *
from odfchain.odf import engine_messages as m
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.odf.events import DatasetVocabulary
step = SqlQueryStep(alias=None, query='{}')
request = m.TransformRequest(
    dataset_id=DatasetId(bytes(32)), dataset_alias=DatasetAlias.parse("a"), system_time=Timestamp.now(),
    vocab=DatasetVocabulary(), transform=TransformSql(engine="x", queries=(step,)), query_inputs=(),
    next_offset=0, new_checkpoint_path="/a", new_data_path="/b")
server, port = started("127.0.0.1:0")
call = load_grpc().insecure_channel(f"127.0.0.1:{port}").unary_stream(EXECUTE_TRANSFORM.path)
list(call(EXECUTE_TRANSFORM.pack_request(request)))
import encodings.idna, encodings.ascii, encodings.latin_1
server.stop(None).wait()
print(json.dumps([m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)]))
"""
HERE = Path(__file__).parents[2]
PATHS = {"PYTHONPATH": f"{HERE}:{sysconfig.get_path('purelib')}"}


def command(folder: Path) -> str:
    """The program for images that lie in `folder`, as the environment names it."""
    runtime = "--runtime runc --cgroup-manager cgroupfs" if shutil.which("runc") else ""
    return f"podman --root {folder}/store --runroot {folder}/run {runtime}"


@contextlib.contextmanager
def plain_engine() -> Iterator[str]:
    """The address of the same engine in a plain process."""
    env = os.environ | PATHS
    with subprocess.Popen(engine_entry("127.0.0.1:0"), stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def root_files() -> Iterator[Path]:
    """Files of this machine that the engine needs, under the paths that they have here."""
    env = PATHS | {"PATH": "/usr/bin:/bin", "GRPC_VERBOSITY": "NONE"}
    said = subprocess.run(
        [sys._base_executable, "-c", _MODULES], env=env, check=True, capture_output=True, text=True
    )
    found = [Path(name) for name in json.loads(said.stdout)]
    python = Path(sys._base_executable).resolve()
    native = [python, *(path for path in found if path.suffix == ".so")]
    linked = subprocess.run(["ldd", *map(str, native)], check=True, capture_output=True, text=True).stdout
    # the paths that the loader looks at, which may be links
    libraries = {Path(name) for name in re.findall(r"(/\S+\.so[^\s:]*) \(", linked)}
    standard = Path(sysconfig.get_path("stdlib"))
    yield from {
        *found,
        python,
        *libraries,
        standard / "os.py",
        schema_path("odf.fbs"),
        Path(scripted_engine.__file__),
    }


def import_image(program: str, name: str, entry: list[str]) -> str:
    """An image with the engine, started by `entry`; its digest."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(root_files()):
            tar.add(path.resolve(), str(path).lstrip("/"), recursive=False)
        for folder in ("tmp", "opt/engine/in", "opt/engine/out", "proc", "sys", "dev", "etc"):
            made = tarfile.TarInfo(folder)
            made.type, made.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(made)
    changes = ["--change", f"ENV PYTHONPATH={PATHS['PYTHONPATH']}", "--change", f"CMD {json.dumps(entry)}"]
    run = [*shlex.split(program), "import", *changes, "-", name]
    subprocess.run(run, input=buffer.getvalue(), check=True, capture_output=True)
    inspect = [*shlex.split(program), "image", "inspect", "--format", "{{.Digest}}", name]
    return subprocess.run(inspect, check=True, capture_output=True, text=True).stdout.strip()


def engine_entry(address: str = "0.0.0.0:2884") -> list[str]:
    """The command that starts the engine, here and in an image."""
    return [str(Path(sys._base_executable).resolve()), "-m", "tests.kit.scripted_engine", address]
