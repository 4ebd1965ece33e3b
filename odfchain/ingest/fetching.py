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
from pathlib import Path
from typing import BinaryIO, Final, NoReturn, TypeAlias

from odfchain.errors import FetchError, InvalidIdError
from odfchain.limits import FetchLimits
from odfchain.odf import sources as src
from odfchain.odf.events import MetadataEvent, SetPollingSource, SourceState
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, Progress
from odfchain.storage.fsio import remove_quietly, storage_errors
from odfchain.storage.http_rules import (
    SIZE_HINT,
    ContentRange,
    Deadline,
    Headers,
    Timing,
    TransientError,
    with_retries,
)
from odfchain.storage.locations import PORTS, Target, Url, redact, scheme_of, spellings
from odfchain.storage.template import has_templates, mask_templates, names_in
from odfchain.text import one_line

ETAG = "odf/etag"
"""Kind of a source state that is an opaque text."""
LAST_MODIFIED = "odf/last-modified"
"""Kind of a source state that is a time in RFC 3339."""
UP_TO_DATE: Final = None
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


FetchResult: TypeAlias = Fetched | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchContext:
    """Context of a fetcher."""

    name: str = ""
    """What messages call the source."""
    secrets: frozenset[str] = frozenset()
    """Values that no message may show."""
    folder: Path
    """A private folder for the bytes; removed at the end of the run."""
    previous: SourceState | None
    """The state of this source that the chain remembers."""
    previous_time: Timestamp | None = None
    """When that state was recorded."""
    recorded: Callable[[], Iterable[tuple[SourceState, Timestamp]]] = tuple
    """Every state of this source that the chain remembers, in any order; found when asked for."""
    system_time: Timestamp
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values for `${{ env.NAME }}`; nothing of the process's environment but what the user named."""
    bindings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The hosts that a variable may be sent to, for those that are bound."""
    limits: FetchLimits = field(default_factory=FetchLimits)
    timing: Timing = field(default_factory=Timing)
    progress: Progress = SILENT
    expect_rows: Callable[[], None] = lambda: None
    """Called when it is certain that there are new bytes, before they arrive; perhaps more than once."""

    @property
    def previous_tag(self) -> str | None:
        """The remembered opaque text, if that is what is remembered."""
        previous = self.previous
        return previous.value if previous is not None and previous.kind == ETAG and previous.value else None

    def is_known(self, state: SourceState | None) -> bool:
        """True if the state is the remembered one; times are compared as times, however they are spelled."""
        previous = self.previous
        if state is None or previous is None or state.kind != previous.kind:
            return False
        if state.kind == LAST_MODIFIED:
            time = remembered_time(state)
            return time is not None and time == remembered_time(previous)
        return state.value == previous.value

    def announce_if_new(self, state: SourceState | None) -> None:
        """For bytes that are about to come, unless only they themselves can tell whether they are new."""
        if self.previous is None or (state is not None and not self.is_known(state)):
            self.expect_rows()

    # Variables bound to hosts (`ingest.variables`): their values are sent to no other host, neither by a
    # manifest's URL nor by a redirect that contains them (plain or percent-encoded), and to no container,
    # which could send them anywhere.

    def check_host(self, variables: Iterable[str], host: str, port: int | None = None) -> None:
        """Check that these variables may be sent to a host."""
        for name, hosts in self._bound(variables):
            if not is_admitted(hosts, host, port):
                only = f"the variable {name} may be sent to {_listed(hosts)} only"
                self._refuse(name, f"{only}, not to {one_line(host)}")

    def check_redirect(self, variables: Mapping[str, str], host: str, port: int, target: str) -> None:
        """Check that a redirect (text `target`) carries no value of `variables` to a host not permitted."""
        text = target.lower()  # names of hosts are compared, and asked for, in lower case
        for name, hosts in self._bound(variables):
            value = variables[name]
            if value and not is_admitted(hosts, host, port) and redact(text, _cased(value)) != text:
                only = f"the variable {name}, which may be sent to {_listed(hosts)} only"
                shown = one_line(redact(host.lower(), _cased(value)))
                self._refuse(name, f"redirected with the value of {only}, to {shown}")

    def check_container(self, variables: Iterable[str]) -> None:
        """Check that no bound variable is given to a container."""
        for name, hosts in self._bound(variables):
            only = f"the variable {name} may be sent to {_listed(hosts)} only"
            self._refuse(name, f"{only}, and a container could send it anywhere")

    def _bound(self, variables: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        return ((name, self.bindings[name]) for name in sorted(variables) if name in self.bindings)

    def _refuse(self, name: str, problem: str) -> NoReturn:
        hint = f"ingest.variables.{name}.hosts in the workspace's configuration says so"
        raise FetchError(f"{self.name}: {problem}", hint=hint)


def etag_state(value: str) -> SourceState:
    """The state of a polling source that is an opaque text."""
    return SourceState(source_name=POLLING_SOURCE, kind=ETAG, value=value)


def last_modified_state(time: Timestamp) -> SourceState:
    """The state of a polling source that is a time."""
    return SourceState(source_name=POLLING_SOURCE, kind=LAST_MODIFIED, value=str(time))


def modified_time(info: os.stat_result, name: str) -> Timestamp:
    """When a file of this machine was modified."""
    try:
        return Timestamp.parse(str(Timestamp(info.st_mtime_ns)))
    except (ValueError, OverflowError, InvalidIdError):
        raise FetchError(f"{name}: its time of modification is out of range") from None


def remembered_time(state: SourceState | None) -> Timestamp | None:
    """The time that is remembered, if that is what is remembered; an invalid one counts as none."""
    if state is None or state.kind != LAST_MODIFIED:
        return None
    try:
        return Timestamp.parse(state.value)
    except InvalidIdError:
        return None


_WITH_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]+)", re.ASCII)


def is_admitted(hosts: Iterable[str], host: str, port: int | None = None) -> bool:
    """True if a host is among those named; an entry with a port admits only that port of its host."""
    names = {_normal(host), f"{_normal(host)}:{port}"}
    return any(_normal(entry) in names for entry in hosts)


def _normal(entry: str) -> str:
    # brackets, so that an IPv6 address is not taken for a host with a port
    match = _WITH_PORT.fullmatch(entry)
    host, port = match.groups() if match else (entry, "")
    return f"[{host.strip('[]').rstrip('.').lower()}]{port}"


def _cased(value: str) -> list[str]:
    return [form.lower() for form in spellings(value)]


def _listed(hosts: tuple[str, ...]) -> str:
    return one_line(", ".join(hosts)) or "no host"


# Side effects of a definition: commands, containers, and variables that are sent. A manifest may be
# untrusted, so they are shown before it is added.

_AUTHORITY = re.compile(r"(?P<scheme>[^:/?#]+)://(?P<authority>[^/?#\\]*)")


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that ingestion does and that needs permission."""

    is_command: bool
    """True if it runs a command or a container; otherwise it sends variables to a host."""
    text: str
    """The effect in the manifest's words: not safe to be printed as it is."""
    host: str = ""
    """The host of variables; as written where it contains templates."""
    variables: tuple[str, ...] = ()
    port: int | None = None

    @classmethod
    def of(cls, events: Iterable[MetadataEvent]) -> tuple[Effect, ...]:
        """The effects of the polling sources among some events, in their order."""
        sources = (event for event in events if isinstance(event, SetPollingSource))
        return tuple(effect for source in sources for effect in _effects(source))


def _effects(source: SetPollingSource) -> Iterator[Effect]:
    match source.fetch:
        case src.FetchStepContainer() as step:
            names = sorted(container_variables(step))
            text = f"runs the container image: {step.image}"
            if command := (*(step.command or ()), *(step.args or ())):
                text += f" with {shlex.join(command)}"
            if names:
                text += f", and gives it the variables {', '.join(names)}"
            yield Effect(True, text, variables=tuple(names))
        case src.FetchStepUrl() as step:
            names = sorted(names_in([step.url, *(h.value for h in step.headers or ())]))
            found = host_as_written(step.url) if names else None
            if found is not None:
                what = "variable" if len(names) == 1 else "variables"
                text = f"sends the {what} {', '.join(names)} to {found[0]}"
                yield Effect(False, text, found[0], tuple(names), found[1])
    for prep in source.prepare or ():
        if isinstance(prep, src.PrepStepPipe):
            yield Effect(True, f"runs the command: {shlex.join(prep.command)}")


def container_variables(step: src.FetchStepContainer) -> frozenset[str]:
    """The names of the variables that a container is given."""
    variables = step.env or ()
    texts = [step.image, *(step.args or ()), *(v.value for v in variables if v.value is not None)]
    return names_in(texts) | {v.name for v in variables if v.value is None}


def host_as_written(url: str) -> tuple[str, int | None] | None:
    """Host and port that a URL leads to (templates by their text), None for a file of this machine."""
    masked, texts = mask_templates(url)

    def unmasked(text: str) -> str:
        for mark, template in texts.items():
            text = text.replace(mark, template)
        return text

    match = _AUTHORITY.match(masked)
    if scheme_of(masked) == "file":
        return None
    if match is None:  # what begins with a template may become anything
        return (unmasked(masked), None) if has_templates(url) else None
    user, _, rest = match["authority"].rpartition("@")
    marks_user = [mark for mark in texts if mark in user]
    # a default could end the host early: `https://${{ env.X || 'a@evil.example/' }}@good.example/`
    unclear = any("||" in texts[mark] for mark in marks_user)
    if unclear or any(mark in match["scheme"] + rest for mark in texts):
        return unmasked(match["authority"] if marks_user else rest or match[0]), None
    return _host(masked, match)


def _host(url: str, match: re.Match[str]) -> tuple[str, int | None]:
    # parsed as the fetchers do
    try:
        if match["scheme"].lower() in PORTS:
            target = Target.parse(url)
            return target.host, target.port
        return Url(url).host or match["authority"], Url(url).port
    except InvalidIdError:
        return match["authority"], None


# A download that resumes after a broken connection if the server supports it.


class Download:
    """One body and its file; leaving the block without `finish` removes the file."""

    def __init__(self, context: FetchContext) -> None:
        self.deadline = Deadline(context.limits.deadline, context.timing, name=context.name)
        self.received = 0
        """Bytes in the file."""
        self.headers: Headers | None = None
        """The headers of the answer that the bytes in the file are from."""
        self._context = context
        self._name = context.name
        self._path: Path | None = None
        self._stream: BinaryIO | None = None
        self._total: int | None = None
        self._finished = False

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # another error is on its way, or the file is complete
                self._stream.close()
        if self._path is not None and not self._finished:
            remove_quietly(self._path)

    def with_retries(self, attempt: Callable[[], FetchResult]) -> FetchResult:
        """The result of an attempt; failures that may pass are retried."""
        context = self._context
        return with_retries(
            attempt, name=self._name, limits=context.limits, timing=context.timing, deadline=self.deadline
        )

    @property
    def resumable(self) -> str | None:
        """The value of `If-Range`; None if the body must be requested from its beginning."""
        return None if self.headers is None or self.received == 0 else self.headers.range_validator()

    def begin(self, headers: Headers) -> None:
        """A whole body follows; what arrived before is dropped."""
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
        """The rest of the body follows; a TransientError where it is not that of the same body."""
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
        """Some bytes of the body."""
        assert self._stream is not None  # noqa: S101 - begin comes first
        self.deadline.check()
        self._check_size(self.received + len(chunk))
        if self._total is not None and self.received + len(chunk) > self._total:
            raise FetchError(f"{self._name}: the body is longer than the announced {self._total:,} bytes")
        with storage_errors(self._context.folder):
            self._stream.write(chunk)
        self.received += len(chunk)
        self._context.progress.advance(len(chunk))

    def finish(self) -> Path:
        """The file with the whole body."""
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
