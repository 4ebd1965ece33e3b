"""`odfchain log`: a dataset's metadata chain, newest block first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branch_points import at_point
from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.output import format_option, human_size, print_records
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.screen import echo, echo_document, echo_json_text
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Dataset, HashedBlock, MetadataEvent

_COLOURS = {
    "AddData": "green",
    "ExecuteTransform": "green",
    "Seed": "magenta",
    "SetDataSchema": "yellow",
    "SetPollingSource": "yellow",
    "AddPushSource": "yellow",
    "SetTransform": "yellow",
}


@click.command("log")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Show only the newest blocks.")
@click.option("--graph", is_flag=True, help="Draw the blocks of the head and of all branches, one a line.")
@format_option("table", "json", "ndjson", "csv", "yaml")
def log_command(dataset: str, limit: int | None, graph: bool, output: str) -> None:
    """Show a dataset's metadata chain, newest block first.

    DATASET@POINT begins at a branch, at a block (its number or hash), or at a time.
    """
    if graph:
        if output != "table" or "@" in dataset:
            raise UsageError("--graph draws the whole dataset: without a point, and not as data")
        _draw(open_workspace()[dataset], limit)
        return
    entries = at_point(open_workspace(), dataset).log(limit)
    match output:
        case "table":
            for entry in entries:
                _print_entry(entry)
        case "ndjson":
            from odfchain.api.rendering import dump_json

            for entry in entries:
                echo_json_text(dump_json(entry.to_document(), indent=None))
        case "json":
            from odfchain.api.rendering import dump_json

            echo_json_text(dump_json([entry.to_document() for entry in entries]))
        case "csv":
            print_records(map(_entry_record, entries), list(_LOG_COLUMNS), output)
        case "yaml":
            from odfchain.api.rendering import dump_yaml

            echo_document(dump_yaml([entry.to_document() for entry in entries]))


def _draw(dataset: Dataset, limit: int | None) -> None:
    for drawn in dataset.log_graph(limit):
        block = drawn.block.block
        for line in drawn.before:
            echo(line)
        echo(f"{drawn.line} ", nl=False)
        echo(f"#{block.sequence_number} ", fg="cyan", nl=False)
        echo(f"{str(drawn.block.hash)[:12]}  {block.system_time}  ", nl=False)
        echo(block.event.KIND, fg=_COLOURS.get(block.event.KIND), nl=False)
        if drawn.references:
            echo(f"  ({', '.join(drawn.references)})", fg="yellow", nl=False)
        echo(f"  {drawn.note}" if drawn.note else "")
        for line in drawn.after:
            echo(line)


_LOG_COLUMNS = (
    "sequenceNumber", "blockHash", "prevBlockHash", "systemTime", "kind",
    "firstOffset", "lastOffset", "size", "watermark",
)  # fmt: skip


def _entry_record(entry: HashedBlock) -> dict[str, Any]:
    block = entry.block
    data = getattr(block.event, "new_data", None)
    values = (
        block.sequence_number, entry.hash, block.prev_block_hash, block.system_time, block.event.KIND,
        data and data.offset_interval.start, data and data.offset_interval.end, data and data.size,
        getattr(block.event, "new_watermark", None),
    )  # fmt: skip
    return dict(zip(_LOG_COLUMNS, values, strict=True))


def _print_entry(entry: HashedBlock) -> None:
    block = entry.block
    kind = block.event.KIND
    echo(f"block {entry.hash}", fg="cyan", nl=False)
    echo(f"  #{block.sequence_number}")
    echo(f"  {block.system_time}  ", nl=False)
    echo(kind, fg=_COLOURS.get(kind), bold=True)
    for line in describe_event(block.event):
        echo(f"    {line}")
    echo()


def describe_event(event: MetadataEvent) -> list[str]:
    """What an event says, in a few lines for people."""
    import odfchain as odf
    from odfchain.api.rendering import format_ddl, schema_of

    match event:
        case odf.Seed():
            return [f"{event.dataset_kind.value} dataset {event.dataset_id}"]
        case odf.AddData() | odf.ExecuteTransform():
            return _describe_data(event)
        case odf.SetDataSchema():
            try:
                return format_ddl(schema_of(event))
            except odf.OdfchainError as error:
                return [f"(unreadable: {error})"]
        case odf.AddPushSource():
            return [f"source {event.source_name!r}: read {event.read.KIND}, merge {_merge(event.merge)}"]
        case odf.SetPollingSource():
            return [f"fetch {event.fetch.KIND}, read {event.read.KIND}, merge {_merge(event.merge)}"]
        case odf.SetInfo():
            return [x for x in (event.description, ", ".join(event.keywords or ())) if x]
        case odf.SetLicense():
            return [f"{event.name} ({event.spdx_id or event.short_name}) {event.website_url}"]
        case odf.SetAttachments():
            return [
                f"{item.path} ({human_size(len(item.content.encode()))})" for item in event.attachments.items
            ]
        case odf.SetTransform():
            inputs = [f"input {i.alias} = {i.dataset_ref}" for i in event.inputs]
            return [*inputs, f"engine {event.transform.engine}"]
        case odf.SetVocab():
            names = odf.DatasetVocabulary.from_event(event).columns
            return ["columns " + ", ".join(names)]
        case odf.DisablePushSource():
            return [f"source {event.source_name!r}"]
    return []


def _merge(merge: Any) -> str:
    key = getattr(merge, "primary_key", None)
    return f"{merge.KIND} by {', '.join(key)}" if key else str(merge.KIND)


def _describe_data(event: Any) -> list[str]:
    from odfchain.api.rendering import merged_text

    lines = []
    if event.new_data is not None:
        data = event.new_data
        interval = data.offset_interval
        lines.append(
            f"records {interval.start:,} to {interval.end:,} ({interval.count:,}), {human_size(data.size)}"
        )
        lines.append(f"logical  {data.logical_hash}")
        lines.append(f"physical {data.physical_hash}")
    if event.new_checkpoint is not None:
        lines.append(f"checkpoint {event.new_checkpoint.physical_hash}")
    if event.new_watermark is not None:
        lines.append(f"watermark {event.new_watermark}")
    state = getattr(event, "new_source_state", None)
    merged = merged_text(event)
    if merged is not None:
        lines.append(merged)
    elif state is not None:
        lines.append(f"source {state.source_name!r}: {state.kind} {state.value}")
    inputs = getattr(event, "query_inputs", ())
    return lines + [f"input {item.dataset_id}: {item.record_count:,} records" for item in inputs]
