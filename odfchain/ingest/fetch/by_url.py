"""Fetching from a URL: a file of this machine, a web or FTP server, an object store.

The event time of rows that carry none is the time of the source's last change, unless the step says
otherwise.
Source: specification "FetchStep::Url" and "EventTimeSource".
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from odfchain.errors import FetchError, InvalidIdError, SourceNotFoundError
from odfchain.ingest.fetch.bindings import check_host
from odfchain.ingest.fetch.fetcher import UP_TO_DATE, FetchContext, Fetched, FetchResult, last_modified_state
from odfchain.ingest.fetch.remembered import is_known
from odfchain.model.sources import (
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
    FetchStepUrl,
)
from odfchain.model.timestamp import Timestamp
from odfchain.net.template import expand, names_in, public_name, redact, unreadable_name, values_in
from odfchain.net.url import parse_target
from odfchain.text import one_line

OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""Schemes of URLs that name an object of a store."""

_LONGEST_PATH = 4_096
_SUPPORTED = "file, http, https, ftp, s3, gs, az, azure and abfs are"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def fetch_url(step: FetchStepUrl, context: FetchContext) -> FetchResult:
    """New bytes behind the step's URL, or `UP_TO_DATE`; templates are filled in from the context's variables.

    Raises:
        FetchError: a wrong URL, template or pattern, an unsupported scheme, or no success within the limits.
    """
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
    result: FetchResult
    if scheme == "file":
        result = _fetch_file(url, context, name=name)
    elif scheme in ("http", "https"):
        from odfchain.ingest.fetch.http import fetch_http

        result = fetch_http(url, headers, context, name=name, secrets=secrets, sent=sent)
    elif scheme == "ftp":
        from odfchain.ingest.fetch.ftp import fetch_ftp

        check_host(sent, context.bindings, *_host(url), where=name)
        result = fetch_ftp(url, context, name=name, secrets=secrets)
    else:
        from odfchain.ingest.fetch.bucket import fetch_object

        check_host(sent, context.bindings, *_host(url), where=name)
        result = fetch_object(url, context, name=name, secrets=secrets)
    if result is UP_TO_DATE:
        return UP_TO_DATE
    return replace(result, event_time=_event_time(step, result, time))


def _scheme(url: str, name: str) -> str:
    """What kind of URL it is, of those that are fetched from."""
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
    """Something may be behind a URL without templates, as far as its form says.

    Raises:
        FetchError: it is none, or of a kind that is not fetched from.
    """
    name = public_name(url)
    scheme = _scheme(url, name)
    if scheme == "file":
        _file_path(url, name)
    elif scheme in ("http", "https"):
        parse_target(url, name=name)


def _time_from_path(step: FetchStepUrl, url: str, secrets: frozenset[str], name: str) -> Timestamp | None:
    """Event time in the URL's path; looked for before anything is fetched, as it may be missing."""
    if not isinstance(step.event_time, EventTimeSourceFromPath):
        return None
    from odfchain.ingest.fetch.event_time import from_path

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


def _event_time(step: FetchStepUrl, result: Fetched, from_path: Timestamp | None) -> Timestamp | None:
    if isinstance(step.event_time, EventTimeSourceFromPath):
        return from_path
    return None if isinstance(step.event_time, EventTimeSourceFromSystemTime) else result.event_time


def _split(url: str, name: str) -> tuple[str, str, str]:
    """Host, path and whatever follows the path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise FetchError(f"{unreadable_name(name)}: not a valid URL") from None
    return parts.netloc, parts.path, f"{parts.query}{parts.fragment}"


def _host(url: str) -> tuple[str, int | None]:
    """Host (or bucket) and port; no host where the URL cannot be read, which is said by who fetches it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", None
    return host, port


def _fetch_file(url: str, context: FetchContext, *, name: str) -> FetchResult:
    """The user's own file, without a copy, if its time of modification is not the remembered one."""
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
    if is_known(state, context):
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
