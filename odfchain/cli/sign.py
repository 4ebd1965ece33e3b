"""`odfchain sign`: the head of a dataset is signed anew."""

from __future__ import annotations

import click

from odfchain.api.branch_points import on_branch
from odfchain.cli.support.context import confirm, open_workspace
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.screen import echo


@click.command("sign")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@BRANCH]")
@format_option("table", "json")
def sign_command(dataset: str, output: str) -> None:
    """Sign the head of a dataset, or DATASET@BRANCH, anew, with the time of now.

    Every commit signs the new head where the dataset's private key is, so this is needed only after a
    signature could not be made, was damaged, or shall be younger. The key of a dataset is in the workspace
    that it was made in.
    """
    from odfchain import Problem
    from odfchain.errors import ObjectCorruptedError, ObjectNotFoundError, StoreError

    with open_workspace() as workspace:
        found = on_branch(workspace, dataset)
        alias = found.alias
        if found.has_key:
            try:
                before = found.signature()
            except (ObjectNotFoundError, ObjectCorruptedError):
                raise
            except StoreError as error:  # a link or a pipe: signing puts a file in its place
                echo(f"warning: {error.message}; a new signature takes its place", err=True)
            else:
                if before.problem in (Problem.OTHER_HEAD, Problem.NEWER_HEAD):
                    confirm(f"{alias}: {before.message}. Both signatures will show that; sign this head too?")
        signed = found.sign()
    row = {
        "dataset": found.label,
        "sequenceNumber": signed.sequence_number,
        "head": str(signed.head),
        "time": str(signed.time),
        "signer": str(signed.dataset_id),
    }
    columns = [name for name in row if name != "signer"]
    print_records([row], columns, output, titles={"sequenceNumber": "block"}, right=("sequenceNumber",))
