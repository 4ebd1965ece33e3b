"""A node that may be written to, a workspace beside it, and what is said to it message by message."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKind
from odfchain.storage.store import RawBlock
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.block_batch import packed
from odfchain.transfer.open_peer import PeerOptions, open_writable
from odfchain.transfer.pushing import PushOutcome, push_dataset
from odfchain.transfer.smart_messages import BlocksBatch, PushedBlocks, document_of
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import PushOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.scenario import Chain

CITIES = DatasetAlias.parse("cities")


@dataclass
class Site:
    """A node that may be written to, and a workspace whose datasets are pushed there."""

    node: WorkspaceFiles
    ours: WorkspaceFiles
    url: str
    tokens: TokenFile
    idle: threading.Event
    """Whether no push is going on: the node notices the end of a connection after its client does."""

    def token(self, *allow: str, name: str = "me") -> str:
        return self.tokens.create(name, allow or ["push:%"], Timestamp.now()).text

    def push(self, name: str, token: str | None, to: str = "cities", **options: Any) -> PushOutcome:
        assert self.idle.wait(20)
        url = PeerUrl.parse(f"odf+{self.url}{to}")
        chosen = PeerOptions(token=token, allow_private_redirects=True)
        with contextlib.closing(open_writable(url, chosen)) as peer:
            return push_dataset(self.dataset(name), peer, PushOptions(**options))

    def dataset(self, name: str) -> DatasetFiles:
        return self.ours.dataset(DatasetAlias.parse(name))

    def head(self, name: str = "cities") -> Multihash | None:
        return self.node.dataset(DatasetAlias.parse(name)).chain.head()

    @contextlib.contextmanager
    def socket(
        self, token: str | None, path: str = "cities", version: str = "1", *, beside: bool = False
    ) -> Iterator[ClientConnection]:
        assert beside or self.idle.wait(20)
        headers = {"x-odf-smtp-version": version}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        url = f"ws{self.url.removeprefix('http')}{path}/push"
        with connect(url, additional_headers=headers, compression=None, max_size=None) as found:
            yield found

    def put(self, key: str, body: bytes, token: str, path: str = "cities", **headers: str) -> int:
        host = self.url.removeprefix("http://").rstrip("/")
        link = http.client.HTTPConnection(host, timeout=20)
        with contextlib.closing(link):
            link.putrequest("PUT", f"/{path}/{key}")
            for field, value in {"Authorization": f"Bearer {token}", **headers}.items():
                link.putheader(field, value)
            if "Transfer-Encoding" not in headers and "no_length" not in headers:
                link.putheader("Content-Length", str(len(body)))
            link.endheaders()
            with contextlib.suppress(OSError):
                link.send(body)
            return link.getresponse().status


def started(chain: Chain, head: Multihash | None = None, start: int = 0, force: bool = False) -> Any:
    """The first message of a push of a chain from a block on."""
    plan = dict.fromkeys(("num_objects", "num_records", "bytes_in_raw_blocks", "bytes_in_raw_objects"), 0)
    return {
        "current_head": None if head is None else str(head),
        "transfer_plan": {"num_blocks": len(chain.hashes) - start, **plan},
        "force_update_if_diverged": force,
        "visibility_for_created_dataset": "Private",
    }


def raw(chain: Chain) -> list[RawBlock]:
    return [RawBlock(name, data) for name, data in zip(chain.hashes, chain.blocks, strict=True)]


def blocks(batch: BlocksBatch) -> Any:
    return document_of(PushedBlocks(new_blocks=batch))


def objects(chain: Chain, *, more: bool = False) -> Any:
    files = [
        {
            "object_type": "DataSlice" if key.kind is ObjectKind.DATA else "Checkpoint",
            "physical_hash": str(key.name),
            "size": len(chain.objects[key]),
        }
        for key in chain.files
    ]
    return {"object_files": files, "is_truncated": more}


def say(socket: ClientConnection, message: Any) -> Any:
    socket.send(json.dumps(message))
    return json.loads(socket.recv(20))


def closed(socket: ClientConnection) -> tuple[int, str]:
    """How the node ends the connection."""
    with pytest.raises(ConnectionClosed) as found:
        socket.recv(20)
    return found.value.rcvd.code, found.value.rcvd.reason


def asked_for_objects(socket: ClientConnection, chain: Chain) -> list[Any]:
    assert say(socket, started(chain)) == {"Ok": {}}
    assert say(socket, blocks(packed(raw(chain)))) == {"Ok": {}}
    return say(socket, objects(chain))["Ok"]["object_transfer_strategies"]
