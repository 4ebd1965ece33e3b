"""Drift between two profiles: the numbered cases through whole profiles and through the command; bad profiles."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.profiles.drift import DriftPolicy, compare_profiles, read_policy
from tests.kit.branch_cases import run_here
from tests.kit.drift_profiles import Document, profile_of
from tests.kit.snapshot_columns import fixture
from tests.kit.support import Result

CASES = fixture("drift")
Run = Callable[..., Result]


def cases(name: str) -> Any:
    return pytest.mark.parametrize("case", CASES[name], ids=lambda case: case["id"])


def policy_of(case: Document) -> DriftPolicy | None:
    if "policy" not in case:
        return None
    return read_policy(json.dumps({"kind": "DriftPolicy", "version": 1, "content": case["policy"]}))


@cases("comparisons")
def test_comparisons(case: Document) -> None:
    hidden = tuple(case.get("hidden", ()))
    before, after = (profile_of(case[side], hidden=hidden) for side in ("before", "after"))
    found = compare_profiles(before, after, policy_of(case))
    lines = {f"{line.column} {line.metric}".removeprefix("None "): line for line in found.lines}
    for name, (verdict, value) in case["lines"].items():
        assert (lines[name].verdict, lines[name].value) == (verdict, value), name
    assert not {*case.get("without", ())} & lines.keys()
    assert {*case.get("not_compared", ())} <= {str(each) for each in found.not_compared}
    assert found.lines[0].metric == case.get("first", found.lines[0].metric)
    verdicts = [line.verdict for line in found.lines]
    assert verdicts == sorted(verdicts, key=["BREACH", "ok", "note"].index)
    assert json.loads(json.dumps(found.to_document(), allow_nan=False))["breaches"] == verdicts.count(
        "BREACH"
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    with odf.init(tmp_path / "workspace") as workspace:
        return run_here(workspace)


@cases("commands")
def test_commands(case: Document, run: Run, tmp_path: Path) -> None:
    other = {"number": 6, **case.get("other", {})}
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for file, profile in zip(
        files, (profile_of(case["before"]), profile_of(case["after"], **other)), strict=True
    ):
        file.write_text(json.dumps(profile))
    result = run("diff", "--profile", *map(str, files))
    assert (result.code, result.out.splitlines(), result.err.splitlines()) == (
        case["exit"], case["out"], case["err"]
    )  # fmt: skip


def test_breaches_are_ordered_by_how_far_they_are_beyond_their_limit() -> None:
    columns = {
        name: {"type": "string", "values": {"counts": {"a": number, "b": 100 - number}}}
        for name, number in (("little", 50), ("much", 50), ("most", 50))
    }
    moved = copy.deepcopy(columns)
    for name, number in (("little", 35), ("much", 20), ("most", 0)):
        moved[name]["values"] = {"counts": {"a": number, "b": 100 - number}}
    found = compare_profiles(profile_of(columns), profile_of(moved))
    assert [line.column for line in found.breaches] == ["most", "much", "little"]


def measured() -> Document:
    return profile_of({
        "v": {"type": "float64", "values": {"from": 0, "to": 1, "number": 200}},
        "s": {"type": "string", "values": {"counts": {"a": 150, "b": 50}}},
    })  # fmt: skip


def test_numbers_that_doubles_do_not_subtract_are_a_breach_and_not_a_way_around() -> None:
    extreme = measured()
    extreme["column_stats"]["v"]["quantiles"] = [-1.7e308, *[1.7e308] * 100]
    found = compare_profiles(measured(), extreme)
    assert {line.metric for line in found.breaches} == {"ks"}
    json.dumps(found.to_document(), allow_nan=False)
    assert found.to_html().endswith("</html>")


def test_texts_that_no_encoding_can_write_are_compared() -> None:
    odd = measured()
    odd["column_stats"]["s"]["top_values"] = {"\ud800": 150, "b": 50}
    found = compare_profiles(measured(), odd)
    assert [(line.column, line.metric) for line in found.breaches] == [("s", "js")]
    assert "\\ud800" in found.to_html()
