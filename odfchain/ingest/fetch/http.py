"""A file behind an http or https URL: asked for only if it changed, and continued where a connection broke.

What is remembered is the entity tag as the server wrote it, else the time of the last modification. Failures
that may pass are retried; see `odfchain.net.url` for redirects and `odfchain.net.dial` for what a connection
may reach.
Source: RFC 9110 of the IETF.
"""

from __future__ import annotations

import contextlib
import http
import re
from collections.abc import Iterable, Mapping

from odfchain.errors import FetchError, SourceNotFoundError
from odfchain.ingest.fetch.bindings import check_host, check_redirect
from odfchain.ingest.fetch.download import Download
from odfchain.ingest.fetch.fetcher import (
    UP_TO_DATE,
    FetchContext,
    Fetched,
    FetchResult,
    etag_state,
    last_modified_state,
)
from odfchain.ingest.fetch.remembered import is_known, previous_modified, previous_tag, tell_if_new
from odfchain.model.events import SourceState
from odfchain.net.headers import Headers, http_date
from odfchain.net.pool import HttpPool, request_headers
from odfchain.net.retry import Deadline, Timing, TransientError, with_retries
from odfchain.net.template import redact
from odfchain.net.url import Target, parse_target
from odfchain.net.wire import Response
from odfchain.text import one_line

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
    *,
    name: str,
    secrets: frozenset[str] = frozenset(),
    sent: Mapping[str, str] | None = None,
    timing: Timing | None = None,
) -> FetchResult:
    """The body behind the URL in a file of the context's folder, or `UP_TO_DATE`.

    `name` is what messages call the URL; `secrets` are values that no message may show, and
    `sent` the variables that URL and headers are made of. The event time is `Last-Modified`, where that is
    there and valid.
    """
    timing = timing or Timing()
    limits = context.limits
    deadline = Deadline(limits.deadline, timing, name=name)
    with Download(context, deadline, name=name) as download:
        fetch = _Fetch(url, headers, context, deadline, download, name, secrets, sent or {})
        return with_retries(fetch.attempt, name=name, limits=limits, timing=timing, deadline=deadline)


class _Fetch:
    """One fetch with all its attempts."""

    def __init__(
        self,
        url: str,
        headers: Iterable[tuple[str, str]],
        context: FetchContext,
        deadline: Deadline,
        download: Download,
        name: str,
        secrets: frozenset[str],
        sent: Mapping[str, str],
    ) -> None:
        self._target = parse_target(url, name=name)
        self._sent = sent
        check_host(sent, context.bindings, self._target.host, self._target.port, where=name)
        self._given = [_checked(key, value, name) for key, value in headers]
        if self._target.user is not None and "authorization" not in (key.lower() for key, _ in self._given):
            self._given.append(("Authorization", self._target.user))
        self._context = context
        self._deadline = deadline
        self._download = download
        self._name = name
        self._secrets = secrets
        self._condition = _condition(context)

    def attempt(self) -> FetchResult:
        """Ask from the first URL on, over its redirects, to a response."""
        asked = self._condition if self._download.resumable is None else None
        with (
            contextlib.closing(HttpPool(self._context.limits)) as pool,
            pool.get(
                self._target,
                headers=lambda route: request_headers(route, self._given, self._own(asked)),
                deadline=self._deadline,
                name=self._name,
                secrets=self._secrets,
                redirected=self._check_redirect,
            ) as (response, where),
        ):
            return self._take(response, where, conditional=asked is not None)

    def _check_redirect(self, target: Target) -> None:
        text = f"{target.host}{target.path.decode('latin-1')}"
        check_redirect(self._sent, self._context.bindings, target.host, target.port, text, where=self._name)

    def _own(self, condition: tuple[str, str] | None) -> list[tuple[str, str]]:
        """The headers that go along over all redirects."""
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
            if is_known(_state(headers), self._context):
                return UP_TO_DATE
            tell_if_new(_state(headers), self._context)
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
        return Fetched(path=path, name=self._name, state=_state(first), event_time=modified)

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
        """The first line of what the server says, unless that is markup."""
        body = b""
        with contextlib.suppress(TransientError):  # what arrived is enough
            for chunk in response.chunks(_EXCERPT):
                body += chunk
                if len(body) >= _EXCERPT or b"\n" in body.lstrip():
                    break
        lines = body[:_EXCERPT].decode("utf-8", "replace").strip().splitlines()
        line = one_line(redact(lines[0], self._secrets)) if lines else ""
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
    """The header that asks for news only."""
    tag, time = previous_tag(context), previous_modified(context)
    if tag is not None:
        return ("If-None-Match", tag) if _VALUE.fullmatch(tag) else None
    return None if time is None else ("If-Modified-Since", http_date(time))


def _state(headers: Headers) -> SourceState | None:
    tag = headers.get("etag")
    if tag is not None:
        return etag_state(tag)
    modified = headers.date("last-modified")
    return None if modified is None else last_modified_state(modified)
