"""Commands that look at chains: log, inspect, block decode and encode. None of them starts Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.common import DATASET, open_workspace, options
from odfchain.cli.lineage import inspect_lineage, inspect_query
from odfchain.cli.output import format_option, human_size, print_records
from odfchain.cli.screen import echo, echo_document, echo_json_text, echo_lines, standard_input
from odfchain.errors import DatasetNotFoundError, InvalidIdError, UsageError

if TYPE_CHECKING:
    from odfchain.chain.chain import HashedBlock
    from odfchain.model.events import MetadataEvent

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
@click.argument("dataset", type=DATASET)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Show only the newest blocks.")
@format_option("table", "json", "ndjson", "csv", "yaml")
def log_command(dataset: str, limit: int | None, output: str) -> None:
    """Show a dataset's metadata chain, newest block first."""
    entries = open_workspace().dataset(dataset).log(limit)
    match output:
        case "table":
            for entry in entries:
                _print_entry(entry)
        case "ndjson":
            from odfchain.codec.yaml_writer import dump_json

            for entry in entries:
                echo_json_text(dump_json(_entry_tree(entry), indent=None))
        case "json":
            from odfchain.codec.yaml_writer import dump_json

            echo_json_text(dump_json([_entry_tree(entry) for entry in entries]))
        case "csv":
            print_records(map(_entry_record, entries), list(_LOG_COLUMNS), output)
        case "yaml":
            from odfchain.codec.yaml_writer import dump_yaml

            echo_document(dump_yaml([_entry_tree(entry) for entry in entries]))


def _entry_tree(entry: HashedBlock) -> dict[str, Any]:
    from odfchain.codec.tree import to_tree

    return {"blockHash": str(entry.hash), **to_tree(entry.block)}


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
    from odfchain.codec.raw_arrow import schema_of_event
    from odfchain.errors import OdfchainError
    from odfchain.model import events as ev
    from odfchain.model.ddl import format_ddl

    match event:
        case ev.Seed():
            return [f"{event.dataset_kind.value} dataset {event.dataset_id}"]
        case ev.AddData() | ev.ExecuteTransform():
            return _describe_data(event)
        case ev.SetDataSchema():
            try:
                return format_ddl(schema_of_event(event.raw_arrow_schema, event.schema))
            except OdfchainError as error:
                return [f"(unreadable: {error})"]
        case ev.AddPushSource():
            return [f"source {event.source_name!r}: read {event.read.KIND}, merge {_merge(event.merge)}"]
        case ev.SetPollingSource():
            return [f"fetch {event.fetch.KIND}, read {event.read.KIND}, merge {_merge(event.merge)}"]
        case ev.SetInfo():
            return [x for x in (event.description, ", ".join(event.keywords or ())) if x]
        case ev.SetLicense():
            return [f"{event.name} ({event.spdx_id or event.short_name}) {event.website_url}"]
        case ev.SetAttachments():
            return [
                f"{item.path} ({human_size(len(item.content.encode()))})" for item in event.attachments.items
            ]
        case ev.SetTransform():
            inputs = [f"input {i.alias} = {i.dataset_ref}" for i in event.inputs]
            return [*inputs, f"engine {event.transform.engine}"]
        case ev.SetVocab():
            names = ev.DatasetVocabulary.from_event(event).columns
            return ["columns " + ", ".join(names)]
        case ev.DisablePushSource():
            return [f"source {event.source_name!r}"]
    return []


def _merge(merge: Any) -> str:
    key = getattr(merge, "primary_key", None)
    return f"{merge.KIND} by {', '.join(key)}" if key else str(merge.KIND)


def _describe_data(event: Any) -> list[str]:
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
    if state is not None:
        lines.append(f"source {state.source_name!r}: {state.kind} {state.value}")
    inputs = getattr(event, "query_inputs", ())
    return lines + [f"input {item.dataset_id}: {item.record_count:,} records" for item in inputs]


@click.group("inspect")
def inspect_command() -> None:
    """Look at what a dataset declares, and where it comes from."""


inspect_command.add_command(inspect_lineage)
inspect_command.add_command(inspect_query)


@inspect_command.command("schema")
@click.argument("dataset", type=DATASET)
@format_option("table", "ddl", "json", "yaml", "ndjson", "csv")
def inspect_schema(dataset: str, output: str) -> None:
    """Show a dataset's schema, system columns included."""
    from odfchain.codec.tree import to_tree
    from odfchain.codec.yaml_writer import dump_json, dump_yaml
    from odfchain.model.ddl import format_ddl, type_name

    schema = open_workspace().dataset(dataset).schema
    if schema is None:
        raise DatasetNotFoundError(f"{dataset} has no schema yet", hint="it gets one with its first data")
    match output:
        case "ddl":
            *lines, last = format_ddl(schema)
            echo_lines([*(f"{line}," for line in lines), last])
        case "json":
            echo_json_text(dump_json(to_tree(schema)))
        case "yaml":
            echo_document(dump_yaml(to_tree(schema)))
        case _:
            rows = [
                {"name": f.name, "type": type_name(f.type, f.extra), "required": not f.optional}
                for f in schema.fields
            ]
            print_records(rows, ["name", "type", "required"], output)


@click.group("block")
def block_command() -> None:
    """Turn metadata blocks into YAML or JSON and back."""


@block_command.command("decode")
@click.argument("source", metavar="FILE|HASH|-")
@format_option("yaml", "json", default="yaml")
def block_decode(source: str, output: str) -> None:
    """Print a block: a file, the hash of a block in this workspace, or - for standard input.

    Says on standard error when the block's bytes are not the canonical ones for its content, that is, when
    encoding the printed document would give another hash.
    """
    from odfchain.codec.blocks import block_hash, decode_block, encode_block, open_manifest
    from odfchain.codec.manifest import block_document
    from odfchain.codec.yaml_writer import dump_json, dump_yaml

    data = _block_bytes(source)
    version, _ = open_manifest(data)
    block = decode_block(data)
    document = block_document(block, version)
    if output == "json":
        echo_json_text(dump_json(document))
    else:
        echo_document(dump_yaml(document))
    canonical = encode_block(block, version)
    if canonical != data and not options().quiet:
        echo(
            f"note: not in canonical form: the bytes hash to {block_hash(data)}, "
            f"encoding this document again gives {block_hash(canonical)}",
            err=True,
        )


def _block_bytes(source: str) -> bytes:
    from odfchain.limits import LIMITS

    if source == "-":
        return standard_input().read(LIMITS.block_bytes + 1)
    path = Path(source)
    if path.is_file():
        with path.open("rb") as stream:
            return stream.read(LIMITS.block_bytes + 1)
    from odfchain.ids.multihash import Multihash

    try:
        name = Multihash.parse(source)
    except InvalidIdError:
        raise UsageError(f"{source}: no such file, and not a block hash") from None
    for dataset in open_workspace().datasets():
        data = dataset.block_bytes(name)
        if data is not None:
            return data
    raise DatasetNotFoundError(f"no dataset of this workspace has the block {name}")


@block_command.command("encode")
@click.argument("source", metavar="FILE|-")
@click.option(
    "--manifest-version",
    type=click.Choice(["2", "3"]),
    default="3",
    show_default=True,
    help="Manifest version to write; they differ in the alignment of times.",
)
@click.option(
    "--output", "target", type=click.Path(path_type=Path), help="Write the block's bytes here (- for stdout)."
)
def block_encode(source: str, manifest_version: str, target: Path | None) -> None:  # fmt: skip
    """Encode a block given as YAML or JSON and print its multihash.

    The document is a MetadataBlock manifest as `block decode` prints it, or the block alone.
    """
    from odfchain.codec.blocks import block_hash, encode_block
    from odfchain.codec.manifest import read_block

    if source == "-":
        text, name = standard_input().read(), "<stdin>"
    else:
        try:
            text, name = Path(source).read_bytes(), source
        except OSError as error:
            raise UsageError(f"{source}: {error.strerror}") from None
    _, block = read_block(text, source=name)
    data = encode_block(block, int(manifest_version))
    if target is not None and str(target) == "-":
        if sys.stdout.isatty():
            raise UsageError(
                "a block is not text: it would upset the terminal", hint="pipe it on, or name a file"
            )
        sys.stdout.buffer.write(data)
        return
    if target is not None:
        try:
            target.write_bytes(data)
        except OSError as error:
            raise UsageError(f"{target}: {error.strerror}") from None
    echo(str(block_hash(data)))
