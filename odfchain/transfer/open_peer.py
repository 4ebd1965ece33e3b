"""The peer behind a URL, by the URL's scheme."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import AccessError, OdfchainError, StoreError, UnsupportedPeerError
from odfchain.storage import fsio
from odfchain.storage.bucket_store import BucketTransport, place_of
from odfchain.storage.folder_store import FolderTransport
from odfchain.storage.http_store import HttpTransport
from odfchain.storage.local import HEAD
from odfchain.storage.locations import PeerUrl
from odfchain.storage.store import PEER_LIMITS, Store, Transport
from odfchain.text import json_object
from odfchain.workspace.config import user_folder

if TYPE_CHECKING:
    from odfchain.limits import FetchLimits
    from odfchain.transfer.credentials import Credentials


_WEB = ("http", "https")
_LOCALHOST = re.compile(r"^(http://)localhost(?=[:/])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """User options for connections to peers."""

    token: str | None = None
    """A bearer token for http and https; sent to the URL's own origin only."""
    credentials: Credentials | None = None
    """Stored tokens for other URLs; each is sent to its own origin only."""
    allow_private_redirects: bool = False
    """True if a public address may redirect to a private one."""
    ipfs_gateway: str = "http://localhost:8080"
    """The HTTP gateway that ipfs and ipns URLs are read through."""
    parallel: int = 10
    """Requests at the same time."""
    retries: int = 3
    """Attempts after the first, on failures that may pass."""

    def token_for(self, url: PeerUrl) -> str | None:
        """The token to send to a URL: the one given, else the one that is kept for its origin."""
        if self.token is not None or self.credentials is None or url.parts.username:
            # a URL with a user in it gets no stored token
            return self.token
        return self.credentials.get(url)


DEFAULTS = PeerOptions()


class Listing(Enum):
    """How a repository says which datasets it has."""

    INDEX = auto()
    """By an index of its own (RFC-021)."""
    ACCOUNTS = auto()
    """By an index, that of all accounts if not by one of its own: a node."""
    FOLDERS = auto()
    """By the folders below its URL."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of place that datasets are carried to and from."""

    open: Callable[[PeerUrl, PeerOptions], Transport]
    read_only: Callable[[PeerUrl], OdfchainError] | None = None
    """Why nothing can be written there; None where it can."""
    listing: Listing | None = None


def _web(url: PeerUrl, options: PeerOptions) -> Transport:
    token, kept = options.token_for(url), options.token is None
    return HttpTransport(url, _limits(options), token=token, kept=kept, parallel=options.parallel)


def _node(url: PeerUrl, options: PeerOptions) -> Transport:
    from odfchain.transfer.node_store import NodeTransport  # noqa: PLC0415 - most commands reach no node

    token, kept = options.token_for(url), options.token is None
    return NodeTransport(url.plain, _limits(options), token=token, kept=kept, parallel=options.parallel)


def _ipfs(url: PeerUrl, options: PeerOptions) -> Transport:
    url = gateway_url(url, options.ipfs_gateway)
    return HttpTransport(url, _limits(options), parallel=options.parallel, ipfs_gateway=True)


def _web_is_read(url: PeerUrl) -> OdfchainError:
    return AccessError(
        f"{url}: a dataset can only be read over {url.scheme}, not written",
        hint="push to the folder or bucket behind it (file, s3, gs, az), to a node (odf+https), or pull "
        "from the other side",
    )


def _ipfs_is_read(url: PeerUrl) -> OdfchainError:
    return UnsupportedPeerError(
        f"{url}: what an IPFS address names cannot be written through a gateway",
        hint="push to a folder (file:///…), and add that folder with your IPFS node",
    )


KINDS = {
    "file": Kind(lambda url, _: FolderTransport(url), listing=Listing.FOLDERS),
    **dict.fromkeys(
        ("s3", "gs", "az", "s3+http", "s3+https"),
        Kind(lambda url, _: BucketTransport(url), listing=Listing.FOLDERS),
    ),
    **dict.fromkeys(_WEB, Kind(_web, _web_is_read, Listing.INDEX)),
    **dict.fromkeys(("odf+http", "odf+https"), Kind(_node, listing=Listing.ACCOUNTS)),
    **dict.fromkeys(("ipfs", "ipns"), Kind(_ipfs, _ipfs_is_read)),
}
"""The kinds by the scheme of a URL: what is not here is not carried."""


def open_peer(url: PeerUrl, options: PeerOptions = DEFAULTS, ref: str = HEAD) -> Store:
    """The store to read a dataset from, or a branch of it; nothing is asked of it yet."""
    return Store(KINDS[url.scheme].open(url, options), ref)


def open_writable(url: PeerUrl, options: PeerOptions = DEFAULTS, ref: str = HEAD) -> Store:
    """The store to write a dataset to, or a branch of it; nothing is asked of it yet."""
    kind = KINDS[url.scheme]
    if kind.read_only is not None:
        raise kind.read_only(url)
    return Store(kind.open(url, options), ref)


def _limits(options: PeerOptions) -> FetchLimits:
    return replace(PEER_LIMITS, retries=options.retries, allow_private=options.allow_private_redirects)


def gateway_url(url: PeerUrl, gateway: str) -> PeerUrl:
    """The gateway's URL of an ipfs or ipns URL."""
    base = PeerUrl.parse(gateway)
    if base.scheme not in _WEB:
        raise UnsupportedPeerError(
            f"{base}: not the URL of an IPFS gateway", hint="write it like http://localhost:8080"
        )
    path = url.text.partition("://")[2]
    # for the name, Kubo redirects to a host under it, which most machines cannot resolve; for the address not
    text = _LOCALHOST.sub(r"\g<1>127.0.0.1", base.text)
    return PeerUrl.parse(f"{text}{url.scheme}/{path}")


# Stores that the user has named: only those get the credentials of the environment.
#
#     $XDG_CONFIG_HOME/odfchain/stores.json       (~/.config where that is not set)
#     {"version": 1, "endpoints": ["http://127.0.0.1:9000"]}
#
# A workspace's folder names its store, and may be a copy from a third party, while requests carry
# credentials. `s3://`, `gs://` and `az://` use the endpoint of the environment; a URL with a server in it
# is followed only after `odfchain init --store URL` by this user.

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NamedStores:
    """The servers in a file; read anew at each call."""

    path: Path

    @classmethod
    def of_user(cls) -> NamedStores:
        """The user's own."""
        return cls(user_folder() / "stores.json")

    def check(self, url: PeerUrl, where: Path) -> None:
        """The server in a URL, which a file names, is one that the user has named; or there is none in it."""
        if (endpoint := place_of(url).endpoint) is not None and endpoint not in self._read():
            raise AccessError(
                f"{where} names the store {url}, and you have not named its server on this machine: it would "
                "be sent your credentials",
                hint=f"if you trust it: odfchain init --exists-ok --store {url}",
            )

    def add(self, url: PeerUrl) -> None:
        """Durably remember the server in a URL, if there is one in it."""
        if (endpoint := place_of(url).endpoint) is None or endpoint in self._read():
            return
        fsio.make_folder(self.path.parent, mode=0o700)
        with fsio.locked(self.path.with_suffix(".lock")):
            found = sorted({*self._read(), endpoint})
            fsio.replace_file(self.path, json.dumps({"version": 1, "endpoints": found}).encode(), mode=0o600)

    def _read(self) -> list[str]:
        endpoints = None
        with contextlib.suppress(StoreError):
            endpoints = json_object(fsio.read_start(self.path, _READ_BYTES) or b"").get("endpoints")
        return [text for text in endpoints if isinstance(text, str)] if isinstance(endpoints, list) else []
