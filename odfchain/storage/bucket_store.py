"""A dataset in an object store: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

The head is swapped by a conditional write: create it if there is none, or replace it if its entity tag (or
generation) is still the one that was read. Some clones of S3 accept such requests and ignore the condition.
So before the first swap the condition is put to the test on the block that the head is going to name: writing
its own bytes over it must be refused, and does no harm where it is not (RFC-021).
"""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from odfchain import errors
from odfchain.lazy import obstore
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress, on_a_thread
from odfchain.storage.fsio import storage_errors
from odfchain.storage.http_rules import Deadline, Pieces
from odfchain.storage.local import HEAD, conflict, parse_ref
from odfchain.storage.locations import ENVIRONMENT_HINT, Location, PeerUrl, open_store, store_message
from odfchain.storage.public_layout import ObjectKey, ObjectKind, ref_key
from odfchain.storage.store import PEER_LIMITS, AbsentError, Opened, Store, Transport
from odfchain.text import one_line

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode
    from obstore.store import ObjectStore


# A prefix of an object store, with limits on answers and one-line errors.
#
#     s3://bucket/prefix/                       Amazon S3, or AWS_ENDPOINT_URL
#     s3+http://host:9000/bucket/prefix/        S3-compatible servers, buckets in the path
#     gs://bucket/prefix/   az://container/prefix/

STORE_LIMITS = replace(PEER_LIMITS, idle_timeout=SHARING.store_idle_seconds)
"""Bounds on a request; the deadline grows with the size of what is carried."""

T = TypeVar("T")


def place_of(url: PeerUrl) -> Location:
    """Address of an s3, s3+http, s3+https, gs or az URL."""
    if url.scheme not in ("s3", "gs", "az", "s3+http", "s3+https"):
        hint = "write it like s3://bucket/prefix, gs://…, az://… or s3+http://host:9000/bucket/prefix"
        raise errors.UnsupportedPeerError(f"{url}: not the URL of an object store", hint=hint)
    try:
        return Location.parse(url.text, folder=True)
    except errors.InvalidIdError as error:
        raise errors.UnsupportedPeerError(f"{url}: {error.message}", hint=error.hint) from None


Version: TypeAlias = "tuple[str | None, str | None]"
"""The condition of a conditional write: entity tag, and generation where the store counts them."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing has it."""

    key: str
    size: int
    tag: str | None
    """A tag that changes with the content, where the store gives one."""
    modified: float
    """When it was written, by the store's clock [s since the epoch]."""


_PART = 8 << 20
# Stores take up to 10,000 parts.
_MOST_PARTS = 9_000

# How often a request is tried whose connection breaks off [count].
_ATTEMPTS = 3

_CHUNK = 1 << 20
# Assumed limit of an object of unknown size [bytes], which sets the timeout.
_LARGEST = 1 << 36


class WriteRefusedError(Exception):
    """A condition of a write does not hold; never leaves this package."""


class ConditionsUnknownError(Exception):
    """The store has no conditional writes of this kind; never leaves this package."""


# A version that nothing has.
_NO_VERSION: Version = ('"00000000000000000000000000000000"', "0")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Supported conditions of a store's writes."""

    create: bool = True
    update: bool = True


class BucketTransport(Transport):
    """Objects below a URL of a store; what reads one raises ObjectNotFoundError if it is not there."""

    def __init__(self, url: PeerUrl, limits: FetchLimits = STORE_LIMITS) -> None:
        """Nothing is asked of the store yet."""
        super().__init__(str(url), limits=limits)
        self._conditions: Conditions | None = None
        self.address = place_of(url)
        self._stores: dict[int, ObjectStore] = {}
        self._lock = threading.Lock()
        with self.translate_errors(""):
            self._small = self._store(0)

    def _store(self, size: int) -> ObjectStore:
        magnitude = size.bit_length()
        with self._lock:
            # one store, and so one connection pool, per order of magnitude: timeouts are set per store
            if magnitude not in self._stores:
                seconds = self.limits.deadline + (1 << magnitude) / SHARING.bytes_per_second
                self._stores[magnitude] = open_store(self.address, self.limits, seconds)
            return self._stores[magnitude]

    def _path(self, key: str) -> str:
        return self.address.below(key).key

    def read(self, key: str, limit: int) -> tuple[bytes, Version]:
        """An object of at most `limit` bytes, and its version."""
        stream, meta = self._get(key, 0)
        data = Pieces(stream, meta["size"]).read(limit)
        if data is None:
            raise errors.TransferError(f"{self.where}{key}: larger than the allowed {limit:,} bytes")
        return data, (meta["e_tag"], meta["version"])

    def find(self, key: str, limit: int) -> tuple[bytes, Version | None]:
        """As `read`, but nothing, in no version, where there is no such object."""
        try:
            return self.read(key, limit)
        except errors.ObjectNotFoundError:
            return b"", None

    @contextlib.contextmanager
    def open(self, key: str, start: int, cap: int, _deadline: Deadline, /) -> Iterator[Opened]:
        """As `Transport`; `cap` says how much time it may take."""
        # asked first, for a range behind the end would be an error of its own
        if start and (self.size(key) or 0) <= start:
            start = 0
        try:
            stream, meta = self._get(key, cap if cap > LIMITS.block_bytes else 0, start)
        except errors.ObjectNotFoundError as error:
            raise AbsentError(f"{self.where}{key}: not there") from error
        with contextlib.closing(stream):  # a store that sends too much does not wait for us to read it
            body = Pieces(stream, meta["size"] - start)
            yield Opened(f"{self.where}{key}", body, meta["size"], start=start, framed=False)

    def _get(
        self, key: str, size: int, start: int = 0, end: int | None = None
    ) -> tuple[Generator[memoryview, None, None], ObjectMeta]:
        options: GetOptions = {}
        if end is not None:
            options = {"range": (start, end)}
        elif start:
            options = {"range": {"offset": start}}
        with self.translate_errors(key):
            result = obstore.get(self._store(size), self._path(key), options=options)
        return self._read(key, result), result.meta

    def _read(self, key: str, result: GetResult) -> Generator[memoryview, None, None]:
        with self.translate_errors(key):
            for chunk in result.stream(min_chunk_size=_CHUNK):
                yield memoryview(chunk)

    def chunks(self, key: str, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """The bytes of an object, or those from `start` up to `end`, as they come."""
        size = (_LARGEST if end is None else end) - start
        return self._get(key, size, start, end)[0]

    def _meta(self, key: str) -> ObjectMeta:
        with self.translate_errors(key):
            return obstore.head(self._small, self._path(key))

    def size(self, key: str) -> int | None:
        with contextlib.suppress(errors.ObjectNotFoundError):
            return self._meta(key)["size"]
        return None

    def modified(self, key: str) -> float:
        """When an object was written, by the store's clock [s since the epoch]."""
        return self._meta(key)["last_modified"].timestamp()

    def write(self, key: str, data: bytes) -> None:
        self._write(key, data, "overwrite")  # the library repeats it

    def write_if(self, key: str, data: bytes, version: Version | None) -> Version:
        """Store a small object if it is in this version (None: if there is none); returns its version now.

        Raises:
            WriteRefusedError: it is in another one, perhaps that of this request, which was repeated.
            ConditionsUnknownError: the store has no such conditions.
        """
        mode: PutMode = "create"
        if version is not None:
            mode = {name: v for name, v in zip(("e_tag", "version"), version, strict=True) if v}  # type: ignore[assignment]
        if not mode:
            raise ConditionsUnknownError(key)
        return retry(lambda: self._write(key, data, mode))

    def settle(self, key: str, data: bytes, version: Version | None, limit: int) -> bytes:
        """What a small object holds after `write_if`: the `data`, or what another writer was faster with."""
        try:
            self.write_if(key, data, version)
        except WriteRefusedError:
            # perhaps by our own request, which was repeated: what is there now decides
            return self.find(key, limit)[0]
        return data

    def _write(self, key: str, data: bytes, mode: PutMode) -> Version:
        with self.translate_errors(key, absent="no such bucket"):
            try:
                put = obstore.put(self._small, self._path(key), data, mode=mode, use_multipart=False)
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError) as error:
                raise WriteRefusedError(key) from error
            except NotImplementedError as error:
                raise ConditionsUnknownError(key) from error
            except obstore.exceptions.GenericError as error:
                if mode != "overwrite" and " 501 " in str(error).split("\n", maxsplit=1)[0]:
                    raise ConditionsUnknownError(key) from error
                raise
        return put["e_tag"], put["version"]

    def conditions(self, key: str, data: bytes) -> Conditions:
        """The conditions that the store keeps, tried by writing an object's own bytes over it."""

        def keeps(version: Version | None) -> bool:
            try:
                self.write_if(key, data, version)
            except WriteRefusedError:
                return True
            except ConditionsUnknownError:
                pass
            return False

        return Conditions(create=keeps(None), update=keeps(_NO_VERSION))

    def put_file(
        self, key: ObjectKey | str, source: Path, progress: Progress = SILENT, *, renew: bool = False
    ) -> bool:
        """As `Transport`, for all files whose content follows from their key; what is there stays as it is.

        To `renew` it is written in any case: so gc takes it for young.
        Large files are sent in parts. An interrupted upload is not visible; the store keeps its parts until
        a life-cycle rule of the bucket removes them.
        """
        key = str(key)
        with storage_errors(source):
            size = source.stat().st_size
            if size > _PART:
                if not renew and self.size(key) == size:
                    progress.advance(size)
                    return True
                part = max(_PART, -(-size // _MOST_PARTS))
                retry(lambda: self._upload(key, _read_chunks(source, progress), part))
                return False
            data = source.read_bytes()
        if renew:
            retry(lambda: self.write(key, data))
            return False
        try:
            self.write_if(key, data, None)
        except WriteRefusedError:
            there = True
        except ConditionsUnknownError:
            self.write(key, data)
            there = True
        else:
            there = False
        progress.advance(size)
        return there

    def _upload(self, key: str, chunks: Iterator[bytes], part: int) -> None:
        # a multipart upload: the object appears with its last part
        with self.translate_errors(key, absent="no such bucket"):
            obstore.put(self._store(part), self._path(key), chunks, chunk_size=part, max_concurrency=2)

    def delete(self, key: str) -> None:
        with contextlib.suppress(errors.ObjectNotFoundError), self.translate_errors(key):
            obstore.delete(self._small, self._path(key))

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove objects, those of them that are there."""
        with self.translate_errors(""):
            if keys:
                obstore.delete(self._small, [self._path(key) for key in keys])

    def folders(self, below: str) -> Sequence[str]:
        def listing() -> Sequence[str]:
            found = self._in_time(lambda: obstore.list_with_delimiter(self._small, self._path(below)))
            return found["common_prefixes"]

        return [text.rstrip("/").rsplit("/", maxsplit=1)[-1] for text in self._listing(below, listing)]

    def listed(self, below: str, most: int) -> list[Listed]:
        """All objects whose keys begin with `below` and a slash, by their keys below it."""
        start = len(self._path(below)) + 1

        def listing() -> list[Listed]:
            found: list[Listed] = []
            for batch in self._batches(below):
                found += [
                    Listed(one["path"][start:], one["size"], one["e_tag"], one["last_modified"].timestamp())
                    for one in batch
                ]
                if len(found) > most:
                    raise errors.TransferError(f"{self.where}{below}: more than {most:,} objects")
            return found

        return self._listing(below, listing)

    def _batches(self, below: str) -> Iterator[Sequence[ObjectMeta]]:
        stream = obstore.list(self._small, self._path(below), chunk_size=1_000)
        while (batch := self._in_time(lambda: next(stream, None))) is not None:
            yield batch

    def _in_time(self, ask: Callable[[], T]) -> T:
        # each request ends in time, but a store may say for ever that there is more, and give nothing:
        # what the library waits for cannot be ended, and ends with the process
        result = on_a_thread(ask, "odfchain-listing")
        if not wait((result,), timeout=self.limits.deadline).done:
            raise TimeoutError("the listing does not end")
        return result.result()

    def _listing(self, below: str, listing: Callable[[], T]) -> T:
        def attempt() -> T:
            with self.translate_errors(below):
                return listing()

        return retry(attempt, lambda error: "response body" in str(error.__cause__))

    def clear(self, below: str = "") -> None:
        """Remove all objects below the URL, or those whose keys begin with `below` and a slash."""
        with self.translate_errors(below):
            for batch in self._batches(below):
                obstore.delete(self._small, [each["path"] for each in batch])

    # --- references --------------------------------------------------------------------------------

    def versioned(self, ref: str) -> tuple[Multihash | None, Version | None]:
        """A reference (None: deleted) and its version for a conditional write; None where none is there."""
        data, version = self.find(ref_key(ref), LIMITS.ref_bytes)
        if version is None or (not data and ref != HEAD):
            return None, version
        try:
            return parse_ref(data, f"{self.where}{ref_key(ref)}"), version
        except errors.StoreError as error:
            raise errors.CorruptedPeerError(str(error)) from error

    def replace(self, ref: str, version: Version | None, new: Multihash | None) -> Version:
        """Point a reference at `new` if it is in this version still (None: there is none), by one request.

        Without a `new` one its object is made empty: a branch is none any more.
        """
        return self.write_if(ref_key(ref), str(new or "").encode(), version)

    def remove(self) -> None:
        """Remove the dataset: its head first, so that no reader finds a part of it."""
        self.delete(ref_key(HEAD))
        self.clear()

    def swap(self, ref: str, expected: Multihash | None, new: Multihash) -> None:
        conditions = self._probed(new)
        self.caveat = self._caveat(ref, conditions)
        actual, version = self.versioned(ref)
        if actual != expected:
            raise conflict(ref, expected, actual)
        if conditions.create if version is None else conditions.update:
            try:
                self.replace(ref, version, new)
            except WriteRefusedError as error:
                # An answer may be lost and its request repeated: then what refuses is our own write.
                actual = Store(self, ref).head()
                if actual != new:
                    raise conflict(ref, expected, actual) from error
        elif conditions.create:
            self._swap_locked(ref, expected, new)
        else:
            # no condition is kept: the caveat tells the user
            self.write(ref_key(ref), str(new).encode())

    def _swap_locked(self, ref: str, expected: Multihash | None, new: Multihash) -> None:
        key = _lock_key(ref)
        owner = f"{secrets.token_hex(8)} {Timestamp.now()}".encode()
        if self.settle(key, owner, None, LIMITS.ref_bytes) != owner:
            hint = "run the command again; if no other is running, remove this object from the store"
            raise errors.TransferError(f"{self.where}{key}: another writer is replacing the head", hint=hint)
        try:
            actual = Store(self, ref).head()
            if actual != expected:
                raise conflict(ref, expected, actual)
            self.write(ref_key(ref), str(new).encode())
        finally:
            self.delete(key)

    def _probed(self, name: Multihash) -> Conditions:
        if self._conditions is None and self.address.store == "s3":
            key = str(ObjectKey(ObjectKind.BLOCK, name))
            if self.size(key) is None:
                return Conditions()  # nothing to try it out on
            self._conditions = self.conditions(key, Store(self).block(name))
        return self._conditions or Conditions()

    def _caveat(self, ref: str, kept: Conditions) -> str | None:
        if kept.create and kept.update:
            return None
        if kept.create:
            return (
                f"{self.where} cannot replace conditionally: its head was replaced under {_lock_key(ref)}, "
                "a lock that binds only writers that look for it"
            )
        return (
            f"{self.where} has no conditional writes: two pushes at the same moment are not noticed, "
            "and the last one wins"
        )

    @contextlib.contextmanager
    def translate_errors(self, key: str, absent: str | None = None) -> Iterator[None]:
        """What the library raises becomes one line; `absent` is what an absent object means to a write."""
        at = one_line(f"{self.where}{key}")
        try:
            yield
        except FileNotFoundError as error:
            if absent is not None:
                raise errors.TransferError(f"{at}: {absent}", hint="create the bucket first") from error
            raise errors.ObjectNotFoundError(f"{at}: no such object or bucket") from error
        except (
            obstore.exceptions.BaseError,
            OSError,
            ValueError,
            OverflowError,
            NotImplementedError,
        ) as error:
            kind = errors.AccessError if _refuses(error) else errors.TransferError
            raise kind(f"{at}: {store_message(error)}", hint=_hint(error)) from error


@functools.lru_cache(maxsize=1_024)
def bucket_at(url: str, limits: FetchLimits = STORE_LIMITS) -> BucketTransport:
    """The objects below a URL, over the connections that this process has."""
    return BucketTransport(PeerUrl.parse(url), limits)


_CLOCK = "RequestTimeTooSkewed|RequestExpired|Request date header too old|check your iat and exp"
_CLOCK_HINT = (
    "set the clock of this machine: it differs from the store's by more than that takes (S3: 15 minutes)"
)
_BUSY_HINT = "the store has too much to do: run the command again later"
_LOST_HINT = f"run the command again when the store can be reached; {ENVIRONMENT_HINT}"
_ACCESS_HINT = (
    "grant reading and listing (without it a store does not say what is absent), and look at the clock"
)
# Hints for failures, by a part of the library's message.
_HINTS = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (_CLOCK, _CLOCK_HINT),
        (" (?:429|503) |SlowDown", _BUSY_HINT),
        (
            "error sending request|body error|timed out|header not present in partial| 5[0-9][0-9] ",
            _LOST_HINT,
        ),
        (" 40[13] ", _ACCESS_HINT),
    )
)


def _hint(error: BaseException) -> str:
    line = (str(error).splitlines() or [""])[0]
    return next((hint for pattern, hint in _HINTS if pattern.search(line)), ENVIRONMENT_HINT)


def _refuses(error: BaseException) -> bool:
    # of listings the library does not say so by itself
    if isinstance(error, obstore.exceptions.PermissionDeniedError | obstore.exceptions.UnauthenticatedError):
        return True
    return bool(re.search(r"status code: 40[13] ", (str(error).splitlines() or [""])[0]))


def _read_chunks(source: Path, progress: Progress) -> Iterator[bytes]:
    with storage_errors(source), source.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
            progress.advance(len(chunk))


def retry(work: Callable[[], T], passes: Callable[[errors.TransferError], bool] = lambda _: True) -> T:
    """Retry `work`, which must be idempotent, when the connection breaks."""
    # obstore itself does not retry conditional requests, or bodies that have begun
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except errors.AccessError:
            raise
        except errors.TransferError as error:
            if not passes(error):
                raise
    return work()


def _lock_key(ref: str) -> str:
    # for stores without a conditional replace
    return f"refs/.{ref}.lock"
