"""A program for a network of its own (`unshare -n`): servers at public addresses aim inward, a raw socket counts packets.

Loopback has a public address there, which nothing outside of the program has: so all is as in the world, and no
packet leaves. Names are given by a resolver that answers otherwise the second time.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from odfchain.errors import OdfchainError
from odfchain.ingest.fetch_url import fetch_http
from odfchain.odf.names import DatasetAlias
from odfchain.storage import routes
from odfchain.transfer.pulling import pull_dataset
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.servers import fetched
from tests.kit.web_peers import http_peer

PUBLIC = "93.184.216.34"
INWARD = ("10.0.0.7", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "127.0.0.2")
CANARY, SERVER = 8_099, 8_098
HOSTS = (
    *INWARD, "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "0.0.0.0", "0",  # noqa: S104
    "localhost", "LOCALHOST", "localhost.", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    "[0:0:0:0:0:0:0:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "[fc00::1]", "[::ffff:10.0.0.7]", "[::ffff:169.254.169.254]",
    "169.254.43518", "2852039166", "0xa9fea9fe", "10.7", "167772167", "192.168.257", "127.0.0.1.", "user@127.0.0.1", "%31%32%37.0.0.1",
    "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021",
)  # fmt: skip
"""What a redirect may call an inward address."""
NAMES = ("turning.example",)


def network() -> None:
    """Loopback with one public address and some private ones."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (PUBLIC, *INWARD[:-1]):  # the last is loopback's own
        subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "addr", "add", "fc00::1/128", "dev", "lo", "nodad"], check=False)


class Wire(threading.Thread):
    """Counts the packets to a port, of IPv4 and IPv6, that anybody sends."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind(("lo", 0))

    def run(self) -> None:
        while True:
            packet, address = self._socket.recvfrom(65_535)
            if address[2] != socket.PACKET_OUTGOING:
                continue  # each one is seen twice on loopback
            version = packet[14] >> 4
            start = 14 + ((packet[14] & 15) * 4 if version == 4 else 40)
            if socket.inet_aton(PUBLIC) == packet[30:34] and version == 4:
                continue
            if len(packet) >= start + 4 and struct.unpack("!H", packet[start + 2 : start + 4])[0] == CANARY:
                self.count += 1

    def settled(self) -> int:
        """The count when a packet that is sent now has been seen."""
        before, probe = self.count, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        probe.sendto(b"x", ("127.0.0.1", CANARY))
        while self.count == before:
            threading.Event().wait(0.001)
        probe.close()
        return self.count - 1


class Redirecting(threading.Thread):
    """Sends whoever asks to `to`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.to, self.served = "", 0
        self._listener = socket.create_server((PUBLIC, SERVER))

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(65_536)
                self.served += 1
                answer = f"HTTP/1.1 302 Found\r\nLocation: {self.to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                connection.sendall(answer.encode())


def hang_up(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


def main() -> None:
    network()
    if sys.argv[1:] == ["unguarded"]:
        routes.is_public = lambda _: True
    wire, server = Wire(), Redirecting()
    wire.start()
    server.start()
    canaries = [socket.create_server((address, CANARY)) for address in (*INWARD, "127.0.0.1")]
    canaries.append(socket.create_server(("::1", CANARY), family=socket.AF_INET6))
    for canary in canaries:
        threading.Thread(target=hang_up, args=(canary,), daemon=True).start()
    found: dict[str, int] = dict.fromkeys(("refused", "names", "followed"), 0)
    with tempfile.TemporaryDirectory() as folder:
        space = WorkspaceFiles.init(Path(folder))
        area = Path(folder) / "area"
        area.mkdir()

        def attempt(work: Any) -> None:
            try:
                work()
            except OdfchainError:
                found["refused"] += 1
            else:
                found["followed"] += 1

        def fetch(url: str, retries: int = 0) -> None:
            fetched(lambda at, context: fetch_http(at, (), context), area, url, retries=retries)

        def pull(url: str) -> None:
            with http_peer(url) as peer:
                pull_dataset(space, peer, DatasetAlias.parse("x"))

        for host in HOSTS:
            server.to = f"http://{host}:{CANARY}/x"
            attempt(lambda: fetch(f"http://{PUBLIC}:{SERVER}/x"))
            attempt(lambda: pull(f"http://{PUBLIC}:{SERVER}/"))
        served = server.served
        honest, asked = socket.getaddrinfo, [0]

        def turning(host: str, *args: Any, **named: Any) -> Any:
            """The public address first, and an inward one ever after."""
            if host not in NAMES:
                return honest(host, *args, **named)
            asked[0] += 1
            return honest(PUBLIC if asked[0] % 2 else INWARD[asked[0] // 2 % len(INWARD)], *args, **named)

        socket.getaddrinfo = turning
        for _ in range(len(INWARD)):
            server.to = f"http://{NAMES[0]}:{CANARY}/x"
            attempt(lambda: fetch(f"http://{PUBLIC}:{SERVER}/x", retries=3))
            attempt(lambda: pull(f"http://{PUBLIC}:{SERVER}/"))
            found["names"] += 2
        inward = wire.settled()
        socket.create_connection(("10.0.0.7", CANARY)).close()
        control = wire.settled() - inward - 1
    figures = found | {
        "addresses": 2 * len(HOSTS), "redirects served": served, "packets inward": inward, "control packets": control, "looked up": asked[0]
    }  # fmt: skip
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
