"""The command in forks of one process that has loaded what commands load: a start costs milliseconds.

`commands_in_forks` puts a program named `odfchain` first on the PATH. It hands its arguments, folder, environment
and standard streams to `python -m tests.kit.command_forks SOCKET`, passes signals on, and ends as the fork does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.kit.support import ROOT

CLIENT = """#!{python} -IS
import os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    said = [os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:], *map("=".join, os.environ.items())]
    data = "\\0".join(said).encode("utf-8", "surrogateescape")
    socket.send_fds(server, [len(data).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(data)
    child = int.from_bytes(server.recv(8), "big")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def commands_in_forks(env: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment, in which `odfchain` runs in forks of a process that ends here."""
    with TemporaryDirectory(prefix="odfchain-") as folder:
        path = f"{folder}/socket"
        client = Path(folder, "odfchain")
        client.write_text(CLIENT.format(python=sys.executable, path=path))
        client.chmod(0o700)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.command_forks", path],
            env=env | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout.readline() == b"ready\n"
            yield env | {"PATH": f"{folder}:{env['PATH']}"}
        finally:
            server.kill()
            server.communicate()


def serve(path: str) -> None:
    """A fork for each that asks; returns, with its arguments, in the one that is the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            asking, _ = listener.accept()
            if os.fork() == 0:
                break
            asking.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, *_ = socket.recv_fds(asking, 8, 3)
    data = b""
    while len(data) < int.from_bytes(size, "big"):
        data += asking.recv(1 << 16)
    folder, count, *words = data.decode("utf-8", "surrogateescape").split("\0")
    go, say = os.pipe()
    if (child := os.fork()) != 0:
        asking.sendall(child.to_bytes(8, "big"))
        os.write(say, b"g")  # from now on whoever asks can pass signals on
        for stream in streams:
            os.close(stream)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asking.sendall(code.to_bytes(8, "big", signed=True))
        os._exit(0)
    asking.close()
    os.read(go, 1)
    os.close(go)
    os.close(say)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(word.split("=", 1) for word in words[int(count) :])
    sys.argv = ["odfchain", *words[: int(count)]]


if __name__ == "__main__":
    from odfchain.startup import put_off_pandas

    put_off_pandas()
    import pyarrow.parquet  # noqa: F401 - what odfchain puts off has to be put off before
    import pyspark.sql  # noqa: F401

    import odfchain.api.dataset
    import odfchain.audit.dataset_checks
    import odfchain.cli.screen
    import odfchain.slices.reader
    import odfchain.transfer.sharing  # noqa: F401
    from odfchain.cli.main import run

    serve(sys.argv[1])
    run()
