"""One object of an object store: S3, Google Cloud Storage, Azure Blob Storage, and what speaks like them.

Addresses and credentials come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), as with other tools: a
source's description is public and must not carry them. The key is the URL's path, percent-decoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import FetchError, InvalidIdError, SourceNotFoundError
from odfchain.ingest.fetch.download import Download
from odfchain.ingest.fetch.fetcher import (
    UP_TO_DATE,
    FetchContext,
    Fetched,
    FetchResult,
    etag_state,
    last_modified_state,
)
from odfchain.ingest.fetch.remembered import is_known, tell_if_new
from odfchain.model.events import SourceState
from odfchain.model.timestamp import Timestamp
from odfchain.net.headers import Headers
from odfchain.net.retry import Deadline, Timing, TransientError
from odfchain.net.template import unreadable_name
from odfchain.store.buckets import open_store, store_message
from odfchain.store.locations import ENVIRONMENT_HINT, Location

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta

_CHUNK = 1 << 20


def fetch_object(
    url: str,
    context: FetchContext,
    *,
    name: str,
    secrets: frozenset[str] = frozenset(),
    timing: Timing | None = None,
) -> FetchResult:
    """The object in a file of the context's folder, or `UP_TO_DATE`.

    The state is the entity tag, else the time of the last modification, of the very bytes that were brought.
    The event time is the time of the last modification. `name` is what messages call the object; `secrets`
    are values that no message may show.
    """
    deadline = Deadline(context.limits.deadline, timing or Timing(), name=name)
    place = _place(url, name)
    with _translated(name, secrets, deadline):
        import obstore

        store = open_store(place, context.limits, deadline.remaining)
        if is_known(_state(obstore.head(store, place.key)), context):
            return UP_TO_DATE
        deadline.check()
        result = obstore.get(store, place.key)  # it may have changed since: its own description counts
        meta = result.meta
        tell_if_new(_state(meta), context)
        path = _save(result, context, deadline, name=name)
    return Fetched(path=path, name=name, state=_state(meta), event_time=_modified(meta))


def _place(url: str, name: str) -> Location:
    """Where the object is."""
    try:
        place = Location.parse(url)
    except InvalidIdError as error:
        shown = unreadable_name(name) if error.message == "not a valid URL" else name
        raise FetchError(f"{shown}: {error.message}", hint=error.hint) from None
    return place


def _modified(meta: ObjectMeta) -> Timestamp:
    return Timestamp.from_datetime(meta["last_modified"])


def _state(meta: ObjectMeta) -> SourceState:
    tag = meta["e_tag"]
    return etag_state(tag) if tag else last_modified_state(_modified(meta))


def _save(result: GetResult, context: FetchContext, deadline: Deadline, *, name: str) -> Path:
    with Download(context, deadline, name=name) as download:
        download.begin(Headers([(b"content-length", b"%d" % result.meta["size"])]))
        for chunk in result.stream(min_chunk_size=_CHUNK):
            download.append(memoryview(chunk))
        try:
            return download.finish()
        except TransientError as error:
            raise FetchError(f"{name}: {error.reason}") from error


@contextlib.contextmanager
def _translated(name: str, secrets: frozenset[str], deadline: Deadline) -> Iterator[None]:
    """Whatever the library raises becomes one line."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{name}: no such object or bucket") from error
    except (BaseError, OSError, ValueError, OverflowError) as error:
        deadline.check()
        raise FetchError(f"{name}: {store_message(error, secrets)}", hint=ENVIRONMENT_HINT) from error
