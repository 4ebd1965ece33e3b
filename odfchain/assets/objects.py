"""Objects of stores, read and written: small ones whole, large ones in pieces that are counted and hashed."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from odfchain.assets.access import Stores
from odfchain.assets.hrefs import href_of, public_href
from odfchain.errors import AssetError, FetchError, OdfchainError, SourceNotFoundError
from odfchain.store import fsio
from odfchain.store.buckets import store_message
from odfchain.store.locations import Location

if TYPE_CHECKING:
    from obstore import GetOptions

PIECE = 8 << 20
"""Bytes that are in memory at a time."""


class ChangedError(OdfchainError):
    """An object is not any more what its lock says; never leaves this package."""

    exit_code = 6


@contextlib.contextmanager
def translated(location: Location, stores: Stores) -> Iterator[None]:
    """Whatever the library raises becomes one line with the object's href."""
    from obstore.exceptions import BaseError, PreconditionError  # noqa: PLC0415 - a heavy library

    name = public_href(href_of(location))
    try:
        yield
    except FileNotFoundError:
        raise SourceNotFoundError(f"{name}: no such object") from None
    except PreconditionError:
        raise ChangedError(f"{name}: changed since it was locked") from None
    except (BaseError, ValueError) as error:
        raise FetchError(f"{name}: {stores.message_of(location, store_message(error))}") from None


def read_small(location: Location, stores: Stores, limit: int) -> bytes:
    """The bytes of an object that has at most `limit`.

    Raises:
        AssetError: it has more.
    """
    found = bytearray()
    for piece in pieces(location, stores):
        found += piece
        if len(found) > limit:
            raise AssetError(f"{public_href(href_of(location))}: more than {limit:,} bytes")
    return bytes(found)


def pieces(location: Location, stores: Stores, *, etag: str | None = None) -> Iterator[memoryview]:
    """The bytes of an object in order; only if it still has this entity tag, where one is given."""
    if location.store == "file":
        path = stores.file_of(location)
        with fsio.storage_errors(path), path.open("rb") as file:
            while piece := file.read(PIECE):
                yield memoryview(piece)
        return
    import obstore  # noqa: PLC0415 - a heavy library

    store = stores.store_of(location, whole=True)
    options: GetOptions = {"if_match": etag} if etag is not None else {}
    with translated(location, stores):
        for chunk in obstore.get(store, location.key, options=options).stream(min_chunk_size=PIECE):
            yield memoryview(chunk)


def checksum_of(location: Location, stores: Stores, name: str, *, etag: str | None = None) -> str:
    """The hex digest of an object's bytes by an algorithm of `hashlib`.

    Raises: as `pieces`.
    """
    found = hashlib.new(name)
    for piece in pieces(location, stores, etag=etag):
        found.update(piece)
    return found.hexdigest()


def write(target: Location, targets: Stores, content: Iterator[memoryview]) -> None:
    """Write an object whose content comes in pieces; if they end with an error nothing is there.

    Raises:
        FetchError, StoreError: it cannot be written. And what the content raises.
    """
    if target.store == "file":
        path = targets.file_of(target)
        fsio.make_folder(path.parent)
        with fsio.replaced(path) as file:
            for piece in content:
                file.write(piece)
        return
    import obstore  # noqa: PLC0415 - a heavy library

    first, second = next(content, memoryview(b"")), next(content, None)
    if second is None:  # one request is enough
        with translated(target, targets):
            obstore.put(targets.store_of(target, whole=True), target.key, bytes(first), use_multipart=False)
        return
    failed = list[OdfchainError]()

    def chunks(rest: Iterator[memoryview]) -> Iterator[Any]:
        try:
            yield from (first, second)
            yield from rest
        except OdfchainError as error:
            failed.append(error)
            raise

    try:
        with _read_ahead(content) as rest, translated(target, targets):
            store = targets.store_of(target, whole=True)
            obstore.put(store, target.key, chunks(rest), chunk_size=PIECE, max_concurrency=2)
    except OdfchainError as error:
        raise (failed or [error])[0] from None


@contextlib.contextmanager
def _read_ahead(content: Iterator[memoryview]) -> Iterator[Iterator[memoryview]]:
    """The same pieces, read by a thread of their own.

    The library panics where an object is read while it asks for the pieces of another.
    """
    ready, stopped = queue.Queue[memoryview | BaseException | None](1), threading.Event()

    def hand_over(item: memoryview | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                return ready.put(item, timeout=0.1)
        return None

    def read() -> None:
        end: BaseException | None = None
        try:
            for piece in content:
                hand_over(piece)
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised where the pieces are taken
            end = error
        hand_over(end)

    def taken() -> Iterator[memoryview]:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield taken()
    finally:
        stopped.set()
        reader.join()


def remove(target: Location, targets: Stores) -> None:
    """Remove an object; that it cannot be is not said."""
    if target.store == "file":
        fsio.remove_quietly(targets.file_of(target))
        return
    import obstore  # noqa: PLC0415 - a heavy library

    with contextlib.suppress(OdfchainError), translated(target, targets):
        obstore.delete(targets.store_of(target), target.key)
