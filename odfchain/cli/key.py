"""`odfchain key`: keys that sign."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.screen import echo


@click.group("key")
def key_command() -> None:
    """Keys that sign: made for auditors, and shown for everybody.

    A dataset's own key is made with the dataset.
    """


@key_command.command("create")
@click.argument("file", type=click.Path(path_type=Path))
def create_command(file: Path) -> None:
    """Make a new ed25519 key in FILE and print its public identity, a did:key.

    The file is an unencrypted PEM that only you may read. Whoever has it can sign in your name; an existing
    file is never replaced.
    """
    from odfchain.api.key_files import create_key

    echo(create_key(file).as_did_key())


@key_command.command("show")
@click.argument("what", metavar="FILE|DATASET")
@format_option("table", "json")
def show_command(what: str, output: str) -> None:
    """Print the public identities of a key file, or of a dataset of the workspace.

    Nothing private is printed. An existing file is meant before a dataset of the same name; what has a slash
    or ends with .pem is always a file.
    """
    from odfchain.api.key_files import identity_in

    path = Path(what)
    if path.is_file() or "/" in what or path.suffix == ".pem":
        found, private = identity_in(path), True
    else:
        with open_workspace() as workspace:
            dataset = workspace[what]
            found, private = dataset.id, dataset.has_key
    row = {"didKey": str(found.as_did_key()), "didOdf": str(found), "privateKeyHere": private}
    titles = {"didKey": "did:key", "didOdf": "did:odf", "privateKeyHere": "private key here"}
    print_records([row], list(row), output, titles=titles)
