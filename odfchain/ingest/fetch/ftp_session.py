"""A conversation with an FTP server on which every wait ends at the deadline (RFC 959, 2428 and 3659)."""

from __future__ import annotations

import contextlib
import datetime as dt
import ftplib
import re
import socket
from dataclasses import dataclass, field

from odfchain.errors import FetchError
from odfchain.limits import FetchLimits
from odfchain.model.timestamp import Timestamp
from odfchain.net.address import resolve
from odfchain.net.dial import connect
from odfchain.net.retry import Deadline, TransientError
from odfchain.text import one_line

WIRE = "latin-1"
"""One character for each byte: paths and replies are bytes of an encoding that only the server knows."""

_CHUNK = 1 << 16
_LONGEST_TALK = 1 << 18
"""All replies of one connection together [bytes]; a reply of many lines has no other end."""

_SIZE = re.compile(r"213 ([0-9]{1,19})\s*")
_TIME = re.compile(r"213 ([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})(?:\.([0-9]{1,20}))?\s*")


@dataclass(frozen=True, slots=True)
class FtpAddress:
    """Where a file is: the folders to enter one after the other, and its name in the last one."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    folders: tuple[str, ...]
    file: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a server tells of a file."""

    size: int | None
    modified: Timestamp | None


class FtpSession(ftplib.FTP):
    """A control connection on which every wait ends at the deadline.

    Raises:
        TransientError: time is up, or the connection fails.
        FetchError: the server talks without end.
        ftplib.Error: its replies.
    """

    encoding = WIRE
    trust_server_pasv_ipv4_address = False

    def __init__(self, limits: FetchLimits, deadline: Deadline, name: str) -> None:
        super().__init__(encoding=WIRE)
        self._limits = limits
        self._deadline = deadline
        self._name = name
        self._unread = b""
        self._heard = 0

    def enter(self, place: FtpAddress) -> None:
        """Connect, log in, and go to the file's folder."""
        addresses = resolve(place.host, place.port, name=self._name)
        self.sock, _ = connect(addresses, place.port, self._limits, self._deadline)
        self.af = self.sock.family
        self.voidresp()
        self.login(place.user, place.password)
        self.voidcmd("TYPE I")
        for folder in place.folders:
            self.voidcmd(f"CWD {folder}")

    def facts(self, file: str) -> FileFacts:
        """What the server tells of a file; a server that does not know these commands tells nothing."""
        size = _SIZE.fullmatch(self._told(f"SIZE {file}"))
        return FileFacts(int(size[1]) if size else None, self.modified(file))

    def modified(self, file: str) -> Timestamp | None:
        """When the file was modified, if the server tells."""
        return parse_mdtm(self._told(f"MDTM {file}"))

    def _told(self, command: str) -> str:
        # Only a lasting refusal means that nothing is told: a state that comes and goes would repeat rows.
        try:
            return self.sendcmd(command)
        except ftplib.error_perm:
            return ""

    def data_connection(self) -> socket.socket:
        """A connection that the next file will come over."""
        try:
            host, port = self.makepasv()
        except ValueError as error:  # a port that is no number
            raise ftplib.error_proto from error
        if not 0 < port < 65_536:
            raise ftplib.error_proto
        return connect([host], port, self._limits, self._deadline)[0]

    def restart(self, offset: int) -> bool:
        """Whether the server will begin the next file at this byte."""
        try:
            reply = self.sendcmd(f"REST {offset}")
        except ftplib.error_perm:
            return False
        return reply.startswith("3")

    def request(self, file: str) -> None:
        """Have the file sent over the data connection."""
        if not self.sendcmd(f"RETR {file}").startswith("1"):
            raise ftplib.error_reply

    def receive(self, connection: socket.socket) -> bytes:
        """The next bytes, none at the end."""
        self._deadline.check()
        connection.settimeout(max(1e-3, min(self._limits.idle_timeout, self._deadline.remaining)))
        try:
            return connection.recv(_CHUNK)
        except TimeoutError as error:
            self._deadline.check()
            raise TransientError(f"no byte within {self._limits.idle_timeout:g} s") from error

    def leave(self) -> None:
        """Say goodbye, without waiting for an answer: all that was wanted is here."""
        with contextlib.suppress(OSError):
            self.putcmd("QUIT")

    def getline(self) -> str:
        """One line of a reply; replaces the library's, whose waits have no common end."""
        while b"\n" not in self._unread:
            part = self.receive(self.sock) if self.sock else b""
            self._heard += len(part)
            if self._heard > _LONGEST_TALK:
                raise FetchError(f"{self._name}: the server talks without end")
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(WIRE).rstrip("\r")


def parse_mdtm(reply: str) -> Timestamp | None:
    """The time in a reply to `MDTM` (RFC 3659, 3.1), cut to milliseconds; None if it tells none."""
    match = _TIME.fullmatch(reply)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[part]) for part in range(1, 7))
    second = 59 if second == 60 else second  # a leap second is legal, and nothing here can hold it
    micros = int((match[7] or "")[:3].ljust(3, "0")) * 1_000
    try:
        return Timestamp.from_datetime(
            dt.datetime(year, month, day, hour, minute, second, micros, tzinfo=dt.UTC)
        )
    except (ValueError, OverflowError):
        return None


def words(error: OSError | None) -> str:
    """What the system says of a failed connection."""
    return one_line((error.strerror if error else "") or str(error)).lower()
