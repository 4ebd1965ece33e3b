"""A file behind an ftp URL: brought only if it changed, and continued where a connection broke.

What is remembered is the time of the last modification, if the server gives it (`MDTM`); it is asked for
before and after the transfer, so that it is the time of the very bytes that were brought. Transfers are
binary and passive, and the data come from the host that was connected to, not from an address of the reply.
Failures that may pass are retried as over HTTP. Sources: RFC 959, 1738 (3.2), 2428 and 3659 of the IETF.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import ftplib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes, urlsplit

from odfchain.errors import FetchError, SourceNotFoundError
from odfchain.ingest.fetching import (
    UP_TO_DATE,
    Download,
    FetchContext,
    Fetched,
    FetchResult,
    last_modified_state,
)
from odfchain.odf.times import Timestamp
from odfchain.storage.http_client import connect
from odfchain.storage.http_rules import Deadline, Headers, TransientError
from odfchain.storage.template import redact, unreadable_name
from odfchain.storage.urls import resolve
from odfchain.text import one_line

# An FTP session; every wait ends at the deadline (RFC 959, 2428 and 3659).

WIRE = "latin-1"
"""One character for each byte: paths and replies are bytes of an encoding that only the server knows."""

_CHUNK = 1 << 16
_LONGEST_TALK = 1 << 18
"""All replies of one connection together [bytes]; a reply of many lines has no other end."""

_SIZE = re.compile(r"213 ([0-9]{1,19})\s*")
_TIME = re.compile(r"213 ([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})(?:\.([0-9]{1,20}))?\s*")


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

    def __init__(self, context: FetchContext, deadline: Deadline) -> None:
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
        size = _SIZE.fullmatch(self._told(f"SIZE {file}"))
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
            return connection.recv(_CHUNK)
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
    match = _TIME.fullmatch(reply)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[part]) for part in range(1, 7))
    second = 59 if second == 60 else second  # a leap second is legal, and nothing here can hold it
    micros = int((match[7] or "")[:3].ljust(3, "0")) * 1_000
    try:
        return Timestamp.from_datetime(
            dt.datetime(year, month, day, hour, minute, second, micros, tzinfo=dt.UTC)
        )
    except (ValueError, OverflowError):
        return None


def words(error: OSError | None) -> str:
    """The system's message for a failed connection."""
    return one_line((error.strerror if error else "") or str(error)).lower()


_TYPE = re.compile(r"(?P<path>.*);type=(?P<type>[A-Za-z])", re.DOTALL)
_BREAKS = re.compile(r"[\r\n\0]")


def fetch_ftp(url: str, context: FetchContext) -> FetchResult:
    """The file behind the URL in a file of the context's folder, or `UP_TO_DATE`.

    The URL's password is a secret, too. The event time is the time of the last modification, where the server
    tells it.
    """
    place = parse_place(url, name=context.name)
    secrets = context.secrets | {place.password.encode(WIRE).decode("utf-8", "replace")} - {""}
    context = dataclasses.replace(context, secrets=secrets)
    with Download(context) as download:
        return download.with_retries(_Fetch(place, context, download).attempt)


def parse_place(url: str, *, name: str) -> FtpAddress:
    """The place that an ftp URL names (RFC 1738, 3.2); messages call it `name`.

    Folders are relative to the one in which the user's session begins, unless the path begins with `//` or
    `/%2F`. Texts have one character for each byte.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, ftplib.FTP_PORT if parts.port is None else parts.port
    except ValueError:
        host, port = None, 0
    masked = unreadable_name(name)  # a / ? or # in a password ends the host early
    if not host or not port:
        hint = "write it like ftp://host/path; in a user and password write / as %2F, ? as %3F and # as %23"
        raise FetchError(f"{masked}: not a valid URL", hint=hint)
    if parts.query or parts.fragment:
        raise FetchError(f"{masked}: an ftp URL has no query", hint="in a path write ? as %3F and # as %23")
    path = parts.path
    if typed := _TYPE.fullmatch(path):
        if typed["type"].lower() != "i":
            raise FetchError(f"{name}: files are transferred as they are: only ;type=i is supported")
        path = typed["path"]
    *folders, file = path.removeprefix("/").split("/")
    # `//` or `/%2F`: from the root; else relative to the folder in which the session begins
    if folders and not folders[0]:
        folders[0] = "/"
    if not file:
        raise FetchError(f"{name}: does not name a file", hint="write it like ftp://host/path/to/file")
    user, password = _decoded(parts.username or ""), _decoded(parts.password or "")
    names = tuple(_decoded(folder) for folder in folders if folder)
    found = FtpAddress(host, port, user, password, names, _decoded(file))
    if any(_BREAKS.search(text) for text in (user, password, *names, found.file)):
        raise FetchError(f"{name}: the URL has line breaks, which cannot be sent")
    return found


def _decoded(segment: str) -> str:
    return unquote_to_bytes(segment).decode(WIRE)


@dataclass(slots=True)
class _Fetch:
    """One fetch with all its attempts."""

    _place: FtpAddress
    _context: FetchContext
    _download: Download
    _begun: FileFacts | None = None
    """The file that the bytes so far are from."""
    _restarts: bool = True
    """True if the server can be relied on to resume at the requested byte."""

    def attempt(self) -> FetchResult:
        with (
            _translated(self._context),
            contextlib.closing(FtpSession(self._context, self._download.deadline)) as session,
        ):
            session.enter(self._place)
            facts = session.facts(self._place.file)
            state = None if facts.modified is None else last_modified_state(facts.modified)
            if self._context.is_known(state):
                session.leave()
                return UP_TO_DATE
            self._context.announce_if_new(state)
            self._retrieve(session, facts)
            if facts.modified is not None and session.modified(self._place.file) != facts.modified:
                self._download.forget()
                raise TransientError("the file changed while it was read")
            session.leave()
        path = self._download.finish()
        return Fetched(path=path, name=self._context.name, state=state, event_time=facts.modified)

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
    return Headers([] if facts.size is None else [(b"content-length", b"%d" % facts.size)])


def _rest(offset: int, facts: FileFacts) -> Headers:
    size = facts.size or 0
    return Headers([(b"content-range", b"bytes %d-%d/%d" % (offset, size - 1, size))])


@contextlib.contextmanager
def _translated(context: FetchContext) -> Iterator[None]:
    # one line for any error of the library, or a TransientError for another attempt
    try:
        yield
    except EOFError as error:
        raise TransientError("the server closed the connection") from error
    except OSError as error:
        raise TransientError(f"the connection was lost: {words(error)}") from error
    except ftplib.Error as error:
        said = str(error).encode(WIRE).decode("utf-8", "replace")
        said = one_line(redact(said, context.secrets))
        if isinstance(error, ftplib.error_perm):
            if said.startswith("550"):
                raise SourceNotFoundError(f"{context.name}: not found: FTP reply {said}") from error
            hint = "check the user and the password in the URL" if said.startswith("530") else None
            raise FetchError(f"{context.name}: FTP reply {said}", hint=hint) from error
        if isinstance(error, ftplib.error_temp):
            raise TransientError(f"FTP reply {said}") from error
        raise TransientError(f"the server does not answer in FTP{f': {said}' if said else ''}") from error
