"""No request goes inward, as seen on the wire: in a network of its own, where a raw socket sees every packet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.kit.processes import TIMEOUT
from tests.kit.support import IMPORTABLE, ROOT

PROGRAM = ROOT / "tests" / "kit" / "wire.py"


def watched(*args: str) -> dict[str, int]:
    """What the program counted within a network that has loopback only."""
    plain = {name: text for name, text in IMPORTABLE.items() if not name.lower().endswith("_proxy")}
    command = ["unshare", "-n", sys.executable, str(PROGRAM), *args]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux")
    or os.geteuid() != 0
    or not all(map(shutil.which, ("ip", "unshare"))),
    reason="a network of its own needs root, ip and unshare on Linux",
)


def test_redirects_and_names_that_change_send_no_packet_inward(
    record_property: Callable[[str, object], None],
) -> None:
    found = watched()
    for name, count in found.items():
        record_property(name, count)
    assert found["control packets"] > 0, "what does go there is seen"
    assert found["addresses"] >= 80
    assert found["redirects served"] >= found["addresses"], "each one was asked for"
    assert found["looked up"] >= 2 * found["names"], "a name had both addresses"
    assert (found["refused"], found["followed"]) == (found["addresses"] + found["names"], 0)
    assert found["packets inward"] == 0


def test_without_the_guard_they_are_seen() -> None:
    assert watched("unguarded")["packets inward"] > 50
