"""A real FTP server on loopback: passive mode, files in memory, faults by a script; it remembers what it heard."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from posixpath import join
from typing import Self

from tests.kit.loopback import RawServer

MDTM = "20151021072800"


@dataclass
class Sending:
    """How one transfer goes wrong."""

    cut: int | None = None
    """Send so many bytes only, counted from where the transfer begins."""
    after: str = "426 Connection broken"
    """What to say at the end; nothing means that the control connection is closed as well."""
    reset: bool = False
    """Break the data connection instead of closing it."""
    pieces: Iterable[bytes] | None = None
    """Something else than the file."""


@dataclass
class Ftp(RawServer):
    """Serves `files` by their absolute paths; fields change what it knows, says and does."""

    files: dict[str, bytes] = field(default_factory=dict)
    modified: str | None = MDTM
    """What `MDTM` tells of every file; None if the server does not know the command."""
    sizes: bool = True
    """Whether it knows `SIZE`."""
    restarts: str = "350 Restarting"
    """What it says to `REST`; it goes by it only if that is 350."""
    ignores_rest: bool = False
    """Whether it begins at the beginning whatever it says."""
    users: dict[str, str] = field(default_factory=lambda: {"anonymous": "anonymous@", "foo": "bar"})
    home: str = "/"
    sendings: list[Sending] = field(default_factory=list)
    """Faults of the first transfers, one after the other."""
    replies: dict[str, list[str | Callable[[], str]]] = field(default_factory=dict)
    """Replies instead of the usual ones, one after the other: by the command's name; `HELLO` is the welcome.

    An empty reply closes the connection.
    """
    passive_host: str = "127,0,0,1"
    """The address that `PASV` names."""
    host: str = "127.0.0.1"
    heard: list[str] = field(default_factory=list)
    """Every command of every connection."""

    def __enter__(self) -> Self:
        super().__init__(self.host)
        return super().__enter__()

    def url(self, path: str = "data.csv", user: str = "") -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ftp://{user}{host}:{self.port}/{path}"

    def count(self, command: str) -> int:
        return sum(line.split(" ")[0] == command for line in self.heard)

    def serve(self, connection: socket.socket) -> None:
        with _Talk(self, connection) as talk:
            talk.run()
        connection.shutdown(socket.SHUT_RDWR)


class _Talk:
    def __init__(self, server: Ftp, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._folder = server.home
        self._user = ""
        self._offset = 0
        self._passive: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._passive is not None:
            self._passive.close()

    def run(self) -> None:
        hello = self._scripted("HELLO")
        if not self._say("220-Welcome\r\n 220 to all\r\n220 Ready" if hello is None else hello):
            return
        for line in self._lines():
            self._server.heard.append(line)
            command, _, argument = line.partition(" ")
            reply = self._scripted(command)
            if reply is None:
                reply = self._answer(command, argument)
            if not self._say(reply) or command == "QUIT":
                return

    def _scripted(self, command: str) -> str | None:
        script = self._server.replies.get(command)
        if not script:
            return None
        entry = script.pop(0)
        return entry if isinstance(entry, str) else entry()

    def _say(self, reply: str) -> bool:
        if reply:
            self._connection.sendall(f"{reply}\r\n".encode())
        return bool(reply)

    def _lines(self) -> Iterator[str]:
        unread = b""
        while part := self._connection.recv(65_536):
            unread += part
            while b"\r\n" in unread:
                line, _, unread = unread.partition(b"\r\n")
                yield line.decode()

    def _answer(self, command: str, argument: str) -> str:
        server = self._server
        path = join(self._folder, argument)
        match command:
            case "USER":
                self._user = argument
                return "331 Password, please"
            case "PASS":
                right = server.users.get(self._user) == argument
                return "230 Logged in" if right else f"530 {self._user}, {argument!r} is wrong"
            case "TYPE":
                return "200 OK"
            case "CWD":
                known = any(name.startswith(path.rstrip("/") + "/") for name in server.files)
                self._folder = path if known else self._folder
                return "250 OK" if known else f"550 {path}: No such folder"
            case "SIZE" | "MDTM" if path not in server.files:
                return "550 No such file"
            case "SIZE" if server.sizes:
                return f"213 {len(server.files[path])}"
            case "MDTM" if server.modified is not None:
                return f"213 {server.modified}"
            case "PASV" if ":" not in server.host:
                high, low = divmod(self._listen(), 256)
                return f"227 Entering Passive Mode ({server.passive_host},{high},{low})"
            case "EPSV":
                return f"229 Entering Extended Passive Mode (|||{self._listen()}|)"
            case "REST":
                goes_by_it = server.restarts.startswith("350") and not server.ignores_rest
                self._offset = int(argument) if goes_by_it else 0
                return server.restarts
            case "RETR":
                return self._send(path)
            case "QUIT":
                return "221 Bye"
            case _:
                return f"502 {command} is not known here"

    def _listen(self) -> int:
        if self._passive is not None:
            self._passive.close()
        self._passive = socket.create_server((self._server.host, 0), family=self._server._family)
        self._server.sockets.append(self._passive)
        return self._passive.getsockname()[1]

    def _send(self, path: str) -> str:
        assert self._passive is not None
        offset, self._offset = self._offset, 0
        data, _ = self._passive.accept()
        self._server.sockets.append(data)
        with data:
            if path not in self._server.files:
                return f"550 {path}: No such file"
            sending = self._server.sendings.pop(0) if self._server.sendings else Sending(after="226 Done")
            self._say("150 Here it comes")
            content = self._server.files[path][offset:]
            with contextlib.suppress(OSError):
                for piece in sending.pieces or [content if sending.cut is None else content[: sending.cut]]:
                    data.sendall(piece)
            if sending.reset:
                data.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return sending.after
