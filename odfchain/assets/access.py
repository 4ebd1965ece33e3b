"""What may be asked of the stores that a lock names: a lock of somebody else's is a list of his requests.

Credentials of the environment go to the provider's own endpoints and to those that the user named, and to no
other: with an endpoint out of a row a request would carry the user's key id and session token to a host that
only the row has named. Private addresses are refused unless the user allows them. Source: RFC-047.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from odfchain.errors import AccessError, AssetError, FetchError
from odfchain.limits import FetchLimits
from odfchain.net.address import proxy_for, resolve
from odfchain.net.public_proxy import Pass, new_pass
from odfchain.net.redirects import is_public
from odfchain.net.retry import TransientError
from odfchain.store.buckets import open_store
from odfchain.store.locations import Location
from odfchain.text import one_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_Name = tuple[str, str | None, str | None, bool]
"""Kind of store, container, endpoint, and whether for whole objects."""
_SECONDS = 30.0
"""Longest time for a request that is not of a whole object [s]."""
_RETRIES = 3
_OF_AZURE = ("core.windows.net", "fabric.microsoft.com")
HINT = "if that is intended, allow it with --allow-private or name it with --endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the user allows."""

    folder: Path
    """Where relative keys begin: the folder of the lock."""
    trusted: frozenset[str] = frozenset()
    """Endpoints (and origins) that the user named: signed for, private or not."""
    allow_private: bool = False
    foreign: bool = False
    """Whether somebody else made the lock: files must be relative then."""
    limits: FetchLimits = field(default_factory=lambda: FetchLimits(retries=_RETRIES))


class Stores:
    """Opens the store of each location once, and only where that is allowed."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._open: dict[_Name, ObjectStore] = {}
        self._passes: dict[_Name, Pass] = {}
        self._opening = threading.Lock()

    def store_of(self, location: Location, *, whole: bool = False) -> ObjectStore:
        """The store of an object that is no file; for `whole` objects a request may take as long as it takes.

        Where a lock alone names the host, every connection is to a public address: that of a redirect, too.
        """
        name = (location.store, location.container, location.endpoint, whole)
        with self._opening:
            if name not in self._open:
                self._open[name] = self._opened(location, name)
            return self._open[name]

    def _opened(self, location: Location, name: _Name) -> ObjectStore:
        limits, through = self.access.limits, None
        if self._is_guarded(location):
            through = self._passes[name] = new_pass()
        return open_store(
            location, limits, limits.deadline if name[3] else _SECONDS,
            signed=self.is_signed(location), through=None if through is None else through.url,
        )  # fmt: skip

    def message_of(self, location: Location, message: str) -> str:
        """What to say of a failure: where its store leads to a private address, that."""
        for whole in (False, True):
            found = self._passes.get((location.store, location.container, location.endpoint, whole))
            if found is not None and found.refused:
                return f"leads to {one_line(found.refused[-1])}, which is at a private address: {HINT}"
        return message

    def is_signed(self, location: Location) -> bool:
        """Whether requests to a location's store carry credentials of the environment."""
        if location.endpoint is None or location.endpoint.rstrip("/") in self.access.trusted:
            return True
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        own = {f"https://{account}.blob.{suffix}" for suffix in _OF_AZURE}
        return location.store == "az" and bool(account) and location.endpoint.rstrip("/") in own

    def file_of(self, location: Location) -> Path:
        """The file of a `file` location.

        Raises:
            AssetError: absolute in a lock that somebody else made, or a link leads out of the lock's folder.
        """
        path = Path(location.key)
        if path.is_absolute():
            if self.access.foreign:
                raise AssetError(
                    f"{location.key}: an absolute path in a lock that was not made here",
                    hint="read it, and allow it with --trust-files",
                )
            return path
        folder = self.access.folder.resolve()
        found = folder / path
        if found.resolve() != found:
            raise AssetError(f"{location.key}: a link, or through one", hint="put the file itself there")
        return found

    def _is_guarded(self, location: Location) -> bool:
        """Whether connections are held to public addresses.

        Raises: as `store_of`.
        """
        named = location.endpoint or (location.container if location.store in ("http", "https") else None)
        if named is None or self.access.allow_private or named.rstrip("/") in self.access.trusted:
            return False
        if location.endpoint is not None and self.is_signed(location):
            return False
        parts = urlsplit(named)
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
        if proxy_for(parts.scheme, host, port) is not None:
            return False
        try:
            addresses = resolve(host, port, name=named)
        except TransientError as error:
            raise FetchError(f"{named}: {error.reason}") from error
        if not all(is_public(address) for address in addresses):
            raise AccessError(f"{named}: at a private address", hint=HINT)
        return True
