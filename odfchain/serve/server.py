"""Running the application that publishes a workspace: on uvicorn, in a thread of its own.

Whoever starts it keeps the main thread, where signals arrive, and can stop it from anywhere. Unless writing
is allowed, nothing in a workspace can be changed over this server; then those change datasets of others who
have a token for that. There is no encryption, and unless reading is restricted no reader is asked who he is,
so it listens on this machine only unless it is told otherwise; in front of the open network belongs a web
server that does both.
Source: RFC-021, RFC-050.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, cast

from odfchain.errors import TransferError, UsageError
from odfchain.limits import SHARING
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.serve import HOST, PORT
from odfchain.serve.application import Branches, Message, Receive, Send, repository
from odfchain.text import one_line
from odfchain.transfer.plain_urls import is_this_machine

if TYPE_CHECKING:
    from odfchain.serve.hosts import Application

GRACE_SECONDS = 5
"""How long responses may take to end when the server stops [s]; after that they are cut."""

_BACKLOG = 512
_KEEP_ALIVE_SECONDS = 15

Tell = Callable[[str], None]


def serve(
    workspace: WorkspaceFiles,
    *,
    host: str = HOST,
    port: int = PORT,
    listening: Tell | None = None,
    on_request: Tell | None = None,
    on_problem: Tell | None = None,
    branches: Branches = False,
    write: bool = False,
    restrict_reading: bool = False,
    behind_proxy: bool = False,
    allow_hosts: Sequence[str] = (),
) -> None:
    """Publish a workspace until SIGTERM or Ctrl-C; then let responses end, and return.

    `listening` gets the URL once clients can connect; `on_request` a line for each request; `on_problem` a
    line for each thing that could not be read; `branches` are those that are published. They are called from
    the server's thread, but for the first. A second signal ends it at once. Port 0 is any free one. With
    `write`, those may push who have a token for that; with `restrict_reading`, nobody reads without one.
    `allow_hosts` are names, beside those in the settings, under which others ask for it.
    """
    with (
        RepositoryServer(
            workspace,
            host=host,
            port=port,
            on_request=on_request,
            on_problem=on_problem,
            branches=branches,
            write=write,
            restrict_reading=restrict_reading,
            behind_proxy=behind_proxy,
            allow_hosts=allow_hosts,
        ) as it,
        _signals(it.request_stop),
    ):
        if listening is not None:
            listening(it.url)
        it.wait()


class RepositoryServer:
    """A server that publishes a workspace; listens when it is made, as a context manager ends with it.

    Raises:
        TransferError: the address cannot be listened on.
        UsageError: others than this machine would send tokens without encryption; or a name is no host's.
    """

    def __init__(
        self,
        workspace: WorkspaceFiles,
        *,
        host: str = HOST,
        port: int = 0,
        on_request: Tell | None = None,
        on_problem: Tell | None = None,
        branches: Branches = False,
        write: bool = False,
        restrict_reading: bool = False,
        behind_proxy: bool = False,
        allow_hosts: Sequence[str] = (),
    ) -> None:
        if (write or restrict_reading) and not behind_proxy and not is_this_machine(host):
            raise UsageError(
                f"{one_line(host)}: everybody on the way could read the tokens of those who ask, since there "
                "is no encryption here",
                hint="listen on 127.0.0.1, or put a web server with TLS in front and say --behind-proxy",
            )
        import uvicorn  # noqa: PLC0415 - slow to load

        from odfchain.serve.connection import Connection  # noqa: PLC0415
        from odfchain.serve.conversation import Conversation, Memory  # noqa: PLC0415
        from odfchain.serve.hosts import admitted_hosts, for_hosts  # noqa: PLC0415

        hosts = admitted_hosts(host, (*allow_hosts, *workspace.config.share.hosts))
        self._problem = on_problem or (lambda _: None)
        self._socket = _listen(host, port)
        self.url = _url(self._socket)
        """Where the repository is; ends in a slash."""
        published = repository(
            workspace,
            problem=self._problem,
            branches=branches,
            write=write,
            restrict_reading=restrict_reading,
            behind_proxy=behind_proxy,
        )
        application = _told(for_hosts(published, hosts), on_request, self._problem)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                http=Connection,
                ws=cast("type[asyncio.Protocol]", partial(Conversation, memory=Memory())),
                ws_per_message_deflate=False,
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                workers=1,
                backlog=_BACKLOG,
                log_config=None,
                log_level="critical",  # what matters is told to `on_problem`
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=SHARING.connections,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="odfchain-serve", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            self._failure = error
        finally:
            self._socket.close()

    async def _main(self) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self._problem(one_line(str(context.get("exception") or context["message"])))
        )
        await self._server.serve(sockets=[self._socket])

    def request_stop(self) -> None:
        """Ask it to end, gracefully at first and at once when asked again; returns without waiting."""
        if self._server.should_exit:
            self._server.force_exit = True
        self._server.should_exit = True

    def wait(self) -> None:
        """Return when the server has ended.

        Raises:
            TransferError: it ended because of a fault.
        """
        self._thread.join()
        if self._failure is not None:
            raise TransferError(f"{self.url}: the server failed: {one_line(str(self._failure))}")

    def stop(self) -> None:
        """End it and wait: no connections any more, responses have `GRACE_SECONDS`."""
        self._server.should_exit = True
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _signals:  # noqa: N801 - used like a function
    """SIGTERM and Ctrl-C call `stop` instead of ending the process; only the main thread can have that."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._stop()  # sets two flags and takes no lock: whatever is interrupted may hold one

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    where = f"cannot listen on {one_line(host)!r}, port {port}"
    if not 0 <= port <= 65_535:
        raise TransferError(f"{where}: ports go from 0 to 65535")
    made: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)  # clients may connect from here on, and wait until they are answered
    except (OSError, UnicodeError) as error:
        if made is not None:
            made.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise TransferError(
            f"{where}: {one_line(reason)}", hint="choose another --host or --port; port 0 is any free one"
        ) from None
    made.setblocking(False)
    return made


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _told(application: Application, on_request: Tell | None, problem: Tell) -> Any:
    """The application, which says what it is asked for and where it is at fault."""

    async def told(scope: Message, receive: Receive, send: Send) -> None:
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await application(scope, receive, send if on_request is None else noting)
        except Exception as error:
            problem(f"{type(error).__name__}: {one_line(str(error))}")
            raise
        finally:
            if on_request is not None:
                client = (scope.get("client") or ("?",))[0]
                on_request(
                    f"{client} {one_line(scope.get('method', 'GET'))} {one_line(scope['path'])} "
                    f"{status or ('ended' if scope['type'] == 'websocket' else 'failed')}"
                )

    return told
