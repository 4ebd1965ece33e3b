"""The manual's story of a stolen laptop, every command of it typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kit.support import ROOT, manifest


def test_the_story_of_a_stolen_laptop(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "stick").mkdir()
    (tmp_path / "cities.yaml").write_text(manifest(), encoding="utf-8")
    command = f'odfchain() {{ "{sys.executable}" -c "from odfchain.cli.main import main; import sys; sys.exit(main())" "$@"; }}'
    script = "\n".join(["set -e -o pipefail", command, *blocks])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CI": "1"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "revoked" in done.stdout
    assert re.search(r"authority +did:key:", done.stdout)
    assert (done.stdout + done.stderr).count("may not sign cities since") == 1
    assert "Traceback" not in done.stderr
