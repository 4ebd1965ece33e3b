"""The index of a served repository, over HTTP."""

from __future__ import annotations

from odfchain.errors import AccessError, TransferError, UnsupportedPeerError
from odfchain.net.retry import TransientError
from odfchain.net.wire import Response
from odfchain.transfer.http_peer import HttpPeer
from odfchain.transfer.open import DEFAULTS, PeerOptions, limits_of
from odfchain.transfer.public_layout import INDEX_KEY, PeerUrl


class _IndexPeer(HttpPeer):
    def index(self, limit: int) -> bytes | None:
        def take(response: Response, where: str) -> bytes | None:
            if response.status in (404, 410):
                return None
            if response.status in (401, 403):
                raise AccessError(
                    f"{where}: HTTP status {response.status}",
                    hint="`odfchain login URL` keeps a token for it",
                )
            if response.status == 429 or response.status >= 500:
                raise TransientError(f"HTTP status {response.status}")
            if response.status != 200:
                raise TransferError(f"{where}: HTTP status {response.status}")
            data = response.read(limit)
            if data is None:
                raise TransferError(f"{where}: larger than the allowed {limit:,} bytes")
            return data

        return self._request(INDEX_KEY, take, size=limit)


def fetch_index(url: PeerUrl, limit: int, options: PeerOptions = DEFAULTS) -> bytes:
    """The bytes of a repository's index; at most `limit`.

    Raises:
        UnsupportedPeerError: the server has no index.
        AccessError, TransferError: it refuses, cannot be reached, is too slow, or sends too much.
    """
    peer = _IndexPeer(url, limits_of(options), token=options.token_for(url))
    try:
        data = peer.index(limit)
    finally:
        peer.close()
    if data is None:
        raise UnsupportedPeerError(
            f"{peer.where}{INDEX_KEY}: the server has no index of its datasets",
            hint="write the URL of a dataset; a plain web server needs this file for `list`",
        )
    return data
