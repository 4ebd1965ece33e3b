"""Fetching from a URL: a file of this machine, a web or FTP server, an object store.

The event time of rows that carry none is the time of the source's last change, unless the step says
otherwise.
Source: specification "FetchStep::Url" and "EventTimeSource".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ftplib
import http
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from odfchain.errors import FetchError, InvalidIdError, SourceNotFoundError
from odfchain.ingest import fetching
from odfchain.odf import sources as src
from odfchain.odf.events import SourceState
from odfchain.odf.times import Timestamp
from odfchain.storage import locations
from odfchain.storage.http_client import HttpPool, request_headers
from odfchain.storage.http_rules import Deadline, Headers, TransientError
from odfchain.storage.routes import connect, resolve
from odfchain.storage.template import expand, names_in
from odfchain.text import one_line

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from odfchain.storage.http_connection import Response


_T = TypeVar("_T")
OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""Schemes of URLs that name an object of a store."""

_LONGEST_PATH = 4_096
_SUPPORTED = "file, http, https, ftp, s3, gs, az, azure and abfs are"


def fetch_url(step: src.FetchStepUrl, context: fetching.FetchContext) -> fetching.FetchResult:
    """New bytes behind the step's URL, or `UP_TO_DATE`; templates are filled in from the variables."""
    name = locations.public_name(step.url)
    url = expand(step.url, context.variables, where=name)
    headers = [
        (h.name, expand(h.value, context.variables, where=f"{name}: header {h.name}"))
        for h in step.headers or ()
    ]
    texts = [step.url, *(h.value for h in step.headers or ())]
    sent = {name: context.variables[name] for name in names_in(texts) if name in context.variables}
    secrets = frozenset(filter(None, sent.values()))  # what must not be shown
    scheme = _scheme(url, name)
    time = _time_from_path(step, url, secrets, name)
    context = replace(context, name=name, secrets=secrets)
    result: fetching.FetchResult
    if scheme == "file":
        result = _fetch_file(url, context)
    elif scheme in ("http", "https"):
        result = fetch_http(url, headers, context, sent)
    else:
        context.check_host(sent, *_host(url))
        result = (fetch_ftp if scheme == "ftp" else fetch_object)(url, context)
    if result is fetching.UP_TO_DATE or isinstance(step.event_time, src.EventTimeSourceFromMetadata | None):
        return result
    return replace(result, event_time=time)  # None, the system time, unless the path says another


def _scheme(url: str, name: str) -> str:
    if not url.isprintable():
        raise FetchError(f"{name}: the URL has control characters")
    scheme = locations.scheme_of(url)
    if not scheme:
        raise FetchError(f"{name}: not a URL", hint="for a file write file:///absolute/path")
    if scheme not in ("file", "http", "https", "ftp", *OBJECT_STORES):
        raise FetchError(f"{name}: this kind of URL is not supported ({_SUPPORTED})")
    return scheme


def check_url(url: str) -> None:
    """Something may be behind a URL without templates, as far as its form says."""
    name = locations.public_name(url)
    scheme = _scheme(url, name)
    if scheme == "file":
        _file_path(url, name)
    elif scheme in ("http", "https"):
        locations.parse_target(url, name=name)


def _time_from_path(step: src.FetchStepUrl, url: str, secrets: frozenset[str], name: str) -> Timestamp | None:
    # before anything is fetched, because the time may be missing
    if not isinstance(step.event_time, src.EventTimeSourceFromPath):
        return None
    from odfchain.ingest.fetch_files import from_path

    path = _parsed(locations.Url, url, name).path
    try:
        return from_path(step.event_time.pattern, step.event_time.timestamp_format, path)
    except FetchError as error:
        if locations.redact(path, secrets) == path:
            raise
        pattern = one_line(step.event_time.pattern)
        raise FetchError(
            f"{name}: the pattern {pattern!r} finds no event time in the path with its templates filled in"
        ) from error


def _parsed(parse: Callable[[str], _T], url: str, name: str) -> _T:
    try:
        return parse(url)
    except InvalidIdError as error:
        shown = locations.unreadable_name(name) if error.message == "not a valid URL" else name
        raise FetchError(f"{shown}: {error.message}", hint=error.hint) from None


def _host(url: str) -> tuple[str, int | None]:
    # empty for an unreadable URL, which the fetcher reports
    try:
        return locations.Url(url).host, locations.Url(url).port
    except InvalidIdError:
        return "", None


def _fetch_file(url: str, context: fetching.FetchContext) -> fetching.FetchResult:
    # the user's own file is read in place, not copied
    name = context.name
    path = _file_path(url, name)
    if "${{" not in name:
        name = one_line(os.fsencode(path).decode("utf-8", "replace"), _LONGEST_PATH)
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise SourceNotFoundError(f"{name}: no such file") from None
    except OSError as error:
        raise FetchError(f"{name}: {error.strerror or 'cannot be read'}") from error
    if stat.S_ISDIR(info.st_mode):
        raise FetchError(f"{name}: is a folder", hint="FilesGlob takes the files of a folder")
    if not stat.S_ISREG(info.st_mode):
        raise FetchError(f"{name}: is not a regular file", hint="save what it brings to a file first")
    if not os.access(path, os.R_OK):
        raise FetchError(f"{name}: no permission to read it")
    time = fetching.modified_time(info, name).truncated_to_ms()
    state = fetching.last_modified_state(time)
    if context.is_known(state):
        return fetching.UP_TO_DATE
    return fetching.Fetched(path=path, name=name, state=state, event_time=time)


def _file_path(url: str, name: str) -> Path:
    parts = _parsed(locations.Url, url, name).parts
    if parts.netloc.lower() not in ("", "localhost"):
        hint = "a file of this machine is file:///absolute/path, with 3 slashes"
        raise FetchError(f"{name}: names another host", hint=hint)
    if parts.query or parts.fragment or not url.isprintable():
        raise FetchError(f"{name}: a file has no query", hint="in a path write ? as %3F and # as %23")
    if "%2f" in parts.path.lower():
        raise FetchError(f"{name}: an escaped slash", hint="where / is meant, write it so")
    raw = locations.unescape(parts.path)
    if not raw.startswith(b"/") or b"\0" in raw:
        raise FetchError(f"{name}: not an absolute path", hint="write file:///absolute/path")
    return Path(os.fsdecode(raw))


# A file at an http or https URL: requested if it changed, and resumed after a broken connection. The state is
# the entity tag, else the time of the last modification. Transient failures are retried; redirects are in
# `odfchain.storage.routes`, permitted addresses in `odfchain.storage.http_connection` (RFC 9110 of the IETF).

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = re.compile(
    "connection|content-length|expect|if-.*|keep-alive|range|te|trailer|transfer-encoding|upgrade",
    re.IGNORECASE,
)
"""Headers that the fetcher itself must be in control of."""

_EXCERPT = 2_000


def fetch_http(
    url: str,
    headers: Iterable[tuple[str, str]],
    context: fetching.FetchContext,
    sent: Mapping[str, str] | None = None,
) -> fetching.FetchResult:
    """The body behind the URL in a file of the context's folder, or `UP_TO_DATE`; `sent` are variables."""
    with fetching.Download(context) as download:
        return download.with_retries(_HttpFetch(url, headers, context, download, sent or {}).attempt)


class _HttpFetch:
    def __init__(
        self,
        url: str,
        headers: Iterable[tuple[str, str]],
        context: fetching.FetchContext,
        download: fetching.Download,
        sent: Mapping[str, str],
    ) -> None:
        self._target = locations.parse_target(url, name=context.name)
        context.check_host(sent, self._target.host, self._target.port)
        self._given = [_checked(key, value, context.name) for key, value in headers]
        if self._target.user is not None and "authorization" not in (key.lower() for key, _ in self._given):
            self._given.append(("Authorization", self._target.user))
        self._sent = sent
        self._context = context
        self._download = download
        self._condition = _condition(context)

    def attempt(self) -> fetching.FetchResult:
        asked = self._condition if self._download.resumable is None else None
        with (
            contextlib.closing(HttpPool(self._context.limits)) as pool,
            pool.get(
                pool.route(self._target, self._context.name),
                headers=lambda route: request_headers(route, self._given, self._own(asked)),
                deadline=self._download.deadline,
                name=self._context.name,
                secrets=self._context.secrets,
                redirected=self._check_redirect,
            ) as (response, where),
        ):
            return self._take(response, where, conditional=asked is not None)

    def _check_redirect(self, target: locations.Target) -> None:
        text = f"{target.host}{target.path.decode('latin-1')}"
        self._context.check_redirect(self._sent, target.host, target.port, text)

    def _own(self, condition: tuple[str, str] | None) -> list[tuple[str, str]]:
        # these headers are sent again after each redirect
        validator = self._download.resumable
        if validator is not None:
            own = [("Range", f"bytes={self._download.received}-"), ("If-Range", validator)]
        else:
            own = [] if condition is None else [condition]
        return [("Connection", "close"), *own]

    def _take(self, response: Response, where: str, *, conditional: bool) -> fetching.FetchResult:
        status, headers, download = response.status, response.headers, self._download
        if status == http.HTTPStatus.NOT_MODIFIED and conditional:
            return fetching.UP_TO_DATE
        if status in (200, 203):
            # Some servers ignore conditions; what is known by its state need not be brought again.
            if self._context.is_known(_state(headers)):
                return fetching.UP_TO_DATE
            self._context.announce_if_new(_state(headers))
            download.begin(headers)
        elif status == http.HTTPStatus.PARTIAL_CONTENT and download.resumable is not None:
            download.resume(headers)
        else:
            raise self._refused(response, where)
        for chunk in response.chunks():
            download.append(chunk)
        path = download.finish()
        first = download.headers or headers
        modified = first.date("last-modified")
        return fetching.Fetched(path=path, name=self._context.name, state=_state(first), event_time=modified)

    def _refused(self, response: Response, where: str) -> FetchError | TransientError:
        status = response.status
        if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and self._download.resumable is not None:
            self._download.forget()
            return TransientError("the server cannot continue the body")
        if status in (404, 410):
            return SourceNotFoundError(f"{where}: not found: {response.what}")
        if passing := response.passing():
            return passing
        said = self._excerpt(response)
        hint = "check the credentials in the source's headers" if status in (401, 403) else None
        return FetchError(f"{where}: {response.what}{f': {said}' if said else ''}", hint=hint)

    def _excerpt(self, response: Response) -> str:
        # the first line, unless it is markup
        body = b""
        with contextlib.suppress(TransientError):  # what arrived is enough
            for chunk in response.chunks(_EXCERPT):
                body += chunk
                if len(body) >= _EXCERPT or b"\n" in body.lstrip():
                    break
        lines = body[:_EXCERPT].decode("utf-8", "replace").strip().splitlines()
        line = one_line(locations.redact(lines[0], self._context.secrets)) if lines else ""
        return "" if line.startswith("<") else line


def _checked(key: str, value: str, name: str) -> tuple[str, str]:
    if not _TOKEN.fullmatch(key):
        raise FetchError(f"{name}: {one_line(key)!r} is not a name of a header")
    if _OURS.fullmatch(key):
        raise FetchError(f"{name}: the header {key} cannot be set: it is the fetcher's own")
    if not _VALUE.fullmatch(value):
        raise FetchError(f"{name}: the value of the header {key} has characters that cannot be sent")
    return key, value.strip()


def _condition(context: fetching.FetchContext) -> tuple[str, str] | None:
    tag, time = context.previous_tag, fetching.remembered_time(context.previous)
    if tag is not None:
        return ("If-None-Match", tag) if _VALUE.fullmatch(tag) else None
    # an IMF-fixdate, without the fraction of the second (RFC 9110, 5.6.7)
    return None if time is None else ("If-Modified-Since", format_datetime(time.to_datetime(), usegmt=True))


def _state(headers: Headers) -> SourceState | None:
    tag = headers.get("etag")
    if tag is not None:
        return fetching.etag_state(tag)
    modified = headers.date("last-modified")
    return None if modified is None else fetching.last_modified_state(modified)


# One object of S3, Google Cloud Storage, Azure Blob Storage or a compatible store. Endpoints and credentials
# come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), because a source's description is public. The
# key is the URL's path, percent-decoded.

_CHUNK = 1 << 20


def fetch_object(url: str, context: fetching.FetchContext) -> fetching.FetchResult:
    """The object in a file of the context's folder, or `UP_TO_DATE`; the state is that of the very bytes."""
    place = _parsed(locations.Location.parse, url, context.name)
    with fetching.Download(context) as download, _store_errors(context, download.deadline):
        import obstore

        store = locations.open_store(place, context.limits, download.deadline.remaining)
        if context.is_known(_object_state(obstore.head(store, place.key))):
            return fetching.UP_TO_DATE
        download.deadline.check()
        result = obstore.get(store, place.key)  # it may have changed since: its own description counts
        meta = result.meta
        context.announce_if_new(_object_state(meta))
        download.begin(Headers([("content-length", str(meta["size"]))]))
        for chunk in result.stream(min_chunk_size=_CHUNK):
            download.append(memoryview(chunk))
        try:
            path = download.finish()
        except TransientError as error:
            raise FetchError(f"{context.name}: {error.reason}") from error
    state = _object_state(meta)
    return fetching.Fetched(path=path, name=context.name, state=state, event_time=_modified(meta))


def _modified(meta: ObjectMeta) -> Timestamp:
    return Timestamp.from_datetime(meta["last_modified"])


def _object_state(meta: ObjectMeta) -> SourceState:
    tag = meta["e_tag"]
    return fetching.etag_state(tag) if tag else fetching.last_modified_state(_modified(meta))


@contextlib.contextmanager
def _store_errors(context: fetching.FetchContext, deadline: Deadline) -> Iterator[None]:
    # one line for any error of the library
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{context.name}: no such object or bucket") from error
    except (BaseError, OSError, ValueError, OverflowError) as error:
        deadline.check()
        message = f"{context.name}: {locations.store_message(error, context.secrets)}"
        raise FetchError(message, hint=locations.ENVIRONMENT_HINT) from error


# A file behind an ftp URL: brought only if it changed, and continued where a connection broke. What is
# remembered is the time of the last modification, if the server gives it (`MDTM`); it is asked for before and
# after the transfer, so that it is the time of the very bytes that were brought. Transfers are binary and
# passive, and the data come from the host that was connected to, not from an address of the reply. Every wait
# ends at the deadline. Failures that may pass are retried as over HTTP. Sources: RFC 959, 1738 (3.2), 2428
# and 3659 of the IETF.

WIRE = "latin-1"
"""One character for each byte: paths and replies are bytes of an encoding that only the server knows."""

_FTP_CHUNK = 1 << 16
_LONGEST_TALK = 1 << 18
"""All replies of one connection together [bytes]; a reply of many lines has no other end."""

_FTP_SIZE = re.compile(r"213 ([0-9]{1,19})\s*")
_FTP_TIME = re.compile(r"213 ([0-9]{4})" + 5 * r"([0-9]{2})" + r"(?:\.([0-9]{1,20}))?\s*")


@dataclass(frozen=True, slots=True)
class FtpAddress:
    """Path of a file: the folders to enter one after the other, and its name in the last one."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    folders: tuple[str, ...]
    file: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A server's facts about a file."""

    size: int | None
    modified: Timestamp | None


class FtpSession(ftplib.FTP):
    """A control connection on which every wait ends at the deadline.

    Raises:
        TransientError: time is up, or the connection fails.
        FetchError: the server talks without end.
        ftplib.Error: its replies.
    """

    encoding = WIRE
    trust_server_pasv_ipv4_address = False

    def __init__(self, context: fetching.FetchContext, deadline: Deadline) -> None:
        super().__init__(encoding=WIRE)
        self._limits = context.limits
        self._name = context.name
        self._deadline = deadline
        self._unread = b""
        self._heard = 0

    def enter(self, place: FtpAddress) -> None:
        """Connect, log in, and go to the file's folder."""
        addresses = resolve(place.host, place.port, name=self._name)
        self.sock, _ = connect(addresses, place.port, self._limits, self._deadline)
        self.af = self.sock.family
        self.voidresp()
        self.login(place.user, place.password)
        self.voidcmd("TYPE I")
        for folder in place.folders:
            self.voidcmd(f"CWD {folder}")

    def facts(self, file: str) -> FileFacts:
        """The server's facts about a file; empty for a server without these commands."""
        size = _FTP_SIZE.fullmatch(self._told(f"SIZE {file}"))
        return FileFacts(int(size[1]) if size else None, self.modified(file))

    def modified(self, file: str) -> Timestamp | None:
        """When the file was modified, if the server tells."""
        return parse_mdtm(self._told(f"MDTM {file}"))

    def _told(self, command: str) -> str:
        # Only a lasting refusal means that there are no facts: a state that comes and goes would repeat rows.
        try:
            return self.sendcmd(command)
        except ftplib.error_perm:
            return ""

    def data_connection(self) -> socket.socket:
        """A connection that the next file will come over."""
        try:
            host, port = self.makepasv()
        except ValueError as error:  # a port that is no number
            raise ftplib.error_proto from error
        if not 0 < port < 65_536:
            raise ftplib.error_proto
        return connect([host], port, self._limits, self._deadline)[0]

    def restart(self, offset: int) -> bool:
        """True if the server will begin the next file at this byte."""
        try:
            reply = self.sendcmd(f"REST {offset}")
        except ftplib.error_perm:
            return False
        return reply.startswith("3")

    def request(self, file: str) -> None:
        """Have the file sent over the data connection."""
        if not self.sendcmd(f"RETR {file}").startswith("1"):
            raise ftplib.error_reply

    def receive(self, connection: socket.socket) -> bytes:
        """The next bytes, none at the end."""
        self._deadline.check()
        connection.settimeout(max(1e-3, min(self._limits.idle_timeout, self._deadline.remaining)))
        try:
            return connection.recv(_FTP_CHUNK)
        except TimeoutError as error:
            self._deadline.check()
            raise TransientError(f"no byte within {self._limits.idle_timeout:g} s") from error

    def leave(self) -> None:
        """Say goodbye, without waiting for an answer: all that was wanted is here."""
        with contextlib.suppress(OSError):
            self.putcmd("QUIT")

    def getline(self) -> str:
        """One line of a reply; replaces the library's, whose waits have no common end."""
        while b"\n" not in self._unread:
            part = self.receive(self.sock) if self.sock else b""
            self._heard += len(part)
            if self._heard > _LONGEST_TALK:
                raise FetchError(f"{self._name}: the server talks without end")
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(WIRE).rstrip("\r")


def parse_mdtm(reply: str) -> Timestamp | None:
    """The time in a reply to `MDTM` (RFC 3659, 3.1), cut to milliseconds; None if it tells none."""
    match = _FTP_TIME.fullmatch(reply)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[part]) for part in range(1, 7))
    second = 59 if second == 60 else second  # a leap second is legal, and nothing here can hold it
    micros = int((match[7] or "")[:3].ljust(3, "0")) * 1_000
    try:
        return Timestamp.from_datetime(dt.datetime(year, month, day, hour, minute, second, micros, dt.UTC))
    except (ValueError, OverflowError):
        return None


_FTP_TYPE = re.compile(r"(?P<path>.*);type=(?P<type>[A-Za-z])", re.DOTALL)
_FTP_BREAKS = re.compile(r"[\r\n\0]")


def fetch_ftp(url: str, context: fetching.FetchContext) -> fetching.FetchResult:
    """The file behind the URL in a file of the context's folder, or `UP_TO_DATE`; its password is secret."""
    place = parse_place(url, name=context.name)
    secrets = context.secrets | {place.password.encode(WIRE).decode("utf-8", "replace")} - {""}
    context = replace(context, secrets=secrets)
    with fetching.Download(context) as download:
        return download.with_retries(_FtpFetch(place, context, download).attempt)


def parse_place(url: str, *, name: str) -> FtpAddress:
    """The place that an ftp URL names (RFC 1738, 3.2); messages call it `name`.

    Folders are relative to the one in which the user's session begins, unless the path begins with `//` or
    `/%2F`. Texts have one character for each byte.
    """
    host, port = _host(url)
    port = ftplib.FTP_PORT if port is None else port
    masked = locations.unreadable_name(name)  # a / ? or # in a password ends the host early
    if not host or not port:
        hint = "write it like ftp://host/path; in a user and password write / as %2F, ? as %3F and # as %23"
        raise FetchError(f"{masked}: not a valid URL", hint=hint)
    parts = locations.Url(url).parts
    if parts.query or parts.fragment:
        raise FetchError(f"{masked}: an ftp URL has no query", hint="in a path write ? as %3F and # as %23")
    path = parts.path
    if typed := _FTP_TYPE.fullmatch(path):
        if typed["type"].lower() != "i":
            raise FetchError(f"{name}: files are transferred as they are: only ;type=i is supported")
        path = typed["path"]
    *folders, file = path.removeprefix("/").split("/")
    # `//` or `/%2F`: from the root; else relative to the folder in which the session begins
    if folders and not folders[0]:
        folders[0] = "/"
    if not file:
        raise FetchError(f"{name}: does not name a file", hint="write it like ftp://host/path/to/file")
    user, password = _ftp_text(parts.username or ""), _ftp_text(parts.password or "")
    names = tuple(_ftp_text(folder) for folder in folders if folder)
    found = FtpAddress(host, port, user, password, names, _ftp_text(file))
    if any(_FTP_BREAKS.search(text) for text in (user, password, *names, found.file)):
        raise FetchError(f"{name}: the URL has line breaks, which cannot be sent")
    return found


def _ftp_text(segment: str) -> str:
    return locations.unescape(segment).decode(WIRE)


@dataclass(slots=True)
class _FtpFetch:
    _place: FtpAddress
    _context: fetching.FetchContext
    _download: fetching.Download
    _begun: FileFacts | None = None
    """The file that the bytes so far are from."""
    _restarts: bool = True
    """True if the server can be relied on to resume at the requested byte."""

    def attempt(self) -> fetching.FetchResult:
        with (
            _ftp_errors(self._context),
            contextlib.closing(FtpSession(self._context, self._download.deadline)) as session,
        ):
            session.enter(self._place)
            facts = session.facts(self._place.file)
            state = None if facts.modified is None else fetching.last_modified_state(facts.modified)
            if self._context.is_known(state):
                session.leave()
                return fetching.UP_TO_DATE
            self._context.announce_if_new(state)
            self._retrieve(session, facts)
            if facts.modified is not None and session.modified(self._place.file) != facts.modified:
                self._download.forget()
                raise TransientError("the file changed while it was read")
            session.leave()
        path = self._download.finish()
        return fetching.Fetched(path=path, name=self._context.name, state=state, event_time=facts.modified)

    def _retrieve(self, session: FtpSession, facts: FileFacts) -> None:
        download = self._download
        offset = download.received if self._can_continue(facts) else 0
        if offset and offset == facts.size:  # all that lacked was the server's word that this is all
            return
        with contextlib.closing(session.data_connection()) as data:
            restarted = offset > 0 and session.restart(offset)
            session.request(self._place.file)
            if restarted:
                download.resume(_rest(offset, facts))
            else:
                download.begin(_whole(facts))
                self._begun = facts
            while chunk := session.receive(data):
                if facts.size is not None and download.received + len(chunk) > facts.size:
                    download.forget()
                    self._restarts = self._restarts and not restarted
                    raise TransientError(f"more came than the announced {facts.size:,} bytes")
                download.append(chunk)
        session.voidresp()

    def _can_continue(self, facts: FileFacts) -> bool:
        # the bytes so far must be the beginning of the present file
        known = facts.size is not None and facts.modified is not None
        return self._restarts and known and self._download.headers is not None and facts == self._begun


def _whole(facts: FileFacts) -> Headers:
    # the facts as HTTP headers, which `Download` understands
    return Headers([] if facts.size is None else [("content-length", str(facts.size))])


def _rest(offset: int, facts: FileFacts) -> Headers:
    size = facts.size or 0
    return Headers([("content-range", f"bytes {offset}-{size - 1}/{size}")])


@contextlib.contextmanager
def _ftp_errors(context: fetching.FetchContext) -> Iterator[None]:
    # one line for any error of the library, or a TransientError for another attempt
    try:
        yield
    except EOFError as error:
        raise TransientError("the server closed the connection") from error
    except OSError as error:
        said = one_line(error.strerror or str(error)).lower()
        raise TransientError(f"the connection was lost: {said}") from error
    except ftplib.Error as error:
        said = str(error).encode(WIRE).decode("utf-8", "replace")
        said = one_line(locations.redact(said, context.secrets))
        if isinstance(error, ftplib.error_perm):
            if said.startswith("550"):
                raise SourceNotFoundError(f"{context.name}: not found: FTP reply {said}") from error
            hint = "check the user and the password in the URL" if said.startswith("530") else None
            raise FetchError(f"{context.name}: FTP reply {said}", hint=hint) from error
        if isinstance(error, ftplib.error_temp):
            raise TransientError(f"FTP reply {said}") from error
        raise TransientError(f"the server does not answer in FTP{f': {said}' if said else ''}") from error
