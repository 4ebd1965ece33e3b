"""What both sides of a transfer need of memory, in processes of their own: the sides that `make bench` has."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from odfchain.chain.chain import link_blocks
from odfchain.limits import SMART
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.schema import DataField, DataSchema, DataTypeInt64
from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import TokenFile
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.measured_node import SIDES, peak_mib, served
from tests.kit.scenario import chain_of
from tests.kit.smart_site import OK, conversation, say, started

MOST_MIB = 200
LETTERS = 60
"""Of each description: 15,000 of them fill a message as far as pushes do."""
OBJECT_BYTES = 256 << 20

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc"),
]


def client(*words: str | Path) -> int:
    """The most that a client had resident [MiB]."""
    command = [sys.executable, str(SIDES), *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True)
    return int(json.loads(done.stdout)["peak_mib"])


def made(root: Path, events: Sequence[ev.MetadataEvent], content: bytes | None = None) -> DatasetFiles:
    name = DatasetAlias.parse("sent")
    dataset = WorkspaceFiles.init(root).create(DatasetSnapshot(name=name, kind=DatasetKind.ROOT, metadata=()))
    head = dataset.chain.head()
    if content is not None:
        assert dataset.data.put(content) == events[-1].new_data.physical_hash
    time = dataset.chain.get(head).system_time
    dataset.chain.publish(
        link_blocks(events, prev=head, next_sequence_number=1, system_time=time), expected_head=head
    )
    return dataset


def answered(socket: ClientConnection, message: str) -> str | bytes:
    socket.send(message)
    return socket.recv(60)


def token(root: Path) -> str:
    return TokenFile(WorkspaceFiles.init(root).root).create("test", ["push:%"], Timestamp.now()).text


def test_a_push_and_a_pull_of_many_blocks(tmp_path: Path) -> None:
    noise = random.Random(1)
    texts = (base64.b64encode(noise.randbytes(LETTERS * 3 // 4)).decode() for _ in range(SMART.blocks - 1))
    made(tmp_path / "ours", [ev.SetInfo(description=text) for text in texts])
    shown = token(tmp_path / "node")
    with served(tmp_path / "node") as (url, pid):
        pushes = client("push", tmp_path / "ours", "sent", f"odf+{url}sent", shown)
        after_push = peak_mib(pid)
    with served(tmp_path / "node") as (url, pid):
        pulls = client("pull", f"odf+{url}sent/", tmp_path / "copy")
        after_pull = peak_mib(pid)
    found = {"push": pushes, "node": after_push, "pull": pulls, "server": after_pull}
    assert max(found.values()) <= MOST_MIB, found


def test_a_push_of_a_large_object(tmp_path: Path) -> None:
    content = bytes(OBJECT_BYTES)
    name = hash_bytes(content)
    schema = DataSchema(fields=(DataField(name="x", type=DataTypeInt64()),))
    interval = ev.OffsetInterval(start=0, end=0)
    new = ev.DataSlice(logical_hash=name, physical_hash=name, offset_interval=interval, size=OBJECT_BYTES)
    events = [ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(schema)), ev.AddData(new_data=new)]
    made(tmp_path / "ours", events, content)
    shown = token(tmp_path / "node")
    with served(tmp_path / "node") as (url, pid):
        pushes = client("push", tmp_path / "ours", "sent", f"odf+{url}sent", shown)
        after = peak_mib(pid)
    assert max(pushes, after) <= MOST_MIB, (pushes, after)


@pytest.mark.parametrize("size", [SMART.message_bytes, SMART.message_bytes + (1 << 20)])
def test_a_message_of_numbers_that_are_no_blocks(size: int, tmp_path: Path) -> None:
    shown = token(tmp_path / "node")
    before = '{"new_blocks":{"num_blocks":1,"media_type":"application/tar+gzip","encoding":"raw",'
    opened, after = '"payload":[', "]}}"
    numbers = "7," * ((size - len(before) - len(opened) - len(after) - 1) // 2) + "7"
    with served(tmp_path / "node") as (url, pid):
        for blank in ("", " "):  # as everybody writes it, and so that the JSON library has to read it
            with conversation(url, "sent/push", shown) as socket:
                assert say(socket, started(chain_of(["seed"]))) == OK
                message = before + opened + blank + numbers[len(blank) :] + after
                with pytest.raises(ConnectionClosed):  # while it is sent, where it is too long
                    answered(socket, message)
        peak = peak_mib(pid)
    assert peak <= MOST_MIB, peak
