"""Replays on machines that are set otherwise: language, time zone, hash seed, partitions; the same rows each time."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.spark.session import SparkEngine
from tests.kit.derived_dataset import QUERIES, add_rows, make_template
from tests.kit.processes import QUICK_START, environment, odfchain
from tests.kit.root_rows import MADE
from tests.kit.run_length import scaled

JAVA = "-Duser.language={} -Duser.country={}"
SETTINGS = {
    "turkish": {"LANG": "tr_TR.UTF-8", "LC_ALL": "C.UTF-8", "JDK_JAVA_OPTIONS": JAVA.format("tr", "TR")},
    "arabic": {"LANG": "ar_EG.UTF-8", "LC_ALL": "C", "JDK_JAVA_OPTIONS": JAVA.format("ar", "EG")},
    "thai": {"LC_ALL": "POSIX", "JDK_JAVA_OPTIONS": JAVA.format("th", "TH") + " -Duser.variant=TH"},
    "kiribati": {"TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "1"},
    "a half hour": {"TZ": "Asia/Kolkata", "PYTHONHASHSEED": "4294967295"},
    "summer time": {"TZ": "America/New_York", "PYTHONHASHSEED": "0", "LANG": "de_DE.UTF-8"},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine) -> Path:
    """A root with several transactions, and three derivatives with as many each."""
    workspace = Workspace.init(tmp_path_factory.mktemp("recorded") / "workspace")
    workspace._engines.spark = engine
    make_template(workspace)
    for day in range(4, 4 + scaled(0, 2, 15)):
        add_rows(workspace["readings"]._files, [(day, "north", day), (day + 1, "south", day)])
        for name in QUERIES:
            workspace[name].pull(system_time=MADE)
    return workspace.path.parent


def seen(env: dict[str, str]) -> list[str]:
    """What Python and Java take from an environment."""
    asked = (
        [sys.executable, "-c", "import time; print(time.localtime(0), hash('odf'))"],
        ["java", "-XshowSettings:locale", "-version"],
    )
    return [
        subprocess.run(each, env=env, stdout=-1, stderr=-2, text=True, check=True).stdout for each in asked
    ]


@pytest.mark.soak
@pytest.mark.parametrize("name", SETTINGS)
def test_the_rows_are_the_same(
    name: str, recorded: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each transaction is replayed, in the long run twice, by a command in a process of its own."""
    plain = {"PYTHONHASHSEED": "7", "TZ": "UTC", "CI": "1"}
    changes = plain | SETTINGS[name]
    changes["JDK_JAVA_OPTIONS"] = f"{QUICK_START} {changes.get('JDK_JAVA_OPTIONS', '')}".strip()
    assert seen(environment(**changes)) != seen(environment(**plain)), "the setting had no effect"
    replays = 0
    for _ in range(scaled(1, 1, 2)):
        done = odfchain(recorded, "verify", "--replay", "%", env=environment(**changes))
        assert done.code == 0, done.err
        counts = [int(text) for text in re.findall(r"replayed (\d+) transaction", done.out + done.err)]
        replays += sum(counts)
    record_property("replays", replays)
    assert replays >= scaled(3, 9, 100), done.out
