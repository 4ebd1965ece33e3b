"""The process that answers one query of an untrusted client: planned, computed and ended here.

`odfchain.query.worker` starts it and reads what it writes: `READY` once the engine is loaded; then, for one
line of JSON that says what is asked, one of JSON that says what was read or went wrong, and the rows as an
Arrow IPC stream. Who reads that trusts none of it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import EngineError, OdfchainError, QueryError
from odfchain.limits import AskedLimits
from odfchain.query.child import READY, SAID_BYTES
from odfchain.query.embedded import out_of_memory
from odfchain.startup import put_off_pandas
from odfchain.text import one_line

if TYPE_CHECKING:
    from odfchain.query.resolved_tables import Pins
    from odfchain.workspace.workspace_files import WorkspaceFiles


# Addresses that are taken before the first row: libraries, threads, plans; half of it is used.
_PROGRAM_BYTES = 1 << 30


def main() -> None:
    """Answer what standard input asks; whatever becomes of the parent, this process ends."""
    limits = AskedLimits(**json.loads(sys.argv[1]))
    _bound(limits)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    load()
    answers.write(READY)
    answers.flush()
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    header, body = answer(json.loads(line), limits)
    answers.write(json.dumps(header | {"bytes": len(body)}).encode() + b"\n")
    answers.write(body)
    answers.flush()
    os._exit(0)  # what is left in memory is not put away


def answer(request: dict[str, Any], limits: AskedLimits) -> tuple[dict[str, Any], bytes]:
    """The inputs and the rows, or the error."""
    try:
        return _rows(request, limits)
    except BaseException as error:  # noqa: BLE001 - every end is told, and this is the last of the process
        # the engine's hints are for who sits before the machine
        return {"error": told(error, hint="ask for fewer rows or columns")}, b""


def _bound(limits: AskedLimits) -> None:
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


def load() -> None:
    """Load all that every query needs; a missing package is reported to the client."""
    put_off_pandas()
    with contextlib.suppress(ImportError):
        for name in (
            "datafusion",
            "pyarrow.dataset",
            "odfchain.query.embedded",
            "odfchain.slices.state",
        ):
            import_module(name)


def _end_with_parent() -> None:
    # nothing follows the query on standard input, so its end is the parent's
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


def _rows(request: dict[str, Any], limits: AskedLimits) -> tuple[dict[str, Any], bytes]:
    import pyarrow as pa

    from odfchain.query.embedded import Embedded
    from odfchain.workspace.workspace_files import WorkspaceFiles

    pa.set_cpu_count(limits.threads)
    engine = Embedded(
        memory=limits.memory,
        partitions=request["partitions"],
        batch_size=request["batch_size"],
        without=frozenset(request["without"]),
    )
    params, limit, skip = params_of(request["params"]), request["limit"], request["skip"]
    pins = pins_of(request, WorkspaceFiles(Path(request["workspace"])))
    result = engine.run(request["sql"], pins, params=params, limit=limit, skip=skip)
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


def pins_of(request: dict[str, Any], files: WorkspaceFiles) -> Pins:
    """The datasets that a query may name."""
    from odfchain.odf.identity import DatasetId, Multihash
    from odfchain.odf.times import Timestamp
    from odfchain.query.resolved_tables import Pins

    as_at, given = request["as_at"], request["given"]
    if given is None:
        return Pins(files, as_at=as_at and Timestamp.parse(as_at))
    return Pins(files, given={n: (DatasetId.parse(i), Multihash.parse(b)) for n, i, b in given})


def params_of(given: str | None) -> dict[str, Any]:
    """Values by name: the columns of one row."""
    import pyarrow as pa

    if given is None:
        return {}
    row = pa.ipc.open_stream(base64.b64decode(given)).read_all()
    return {name: row.column(name)[0] for name in row.schema.names}


def told(error: BaseException, *, hint: str | None = None) -> dict[str, Any]:
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


if __name__ == "__main__":
    main()
