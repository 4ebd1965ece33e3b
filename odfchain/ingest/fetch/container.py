"""Sources that are programs in an OCI container: standard output is the data, files are the state.

The container is told the remembered state in `ODF_ETAG` and `ODF_LAST_MODIFIED` (empty where there is none)
and how much to bring in `ODF_BATCH_SIZE`. It writes the new state to the files that `ODF_NEW_ETAG_PATH` and
`ODF_NEW_LAST_MODIFIED_PATH` name, and makes the file of `ODF_NEW_HAS_MORE_DATA_PATH` when there is more.
`command` is the entrypoint as a list, not a text for a shell.
Source: specification "FetchStep::Container"; the contract is the reference implementation's.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from pathlib import Path

from odfchain.errors import FetchError, InvalidIdError
from odfchain.ingest.fetch.bindings import check_container
from odfchain.ingest.fetch.container_run import run_container
from odfchain.ingest.fetch.fetcher import (
    ETAG,
    LAST_MODIFIED,
    UP_TO_DATE,
    FetchContext,
    Fetched,
    FetchResult,
    etag_state,
    last_modified_state,
)
from odfchain.ingest.fetch.remembered import is_known
from odfchain.model.events import SourceState
from odfchain.model.sources import FetchStepContainer
from odfchain.model.timestamp import Timestamp
from odfchain.net.template import expand, names_in
from odfchain.store.fsio import remove_quietly, storage_errors
from odfchain.text import one_line

RUNTIMES = ("podman", "docker")
"""Programs that run containers; the first that is on the PATH is taken."""

OUT = "/opt/odf/out"
"""Folder in the container for the files of the contract."""

DEFAULT_BATCH = "10000"
_ETAG_FILE, _TIME_FILE, _MORE_FILE = "new-etag", "new-last-modified", "new-has-more-data"
_STATE_BYTES = 64 << 10
_BATCH = re.compile("0*[1-9][0-9]{0,17}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def fetch_container(
    step: FetchStepContainer, context: FetchContext, *, runtime: Path | None = None
) -> FetchResult:
    """What the container prints, with the state it leaves, or `UP_TO_DATE`; no container survives.

    `runtime` is the program that runs containers (default: podman or docker, whichever is installed).

    Raises:
        FetchError: no runtime, a missing variable, a container that fails, breaks the contract, takes longer
            than the deadline or prints more than the limit.
    """
    what = f"container {one_line(step.image)}"
    runtime = runtime or _find_runtime()
    image = expand(step.image, context.variables, where=what)
    if not image or image.startswith("-") or not image.isprintable() or " " in image:
        raise FetchError(f"{what}: is not the name of an image")
    check_container(_given(step), context.bindings, where=what)
    text = _variables(step, context, what)
    args = [expand(arg, context.variables, where=f"{what}: args") for arg in step.args or ()]
    name = f"odfchain-{uuid.uuid4().hex}"
    private = context.folder / name
    command = [
        *(str(runtime), "run", "--rm", "--name", name, "-v", f"{private}/out:{OUT}:Z"),
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
        size = run_container(command, path, _secrets(step, context), context, what)
        result = _result(private / "out", path, size, context, what)
    except BaseException:
        remove_quietly(path)
        raise
    finally:
        shutil.rmtree(private, ignore_errors=True)
    if result is UP_TO_DATE:
        remove_quietly(path)
    return result


def _make_private(folder: Path, variables: str) -> None:
    """The folder that the container writes to, and its variables beside it."""
    with storage_errors(folder):
        # the process in the container may have any user id; what is above `out` is ours alone
        folder.mkdir(mode=0o700)
        (folder / "out").mkdir()
        (folder / "out").chmod(0o777)
        (folder / "variables").touch(mode=0o600)
        (folder / "variables").write_text(variables, encoding="utf-8", errors="surrogateescape")


def _find_runtime() -> Path:
    for name in RUNTIMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise FetchError(
        "this source runs a container, and neither podman nor docker is installed",
        hint="install podman, or docker",
    )


def _variables(step: FetchStepContainer, context: FetchContext, what: str) -> str:
    """The container's variables, one a line; those of the contract win over those of the manifest."""
    previous = context.previous
    contract = {
        "ODF_ETAG": previous.value if previous and previous.kind == ETAG else "",
        "ODF_LAST_MODIFIED": previous.value if previous and previous.kind == LAST_MODIFIED else "",
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
            raise FetchError(
                f"{where}: has no value",
                hint=f"define {variable.name} under ingest.variables in the workspace's configuration",
            )
    if not _BATCH.fullmatch(own["ODF_BATCH_SIZE"]):
        written = [v.value for v in step.env or () if v.name == "ODF_BATCH_SIZE"][-1]
        given = "its value" if written is None else repr(one_line(written))  # a value may be secret
        raise FetchError(
            f"{what}: env ODF_BATCH_SIZE: {given} is not a positive whole number",
            hint=f"it is how many records the container brings at a time; without it it is {DEFAULT_BATCH}",
        )
    for key, value in (own | contract).items():
        if re.search(r"[\r\n\0]", value):
            raise FetchError(f"{what}: the value of {key} has a line break, which containers cannot be told")
    return "".join(f"{key}={value}\n" for key, value in (own | contract).items())


def _given(step: FetchStepContainer) -> frozenset[str]:
    """The variables of the workspace that the container gets."""
    variables = step.env or ()
    texts = [step.image, *(step.args or ()), *(v.value for v in variables if v.value is not None)]
    return names_in(texts) | {v.name for v in variables if v.value is None}


def _secrets(step: FetchStepContainer, context: FetchContext) -> frozenset[str]:
    """Values of the workspace that the container was given: it may repeat them in what it says."""
    return frozenset({context.variables.get(name, "") for name in _given(step)} - {""})


# --- what it leaves ----------------------------------------------------------------------------------


def _result(out: Path, path: Path, size: int, context: FetchContext, what: str) -> FetchResult:
    state = _new_state(out, what)
    has_more = os.path.lexists(out / _MORE_FILE)
    if is_known(state, context):
        if size:
            raise FetchError(
                f"{what}: printed {size:,} bytes and left the state as it was",
                hint="the container must write a new state whenever it prints data",
            )
        return UP_TO_DATE
    if state is None and has_more:
        raise FetchError(
            f"{what}: says that there is more, and not from where on",
            hint=f"the container must write its state to {OUT}/{_ETAG_FILE} or {OUT}/{_TIME_FILE}",
        )
    if state is None and context.previous is not None and not size:
        return UP_TO_DATE  # it says nothing, so what is remembered stays
    return Fetched(path=path, name=what, state=state, has_more=has_more)


def _new_state(out: Path, what: str) -> SourceState | None:
    tag = _state_text(out / _ETAG_FILE, what)
    if tag is not None:
        return etag_state(tag)
    text = _state_text(out / _TIME_FILE, what)
    if text is None:
        return None
    try:
        return last_modified_state(Timestamp.parse(text))
    except InvalidIdError as error:
        raise FetchError(f"{what}: {_TIME_FILE}: {error}", hint=error.hint) from None


def _state_text(path: Path, what: str) -> str | None:
    """The text of a state file, without spaces around it; None when the container has not made it."""
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
