"""Where the process that keeps a user's session listens; loads nothing: every command looks there first."""

from __future__ import annotations

import os

SOCKET = "keeper.sock"
COMMANDS = "commands.sock"


def address_folder() -> str:
    """The folder of the sockets, which may not exist, or be another user's."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        return f"{base}/odfchain"
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    temporary = next((folder for folder in named if folder and os.path.isdir(folder)), "/tmp")
    return f"{temporary}/odfchain-{os.getuid()}"
