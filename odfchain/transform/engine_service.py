"""An engine as a gRPC service: the engine's side of the protocol.

A call streams `Progress` while the engine runs and ends with one of `Success`, `InvalidQuery` and
`InternalError`. What the engine writes gets the names that the request asks for only when the run is over,
went well and is still wanted: a coordinator that went away or gave up finds nothing there later, and can
send the same request again, here or to another engine.

The protocol has no authentication: a client that can connect can make the engine read and write files. Hence
a loopback address or a socket that only its owner may use. Source: specification "Engine Protocol", "Engine
Contract"; RFC-019.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import socket as sockets
import stat
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from odfchain.errors import EngineError, OdfchainError, QueryError, RefusedQueryError
from odfchain.storage import fsio
from odfchain.transform.engine_client import (
    DEFAULT_PORT,
    EXECUTE_RAW_QUERY,
    EXECUTE_TRANSFORM,
    MESSAGE_BYTES,
    REFUSED,
    SERVICE,
    VERSION_KEY,
    Call,
    load_grpc,
)

if TYPE_CHECKING:
    from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest
    from odfchain.transform.engines import TransformEngine


_TEXT_CHARACTERS = 1 << 16
_OUTPUTS = ("new_checkpoint_path", "new_data_path", "output_data_path")


class _Run:
    """One request being executed; also what the engine reports its progress to.

    Outputs are written under temporary names in the folders of the final ones, and renamed when the run
    succeeded and is still wanted; else they are removed.
    """

    def __init__(self, call: Call, request: TransformRequest | RawQueryRequest) -> None:
        self.call = call
        self.answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """The terminal message, or None when the client has gone."""
        self._outputs: list[tuple[Path, Path]] = []
        """(where the engine writes, the name that was asked for), in the order of publication."""
        self._lock = threading.Lock()
        self._given_up = self._settled = False
        changes: dict[str, Any] = {}
        for name in _OUTPUTS:
            path = getattr(request, name, None)
            if path is None:
                continue
            if not Path(path).is_absolute() or "\0" in path:
                raise EngineError(f"{name} is {path!r}: the paths in a request must be absolute")
            changes[name] = f"{path}.{uuid.uuid4().hex}"
            self._outputs.append((Path(changes[name]), Path(path)))
        self.request: Any = replace(request, **changes)

    def give_up(self) -> bool:
        """The client has gone; returns true if there was something left to cancel."""
        with self._lock:
            if not self._settled:
                self._given_up = True
            self.answers.put(None)
            return self._given_up

    def answer(self, engine: TransformEngine) -> bytes:
        """The terminal message; never raises."""
        try:
            self._check()
            if self.call is EXECUTE_RAW_QUERY:
                message = self.call.pack_response(
                    "Success", num_records=engine.query(self.request, progress=self)
                )
            else:
                done = engine.execute(self.request, schema=None, progress=self)
                message = self.call.pack_response(
                    "Success", new_offset_interval=done.offset_interval, new_watermark=done.watermark
                )
            # the slow part of publication, while it can still be cancelled
            for written, _ in self._outputs:
                if written.exists():
                    fsio.sync_file(written)
            with self._lock:
                self._check()
                self._settled = True
            self._publish()
        except BaseException as error:  # noqa: BLE001 - every error is sent to the caller
            with self._lock:
                self._settled = True  # too late to cancel
            if not isinstance(error, QueryError):
                return _internal_error(self.call, error)
            refused = REFUSED if isinstance(error, RefusedQueryError) else ""
            return self.call.pack_response("InvalidQuery", message=_text(refused + _with_hint(error)))
        finally:
            for written, _ in self._outputs:
                fsio.remove_quietly(written)
        return message

    def _publish(self) -> None:
        # all files get the names that were asked for, or none does
        try:
            for written, wanted in self._outputs:
                fsio.remove_quietly(wanted)  # of an earlier try
                if written.exists() and not fsio.adopt_file(written, wanted):
                    raise EngineError(f"{wanted} already exists and cannot be replaced")  # noqa: TRY301
        except BaseException:
            for _, wanted in self._outputs:
                fsio.remove_quietly(wanted)
            raise

    def _check(self) -> None:
        if self._given_up:
            raise EngineError("the call was cancelled")

    # what the engine reports is not passed on: the protocol's `Progress` is empty

    def phase(self, name: str, total: int | None = None) -> None:  # noqa: ARG002
        self._check()

    def advance(self, steps: int = 1) -> None:  # noqa: ARG002
        self._check()

    def note(self, text: str) -> None:  # noqa: ARG002
        self._check()


# --- messages ------------------------------------------------------------------------------------


def _internal_error(call: Call, error: BaseException) -> bytes:
    if isinstance(error, OdfchainError):
        message = _with_hint(error)
    else:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return call.pack_response(
        "InternalError", message=_text(message), backtrace=_text(trace[-_TEXT_CHARACTERS:])
    )


def _with_hint(error: OdfchainError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _text(text: str) -> str:
    # cut to what fits into a message
    return text[:_TEXT_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


PROGRESS_SECONDS = 3.0
STOP_SECONDS = 5.0
"""Time for a run to end when the server stops; coordinators wait as long for a container."""

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

    `workers` requests are executed at a time, others wait. `progress_interval` is in seconds. An engine's
    `version`, visible ASCII without blanks, is sent. One with a method `cancel(request)` is called when the
    client of a request has gone (which can be before it has seen the request); any other notices at the next
    thing that it reports, where an `EngineError` is raised.
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
    service = EngineServer(engine, server, pool, workers, progress_interval)
    handlers = {
        call.method: grpc.unary_stream_rpc_method_handler(functools.partial(service.respond, call))
        for call in (EXECUTE_TRANSFORM, EXECUTE_RAW_QUERY)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        service.address = _bind_socket(server, socket) if socket else _bind_port(server, host, port)
        server.start()
    except BaseException:
        server.stop(None)
        pool.shutdown()
        raise
    return service


class EngineServer:
    """A running server; as a context manager it is stopped at the end."""

    address: str
    """The address for clients: `host:port` or `unix:path`."""

    def __init__(
        self, engine: TransformEngine, server: Any, pool: ThreadPoolExecutor, workers: int, interval: float
    ) -> None:
        self._engine, self._server, self._pool, self._interval = engine, server, pool, interval
        self._free = threading.Semaphore(workers)
        self._threads: set[threading.Thread] = set()
        version = getattr(engine, "version", None)
        self._metadata = () if version is None else ((VERSION_KEY, version),)

    def wait(self) -> None:
        """Return when the server has been stopped; Ctrl-C gets through."""
        self._server.wait_for_termination()

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """Refuse further calls and cancel those that run; their runs have `grace` seconds to end."""
        deadline = time.monotonic() + grace
        self._server.stop(None).wait()
        self._pool.shutdown()
        for thread in tuple(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def respond(self, call: Call, message: bytes, context: Any) -> Iterator[bytes]:
        """The answer to a call, and until then that the engine is at work."""
        context.send_initial_metadata(self._metadata)  # before the work: the version may not be wanted
        try:
            run = _Run(call, call.unpack_request(message))
        except OdfchainError as error:
            yield _internal_error(call, error)
            return
        if not context.add_callback(run.give_up):
            return
        # the engine runs on a thread of its own, so that the call can say that it does
        thread = threading.Thread(target=self._execute, args=(run,), name="odfchain-run", daemon=True)
        self._threads.add(thread)
        thread.start()
        try:
            while True:
                try:
                    answer = run.answers.get(timeout=self._interval)
                except queue.Empty:
                    yield call.pack_response("Progress")
                    continue
                if answer is not None:
                    yield answer
                return
        finally:  # also when gRPC drops this generator because the client has gone
            cancel = getattr(self._engine, "cancel", None)
            if run.give_up() and cancel is not None:
                with contextlib.suppress(Exception):  # what it stops may have ended by itself
                    cancel(run.request)

    def _execute(self, run: _Run) -> None:
        with self._free:
            run.answers.put(run.answer(self._engine))
        self._threads.discard(threading.current_thread())


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
    # an engine that was killed leaves its socket behind
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise EngineError(f"cannot listen on {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise EngineError(f"{path} already exists and is not a socket")
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            fsio.remove_quietly(path)
            return
        except OSError as error:
            raise EngineError(f"cannot listen on {path}: {error.strerror}") from error
    raise EngineError(f"an engine listens on {path} already", hint="stop it, or use another path")
