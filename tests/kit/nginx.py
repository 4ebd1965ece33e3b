"""nginx as it is installed here, for what a test gives it to do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_AROUND = """\
daemon on; master_process off; pid {run}/pid; error_log {run}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log {run}/access.log; client_body_temp_path {run}/body; proxy_temp_path {run}/proxy;
  fastcgi_temp_path {run}/fastcgi; uwsgi_temp_path {run}/uwsgi; scgi_temp_path {run}/scgi;
  {servers}
}}
"""


@contextlib.contextmanager
def nginx(run: Path, servers: Callable[[int], str]) -> Iterator[str]:
    """The URL at which nginx listens, with what `servers` says for a port; its files are in the folder `run`.

    It listens before it goes to the background, so there is nothing to wait for.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.fail("nginx is not installed, and this test is about it: apt-get install nginx-light")
    run.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (run / "nginx.conf").write_text(_AROUND.format(run=run, servers=servers(port)))
    command = [program, "-c", run / "nginx.conf", "-p", run, "-e", run / "error.log"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=20)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        os.kill(int((run / "pid").read_text()), signal.SIGTERM)
