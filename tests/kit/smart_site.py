"""A node that may be written to, a workspace beside it, and what is said to it message by message."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import RawBlock
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.block_batch import packed
from odfchain.transfer.open_peer import DEFAULTS, PeerOptions, open_peer, open_writable
from odfchain.transfer.pulling import SyncOptions, SyncOutcome, pull_dataset
from odfchain.transfer.pushing import PushOutcome, push_dataset
from odfchain.transfer.smart_messages import BlocksBatch, PushedBlocks, document_of
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import PushOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.scenario import Chain

CITIES = DatasetAlias.parse("cities")
OK: dict[str, Any] = {"Ok": {}}
COMPLETE = json.dumps({"details": "Complete"})
PULL = {"begin_after": None, "stop_at": None, "force_update_if_diverged": False}
"""The first message of a pull of a whole dataset."""


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
        return push(self.dataset(name), f"{self.url}{to}", PushOptions(**options), token=token)

    def dataset(self, name: str) -> DatasetFiles:
        return self.ours.dataset(DatasetAlias.parse(name))

    def head(self, name: str = "cities") -> Multihash | None:
        return self.node.dataset(DatasetAlias.parse(name)).chain.head()

    @contextlib.contextmanager
    def socket(
        self, token: str | None, path: str = "cities", *, beside: bool = False
    ) -> Iterator[ClientConnection]:
        assert beside or self.idle.wait(20)
        with conversation(self.url, f"{path}/push", token) as found:
            yield found

    def upload(self, chain: Chain, token: str, *keys: ObjectKey, path: str = "cities") -> None:
        """Files of a chain are put there: these, or all."""
        for key in keys or chain.files:
            assert self.put(str(key), chain.objects[key], token, path) == 201

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


def push(
    dataset: DatasetFiles, url: str, options: PushOptions | None = None, **peer_options: Any
) -> PushOutcome:
    """A dataset is pushed to this place of a node, by our own client."""
    chosen = PeerOptions(allow_private_redirects=True, **peer_options)
    with contextlib.closing(open_writable(PeerUrl.parse(f"odf+{url}"), chosen)) as peer:
        return push_dataset(dataset, peer, options or PushOptions())


def pull(
    ours: WorkspaceFiles, url: str, name: str = "cities", chosen: PeerOptions = DEFAULTS, **options: Any
) -> SyncOutcome:
    """A dataset is pulled from a peer, by our own client."""
    with contextlib.closing(open_peer(PeerUrl.parse(url), chosen)) as peer:
        return pull_dataset(ours, peer, DatasetAlias.parse(name), SyncOptions(**options))


@contextlib.contextmanager
def conversation(
    url: str, path: str, token: str | None = None, version: str | None = "1", **headers: str
) -> Iterator[ClientConnection]:
    """A connection for messages, such as to `cities/pull`; underscores in names of header fields are hyphens."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if version is not None:
        fields["x-odf-smtp-version"] = version
    if token is not None:
        fields["Authorization"] = f"Bearer {token}"
    place = f"ws{url.removeprefix('http')}{path}"
    with connect(place, additional_headers=fields, compression=None, max_size=None) as found:
        yield found


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


def objects(chain: Chain, keys: Sequence[ObjectKey] | None = None, *, more: bool = False) -> Any:
    """The message that names files of a chain: these, or all."""
    files = [
        {
            "object_type": "DataSlice" if key.kind is ObjectKind.DATA else "Checkpoint",
            "physical_hash": str(key.name),
            "size": len(chain.objects[key]),
        }
        for key in (chain.files if keys is None else keys)
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


def failed(socket: ClientConnection) -> tuple[int, Any]:
    """The code with which the node ends the connection, and the phase in which something failed."""
    code, reason = closed(socket)
    assert len(reason.encode()) <= 123
    return code, json.loads(reason)["Err"]["Internal"]["phase"]


def begun(socket: ClientConnection, chain: Chain, old: Chain | None = None) -> None:
    """Push the blocks that a chain has more than the old one; the node takes them."""
    count = 0 if old is None else len(old.hashes)
    assert say(socket, started(chain, None if old is None else old.head, count)) == OK
    assert say(socket, blocks(packed(raw(chain)[count:]))) == OK


def committed(socket: ClientConnection) -> None:
    """All files are there, and the node commits."""
    socket.send(COMPLETE)
    assert say(socket, {}) == {}


def ask_to_commit(socket: ClientConnection) -> None:
    """The same, where the node's answer is to be looked at."""
    socket.send(COMPLETE)
    socket.send("{}")


def asked_for_objects(socket: ClientConnection, chain: Chain) -> list[Any]:
    begun(socket, chain)
    return say(socket, objects(chain))["Ok"]["object_transfer_strategies"]
