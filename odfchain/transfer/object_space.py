"""A part of an object store: keys below one prefix, with bounds on answers and one line for every failure.

s3://bucket/prefix/                       Amazon S3, or what AWS_ENDPOINT_URL says
s3+http://host:9000/bucket/prefix/        whatever speaks like S3, buckets in the path
gs://bucket/prefix/   az://container/prefix/
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from odfchain.errors import (
    AccessError,
    InvalidIdError,
    ObjectNotFoundError,
    TransferError,
    UnsupportedPeerError,
)
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.net.wire import Body
from odfchain.progress import SILENT, Progress
from odfchain.store.buckets import open_store, store_hint, store_message, store_refuses
from odfchain.store.fsio import storage_errors
from odfchain.store.locations import Location
from odfchain.text import one_line
from odfchain.transfer.public_layout import PeerUrl

if TYPE_CHECKING:
    from obstore import GetResult, PutMode
    from obstore.store import ObjectStore

STORE_LIMITS = FetchLimits(
    deadline=SHARING.request_seconds,
    connect_timeout=SHARING.connect_seconds,
    idle_timeout=SHARING.store_idle_seconds,
    retries=SHARING.retries,
    first_wait=SHARING.retry_seconds,
)
"""Bounds on a request; the deadline grows with the size of what is carried."""

T = TypeVar("T")


def place_of(url: PeerUrl) -> Location:
    """Where an s3, s3+http, s3+https, gs or az URL leads.

    Raises:
        UnsupportedPeerError: another scheme, no bucket, or credentials in the URL.
    """
    if url.scheme not in ("s3", "gs", "az", "s3+http", "s3+https"):
        raise UnsupportedPeerError(
            f"{url}: not the URL of an object store",
            hint="write it like s3://bucket/prefix, gs://…, az://… or s3+http://host:9000/bucket/prefix",
        )
    try:
        return Location.parse(url.text, folder=True)
    except InvalidIdError as error:
        raise UnsupportedPeerError(f"{url}: {error.message}", hint=error.hint) from None


Version: TypeAlias = "tuple[str | None, str | None]"
"""What a conditional write is conditional on: entity tag, and generation where the store counts them."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing has it."""

    key: str
    size: int
    tag: str | None
    """What changes when its content does, where the store says so."""
    modified: float
    """When it was written, by the store's clock [s since the epoch]."""


class StoredObject(Body):
    """An object that is being read from `start` on, and the state of the store that it belongs to."""

    def __init__(self, space: ObjectSpace, key: str, result: GetResult, start: int) -> None:
        self.total = result.meta["size"]
        self.length = self.total - start
        self.start = start
        self.version: Version = (result.meta["e_tag"], result.meta["version"])
        self._at = partial(space.translated, key)
        with self._at():
            self._chunks = iter(result.stream(min_chunk_size=1 << 20))
        self._rest = memoryview(b"")

    def close(self) -> None:
        """Let go of what was not read."""
        del self._chunks

    def read_into(self, view: memoryview) -> int:
        """As `Body`."""
        while not self._rest:
            with self._at():
                chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


_PART = 8 << 20
_MOST_PARTS = 9_000
"""Stores take up to 10,000 parts."""

_ATTEMPTS = 3
"""How often a request is tried whose connection breaks off [count]."""

_CHUNK = 1 << 20
_LARGEST = 1 << 36
"""What an object whose size is not asked for may have [bytes]: says how long it may take."""


class WriteRefusedError(Exception):
    """A condition of a write does not hold; never leaves this package."""


class ConditionsUnknownError(Exception):
    """The store has no conditional writes of this kind; never leaves this package."""


class ObjectSpace:
    """The objects of a store below a URL. Methods may be called from several threads.

    Raises, all of them:
        ObjectNotFoundError: no such object (or bucket).
        AccessError: the store refuses.
        TransferError: it cannot be reached, is too slow, sends too much, or is not configured.
    """

    def __init__(self, url: PeerUrl, limits: FetchLimits) -> None:
        self.where = str(url)
        self.address = place_of(url)
        self._limits = limits
        self._stores: dict[int, ObjectStore] = {}
        self._lock = threading.Lock()
        with self.translated(""):
            self._small = self._store(0)

    def _store(self, size: int) -> ObjectStore:
        """The store with the time that a request of this size may take; sizes of one magnitude share one."""
        magnitude = size.bit_length()
        with self._lock:
            if magnitude not in self._stores:
                seconds = self._limits.deadline + (1 << magnitude) / SHARING.bytes_per_second
                self._stores[magnitude] = open_store(self.address, self._limits, seconds)
            return self._stores[magnitude]

    def _path(self, key: str) -> str:
        return self.address.below(key).key

    def read(self, key: str, limit: int) -> tuple[bytes, Version]:
        """An object of at most `limit` bytes, and its version."""
        found = self.open(key)
        data = found.read(limit)
        if data is None:
            raise TransferError(f"{self.where}{key}: larger than the allowed {limit:,} bytes")
        return data, found.version

    def open(self, key: str, start: int = 0, cap: int = 0) -> StoredObject:
        """An object, from byte `start` on unless it ends before; `cap` says how much time it may take."""
        import obstore  # noqa: PLC0415 - a heavy library

        if start and self.size(key) <= start:  # asked first, for such a range would be an error of its own
            start = 0
        with self.translated(key):
            store, path = self._store(cap if cap > LIMITS.block_bytes else 0), self._path(key)
            if start:
                result = obstore.get(store, path, options={"range": {"offset": start}})
            else:
                result = obstore.get(store, path)
        return StoredObject(self, key, result, start)

    def chunks(self, key: str, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """The bytes of an object, or those from `start` up to `end`, as they come."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translated(key):
            store, path = self._store((_LARGEST if end is None else end) - start), self._path(key)
            if end is None:
                result = obstore.get(store, path)
            else:
                result = obstore.get(store, path, options={"range": (start, end)})
            for chunk in result.stream(min_chunk_size=_CHUNK):
                yield memoryview(chunk)

    def size(self, key: str) -> int:
        """Size of an object [bytes]; its bytes are not read."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translated(key):
            return obstore.head(self._small, self._path(key))["size"]

    def modified(self, key: str) -> float:
        """When an object was written, by the store's clock [s since the epoch]."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translated(key):
            return obstore.head(self._small, self._path(key))["last_modified"].timestamp()

    def contains(self, key: str) -> bool:
        """Whether there is such an object."""
        try:
            self.size(key)
        except ObjectNotFoundError:
            return False
        return True

    def write(self, key: str, data: bytes, condition: Version | str = "overwrite") -> Version:
        """Store a small object: always, if there is none (`create`), or if it is in this version.

        Returns the version that it has now.
        """
        if condition == "overwrite":  # the library repeats it
            return self._write(key, data, condition)
        return again(lambda: self._write(key, data, condition))

    def _write(self, key: str, data: bytes, condition: Version | str) -> Version:
        import obstore  # noqa: PLC0415 - a heavy library
        from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError  # noqa: PLC0415

        mode: PutMode
        if isinstance(condition, str):
            mode = "create" if condition == "create" else "overwrite"
        else:
            tag, version = condition
            if tag is None and version is None:
                raise ConditionsUnknownError(key)
            mode = {name: v for name, v in (("e_tag", tag), ("version", version)) if v}  # type: ignore[assignment]
        with self.translated(key, absent="no such bucket"):
            try:
                put = obstore.put(self._small, self._path(key), data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                raise WriteRefusedError(key) from error
            except NotImplementedError as error:
                raise ConditionsUnknownError(key) from error
            except GenericError as error:
                if condition != "overwrite" and " 501 " in str(error).split("\n", maxsplit=1)[0]:
                    raise ConditionsUnknownError(key) from error
                raise
        return put["e_tag"], put["version"]

    def put_file(self, key: str, source: Path, progress: Progress = SILENT, *, renew: bool = False) -> bool:
        """Durably store a file whose content follows from its key; what is there already stays as it is.

        Returns whether it was there. To `renew` it is written in any case: it is young then, and nobody
        removes it soon.

        Large files are sent in parts. An interrupted upload is not visible; the store keeps its parts until
        a life-cycle rule of the bucket removes them.
        """
        with storage_errors(source):
            size = source.stat().st_size
            if size > _PART:
                if not renew and self._has(key, size):
                    progress.advance(size)
                    return True
                part = max(_PART, -(-size // _MOST_PARTS))
                again(lambda: self._upload(key, _read_chunks(source, progress), part))
                return False
            data = source.read_bytes()
        if renew:
            again(lambda: self.write(key, data))
            return False
        try:
            self.write(key, data, "create")
        except WriteRefusedError:
            there = True
        except ConditionsUnknownError:
            self.write(key, data)
            there = True
        else:
            there = False
        progress.advance(size)
        return there

    def _has(self, key: str, size: int) -> bool:
        with contextlib.suppress(ObjectNotFoundError):
            return self.size(key) == size
        return False

    def _upload(self, key: str, chunks: Iterator[bytes], part: int) -> None:
        """Store an object in parts of `part` bytes; it appears with its last part."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translated(key, absent="no such bucket"):
            obstore.put(self._store(part), self._path(key), chunks, chunk_size=part, max_concurrency=2)

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        import obstore  # noqa: PLC0415 - a heavy library

        with contextlib.suppress(ObjectNotFoundError), self.translated(key):
            obstore.delete(self._small, self._path(key))

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove objects, those of them that are there."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translated(""):
            if keys:
                obstore.delete(self._small, [self._path(key) for key in keys])

    def folders(self, below: str = "") -> Sequence[str]:
        """The next segments of all keys that begin with `below` (empty, or ending in a slash)."""
        import obstore  # noqa: PLC0415 - a heavy library

        def listing() -> Sequence[str]:
            return obstore.list_with_delimiter(self._small, self._path(below))["common_prefixes"]

        return [text.rstrip("/").rsplit("/", maxsplit=1)[-1] for text in self._listing(below, listing)]

    def listed(self, below: str, most: int) -> list[Listed]:
        """All objects whose keys begin with `below` and a slash, by their keys below it.

        Raises:
            TransferError: there are more than `most`.
        """
        import obstore  # noqa: PLC0415 - a heavy library

        start = len(self._path(below)) + 1

        def listing() -> list[Listed]:
            found: list[Listed] = []
            for batch in obstore.list(self._small, self._path(below)):
                found += [
                    Listed(one["path"][start:], one["size"], one["e_tag"], one["last_modified"].timestamp())
                    for one in batch
                ]
                if len(found) > most:
                    raise TransferError(f"{self.where}{below}: more than {most:,} objects")
            return found

        return self._listing(below, listing)

    def _listing(self, below: str, listing: Callable[[], T]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self.translated(below):
                    return listing()
            except (AccessError, ObjectNotFoundError):
                raise
            except TransferError as error:
                if attempt == _ATTEMPTS or "response body" not in str(error.__cause__):
                    raise
        raise AssertionError("unreachable")

    def clear(self, below: str = "") -> None:
        """Remove all objects below the URL, or those whose keys begin with `below` and a slash."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translated(below):
            for batch in obstore.list(self._small, self._path(below)):
                obstore.delete(self._small, [each["path"] for each in batch])

    @contextlib.contextmanager
    def translated(self, key: str, absent: str | None = None) -> Iterator[None]:
        """Whatever the library raises becomes one line with the object and the store.

        `absent` is what it means to a write that something is not there.
        """
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a heavy library

        at = one_line(f"{self.where}{key}")
        try:
            yield
        except FileNotFoundError as error:
            if absent is not None:
                raise TransferError(f"{at}: {absent}", hint="make it with the store's own tools") from error
            raise ObjectNotFoundError(f"{at}: no such object or bucket") from error
        except (BaseError, OSError, ValueError, OverflowError, NotImplementedError) as error:
            kind = AccessError if store_refuses(error) else TransferError
            raise kind(f"{at}: {store_message(error)}", hint=store_hint(error)) from error


def _read_chunks(source: Path, progress: Progress) -> Iterator[bytes]:
    with storage_errors(source), source.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
            progress.advance(len(chunk))


def again(work: Callable[[], T]) -> T:
    """What `work` returns, tried again where the connection breaks off; for what may be done twice.

    The library itself repeats nothing that has a condition, or that has begun to come.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except AccessError:
            raise
        except TransferError:
            continue
    return work()
