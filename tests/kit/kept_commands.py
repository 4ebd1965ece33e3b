"""The process that keeps a session and runs commands in forks, with a `cat` for its Java: a start costs nothing.

`python -m tests.kit.kept_commands` listens where commands with this environment look, and then writes a line.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from odfchain.cli import main as commands
from odfchain.spark.gateway import Gateway
from odfchain.spark.session_client import fingerprint, server_folder
from odfchain.spark.session_server import SessionServer

__all__ = ["commands"]


def main() -> None:
    java = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    order = {
        "folder": str(server_folder()), "scratch": "", "java": "/bin/sh", "settings": {}, "idle": 300,
        "parts": fingerprint({}, os.environ),
    }  # fmt: skip
    server = SessionServer(order, Gateway(java, 0, "", Path(), Path()))
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
