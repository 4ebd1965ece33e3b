"""Sources that are programs in an OCI container: standard output is the data, files are the state.

The container gets the remembered state in `ODF_ETAG` and `ODF_LAST_MODIFIED` (empty where there is none)
and how much to bring in `ODF_BATCH_SIZE`. It writes the new state to the files that `ODF_NEW_ETAG_PATH` and
`ODF_NEW_LAST_MODIFIED_PATH` name, and makes the file of `ODF_NEW_HAS_MORE_DATA_PATH` when there is more.
`command` is the entrypoint as a list, not a text for a shell.
Source: specification "FetchStep::Container"; the contract is the reference implementation's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import stat
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from odfchain.errors import FetchError, IngestError, InvalidIdError
from odfchain.ingest import fetching
from odfchain.ingest.prepare import TAIL_BYTES, Stage, pump
from odfchain.odf.events import SourceState
from odfchain.odf.sources import FetchStepContainer
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import remove_quietly, storage_errors
from odfchain.storage.locations import redact
from odfchain.storage.template import expand, how_to_define
from odfchain.text import one_line

# One container: output to a file, its last lines for error messages, always removed.

_REMOVE_SECONDS = 60.0


def run_container(command: list[str], path: Path, context: fetching.FetchContext) -> int:
    """Run the container to its end; returns how many bytes it has printed to the new file `path`.

    `command` runs it under the name after `--name`. When anything fails, the container is ended and removed.
    """
    what = context.name
    context.progress.phase(f"running {what}")
    with storage_errors(path):
        output = path.open("xb")
    size, deadline = 0, time.monotonic() + context.limits.deadline

    def take(data: bytes) -> None:
        nonlocal size
        size += len(data)
        if size > context.limits.max_bytes:
            raise FetchError(f"{what}: prints more than {context.limits.max_bytes:,} bytes (limit max_bytes)")
        _write(output, data, path)
        context.progress.advance(len(data))

    def look() -> None:
        if time.monotonic() > deadline:
            message = f"{what}: has not ended after {context.limits.deadline:g} s (the deadline of a fetch)"
            raise FetchError(message)

    with output, _running(command, what) as container:
        pump([container], take, look)
        if code := container.code:
            how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
            said = redact(one_line(" | ".join(container.last_words()), TAIL_BYTES), context.secrets)
            raise FetchError(f"{what}: {how}" + (f": {said}" if said else ""))
        with storage_errors(path):
            output.close()
    return size


def _write(output: BinaryIO, data: bytes, path: Path) -> None:
    with storage_errors(path):
        output.write(data)


@contextlib.contextmanager
def _running(command: list[str], what: str) -> Iterator[Stage]:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for us: we remove the container
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FetchError(f"{what}: {command[0]} cannot be started: {reason}") from error
    container = Stage(process, command)
    try:
        yield container
    except BaseException:
        if not container.ended():  # first the program, so that it starts nothing any more
            container.kill()
        container.close()
        if process.returncode < 0:  # the container may run under another process
            _remove(command[0], command[command.index("--name") + 1])
        raise
    container.close()


def _remove(runtime: str, name: str) -> None:
    # runs after another error, so failures are ignored
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [runtime, "rm", "--force", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REMOVE_SECONDS,
            start_new_session=True,
            check=False,
        )


RUNTIMES = ("podman", "docker")
"""Programs that run containers; the first that is on the PATH is taken."""

OUT = "/opt/odf/out"
"""Folder in the container for the files of the contract."""

DEFAULT_BATCH = "10000"
_ETAG_FILE, _TIME_FILE, _MORE_FILE = "new-etag", "new-last-modified", "new-has-more-data"
_STATE_BYTES = 64 << 10
_BATCH = re.compile("0*[1-9][0-9]{0,17}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def fetch_container(step: FetchStepContainer, context: fetching.FetchContext) -> fetching.FetchResult:
    """Run a container: its output and the state it leaves, or `UP_TO_DATE`; the container is removed."""
    what = f"container {one_line(step.image)}"
    given = fetching.container_variables(step)
    # the container may repeat them in its output
    secrets = frozenset({context.variables.get(name, "") for name in given} - {""})
    context = dataclasses.replace(context, name=what, secrets=secrets)
    runtime = next(filter(None, map(shutil.which, RUNTIMES)), None)
    if runtime is None:
        message = "this source runs a container, and neither podman nor docker is installed"
        raise FetchError(message, hint="install podman, or docker")
    image = expand(step.image, context.variables, where=what)
    if not image or image.startswith("-") or not image.isprintable() or " " in image:
        raise FetchError(f"{what}: is not the name of an image")
    context.check_container(given)
    text = _variables(step, context)
    args = [expand(arg, context.variables, where=f"{what}: args") for arg in step.args or ()]
    name = f"odfchain-{uuid.uuid4().hex}"
    private = context.folder / name
    command = [
        *(runtime, "run", "--rm", "--name", name, "-v", f"{private}/out:{OUT}:Z"),
        # values may be secret: a file, unlike an argument, is not shown to every user of this machine
        *("--env-file", f"{private}/variables"),
        *(("--entrypoint", step.command[0]) if step.command else ()),
        image,
        *(step.command or ())[1:],
        *args,
    ]
    path = context.folder / f"{name}.data"
    try:
        _make_private(private, text)
        result = _result(private / "out", path, run_container(command, path, context), context)
    except BaseException:
        remove_quietly(path)
        raise
    finally:
        shutil.rmtree(private, ignore_errors=True)
    if result is fetching.UP_TO_DATE:
        remove_quietly(path)
    return result


def _make_private(folder: Path, variables: str) -> None:
    with storage_errors(folder):
        # the process in the container may have any user id; what is above `out` is ours alone
        folder.mkdir(mode=0o700)
        (folder / "out").mkdir()
        (folder / "out").chmod(0o777)
        (folder / "variables").touch(mode=0o600)
        (folder / "variables").write_text(variables, encoding="utf-8", errors="surrogateescape")


def _variables(step: FetchStepContainer, context: fetching.FetchContext) -> str:
    # variables of the contract win over those of the manifest
    what, previous = context.name, context.previous
    contract = {
        "ODF_ETAG": previous.value if previous and previous.kind == fetching.ETAG else "",
        "ODF_LAST_MODIFIED": previous.value if previous and previous.kind == fetching.LAST_MODIFIED else "",
        "ODF_NEW_ETAG_PATH": f"{OUT}/{_ETAG_FILE}",
        "ODF_NEW_LAST_MODIFIED_PATH": f"{OUT}/{_TIME_FILE}",
        "ODF_NEW_HAS_MORE_DATA_PATH": f"{OUT}/{_MORE_FILE}",
    }
    own = {"ODF_BATCH_SIZE": DEFAULT_BATCH}
    for variable in step.env or ():
        where = f"{what}: env {one_line(variable.name)}"
        if not _NAME.fullmatch(variable.name):
            raise FetchError(f"{where}: is not the name of a variable")
        if variable.value is not None:
            own[variable.name] = expand(variable.value, context.variables, where=where)
        elif variable.name in context.variables:
            own[variable.name] = context.variables[variable.name]
        else:
            raise IngestError(f"{where}: has no value", hint=how_to_define(variable.name))
    if not _BATCH.fullmatch(own["ODF_BATCH_SIZE"]):
        written = [v.value for v in step.env or () if v.name == "ODF_BATCH_SIZE"][-1]
        given = "its value" if written is None else repr(one_line(written))  # a value may be secret
        hint = f"it is how many records the container brings at a time; without it it is {DEFAULT_BATCH}"
        raise FetchError(f"{what}: env ODF_BATCH_SIZE: {given} is not a positive whole number", hint=hint)
    for key, value in (own | contract).items():
        if re.search(r"[\r\n\0]", value):
            raise FetchError(
                f"{what}: the value of {key} has a line break; container variables cannot contain newlines"
            )
    return "".join(f"{key}={value}\n" for key, value in (own | contract).items())


# --- what it leaves ----------------------------------------------------------------------------------


def _result(out: Path, path: Path, size: int, context: fetching.FetchContext) -> fetching.FetchResult:
    what = context.name
    state = _new_state(out, what)
    has_more = os.path.lexists(out / _MORE_FILE)
    if context.is_known(state):
        if size:
            hint = "the container must write a new state whenever it prints data"
            raise FetchError(f"{what}: printed {size:,} bytes and left the state as it was", hint=hint)
        return fetching.UP_TO_DATE
    if state is None and has_more:
        hint = f"the container must write its state to {OUT}/{_ETAG_FILE} or {OUT}/{_TIME_FILE}"
        raise FetchError(f"{what}: says that there is more, and not from where on", hint=hint)
    if state is None and context.previous is not None and not size:
        return fetching.UP_TO_DATE  # it says nothing, so what is remembered stays
    return fetching.Fetched(path=path, name=what, state=state, has_more=has_more)


def _new_state(out: Path, what: str) -> SourceState | None:
    tag = _state_text(out / _ETAG_FILE, what)
    if tag is not None:
        return fetching.etag_state(tag)
    text = _state_text(out / _TIME_FILE, what)
    if text is None:
        return None
    try:
        return fetching.last_modified_state(Timestamp.parse(text))
    except InvalidIdError as error:
        raise FetchError(f"{what}: {_TIME_FILE}: {error}", hint=error.hint) from None


def _state_text(path: Path, what: str) -> str | None:
    # None when the container has written no state
    try:
        # the container makes these files: a link could name any file of ours, a FIFO would never end
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FetchError(f"{what}: {path.name} cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FetchError(f"{what}: {path.name} is not a regular file")
        data = os.read(fd, _STATE_BYTES + 1)
    except OSError as error:
        raise FetchError(f"{what}: {path.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    if len(data) > _STATE_BYTES:
        raise FetchError(f"{what}: {path.name} is larger than {_STATE_BYTES:,} bytes")
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        raise FetchError(f"{what}: {path.name} is not UTF-8") from None
    if re.search(r"[\r\n\0]", text):
        raise FetchError(f"{what}: {path.name} has more than one line")
    return text
