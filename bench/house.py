"""What the house measures: lines, arrows, circles, names, functions, start-up; here, and in an older commit.
And its map, made of what the rooms say of themselves.

python bench/house.py                            this checkout
python bench/house.py b714276                    beside it the tree of an older commit
python bench/house.py b714276 --bench chain,share --tests    and what these benchmarks and `make test` take
python bench/house.py --map                      writes the map of rooms into README.md and RFC-027
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 10
STARTS = 9
TIMED = ("import odfchain", "from odfchain.cli.main import main", "from odfchain import Workspace")

Figures = dict[str, object]


def modules_of(package: Path) -> dict[str, Path]:
    """Every module by its dotted name, `odfchain` included."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(tree: ast.AST, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a module names, at whatever depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "odfchain":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def loaded(tree: ast.Module) -> ast.Module:
    """What runs when a module is imported: no function bodies, nothing for type checkers only."""

    class Kept(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            del node

        def visit_If(self, node: ast.If) -> ast.AST:
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                return ast.Pass()
            return self.generic_visit(node)

    kept = Kept().visit(tree)
    assert isinstance(kept, ast.Module)
    return kept


def room_of(module: str, modules: dict[str, Path]) -> str:
    """The room of a module: its package below `odfchain`, or the floor; `results` is of the public face."""
    parts = module.split(".")
    if len(parts) == 1 or parts[1] in ("conformance", "results"):
        return "odfchain"
    return parts[1] if modules[".".join(parts[:2])].name == "__init__.py" else "floor"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other (Tarjan), largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group: list[str] = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def functions(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(lines, where) of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1, f"{path.name}:{node.name}"


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of a file that are texts and no code: docstrings, and what stands below a field."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def kinds_of_lines(path: Path, tree: ast.Module) -> Counter[str]:
    """How many lines of a file are code, imports, docstrings, and comments on lines of their own."""
    texts = docstring_lines(tree)
    imports = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found = Counter[str](docstrings=len(texts), imports=len(imports))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        found["code"] += bool(text) and not text.startswith("#") and number not in texts
        directive = text.startswith(("# type:", "# noqa", "# fmt:"))
        found["comments"] += text.startswith("#") and not directive and number not in texts
    return found


def importers_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Who imports a module, at whatever depth."""
    found = defaultdict[str, set[str]](set)
    for name, others in graph.items():
        for other in others:
            found[other].add(name)
    return found


def used_by_one_other(trees: dict[str, ast.Module]) -> tuple[int, int]:
    """How many public functions one module names, and not their own; how many are called at one place."""
    users = defaultdict[tuple[str, str], set[str]](set)
    named = defaultdict[str, set[str]](set)
    calls = Counter[str]()
    for name, tree in trees.items():
        modules: dict[str, str] = {}
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    if inner in trees:
                        modules[alias.asname or alias.name] = inner
                    else:
                        users[node.module, alias.name].add(name)
        for node in nodes:
            if isinstance(node, ast.Name):
                named[name].add(node.id)
            elif isinstance(node, ast.Attribute):
                named[name].add(node.attr)
                if isinstance(node.value, ast.Name) and node.value.id in modules:
                    users[modules[node.value.id], node.attr].add(name)
            elif isinstance(node, ast.Call):
                calls[getattr(node.func, "id", getattr(node.func, "attr", ""))] += 1
    found = [
        function
        for name, tree in trees.items()
        for function in defined(tree)
        if not function.startswith("_") and len(users[name, function]) == 1 and function not in named[name]
    ]
    return len(found), sum(calls[function] == 1 for function in found)


def defined(tree: ast.Module) -> set[str]:
    """The functions on the top level of a module."""
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def share(part: int, whole: int) -> str:
    """A part in percent."""
    return f"{100 * part / whole:.1f} %"


def start_ms(root: Path, program: str) -> float:
    """CPU time of a new process that does only this [ms], the least of some tries."""
    times = []
    for _ in range(STARTS):
        code = f"{program}; import os; t = os.times(); print(t.user + t.system)"
        environment = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return float("nan")
        times.append(float(done.stdout))
    return round(min(times) * 1_000, 1) if times else math.nan


def measure(root: Path) -> Figures:
    """All figures of one tree."""
    package = root / "odfchain"
    modules = modules_of(package)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    lines = Counter[str]()
    for name, path in modules.items():
        lines[room_of(name, modules)] += len(path.read_text(encoding="utf-8").splitlines())
    graph = {name: set(imports_of(tree, modules)) - {name, "odfchain"} for name, tree in trees.items()}
    at_load = {
        name: set(imports_of(loaded(ast.parse(modules[name].read_text(encoding="utf-8"))), modules))
        - {name, "odfchain"}
        for name in modules
    }
    rooms = defaultdict[str, set[str]](set)
    for name, others in graph.items():
        rooms[room_of(name, modules)] |= {room_of(other, modules) for other in others} - {
            room_of(name, modules)
        }
    names = Counter(path.name for path in modules.values() if path.name != "__init__.py")
    longest = sorted(
        (item for name, path in modules.items() for item in functions(path, trees[name])), reverse=True
    )
    kinds = sum((kinds_of_lines(path, trees[name]) for name, path in modules.items()), Counter[str]())
    importers = importers_of(graph)
    with_one_user, at_one_place = used_by_one_other(trees)
    of_one = [
        name for name, path in modules.items() if path.name != "__init__.py" and len(importers[name]) == 1
    ]
    counts = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values())
    return {
        "lines": sum(lines.values()),
        "lines of code": kinds["code"],
        "modules": len(modules),
        "module, median lines": counts[len(counts) // 2],
        "rooms (`api` among them)": len(lines.keys() - {"floor", "odfchain"}),
        "imports, share of code": share(kinds["imports"], kinds["code"]),
        "comments, share of lines": share(kinds["comments"], sum(lines.values())),
        "docstrings, lines": kinds["docstrings"],
        "modules with one importer": len(of_one),
        "functions called from one other file only": with_one_user,
        "of them called at one place": at_one_place,
        "lines per room": dict(sorted(lines.items(), key=lambda item: -item[1])),
        "arrows between rooms": sum(map(len, rooms.values())),
        "circles of rooms": [len(group) for group in circles(rooms)],
        "circles of files, loaded": [len(group) for group in circles(at_load)],
        "circles of files, all imports": [len(group) for group in circles(graph)],
        "file names in several packages": {name: n for name, n in sorted(names.items()) if n > 1},
        "largest functions": {where: count for count, where in longest[:LARGEST]},
        "CPU of a start [ms]": {program: start_ms(root, program) for program in TIMED},
    }


def benchmarks(root: Path, parts: list[str]) -> Figures:
    """What the benchmarks of a tree measure, by name [its unit]; all of them without `parts`."""
    done = subprocess.run(
        [sys.executable, root / "bench" / "bench.py", *parts],
        cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    figures = json.loads(done.stdout)
    return {
        f"bench {part}: {figure['name']} [{figure['unit']}]": round(figure["value"], 3)
        for part, listed in figures.items()
        for figure in listed
    }


def tests(root: Path) -> Figures:
    """How long the tests of a tree take, without setting up [s]."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    return {"make test [s]": round(time.monotonic() - start), "of them": done.stdout.strip().split("\n")[-1]}


MAPPED = (ROOT / "README.md", ROOT / "rfcs" / "027-the-house.md")
BEGIN, END = "<!-- rooms: python bench/house.py --map -->", "<!-- end of rooms -->"


def layers(source: str) -> tuple[tuple[str, ...], ...]:
    """The rooms from the ground up, as the test of layers has them."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            found: tuple[tuple[str, ...], ...] = ast.literal_eval(node.value)
            return found
    raise LookupError("tests/test_source.py has no LAYERS")


def room_map(root: Path) -> str:
    """A table of the rooms from the top: what each says that it holds, its modules and lines."""
    package = root / "odfchain"
    rows = ["| room, from the top | holds | modules | lines |", "|---|---|---|---|"]
    floor: list[Path] = []
    for names in reversed(layers((root / "tests" / "test_source.py").read_text(encoding="utf-8"))):
        for name in names:
            if not (package / name).is_dir():
                floor.insert(0, package / f"{name}.py")
                continue
            said = ast.get_docstring(ast.parse((package / name / "__init__.py").read_text(encoding="utf-8")))
            assert said, f"{name} does not say what it holds"
            rows.append(map_row(f"`{name}`", said.split("\n\n")[0], sorted((package / name).rglob("*.py"))))
    names_of = ", ".join(f"`{path.stem}`" for path in sorted(floor))
    rows.append(map_row("floor", f"{names_of}: what every room may use.", floor))
    return "\n".join(rows)


def map_row(room: str, said: str, paths: list[Path]) -> str:
    """A line of the table; lines in hundreds, so that not every commit changes the map."""
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    text = " ".join(said.split()).removesuffix(".")
    return f"| {room} | {text} | {len(paths)} | {round(lines, -2):,} |"


def with_map(text: str, rooms: str) -> str:
    """A page with the map between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise LookupError(f"no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{rooms}\n{END}{after}"


def tree_of(commit: str, folder: Path) -> Path:
    """The files of an older commit."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def print_beside(found: dict[str, Figures]) -> None:
    """A table with a column per tree; rows of a figure with parts stand below its name."""
    rows: dict[str, dict[str, object]] = {}
    for tree, figures in found.items():
        for key, value in figures.items():
            parts = value if isinstance(value, dict) else {"": value}
            for part, each in parts.items():
                rows.setdefault(f"{key}: {part}" if part else key, {})[tree] = each
    width = max(map(len, rows))
    print(f"{'':<{width}}", *(f"{tree:>12}" for tree in found))
    for key, values in rows.items():
        print(f"{key:<{width}}", *(f"{shown(values.get(tree)):>12}" for tree in found))


def shown(value: object) -> str:
    """A figure as a cell of the table."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Print the figures, as text or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", nargs="?", help="a commit to measure as well")
    parser.add_argument("--map", action="store_true", help="write the map of rooms and measure nothing")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--bench", metavar="PARTS", help="run these benchmarks too, or `all`")
    parser.add_argument("--tests", action="store_true", help="run the tests too")
    options = parser.parse_args()
    if options.map:
        for path in MAPPED:
            text = with_map(path.read_text(encoding="utf-8"), room_map(ROOT))
            path.write_text(text, encoding="utf-8")
        return

    def measured(root: Path) -> Figures:
        figures = measure(root)
        if options.bench:
            figures |= benchmarks(root, [] if options.bench == "all" else options.bench.split(","))
        return figures | (tests(root) if options.tests else {})

    found = {"now": measured(ROOT)}
    if options.before:
        with tempfile.TemporaryDirectory() as folder:
            found = {options.before: measured(tree_of(options.before, Path(folder))), **found}
    if options.output == "json":
        print(json.dumps(found, indent=2))
        return
    print_beside(found)


if __name__ == "__main__":
    main()
