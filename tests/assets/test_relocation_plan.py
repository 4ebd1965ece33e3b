"""Where copies go: one name for one pair, and nothing is planned that would lose an object."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.assets import relocating
from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.locks import AssetLock, table_of
from odfchain.assets.objects import Facts, Stores
from odfchain.assets.relocating import Arrivals, Layout, Relocation, file_name
from odfchain.errors import AssetError, NameCollisionError, OdfchainError
from odfchain.storage.locations import Location
from tests.kit.asset_cases import Case, Hold, held

CASES = json.loads(Path("fixtures/assets/relocation.json").read_text())
HERE = Path("/here")
SHA2_256 = "12208bb0cf6eb9b17d0f7d22b456f121257dc1254e1f01665370476383ea776df414"
"""Of 1234567."""


def hold_name(case: Case, _: Path) -> None:
    assert file_name(case["item"], case["asset"], case["key"]) == case["name"]


def hold_plan(case: Case, _: Path) -> None:
    rows = [AssetRow(item, asset, parse_href(href)) for item, asset, href in case["rows"]]
    prefix = case.get("prefix")
    options = Relocation(
        layout=Layout(case.get("layout", "item-asset")),
        prefix=None if prefix is None else Location.parse(prefix, folder=True),
        sources_in=HERE,
    )
    to = Location.parse(case["to"], folder=True)
    if "targets" in case:
        assert [each.target.href() for each in options.plan(rows, to)] == case["targets"]
        return
    with pytest.raises(OdfchainError) as refused:
        options.plan(rows, to)
    assert refused.value.exit_code == case["exit"]
    assert case["says"] in refused.value.message


def hold_longest(case: Case, _: Path) -> None:
    row = AssetRow("S", case["letter"] * case["times"], parse_href("s3://s/x"))
    to = Location.parse("s3://m/pp", folder=True)
    try:
        (planned,) = Relocation().plan([row], to)
    except AssetError as error:
        assert re.match("S .*: what its copy would be called: a key longer than 1,024", error.message)
        assert not case["fits"]
    else:
        assert case["fits"]
        assert len(planned.target.key) > 1_010


HELD = {
    "names": (hold_name, ("name",)),
    "plans": (hold_plan, ("targets", "exit", "says")),
    "longest": (hold_longest, ("fits",)),
}


@held(CASES, HELD)
def test_cases(hold: Hold, case: Case, tmp_path: Path) -> None:
    hold(case, tmp_path)


def files(folder: Path, **contents: bytes) -> list[AssetRow]:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [AssetRow("S", name, parse_href(name), Facts(len(content))) for name, content in contents.items()]


def copied(rows: list[AssetRow], to: Path, folder: Path, **options: Any) -> relocating.Relocated:
    chosen = Relocation(sources_in=folder, relative_to=folder, **options)
    here = Stores(folder)
    planned = chosen.plan(rows, Location.parse(f"file://{to}", folder=True))
    return chosen.run(planned, here, here, Arrivals(None))


def test_what_is_there_already_is_described(tmp_path: Path) -> None:
    rows = files(tmp_path, x=b"1234567")
    before = (tmp_path / "x").stat()
    found = copied(rows, tmp_path, tmp_path, layout=Layout.SOURCE_KEY, checksum=True)
    assert [(row.location.key, row.facts) for row in found.rows] == [("x", Facts(7, None, None, SHA2_256))]
    assert (tmp_path / "x").stat().st_ino == before.st_ino


@pytest.mark.parametrize(("content", "said"), [(b"7654321", "other bytes"), (b"12345", "")])
@pytest.mark.parametrize("locked", [SHA2_256, None])
def test_case_35_what_is_there_is_not_replaced(
    tmp_path: Path, content: bytes, said: str, locked: str | None
) -> None:
    (row,) = files(tmp_path, x=b"1234567")
    there = tmp_path / "a/S/x"
    there.parent.mkdir(parents=True)
    there.write_bytes(content)
    known = [replace(row, facts=Facts(7, None, None, locked))]
    refused = copied(known, tmp_path / "a", tmp_path)
    assert [fault.error.exit_code for fault in refused.faults] == [5]
    assert said in str(refused.faults[0])
    assert there.read_bytes() == content
    assert copied(known, tmp_path / "a", tmp_path, overwrite=True).copied == 1
    assert there.read_bytes() == b"1234567"
    again = copied(known, tmp_path / "a", tmp_path)
    assert (again.copied, again.rows[0].facts) == (0, known[0].facts)  # it is what the lock says


def test_names_that_are_one_file_are_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    rows = [*files(tmp_path, B04=b"1"), *files(tmp_path / "one", b04=b"2")]
    rows[1] = replace(rows[1], location=parse_href("one/b04"))
    assert copied(rows, tmp_path / "a", tmp_path).copied == 2  # here they are two

    monkeypatch.setattr(relocating, "_ignores_case", lambda folder: True)
    with pytest.raises(NameCollisionError, match="S B04 and S b04 would be one file"):
        copied(rows, tmp_path / "b", tmp_path)
    assert not (tmp_path / "b").exists()


def test_the_file_system_says_whether_letters_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not relocating._ignores_case(tmp_path / "not/there")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Path, "exists", _found_in_other_letters)
    assert relocating._ignores_case(tmp_path)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", _refused)
    assert not relocating._ignores_case(tmp_path)


def _found_in_other_letters(path: Path) -> bool:
    return any(each.name.lower() == path.name.lower() for each in path.parent.iterdir())


def _refused(**options: Any) -> Any:
    raise PermissionError


def test_a_dry_run_refuses_as_well(tmp_path: Path) -> None:
    one, other = files(tmp_path, x=b"1", y=b"2")
    clash = [one, replace(other, item_id="S/x", location=one.location)]
    lock = AssetLock(table_of(clash), tmp_path)
    with pytest.raises(NameCollisionError):
        lock.relocate("s3://m", layout="source-key", dry_run=True)
    assert [row.location.href() for row in lock.relocate("s3://m", dry_run=True).rows] == [
        "s3://m/S/x",
        "s3://m/S~2fx/y",
    ]
