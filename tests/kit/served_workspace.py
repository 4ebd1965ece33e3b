"""Datasets to be served, and a client that says exactly what it is told to say."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import urlopen

from odfchain.chain.chain import link_blocks
from odfchain.odf import events as ev
from odfchain.odf.block_codec import decode_block
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import RAW_SCHEMA, data_slice


def make_dataset(workspace: WorkspaceFiles, alias: str, *sizes: int) -> DatasetFiles:
    """A root dataset with a slice of each size [bytes] (what is in them is noise), and one checkpoint."""
    parsed = DatasetAlias.parse(alias)
    snapshot = DatasetSnapshot(name=parsed, kind=DatasetKind.ROOT, metadata=(RAW_SCHEMA,))
    dataset = workspace.create(snapshot, alias=parsed)
    for size in sizes:
        add_slice(dataset, size)
    return dataset


def add_slice(dataset: DatasetFiles, size: int) -> Multihash:
    """Append a block with a slice of ten records and the checkpoint after it; returns the slice's name."""
    head = dataset.chain.head()
    assert head is not None
    newest = dataset.chain.get(head)
    last = newest.event if isinstance(newest.event, ev.AddData) else None
    number = newest.sequence_number + 1
    content = random.Random(number).randbytes(size)
    name = dataset.data.put(content)
    checkpoint = dataset.checkpoints.put(b"checkpoint %d" % number)
    start = 0 if last is None or last.last_offset is None else last.last_offset + 1
    event = ev.AddData(
        prev_checkpoint=last.new_checkpoint.physical_hash if last and last.new_checkpoint else None,
        prev_offset=last.last_offset if last else None,
        new_data=data_slice(start, start + 9, size, name=name),
        new_checkpoint=ev.Checkpoint(physical_hash=checkpoint, size=dataset.checkpoints.size(checkpoint)),
    )
    (block,) = link_blocks([event], prev=head, next_sequence_number=number, system_time=newest.system_time)
    dataset.chain.append(block.block)
    return name


@dataclass(frozen=True)
class Reply:
    """A response, its header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(url: str, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
    """One request with the path as it is written; underscores in names of header fields are hyphens."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, fields, response.read())
    finally:
        connection.close()


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)


def heard(connection: socket.socket) -> bytes:
    """Everything that comes until the connection ends."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            found += data
    return bytes(found)


def raw(url: str, request: bytes) -> bytes:
    """Everything that is answered to these bytes."""
    with connect(url) as connection:
        connection.sendall(request)
        return heard(connection)


def read_all(url: str) -> Iterator[ObjectKey]:
    """Read a dataset in the order of the protocol, hash everything, and say what was read.

    The head, then blocks back to the seed, then what they name, oldest first.
    """
    with urlopen(f"{url}refs/head", timeout=20) as response:  # noqa: S310 - a server that the test started
        head = Multihash.parse(response.read().decode("ascii").strip())
    objects: list[ObjectKey] = []
    current: Multihash | None = head
    while current is not None:
        key = ObjectKey(ObjectKind.BLOCK, current)
        block = decode_block(_hashed(url, key))
        yield key
        event = block.event
        if isinstance(event, ev.AddData):
            if event.new_checkpoint:
                objects.append(ObjectKey(ObjectKind.CHECKPOINT, event.new_checkpoint.physical_hash))
            if event.new_data:
                objects.append(ObjectKey(ObjectKind.DATA, event.new_data.physical_hash))
        current = block.prev_block_hash
    for key in reversed(objects):
        _hashed(url, key)
        yield key


def _hashed(url: str, key: ObjectKey) -> bytes:
    with urlopen(f"{url}{key}", timeout=20) as response:  # noqa: S310 - as above
        data: bytes = response.read()
    assert hash_bytes(data) == key.name
    return data
