"""`odfchain init`: a workspace in the current folder."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.context import options, say


@click.command("init")
@click.option("--exists-ok", is_flag=True, help="Do not complain if there is one already.")
@click.option(
    "--store",
    metavar="URL",
    help="Where the datasets are to be, or are: s3://, gs://, az://, s3+http://HOST/BUCKET/PREFIX.",
)
def init_command(exists_ok: bool, store: str | None) -> None:
    """Make a workspace in the current folder.

    With --store its datasets are in an object store, for every machine that names the same URL; the folder
    has the keys, the settings, and copies of what was read. Credentials come from the environment.
    """
    from odfchain import Workspace

    workspace = Workspace.init(Path(options().workspace or "."), exists_ok=exists_ok, store=store)
    say(f"workspace ready in {workspace.path}" + (f", datasets in {workspace.store}" if store else ""))
