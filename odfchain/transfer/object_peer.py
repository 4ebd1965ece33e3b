"""A dataset in an object store: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

The head is swapped by a conditional write: create it if there is none, or replace it if its entity tag (or
generation) is still the one that was read. Some clones of S3 accept such requests and ignore the condition.
So before the first swap the condition is put to the test on the block that the head is going to name: writing
its own bytes over it must be refused, and does no harm where it is not (RFC-021).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from odfchain import errors
from odfchain.chain.signed_heads import SignedFile
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.odf.block_codec import decode_block
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.storage.fsio import storage_errors
from odfchain.storage.http_connection import Pieces
from odfchain.storage.http_rules import Deadline
from odfchain.storage.local import HEAD, check_object_name, conflict, parse_ref
from odfchain.storage.locations import ENVIRONMENT_HINT, Location, open_store, store_message
from odfchain.text import one_line
from odfchain.transfer.peer import AbsentError, Opened, WritablePeer, as_transfer_errors
from odfchain.transfer.public_layout import (
    HINT_KEY,
    REFS_HINT_KEY,
    ObjectKey,
    ObjectKind,
    PeerUrl,
    encode_hint,
    encode_names,
    ref_key,
)

if TYPE_CHECKING:
    from obstore import GetResult, PutMode
    from obstore.store import ObjectStore


# A prefix of an object store, with limits on answers and one-line errors.
#
#     s3://bucket/prefix/                       Amazon S3, or AWS_ENDPOINT_URL
#     s3+http://host:9000/bucket/prefix/        S3-compatible servers, buckets in the path
#     gs://bucket/prefix/   az://container/prefix/

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
    """Address of an s3, s3+http, s3+https, gs or az URL."""
    if url.scheme not in ("s3", "gs", "az", "s3+http", "s3+https"):
        raise errors.UnsupportedPeerError(
            f"{url}: not the URL of an object store",
            hint="write it like s3://bucket/prefix, gs://…, az://… or s3+http://host:9000/bucket/prefix",
        )
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


class StoredObject(Pieces):
    """An object that is being read from `start` on, and the state of the store that it belongs to."""

    def __init__(self, space: ObjectSpace, key: str, result: GetResult, start: int) -> None:
        self.total = result.meta["size"]
        self.length = self.total - start
        self.start = start
        self.version: Version = (result.meta["e_tag"], result.meta["version"])
        super().__init__(self._read(space, key, result))

    @staticmethod
    def _read(space: ObjectSpace, key: str, result: GetResult) -> Iterator[memoryview]:
        with space.translate_errors(key):
            for chunk in result.stream(min_chunk_size=_CHUNK):
                yield memoryview(chunk)

    def close(self) -> None:
        """Let go of what was not read."""
        self._pieces = iter(())


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
        with self.translate_errors(""):
            self._small = self._store(0)

    def _store(self, size: int) -> ObjectStore:
        magnitude = size.bit_length()
        with self._lock:
            # one store, and so one connection pool, per order of magnitude: timeouts are set per store
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
            raise errors.TransferError(f"{self.where}{key}: larger than the allowed {limit:,} bytes")
        return data, found.version

    def open(self, key: str, start: int = 0, cap: int = 0) -> StoredObject:
        """An object, from byte `start` on unless it ends before; `cap` says how much time it may take."""
        import obstore  # noqa: PLC0415 - a heavy library

        if start and self.size(key) <= start:  # asked first, for such a range would be an error of its own
            start = 0
        with self.translate_errors(key):
            store, path = self._store(cap if cap > LIMITS.block_bytes else 0), self._path(key)
            if start:
                result = obstore.get(store, path, options={"range": {"offset": start}})
            else:
                result = obstore.get(store, path)
        return StoredObject(self, key, result, start)

    def chunks(self, key: str, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """The bytes of an object, or those from `start` up to `end`, as they come."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translate_errors(key):
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

        with self.translate_errors(key):
            return obstore.head(self._small, self._path(key))["size"]

    def modified(self, key: str) -> float:
        """When an object was written, by the store's clock [s since the epoch]."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translate_errors(key):
            return obstore.head(self._small, self._path(key))["last_modified"].timestamp()

    def contains(self, key: str) -> bool:
        """True if there is such an object."""
        try:
            self.size(key)
        except errors.ObjectNotFoundError:
            return False
        return True

    def write(self, key: str, data: bytes, condition: Version | str = "overwrite") -> Version:
        """Store a small object: always, if there is none (`create`), or if it is in this version.

        Returns the version that it has now.
        """
        if condition == "overwrite":  # the library repeats it
            return self._write(key, data, condition)
        return retry(lambda: self._write(key, data, condition))

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
        with self.translate_errors(key, absent="no such bucket"):
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

    def keeps(self, key: str, data: bytes, condition: Version | str) -> bool:
        """True if the store refuses a write of an object's own bytes whose condition does not hold."""
        try:
            self.write(key, data, condition)
        except WriteRefusedError:
            return True
        except ConditionsUnknownError:
            pass
        return False

    def put_file(self, key: str, source: Path, progress: Progress = SILENT, *, renew: bool = False) -> bool:
        """Durably store a file whose content follows from its key; what is there already stays as it is.

        Returns whether it was there. To `renew` it is written in any case: so gc takes it
        for young.

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
                retry(lambda: self._upload(key, _read_chunks(source, progress), part))
                return False
            data = source.read_bytes()
        if renew:
            retry(lambda: self.write(key, data))
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
        with contextlib.suppress(errors.ObjectNotFoundError):
            return self.size(key) == size
        return False

    def _upload(self, key: str, chunks: Iterator[bytes], part: int) -> None:
        import obstore  # noqa: PLC0415 - a heavy library

        # a multipart upload: the object appears with its last part
        with self.translate_errors(key, absent="no such bucket"):
            obstore.put(self._store(part), self._path(key), chunks, chunk_size=part, max_concurrency=2)

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        import obstore  # noqa: PLC0415 - a heavy library

        with contextlib.suppress(errors.ObjectNotFoundError), self.translate_errors(key):
            obstore.delete(self._small, self._path(key))

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove objects, those of them that are there."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translate_errors(""):
            if keys:
                obstore.delete(self._small, [self._path(key) for key in keys])

    def folders(self, below: str = "") -> Sequence[str]:
        """The next segments of all keys that begin with `below` (empty, or ending in a slash)."""
        import obstore  # noqa: PLC0415 - a heavy library

        def listing() -> Sequence[str]:
            return obstore.list_with_delimiter(self._small, self._path(below))["common_prefixes"]

        return [text.rstrip("/").rsplit("/", maxsplit=1)[-1] for text in self._listing(below, listing)]

    def listed(self, below: str, most: int) -> list[Listed]:
        """All objects whose keys begin with `below` and a slash, by their keys below it."""
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
                    raise errors.TransferError(f"{self.where}{below}: more than {most:,} objects")
            return found

        return self._listing(below, listing)

    def _listing(self, below: str, listing: Callable[[], T]) -> T:
        def attempt() -> T:
            with self.translate_errors(below):
                return listing()

        return retry(attempt, lambda error: "response body" in str(error.__cause__))

    def clear(self, below: str = "") -> None:
        """Remove all objects below the URL, or those whose keys begin with `below` and a slash."""
        import obstore  # noqa: PLC0415 - a heavy library

        with self.translate_errors(below):
            for batch in obstore.list(self._small, self._path(below)):
                obstore.delete(self._small, [each["path"] for each in batch])

    @contextlib.contextmanager
    def translate_errors(self, key: str, absent: str | None = None) -> Iterator[None]:
        """What the library raises becomes one line with the object and the store.

        `absent` is what it means to a write that something is not there.
        """
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a heavy library

        at = one_line(f"{self.where}{key}")
        try:
            yield
        except FileNotFoundError as error:
            if absent is not None:
                raise errors.TransferError(f"{at}: {absent}", hint="create the bucket first") from error
            raise errors.ObjectNotFoundError(f"{at}: no such object or bucket") from error
        except (BaseError, OSError, ValueError, OverflowError, NotImplementedError) as error:
            kind = errors.AccessError if _refuses(error) else errors.TransferError
            raise kind(f"{at}: {store_message(error)}", hint=_hint(error)) from error


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
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError  # noqa: PLC0415 - as above

    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
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


NO_VERSION: Version = ('"00000000000000000000000000000000"', "0")
"""A version that no block has."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Supported conditions of a store's writes."""

    create: bool
    update: bool


class ObjectPeer(WritablePeer):
    """A dataset below a URL of an object store."""

    def __init__(self, url: PeerUrl, limits: FetchLimits = STORE_LIMITS) -> None:
        """Nothing is asked of the store yet."""
        self._space = ObjectSpace(url, limits)
        super().__init__(self._space.where, limits=limits)
        self._conditions: Conditions | None = None

    def close(self) -> None:
        pass  # the library closes connections that are not used

    # --- reading -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self, key: str, start: int, cap: int, _deadline: Deadline, /) -> Iterator[Opened]:
        try:
            found = self._space.open(key, start, cap)
        except errors.ObjectNotFoundError as error:
            raise AbsentError(f"{self._where}{key}: not there") from error
        try:
            yield Opened(f"{self._where}{key}", found, found.total, start=found.start, framed=False)
        finally:
            found.close()  # a store that sends too much does not wait for us to read it

    def _read_head(self) -> tuple[Multihash | None, Version | None]:
        try:
            data, version = self._space.read(ref_key(self.ref), LIMITS.ref_bytes)
        except errors.ObjectNotFoundError:
            return None, None
        if not data and self.ref != HEAD:
            return None, version  # a branch that was deleted
        try:
            return parse_ref(data, f"{self._where}{ref_key(self.ref)}"), version
        except errors.StoreError as error:
            raise errors.CorruptedPeerError(str(error)) from error

    def versioned_head(self) -> tuple[Multihash | None, Version | None]:
        """The head, or the branch, and the version for a conditional write; None where none is there."""
        # an empty object is a deleted branch: None, with a version
        with as_transfer_errors():
            return self._read_head()

    # --- writing -----------------------------------------------------------------------------------

    def replace_head(self, version: Version | None, new: Multihash) -> Version:
        """Point the head at `new` if it is in this version still (None: there is none), by one request."""
        return self._space.write(
            ref_key(self.ref), str(new).encode(), "create" if version is None else version
        )

    def empty_ref(self, version: Version | None) -> Version:
        """Make the object of a branch empty if it is in this version still: it is none any more."""
        return self._space.write(ref_key(self.ref), b"", "create" if version is None else version)

    def remove(self) -> None:
        """Remove the dataset: its head first, so that no reader finds a part of it."""
        self._space.delete(ref_key(HEAD))
        self._space.clear()

    def decoded(self, name: Multihash) -> MetadataBlock:
        """A block, as it is read."""
        try:
            return decode_block(self.block(name))
        except errors.CodecError as error:
            raise errors.CorruptedPeerError(f"{self._where}blocks/{name}: {error}") from None

    def contains(self, key: ObjectKey) -> bool:
        return self._space.contains(str(key))

    def size(self, key: ObjectKey) -> int:
        """Size of an object [bytes]; its bytes are not read."""
        return self._space.size(str(key))

    def put(self, key: ObjectKey, source: Path, progress: Progress) -> bool:
        """As `WritablePeer`; returns whether it was there."""
        return self._space.put_file(str(key), source, progress)

    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        self._space.write(HINT_KEY, encode_hint(hashes))

    def put_names(self, branches: Sequence[str]) -> None:
        self._space.write(REFS_HINT_KEY, encode_names(branches))

    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        if data is None:
            self._space.delete(self._signed_key(file))
        else:
            self._space.write(self._signed_key(file), data)

    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:
        check_object_name(new)
        conditions = self._probed(new)
        actual, version = self._read_head()
        if actual != expected:
            raise conflict(self.ref, expected, actual)
        if conditions.create if version is None else conditions.update:
            self._swap(expected, new, "create" if version is None else version)
        elif conditions.create:
            self._swap_locked(expected, new)
        else:
            # no condition is kept: the caveat tells the user
            self._space.write(ref_key(self.ref), str(new).encode())

    def _swap(self, expected: Multihash | None, new: Multihash, condition: Version | str) -> None:
        try:
            self._space.write(ref_key(self.ref), str(new).encode(), condition)
        except WriteRefusedError as error:
            # An answer may be lost and its request repeated: then what refuses is our own write.
            actual = self.head()
            if actual != new:
                raise conflict(self.ref, expected, actual) from error

    @property
    def _lock_key(self) -> str:
        # for stores without a conditional replace
        return f"refs/.{self.ref}.lock"

    def _swap_locked(self, expected: Multihash | None, new: Multihash) -> None:
        owner = f"{secrets.token_hex(8)} {Timestamp.now()}".encode()
        try:
            self._space.write(self._lock_key, owner, "create")
        except WriteRefusedError as error:
            if self._space.read(self._lock_key, LIMITS.ref_bytes)[0] != owner:
                raise errors.TransferError(
                    f"{self._where}{self._lock_key}: another writer is replacing the head",
                    hint="run the command again; if no other is running, remove this object from the store",
                ) from error
        try:
            actual = self.head()
            if actual != expected:
                raise conflict(self.ref, expected, actual)
            self._space.write(ref_key(self.ref), str(new).encode())
        finally:
            self._space.delete(self._lock_key)

    def _probed(self, name: Multihash) -> Conditions:
        if self._conditions is None:
            if self._space.address.speaks_s3:
                # a block is overwritten with its own bytes: harmless where the condition is ignored
                key = str(ObjectKey(ObjectKind.BLOCK, name))
                if not self._space.contains(key):
                    return Conditions(create=True, update=True)  # nothing to try it out on
                data = self.block(name)
                self._conditions = Conditions(
                    self._space.keeps(key, data, "create"), self._space.keeps(key, data, NO_VERSION)
                )
            else:
                self._conditions = Conditions(create=True, update=True)
        return self._conditions

    @property
    def caveat(self) -> str | None:
        """The known caveat, after a swap, of how the head is swapped; None for a true compare-and-swap."""
        found = self._conditions
        if found is None or (found.create and found.update):
            return None
        if found.create:
            return (
                f"{self._where} cannot replace conditionally: its head was replaced under {self._lock_key}, "
                "a lock that binds only writers that look for it"
            )
        return (
            f"{self._where} has no conditional writes: two pushes at the same moment are not noticed, "
            "and the last one wins"
        )
