"""Case 60: writers on several branches at once lose no change, and never meet but on one branch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import odfchain as odf
from odfchain.errors import RefConflictError
from tests.kit.query_datasets import make
from tests.kit.small_branches import SPEC, add

BRANCHES = ("head", "one", "two", "three")
EACH = 3


def _write(path: Path, branch: str, writer: int) -> int:
    """Records its rows, one transaction for each, again where another was faster; returns how often that was.

    It has opened the workspace for itself, as another process would; the locks are those of open files.
    """
    dataset = odf.open(path)["d"].branch(branch)
    races = 0
    for number in range(EACH):
        while True:
            try:
                add(dataset, f"{writer}.{number}")
                break
            except RefConflictError:
                races += 1
    return races


def _write_at_once(path: Path, branches: Sequence[str]) -> list[int]:
    with ThreadPoolExecutor(len(branches)) as pool:
        return list(pool.map(_write, [path] * len(branches), branches, range(len(branches))))


def test_case_60_eight_writers_on_four_branches(tmp_path: Path) -> None:
    workspace = odf.init(tmp_path)
    make(workspace, "d", SPEC)
    dataset = workspace["d"]
    for name in BRANCHES[1:]:
        dataset.create_branch(name)
    _write_at_once(tmp_path, BRANCHES * 2)
    for index, name in enumerate(BRANCHES):
        found = dataset.branch(name)
        keys = found.scan(["k"]).to_arrow()["k"].to_pylist()
        expected = {f"{writer}.{number}" for writer in (index, index + 4) for number in range(EACH)}
        assert (keys[:3], len(keys) - 3, set(keys[3:])) == (["a", "b", "a"], 2 * EACH, expected), name
        head = found.head
        assert found._files.chain.hashes(head)[::-1] == [block.hash for block in found.log()]
    assert [report.verdict for report in workspace.verify(dataset.branch(n) for n in BRANCHES)] == [
        "clean"
    ] * 4


def test_case_60_writers_on_different_branches_never_meet(tmp_path: Path) -> None:
    workspace = odf.init(tmp_path)
    make(workspace, "d", SPEC)
    for name in BRANCHES[1:]:
        workspace["d"].create_branch(name)
    assert _write_at_once(tmp_path, BRANCHES) == [0] * 4
    assert {workspace["d"].branch(name).summary.record_count for name in BRANCHES} == {3 + EACH}


def test_case_60_merges_beside_writers_lose_nothing(tmp_path: Path) -> None:
    workspace = odf.init(tmp_path)
    make(workspace, "d", SPEC)
    workspace["d"].create_branch("draft")

    def merge(_: object) -> int:
        dataset = odf.open(tmp_path)["d"]
        for number in range(EACH):
            add(dataset.branch("draft"), f"draft.{number}")
            while True:
                try:
                    dataset.merge("draft")
                    break
                except RefConflictError:  # more often than a merge tries again
                    continue
        return 0

    with ThreadPoolExecutor(3) as pool:
        merging = pool.submit(merge, None)
        writing = [pool.submit(_write, tmp_path, "head", number) for number in range(2)]
        assert merging.result(60) == 0
        assert [item.result(60) >= 0 for item in writing] == [True] * 2
    dataset = workspace["d"]
    keys = dataset.scan(["k"]).to_arrow()["k"].to_pylist()[3:]
    expected = [f"{name}.{number}" for name in ("0", "1", "draft") for number in range(EACH)]
    assert sorted(keys) == sorted(expected)
    assert [key for key in keys if key.startswith("draft")] == expected[-EACH:]
    assert [(branch.name, branch.ahead) for branch in dataset.branches()] == [("draft", 0)]
    assert dataset.verify().verdict == "clean"
    assert dataset.delete_branch("draft") is None
