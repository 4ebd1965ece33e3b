"""Runs the conformance client in forks of one process that has loaded it: a start costs milliseconds.

For each run: arguments and a file for standard error come in as JSON; the id of the process goes out; "go" comes
in; when the process has ended "reap" comes in, and its status and largest memory [KiB] go out. Until then
nothing else can have that id. `client.py` is the other side.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path


def child(args: list[str], err: str, go: int) -> None:
    code = 1
    try:
        os.setsid()
        sys.stderr = Path(err).open("w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        os.read(go, 1)
        code = conformance.main(args)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    for line in sys.stdin:
        args, err = json.loads(line)
        go, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(say)
            child(args, err, go)
        os.close(go)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        os.write(say, b"g")
        os.close(say)
        sys.stdin.readline()
        _, status, usage = os.wait4(pid, 0)
        sys.stdout.write(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # all that a pull loads when it is used: half of its time, if each fork did that for itself
    import difflib  # noqa: F401
    import encodings.idna  # noqa: F401
    import gc

    import pyarrow.parquet  # noqa: F401

    import odfchain.audit.dataset_checks
    import odfchain.odf.arrow_schema
    import odfchain.odf.logical_hash
    import odfchain.slices.reader
    import odfchain.storage.http_connection
    import odfchain.storage.http_store
    from tests.kit import conformance_client as conformance

    assert odfchain.__version__
    gc.freeze()  # memory that no run writes to is not copied
    serve()
