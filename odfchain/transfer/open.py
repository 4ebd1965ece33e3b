"""The peer behind a URL, by the URL's scheme."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from odfchain.errors import AccessError, UnsupportedPeerError
from odfchain.transfer.public_layout import PeerUrl

if TYPE_CHECKING:
    from odfchain.limits import FetchLimits
    from odfchain.repo.workspace_config import ShareConfig
    from odfchain.transfer.credentials import Credentials
    from odfchain.transfer.peer import Peer, WritablePeer

_WEB = ("http", "https")
_IPFS = ("ipfs", "ipns")
_LOCALHOST = re.compile(r"^(http://)localhost(?=[:/])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """What the user says of how peers are spoken to."""

    token: str | None = None
    """A bearer token for http and https; sent to the URL's own origin only."""
    credentials: Credentials | None = None
    """Where tokens for other URLs are kept; each is sent to its own origin only."""
    allow_private_redirects: bool = False
    """Whether a public address may redirect to a private one."""
    ipfs_gateway: str = "http://localhost:8080"
    """The HTTP gateway that ipfs and ipns URLs are read through."""
    parallel: int = 10
    """Requests at the same time."""
    retries: int = 3
    """Attempts after the first, on failures that may pass."""

    def token_for(self, url: PeerUrl) -> str | None:
        """The token to send to a URL: the one given, else the one that is kept for its origin.

        A URL with a user in it gets none of those that are kept.
        """
        if self.token is not None or self.credentials is None or urlsplit(url.text).username:
            return self.token
        return self.credentials.get(url)


DEFAULTS = PeerOptions()


def options_of(config: ShareConfig, *, token: str | None = None, parallel: int | None = None) -> PeerOptions:
    """How peers are spoken to by the settings of a workspace, with the tokens that its user keeps."""
    from odfchain.transfer.credentials import Credentials  # noqa: PLC0415 - most commands ask nobody

    return PeerOptions(
        token=token,
        credentials=Credentials.of_user(),
        allow_private_redirects=config.allow_private_redirects,
        ipfs_gateway=config.ipfs_gateway,
        parallel=parallel or config.parallel,
        retries=config.retries,
    )


def open_peer(url: PeerUrl, options: PeerOptions = DEFAULTS) -> Peer:
    """The peer to read a dataset from; nothing is asked of it yet."""
    if url.is_smart:
        from odfchain.transfer.smart_peer import SmartPeer  # noqa: PLC0415 - most commands ask nobody

        return SmartPeer(url.plain, _limits(options), token=options.token_for(url), parallel=options.parallel)
    if url.scheme in (*_WEB, *_IPFS):
        from odfchain.transfer.http_peer import HttpPeer  # noqa: PLC0415 - as above

        by_gateway = url.scheme in _IPFS
        return HttpPeer(
            gateway_url(url, options.ipfs_gateway) if by_gateway else url,
            _limits(options),
            token=None if by_gateway else options.token_for(url),
            parallel=options.parallel,
            ipfs_gateway=by_gateway,
        )
    return open_writable(url, options)


def open_writable(url: PeerUrl, options: PeerOptions = DEFAULTS) -> WritablePeer:
    """The peer to write a dataset to; nothing is asked of it yet.

    Raises:
        AccessError: datasets cannot be written over the URL's protocol.
    """
    if url.is_smart:
        from odfchain.transfer.smart_destination import SmartDestination  # noqa: PLC0415 - as above

        return SmartDestination(
            url.plain, _limits(options), token=options.token_for(url), parallel=options.parallel
        )
    if url.scheme in (*_WEB, *_IPFS):
        raise AccessError(
            f"{url}: a dataset can only be read over {url.scheme}, not written",
            hint="push to the folder or bucket behind it (file, s3, gs, az), to a node (odf+https), or pull "
            "from the other side",
        )
    if url.scheme == "file":
        from odfchain.transfer.folder_peer import FolderPeer  # noqa: PLC0415 - as above

        return FolderPeer(url)
    from odfchain.transfer.object_peer import ObjectPeer  # noqa: PLC0415 - as above

    return ObjectPeer(url)


def _limits(options: PeerOptions) -> FetchLimits:
    """The bounds on requests to web servers and nodes."""
    from odfchain.transfer.peer import PEER_LIMITS  # noqa: PLC0415 - as above

    return replace(PEER_LIMITS, retries=options.retries, allow_private=options.allow_private_redirects)


def gateway_url(url: PeerUrl, gateway: str) -> PeerUrl:
    """Where a gateway has what an ipfs or ipns URL names.

    Raises:
        UnsupportedPeerError: the gateway is not an http or https URL.
    """
    base = PeerUrl.parse(gateway)
    if base.scheme not in _WEB:
        raise UnsupportedPeerError(
            f"{base}: not the URL of an IPFS gateway", hint="write it like http://localhost:8080"
        )
    path = url.text.partition("://")[2]
    # for the name, Kubo redirects to a host under it, which most machines cannot resolve; for the address not
    text = _LOCALHOST.sub(r"\g<1>127.0.0.1", base.text)
    return PeerUrl.parse(f"{text}{url.scheme}/{path}")
