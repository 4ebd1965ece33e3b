"""Input and output of fetchers.

A fetcher is a function of a fetch step and a `FetchContext`. It compares the source with the state that the
chain remembers and answers `UP_TO_DATE`, or brings new bytes together with the state that is to be remembered
once they are committed. State and data travel together, so that neither is committed without the other.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, TypeAlias
from urllib.parse import quote, urlsplit

from odfchain.errors import FetchError, InvalidIdError
from odfchain.limits import FetchLimits
from odfchain.odf.events import MetadataEvent, SetPollingSource, SourceState
from odfchain.odf.sources import FetchStepContainer, FetchStepUrl, PrepStepPipe
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, Progress
from odfchain.storage.fsio import remove_quietly, storage_errors
from odfchain.storage.http_rules import (
    SIZE_HINT,
    ContentRange,
    Deadline,
    Headers,
    TransientError,
    range_validator,
)
from odfchain.storage.template import has_templates, mask_templates, names_in, redact
from odfchain.storage.urls import parse_target
from odfchain.text import one_line

ETAG = "odf/etag"
"""Kind of a source state that is an opaque text."""

LAST_MODIFIED = "odf/last-modified"
"""Kind of a source state that is a time in RFC 3339."""


class _UpToDate(Enum):
    UP_TO_DATE = "up to date"


UP_TO_DATE = _UpToDate.UP_TO_DATE
"""The source has nothing that was not fetched before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """New bytes of a source."""

    path: Path
    """A file with the bytes: below the context's folder, or the user's own file (never to be changed)."""
    name: str
    """The input's name in messages: a URL without secrets, or a path."""
    state: SourceState | None
    """The state to be recorded with the data; None when the source gives none."""
    event_time: Timestamp | None = None
    """Event time of rows that carry none; None means the system time of the run."""
    has_more: bool = False
    """True if fetching again with `state` will bring more."""
    advances: bool = False
    """True if the watermark follows the event time, whether or not a row that is new has it."""


FetchResult: TypeAlias = Fetched | Literal[_UpToDate.UP_TO_DATE]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchContext:
    """Context of a fetcher."""

    folder: Path
    """A private folder for the bytes; removed at the end of the run."""
    previous: SourceState | None
    """The state of this source that the chain remembers."""
    previous_time: Timestamp | None = None
    """When that state was recorded."""
    recorded: Callable[[], Iterable[SourceState]] = tuple
    """Every state of this source that the chain remembers, in any order; found when asked for."""
    system_time: Timestamp
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values for `${{ env.NAME }}`; nothing of the process's environment but what the user named."""
    bindings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The hosts that a variable may be sent to, for those that are bound (see `bindings`)."""
    limits: FetchLimits = field(default_factory=FetchLimits)
    progress: Progress = SILENT
    expect_rows: Callable[[], None] = lambda: None
    """Called when it is certain that there are new bytes, before they arrive; perhaps more than once."""


def etag_state(value: str) -> SourceState:
    """The state of a polling source that is an opaque text."""
    return SourceState(source_name=POLLING_SOURCE, kind=ETAG, value=value)


def last_modified_state(time: Timestamp) -> SourceState:
    """The state of a polling source that is a time."""
    return SourceState(source_name=POLLING_SOURCE, kind=LAST_MODIFIED, value=str(time))


# The recorded state of a source; an invalid one counts as none.


def _time(state: SourceState) -> Timestamp | None:
    if state.kind != LAST_MODIFIED:
        return None
    try:
        return Timestamp.parse(state.value)
    except InvalidIdError:
        return None


def previous_tag(context: FetchContext) -> str | None:
    """The remembered opaque text, if that is what is remembered."""
    previous = context.previous
    return previous.value if previous is not None and previous.kind == ETAG and previous.value else None


def previous_modified(context: FetchContext) -> Timestamp | None:
    """The remembered time, if that is what is remembered."""
    return None if context.previous is None else _time(context.previous)


def tell_if_new(state: SourceState | None, context: FetchContext) -> None:
    """For bytes that are about to come, unless only they themselves can tell whether they are new."""
    if context.previous is None or (state is not None and not is_known(state, context)):
        context.expect_rows()


def is_known(state: SourceState | None, context: FetchContext) -> bool:
    """True if the state is the remembered one; times are compared as times, however they are spelled."""
    previous = context.previous
    if state is None or previous is None or state.kind != previous.kind:
        return False
    if state.kind == LAST_MODIFIED:
        time = _time(state)
        return time is not None and time == _time(previous)
    return state.value == previous.value


# Variables bound to hosts (`ingest.variables`): their values are sent to no other host, neither by a
# manifest's URL nor by a redirect that contains them (plain or percent-encoded), and to no container, which
# could send them anywhere.

_WITH_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]+)", re.ASCII)

Bindings = Mapping[str, tuple[str, ...]]
"""The hosts that a variable may be sent to, for the variables that are bound."""


def is_admitted(hosts: Iterable[str], host: str, port: int | None = None) -> bool:
    """True if a host is among those named; an entry with a port admits only that port of its host."""
    names = {_normal(host), f"{_normal(host)}:{port}"}
    return any(_normal(entry) in names for entry in hosts)


def _normal(entry: str) -> str:
    # brackets, so that an IPv6 address is not taken for a host with a port
    match = _WITH_PORT.fullmatch(entry)
    host, port = match.groups() if match else (entry, "")
    return f"[{host.strip('[]').rstrip('.').lower()}]{port}"


def check_host(
    names: Iterable[str], bindings: Bindings, host: str, port: int | None = None, *, where: str
) -> None:
    """The variables of these names may be sent to a host.

    Raises:
        FetchError: one is bound to others.
    """
    for name in sorted(names):
        hosts = bindings.get(name)
        if hosts is not None and not is_admitted(hosts, host, port):
            raise FetchError(
                f"{where}: the variable {name} may be sent to {_listed(hosts)} only, not to {one_line(host)}",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )


def check_redirect(
    values: Mapping[str, str], bindings: Bindings, host: str, port: int, target: str, *, where: str
) -> None:
    """Check that a redirect carries no value of the variables to a host that is not permitted.

    `values` are the variables that the first request was made of; `target` is the text of the redirect.

    Raises:
        FetchError: it does.
    """
    text = target.lower()  # names of hosts are compared, and asked for, in lower case
    for name, value in sorted(values.items()):
        hosts = bindings.get(name)
        if not value or hosts is None or is_admitted(hosts, host, port):
            continue
        if redact(text, _cased(value)) != text:
            raise FetchError(
                f"{where}: redirected with the value of the variable {name}, which may be sent to "
                f"{_listed(hosts)} only, to {one_line(redact(host.lower(), _cased(value)))}",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )


def check_container(names: Iterable[str], bindings: Bindings, *, where: str) -> None:
    """Check that no bound variable is given to a container.

    Raises:
        FetchError: one would be.
    """
    for name in sorted(names):
        if name in bindings:
            raise FetchError(
                f"{where}: the variable {name} may be sent to {_listed(bindings[name])} only, and a "
                "container could send it anywhere",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )


def _cased(value: str) -> list[str]:
    return [form.lower() for form in (value, quote(value), quote(value, safe=""))]


def _listed(hosts: tuple[str, ...]) -> str:
    return one_line(", ".join(hosts)) or "no host"


# Side effects of a definition: commands, containers, and variables that are sent. A manifest may be
# untrusted, so they are shown before it is added.

_AUTHORITY = re.compile(r"(?P<scheme>[^:/?#]+)://(?P<authority>[^/?#\\]*)")


class EffectKind(Enum):
    """Kinds of effects that need permission."""

    COMMAND = "command"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that ingestion does."""

    kind: EffectKind
    text: str
    """The effect in the manifest's words: not safe to be printed as it is."""
    host: str = ""
    """The host of variables; as written where it contains templates."""
    variables: tuple[str, ...] = ()
    port: int | None = None


def effects_of(events: Iterable[MetadataEvent]) -> tuple[Effect, ...]:
    """The effects of the polling sources among some events, in their order."""
    return tuple(
        effect for event in events if isinstance(event, SetPollingSource) for effect in _effects(event)
    )


def _effects(source: SetPollingSource) -> Iterator[Effect]:
    match source.fetch:
        case FetchStepContainer() as step:
            yield _container(step)
        case FetchStepUrl() as step:
            yield from _sent(step)
    for prep in source.prepare or ():
        if isinstance(prep, PrepStepPipe):
            yield Effect(EffectKind.COMMAND, f"runs the command: {shlex.join(prep.command)}")


def _container(step: FetchStepContainer) -> Effect:
    own = [v.value for v in step.env or () if v.value is not None]
    names = names_in([step.image, *(step.args or ()), *own]) | {
        v.name for v in step.env or () if v.value is None
    }
    text = f"runs the container image: {step.image}"
    if command := (*(step.command or ()), *(step.args or ())):
        text += f" with {shlex.join(command)}"
    if names:
        text += f", and gives it the variables {', '.join(sorted(names))}"
    return Effect(EffectKind.COMMAND, text, variables=tuple(sorted(names)))


def _sent(step: FetchStepUrl) -> Iterator[Effect]:
    names = names_in([step.url, *(h.value for h in step.headers or ())])
    host = host_as_written(step.url) if names else None
    if host is None:
        return
    what = "variable" if len(names) == 1 else "variables"
    yield Effect(
        EffectKind.VARIABLE,
        f"sends the {what} {', '.join(sorted(names))} to {host[0]}",
        host=host[0],
        variables=tuple(sorted(names)),
        port=host[1],
    )


def host_as_written(url: str) -> tuple[str, int | None] | None:
    """Host and port that a URL leads to, None for a file of this machine.

    Where templates are part of the host (or of what comes before it), the host is their text.
    """
    masked, texts = mask_templates(url)

    def unmasked(text: str) -> str:
        for mark, template in texts.items():
            text = text.replace(mark, template)
        return text

    match = _AUTHORITY.match(masked)
    if match is None:
        # `file:/x` is a file; whatever else begins with a template may become anything
        return (unmasked(masked), None) if has_templates(url) and not _is_file(masked) else None
    if _is_file(masked):
        return None
    user, _, rest = match["authority"].rpartition("@")
    marks_user = [mark for mark in texts if mark in user]
    # a default could end the host early: `https://${{ env.X || 'a@evil.example/' }}@good.example/`
    unclear = any("||" in texts[mark] for mark in marks_user)
    if unclear or any(mark in match["scheme"] + rest for mark in texts):
        return unmasked(match["authority"] if marks_user else rest or match[0]), None
    return _host(masked, match)


def _is_file(masked: str) -> bool:
    return masked[:5].lower() == "file:"


def _host(url: str, match: re.Match[str]) -> tuple[str, int | None]:
    # parsed as the fetchers do
    try:
        if match["scheme"].lower() in ("http", "https"):
            target = parse_target(url, name="")
            return target.host, target.port
        parts = urlsplit(url)
        return parts.hostname or match["authority"], parts.port
    except (FetchError, ValueError):
        return match["authority"], None


# A download that resumes after a broken connection if the server supports it.


class Download:
    """One body and its file; leaving the block without `finish` removes the file."""

    def __init__(self, context: FetchContext, deadline: Deadline, *, name: str) -> None:
        self.received = 0
        """Bytes in the file."""
        self.headers: Headers | None = None
        """The headers of the answer that the bytes in the file are from."""
        self._context = context
        self._deadline = deadline
        self._name = name
        self._path: Path | None = None
        self._stream: BinaryIO | None = None
        self._total: int | None = None
        self._finished = False

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # another error is on its way, or the file is complete
                self._stream.close()
        if self._path is not None and not self._finished:
            remove_quietly(self._path)

    @property
    def resumable(self) -> str | None:
        """The value of `If-Range`; None if the body must be requested from its beginning."""
        if self.headers is None or self.received == 0:
            return None
        return range_validator(self.headers)

    def begin(self, headers: Headers) -> None:
        """A whole body follows; whatever arrived before is dropped."""
        self.headers = headers
        self.received = 0
        self._total = headers.length()
        self._check_size(self._total or 0)
        with storage_errors(self._context.folder):
            if self._stream is None:
                fd, path = tempfile.mkstemp(prefix="fetched-", dir=self._context.folder)
                self._path = Path(path)
                self._stream = os.fdopen(fd, "wb")
            self._stream.seek(0)
            self._stream.truncate()
        self._context.progress.phase(f"Downloading {self._name}", self._total)
        encoding = (headers.get("content-encoding") or "identity").lower()
        if encoding != "identity":
            self._context.progress.note(
                f"{self._name}: the server sends it encoded as {one_line(encoding)} though asked not to; "
                "it is taken as it is"
            )

    def resume(self, headers: Headers) -> None:
        """The rest of the body follows.

        Raises:
            TransientError: it is not the rest of the same body; the next attempt begins anew.
        """
        part = ContentRange.parse(headers.get("content-range"))
        tag = headers.get("etag")
        known = self.headers
        if (
            known is None
            or part is None
            or part.first != self.received
            or (self._total is None and part.total is None)  # nothing would tell where the body ends
            or (self._total is not None and part.total not in (None, self._total))
            or (tag is not None and tag != known.get("etag"))
        ):
            self.forget()
            raise TransientError("the server continued with something else than the rest of the body")
        self._total = self._total if part.total is None else part.total
        self._check_size(self._total or part.last + 1)

    def forget(self) -> None:
        """The next attempt begins anew."""
        self.headers = None
        self.received = 0

    def append(self, chunk: bytes | memoryview) -> None:
        """Some bytes of the body.

        Raises:
            FetchError: larger than allowed or announced, or time is up.
        """
        assert self._stream is not None  # noqa: S101 - begin comes first
        self._deadline.check()
        self._check_size(self.received + len(chunk))
        if self._total is not None and self.received + len(chunk) > self._total:
            raise FetchError(f"{self._name}: the body is longer than the announced {self._total:,} bytes")
        with storage_errors(self._context.folder):
            self._stream.write(chunk)
        self.received += len(chunk)
        self._context.progress.advance(len(chunk))

    def finish(self) -> Path:
        """The file with the whole body.

        Raises:
            TransientError: the body ended early.
        """
        assert self._stream is not None  # noqa: S101 - begin comes first
        assert self._path is not None  # noqa: S101
        if self._total is not None and self.received < self._total:
            raise TransientError(f"the body ended after {self.received:,} of {self._total:,} bytes")
        with storage_errors(self._context.folder):
            self._stream.close()
        self._finished = True
        return self._path

    def _check_size(self, size: int) -> None:
        allowed = self._context.limits.max_bytes
        if size > allowed:
            raise FetchError(f"{self._name}: larger than the allowed {allowed:,} bytes", hint=SIZE_HINT)
