"""The manual's story of a stolen laptop, every command of it typed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.kit.owned_keys import case
from tests.kit.support import ROOT, Run, manifest

_INNER = re.compile(r'"\$\(odfchain (.*?)(?: \| grep -o .(did:key:.*?).)?\)"')


def test_the_story_of_a_stolen_laptop_and_case_27(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    commands = re.findall(r"^odfchain (.*)$", text, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("stick").mkdir()
    Path("cities.yaml").write_text(manifest(), encoding="utf-8")

    def typed(line: str) -> str:
        def inner(found: re.Match[str]) -> str:
            said = typed(found[1])
            (word,) = re.findall(found[2], said) if found[2] else [said.strip()]
            return str(word)

        words = shlex.split(_INNER.sub(inner, line).replace('"$PWD"', str(tmp_path)))
        files = [str(each) for word in words for each in (Path().glob(word) if "*" in word else [word])]
        result = run(*files)
        assert result.code == 0, (line, result.err)
        return result.out

    outputs = [typed(line) for line in commands]
    assert len(commands) > 15
    listed = next(
        out for line, out in zip(commands, outputs, strict=True) if line == "-w reader key list cities"
    )
    assert "revoked" in listed
    assert "in force" in listed
    heads = [out for line, out in zip(commands, outputs, strict=True) if "inspect head" in line]
    assert [re.search(r"authority +did:(\w+):", each)[1] for each in heads] == ["odf", "key"]  # type: ignore[index]
    given, wanted = case(27)
    assert given == {"peer": "removed"}
    shutil.rmtree("share")
    verified = run("-w", "friend", "verify", "cities", "--require-signature", "-o", "json")
    (report,) = json.loads(verified.out)
    assert (verified.code, report["verdict"]) == (wanted["exit"], wanted["verdict"])
