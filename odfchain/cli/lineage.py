"""Commands that tell where data comes from: inspect lineage, inspect query, blame. None starts Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.common import DATASET, open_workspace
from odfchain.cli.output import format_option, plain, print_records
from odfchain.cli.screen import console, echo, echo_document, echo_json, echo_page, styled
from odfchain.errors import ObjectCorruptedError

if TYPE_CHECKING:
    from rich.tree import Tree

    from odfchain.lineage.graph_document import Twig
    from odfchain.lineage.queries import Definition

_QUERY_CHARACTERS = 2_000
_WIDE = 10_000
"""Where lines are not wrapped: what is piped on is cut and folded by whoever reads it."""


@click.command("lineage")
@click.argument("datasets", type=DATASET, nargs=-1)
@click.option(
    "--downstream", is_flag=True, help="Show what is made of the datasets, not what they are made of."
)
@format_option("tree", "dot", "html", "json", default="tree")
def inspect_lineage(datasets: tuple[str, ...], downstream: bool, output: str) -> None:
    """Show what datasets (default: all) are made of, over their whole history.

    Datasets that are not here are shown as missing. Inputs that are used no more say until which block they
    were. The dot format is for Graphviz; html is one page with a drawing.
    """
    graph = open_workspace().lineage.graph(datasets, downstream=downstream)
    match output:
        case "dot":
            from odfchain.lineage.render_dot import to_dot

            echo_document(to_dot(graph))
        case "html":
            from odfchain.lineage.render_html import to_html

            echo_page(to_html(graph))
        case "json":
            from odfchain.lineage.graph_document import graph_document

            _print_json(graph_document(graph))
        case _:
            from odfchain.lineage.graph_document import twigs_of

            print_twigs(twigs_of(graph))


@click.command("query")
@click.argument("dataset", type=DATASET)
@format_option("table", "json")
def inspect_query(dataset: str, output: str) -> None:
    """Show every transform or source that a dataset has had, oldest first, and the records it brought."""
    from odfchain.lineage.queries import definition_document

    found = open_workspace().lineage.definitions(dataset)
    if output == "json":
        _print_json([definition_document(item) for item in found])
        return
    for index, item in enumerate(found):
        if index:
            echo()
        rows = [{"field": name, "value": value} for name, value in _definition_lines(item)]
        for row in rows:
            echo(f"{row['field']:<10}", fg="cyan", nl=False)
            echo(f"  {row['value']}".rstrip())


def _definition_lines(item: Definition) -> Iterator[tuple[str, str]]:
    from odfchain.lineage.queries import definition_document
    from odfchain.text import one_line, printable

    tree = definition_document(item)
    yield "block", f"#{item.sequence_number} {item.block}"
    yield "event", item.event.KIND
    yield "time", str(item.system_time)
    until = "to now" if item.in_force else f"to {item.last_block}"
    yield "in force", f"blocks {item.sequence_number} {until}"
    records = f"{item.records:,}"
    if item.first_offset is not None:
        records += f" ({item.first_offset:,} to {item.last_offset:,})"
    yield "records", records + (", of all sources in these blocks" if item.shared else "")
    if source := tree["source"]:
        name = source["fetch"] or source["name"]
        yield "source", one_line(f"{source['kind']} {name}, read {source['read']}, merge {source['merge']}")
    if item.transform is not None:
        yield "engine", one_line(f"{item.transform.engine} {item.transform.version or ''}")
    for found in item.inputs:
        name = found.name or "missing"
        yield "input", one_line(f"{found.alias or found.id}: {name} ({found.id})")
    for step in tree["steps"]:
        yield "query", f"{one_line(step['alias'])}:" if step["alias"] else ""
        for line in step["query"].split("\n"):
            text = line.removesuffix("\r").expandtabs(4)
            yield "", f"  {printable(text, _QUERY_CHARACTERS)}"


@click.command("blame")
@click.argument("dataset", type=DATASET)
@click.option(
    "--offset", type=click.IntRange(min=0), required=True, metavar="N", help="The record, by its offset."
)
@click.option("--to", "last", type=click.IntRange(min=0), metavar="M", help="The last record, of several.")
@click.option("-r", "--recursive", is_flag=True, help="Go on through all inputs down to the roots.")
@format_option("table", "json", "tree", default="tree")
def blame_command(dataset: str, offset: int, last: int | None, recursive: bool, output: str) -> None:
    """Show where a record comes from: slice, block, source or transform, and the input records it is made of.

    What is missing or cannot be known is said. Reading a damaged slice ends with exit code 6.
    """
    from odfchain.lineage.blame_document import blame_document, blame_twig

    blame = open_workspace().lineage.blame(dataset, offset, last, recursive=recursive)
    match output:
        case "json":
            _print_json(blame_document(blame))
        case "table":
            print_records(_flat([blame_twig(blame)]), ["level", "what"], "table", right=["level"])
        case _:
            print_twigs([blame_twig(blame)])
    if blame.damage is not None:
        raise ObjectCorruptedError(
            str(blame.damage), hint=f"`odfchain verify {dataset}` says what else is damaged"
        )


def _print_json(tree: Any) -> None:
    echo_json(tree, default=plain)


def _flat(twigs: Iterable[Twig], level: int = 0) -> Iterator[dict[str, Any]]:
    for twig in twigs:
        yield {"level": level, "what": twig.text}
        yield from _flat(twig.below, level + 1)


def print_twigs(twigs: Iterable[Twig]) -> None:
    """Print indented lines as a tree; nothing in a text acts or is read as markup."""
    import sys

    from rich.tree import Tree

    target = console(width=None if sys.stdout.isatty() else _WIDE)
    for twig in twigs:
        tree = Tree(styled(twig.text, twig.style or "bold"))
        _grow(tree, twig)
        target.print(tree)


def _grow(tree: Tree, twig: Twig) -> None:
    for item in twig.below:
        _grow(tree.add(styled(item.text, item.style)), item)
