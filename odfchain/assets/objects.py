"""Permitted requests to the stores of a lock: an untrusted lock is a list of requests that its author wants.

Credentials of the environment go to the provider's own endpoints and to those that the user named, and to no
other: with an endpoint out of a row a request would carry the user's key id and session token to a host that
only the row has named. Private addresses are refused unless the user allows them. Source: RFC-047.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from odfchain import errors
from odfchain.assets.hrefs import public_href
from odfchain.lazy import obstore
from odfchain.limits import FetchLimits
from odfchain.storage import fsio
from odfchain.storage.http_rules import TransientError
from odfchain.storage.locations import Location, open_store, parse_target, store_message
from odfchain.storage.routes import is_public, proxy_for, resolve
from odfchain.text import one_line
from odfchain.workspace.options import Watched

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

    from odfchain.storage.public_proxy import Pass


_Name = tuple[str, str | None, str | None, bool]
"""Kind of store, container, endpoint, and whether for whole objects."""
_SECONDS = 30.0
"""Longest time for a request that is not of a whole object [s]."""
_RETRIES = 3
_OF_AZURE = ("core.windows.net", "fabric.microsoft.com")
PIECE = 8 << 20
"""Bytes of an object that are in memory at a time."""
HINT = "if you trust it, name it with --endpoint; --allow-private allows every private address"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a store about an object; None is unknown."""

    size_bytes: int | None = None
    etag: str | None = None
    """As the store writes it, quotes and `W/` included."""
    last_modified: str | None = None
    """Like `2015-10-21T07:28:00+00:00`."""
    file_checksum: str | None = None
    """A multihash in hex."""

    @property
    def strong_etag(self) -> str | None:
        """The entity tag where it is a strong one, which a request may be made to depend on."""
        return self.etag if self.etag is not None and self.etag.startswith('"') else None

    def has_other_size(self, other: Facts) -> bool:
        """True if both sizes are known, and they differ."""
        return None not in (self.size_bytes, other.size_bytes) and self.size_bytes != other.size_bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of a request for one object's facts."""

    facts: Facts | None = None
    missing: bool = False
    """The store says that there is no such object."""
    problem: str = ""
    """Why nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Access options for the stores that rows name; `Annotated` as in `odfchain.workspace.options`."""

    jobs: Annotated[int, "Requests at a time.", {"least": 1, "most": 256, "default": 16}] = 16
    trust_files: Annotated[bool, "Read absolute paths of a lock from a file."] = False
    allow_private: Annotated[bool, "Ask hosts at private addresses, too."] = False
    endpoints: Annotated[
        Collection[str],
        "A trusted endpoint: requests there are signed; can be repeated (also: assets.trustedEndpoints).",
        "--endpoint",
        "URL",
    ] = ()

    def stores(self, folder: Path, *, ours: bool, also: Iterable[str | None] = ()) -> Stores:
        """The stores of a lock in a folder, made here (`ours`) or not; the endpoints `also` are trusted."""
        trusted = frozenset(text.rstrip("/") for text in (*self.endpoints, *also) if text)
        return Stores(folder, trusted=trusted, allow_private=self.allow_private, foreign=not ours)


METADATA = "metadata"
"""The key of an asset that describes others; left out unless it is asked for."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The wanted assets, and the choice of their hrefs."""

    items: Annotated[Collection[str], "Only assets of this Item.", "--item", "ID"] = ()
    assets: Annotated[Collection[str], "Only assets of this key.", "--asset", "KEY"] = ()
    include_metadata: Annotated[bool, "Also assets whose key is `metadata`."] = False
    alternate: Annotated[str | None, "Take this alternate href of each asset.", "KEY"] = None
    """The key of the alternate href to take in place of the asset's own."""
    strip_query: Annotated[bool, "Drop the queries of hrefs that a server signed."] = False

    def wants(self, item: str, asset: str) -> bool:
        """True if an asset is wanted."""
        if (self.items and item not in self.items) or (self.assets and asset not in self.assets):
            return False
        return asset != METADATA or self.include_metadata or asset in self.assets


@dataclass(frozen=True, kw_only=True)
class LockOptions(Watched):
    """A lock in the making, for a file in a folder, and how stores are asked for facts."""

    folder: str | Path = "."
    probe: Annotated[bool, "Make no request; sizes are those of the Items.", "--no-probe-metadata"] = True
    keep_going: bool = False
    stores: StoreOptions | None = None


@dataclass(frozen=True, kw_only=True)
class SlicesOptions(LockOptions):
    """A lock of the slices of a dataset, as they lie below a folder or prefix."""

    at: str = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class DeriveOptions(Selection, LockOptions):
    """A lock of the assets that documents of STAC name."""

    sources: Sequence[str] = field(kw_only=False)
    checksum: Annotated[
        str | None,
        "Add checksums (a draft of the format; off by default).",
        {"choices": ["metadata", "use-etag", "calculate-if-needed", "calculate-always"]},
    ] = None


class Stores:
    """Opens the store of each location once, and only where that is allowed.

    `folder` is the base of relative keys: that of the lock. `trusted` are endpoints (and origins) that the
    user named: signed for, private or not. For a `foreign` lock, which is untrusted, files must be relative.
    """

    def __init__(
        self,
        folder: Path,
        *,
        trusted: frozenset[str] = frozenset(),
        allow_private: bool = False,
        foreign: bool = False,
        limits: FetchLimits | None = None,
    ) -> None:
        self.folder = folder
        self._trusted, self._allow_private, self._foreign = trusted, allow_private, foreign
        self._limits = limits or FetchLimits(retries=_RETRIES)
        self._open: dict[_Name, ObjectStore] = {}
        self._passes: dict[_Name, Pass] = {}
        self._opening = threading.Lock()

    def store_of(self, location: Location, *, whole: bool = False) -> ObjectStore:
        """The store of an object that is no file; for `whole` objects a request has no time limit."""
        # where only the lock names the host, every connection must be to a public address, redirects included
        name = (location.store, location.container, location.endpoint, whole)
        with self._opening:
            if name not in self._open:
                self._open[name] = self._opened(location, name)
            return self._open[name]

    def _opened(self, location: Location, name: _Name) -> ObjectStore:
        limits, through = self._limits, None
        if self._is_guarded(location):
            from odfchain.storage.public_proxy import new_pass  # noqa: PLC0415 - it loads asyncio

            through = self._passes[name] = new_pass()
        return open_store(
            location, limits, limits.deadline if name[3] else _SECONDS,
            signed=self.is_signed(location), through=None if through is None else through.url,
        )  # fmt: skip

    def message_of(self, location: Location, message: str) -> str:
        """The message of a failure: that its store resolves to a private address, if so."""
        for whole in (False, True):
            found = self._passes.get((location.store, location.container, location.endpoint, whole))
            if found is not None and found.refused:
                return f"leads to {one_line(found.refused[-1])}, which is at a private address: {HINT}"
        return message

    def is_signed(self, location: Location) -> bool:
        """True if requests to a location's store carry credentials of the environment."""
        if location.endpoint is None or location.endpoint.rstrip("/") in self._trusted:
            return True
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        own = {f"https://{account}.blob.{suffix}" for suffix in _OF_AZURE}
        return location.store == "az" and bool(account) and location.endpoint.rstrip("/") in own

    def file_of(self, location: Location) -> Path:
        """The file of a `file` location.

        Raises:
            AssetError: absolute in an untrusted lock, or a link leads out of the lock's folder.
        """
        path = Path(location.key)
        if path.is_absolute():
            if self._foreign:
                raise errors.AssetError(
                    f"{location.key}: an absolute path in a lock that was not made here",
                    hint="read it, and allow it with --trust-files",
                )
            return path
        found = self.folder.resolve() / path
        if found.resolve() != found:
            raise errors.AssetError(
                f"{location.key}: a link, or through one", hint="put the file itself there"
            )
        return found

    def _is_guarded(self, location: Location) -> bool:
        named = location.endpoint or (location.container if location.store in ("http", "https") else None)
        if named is None or self._allow_private or named.rstrip("/") in self._trusted:
            return False
        if location.endpoint is not None and self.is_signed(location):
            return False
        target = parse_target(named, name=named)
        if proxy_for(target) is not None:
            return False
        try:
            addresses = resolve(target.host, target.port, name=named)
        except TransientError as error:
            raise errors.FetchError(f"{named}: {error.reason}") from error
        if not all(is_public(address) for address in addresses):
            raise errors.AccessError(f"{named}: at a private address", hint=HINT)
        return True

    @contextlib.contextmanager
    def _translated(self, location: Location) -> Iterator[None]:
        # what the library raises becomes one line with the object's href
        name = public_href(location.href())
        try:
            yield
        except FileNotFoundError:
            raise errors.SourceNotFoundError(f"{name}: no such object") from None
        except obstore.exceptions.PreconditionError:
            raise errors.ObjectCorruptedError(f"{name}: changed since it was locked") from None
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise errors.FetchError(f"{name}: {self.message_of(location, store_message(error))}") from None

    def probe(self, location: Location) -> Probe:
        """Facts of an object."""
        try:
            if location.store == "file":
                return _probe_file(self.file_of(location))
            store = self.store_of(location)
        except errors.OdfchainError as error:
            return Probe(problem="; ".join(filter(None, (str(error), error.hint))))
        found = _probe_object(store, location.key)
        if found.problem:
            return replace(found, problem=self.message_of(location, found.problem))
        return found

    def probes(self, locations: Sequence[Location], jobs: int) -> list[Probe]:
        """Facts of each location; all of them are in memory."""
        pool = ThreadPoolExecutor(jobs)
        try:
            return list(pool.map(self.probe, locations))
        finally:  # Ctrl-C: nothing more is asked for
            pool.shutdown(cancel_futures=True)

    def pieces(self, location: Location, *, etag: str | None = None) -> Iterator[memoryview]:
        """The bytes of an object in order; only if it still has this entity tag, where one is given."""
        if location.store == "file":
            path = self.file_of(location)
            with fsio.storage_errors(path), path.open("rb") as file:
                while piece := file.read(PIECE):
                    yield memoryview(piece)
            return
        store = self.store_of(location, whole=True)
        options: GetOptions = {"if_match": etag} if etag is not None else {}
        with self._translated(location):
            for chunk in obstore.get(store, location.key, options=options).stream(min_chunk_size=PIECE):
                yield memoryview(chunk)

    def read_small(self, location: Location, limit: int) -> bytes:
        """The bytes of an object that has at most `limit`."""
        found = bytearray()
        for piece in self.pieces(location):
            found += piece
            if len(found) > limit:
                raise errors.AssetError(f"{public_href(location.href())}: more than {limit:,} bytes")
        return bytes(found)

    def checksum(self, location: Location, name: str, *, etag: str | None = None) -> str:
        """The hex digest of an object's bytes by an algorithm of `hashlib`."""
        found = hashlib.new(name)
        for piece in self.pieces(location, etag=etag):
            found.update(piece)
        return found.hexdigest()

    def write(self, target: Location, content: Iterator[memoryview]) -> None:
        """Write an object whose content comes in pieces; if they end with an error nothing is there."""
        if target.store == "file":
            path = self.file_of(target)
            fsio.make_folder(path.parent)
            with fsio.replaced(path) as file:
                for piece in content:
                    file.write(piece)
            return
        first, second = next(content, memoryview(b"")), next(content, None)
        if second is None:  # one request is enough
            with self._translated(target):
                obstore.put(self.store_of(target, whole=True), target.key, bytes(first), use_multipart=False)
            return
        failed = list[errors.OdfchainError]()

        def chunks(rest: Iterator[memoryview]) -> Iterator[Any]:
            try:
                yield from (first, second)
                yield from rest
            except errors.OdfchainError as error:
                failed.append(error)
                raise

        try:
            with _read_ahead(content) as rest, self._translated(target):
                store = self.store_of(target, whole=True)
                obstore.put(store, target.key, chunks(rest), chunk_size=PIECE, max_concurrency=2)
        except errors.OdfchainError as error:
            raise (failed or [error])[0] from None

    def copy(self, source: Location, target: Location) -> None:
        """Copy an object within its store, which does it in one request."""
        with self._translated(source):
            obstore.copy(self.store_of(target, whole=True), source.key, target.key, overwrite=True)

    def remove(self, target: Location) -> None:
        """Remove an object; that it cannot be is not said."""
        if target.store == "file":
            fsio.remove_quietly(self.file_of(target))
            return
        with contextlib.suppress(errors.OdfchainError), self._translated(target):
            obstore.delete(self.store_of(target), target.key)


@contextlib.contextmanager
def _read_ahead(content: Iterator[memoryview]) -> Iterator[Iterator[memoryview]]:
    # a thread of its own: the library panics if an object is read while it asks for pieces of another
    reader = ThreadPoolExecutor(1)

    def read() -> Future[memoryview | None]:
        return reader.submit(next, content, None)

    def taken(ahead: deque[Future[memoryview | None]]) -> Iterator[memoryview]:
        while (piece := ahead.popleft().result()) is not None:
            ahead.append(read())
            yield piece

    try:
        yield taken(deque((read(), read())))
    finally:
        reader.shutdown(cancel_futures=True)


# HEAD requests: size, entity tag, time of the last modification (RFC-047).
# Of a file only the size, because no copy keeps a file system's tag. A store that refuses HEAD is asked for
# the first byte. The library gives 1970 where there is no time. Requests run on threads: the library's
# coroutines can abort the process at exit, and threads are twice as fast.

JOBS = 16
WINDOW = 4_096
"""Objects that are asked for in one go."""
_NOT_REACHED = re.compile(r"HttpError \{\s*kind: (?:Connect|Timeout)\b")
"""How the library describes a server that did not answer at all: asked in another way it will not, either."""
_NO_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _facts_of(meta: ObjectMeta) -> Facts:
    time = meta["last_modified"]
    shown = None if time == _NO_TIME else time.astimezone(dt.UTC).isoformat()
    return Facts(meta["size"], meta["e_tag"], shown)


def _probe_file(path: Path) -> Probe:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return Probe(missing=True, problem="no such file")
    except OSError as error:
        return Probe(problem=error.strerror or "it cannot be read")
    if not stat.S_ISREG(found.st_mode):
        return Probe(problem="not an ordinary file")
    return Probe(Facts(found.st_size))


def _probe_object(store: ObjectStore, key: str) -> Probe:
    def asked(**options: Any) -> ObjectMeta:
        return obstore.get(store, key, **options).meta

    ways: tuple[Callable[[], ObjectMeta], ...] = (
        lambda: obstore.head(store, key),
        lambda: asked(options={"range": (0, 1)}),
        asked,  # of an empty object there is no first byte
    )
    refusals = list[Exception]()
    for way in ways:
        try:
            return Probe(_facts_of(way()))
        except (FileNotFoundError, obstore.exceptions.BaseError, ValueError) as error:
            refusals.append(error)
        if isinstance(refusals[-1], FileNotFoundError) and len(refusals) > 1:
            return Probe(missing=True, problem="no such object")
        if _NOT_REACHED.search(str(refusals[-1])):
            break
    if any("content-length" in str(error).lower() for error in refusals):
        return Probe(Facts())  # it is there, and its store does not say how long it is
    return Probe(problem=store_message(refusals[-1]))


# Checksums by the draft of ADR-004: an optional column with multihashes in lower-case hex. A store's checksum
# is an observation; STAC's `file:checksum` is a claim and never copied (RFC-047).

MD5, SHA2_256, SHA3_256 = "d50110", "1220", "1620"
"""Prefixes of multihashes of these kinds, in hex."""
_ALGORITHMS = {MD5: "md5", SHA2_256: "sha256", SHA3_256: "sha3_256"}


class Method(Enum):
    """Source of a checksum."""

    METADATA = "metadata"
    """From what the store says of an object: nothing yet, obstore does not hand it out."""
    USE_ETAG = "use-etag"
    """From an entity tag that is an MD5."""
    CALCULATE_IF_NEEDED = "calculate-if-needed"
    """Of the bytes, where the entity tag is no MD5."""
    CALCULATE_ALWAYS = "calculate-always"


def algorithm_of(checksum: str) -> str | None:
    """The name that `hashlib` has for a checksum's algorithm; None: not one of ours."""
    return next((name for start, name in _ALGORITHMS.items() if checksum.startswith(start)), None)
