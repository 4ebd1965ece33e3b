"""`odfchain new`: a commented manifest to start from."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.context import say
from odfchain.cli.support.screen import echo_document
from odfchain.errors import UsageError


@click.command("new")
@click.argument("name")
@click.option("--root", "kind", flag_value="root", help="Data comes from a source.")
@click.option("--derivative", "kind", flag_value="derivative", help="Data is computed from other datasets.")
@click.option("--assets", "kind", flag_value="assets", help="A lock of the files that STAC Items name.")
@click.option(
    "--ledger", is_flag=True, help="With --assets: the objects never change, and none is withdrawn."
)
@click.option(
    "--for",
    "node",
    type=click.Choice(["kamu"]),
    help="Say how to make it with offsets and operations as this node writes them, so that it can append.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="File to write (default: NAME.yaml; - for stdout)."
)
def new_command(
    name: str, kind: str | None, ledger: bool, node: str | None, output: Path | None
) -> None:  # fmt: skip
    """Write a commented manifest to start from; it is valid as it is."""
    if kind is None:
        raise UsageError("say what kind of dataset: --root, --derivative or --assets")
    if ledger and kind != "assets":
        raise UsageError("--ledger is for locks of assets: --assets --ledger")
    from odfchain import DatasetAlias
    from odfchain.api.templates import manifest_template

    alias = DatasetAlias.parse(name)
    more = "--system-columns reference " if node is not None else ""
    # no field of a manifest says it: it is chosen when the dataset is made
    first = f"For {node}: make it with `odfchain add {more.strip()}`." if more else ""
    text = manifest_template(alias, kind, first=first, merge="Ledger" if ledger else "Snapshot")
    if output is not None and str(output) == "-":
        echo_document(text)
        return
    path = output or Path(f"{str(alias).rpartition('/')[2]}.yaml")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already", hint="choose another file with --output") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    say(f"wrote {path}; edit it, then: odfchain add {more}{path}")
