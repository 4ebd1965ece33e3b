"""Both sides of the measurements of the smart protocol, each a process of its own.

python smart_sides.py serve FOLDER LOG       a workspace that may be written to; requests are lines of LOG
python smart_sides.py delay PORT SECONDS     a way to a port of this machine that takes time, there and back
python smart_sides.py take                   a server whose PUTs go through SHA3-256 and nowhere else
python smart_sides.py pull URL FOLDER        pulls into a new workspace
python smart_sides.py push FOLDER NAME URL TOKEN
python smart_sides.py frame URL TOKEN        pushes a message as large as one may be, and no block in it

Those that serve print where they are. The others print what they needed (`Spent`), without the time that
Python takes to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from processes import peak_mib

_PIECE = 1 << 20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def serve(folder: str, log: str) -> None:
    """`odfchain serve --write`."""
    from odfchain import Workspace  # noqa: PLC0415 - others are not to load it

    with Path(log).open("a", encoding="utf-8", buffering=1) as lines:

        def note(line: str) -> None:
            lines.write(f"{line}\n")

        Workspace.open(folder).serve(
            port=0,
            listening=lambda url: print(url, flush=True),
            on_request=note,
            on_problem=note,
            write=True,
        )


# --- a long way ---------------------------------------------------------------------------------------


async def _carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """What comes goes on after a time, in its order, and as fast as it came."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(_PIECE):
        loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)


async def _delayed(port: int, seconds: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * seconds)  # the way there and back that a handshake takes
        there, back = await asyncio.open_connection("127.0.0.1", port)
        for each in (writer, back):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            await asyncio.gather(_carried(reader, back, seconds), _carried(there, writer, seconds))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
    await server.serve_forever()


def delay(port: str, seconds: str) -> None:
    """Half of the time in each direction."""
    asyncio.run(_delayed(int(port), float(seconds) / 2))


# --- what curl sends to -------------------------------------------------------------------------------


def _hashed(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(_PIECE))
    head = b""
    while True:
        while (end := head.find(b"\r\n\r\n")) < 0:
            count = connection.recv_into(buffer)
            if not count:
                return
            head += buffer[:count]
        found = _LENGTH.search(head[:end])
        left = int(found[1]) if found else 0
        if b"100-continue" in head[:end].lower():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, head = head[end + 4 :][:left], head[end + 4 + left :]
        hasher = hashlib.sha3_256(body)
        left -= len(body)
        while left and (count := connection.recv_into(buffer[:left])):
            hasher.update(buffer[:count])
            left -= count
        text = hasher.hexdigest().encode()
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))


def take() -> None:
    """A thread for each connection: receiving and hashing leave the others alone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_hashed, args=(connection,), daemon=True).start()


# --- clients ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _spent() -> Iterator[None]:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": took, "cpu": cpu, "peak_mib": peak_mib("self")}))


def pull(url: str, folder: str) -> None:
    """A dataset in a new workspace."""
    from odfchain.odf.names import DatasetAlias  # noqa: PLC0415 - as above
    from odfchain.storage.locations import PeerUrl  # noqa: PLC0415
    from odfchain.transfer.open_peer import open_peer  # noqa: PLC0415
    from odfchain.transfer.pulling import pull_dataset  # noqa: PLC0415
    from odfchain.workspace.workspace_files import WorkspaceFiles  # noqa: PLC0415

    workspace = WorkspaceFiles.init(Path(folder))
    with _spent(), contextlib.closing(open_peer(PeerUrl.parse(url))) as peer:
        pull_dataset(workspace, peer, DatasetAlias.parse("copy"))


def push(folder: str, name: str, url: str, token: str) -> None:
    """A dataset of a workspace to a node."""
    from odfchain.odf.names import DatasetAlias  # noqa: PLC0415 - as above
    from odfchain.storage.locations import PeerUrl  # noqa: PLC0415
    from odfchain.transfer.open_peer import PeerOptions, open_writable  # noqa: PLC0415
    from odfchain.transfer.pushing import push_dataset  # noqa: PLC0415
    from odfchain.workspace.workspace_files import WorkspaceFiles  # noqa: PLC0415

    dataset = WorkspaceFiles.find(Path(folder)).dataset(DatasetAlias.parse(name))
    with (
        _spent(),
        contextlib.closing(open_writable(PeerUrl.parse(url), PeerOptions(token=token))) as peer,
    ):
        push_dataset(dataset, peer)


def frame(url: str, token: str) -> None:
    """What a node does with the largest message is its own matter; here it is only sent."""
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - as above
    from websockets.sync.client import connect  # noqa: PLC0415

    from odfchain.limits import SMART  # noqa: PLC0415

    counts = ("num_objects", "num_records", "bytes_in_raw_blocks", "bytes_in_raw_objects")
    first = {
        "current_head": None,
        "transfer_plan": {"num_blocks": 1, **dict.fromkeys(counts, 0)},
        "force_update_if_diverged": False,
        "visibility_for_created_dataset": "Private",
    }
    batch = '{"new_blocks":{"num_blocks":1,"media_type":"application/tar+gzip","encoding":"raw","payload":['
    numbers = "7," * ((SMART.message_bytes - len(batch) - 4) // 2) + "7"
    headers = {"x-odf-smtp-version": "1", "Authorization": f"Bearer {token}"}
    with _spent(), connect(f"ws{url.removeprefix('http')}push", additional_headers=headers) as node:
        node.send(json.dumps(first))
        assert json.loads(node.recv()) == {"Ok": {}}
        node.send(f"{batch}{numbers}]}}}}")
        with contextlib.suppress(ConnectionClosed):
            node.recv()


_PARTS: dict[str, Callable[..., None]] = {
    "serve": serve,
    "delay": delay,
    "take": take,
    "pull": pull,
    "push": push,
    "frame": frame,
}

if __name__ == "__main__":
    _PARTS[sys.argv[1]](*sys.argv[2:])
