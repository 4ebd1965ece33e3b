"""The servers of stores that a user has named himself: only those get what the environment has for stores.

    $XDG_CONFIG_HOME/odfchain/stores.json       (~/.config where that is not set)
    {"version": 1, "endpoints": ["http://127.0.0.1:9000"]}

The folder of a workspace says where its store is, and may have been copied from somebody. Requests to a store
carry credentials, session tokens in clear. For `s3://`, `gs://` and `az://` the environment says which server
they go to; a URL with a server in it is followed only where its user has typed it: `odfchain init --store`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import AccessError, StoreError
from odfchain.store import fsio
from odfchain.transfer.object_space import place_of
from odfchain.transfer.public_layout import PeerUrl

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NamedStores:
    """The servers in a file; read anew at each call."""

    path: Path

    @classmethod
    def of_user(cls) -> NamedStores:
        """The user's own."""
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return cls(Path(base) / "odfchain" / "stores.json")

    def check(self, url: PeerUrl, where: Path) -> None:
        """The server in a URL, which a file names, is one that the user has named; or there is none in it.

        Raises:
            AccessError: it is not.
        """
        endpoint = place_of(url).endpoint
        if endpoint is not None and endpoint not in self._read():
            raise AccessError(
                f"{where} names the store {url}, and you have not named its server on this machine: it would "
                "be sent your credentials",
                hint=f"if you trust it: odfchain init --exists-ok --store {url}",
            )

    def add(self, url: PeerUrl) -> None:
        """Durably remember the server in a URL, if there is one in it."""
        endpoint = place_of(url).endpoint
        if endpoint is None or endpoint in self._read():
            return
        fsio.make_folder(self.path.parent, mode=0o700)
        with fsio.locked(self.path.with_suffix(".lock")):
            found = sorted({*self._read(), endpoint})
            fsio.replace_file(self.path, json.dumps({"version": 1, "endpoints": found}).encode(), mode=0o600)

    def _read(self) -> list[str]:
        try:
            found = json.loads(fsio.read_start(self.path, _READ_BYTES) or b'{"endpoints": []}')
            endpoints = found["endpoints"]
        except (ValueError, RecursionError, KeyError, TypeError, StoreError):
            return []
        return [text for text in endpoints if isinstance(text, str)] if isinstance(endpoints, list) else []
