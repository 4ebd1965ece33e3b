"""`odfchain block`: metadata blocks into YAML or JSON and back."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import format_option
from odfchain.cli.support.screen import echo, echo_document, echo_json_text, standard_input
from odfchain.errors import DatasetNotFoundError, InvalidIdError, UsageError


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
    from odfchain.api.block_file import BlockFile
    from odfchain.api.rendering import dump_json, dump_yaml

    block = BlockFile.decode(_block_bytes(source))
    if output == "json":
        echo_json_text(dump_json(block.document))
    else:
        echo_document(dump_yaml(block.document))
    if block.canonical_hash != block.hash:
        say(
            f"note: not in canonical form: the bytes hash to {block.hash}, "
            f"encoding this document again gives {block.canonical_hash}"
        )


def _block_bytes(source: str) -> bytes:
    from odfchain.limits import LIMITS

    if source == "-":
        return standard_input().read(LIMITS.block_bytes + 1)
    path = Path(source)
    if path.is_file():
        with path.open("rb") as stream:
            return stream.read(LIMITS.block_bytes + 1)
    from odfchain import Multihash

    try:
        name = Multihash.parse(source)
    except InvalidIdError:
        raise UsageError(f"{source}: no such file, and not a block hash") from None
    for dataset in open_workspace():
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
    from odfchain.api.block_file import encode

    if source == "-":
        text, name = standard_input().read(), "<stdin>"
    else:
        try:
            text, name = Path(source).read_bytes(), source
        except OSError as error:
            raise UsageError(f"{source}: {error.strerror}") from None
    found, data = encode(text, source=name, version=int(manifest_version))
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
    echo(found)
