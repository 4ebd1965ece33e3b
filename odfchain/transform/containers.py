"""Engines in images: each step has a fresh container, which podman or docker runs, without any way out.

It has no network but its own loopback, a read-only root, no capabilities, and bounds on memory, processes,
log and time. It sees one folder of what is read and an empty one to write in. A relay of ours that enters its
network carries the call between the engine's port and a Unix socket. What was written is looked at when the
container is gone. Source: specification "Engine Contract"; RFC-062.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import shlex
import shutil
import socket as sockets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import EngineError
from odfchain.text import one_line
from odfchain.transform.engine_protocol import CONNECT_SECONDS, RemoteEngine
from odfchain.transform.engines import Executed, check_version

if TYPE_CHECKING:
    from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest
    from odfchain.odf.schema import DataSchema
    from odfchain.odf.sources import Transform
    from odfchain.progress import Progress
    from odfchain.workspace.config import TransformConfig

PROGRAM_VARIABLE = "ODFCHAIN_CONTAINERS"
"""The environment's word for the program, with its options: `podman --runtime runc`."""

IN, OUT = "/opt/engine/in", "/opt/engine/out"
_OUTPUTS = ("data", "checkpoint")
_LABEL = "odfchain.folder"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REFERENCE = re.compile(
    rf"(\w[\w.-]*(?::\d+(?=/))?(?:/[\w.-]+)*)(?::[\w.-]+)?(?:@({_DIGEST.pattern}))?", re.ASCII
)


def program() -> list[str]:
    """The command that runs containers: what the environment names, else podman, else docker."""
    named = shlex.split(os.environ.get(PROGRAM_VARIABLE, ""))
    command = named or [name for name in ("podman", "docker") if shutil.which(name)][:1]
    if command and shutil.which(command[0]):
        return command
    missing = f"{named[0]} is not here" if named else "neither is here"
    hint = f"apt-get install podman, or {PROGRAM_VARIABLE}=PROGRAM where it has another name"
    raise EngineError(f"engines in images need podman or docker, and {missing}", hint=hint)


def _run(command: Sequence[str], *arguments: str, check: bool = True) -> str:
    # what it says
    what = f"{command[0]} {arguments[0]} failed: "
    try:
        done = subprocess.run(
            [*command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60,
            start_new_session=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(what + one_line(str(error))) from error
    if check and done.returncode:
        raise EngineError(what + one_line((done.stderr.strip() or "it said nothing").splitlines()[-1], 500))
    return (done.stdout if check else done.stdout or done.stderr).strip()


def remove_leftovers(command: Sequence[str]) -> None:
    """Containers of processes that died are removed: their folder in the staging area has gone."""
    folder = f'{{{{index .Config.Labels "{_LABEL}"}}}}'
    ours = ("--filter", "name=^odfchain-", "--filter", f"label={_LABEL}")
    for name in _run(command, "ps", "-a", *ours, "--format", "{{.Names}}").split():
        owner = _run(command, "inspect", "--format", folder, name, check=False)
        if owner.startswith("/") and not Path(owner).exists():
            _run(command, "rm", "-fv", name, check=False)


def chosen_image(command: Sequence[str], reference: str, recorded: str | None) -> tuple[str, str]:
    """(the id of the image for a transform with this version, its digest); an error says what brings it."""
    parsed = _REFERENCE.fullmatch(reference)
    if parsed is None:
        raise EngineError(f"{reference!r} is not the name of an image", hint="NAME:TAG or NAME@sha256:…")
    wanted = recorded if recorded and _DIGEST.fullmatch(recorded) else parsed[2]
    name = f"{parsed[1]}@{wanted}" if wanted else reference
    for each in (reference, name):  # another tag may have it
        for found in json.loads(_run(command, "image", "inspect", each, check=False)):
            known = [text.rpartition("@")[2] for text in (found.get("Digest"), *found["RepoDigests"]) if text]
            if wanted in known or (known and not wanted):
                return found["Id"], wanted or known[0]
            if not known:
                hint = "push it to a registry and pull it from there, or use podman, which gives each one"
                raise EngineError(f"the image {each} has no digest that could be recorded", hint=hint)
    message = f"the image {name} is not here, and none is fetched unasked"
    raise EngineError(message, hint=f"{shlex.join(command)} pull {name}")


def run_options(folder: Path, memory_mib: int, seconds: float | None, *, podman: bool) -> list[str]:
    """The arguments that start a container with its bounds; `folder` has `in` and `out`."""
    if ":" in str(folder):
        raise EngineError(f"{folder} cannot be shown to a container", hint="use a path without a colon")

    def limit(name: str, kind: int, most: int) -> str:
        hard = resource.getrlimit(kind)[1]
        most = most if hard < 0 else min(most, hard)
        return f"--ulimit={name}={most}:{most}"

    temporary = "/tmp:rw,nosuid,nodev,size=1g,mode=1777"  # noqa: S108 - one of its own, in its memory
    options = [
        "--detach", "--pull", "never", "--stop-timeout", "0",
        "--network", "none", "--read-only", "--cap-drop", "all", "--user", "0:0",
        "--security-opt", "no-new-privileges", "--security-opt", "label=disable",
        "--volume", f"{folder}/in:{IN}:ro", "--volume", f"{folder}/out:{OUT}",
        "--tmpfs", temporary, "--shm-size", "64m",
        "--pids-limit", "512", "--cpus", str(min(4, os.cpu_count() or 1)),
        limit("nofile", resource.RLIMIT_NOFILE, 4_096), limit("nproc", resource.RLIMIT_NPROC, 4_096),
        limit("fsize", resource.RLIMIT_FSIZE, 64 << 30),
        "--log-driver", "k8s-file" if podman else "json-file", "--log-opt", "max-size=1m",
    ]  # fmt: skip
    if memory_mib:
        options += ["--memory", f"{memory_mib}m", "--memory-swap", f"{memory_mib}m"]
        options.append(limit("data", resource.RLIMIT_DATA, memory_mib << 20))  # where there is no cgroup
    if podman:
        options += ["--read-only-tmpfs=false", "--http-proxy=false", "--image-volume", "ignore"]
        if seconds is not None:  # also where nobody is left to remove it
            options += ["--timeout", str(int(CONNECT_SECONDS + seconds) + 1)]
    return options


def shown_in(folder: Path) -> Callable[[str], str]:
    """What a container with `folder` calls a file; one from elsewhere gets a name in there."""
    names = {f"{folder}/out/{name}": f"{OUT}/{name}" for name in _OUTPUTS}

    def shown(path: str) -> str:
        if path and path not in names:
            name = Path(path).name
            name = name if f"{IN}/{name}" not in names.values() else f"{len(names)}-{name}"
            try:
                os.link(os.path.realpath(path), folder / "in" / name)
            except OSError:  # another file system
                shutil.copyfile(path, folder / "in" / name)
            names[path] = f"{IN}/{name}"
        return names.get(path, path)

    return shown


_RELAY = """\
import asyncio, os, sys
if os.stat("/proc/self/ns/net").st_ino == int(sys.argv[2]):
    sys.exit("it is that of this machine")
async def carry(source, target):
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    target.close()
async def relay(reader, writer):
    try:
        inside, to = await asyncio.open_connection("127.0.0.1", 2884)
        await asyncio.gather(carry(reader, to), carry(inside, writer))
    except OSError:
        writer.close()
async def main():
    asyncio.get_running_loop().add_reader(0, sys.exit)
    await (await asyncio.start_unix_server(relay, sys.argv[1])).serve_forever()
asyncio.run(main())
"""
"""2884 is the port of images. A socket in a folder belongs to no network. It ends with its standard input."""


def _helper(*command: str, cwd: str) -> subprocess.Popen[bytes]:
    # its standard input ends with this process, however that ends; Ctrl-C does not reach it
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd=cwd)


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path, options: Sequence[str]) -> Iterator[str]:
    """The address of the engine in a new container, which is gone afterwards, also after SIGKILL."""
    name = f"odfchain-{os.urandom(8).hex()}"
    start = shlex.join([*command, "run", "--name", name, "--label", f"{_LABEL}={folder}", *options])
    # in this order however this process ends: what is removed while it is started goes on for ever
    remove = shlex.join([*command, "rm", "-fv", name])
    keep = f"trap '' PIPE; {start} </dev/null || echo; read -r nothing; {remove} >/dev/null 2>&1"
    with (
        tempfile.TemporaryDirectory(prefix="odfchain-") as short,
        _helper("sh", "-c", keep, cwd=short) as keeper,
    ):
        socket, own = f"{short}/engine.sock", str(Path("/proc/self/ns/net").stat().st_ino)
        if not (keeper.stdout.readline().strip() if keeper.stdout else b""):
            said = keeper.communicate()[1].decode("utf-8", "replace").strip().splitlines()
            raise EngineError(f"{command[0]} run failed: {one_line(said[0] if said else 'no word', 500)}")
        try:
            process = _run(command, "inspect", "--format", "{{.State.Pid}}", name)
            user = ["--user", "--preserve-credentials"] if os.getuid() else []
            enter = ("nsenter", "--net", *user, "--target", process)
            with _helper(*enter, sys.executable, "-I", "-c", _RELAY, socket, own, cwd="/") as relay:
                end = time.monotonic() + CONNECT_SECONDS
                while not _answers(socket):
                    _check_coming(command, name, relay, late=time.monotonic() > end)
                yield f"unix:{socket}"
        except EngineError as error:
            if log := _run(command, "logs", "--tail", "5", name, check=False):
                error.add_note(f"its log ends with: {one_line(log, 2_000)}")
            raise


def _answers(socket: str) -> bool:
    # the engine is up when a connection is not closed at once
    with contextlib.suppress(OSError), sockets.socket(sockets.AF_UNIX) as probe:
        probe.connect(socket)
        return bool(select.select([probe], [], [], 1)[0] == [] or probe.recv(1))
    return False


def _check_coming(command: Sequence[str], name: str, relay: subprocess.Popen[bytes], *, late: bool) -> None:
    if relay.poll() is not None and relay.stderr is not None:
        why = one_line(relay.stderr.read().decode("utf-8", "replace"))
        hint = "use podman as this user, or docker as root; or run the engine and give its address"
        raise EngineError(f"the container's network cannot be entered: {why}", hint=hint)
    if _run(command, "inspect", "--format", "{{.State.Running}}", name, check=False) != "true":
        raise EngineError("the engine in the container ended before it answered")
    if late:
        raise EngineError(f"the engine in the container did not come up within {CONNECT_SECONDS:g} s")


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """The engine in the image that the settings name; each call has a container of its own."""

    transform: Transform
    config: TransformConfig
    reference: str

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        """Execute the next step; where the engine says no version, it is the image's digest."""
        with self._called((request.new_data_path, request.new_checkpoint_path), progress) as call:
            engine, (data, checkpoint), digest = call
            inside = replace(request, new_data_path=data, new_checkpoint_path=checkpoint)
            done = engine.execute(inside, schema=schema, progress=progress)
            self._accept(done.version or digest)
        return replace(done, version=done.version or digest)

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Run a query over raw files, as `RemoteEngine.query`."""
        with self._called((request.output_data_path,), progress) as (engine, (data, *_), _):
            return engine.query(replace(request, output_data_path=data), progress=progress)

    @contextlib.contextmanager
    def _called(
        self, outputs: Sequence[str], progress: Progress
    ) -> Iterator[tuple[RemoteEngine, list[str], str]]:
        # the engine, where it writes, the image's digest; afterwards files have the names that are asked for
        command, config, recorded = program(), self.config, self.transform.version
        remove_leftovers(command)
        wanted = None if recorded in config.compatible_versions else recorded
        image, digest = chosen_image(command, self.reference, wanted)
        seconds = config.timeout_seconds or config.isolated_seconds or None
        with tempfile.TemporaryDirectory(dir=Path(outputs[0]).absolute().parent) as given:
            folder, written = Path(given), [Path(given, "out", name) for name in _OUTPUTS]
            (folder / "in").mkdir()
            (folder / "out").mkdir()
            podman = Path(command[0]).name == "podman"
            options = [*run_options(folder, config.isolated_memory_mib, seconds, podman=podman), image]
            progress.phase(f"Starting {self.reference}")
            try:
                with running(command, folder, options) as address:
                    engine = RemoteEngine(
                        address, deadline=seconds, accept=self._accept, where=f"in {self.reference}",
                        shown=shown_in(folder),
                    )  # fmt: skip
                    yield engine, [str(path) for path in written], digest
                for path, name in zip(written, outputs, strict=False):
                    engine.check_file(str(path), path.name, optional=True)  # nobody can change it any more
                    if path.exists():
                        path.chmod(0o644)
                        path.replace(name)
            finally:  # Python gives up on folders within a thousand others
                subprocess.run(["rm", "-rf", "--", str(folder / "out")], check=False)

    def _accept(self, version: str) -> None:
        if not _DIGEST.fullmatch(self.transform.version or ""):  # else the image is the one that is asked for
            check_version(self.transform, self.config, version, f"the engine in {self.reference}")
