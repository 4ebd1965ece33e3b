"""`odfchain init`: a workspace in the current folder."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.context import options, say


@click.command("init")
@click.option("--exists-ok", is_flag=True, help="Do not complain if there is one already.")
def init_command(exists_ok: bool) -> None:
    """Make a workspace in the current folder."""
    from odfchain import Workspace

    workspace = Workspace.init(Path(options().workspace or "."), exists_ok=exists_ok)
    say(f"workspace ready in {workspace.path}")
