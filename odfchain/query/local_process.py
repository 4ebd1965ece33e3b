"""The process that answers the queries of its user, one after the other, where limits hold.

`odfchain.query.local_queries` starts it. It writes `READY` once the engine is loaded, and for each line of
JSON that says what is asked one that says what is read, or what went wrong. The rows follow when they are
asked for: an Arrow IPC stream as it is computed, then a line that says how it ended. It ends with its parent,
or when nothing is asked for a while.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

from odfchain.query.child import READY
from odfchain.query.worker_process import load, params_of, pins_of, told
from odfchain.workspace.workspace_files import Connect, WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.query.results import QueryResult


ROWS = b"rows\n"
IDLE_SECONDS = 30.0
# Addresses beyond what rows may take: plans, and what is read before it is counted [bytes]…
_MORE = 256 << 20
# …and the same for each thread that computes [bytes].
_MORE_PER_CORE = 64 << 20


def serve(connect: Connect) -> None:
    """Answer what standard input asks until it ends; `connect` reaches the stores of workspaces."""
    links = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "wb", 1 << 20)
    os.dup2(2, 1)  # what libraries print is no answer
    asked: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked, links), daemon=True).start()  # the parent may end now
    load()
    taken = _addresses()
    answers.write(READY)
    answers.flush()
    result: QueryResult | None = None
    while True:
        try:
            line = asked.get(timeout=IDLE_SECONDS)
        except Empty:
            os._exit(0)
        if line == ROWS:
            assert result is not None  # noqa: S101 - rows are asked for after a plan
            _write_rows(result, answers)
            result = None
            continue
        request = json.loads(line)
        os.environ.clear()  # where stores are, and who asks, may be another now
        os.environ.update(request["environment"])
        _bound(taken, request["memory"])
        result = None
        for folder in links.iterdir():  # of a query whose rows were not asked for
            shutil.rmtree(folder, ignore_errors=True)
        try:
            header, result = _planned(request, links, connect)
        except BaseException as error:  # noqa: BLE001 - every end is told
            header = {"error": told(error)}
        _say(answers, header)


def _listen(asked: SimpleQueue[bytes], links: Path) -> None:
    for line in sys.stdin.buffer:
        asked.put(line)
    # end of input: the parent is gone, so a running query ends as well
    shutil.rmtree(links, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _addresses() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    # systems without /proc
    return 1 << 30


def _bound(taken: int, memory: int) -> None:
    most = taken + memory * 3 // 2 + _MORE + _MORE_PER_CORE * (os.cpu_count() or 1)
    with contextlib.suppress(ValueError, OSError):  # none can be had
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        # only the soft limit: the next query may have another one
        resource.setrlimit(
            resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _planned(
    request: dict[str, Any], links: Path, connect: Connect
) -> tuple[dict[str, Any], QueryResult | None]:
    from odfchain.query.embedded import Embedded
    from odfchain.query.resolved_tables import CheckedSlices

    checked, spill = request["checked"], request["spill"]
    engine = Embedded(
        spill=None if spill is None else Path(spill),
        memory=request["memory"],
        partitions=request["partitions"],
        batch_size=request["batch_size"],
        without=frozenset(request["without"]),
        links=links,
        checked=CheckedSlices(checked and Path(checked), state_bytes=request["state_bytes"]),
    )
    pins = pins_of(request, WorkspaceFiles.find(Path(request["workspace"]).parent, connect))
    params = params_of(request["params"])
    if request["explain"]:
        return {"text": engine.explain(request["sql"], pins, params=params)}, None
    result = engine.run(request["sql"], pins, params=params, limit=request["limit"], skip=request["skip"])
    schema = base64.b64encode(result.schema.serialize()).decode()
    inputs = [[pin.name, str(pin.id), str(pin.block_hash)] for pin in pins.named]
    slices = [result.slices.read, result.slices.there]
    return {"inputs": inputs, "slices": slices, "schema": schema}, result


def _write_rows(result: QueryResult, answers: BinaryIO) -> None:
    import pyarrow as pa

    end: dict[str, Any] = {}
    with pa.ipc.new_stream(answers, result.schema) as stream:
        try:
            for batch in result.batches():
                stream.write_batch(batch)
                answers.flush()
        except BrokenPipeError:
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - every end is told
            end = {"error": told(error)}
    _say(answers, end)


def _say(answers: BinaryIO, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what).encode() + b"\n")
    answers.flush()
