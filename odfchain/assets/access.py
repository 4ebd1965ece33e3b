"""What may be asked of the stores that a lock names: a lock of somebody else's is a list of his requests.

Credentials of the environment go to the provider's own endpoints and to those that the user named, and to no
other: with an endpoint out of a row a request would carry the user's key id and session token to a host that
only the row has named. Private addresses are refused unless the user allows them. Source: RFC-047.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from odfchain.errors import AccessError, AssetError, FetchError
from odfchain.limits import FetchLimits
from odfchain.net.address import proxy_for, resolve
from odfchain.net.redirects import is_public
from odfchain.net.retry import TransientError
from odfchain.store.buckets import open_store
from odfchain.store.locations import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SECONDS = 30.0
"""Longest time for one request [s]."""
_RETRIES = 3


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
        self._open: dict[tuple[str, str | None, str | None], ObjectStore] = {}

    def store_of(self, location: Location) -> ObjectStore:
        """The store of an object that is no file.

        Raises:
            AccessError: at a private address that the user did not allow.
            FetchError: there is no such host, or nobody tells its address now.
        """
        name = (location.store, location.container, location.endpoint)
        if name not in self._open:
            self._check_address(location)
            self._open[name] = open_store(
                location, self.access.limits, _SECONDS, signed=self.is_signed(location)
            )
        return self._open[name]

    def is_signed(self, location: Location) -> bool:
        """Whether requests to a location's store carry credentials of the environment."""
        if location.endpoint is None or location.endpoint.rstrip("/") in self.access.trusted:
            return True
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        host = (urlsplit(location.endpoint).hostname or "").partition(".")[0]
        return location.store == "az" and bool(account) and host == account

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

    def _check_address(self, location: Location) -> None:
        named = location.endpoint or (location.container if location.store in ("http", "https") else None)
        if named is None or self.access.allow_private or named.rstrip("/") in self.access.trusted:
            return
        parts = urlsplit(named)
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
        if proxy_for(parts.scheme, host, port) is not None:
            return
        try:
            addresses = resolve(host, port, name=named)
        except TransientError as error:
            raise FetchError(f"{named}: {error.reason}") from error
        if not all(is_public(address) for address in addresses):
            raise AccessError(
                f"{named}: at a private address",
                hint="if that is intended, allow it with --allow-private or name it with --endpoint",
            )
