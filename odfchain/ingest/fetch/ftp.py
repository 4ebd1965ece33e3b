"""A file behind an ftp URL: brought only if it changed, and continued where a connection broke.

What is remembered is the time of the last modification, if the server tells it (`MDTM`); it is asked for
before and after the transfer, so that it is the time of the very bytes that were brought. Transfers are
binary and passive, and the data come from the host that was connected to, whatever address a server names.
Failures that may pass are retried as over HTTP. Sources: RFC 959, 1738 (3.2), 2428 and 3659 of the IETF.
"""

from __future__ import annotations

import contextlib
import ftplib
import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes, urlsplit

from odfchain.errors import FetchError, SourceNotFoundError
from odfchain.ingest.fetch.download import Download
from odfchain.ingest.fetch.fetcher import (
    UP_TO_DATE,
    FetchContext,
    Fetched,
    FetchResult,
    last_modified_state,
)
from odfchain.ingest.fetch.ftp_session import WIRE, FileFacts, FtpAddress, FtpSession, words
from odfchain.ingest.fetch.remembered import is_known, tell_if_new
from odfchain.net.headers import Headers
from odfchain.net.retry import Deadline, Timing, TransientError, with_retries
from odfchain.net.template import redact, unreadable_name
from odfchain.text import one_line

_TYPE = re.compile(r"(?P<path>.*);type=(?P<type>[A-Za-z])", re.DOTALL)
_BREAKS = re.compile(r"[\r\n\0]")


def fetch_ftp(
    url: str,
    context: FetchContext,
    *,
    name: str,
    secrets: frozenset[str] = frozenset(),
    timing: Timing | None = None,
) -> FetchResult:
    """The file behind the URL in a file of the context's folder, or `UP_TO_DATE`.

    `name` is what messages call the URL; `secrets` are values that no message may show, and neither is the
    URL's password. The event time is the time of the last modification, where the server tells it.
    """
    timing = timing or Timing()
    limits = context.limits
    deadline = Deadline(limits.deadline, timing, name=name)
    place = parse_place(url, name=name)
    with Download(context, deadline, name=name) as download:
        fetch = _Fetch(place, context, deadline, download, name, secrets)
        return with_retries(fetch.attempt, name=name, limits=limits, timing=timing, deadline=deadline)


def parse_place(url: str, *, name: str) -> FtpAddress:
    """The place that an ftp URL names (RFC 1738, 3.2); messages call it `name`.

    Folders are relative to the one in which the user's session begins, unless the path begins with `//` or
    `/%2F`. Texts have one character for each byte.

    Raises:
        FetchError: it names no file that could be asked for.
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


class _Fetch:
    """One fetch with all its attempts."""

    def __init__(
        self,
        place: FtpAddress,
        context: FetchContext,
        deadline: Deadline,
        download: Download,
        name: str,
        secrets: frozenset[str],
    ) -> None:
        self._place = place
        self._context = context
        self._deadline = deadline
        self._download = download
        self._name = name
        self._secrets = secrets | {place.password.encode(WIRE).decode("utf-8", "replace")} - {""}
        self._begun: FileFacts | None = None
        """The file that the bytes so far are from."""
        self._restarts = True
        """Whether the server can be believed to continue where it is asked to."""

    def attempt(self) -> FetchResult:
        """Connect, and bring the file if it is news.

        Raises:
            TransientError: worth another attempt.
        """
        with (
            _translated(self._name, self._secrets),
            contextlib.closing(FtpSession(self._context.limits, self._deadline, self._name)) as session,
        ):
            session.enter(self._place)
            facts = session.facts(self._place.file)
            state = None if facts.modified is None else last_modified_state(facts.modified)
            if is_known(state, self._context):
                session.leave()
                return UP_TO_DATE
            tell_if_new(state, self._context)
            self._retrieve(session, facts)
            if facts.modified is not None and session.modified(self._place.file) != facts.modified:
                self._download.forget()
                raise TransientError("the file changed while it was read")
            session.leave()
        path = self._download.finish()
        return Fetched(path=path, name=self._name, state=state, event_time=facts.modified)

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
        """Whether the bytes so far are the beginning of the file as it is now."""
        known = facts.size is not None and facts.modified is not None
        return self._restarts and known and self._download.headers is not None and facts == self._begun


def _whole(facts: FileFacts) -> Headers:
    """What `Download` is to expect, in the words of HTTP that it understands."""
    return Headers([] if facts.size is None else [(b"content-length", b"%d" % facts.size)])


def _rest(offset: int, facts: FileFacts) -> Headers:
    size = facts.size or 0
    return Headers([(b"content-range", b"bytes %d-%d/%d" % (offset, size - 1, size))])


@contextlib.contextmanager
def _translated(name: str, secrets: frozenset[str]) -> Iterator[None]:
    """Whatever the library raises becomes one line, or another attempt."""
    try:
        yield
    except EOFError as error:
        raise TransientError("the server closed the connection") from error
    except OSError as error:
        raise TransientError(f"the connection was lost: {words(error)}") from error
    except ftplib.Error as error:
        said = str(error).encode(WIRE).decode("utf-8", "replace")
        said = one_line(redact(said, secrets))
        if isinstance(error, ftplib.error_perm):
            if said.startswith("550"):
                raise SourceNotFoundError(f"{name}: not found: FTP reply {said}") from error
            hint = "check the user and the password in the URL" if said.startswith("530") else None
            raise FetchError(f"{name}: FTP reply {said}", hint=hint) from error
        if isinstance(error, ftplib.error_temp):
            raise TransientError(f"FTP reply {said}") from error
        raise TransientError(f"the server does not answer in FTP{f': {said}' if said else ''}") from error
