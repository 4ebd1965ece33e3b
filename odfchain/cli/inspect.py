"""`odfchain inspect`: what a dataset declares, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.output import format_option, print_json, print_records
from odfchain.cli.support.parameters import DATASET, DATASET_AT
from odfchain.cli.support.profile_output import print_profile
from odfchain.cli.support.screen import (
    echo,
    echo_canonical,
    echo_document,
    echo_json_text,
    echo_lines,
    echo_page,
)
from odfchain.cli.support.trees import print_trees
from odfchain.errors import DatasetNotFoundError, PointNotFoundError

if TYPE_CHECKING:
    from odfchain import Definition


@click.group("inspect")
def inspect_command() -> None:
    """Look at what a dataset declares, and where it comes from."""


@inspect_command.command("schema")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@format_option("table", "ddl", "json", "yaml", "ndjson", "csv")
def inspect_schema(dataset: str, output: str) -> None:
    """Show a dataset's schema, system columns included."""
    from odfchain.api.branch_points import at_point
    from odfchain.api.rendering import document_of, dump_json, dump_yaml, format_ddl, type_name

    schema = at_point(open_workspace(), dataset).schema
    if schema is None:
        raise DatasetNotFoundError(f"{dataset} has no schema yet", hint="it gets one with its first data")
    match output:
        case "ddl":
            *lines, last = format_ddl(schema)
            echo_lines([*(f"{line}," for line in lines), last])
        case "json":
            echo_json_text(dump_json(document_of(schema)))
        case "yaml":
            echo_document(dump_yaml(document_of(schema)))
        case _:
            rows = [
                {"name": f.name, "type": type_name(f.type, f.extra), "required": not f.optional}
                for f in schema.fields
            ]
            print_records(rows, ["name", "type", "required"], output)


@inspect_command.command("profile")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@format_option("table", "json", "html")
def inspect_profile(dataset: str, output: str) -> None:
    """Show the profile of the rows in force that was computed here before, or that the owner published.

    Nothing is computed: `profile` does that. It may be the profile of an earlier block with the same rows.
    """
    from odfchain.api.branch_points import at_point

    with open_workspace() as workspace:
        opened = at_point(workspace, dataset)
        found = opened.known_profile()
    if found is None:
        raise PointNotFoundError(
            f"no profile of the rows of {opened.label} is here",
            hint=f"`odfchain profile {dataset}` makes one",
        )
    match output:
        case "json":
            echo_canonical(found.content)
        case "html":
            echo_page(found.to_html())
        case _:
            print_profile(found, opened.label)


_QUERY_CHARACTERS = 2_000


@inspect_command.command("lineage")
@click.argument("datasets", type=DATASET, nargs=-1)
@click.option(
    "--downstream", is_flag=True, help="Show what is made of the datasets, not what they are made of."
)
@format_option("tree", "dot", "html", "json", default="tree")
def inspect_lineage(datasets: tuple[str, ...], downstream: bool, output: str) -> None:
    """Show what datasets (default: all) are made of, over their whole history.

    Datasets that are not here are shown as missing. Inputs that are used no more say until which block they
    were. The dot format is for Graphviz; html is one page with a drawing, and with the profiles of the
    datasets that are named, where they are here already.
    """
    from odfchain.api import lineage_views as views

    workspace = open_workspace()
    graph = workspace.lineage(datasets, downstream=downstream)
    match output:
        case "dot":
            echo_document(views.to_dot(graph))
        case "html":
            echo_page(views.lineage_page(workspace, graph))
        case "json":
            print_json(views.graph_document(graph))
        case _:
            print_trees(views.trees_of(graph))


@inspect_command.command("query")
@click.argument("dataset", type=DATASET)
@format_option("table", "json")
def inspect_query(dataset: str, output: str) -> None:
    """Show every transform or source that a dataset has had, oldest first, and the records it brought."""
    found = open_workspace()[dataset].definitions()
    if output == "json":
        print_json([item.to_document() for item in found])
        return
    for index, item in enumerate(found):
        if index:
            echo()
        rows = [{"field": name, "value": value} for name, value in _definition_lines(item)]
        for row in rows:
            echo(f"{row['field']:<10}", fg="cyan", nl=False)
            echo(f"  {row['value']}".rstrip())


def _definition_lines(item: Definition) -> Iterator[tuple[str, str]]:
    from odfchain.text import one_line, printable

    tree = item.to_document()
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


@inspect_command.command("slices")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@format_option("table", "json", "ndjson", "csv")
def inspect_slices(dataset: str, output: str) -> None:
    """Show the Parquet files that are a dataset's data, oldest first; other files of its folder are not.

    POINT is a branch, a block (its number or hash), or a system time. A slice that a partial copy lacks is
    not here.
    """
    from odfchain.api.named_points import slices_of

    found = [item.to_document() for item in slices_of(open_workspace(), dataset)]
    if output in ("json", "ndjson"):
        print_records(found, [], output)
        return
    for row in found:
        row["start"], row["end"] = row.pop("offsetInterval").values()
    names = ["block", "start", "end", "records", "size", "here", "logicalHash", "physicalHash", "path"]
    if output == "table":
        names = ["block", "start", "end", "records", "size", "here", "path"]
    print_records(found, names, output, right=["block", "start", "end", "records", "size"])
