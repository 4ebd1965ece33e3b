"""An engine of the contract, and a lying one: the query says, as JSON, what to write and what to answer.

    {"data": BASE64, "interval": [0, 3], "watermark": null, "act": "…", "version": "…"}

Run as a program it listens at an address (default: where engines in images do) until it is killed. It has few
imports, because an image for tests is made of the modules that it has loaded.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from odfchain.odf.events import OffsetInterval
from odfchain.transform.engine_protocol import (
    EXECUTE_RAW_QUERY,
    EXECUTE_TRANSFORM,
    SERVICE,
    VERSION_KEY,
    load_grpc,
)

GIGABYTE = 1 << 30


def respond(message: bytes, context: Any) -> Iterator[bytes]:
    """The answer to a request, as its query says."""
    request = EXECUTE_TRANSFORM.unpack_request(message)
    script = json.loads(request.transform.queries[0].query)
    if "version" in script:
        context.send_initial_metadata(((VERSION_KEY, script["version"]),))
    data, act = Path(request.new_data_path), script.get("act")
    yield EXECUTE_TRANSFORM.pack_response("Progress")
    said = acted(act, data, [path for item in request.query_inputs for path in item.data_paths])
    if said is not None:
        yield EXECUTE_TRANSFORM.pack_response("InternalError", message=said)
        return
    if act == "symlink":
        target = data.with_name("real")
        target.write_bytes(base64.b64decode(script["data"]))
        data.symlink_to(target)
    elif "data" in script and act != "elsewhere":
        data.write_bytes(base64.b64decode(script["data"]))
    if "checkpoint" in script:
        Path(request.new_checkpoint_path).write_text(script["checkpoint"])
    interval = script.get("interval")
    found = OffsetInterval(start=interval[0], end=interval[1]) if interval else None
    yield EXECUTE_TRANSFORM.pack_response("Success", new_offset_interval=found, new_watermark=None)


def respond_raw(message: bytes, context: Any) -> Iterator[bytes]:
    """The answer to a raw query: the files that it reads, joined."""
    del context
    request = EXECUTE_RAW_QUERY.unpack_request(message)
    script = json.loads(request.transform.queries[0].query)
    if script.get("act") != "elsewhere":
        joined = b"".join(Path(path).read_bytes() for path in request.input_data_paths)
        Path(request.output_data_path).write_bytes(joined)
    yield EXECUTE_RAW_QUERY.pack_response("Success", num_records=script["records"])


def acted(act: str | None, data: Path, inputs: list[str]) -> str | None:
    """What came of a lie, where the engine says it instead of a result."""
    if act == "hang":
        time.sleep(3_600)
    elif act == "die":
        os._exit(1)
    elif act == "print":
        line = b"x" * 1_023 + b"\n"
        for _ in range(GIGABYTE // 1_024):
            os.write(1, line)
    elif act == "deep":
        os.chdir(data.parent)
        for _ in range(3_000):
            os.mkdir("d")  # noqa: PTH102 - no path is that long
            os.chdir("d")
    elif act == "memory":
        return f"it has {len(bytearray(GIGABYTE))} bytes"
    elif act == "network":
        return ", ".join(map(_reached, [("192.0.2.1", 80), ("127.0.0.1", int(os.environ.get("PORT", "9")))]))
    elif act == "wall":
        inside = Path("/opt/engine/in")
        tried = [*inputs, str(inside / "new"), "/new", "/etc/passwd", "/sys/new", "/proc/sys/new"]
        return f"wrote {[path for path in tried if _wrote(path)]}, sees {sorted(p.name for p in inside.iterdir())}"
    return None


def _reached(where: tuple[str, int]) -> str:
    try:
        socket.create_connection(where, timeout=2).close()
    except OSError as error:
        return type(error).__name__
    return "reached"


def _wrote(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    except OSError:
        return False
    return True


def started(address: str) -> tuple[Any, int]:
    """(the server, its port)."""
    grpc = load_grpc()
    server = grpc.server(ThreadPoolExecutor(4))
    calls = {
        call.method: grpc.unary_stream_rpc_method_handler(answer)
        for call, answer in ((EXECUTE_TRANSFORM, respond), (EXECUTE_RAW_QUERY, respond_raw))
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, calls),))
    port = server.add_insecure_port(address)
    server.start()
    return server, port


if __name__ == "__main__":
    server, port = started(sys.argv[1])
    print(port, flush=True)
    server.wait_for_termination()
