"""What the house measures: lines, arrows, circles, names, functions, start-up; here, and in an older commit.

python bench/house.py                            this checkout
python bench/house.py b714276                    beside it the tree of an older commit
python bench/house.py b714276 --bench chain,share --tests    and what these benchmarks and `make test` take
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
    """The room of a module: its package below `odfchain`, or the floor."""
    parts = module.split(".")
    if len(parts) == 1 or parts[1] == "conformance":
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
    return {
        "lines": sum(lines.values()),
        "lines of code": sum(
            1
            for path in modules.values()
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip() and not line.strip().startswith("#")
        ),
        "modules": len(modules),
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


def tree_of(commit: str, folder: Path) -> Path:
    """The files of an older commit."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main() -> None:
    """Print the figures, as text or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", nargs="?", help="a commit to measure as well")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--bench", metavar="PARTS", help="run these benchmarks too, or `all`")
    parser.add_argument("--tests", action="store_true", help="run the tests too")
    options = parser.parse_args()

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
    for key in dict.fromkeys(key for figures in found.values() for key in figures):
        for name, figures in found.items():
            if key in figures:
                print(f"{key}{f' ({name})' if len(found) > 1 else ''}: {json.dumps(figures[key])}")


if __name__ == "__main__":
    main()
