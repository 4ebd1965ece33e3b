"""The graph of datasets: whole histories, gaps, damage, circles; as tree, DOT, page and JSON."""

from __future__ import annotations

import html.parser
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.drawings import GraphDrawing, layout_of, quoted
from odfchain.audit.lineage import Edge, Graph, InputUse, Node, NodeState
from odfchain.cli.describe import print_trees
from odfchain.limits import LINEAGE
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.names import RemoteDatasetId
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.transfer.sharing import AliasKind, add_alias
from tests.kit.derivation import Derived, Grown, Place, Root, lines, transform_of
from tests.kit.hostile_dataset import make_workspace
from tests.kit.support import Result, Run, manifest, seeded_id


def made_of(*names: str) -> ev.SetTransform:
    """A transform of datasets that need not be anywhere."""
    refs = ((name, RemoteDatasetId(None, seeded_id(name))) for name in names)
    return ev.SetTransform(
        inputs=tuple(ev.TransformInput(dataset_ref=ref, alias=name) for name, ref in refs),
        transform=TransformSql(engine="spark", queries=(SqlQueryStep(query="SELECT 1"),)),
    )


@pytest.fixture
def diamond(home: Workspace, place: Place) -> dict[str, Any]:
    """a ← b, a ← c, (b, c) ← d"""
    a = Root("a", place("a"))
    a.schema()
    a.data(3, watermark=7)
    b, c = Derived(a, files=place("b")), Derived(a, files=place("c"))
    return {"a": a, "b": b, "c": c, "d": Derived(b, c, files=place("d"))}


def graph(home: Workspace, *names: str, downstream: bool = False) -> Graph:
    return home.lineage(names, downstream=downstream)


def layers(found: Graph) -> list[list[str]]:
    """The datasets of each layer of the drawing."""
    return [[key for key in row if key in found.nodes] for row in layout_of(found).layers]


def named(found: Graph) -> list[tuple[str, str]]:
    return [(found.nodes[e.upstream].name, found.nodes[e.downstream].name) for e in found.edges]


def test_upstream_has_every_dataset_once_and_every_edge(home: Workspace, diamond: dict[str, Any]) -> None:
    found = graph(home, "d")
    assert [node.name for node in found.nodes.values()] == ["d", "b", "a", "c"]
    assert named(found) == [("b", "d"), ("c", "d"), ("a", "b"), ("a", "c")]
    assert named(graph(home, "a")) == []


def test_downstream_leads_from_inputs_to_what_is_made_of_them(
    home: Workspace, diamond: dict[str, Any]
) -> None:
    found = graph(home, "a", downstream=True)
    assert sorted(node.name for node in found.nodes.values()) == ["a", "b", "c", "d"]
    assert sorted(named(found)) == [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    assert named(graph(home, "d", downstream=True)) == []
    assert [re.sub(":.*", "", line) for line in lines(found.to_trees())][0::2][:2] == ["a", "    d"]


def test_a_node_tells_what_its_chain_says(home: Workspace, diamond: dict[str, Any]) -> None:
    diamond["b"].run()
    add_alias(diamond["a"].files, AliasKind.PULL, "https://user:secret@example.com/a")
    found = {node.name: node for node in graph(home, "b").nodes.values()}
    a = found["a"]
    assert (a.kind.value, a.blocks, a.records, str(a.watermark)) == ("Root", 3, 3, "2020-01-01T12:00:07Z")
    assert str(a.last_block_time) == "2020-01-01T12:00:02Z"
    assert a.pulled_from == ("https://example.com/a/",)
    assert (found["b"].kind.value, found["b"].records) == ("Derivative", 3)


def test_an_input_that_is_not_here_is_a_node_that_says_so(home: Workspace, diamond: dict[str, Any]) -> None:
    home.delete("a", force=True)
    found = graph(home, "d")
    missing = found.nodes[str(seeded_id("a"))]
    assert (missing.state, missing.alias, missing.kind) == (NodeState.MISSING, "in0", None)
    assert f"in0: missing, {seeded_id('a')}" in [line.strip() for line in lines(found.to_trees())]


@pytest.mark.parametrize("damage", ["head block", "transform", "no head", "no alias"])
def test_a_dataset_that_cannot_be_read_is_a_node_that_says_so(
    home: Workspace, diamond: dict[str, Any], damage: str
) -> None:
    files = diamond["b"].files
    diamond["b"].run()
    block = {"head block": files.chain.head(), "transform": files.chain.nearest("SetTransform").hash}.get(
        damage
    )
    if block is not None:
        path = files.folder / "blocks" / str(block)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        (files.folder / ("refs/head" if damage == "no head" else "info/alias")).unlink()
    found = graph(home, "d")
    b = found.nodes[str(seeded_id("b"))]
    assert b.state is NodeState.DAMAGED
    assert str(block or files.folder) in b.problem or b.problem == "the dataset has no head"
    assert len(found.nodes) == 4, "its neighbours are there"
    assert GraphDrawing(found).to_dot()
    assert GraphDrawing(found).to_html()


def test_an_input_that_was_used_once_says_until_which_block(home: Workspace, place: Place) -> None:
    a, b = Root("a", place("a")), Root("b", place("b"))
    made = Derived(a, b, files=place("made"))  # block 1
    made.info()
    made.append(transform_of(b))  # block 3
    made.append(transform_of(b, query="SELECT 2"))  # block 4
    made.append(transform_of(b, a))  # block 5
    made.append(transform_of(b))  # block 6
    found = {graph_edge.upstream: graph_edge for graph_edge in graph(home, "made").edges}
    of_a, of_b = found[str(seeded_id("a"))], found[str(seeded_id("b"))]
    assert (of_a.uses, of_a.in_force) == ((InputUse(1, 2), InputUse(5, 5)), False)
    assert (of_b.uses, of_b.in_force) == ((InputUse(1, None),), True)
    text = lines(graph(home, "made").to_trees())
    assert any(re.match(r"  a: until block 2 and until block 5, root", line) for line in text)
    assert not any("until" in line for line in text if line.startswith("  b"))


@pytest.fixture
def circle(place: Place) -> None:
    """x ← y ← x, with z ← z beside"""
    for name, source in (("x", "y"), ("y", "x"), ("z", "z")):
        Grown(place(name), DatasetKind.DERIVATIVE).append(made_of(source))


@pytest.mark.usefixtures("circle")
@pytest.mark.parametrize("downstream", [False, True])
def test_circles_end(home: Workspace, downstream: bool) -> None:
    found = graph(home, downstream=downstream)
    assert sorted(node.name for node in found.nodes.values()) == ["x", "y", "z"]
    assert len(found.edges) == 3
    text = lines(found.to_trees())
    assert sum("a circle" in line for line in text) == 2
    assert sorted(key for row in layers(found) for key in row) == sorted(found.nodes)
    json.dumps(found.to_document())


def on_paper(edges: list[tuple[str, str]], root: str) -> Graph:
    """A graph of edges from what is made to what it is made of."""
    found = Graph(roots=[root])
    for name in dict.fromkeys([root, *(name for edge in edges for name in edge)]):
        found.nodes[name] = Node(id=name, alias=name, state=NodeState.PRESENT, blocks=1, records=0)
    for made, source in edges:
        found.after.setdefault(made, []).append(Edge(source, made, source, (InputUse(1, None),)))
    return found


def test_a_dataset_on_many_paths_is_opened_up_once() -> None:
    """Forty diamonds in a row have 2^40 paths."""
    edges = []
    for level in range(40):
        for side in (f"l{level}", f"r{level}"):
            edges += [(f"j{level}", side), (side, f"j{level + 1}")]
    found = on_paper(edges, "j0")
    assert len(lines(found.to_trees())) == 161
    assert json.dumps(found.to_document()["datasets"]).count('"id"') == 161
    assert [len(row) for row in layers(found)] == [1, 2] * 40 + [1]


def test_a_long_line_of_derivations_is_cut_in_trees_and_complete_in_lists(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = on_paper([(f"d{n}", f"d{n + 1}") for n in range(1_000)], "d0")
    document = json.loads(json.dumps(found.to_document()))
    assert len(document["nodes"]) == 1_001
    text = lines(found.to_trees())
    assert "(more than 100 levels: ask for this dataset)" in text[-1]
    assert len(text) == LINEAGE.depth + 1
    print_trees(found.to_trees())
    assert capsys.readouterr().out.count("\n") == LINEAGE.depth + 1
    assert parse_dot(GraphDrawing(found).to_dot())[1]
    Page(GraphDrawing(found).to_html())


def nested_inputs(home: Workspace, name: str) -> Any:
    return graph(home, name).to_document()["datasets"][0]["inputs"]


def test_the_document_for_reports(home: Workspace, diamond: dict[str, Any]) -> None:
    home.delete("c", force=True)
    a = {"id": str(seeded_id("a")), "alias": "a", "kind": "root", "missing": False, "inputs": []}
    b = {"id": str(seeded_id("b")), "alias": "b", "kind": "derivative", "missing": False, "inputs": [a]}
    c = {"id": str(seeded_id("c")), "alias": "in1", "kind": None, "missing": True, "inputs": []}
    assert nested_inputs(home, "d") == [b, c]
    assert nested_inputs(home, "a") == []


HOSTILE = 'a"];\\" evil -> n9 [label="\\N\\l<b>&\x1b[31m\n'


def parse_dot(text: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, dict[str, str]]]]:
    """The statements of a document as Graphviz would read them: quotes end strings unless escaped."""
    token = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([A-Za-z_0-9]+)|(->|[\[\]{};=,]))', re.DOTALL)
    words, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = token.match(text, position)
        assert match, text[position : position + 40]
        words.append((match[1] is not None, match[1] if match[1] is not None else match[2] or match[3]))
        position = match.end()
    assert [w for _, w in words[:3]] == ["digraph", "lineage", "{"]
    assert words[-1][1] == "}"
    nodes: dict[str, dict[str, str]] = {}
    edges = []
    statement: list[str] = []
    for is_text, word in words[3:-1]:
        if word != ";" or is_text:
            statement.append(word)
            continue
        attributes = {}
        if "[" in statement:
            inner = statement[statement.index("[") + 1 : -1]
            attributes = {inner[i]: inner[i + 2] for i in range(0, len(inner), 4)}
        if len(statement) > 2 and statement[1] == "->":
            edges.append((statement[0], statement[2], attributes))
        elif re.fullmatch(r"n\d+", statement[0]):
            nodes[statement[0]] = attributes
        statement = []
    return nodes, edges


def test_dot_can_be_read_whatever_names_say() -> None:
    found = Graph(roots=["k"])
    found.nodes = {
        "k": Node(id="k", alias=HOSTILE, state=NodeState.PRESENT, blocks=1, records=1),
        "m": Node(id="m", alias="trailing\\", state=NodeState.MISSING),
    }
    nodes, edges = parse_dot(GraphDrawing(found).to_dot())
    assert set(nodes) == {"n0", "n1"}
    assert edges == []
    shown = nodes["n0"]["label"]
    assert shown.startswith('a\\"];\\\\\\" evil -> n9 [label=\\"\\\\N\\\\l<b>&')
    assert "\x1b" not in shown
    assert nodes["n1"]["label"].startswith("trailing\\\\\\n")
    assert quoted("x\ny", "z") == '"x y\\nz"'


def test_dot_has_the_edges_and_dashes_what_is_used_no_more(home: Workspace, diamond: dict[str, Any]) -> None:
    diamond["d"].append(transform_of(diamond["b"]))
    nodes, edges = parse_dot(GraphDrawing(graph(home, "d")).to_dot())
    names = {key: item["label"].split("\\n")[0] for key, item in nodes.items()}
    assert {(names[a], names[b]) for a, b, _ in edges} == {("b", "d"), ("c", "d"), ("a", "b"), ("a", "c")}
    past = [(names[a], names[b], item) for a, b, item in edges if item]
    assert past == [("c", "d", {"style": "dashed", "label": "until block 1"})]


class Page(html.parser.HTMLParser):
    """Checks that what is opened is closed, and collects texts and elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_draws_every_dataset_and_edges_from_left_to_right(
    home: Workspace, diamond: dict[str, Any]
) -> None:
    found = graph(home, "d")
    names = [[found.nodes[key].name for key in row] for row in layers(found)]
    assert names == [["a"], ["b", "c"], ["d"]]
    page = Page(GraphDrawing(found).to_html())
    boxes = [a for tag, a in page.elements if tag == "rect"]
    assert len({(a["x"], a["y"]) for a in boxes}) == 4
    paths = [str(a["d"]) for tag, a in page.elements if tag == "path" and "marker-end" in a]
    assert len(paths) == 4
    for path in paths:
        numbers = [int(n) for n in re.findall(r"-?\d+", path)]
        assert numbers[0] < numbers[-2]


LINE_OF_DOT = re.compile(
    r'digraph lineage \{|\}|  (?:rankdir|node|edge).*;|  n\d+ \[label="(?:[^"\\]|\\.)*", tooltip="(?:[^"\\]|\\.)*", '
    r'shape=\w+, style=\w+\];|  n\d+ -> n\d+(?: \[style=dashed, label="(?:[^"\\]|\\.)*"\])?;'
)


def acting(text: str) -> set[str]:
    return {
        hex(ord(c)) for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") and c != "\n"
    }


@pytest.mark.parametrize("downstream", [False, True])
def test_hostile_names_cannot_leave_their_labels(tmp_path: Path, downstream: bool) -> None:
    drawing = GraphDrawing(make_workspace(tmp_path).lineage((), downstream=downstream))
    dot, page = drawing.to_dot(), drawing.to_html()
    assert acting(dot) == set() == acting(page)
    if not downstream:  # what is not here is not looked for in what is made of the others
        assert "gone a\\\\x1b]0;owned" in dot
        assert "gone a\\x1b]0;owned" in page
    for line in dot.splitlines():
        assert LINE_OF_DOT.fullmatch(line), line
    elements = Page(page).elements
    assert "script" not in {tag for tag, _ in elements}
    attributes = {name for _, found in elements for name in found}
    assert [name for name in attributes if name.startswith("on")] == []
    assert {"src", "href", "xlink:href"} & attributes == set()


def test_an_edge_that_passes_a_layer_is_drawn_beside_the_boxes_there() -> None:
    found = on_paper([("c", "b"), ("b", "a"), ("c", "a")], "c")
    layout = layout_of(found)
    assert [len(row) for row in layout.layers] == [1, 2, 1]
    (long,) = [route for edge, route in layout.routes if (edge.upstream, edge.downstream) == ("a", "c")]
    assert long[1] in layout.layers[1]
    assert long[1] not in found.nodes
    page = Page(GraphDrawing(found).to_html())
    assert len([tag for tag, _ in page.elements if tag == "rect"]) == 3


def test_the_command_prints_every_format(home: Workspace, diamond: dict[str, Any], run: Run) -> None:
    here = ("-w", home.path.parent, "inspect", "lineage")
    tree = run(*here, "d")
    assert tree.code == 0
    assert [re.sub(r"\W*(\w+):.*", r"\1", line) for line in tree.out.splitlines()] == list("dbaca")
    assert "a: root, 3 blocks, 3 records, watermark 2020-01-01T12:00:07Z" in tree.out
    assert parse_dot(run(*here, "d", "-o", "dot").out)[1]
    assert Page(run(*here, "d", "-o", "html").out).text.count("Lineage of d") == 2
    found = json.loads(run(*here, "d", "-o", "json").out)
    assert found["datasets"][0]["inputs"] == nested_inputs(home, "d")
    assert len(found["nodes"]) == len(found["edges"]) == 4
    down = json.loads(run(*here, "a", "--downstream", "-o", "json").out)
    assert (down["direction"], len(down["edges"])) == ("downstream", 4)
    everything = run(*here)
    assert everything.out.count("\n") > tree.out.count("\n")
    assert run(*here, "nowhere").code == 4


def test_a_workspace_without_datasets_has_an_empty_lineage(home: Workspace, run: Run) -> None:
    here = ("-w", home.path.parent, "inspect", "lineage")
    found = run(*here, "-o", "html")
    assert found.code == 0
    Page(found.out)
    assert run(*here) == Result(0, "", "")
    home.add(manifest())
    assert run(*here).out.startswith("cities: root")
