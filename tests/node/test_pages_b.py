"""Pages of a node about what a dataset is made of, and what is said of it: lineage, audit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.audit.report import Fault, keep_report
from odfchain.chain.statements import SignedHead
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import encode_base16
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.private_notes import report_path
from tests.kit.derivation import Grown, transform_of
from tests.kit.derived_dataset import FIRST, SCHEMA, SECOND, add_rows
from tests.kit.node_cases import case
from tests.kit.root_rows import add_root
from tests.kit.running_node import RunningNode, running_node
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
        assert given["page"] in node.ask("/cities/-/audit").text


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
