"""`odfchain inspect`: what a dataset declares, and where it comes from."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain import errors
from odfchain.api.branching import at_point
from odfchain.chain.statements import read_key_file
from odfchain.cli import parameters as cli
from odfchain.cli import screen
from odfchain.cli.context import open_workspace, opened, report_error, say
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.limits import LIMITS
from odfchain.odf.block_codec import block_hash, decode_block, encode_block, open_manifest
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.schema import format_ddl, type_name
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import to_tree
from odfchain.storage.fsio import no_file
from odfchain.text import counted, human_size, length, one_line, percent, printable
from odfchain.workspace.options import ProfileOptions

if TYPE_CHECKING:
    from rich.tree import Tree

    from odfchain import Manifest, Profile, Workspace
    from odfchain.results import Definition, Graph, TextTree


@cli.group("inspect")
def inspect_command() -> None:
    """Show schema, lineage, attachments or slices of a dataset."""


@cli.command("schema", inspect_command)
def inspect_schema(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"),
    output: str = cli.formats("table", "ddl", "json", "yaml", "ndjson", "csv"),
) -> None:
    """Show a dataset's schema, with system columns."""
    if (schema := opened(dataset).schema) is None:
        raise errors.DatasetNotFoundError(
            f"{dataset} has no schema yet", hint="it gets one with its first data"
        )
    match output:
        case "ddl":
            *lines, last = format_ddl(schema)
            screen.echo_lines([*(f"{line}," for line in lines), last])
        case "json" | "yaml":
            screen.echo_tree(to_tree(schema), output)
        case _:
            rows = [
                {"name": f.name, "type": type_name(f.type, f.extra), "required": not f.optional}
                for f in schema.fields
            ]
            screen.print_records(rows, ["name", "type", "required"], output)


@cli.command("profile", inspect_command)
def inspect_profile(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"),
    output: str = cli.formats("table", "json", "html"),
) -> None:
    """Show the profile that is stored for the rows in force.

    Nothing is computed: `odfchain profile` does that. It may be of an earlier block with the same rows.
    """
    found_at = opened(dataset)
    if (found := found_at.known_profile()) is None:
        raise errors.PointNotFoundError(
            f"no profile of the rows of {found_at.label} is here",
            hint=f"`odfchain profile {dataset}` makes one",
        )
    _print_profile(found, found_at.label, output)


_QUERY_CHARACTERS = 2_000
_PROFILES = 20


@cli.command("lineage", inspect_command)
def inspect_lineage(
    datasets: tuple[str, ...] = cli.argument(cli.DATASET),
    downstream: bool = cli.option("Show datasets that are made of these, in place of the inputs."),
    output: str = cli.formats("tree", "dot", "html", "json", default="tree"),
) -> None:
    """Show the inputs of datasets, over their whole history.

    Without names all datasets are shown. A dataset that is not here is shown as missing. A former input is
    shown with the last block that used it. The dot format is for Graphviz. An html page has a drawing, and
    stored profiles of the datasets that are named.
    """
    from odfchain.audit.drawings import GraphDrawing

    workspace = open_workspace()
    graph = workspace.lineage(datasets, downstream=downstream)
    match output:
        case "dot":
            screen.echo_document(GraphDrawing(graph).to_dot())
        case "html":
            screen.echo_page(GraphDrawing(graph).to_html(_known_profiles(workspace, graph)))
        case "json":
            screen.echo_json(graph.to_document())
        case _:
            print_trees(graph.to_trees())


def _known_profiles(workspace: Workspace, graph: Graph) -> dict[str, Mapping[str, Any]]:
    from odfchain.audit.lineage import NodeState

    present = [key for key in list(graph.roots)[:_PROFILES] if graph.nodes[key].state is NodeState.PRESENT]
    found = {key: workspace[graph.nodes[key].id].known_profile() for key in present}
    return {key: profile.document for key, profile in found.items() if profile is not None}


@cli.command("query", inspect_command)
def inspect_query(
    dataset: str = cli.argument(cli.DATASET), output: str = cli.formats("table", "json")
) -> None:
    """Show the transforms and sources of a dataset, oldest first."""
    found = open_workspace()[dataset].definitions()
    if output == "json":
        screen.echo_json([item.to_document() for item in found])
        return
    for index, item in enumerate(found):
        if index:
            screen.echo()
        for name, value in _definition_lines(item):
            screen.echo(f"{name:<10}", fg="cyan", nl=False)
            screen.echo(f"  {value}".rstrip())


def _definition_lines(item: Definition) -> Iterator[tuple[str, str]]:
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


@cli.command("head", inspect_command)
def inspect_head(
    dataset: str = cli.argument(cli.DATASET), output: str = cli.formats("table", "json")
) -> None:
    """Show who signed and cosigned the head, and when."""
    found = open_workspace()[dataset]
    signature, now = found.signature(), Timestamp.now()

    def age(time: Timestamp | None) -> int | None:
        return None if time is None else (now.epoch_ns - time.epoch_ns) // 1_000_000_000

    document = {
        "dataset": dataset,
        "head": str(found.head),
        **screen.record(signature, "status", "problem:message"),
        "owner": str(found.id),
        "authority": str(found.keys().authority),
        **screen.record(signature, "delegate:delegate.key", "until:delegate.not_after", "signed:signed.time"),
        "age": age(signature.signed.time if signature.signed is not None else None),
        "witnesses": [{"name": n, "time": str(at), "age": age(at)} for n, at in found.cosigned().items()],
    }
    if output == "json":
        screen.echo_json(document)
        return
    for name, value in document.items():
        lines = [f"{each['name']}, {each['time']}" for each in value] if isinstance(value, list) else [value]
        shown = length(value) if isinstance(value, int) else "; ".join(str(each or "-") for each in lines)
        screen.echo(f"{name:12}{shown or '-'}")


@cli.command("slices", inspect_command)
def inspect_slices(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"),
    output: str = cli.formats("table", "json", "ndjson", "csv"),
) -> None:
    """Show the Parquet files of a dataset, oldest first.

    These files are the data. Other files of its folder are not. POINT is a branch, a block (its number or
    hash), or a system time. A slice that a partial copy lacks is not here.
    """
    from odfchain.api.scan import pinned

    pin = pinned(open_workspace(), dataset)
    found: list[dict[str, Any]] = [
        {
            "block": ref.sequence_number,
            "offsetInterval": screen.record(ref.slice.offset_interval, "start", "end"),
            **screen.record(ref.slice, "records:offset_interval.count", "size"),
            **screen.record(ref.slice, "logical_hash", "physical_hash"),
            "path": str(pin.dataset.data.path(ref.slice.physical_hash).resolve()),
            "here": pin.dataset.data.contains(ref.slice.physical_hash),
        }
        for ref in pin.state.slices()
    ]
    if output in ("json", "ndjson"):
        screen.print_records(found, [], output)
        return
    for row in found:
        row["start"], row["end"] = row.pop("offsetInterval").values()
    hashes = [] if output == "table" else ["logicalHash", "physicalHash"]
    names = ["block", "start", "end", "records", "size", "here", *hashes, "path"]
    screen.print_records(found, names, output, right=names[:5])


@cli.command("attachments", inspect_command)
def inspect_attachments(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"), output: str = cli.formats()
) -> None:
    """Show the attachments in force: path and size of each.

    `odfchain export DATASET --attachments --to FOLDER` writes them as files.
    """
    found = opened(dataset).attachments()
    rows = [{"path": path, "size": len(text.encode())} for path, text in found.items()]
    screen.print_records(rows, ["path", "size"], output, shown={"size": human_size}, right=["size"])
    if not rows:
        say(f"{dataset} has no attachments; `odfchain add --update MANIFEST --attach FILE` adds one")


@cli.command("profile")
def profile_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"),
    chosen: dict[str, Any] = cli.keywords(ProfileOptions),
    write: bool = cli.option("Store it with the dataset, signed where the dataset's key is here."),
    key: Path | None = cli.option("Store it, signed with the key in a file.", "FILE"),
    output: str = cli.formats("table", "json", "html"),
) -> None:
    """Show types, nulls, distributions and common values.

    The profile describes the rows in force. The same rows give the same bytes on every machine. JSON is its
    one text, and html is a page with pictures. No Java starts. Slices that were profiled before are not read
    again.
    """
    chosen["tags"] = cli.key_values(chosen.get("tags", ()), "--tag KEY=VALUE")
    with open_workspace() as workspace, TerminalProgress() as progress:
        found_at = at_point(workspace, dataset)
        signer = None if key is None else read_key_file(key).dataset_id
        # as the dataset itself, or as an auditor
        created_by = None if signer is None else str(signer if signer == found_at.id else signer.as_did_key())
        found = found_at.profile(created_by=created_by, progress=progress, **chosen)
        written = found_at.write_profile(found, key=key) if write or key is not None else None
    if written is not None:
        signed = " and signed" if written.published else ", not signed: its key is not here"
        say(f"profile {written.object} is stored{signed}")
    _print_profile(found, found_at.label, output)


# `odfchain manifest`: the files of a dataset at a block.

_SHOWN = 10
_DAY = len("2026-01-01")


@cli.command("manifest")
def manifest_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"),
    where: str | None = cli.option("Mark the files that may hold a row for which this is true.", "SQL"),
    write: bool = cli.option("Store it, and sign it with the dataset's key."),
    key_file: Path | None = cli.option(
        "With --write: sign it with the key in this file (`odfchain key create`).", "--key"
    ),
    output: str = cli.formats("table", "json"),
) -> None:
    """Show the files of a dataset at a block.

    The manifest lists the slices and the statistics in their footers. It follows from the chain and the
    footers alone. So anybody makes the same bytes, for any block, at any time. JSON is its one text, in the
    form of Lode's manifest.

    With --where, the table marks files that may hold such a row. Readers skip the others. The condition is
    SQL of columns and literals (= <> < <= > >= IN BETWEEN IS NULL LIKE 'x%' AND OR NOT). Every other
    condition skips nothing.

    With --write the manifest is kept with the dataset and travels with it. A signed line names it, so a
    reader finds it without the chain. A push does that for the head.
    """
    if where is not None and output == "json":
        raise errors.UsageError("the JSON text is the whole manifest: --where is for the table")
    if key_file is not None and not write:
        raise errors.UsageError("--key is the key that --write signs with")
    with open_workspace() as workspace, TerminalProgress().later("Reading the footers of the slices"):
        found_at = at_point(workspace, dataset)
        found = found_at.manifest()
        written = found_at.write_manifest(key_file) if write else None
    if output == "json":
        screen.echo_json_text(found.content)
    else:
        _print(found, where)
    if found.signed:
        say("note: not all slices are here: this is the manifest that the owner signed")
    if where is not None and not found.understands(where):
        say("note: nothing is skipped: no part of the condition compares a column with a literal")
    if written is not None and written.line is not None:
        say(f"published: manifests/{written.object}, signed by {written.line.signer}")
    elif written is not None:
        say(f"note: written, not published: manifests/{written.object}; no key is here (--key FILE)")


def _print(found: Manifest, where: str | None) -> None:
    document = found.document
    name, block = document["snapshot_id"], document["odf"]["sequence_number"]
    kept = None if where is None else {file["path"] for file in found.prune(where)}
    screen.echo(
        f"snapshot {name[:_SHOWN]}…{name[-4:]}  block {block}  {counted(len(found.files), 'slice')}  "
        f"{counted(found.row_count, 'record')}"
    )
    names = ["slice", "records", "size", document["odf"]["columns"]["event_time"]]
    rows = [_line(found, file) for file in found.files]
    if kept is not None:
        lines = zip(rows, found.files, strict=True)
        rows = [[*row, "yes" if file["path"] in kept else "no"] for row, file in lines]
    screen.echo_table(names + ["may match"] * (kept is not None), rows, right={1, 2})


def _line(found: Manifest, file: Mapping[str, Any]) -> list[str]:
    folder, _, name = file["path"].partition("/")
    times = found.times_of(file)
    return [
        f"{folder}/{name[:_SHOWN]}…",
        f"{file['stats']['row_count']:,}",
        human_size(file["size_bytes"]),
        "" if times is None else f"{times[0][:_DAY]} … {times[1][:_DAY]}",
    ]


@cli.command("blame")
def blame_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"),
    key: tuple[str, ...] = cli.argument(metavar="[COL=VALUE…]"),
    offset: int | None = cli.option("The record, by its offset.", "N", least=0),
    last: int | None = cli.option("The last record, of several.", "--to", "M", least=0),
    recursive: bool = cli.option("Go on through all inputs down to the roots.", "-r"),
    output: str = cli.formats("table", "json", "tree", default="tree"),
) -> None:
    """Show the origin of a record.

    The origin is a slice, a block, a source or transform, and the input records. The record is named by its
    offset, or by its primary key, column by column, like icao=07FA. A key means its newest record. Missing
    and unknown parts are named as such. A damaged slice ends the command with exit code 6.
    """
    if bool(key) == (offset is not None) or (key and last is not None):
        raise errors.UsageError("name the record: --offset N [--to M], or its primary key like iata=ZRH")
    found = opened(dataset)
    with TerminalProgress().later("Looking for the inputs of the record"):
        if offset is None:
            if not (newest := found.history(cli.key_values(key), limit=1)):
                raise errors.UsageError("no row with this key was ever recorded there")
            offset = newest[0].offset
        blame = found.blame(offset, last, recursive=recursive)
    match output:
        case "json":
            screen.echo_json(blame.to_document())
        case "table":
            screen.print_records(_flat([blame.to_tree()]), ["level", "what"], "table", right=["level"])
        case _:
            print_trees([blame.to_tree()])
    if blame.damage is not None:
        raise errors.ObjectCorruptedError(
            str(blame.damage), hint=f"`odfchain verify {dataset}` says what else is damaged"
        )


def _flat(trees: Iterable[TextTree], level: int = 0) -> Iterator[dict[str, Any]]:
    for branch in trees:
        yield {"level": level, "what": branch.text}
        yield from _flat(branch.below, level + 1)


@cli.group("block")
def block_command() -> None:
    """Turn metadata blocks into YAML or JSON and back."""


@cli.command("decode", block_command)
def block_decode(
    source: str = cli.argument(metavar="FILE|HASH|-"),
    output: str = cli.formats("yaml", "json", default="yaml"),
) -> None:
    """Print a block as YAML or JSON.

    The block is a file, the hash of a block in this workspace, or - for standard input. A block may have
    bytes that are not the canonical ones. The encoding of the printed document then has another hash, and a
    note on standard error says so.
    """
    from odfchain.odf.manifests import block_document

    data = _block_bytes(source)
    try:
        version, _ = open_manifest(data)
        block = decode_block(data)
    except errors.CodecError as error:
        raise errors.CodecError(f"{source}: not a metadata block: {error}") from None
    document = block_document(block, version)
    found, canonical = block_hash(data), block_hash(encode_block(block, version))
    screen.echo_tree(document, output)
    if canonical != found:
        say(
            f"note: not in canonical form: the bytes hash to {found}, "
            f"encoding this document again gives {canonical}"
        )


def _block_bytes(source: str) -> bytes:
    if source == "-":
        return screen.standard_input().read(LIMITS.block_bytes + 1)
    path = Path(source)
    if path.is_file():
        with path.open("rb") as stream:
            return stream.read(LIMITS.block_bytes + 1)
    from odfchain import Multihash

    try:
        name = Multihash.parse(source)
    except errors.InvalidIdError:
        raise errors.UsageError(f"{source}: no such file, and not a block hash") from None
    for dataset in open_workspace():
        if (data := dataset.block_bytes(name)) is not None:
            return data
    raise errors.DatasetNotFoundError(f"no dataset of this workspace has the block {name}")


@cli.command("encode", block_command)
def block_encode(
    source: str = cli.argument(metavar="FILE|-"),
    manifest_version: str = cli.option(
        "The manifest version; versions differ in the alignment of times.", choices=["2", "3"], default="3"
    ),
    target: Path | None = cli.option("Write the block's bytes here (- for stdout).", "--output"),
) -> None:
    """Encode a block and print its multihash.

    The document is YAML or JSON: a MetadataBlock manifest as `block decode` prints it, or the block alone.
    """
    from odfchain.odf.manifests import read_block

    if source == "-":
        text, name = screen.standard_input().read(), "<stdin>"
    else:
        try:
            text, name = Path(source).read_bytes(), source
        except OSError:
            raise no_file(source) from None
    data = encode_block(read_block(text, source=name)[1], int(manifest_version))
    if target is not None and str(target) == "-":
        if sys.stdout.isatty():
            raise errors.UsageError(
                "a block is not text: it would upset the terminal", hint="pipe it on, or name a file"
            )
        sys.stdout.buffer.write(data)
        return
    if target is not None:
        try:
            target.write_bytes(data)
        except OSError as error:
            raise errors.UsageError(f"{target}: {error.strerror}") from None
    screen.echo(block_hash(data))


@cli.command("digest")
def digest_command(
    files: tuple[Path, ...] = cli.argument(
        click.Path(path_type=Path), required=True, metavar="FILE.parquet…"
    ),
    output: str = cli.formats(),
) -> int:
    """Print the physical and the logical hash of Parquet files. No workspace is needed."""
    from odfchain.slices.reader import hash_parquet

    columns = ["file", "physicalHash", "logicalHash", "size", "records"]
    rows, code = list[dict[str, Any]](), 0
    for file in files:
        logical, records = None, None
        with TerminalProgress().later(f"Hashing {file.name}") as progress:
            try:
                physical, size = hash_file(file)
            except OSError:
                raise no_file(file) from None
            try:
                logical, records = hash_parquet(file)
            except errors.OdfchainError as error:  # another file than Parquet has a physical hash, too
                progress.stop()
                report_error(error)
                code = error.exit_code
        values = file, physical, logical, size, records
        rows.append(dict(zip(columns, values, strict=True)))
    if output == "table":
        for row in rows:
            if len(rows) > 1:
                screen.echo(row["file"])
            screen.echo(f"physical  {row['physicalHash']}")
            screen.echo(f"logical   {row['logicalHash'] or '-'}")
    else:
        screen.print_records(rows, columns, output)
    return code


# Indented lines as a tree on the terminal.

# Width without wrapping: piped output is cut and folded by its reader.
_WIDE = 10_000


def print_trees(trees: Iterable[TextTree]) -> None:
    """Print indented lines as a tree; nothing in a text acts or is read as markup."""
    from rich.tree import Tree

    target = screen.console(width=None if sys.stdout.isatty() else _WIDE)
    for branch in trees:
        tree = Tree(screen.styled(branch.text, branch.style or "bold"))
        _grow(tree, branch)
        target.print(tree)


def _grow(tree: Tree, branch: TextTree) -> None:
    for item in branch.below:
        _grow(tree.add(screen.styled(item.text, item.style)), item)


# Profiles as tables: a line for each column, with its histogram in bars.


def _print_profile(found: Profile, label: str, output: str) -> None:
    if output == "json":
        screen.echo_json_text(found.content)
        return
    if output == "html":
        screen.echo_page(found.to_html())
        return
    from odfchain.profiles.pages import line_of

    document = found.document
    lines = [line_of(column, document["column_stats"][column["name"]]) for column in document["columns"]]
    # bars come first: they are seen where the line ends, too
    rows = [[*about, f"{bars} {values}".strip()] for *about, values, bars in lines]
    screen.echo_table(["column", "type", "nulls", "distinct", "values"], rows, right={2, 3})
    number = document["odf"]["sequence_number"]
    say(
        f"{label}, block {number}: {counted(found.num_rows, 'row')}, "
        f"{percent(document['duplicate_row_fraction'])} repeat another one"
    )
