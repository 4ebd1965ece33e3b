"""An engine as a gRPC service: the engine's side of the protocol.

A call streams `Progress` while the engine runs and ends with one of `Success`, `InvalidQuery` and
`InternalError`. What the engine writes gets the names that the request asks for only when the run is over,
went well and is still wanted: a coordinator that went away or gave up finds nothing there later, and can
send the same request again, here or to another engine.

There is no authentication, as the protocol has none: whoever can connect can make the engine read and write
files. Hence a loopback address or a socket that only its owner may use. Source: specification "Engine
Protocol", "Engine Contract"; RFC-019.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket as sockets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from odfchain.engine.interface import VersionedEngine
from odfchain.engine.remote.execution import RunningRequest, internal_error, staged
from odfchain.engine.remote.protocol import (
    DEFAULT_PORT,
    EXECUTE_RAW_QUERY,
    EXECUTE_TRANSFORM,
    MESSAGE_BYTES,
    SERVICE,
    VERSION_KEY,
    Call,
    load_grpc,
)
from odfchain.errors import EngineError, OdfchainError
from odfchain.store import fsio

if TYPE_CHECKING:
    from odfchain.engine.interface import TransformEngine

PROGRESS_SECONDS = 3.0
STOP_SECONDS = 5.0
"""How long a run may take to end when the server stops; coordinators wait as long for a container."""

_WAITING_CALLS = 32
"""Calls that may wait for a worker; more are refused."""
_SOCKET_PATH_BYTES = 107


def serve(
    engine: TransformEngine,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    socket: Path | None = None,
    workers: int = 4,
    progress_interval: float = PROGRESS_SECONDS,
) -> EngineServer:
    """The engine, listening: on a Unix socket if one is named, else on a TCP port (0 is any free one).

    `workers` requests are executed at a time, others wait. `progress_interval` is in seconds. An engine with
    a method `cancel(request)` is told so when nobody waits for a request any more (which can be before it has
    seen the request); any other notices at the next thing that it reports, where an `EngineError` is raised.
    """
    grpc = load_grpc()
    calls = workers + _WAITING_CALLS
    pool = ThreadPoolExecutor(calls, thread_name_prefix="odfchain-call")
    server = grpc.server(
        pool,
        maximum_concurrent_rpcs=calls,
        options=(
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),  # a port that is taken is an error
        ),
    )
    service = _Service(engine, workers, progress_interval)
    handlers = {
        call.method: grpc.unary_stream_rpc_method_handler(service.responder(call))
        for call in (EXECUTE_TRANSFORM, EXECUTE_RAW_QUERY)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        address = _bind_socket(server, socket) if socket else _bind_port(server, host, port)
        server.start()
    except BaseException:
        server.stop(None)
        pool.shutdown()
        raise
    return EngineServer(address, server, pool, service)


class EngineServer:
    """A running server; as a context manager it is stopped at the end."""

    def __init__(self, address: str, server: Any, pool: ThreadPoolExecutor, service: _Service) -> None:
        self.address = address
        """What a client is told: `host:port` or `unix:path`."""
        self._server = server
        self._pool = pool
        self._service = service

    def wait(self) -> None:
        """Return when the server has been stopped; Ctrl-C gets through."""
        self._server.wait_for_termination()

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """Refuse further calls and cancel those that run; their runs have `grace` seconds to end."""
        deadline = time.monotonic() + grace
        self._server.stop(None).wait()
        self._pool.shutdown()
        self._service.join(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# --- addresses -----------------------------------------------------------------------------------


def _bind_port(server: Any, host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{name}:{port}")
    except RuntimeError as error:
        raise EngineError(
            f"cannot listen on {name}:{port}: the port is taken or the address is not this machine's",
            hint="port 0 takes any free one",
        ) from error
    return f"{name}:{bound}"


def _bind_socket(server: Any, path: Path) -> str:
    path = path.absolute()
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise EngineError(f"{path}: the path of a socket may have {_SOCKET_PATH_BYTES} bytes")
    _remove_dead_socket(path)
    mask = os.umask(0o177)  # the protocol has no authentication: only the owner may connect
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise EngineError(f"cannot listen on {path}", hint="is its folder there and writable?") from error
    finally:
        os.umask(mask)
    return f"unix:{path}"


def _remove_dead_socket(path: Path) -> None:
    """Make way on a path where an engine that was killed has left its socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise EngineError(f"cannot listen on {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise EngineError(f"{path} is there already and is no socket")
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            fsio.remove_quietly(path)
            return
        except OSError as error:
            raise EngineError(f"cannot listen on {path}: {error.strerror}") from error
    raise EngineError(f"an engine listens on {path} already", hint="stop it, or use another path")


# --- calls ---------------------------------------------------------------------------------------


class _Service:
    """Answers calls. The engine runs on a thread of its own, so that the call can say that it does."""

    def __init__(self, engine: TransformEngine, workers: int, interval: float) -> None:
        self._engine = engine
        self._interval = interval
        self._free = threading.Semaphore(workers)
        self._threads: set[threading.Thread] = set()
        said = ((VERSION_KEY, engine.version),) if isinstance(engine, VersionedEngine) else ()
        self._metadata = said

    def responder(self, call: Call) -> Callable[[bytes, Any], Iterator[bytes]]:
        """What gRPC asks for the responses of a call."""
        progress = call.pack_response("Progress")

        def respond(message: bytes, context: Any) -> Iterator[bytes]:
            context.send_initial_metadata(self._metadata)  # before the work: the version may not be wanted
            try:
                request = call.unpack_request(message)
                run = RunningRequest(call, staged(request))
            except OdfchainError as error:
                yield internal_error(call, error)
                return
            if not context.add_callback(run.give_up):
                return
            thread = threading.Thread(target=self._execute, args=(run,), name="odfchain-run", daemon=True)
            self._threads.add(thread)
            thread.start()
            try:
                while True:
                    try:
                        answer = run.answers.get(timeout=self._interval)
                    except queue.Empty:
                        yield progress
                        continue
                    if answer is not None:
                        yield answer
                    return
            finally:  # also when gRPC drops this generator because nobody listens
                self._cancel(run)

        return respond

    def _execute(self, run: RunningRequest) -> None:
        with self._free:
            run.answers.put(run.answer(self._engine))
        self._threads.discard(threading.current_thread())

    def _cancel(self, run: RunningRequest) -> None:
        cancel = getattr(self._engine, "cancel", None)
        if run.give_up() and cancel is not None:
            with contextlib.suppress(Exception):  # what it stops may have ended by itself
                cancel(run.staged.request)

    def join(self, deadline: float) -> None:
        """Wait for the runs, until a time of the monotonic clock."""
        for thread in tuple(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
