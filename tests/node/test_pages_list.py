"""The list of datasets and their addresses: how many, in which order, found by words, damaged, ten thousand."""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from odfchain.node import catalog
from odfchain.odf import events as ev
from odfchain.odf.identity import DatasetId, encode_base16
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.branch_rows import add
from tests.kit.long_chains import long_chain
from tests.kit.node_cases import case
from tests.kit.opened_files import opened_files
from tests.kit.running_node import RunningNode, running_node
from tests.kit.served_workspace import make_dataset


def listed(node: RunningNode, query: str = "") -> dict[str, Any]:
    return node.ask(f"/-/index.json{query}").json


def names(node: RunningNode, query: str = "") -> list[str]:
    return [line["alias"] for line in listed(node, query)["datasets"]]


@pytest.mark.parametrize("expected", case(1)["lists"], ids=lambda each: each["datasets"])
def test_a_list_has_pages_of_fifty(tmp_path: Path, expected: dict[str, Any]) -> None:
    made_folders(tmp_path, expected["datasets"])
    with running_node(tmp_path) as node:
        page = node.ask("/").text
        assert page.count('<th scope="row">') == expected["rows"]
        assert all(f"<code>{command}</code>" in page for command in expected["commands"])
        assert listed(node)["pages"] == expected["pages"]
        last = listed(node, f"?page={expected['pages']}")["datasets"]
        assert len(last) == expected["datasets"] - 50 * (expected["pages"] - 1)


def test_what_is_damaged_is_listed_with_the_reason(troubled: Path, tmp_path: Path) -> None:
    folder, wanted = tmp_path / "copy", case(2)
    shutil.copytree(troubled, folder / ".odfchain")
    broken = folder / ".odfchain" / "datasets" / "fed01broken"
    (broken / "info").mkdir(parents=True)
    (broken / "info" / "alias").write_text(wanted["unopenable"]["alias"])
    with running_node(folder) as node:
        lines = {line["alias"]: line for line in listed(node)["datasets"]}
        page = node.ask("/").text
        assert node.ask("/damaged.chain/").status == 200
    for name, each in (("damaged.chain", wanted["damaged"]), ("fed01broken", wanted["unopenable"])):
        assert lines[name]["state"] == each["state"]
        assert each["reason"] in lines[name]["fault"]
        assert each["reason"] in page
    assert lines[wanted["fine"]["name"]]["state"] == wanted["fine"]["state"]
    assert {n: lines[n]["state"] for n in ("forked", "partial", "empty", "unsigned", "rewound")} == {
        "forked": "two histories", "partial": "partial copy", "empty": "no data", "unsigned": "unsigned",
        "rewound": "wrong signature",
    }  # fmt: skip
    assert str(folder) not in page


def test_a_list_is_searched_and_ordered(tmp_path: Path) -> None:
    workspace = WorkspaceFiles.init(tmp_path)
    add(make_dataset(workspace, "a.rain", 10), ev.SetInfo(description="Water from above", keywords=("sky",)))
    make_dataset(workspace, "b.river", 10, 10)
    make_dataset(workspace, "c.lake")
    with running_node(tmp_path) as node:
        assert names(node) == ["a.rain", "b.river", "c.lake"]
        assert names(node, "?sort=records") == ["b.river", "a.rain", "c.lake"]
        assert [names(node, f"?q={text}") for text in ("WATER", "sky", "lake", "sea")] == [
            ["a.rain"], ["a.rain"], ["c.lake"], [],
        ]  # fmt: skip
        assert "No dataset has this text" in node.ask("/?q=sea").text
        assert node.ask("/?sort=luck").status == 400


def test_a_list_follows_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = WorkspaceFiles.init(tmp_path)
    first = make_dataset(workspace, "first", 10)
    for few in (catalog.FEW, 0):
        monkeypatch.setattr(catalog, "FEW", few)
        with running_node(tmp_path) as node:
            assert names(node) == ["first"]
            add(first, ev.SetInfo(description=f"of {few}", keywords=()))
            second = make_dataset(workspace, "second")
            assert [line.get("description") for line in listed(node)["datasets"]] == [f"of {few}", None]
            shutil.rmtree(second.folder)
            assert names(node) == ["first"]


def requests(node: RunningNode, number: int) -> list[dict[str, Any]]:
    found = []
    for each in case(number)["requests"]:
        reply = node.ask(each["target"])
        seen = {"target": each["target"], "status": reply.status, "location": reply.headers.get("location")}
        seen["type"] = reply.headers.get("content-type", "").partition(";")[0]
        seen |= {"text": each.get("text") if each.get("text", "") in reply.text else reply.text}
        heading = re.search("<h1><bdi>(.*?)</bdi>", reply.text)
        found.append(seen | {"name": heading and heading[1]})
    return found


@pytest.mark.parametrize("number", [3, 4, 5, 6])
def test_addresses(tmp_path: Path, number: int) -> None:
    workspace = WorkspaceFiles.init(tmp_path)
    for name in case(number).get("datasets", ["cities"]):
        make_dataset(workspace, name)
    with running_node(tmp_path) as node:
        found = requests(node, number)
    assert [
        {key: seen[key] for key in each} for each, seen in zip(case(number)["requests"], found, strict=True)
    ] == case(number)["requests"]


def made_folders(root: Path, count: int) -> list[DatasetFiles]:
    """So many datasets of three blocks, nothing of which is synced; the last is returned."""
    workspace = WorkspaceFiles.init(root)
    if not count:
        return []
    first = long_chain(root, "station-0", 3)
    (first.folder / "info" / "partial").unlink()
    for number in range(1, count):
        name = encode_base16(DatasetId(hashlib.sha3_256(b"%d" % number).digest()).to_bytes())
        folder = workspace.root / "datasets" / name
        shutil.copytree(first.folder, folder, copy_function=shutil.copyfile)
        (folder / "info" / "alias").write_text(f"station-{number}")
    return [DatasetFiles.open(folder) for folder in (first.folder, folder if count > 1 else first.folder)]


@pytest.mark.parametrize("count", [600, pytest.param(case(55)["datasets"], marks=pytest.mark.soak)])
def test_many_datasets_cost_no_more_than_their_page(tmp_path: Path, count: int) -> None:
    first, last = made_folders(tmp_path, count)
    with running_node(tmp_path) as node:
        deadline = time.monotonic() + 300
        while listed(node)["unread"] and time.monotonic() < deadline:
            threading.Event().wait(0.1)  # they are read in another thread
        with opened_files(first.folder / "blocks") as one, opened_files(last.folder / "blocks") as other:
            assert listed(node)["total"] == count
        assert (one, other) == ([], [])
        times = {target: _best(node, target.replace("5000", "500")) for target in case(55)["targets"]}
    print(times)
    assert max(times.values()) < case(55)["milliseconds"]


def _best(node: RunningNode, target: str) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert node.ask(target).status == 200
        times.append((time.perf_counter() - start) * 1_000)
    return min(times)
