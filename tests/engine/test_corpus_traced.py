"""The rejection corpus as the kernel sees it: which files are opened, what is run, who is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.spark.java import find_java
from tests.kit import traced_corpus
from tests.kit.support import IMPORTABLE, ROOT

STRACE = shutil.which("strace")
WATCHED = "open,openat,openat2,creat,execve,execveat,connect"
TRACE = ["-f", "-qq", "-y", "--seccomp-bpf", "-e", f"trace={WATCHED}", "-e", "signal=none", "-s", "4096"]

_OPENED = re.compile(r'(?:open|creat|openat2?)\((?:(AT_FDCWD)?(?:\d+)?(?:<([^>]*)>)?, )?"([^"]*)"')
_RUN = re.compile(r"\bexecve\(\"[^\"]*\", \[([^\]]*)\]")
_CALLED = re.compile(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')
LOOPBACK = re.compile(r"127\.|::1$|::ffff:127\.")


def why_not() -> str:
    """Why processes cannot be watched here; empty when they can."""
    if STRACE is None:
        return "strace is not installed"
    watched = [STRACE, *TRACE, "-o", "/dev/null", "true"]
    tried = subprocess.run(watched, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"strace may not watch: {tried.stderr.strip()[:100]}"


def between(lines: Iterator[str], first: str, last: str) -> Iterator[str]:
    """The lines behind the one that names `first` and before the one that names `last`."""
    inside = False
    for line in lines:
        if last in line:
            assert inside, "the first mark was not seen"
            return
        if inside:
            yield line
        inside = inside or first in line
    pytest.fail("the last mark was not seen")


def opened(line: str, cwd: Path) -> str | None:
    """The absolute path that the call of this line opens."""
    found = _OPENED.search(line)
    if found is None:
        return None
    _, folder, path = found.groups()
    return os.path.normpath(Path(folder or cwd) / path)


def allowed(path: str, prefixes: list[str]) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)


def test_lines_of_a_trace_are_understood() -> None:
    here = Path("/here")
    assert opened('12 openat(AT_FDCWD</here>, "/etc/x", O_RDONLY) = 3</etc/x>', here) == "/etc/x"
    assert opened('12 openat(AT_FDCWD, "a/../b", O_RDONLY <unfinished ...>', here) == "/here/b"
    assert opened('12 openat(7</var>, "x", O_RDONLY) = -1 ENOENT', here) == "/var/x"
    assert opened('12 open("/y", O_RDONLY) = 3', here) == "/y"
    assert opened("12 <... openat resumed>) = 3", here) is None
    assert _CALLED.findall('connect(3, {sin_port=htons(1), sin_addr=inet_addr("10.0.0.1")}, 16)') == [
        ("10.0.0.1", "")
    ]


@pytest.mark.soak
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_corpus_opens_nothing_runs_nothing_and_calls_nobody(tmp_path: Path) -> None:
    request, run_folder, private = (tmp_path / name for name in ("request", "run", "private"))
    for folder in (request, run_folder, private):
        folder.mkdir()
    canary, trace = private / "canary", tmp_path / "trace"
    canary.write_text("a secret")
    program = [sys.executable, "-m", traced_corpus.__name__, str(request), str(run_folder), str(canary)]
    result = subprocess.run(
        [str(STRACE), *TRACE, "-o", str(trace), *program],
        cwd=request, env=IMPORTABLE, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    with trace.open(encoding="utf-8", errors="replace") as lines:
        watched = list(between(iter(lines), traced_corpus.FIRST, traced_corpus.LAST))

    assert [line for line in watched if "mark-" not in line and str(private) in line] == []
    # Spark removes the scratch folder of each session it made with `rm -rf`, by way of the JVM's helper,
    # and once, when its metrics are first collected, asks for the size of a page
    helpers = {line.split()[0] for line in watched if re.search(r"\bexecve(at)?\(", line)}
    run_by = [found.group(1) for line in watched if (found := _RUN.search(line))]
    own = re.compile(rf'"rm", "-rf", "{re.escape(str(run_folder))}/[^"]*"|"getconf", "PAGESIZE"')
    assert [what for what in run_by if "/jspawnhelper" not in what and not own.fullmatch(what)] == []

    java = find_java().resolve().parent.parent
    # the JVM looks at its own limits and memory now and then
    system = ["/proc", "/sys/fs/cgroup", "/sys/devices/system/cpu"]
    kernel = [*system, "/dev/urandom", "/dev/random", "/dev/null"]
    installed = [sys.prefix, sys.base_prefix, str(java), str(ROOT / "odfchain")]
    mine = [str(request), str(run_folder), *installed, *kernel]
    libraries = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/locale", "/etc/ld.so.cache"]
    paths = [(line.split()[0], path) for line in watched if (path := opened(line, request))]
    beyond = {path for pid, path in paths if not allowed(path, mine + (libraries if pid in helpers else []))}
    assert sorted(beyond) == []
    assert any(path.startswith(f"{request}/in.parquet/") for _, path in paths), "the good query reads"
    called = [v4 or v6 for line in watched if "connect(" in line for v4, v6 in _CALLED.findall(line)]
    assert [address for address in called if not LOOPBACK.match(address)] == []


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_watch_sees_what_it_must_not_see(tmp_path: Path) -> None:
    """A proof that the other test could fail: the same watch over a program that does these things."""
    trace, canary = tmp_path / "trace", tmp_path / "canary"
    canary.write_text("a secret")
    program = (
        "import socket, subprocess, sys; open(sys.argv[1]).read(); subprocess.run(['true']);"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('192.0.2.1', 9))"
    )
    subprocess.run(
        [str(STRACE), *TRACE, "-o", str(trace), sys.executable, "-c", program, str(canary)],
        check=False, capture_output=True, timeout=60,
    )  # fmt: skip
    lines = trace.read_text(errors="replace").splitlines()
    assert str(canary) in {opened(line, tmp_path) for line in lines}
    assert [line for line in lines if "execve(" in line and '["true"]' in line] != []
    assert ("192.0.2.1", "") in [found for line in lines for found in _CALLED.findall(line)]
