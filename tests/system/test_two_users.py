"""Two users of one machine: what one leaves at the other's address is neither asked nor trusted, nor ends a command."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.errors import EngineError
from odfchain.session_address import COMMANDS, SOCKET
from odfchain.spark.session_client import own_folder
from tests.kit.processes import TIMEOUT
from tests.kit.support import IMPORTABLE

NOBODY = 65_534
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="to be another user needs root"
)
IMPOSTOR = """
import os, socket, sys
folder, user, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3], 8)
os.setgid(user); os.setuid(user)
if not os.path.isdir(folder):
    os.mkdir(folder)
os.chmod(folder, mode)
listeners = []
for name in sys.argv[4:]:
    listeners.append(socket.socket(socket.AF_UNIX)); listeners[-1].bind(f"{folder}/{name}"); listeners[-1].listen()
    os.chmod(f"{folder}/{name}", 0o777)
print("ready", flush=True)
count = 0
import select
while True:
    for listener in select.select([*listeners, sys.stdin], [], [])[0]:
        if listener is sys.stdin:
            print(count, flush=True); sys.exit()
        connection, _ = listener.accept(); connection.settimeout(0.5)
        try:
            while data := connection.recv(65536):
                count += len(data)
        except TimeoutError:
            pass
        connection.close()
"""


@pytest.fixture
def common(tmp_path: Path) -> Path:
    """A folder as `/tmp` is: everybody may make files, nobody may remove those of others."""
    folder = tmp_path / "common"
    folder.mkdir()
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    folder.chmod(0o1777)
    return folder


def command(common: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of this user in a process, which looks for its session first."""
    env = {n: t for n, t in IMPORTABLE.items() if n not in ("CI", "XDG_RUNTIME_DIR", "TEMP", "TMP")} | {
        "TMPDIR": str(common)
    }
    program = [sys.executable, "-c", "from odfchain.cli.client import run; run()", *args]
    return subprocess.run(
        program, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


@pytest.mark.parametrize("by_link", [False, True])
def test_a_session_of_another_user_is_told_nothing(
    common: Path, tmp_path: Path, by_link: bool, record_property: Callable[[str, object], None]
) -> None:
    """Its sockets are where ours would be: neither arguments nor environment go there, and the command runs."""
    ours = common / f"odfchain-{os.getuid()}"
    theirs = common / "theirs" if by_link else ours
    with subprocess.Popen(
        [sys.executable, "-c", IMPOSTOR, str(theirs), str(NOBODY), "777", SOCKET, COMMANDS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as impostor:  # fmt: skip
        assert impostor.stdin is not None
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == "ready\n"
        if by_link:
            ours.symlink_to(theirs)
        done = command(common, "init", cwd=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert (tmp_path / ".odfchain").is_dir()
        with pytest.raises(EngineError):
            own_folder(ours)
        impostor.stdin.close()
        received = int(impostor.stdout.readline())
    record_property("bytes to another user", received)
    assert received == 0


@pytest.mark.parametrize(
    "what", ["others' folder", "open to others", "link", "dangling link", "file", "pipe"]
)
def test_a_folder_that_is_not_ours_alone_is_refused_with_a_sentence(common: Path, what: str) -> None:
    folder = common / f"odfchain-{os.getuid()}"
    if what in ("link", "dangling link"):
        (common / "aim").mkdir(mode=0o700)
        folder.symlink_to(common / ("aim" if what == "link" else "none"))
    elif what == "file":
        folder.touch()
    elif what == "pipe":
        os.mkfifo(folder)
    else:
        folder.mkdir(mode=0o700)
        folder.chmod(0o750 if what == "open to others" else 0o700)
        os.chown(folder, NOBODY if what == "others' folder" else os.getuid(), -1)
    with pytest.raises(EngineError, match=r"belongs to another user|can be entered by others|is no folder"):
        own_folder(folder)
    assert not (common / "none").exists()


def test_another_user_cannot_reach_a_session(common: Path) -> None:
    """Sockets lie in a folder that only their user enters, whatever the rights of the sockets are."""
    folder = own_folder(common / f"odfchain-{os.getuid()}")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen()
        (folder / SOCKET).chmod(0o777)
        program = (
            f"import os, socket; os.setgid({NOBODY}); os.setuid({NOBODY})\n"
            f"socket.socket(socket.AF_UNIX).connect({str(folder / SOCKET)!r})"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr
