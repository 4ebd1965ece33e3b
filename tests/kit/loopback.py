"""Servers on loopback that are there as long as they are entered, on which those of the tests are built."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Handler(BaseHTTPRequestHandler):
    """Answers a request; writes no log."""

    def log_message(self, *args: Any) -> None:
        pass

    def lowered(self) -> dict[str, str]:
        """The headers by their names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    def content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class WebServer:
    """The standard library's, with a handler of requests; a client that goes away is no error."""

    def __init__(self, handler: Any, host: str = "127.0.0.1") -> None:
        class Server(ThreadingHTTPServer):
            def get_request(self) -> tuple[socket.socket, Any]:
                request, address = super().get_request()
                kept.add(request)
                return request, address

            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exc_info()[1], OSError):
                    super().handle_error(request, client_address)

        self._host = host
        self._kept = kept = weakref.WeakSet[socket.socket]()
        self._server = Server((host, 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def origin(self) -> str:
        return f"http://{self._host}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        for connection in list(self._kept):  # a client may keep one that it does not use, and is waited for
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        self._server.server_close()


class RawServer:
    """Serves each connection in a thread of its own; what is left of them ends with it."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=self._family, backlog=64)
        self.host, self.port = self._listener.getsockname()[:2]
        self.over = threading.Event()
        """Set when the server is left."""
        self.sockets: list[socket.socket] = []
        """What is shut down then."""
        self._threads = [threading.Thread(target=self._accept)]

    def serve(self, connection: socket.socket) -> None:
        """Everything on a connection; that it breaks is no error."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # it adds to the others
        self._listener.close()
        for found in self.sockets:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.over.is_set():
                connection, _ = self._listener.accept()
                self.sockets.append(connection)
                self._threads.append(threading.Thread(target=self._run, args=(connection,)))
                self._threads[-1].start()

    def _run(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self.serve(connection)
