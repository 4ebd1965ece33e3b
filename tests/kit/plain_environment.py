"""A process of the tests has nothing of its user's: neither settings and programs, nor folders and sessions.

Imported before all else of the tests (`tests/conftest.py`), and by that done, for what they start as well. What
a test is about it sets itself. `make test` asks with these alone: where Java is, and what the tests are to do.
"""

from __future__ import annotations

import locale
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

HOME = Path(tempfile.mkdtemp(prefix="odfchain-home-"))
"""The user's folder of this process; `tests/conftest.py` removes it."""
BASIC_PROGRAMS = HOME / "basic"
"""A PATH with what every system has and nothing that a test could find there by chance, like podman."""
_BASIC = [
    "sh",
    "cat",
    "echo",
    "env",
    "head",
    "ln",
    "mkdir",
    "mkfifo",
    "printf",
    "rm",
    "sleep",
    "touch",
    "true",
]
_KEPT = {
    "HYPOTHESIS_PROFILE", "JAVA_HOME", "TMPDIR", "GOPROXY",
    "ODFCHAIN_CONFORMANCE_CLIENT", "ODFCHAIN_CONFORMANCE_DATASETS", "ODFCHAIN_SEEDS", "ODFCHAIN_TEST_DATA",
    "ODFCHAIN_TEST_SEED",
}  # fmt: skip
_KEPT_PREFIXES = ("PYTEST_", "COV_CORE_", "COVERAGE_")
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ELSEWHERE = (
    "java",
    "go",
    "node",
    "azurite-blob",
    "chromium",
    "bwrap",
    "cc",
    "strace",
    "jq",
    "nginx",
    "litewitness",
)
"""Programs that tests take from the user's PATH if the system has none."""


def _linked(folder: Path, names: Iterable[str], path: str | None) -> Path:
    folder.mkdir()
    for name in names:
        if found := shutil.which(name, path=path):
            (folder / name).symlink_to(Path(found).absolute())
    return folder


def _make_plain() -> None:
    kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)}
    lacking = [name for name in _ELSEWHERE if shutil.which(name, path=_SYSTEM) is None]
    more = _linked(HOME / "bin", lacking, os.environ.get("PATH"))
    _linked(BASIC_PROGRAMS, _BASIC, _SYSTEM)
    (HOME / "run").mkdir(mode=0o700)
    plain = {
        "PATH": f"{_SYSTEM}:{more}", "HOME": str(HOME), "XDG_RUNTIME_DIR": str(HOME / "run"),
        "LANG": "C.UTF-8", "TZ": "UTC", "CI": "true",
    }  # fmt: skip
    # "CI": each command ends its own JVM, only `tests/spark/test_keeper.py` is about the one that stays
    os.environ.clear()
    os.environ.update(kept | plain)
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a job in the background; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    time.tzset()
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    # processes die in tests, machines do not: the kernel has what was written though no disk is waited for; tests of
    # the order of calls put their own in between
    os.fsync = lambda _: None  # type: ignore[assignment]
    os.sync = lambda: None


_make_plain()
