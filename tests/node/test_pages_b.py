"""Pages of a node about what a dataset is made of, and what is said of it, and what only its operator sees."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.api.settings import DatasetConfiguration
from odfchain.audit.report import Fault, keep_report
from odfchain.chain.statements import SignedHead
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import encode_base16
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.private_notes import report_path
from tests.kit import query_datasets
from tests.kit.derivation import Grown, transform_of
from tests.kit.derived_dataset import FIRST, SCHEMA, SECOND, add_rows
from tests.kit.node_cases import case
from tests.kit.root_rows import add_root
from tests.kit.running_node import Reply, RunningNode, running_node
from tests.kit.support import seeded_id
from tests.kit.troubled_workspace import DAMAGED, NAMES


def document(node: RunningNode, target: str, **headers: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.ask(target, **headers).body)
    return found


@pytest.fixture
def cities(tmp_path: Path) -> DatasetFiles:
    with odf.init(tmp_path) as home:
        made = add_root(home, "cities", SCHEMA)
    for rows in (FIRST, SECOND):
        add_rows(made, rows)
    return made


@pytest.mark.parametrize("given", case(27)["pages"], ids=lambda given: given["dataset"])
def test_case_27_lineage(troubled: Path, given: dict[str, Any]) -> None:
    with running_node(troubled) as node:
        target = f"/{given['dataset']}/-/lineage"
        page, found = node.ask(target).text, document(node, f"{target}.json")["graph"]
        dot = node.ask(f"{target}.dot").text
    states = {each["alias"] or "": each["state"] for each in found["nodes"].values()}
    assert {n: states.get(n) for n in given["states"]} == given["states"]
    names = {key: each["alias"] for key, each in found["nodes"].items()}
    edges = [[names[e["upstream"]], names[e["downstream"]]] for es in found["after"].values() for e in es]
    assert sorted(edges) == sorted(given["edges"])
    for name in given["linked"]:
        assert f'<a href="/{name}/"><rect' in page
    assert page.count('<rect x="12"') + page.count('<rect x="322"') == len(states) == dot.count("tooltip=")
    assert all(word in page for word in given["words"])


def test_case_27_a_circle_ends(tmp_path: Path) -> None:
    made = {}
    with odf.init(tmp_path) as home:
        for name in (wanted := case(27)["circle"]):
            folder = home.path / "datasets" / encode_base16(seeded_id(name).to_bytes())
            DatasetFiles.create_folders(folder, DatasetAlias.parse(name))
            made[name] = Grown(DatasetFiles.open(folder), DatasetKind.DERIVATIVE)
    for name, source in wanted.items():
        made[name].append(transform_of(made[source]))
    with running_node(tmp_path) as node:
        for name in wanted:
            graph = document(node, f"/{name}/-/lineage.json")["graph"]
            names = {key: each["alias"] for key, each in graph["nodes"].items()}
            edges = [each for found in graph["after"].values() for each in found]
            assert {names[e["downstream"]]: names[e["upstream"]] for e in edges} == wanted
            assert node.ask(f"/{name}/-/lineage").text.count('<path class="used"') == len(wanted)


def test_lineage_has_only_what_the_reader_sees(troubled: Path, tmp_path: Path) -> None:
    shutil.copytree(troubled, tmp_path / ".odfchain")
    wanted = case(27)["restricted"]
    with odf.Workspace.open(tmp_path) as home:
        tokens = {each: home.tokens.create(each, [f"read:{each}"]).text for each in wanted}
    with running_node(tmp_path, restrict_reading=True) as node:
        for name, expected in wanted.items():
            found = document(node, f"/{name}/-/lineage.json", Authorization=f"Bearer {tokens[name]}")
            states = {each["alias"]: each["state"] for each in found["graph"]["nodes"].values()}
            assert states == expected
        assert node.ask("/copied/-/lineage").status == 404


def test_every_page_of_every_dataset_is_there(troubled: Path) -> None:
    with running_node(troubled) as node:
        for name in (*NAMES, DAMAGED):
            for page in case(39)["pages_b"]:
                reply = node.ask(f"/{name}/-/{page}")
                assert (reply.status, str(troubled) in reply.text) == (200, False), f"{name} {page}"
                assert node.ask(f"/{name}/-/{page}.json").status == 200


@pytest.mark.parametrize("given", case(16)["signature"], ids=lambda given: given["signed"])
def test_case_16_signatures_are_on_the_audit(
    cities: DatasetFiles, tmp_path: Path, given: dict[str, Any]
) -> None:
    path, head = cities.folder / "refs" / "head.jws", cities.chain.head()
    number, earlier = cities.chain.get(head).sequence_number, cities.chain.get(head).prev_block_hash
    with odf.Workspace.open(tmp_path) as home:
        key = home._files.key(cities.id)

    def line(of: Any, number: int) -> bytes:
        return SignedHead(cities.id, of, number, Timestamp.now()).sign(key).encode() + b"\n"

    path.unlink()
    if given["signed"] in (written := {"head": line(head, number), "earlier": line(earlier, number - 1)}):
        path.write_bytes(written[given["signed"]])
    elif given["signed"] != "nothing":
        path.write_bytes(b"garbage\n" if given["signed"] == "garbage" else line(earlier, number))
    with running_node(tmp_path) as node:
        assert given["text"] in html.unescape(node.ask("/cities/-/audit").text)


def test_case_17_newer_blocks_are_counted(cities: DatasetFiles, tmp_path: Path) -> None:
    verified(tmp_path)
    for given in case(17)["verdict"]:
        for _ in range(given["commits"]):
            add_rows(cities, SECOND)
        with running_node(tmp_path) as node:
            assert given["text"] in document(node, "/cities/-/audit.json")["verdict"]
            assert "Clean: " in node.ask("/cities/-/audit").text


def test_case_18_faults_are_counted(cities: DatasetFiles, tmp_path: Path) -> None:
    report = verified(tmp_path)
    report.faults.append(Fault(6, str(cities.folder / "data" / "f16"), "the file has other bytes", 2))
    keep_report(cities, report)
    with running_node(tmp_path) as node:
        page, found = node.ask("/cities/-/audit"), document(node, "/cities/-/audit.json")
        saved = node.ask("/cities/-/audit.html")
    assert case(18)["verdict"]["text"] in found["verdict"]
    assert "the file has other bytes" in page.text
    assert str(tmp_path) not in page.text + saved.text
    assert saved.headers["content-disposition"] == 'attachment; filename="cities-verification.html"'
    assert "<style>" in saved.text


@pytest.mark.parametrize("damage", ["truncated", "of another dataset"])
def test_case_19_a_damaged_report_is_none(cities: DatasetFiles, tmp_path: Path, damage: str) -> None:
    verified(tmp_path)
    path = report_path(cities)
    text = path.read_text()
    path.write_text(text[:100] if damage == "truncated" else text.replace(str(cities.id), "did:odf:fed01"))
    with running_node(tmp_path) as node:
        assert case(19)["word"].capitalize() in node.ask("/cities/-/audit").text
        assert document(node, "/cities/-/audit.json")["verdict"] == case(19)["word"]
        assert node.ask("/cities/-/audit.html").status == 404
        assert case(19)["log"] in node.problems[0]


def verified(folder: Path) -> odf.Report:
    with odf.Workspace.open(folder) as home:
        return home["cities"].verify()


def test_evidence_has_both_heads(troubled: Path) -> None:
    with running_node(troubled) as node:
        found, page = document(node, "/forked/-/audit.json"), node.ask("/forked/-/audit").text
        said = document(node, "/cities/-/audit.json")["attestations"]
    (proof,) = found["evidence"]
    assert len({*proof["blocks"]}) == 2
    assert all(each in page for each in (*proof["blocks"], *(h["head"] for h in proof["heads"])))
    assert [(s["verdict"], s["trusted"], s["inChain"]) for s in said] == [("clean", False, True)]


# --- branches, descriptions, the operator's pages -----------------------------------------------------


@contextmanager
def users_node(folder: Path) -> Iterator[Callable[[str], Reply]]:
    """A node of one user, as he asks it."""
    with running_node(folder, secret="open") as node:  # noqa: S106 - it is one
        cookie = node.ask("/?secret=open").headers["set-cookie"].partition(";")[0]
        yield lambda target: node.ask(target, Cookie=cookie)


@pytest.mark.parametrize("given", case(39)["branches"], ids=lambda given: str(given["published"]))
def test_branches_are_those_that_are_published(troubled: Path, given: dict[str, Any]) -> None:
    with running_node(troubled, branches=given["published"]) as node:
        found = document(node, "/branched/-/branches.json")
        assert [each["name"] for each in found["branches"]] == given["names"]
        assert sorted({r for line in found["graph"] for r in line.get("references", ())}) == given["drawn"]
        assert ("branched/-/branches" in str(found["dataset"]["tabs"])) is bool(given["names"])
        for name, status in given["status"].items():
            assert node.ask(f"/branched/-/merge?branch={name}").status == status
            assert node.ask(f"/branched/-/compare?a=2&b={name}").status == status


def test_a_user_sees_all_branches_of_his_own(troubled: Path) -> None:
    with users_node(troubled) as ask:
        assert [b["name"] for b in json.loads(ask("/branched/-/branches.json").body)["branches"]] == [
            "fix",
            "other",
        ]


def test_conflicts_of_a_merge(troubled: Path, tmp_path: Path) -> None:
    shutil.copytree(troubled, tmp_path / ".odfchain")
    with odf.Workspace.open(tmp_path) as home:
        dataset = home["cities"]
        for each, pop in ((dataset.create_branch("fix"), 5), (dataset, 6)):
            state = each.summary
            rows = [["+A", "2026-02-01T00:00:00Z", "zürich", pop]]
            time = state.next_system_time(Timestamp.now())
            query_datasets.add_rows(each._files, [["city", "string"], ["pop", "int64"]], rows, time, state)
    with running_node(tmp_path, branches=True) as node:
        found, page = (
            document(node, "/cities/-/merge.json?branch=fix"),
            node.ask("/cities/-/merge?branch=fix"),
        )
        assert node.ask("/cities/-/merge?branch=fix", Sec_Fetch_Site="cross-site").status == 403
    assert (found["total"], found["isMerged"]) == (1, False)
    (line,) = found["conflicts"]
    assert (line["city"], line["ours"], line["theirs"]) == ('"zürich"', "6", "5")
    assert "1 conflict" in page.text
    assert "zürich" in page.text


def test_profiles_are_computed_on_demand_and_compared(troubled: Path, tmp_path: Path) -> None:
    shutil.copytree(troubled, tmp_path / ".odfchain")
    with running_node(tmp_path) as node:
        assert node.ask("/cities/-/profile?at=6", "POST", b"").status == 403
    with running_node(tmp_path, sql=True) as node:
        assert "Compute it" in node.ask("/cities/-/profile?at=6").text
        assert node.ask("/cities/-/drift?a=6&b=9").status == 404
        assert node.ask("/cities/-/profile?at=6", "POST", b"", Sec_Fetch_Site="cross-site").status == 403
        made = node.ask("/cities/-/profile?at=6", "POST", b"", Origin=node.url.rstrip("/"))
        assert (made.status, made.headers["location"]) == (303, "/cities/-/profile?at=6")
        assert document(node, "/cities/-/profile.json")["points"] == [9, 6]
        found, page = (
            document(node, "/cities/-/drift.json?a=6&b=9")["drift"],
            node.ask("/cities/-/drift?a=6&b=9"),
        )
    assert [found[side]["sequenceNumber"] for side in ("from", "to")] == [6, 9]
    assert "odfchain diff --profile cities@6 cities@9" in page.text


def test_manifests_and_assets(troubled: Path) -> None:
    with running_node(troubled) as node:
        found = document(node, "/cities/-/manifests.json")
        assert [(line["kind"], line["sequenceNumber"]) for line in found["lines"]] == [
            ("manifest", 9),
            ("profile", 9),
        ]
        assert found["total"] == len(found["files"]) == 4
        links = re.findall(
            r'href="(/cities/(?:manifests|data)/f[^"]+)"', node.ask("/cities/-/manifests").text
        )
        assert {node.ask(link).status for link in links} == {200}
        lock = document(node, "/s2.assets/-/assets.json")
        assert (lock["total"], [row[0] for row in lock["rows"]]) == (3, ["s1", "s3", "s4"])
        assert node.ask("/cities/-/assets").status == 400


def test_pages_of_the_operator_are_for_him_alone(troubled: Path, tmp_path: Path) -> None:
    shutil.copytree(troubled, tmp_path / ".odfchain")
    with odf.Workspace.open(tmp_path) as home:
        made = home.tokens.create("reader", ["read:cities"])
        DatasetConfiguration.of(home["unsigned"]).set("pull.every", ["1h"])
    pages = ("tokens", "schedule", "keys")
    with users_node(tmp_path) as ask:
        found = {each: json.loads(ask(f"/-/{each}.json").body) for each in pages}
        texts = "".join(ask(f"/-/{each}").text for each in pages)
        assert all(f"/-/{each}" in ask("/-/about").text for each in pages)
    assert [(t["name"], t["allow"]) for t in found["tokens"]["tokens"]] == [("reader", ["read:cities"])]
    (planned,) = found["schedule"]["planned"]
    assert (planned["dataset"], planned["every"], planned["last"], planned["when"]) == (
        "unsigned",
        "1h",
        None,
        "due",
    )
    assert found["keys"]["owned"].keys() >= {"cities", "branched"}
    assert "unsigned" not in found["keys"]["owned"]
    assert made.text not in texts
    assert made.token.sha3 not in texts
    with running_node(tmp_path, write=True) as node:
        assert {node.ask(f"/-/{p}", Authorization=f"Bearer {made.text}").status for p in pages} == {404}
