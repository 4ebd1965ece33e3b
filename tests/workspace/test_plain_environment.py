"""Tests find nothing of the user who runs them, and leave nothing in his folders."""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from odfchain.spark.session_client import server_folder
from odfchain.transfer.credentials import Credentials
from odfchain.transfer.open_peer import NamedStores
from tests.kit.plain_environment import HOME
from tests.kit.support import ROOT

HOSTILE = {
    "LC_ALL": "C", "LANGUAGE": "de", "TZ": "Asia/Kathmandu", "TERM": "vt52", "NO_COLOR": "1", "COLUMNS": "30",
    "HTTP_PROXY": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "SSL_CERT_FILE": "/nowhere",
    "AWS_ACCESS_KEY_ID": "theirs", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AZURE_STORAGE_ACCOUNT_NAME": "x",
    "ODFCHAIN_TOKEN": "theirs", "ODFCHAIN_WORKSPACE": "/nowhere", "SPARK_HOME": "/nowhere",
    "PYTHONWARNINGS": "error", "JAVA_TOOL_OPTIONS": "-Xmx1k", "GIT_CONFIG_GLOBAL": "/nowhere",
}  # fmt: skip
PROGRAMS = ("podman", "docker", "java", "nginx", "bwrap", "odfchain", "sh", "true", "printf")


def test_nothing_is_the_users() -> None:
    assert not (set(HOSTILE) - {"TZ"}) & os.environ.keys()
    assert (os.environ["TZ"], time.timezone, locale.getencoding()) == ("UTC", 0, "UTF-8")
    assert os.umask(0o022) == 0o022
    for path in (server_folder(), Credentials.of_user().path, NamedStores.of_user().path):
        assert path.is_relative_to(HOME), path
    for name in PROGRAMS:
        assert "theirs" not in str(shutil.which(name)), name


def test_whoever_runs_the_tests(tmp_path: Path) -> None:
    """The test above, and one that the programs of a user have broken, in an environment full of traps."""
    home, programs = tmp_path / "home", tmp_path / "theirs"
    for folder in (home / ".config" / "odfchain", home / "run", programs):
        folder.mkdir(parents=True)
    for name in ("credentials.json", "stores.json"):
        (home / ".config" / "odfchain" / name).write_text("no JSON")
    for name in PROGRAMS:
        (programs / name).write_text(f"#!/bin/sh\n: > {tmp_path / 'run'}; exit 97\n")
        (programs / name).chmod(0o755)
    before = sorted(home.rglob("*"))
    own = {"HOME": home, "XDG_RUNTIME_DIR": home / "run", "XDG_CONFIG_HOME": home / ".config"}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = ours | HOSTILE | {name: str(path) for name, path in own.items()}
    environment |= {"PATH": f"{programs}:{ours['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "pytest", "-n", "0", "-p", "no:cacheprovider",
         f"{__file__}::{test_nothing_is_the_users.__name__}",
         "tests/fetch/test_container.py::test_docker_is_taken_where_podman_is_not"],
        cwd=ROOT, env=environment, umask=0o077, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(home.rglob("*")) == before
    assert not (tmp_path / "run").exists(), "none of the user's programs was run"
