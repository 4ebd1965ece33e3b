"""Fetching from a URL: a file of this machine, a web or FTP server, an object store.

The event time of rows that carry none is the time of the source's last change, unless the step says
otherwise.
Source: specification "FetchStep::Url" and "EventTimeSource".
"""

from __future__ import annotations

import contextlib
import http
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from odfchain.errors import FetchError, InvalidIdError, SourceNotFoundError
from odfchain.ingest.fetching import (
    UP_TO_DATE,
    Download,
    FetchContext,
    Fetched,
    FetchResult,
    etag_state,
    last_modified_state,
    remembered_time,
)
from odfchain.odf import sources as src
from odfchain.odf.events import SourceState
from odfchain.odf.times import Timestamp
from odfchain.storage.http_client import HttpPool, request_headers
from odfchain.storage.http_connection import Response
from odfchain.storage.http_rules import Deadline, Headers, TransientError, http_date
from odfchain.storage.locations import ENVIRONMENT_HINT, Location, open_store, store_message
from odfchain.storage.template import expand, names_in, public_name, redact, unreadable_name, values_in
from odfchain.storage.urls import Target, parse_target
from odfchain.text import one_line

if TYPE_CHECKING:
    from obstore import ObjectMeta


OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""Schemes of URLs that name an object of a store."""

_LONGEST_PATH = 4_096
_SUPPORTED = "file, http, https, ftp, s3, gs, az, azure and abfs are"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def fetch_url(step: src.FetchStepUrl, context: FetchContext) -> FetchResult:
    """New bytes behind the step's URL, or `UP_TO_DATE`; templates are filled in from the variables."""
    name = public_name(step.url)
    url = expand(step.url, context.variables, where=name)
    headers = [
        (h.name, expand(h.value, context.variables, where=f"{name}: header {h.name}"))
        for h in step.headers or ()
    ]
    texts = [step.url, *(h.value for h in step.headers or ())]
    secrets = values_in(texts, context.variables)
    sent = {name: context.variables[name] for name in names_in(texts) if name in context.variables}
    scheme = _scheme(url, name)
    time = _time_from_path(step, url, secrets, name)
    context = replace(context, name=name, secrets=secrets)
    result: FetchResult
    if scheme == "file":
        result = _fetch_file(url, context)
    elif scheme in ("http", "https"):
        result = fetch_http(url, headers, context, sent)
    else:
        context.check_host(sent, *_host(url))
        if scheme == "ftp":
            from odfchain.ingest.fetch_ftp import fetch_ftp

            result = fetch_ftp(url, context)
        else:
            result = fetch_object(url, context)
    if result is UP_TO_DATE or isinstance(step.event_time, src.EventTimeSourceFromMetadata | None):
        return result
    return replace(result, event_time=time)  # None, the system time, unless the path says another


def _scheme(url: str, name: str) -> str:
    if not url.isprintable():
        raise FetchError(f"{name}: the URL has control characters")
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if not scheme:
        raise FetchError(f"{name}: not a URL", hint="for a file write file:///absolute/path")
    if scheme not in ("file", "http", "https", "ftp", *OBJECT_STORES):
        raise FetchError(f"{name}: this kind of URL is not supported ({_SUPPORTED})")
    return scheme


def check_url(url: str) -> None:
    """Something may be behind a URL without templates, as far as its form says."""
    name = public_name(url)
    scheme = _scheme(url, name)
    if scheme == "file":
        _file_path(url, name)
    elif scheme in ("http", "https"):
        parse_target(url, name=name)


def _time_from_path(step: src.FetchStepUrl, url: str, secrets: frozenset[str], name: str) -> Timestamp | None:
    # before anything is fetched, because the time may be missing
    if not isinstance(step.event_time, src.EventTimeSourceFromPath):
        return None
    from odfchain.ingest.fetch_files import from_path

    path = unquote(_split(url, name)[1])
    try:
        return from_path(step.event_time.pattern, step.event_time.timestamp_format, path)
    except FetchError as error:
        if redact(path, secrets) == path:
            raise
        pattern = one_line(step.event_time.pattern)
        raise FetchError(
            f"{name}: the pattern {pattern!r} finds no event time in the path with its templates filled in"
        ) from error


def _split(url: str, name: str) -> tuple[str, str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise FetchError(f"{unreadable_name(name)}: not a valid URL") from None
    return parts.netloc, parts.path, f"{parts.query}{parts.fragment}"


def _host(url: str) -> tuple[str, int | None]:
    # empty for an unreadable URL, which the fetcher reports
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", None
    return host, port


def _fetch_file(url: str, context: FetchContext) -> FetchResult:
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
    try:
        time = Timestamp.from_epoch_ms(info.st_mtime_ns // 1_000_000)
    except InvalidIdError:
        raise FetchError(f"{name}: its time of modification is out of range") from None
    state = last_modified_state(time)
    if context.is_known(state):
        return UP_TO_DATE
    return Fetched(path=path, name=name, state=state, event_time=time)


def _file_path(url: str, name: str) -> Path:
    host, text, rest = _split(url, name)
    if host.lower() not in ("", "localhost"):
        raise FetchError(
            f"{name}: names another host",
            hint="a file of this machine is file:///absolute/path, with 3 slashes",
        )
    if rest or not url.isprintable():
        raise FetchError(f"{name}: a file has no query", hint="in a path write ? as %3F and # as %23")
    if "%2f" in text.lower():
        raise FetchError(f"{name}: an escaped slash", hint="where / is meant, write it so")
    raw = unquote_to_bytes(text)
    if not raw.startswith(b"/") or b"\0" in raw:
        raise FetchError(f"{name}: not an absolute path", hint="write file:///absolute/path")
    return Path(os.fsdecode(raw))


# A file at an http or https URL: requested if it changed, and resumed after a broken connection. The state is
# the entity tag, else the time of the last modification. Transient failures are retried; redirects are in
# `odfchain.storage.urls`, permitted addresses in `odfchain.storage.http_client` (RFC 9110 of the IETF).

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
    context: FetchContext,
    sent: Mapping[str, str] | None = None,
) -> FetchResult:
    """The body behind the URL in a file of the context's folder, or `UP_TO_DATE`.

    `sent` are the variables that URL and headers are made of. The event time is `Last-Modified`, where that
    is there and valid.
    """
    with Download(context) as download:
        return download.with_retries(_Fetch(url, headers, context, download, sent or {}).attempt)


class _Fetch:
    """One fetch with all its attempts."""

    def __init__(
        self,
        url: str,
        headers: Iterable[tuple[str, str]],
        context: FetchContext,
        download: Download,
        sent: Mapping[str, str],
    ) -> None:
        self._target = parse_target(url, name=context.name)
        context.check_host(sent, self._target.host, self._target.port)
        self._given = [_checked(key, value, context.name) for key, value in headers]
        if self._target.user is not None and "authorization" not in (key.lower() for key, _ in self._given):
            self._given.append(("Authorization", self._target.user))
        self._sent = sent
        self._context = context
        self._download = download
        self._condition = _condition(context)

    def attempt(self) -> FetchResult:
        asked = self._condition if self._download.resumable is None else None
        with (
            contextlib.closing(HttpPool(self._context.limits)) as pool,
            pool.get(
                self._target,
                headers=lambda route: request_headers(route, self._given, self._own(asked)),
                deadline=self._download.deadline,
                name=self._context.name,
                secrets=self._context.secrets,
                redirected=self._check_redirect,
            ) as (response, where),
        ):
            return self._take(response, where, conditional=asked is not None)

    def _check_redirect(self, target: Target) -> None:
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

    def _take(self, response: Response, where: str, *, conditional: bool) -> FetchResult:
        status, headers, download = response.status, response.headers, self._download
        if status == http.HTTPStatus.NOT_MODIFIED and conditional:
            return UP_TO_DATE
        if status in (200, 203):
            # Some servers ignore conditions; what is known by its state need not be brought again.
            if self._context.is_known(_state(headers)):
                return UP_TO_DATE
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
        return Fetched(path=path, name=self._context.name, state=_state(first), event_time=modified)

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
        line = one_line(redact(lines[0], self._context.secrets)) if lines else ""
        return "" if line.startswith("<") else line


def _checked(key: str, value: str, name: str) -> tuple[str, str]:
    if not _TOKEN.fullmatch(key):
        raise FetchError(f"{name}: {one_line(key)!r} is not a name of a header")
    if _OURS.fullmatch(key):
        raise FetchError(f"{name}: the header {key} cannot be set: it is the fetcher's own")
    if not _VALUE.fullmatch(value):
        raise FetchError(f"{name}: the value of the header {key} has characters that cannot be sent")
    return key, value.strip()


def _condition(context: FetchContext) -> tuple[str, str] | None:
    tag, time = context.previous_tag, remembered_time(context.previous)
    if tag is not None:
        return ("If-None-Match", tag) if _VALUE.fullmatch(tag) else None
    return None if time is None else ("If-Modified-Since", http_date(time))


def _state(headers: Headers) -> SourceState | None:
    tag = headers.get("etag")
    if tag is not None:
        return etag_state(tag)
    modified = headers.date("last-modified")
    return None if modified is None else last_modified_state(modified)


# One object of S3, Google Cloud Storage, Azure Blob Storage or a compatible store. Endpoints and credentials
# come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), because a source's description is public. The
# key is the URL's path, percent-decoded.

_CHUNK = 1 << 20


def fetch_object(url: str, context: FetchContext) -> FetchResult:
    """The object in a file of the context's folder, or `UP_TO_DATE`.

    The state is the entity tag, else the time of the last modification, of the very bytes that were brought.
    The event time is the time of the last modification.
    """
    place = _place(url, context.name)
    with Download(context) as download, _translated(context, download.deadline):
        import obstore

        store = open_store(place, context.limits, download.deadline.remaining)
        if context.is_known(_object_state(obstore.head(store, place.key))):
            return UP_TO_DATE
        download.deadline.check()
        result = obstore.get(store, place.key)  # it may have changed since: its own description counts
        meta = result.meta
        context.announce_if_new(_object_state(meta))
        download.begin(Headers([(b"content-length", b"%d" % meta["size"])]))
        for chunk in result.stream(min_chunk_size=_CHUNK):
            download.append(memoryview(chunk))
        try:
            path = download.finish()
        except TransientError as error:
            raise FetchError(f"{context.name}: {error.reason}") from error
    return Fetched(path=path, name=context.name, state=_object_state(meta), event_time=_modified(meta))


def _place(url: str, name: str) -> Location:
    try:
        place = Location.parse(url)
    except InvalidIdError as error:
        shown = unreadable_name(name) if error.message == "not a valid URL" else name
        raise FetchError(f"{shown}: {error.message}", hint=error.hint) from None
    return place


def _modified(meta: ObjectMeta) -> Timestamp:
    return Timestamp.from_datetime(meta["last_modified"])


def _object_state(meta: ObjectMeta) -> SourceState:
    tag = meta["e_tag"]
    return etag_state(tag) if tag else last_modified_state(_modified(meta))


@contextlib.contextmanager
def _translated(context: FetchContext, deadline: Deadline) -> Iterator[None]:
    # one line for any error of the library
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{context.name}: no such object or bucket") from error
    except (BaseError, OSError, ValueError, OverflowError) as error:
        deadline.check()
        raise FetchError(
            f"{context.name}: {store_message(error, context.secrets)}", hint=ENVIRONMENT_HINT
        ) from error
