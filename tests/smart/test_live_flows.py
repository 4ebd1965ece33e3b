"""What two reference nodes said to each other, with their blocks: our server and our client say the same.

The slices were not recorded. So a server is compared up to where they would be brought, and a client gets and
sends bytes of the same length under their names.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import CorruptedPeerError
from odfchain.odf.block_codec import decode_block
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.storage.locations import PeerUrl
from odfchain.storage.store import RawBlock
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.block_batch import unpacked
from odfchain.transfer.node_store import NodeTransport, Shipment
from odfchain.transfer.open_peer import PeerOptions, open_writable
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.slice_files import objects_of
from odfchain.transfer.smart_messages import PulledBlocks, message_of
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.node_stand_in import Answer, files_of, node, uploads
from tests.kit.recorded_flows import FLOWS, Recorded, same
from tests.kit.scenario import Chain, install
from tests.kit.smart_site import conversation, pull

LIVE = {flow.name.removeprefix("live "): flow for flow in FLOWS if flow.name.startswith("live ")}
PULLS = ["pull_new_dataset", "pull_one_more_block", "pull_nothing_new"]
PUSHES = ["push_new_dataset", "push_one_more_block"]


def sent(flow: Recorded) -> list[RawBlock]:
    """The blocks of a flow."""
    for frame in flow.frames:
        batch = (frame.document or {}).get("blocks") or (frame.document or {}).get("new_blocks")
        if batch:
            return unpacked(message_of(PulledBlocks, json.dumps({"blocks": batch})).blocks)
    return []


def chain_at(name: str) -> tuple[Chain, int]:
    """All blocks up to the end of a flow, and how many of them were there before."""
    chain, before = Chain(), 0
    for each in PULLS if name in PULLS else PUSHES:
        before = len(chain.hashes)
        for block in sent(LIVE[each]):
            assert chain.append_bytes(block.data) == block.hash
        if each == name:
            return chain, before
    raise AssertionError(name)


def up_to(chain: Chain, count: int) -> Chain:
    found = Chain()
    for data in chain.blocks[:count]:
        found.append_bytes(data)
    return found


def documents(flow: Recorded, *, client: bool) -> list[Any]:
    return [frame.document for frame in flow.of(client=client) if frame.document is not None]


def here(document: Any, url: str, token: str = "TOKEN") -> Any:  # noqa: S107 - as it is recorded
    """As it was recorded, with our address and token in the places that were left open."""
    text = json.dumps(document).replace("http://NODE/", url).replace("Bearer TOKEN", f"Bearer {token}")
    return json.loads(text)


@pytest.mark.parametrize("name", [*PULLS, *PUSHES])
def test_our_server_says_what_the_reference_node_said(name: str, tmp_path: Path) -> None:
    workspace, flow = WorkspaceFiles.init(tmp_path), LIVE[name]
    chain, before = chain_at(name)
    path = "types" if name in PULLS else "pushed"
    present = chain if name in PULLS else up_to(chain, before)
    if present.hashes:
        install(workspace, path, present)
    token = TokenFile(workspace.root).create("me", ["push:%"], Timestamp.now()).text
    verb, shown = ("pull", None) if name in PULLS else ("push", token)
    compared = 0
    with (
        RepositoryServer(workspace, write=True) as server,
        conversation(server.url, f"{path}/{verb}", shown) as socket,
    ):
        for frame in flow.frames:
            if frame.close is not None or frame.document == {"details": "Complete"}:
                break
            if frame.by_client:
                socket.send(json.dumps(frame.document))
            else:
                same(json.loads(socket.recv(20)), here(frame.document, server.url, token))
                compared += 1
    assert compared == {"pull_nothing_new": 1}.get(name, 3)


@pytest.mark.parametrize("name", PULLS[:2])
def test_our_client_asks_what_the_reference_node_asked(name: str, tmp_path: Path) -> None:
    ours, flow = WorkspaceFiles.init(tmp_path), LIVE[name]
    chain, before = chain_at(name)
    if before:
        install(ours, "types", up_to(chain, before))
    answers: list[Answer] = [lambda _, each=each: each for each in documents(flow, client=False)]
    with node(files_of(chain, "/types/"), *answers) as found:
        with pytest.raises(CorruptedPeerError, match="the chain refers to it"):
            pull(ours, f"odf+{found.url}types", "types")
        assert found.done.wait(20)
    same(found.said, documents(flow, client=True))
    assert found.ended == [flow.of(client=True)[-1].close]
    asked = {path: fields for path, fields in found.asked if "/data/" in path}
    assert asked, "slices are asked for where the node says that they are"
    assert all(fields.get("x-odf-smtp-version") == "1" for fields in asked.values())


@pytest.mark.parametrize("name", PUSHES)
def test_our_client_pushes_what_the_reference_node_pushed(name: str, tmp_path: Path) -> None:
    flow = LIVE[name]
    chain, before = chain_at(name)
    old = chain.hashes[before - 1] if before else None
    files: dict[str, bytes] = {"/pushed/refs/head": str(old).encode()} if old else {}
    blocks = dict(zip(chain.hashes, chain.blocks, strict=True))
    items = [item for hash_ in chain.hashes[before:] for item in objects_of(decode_block(blocks[hash_]))]
    said = documents(flow, client=False)
    urls: list[str] = []

    def path_of(item: Any) -> Path:
        made = tmp_path / str(item.key.name)
        made.write_bytes(bytes(item.size))
        return made

    def committed(_: Any) -> Any:
        files["/pushed/refs/head"] = str(chain.head).encode()
        return said[-1]

    first = [lambda _, each=each: here(each, urls[0]) for each in said[:-1]]
    asked: list[tuple[str, dict[str, str]]] = []
    with node(files, *first, lambda _: None, committed) as found, uploads(files, asked) as at:
        urls.append(at)
        url = PeerUrl.parse(f"odf+{found.url}pushed")
        chosen = PeerOptions(token="TOKEN", allow_private_redirects=True)  # noqa: S106 - as it is recorded
        with contextlib.closing(open_writable(url, chosen)) as peer:
            assert isinstance(peer.transport, NodeTransport)
            names: list[Multihash] = chain.hashes[before:]
            more = {"read": blocks.__getitem__, "objects": items, "path": path_of}
            peer.transport.send(Shipment(expected=old, new=chain.head, blocks=names, **more), SILENT)
        assert found.done.wait(20)
    same(found.said, documents(flow, client=True))
    assert found.ended == [flow.of(client=True)[-1].close]
    ((put, fields),) = asked
    assert put == f"/pushed/data/{items[0].key.name}"
    assert (fields["authorization"], fields["x-odf-smtp-version"]) == ("Bearer TOKEN", "1")
