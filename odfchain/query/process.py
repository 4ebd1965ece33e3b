"""The process that answers queries: of its user, one after the other, or one of an untrusted client.

`odfchain.query.processes` starts it and reads what it writes: `READY` once the engine is loaded, then for
each line of JSON that asks one line of JSON that says what is read, or what went wrong. Rows are an Arrow IPC
stream: those of a client follow at once, bounded, and the process ends; those of the user when they are asked
for, as they are computed, with a line at their end. It ends with its parent, or when it was idle.
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
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

from odfchain.errors import EngineError, OdfchainError, QueryError
from odfchain.lazy import pa
from odfchain.limits import AskedLimits
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.query.embedded import Embedded, out_of_memory
from odfchain.query.resolved_tables import CheckedSlices, Pins
from odfchain.startup import put_off_pandas
from odfchain.text import one_line
from odfchain.workspace.workspace_files import Connect, WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.query.results import QueryResult


READY = b"ready\n"
ROWS = b"rows\n"
SAID_BYTES = 64 << 10
"""Size limit of the process's error output [bytes]; the rows go through a pipe."""
IDLE_SECONDS = 30.0
# Addresses that are taken before the first row: libraries, threads, plans; half of it is used.
_PROGRAM_BYTES = 1 << 30
# Addresses beyond what rows may take: plans, and what is read before it is counted [bytes]…
_MORE = 256 << 20
# …and the same for each thread that computes [bytes].
_MORE_PER_CORE = 64 << 20


def main() -> None:
    """Answer the one query of a client; this process ends with its parent at the latest."""
    limits = AskedLimits(**json.loads(sys.argv[1]))
    # the kernel keeps these limits when the parent has died and cannot kill this process
    bounds = {
        resource.RLIMIT_AS: limits.memory * 3 // 2 + _PROGRAM_BYTES,
        resource.RLIMIT_CPU: int(limits.seconds + limits.starting_seconds) * limits.threads + 1,
        resource.RLIMIT_FSIZE: SAID_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for which, most in bounds.items():
        with contextlib.suppress(ValueError, OSError):  # there is a lower one, or none can be had
            resource.setrlimit(which, (most, most))
    answers = _ready()
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    header, body = answer(json.loads(line), limits)
    _say(answers, header | {"bytes": len(body)}, body)
    os._exit(0)  # what is left in memory is not put away


def answer(request: dict[str, Any], limits: AskedLimits) -> tuple[dict[str, Any], bytes]:
    """The inputs and the rows, or the error."""
    try:
        return _rows(request, limits)
    except BaseException as error:  # noqa: BLE001 - every end is reported, and this is the last of the process
        # the engine's hints are for who sits before the machine
        return {"error": _reported(error, hint="ask for fewer rows or columns")}, b""


def _ready() -> BinaryIO:
    """Where answers are written; all that every query needs is loaded then."""
    answers = os.fdopen(os.dup(1), "wb", 1 << 20)
    os.dup2(2, 1)  # what libraries print is no answer
    put_off_pandas()
    with contextlib.suppress(ImportError):  # a missing package is reported to who asks
        for name in ("datafusion", "pyarrow.dataset", "odfchain.slices.state"):
            import_module(name)
    answers.write(READY)
    answers.flush()
    return answers


def _say(answers: BinaryIO, what: dict[str, Any], body: bytes = b"") -> None:
    answers.write(json.dumps(what).encode() + b"\n" + body)
    answers.flush()


def _end_with_parent() -> None:
    # nothing follows the query on standard input, so its end is the parent's
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


def _rows(request: dict[str, Any], limits: AskedLimits) -> tuple[dict[str, Any], bytes]:
    pa.set_cpu_count(limits.threads)
    engine = _engine(request, memory=limits.memory)
    result = _result(engine, request, _pins(request, WorkspaceFiles(Path(request["workspace"]))))
    rows, sink = 0, pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, result.schema) as stream:
        for batch in result.batches():
            rows += batch.num_rows
            if rows > limits.rows:
                raise _too_large(f"{limits.rows:,} rows", "add LIMIT, or ask for a part by a condition")
            if sink.tell() + batch.nbytes > limits.answer_bytes:
                raise _too_large(f"{limits.answer_bytes:,} bytes", "ask for fewer rows or columns")
            stream.write_batch(batch)
    inputs = [[pin.name, str(pin.id), str(pin.block_hash)] for pin in result.inputs]
    return {"inputs": inputs}, sink.getvalue().to_pybytes()


def _too_large(most: str, hint: str) -> QueryError:
    return QueryError(f"the answer has more than {most}, which is what this node gives at a time", hint=hint)


# --- what is asked, and what went wrong -------------------------------------------------------------


def _engine(request: dict[str, Any], **more: Any) -> Embedded:
    without = frozenset(request["without"])
    return Embedded(
        partitions=request["partitions"], batch_size=request["batch_size"], without=without, **more
    )


def _pins(request: dict[str, Any], files: WorkspaceFiles) -> Pins:
    as_at, given = request["as_at"], request["given"]
    if given is None:
        return Pins(files, as_at=as_at and Timestamp.parse(as_at))
    return Pins(files, given={n: (DatasetId.parse(i), Multihash.parse(b)) for n, i, b in given})


def _params(request: dict[str, Any]) -> dict[str, Any]:
    if request["params"] is None:
        return {}
    row = pa.ipc.open_stream(base64.b64decode(request["params"])).read_all()
    return {name: row.column(name)[0] for name in row.schema.names}


def _result(engine: Embedded, request: dict[str, Any], pins: Pins) -> QueryResult:
    asked = {"params": _params(request), "limit": request["limit"], "skip": request["skip"]}
    return engine.run(request["sql"], pins, **asked)


def _reported(error: BaseException, *, hint: str | None = None) -> dict[str, Any]:
    """An error as it is written; `hint` takes the place of the engine's own."""
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        error = out_of_memory()
    if not isinstance(error, OdfchainError):
        error = EngineError(f"the engine failed: {type(error).__name__}: {one_line(str(error))}")
    if not isinstance(error, EngineError) or "pip install" in (error.hint or ""):
        hint = None
    excerpt = error.excerpt if isinstance(error, QueryError) else ()
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "hint": hint or error.hint,
        "excerpt": list(excerpt),
    }


# --- queries of the user ----------------------------------------------------------------------------


def serve(connect: Connect) -> None:
    """Answer what standard input asks until it ends; `connect` reaches the stores of workspaces."""
    links = Path(sys.argv[1])
    asked: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked, links), daemon=True).start()  # the parent may end now
    answers, taken = _ready(), _addresses()
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
        except BaseException as error:  # noqa: BLE001 - every end is reported
            header = {"error": _reported(error)}
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
    checked, spill = request["checked"], request["spill"]
    engine = _engine(
        request,
        spill=None if spill is None else Path(spill),
        memory=request["memory"],
        links=links,
        checked=CheckedSlices(checked and Path(checked), state_bytes=request["state_bytes"]),
    )
    pins = _pins(request, WorkspaceFiles.find(Path(request["workspace"]).parent, connect))
    if request["explain"]:
        return {"text": engine.explain(request["sql"], pins, params=_params(request))}, None
    result = _result(engine, request, pins)
    schema = base64.b64encode(result.schema.serialize()).decode()
    inputs = [[pin.name, str(pin.id), str(pin.block_hash)] for pin in pins.named]
    slices = [result.slices.read, result.slices.there]
    return {"inputs": inputs, "slices": slices, "schema": schema}, result


def _write_rows(result: QueryResult, answers: BinaryIO) -> None:
    end: dict[str, Any] = {}
    with pa.ipc.new_stream(answers, result.schema) as stream:
        try:
            for batch in result.batches():
                stream.write_batch(batch)
                answers.flush()
        except BrokenPipeError:
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - every end is reported
            end = {"error": _reported(error)}
    _say(answers, end)


if __name__ == "__main__":
    main()
