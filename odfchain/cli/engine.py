"""`odfchain engine`: the Spark session that stays, and transformations for other processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.cli.context import ended_by_sigterm, open_workspace, options, say, silence_libraries
from odfchain.cli.parameters import command, formats, group, is_given, option
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import echo, echo_json
from odfchain.errors import EngineError, NotAWorkspaceError, UsageError
from odfchain.odf.transform_options import DATAFUSION
from odfchain.progress import Progress
from odfchain.spark.gateway import archive_path, new_archive
from odfchain.spark.java import find_java
from odfchain.spark.session_client import ask_server, log_file
from odfchain.transform.engine_protocol import DEFAULT_PORT, EngineServer

if TYPE_CHECKING:
    from odfchain import Workspace


_HEAP_MIB = 2_048


@group("engine")
def engine_command() -> None:
    """Look after Spark, and execute transformations for others. The Spark session stays between commands."""


@command("status", engine_command)
def engine_status(output: str = formats("table", "json")) -> None:
    """Show the Spark session that stays between commands.

    The first command that needs Spark on this machine starts it. Later commands of the same version, settings
    and environment use it. It ends after `engine.idle` without a command (10 minutes). It is never started if
    the environment variable CI is set.
    """
    found = ask_server("status")
    if output == "json":
        echo_json({"running": found is not None, **(found or {})})
    elif found is None:
        echo("no session stays")
    else:
        for name, value in found.items():
            echo(f"{name:15}{', '.join(map(str, value)) or '-' if isinstance(value, list) else value}")


@command("stop", engine_command)
def engine_stop() -> None:
    """End the Spark session that stays. Commands that use it finish first."""
    if (ended := ask_server("stop")) is None:
        say("no session stays")
    elif ended["clients"]:
        say(f"it ends with the commands that use it: {', '.join(map(str, ended['clients']))}")


@command("log", engine_command)
def engine_log() -> None:
    """Print the log of the Spark session that stays. It says also why earlier sessions ended."""
    with contextlib.suppress(FileNotFoundError), log_file().open(encoding="utf-8", errors="replace") as log:
        for line in log:
            echo(line.rstrip("\n"))


@command("serve", engine_command)
def engine_serve(
    host: str = option("Address to listen on.", default="127.0.0.1"),
    port: int = option(
        "TCP port to listen on; 0 takes a free one.", least=0, most=65_535, default=DEFAULT_PORT
    ),
    socket: Path | None = option("Listen on a Unix socket instead.", "PATH"),
    print_address: bool = option("Print the address once it can be connected to."),
    heap_mib: int | None = option(
        "Java's heap where there is no workspace [MiB], else the settings say; with datafusion the memory "
        "for rows.  [default: 2048]",
        least=256,
    ),
    engine: str = option("The engine that runs.", choices=["spark", "datafusion"], default="spark"),
) -> None:
    """Run an engine as a service (gRPC), Spark or DataFusion.

    DataFusion needs no Java. The service runs until Ctrl-C or SIGTERM. There is no password: anyone who can
    connect can make it read and write files with your rights. Listen on a network of other machines only if
    everybody there may do that.
    """
    if socket is not None and (is_given("host") or is_given("port")):
        raise UsageError("--socket listens on no port: leave out --host and --port")
    from odfchain.transform.datafusion_engine import DataFusionEngine

    memory, where = heap_mib or _HEAP_MIB, dict[str, Any](host=host, port=port, socket=socket)
    with (
        ended_by_sigterm(),
        EngineServer(DataFusionEngine(memory_mib=memory), **where)
        if engine == DATAFUSION
        else _engine_service(_workspace(), heap_mib=memory, **where) as server,
    ):
        serve_until_ended(server, print_address=print_address, quiet=options().quiet)


@command("warm-up", engine_command)
def engine_warm_up() -> None:
    """Make every later start of Spark faster.

    The command writes an archive of Java's classes, once. It takes about a minute. The archive has 190 MB and
    is in your cache folder (XDG_CACHE_HOME), or in the file that ODFCHAIN_CLASS_ARCHIVE names. After an
    update of Java or Spark the archive is to be made again. Until then the old one is left alone. Deleting it
    does no harm.
    """
    silence_libraries()
    with TerminalProgress() as progress:
        path = _make_class_archive(progress)
    echo(path)


def serve_until_ended(server: EngineServer, *, print_address: bool, quiet: bool) -> None:
    """Say where the server listens, and return when it has been stopped or a signal comes as an exception."""
    if not quiet:
        echo(f"the engine listens on {server.address}; Ctrl-C ends it", err=True)
    if print_address:
        echo(server.address)
    server.wait()


def _workspace() -> Workspace | None:
    try:
        return open_workspace(session_stays=False)
    except NotAWorkspaceError:
        # a workspace that was named must exist
        if options().workspace:
            raise
        return None


# What `engine serve` and `engine warm-up` start.


@contextlib.contextmanager
def _engine_service(workspace: Workspace | None, *, heap_mib: int, **where: Any) -> Iterator[EngineServer]:
    from odfchain.transform.spark_engine import SparkTransformEngine

    with _session(workspace, heap_mib) as session:
        session()  # "listening" means that a request is executed at once
        with EngineServer(SparkTransformEngine(session), **where) as server:
            yield server


@contextlib.contextmanager
def _session(workspace: Workspace | None, heap_mib: int) -> Iterator[Callable[[], Any]]:
    if workspace is not None:
        with workspace:
            yield workspace.session
        return
    from odfchain.spark.session import SparkEngine

    with tempfile.TemporaryDirectory(prefix="odfchain-engine-") as folder:
        spark = SparkEngine(Path(folder), driver_memory=f"{heap_mib}m")
        try:
            yield lambda: spark.session
        finally:
            spark.close()


# The archive has the classes that everyday commands load (RFC-011).
_DAYS = (1, 2)


def _make_class_archive(progress: Progress) -> Path:
    target = archive_path(find_java())
    with new_archive(target) as recorded, tempfile.TemporaryDirectory(prefix="odfchain-") as folder:
        _record_classes(Path(folder), recorded, progress)
        if not recorded.is_file():
            raise EngineError(
                "this Java wrote no class archive",
                hint="it needs its own archive of base classes: `java -Xshare:dump` makes that",
            )
    return target


def _record_classes(folder: Path, recorded: Path, progress: Progress) -> None:
    from odfchain import Workspace
    from odfchain.api.executing import engines_of

    progress.phase("Starting Spark")
    with Workspace.init(folder) as workspace:
        engines_of(workspace).record_classes(recorded)
        progress.phase("Doing a day's work")
        workspace.add(Path(__file__).with_name("warm_up.yaml"))
        compiled, interpreted, derived = (workspace[name] for name in ("visits", "places", "visits.daily"))
        for day in _DAYS:
            path = folder / f"{day}.csv"
            text = f"event_time,place,visitors\n2020-01-0{day} 10:00:00,Lviv,{day}\n"
            path.write_text(text, encoding="utf-8")
            compiled.ingest(path)
            interpreted.ingest(path)
            derived.pull()
        workspace.session().sql("SELECT count(*) FROM range(10)").toPandas()
        progress.phase("Writing the class archive")
