"""Commands about signatures and keys: sign, key."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.common import DATASET, confirm, open_workspace
from odfchain.cli.output import format_option, print_records
from odfchain.cli.screen import echo


@click.command("sign")
@click.argument("dataset", type=DATASET)
@format_option("table", "json")
def sign_command(dataset: str, output: str) -> None:
    """Sign the head of a dataset anew, with the time of now.

    Every commit signs the new head where the dataset's private key is, so this is needed only after a
    signature could not be made, was damaged, or shall be younger. The key of a dataset is in the workspace
    that it was made in.
    """
    from odfchain.errors import ObjectCorruptedError, ObjectNotFoundError, StoreError
    from odfchain.trust.problems import Problem

    with open_workspace() as workspace:
        alias = workspace.dataset(dataset).alias
        if workspace.signing.has_key(dataset):
            try:
                before = workspace.signing.status(dataset)
            except (ObjectNotFoundError, ObjectCorruptedError):
                raise
            except StoreError as error:  # a link or a pipe: signing puts a file in its place
                echo(f"warning: {error.message}; a new signature takes its place", err=True)
            else:
                if before.problem in (Problem.OTHER_HEAD, Problem.NEWER_HEAD):
                    confirm(f"{alias}: {before.message}. Both signatures will show that; sign this head too?")
        signed = workspace.signing.sign(dataset)
    row = {
        "dataset": str(alias),
        "sequenceNumber": signed.sequence_number,
        "head": str(signed.head),
        "time": str(signed.time),
        "signer": str(signed.dataset_id),
    }
    columns = [name for name in row if name != "signer"]
    print_records([row], columns, output, titles={"sequenceNumber": "block"}, right=("sequenceNumber",))


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
    from odfchain.trust.signing_keys import create_key_file

    key = create_key_file(file)
    echo(str(key.dataset_id.as_did_key()))


@key_command.command("show")
@click.argument("what", metavar="FILE|DATASET")
@format_option("table", "json")
def show_command(what: str, output: str) -> None:
    """Print the public identities of a key file, or of a dataset of the workspace.

    Nothing private is printed. An existing file is meant before a dataset of the same name; what has a slash
    or ends with .pem is always a file.
    """
    from odfchain.trust.signing_keys import read_key_file

    path = Path(what)
    if path.is_file() or "/" in what or path.suffix == ".pem":
        found, private = read_key_file(path).dataset_id, True
    else:
        with open_workspace() as workspace:
            found, private = workspace.dataset(what).id, workspace.signing.has_key(what)
    row = {"didKey": str(found.as_did_key()), "didOdf": str(found), "privateKeyHere": private}
    titles = {"didKey": "did:key", "didOdf": "did:odf", "privateKeyHere": "private key here"}
    print_records([row], list(row), output, titles=titles)
