"""Asking before a manifest that may be somebody else's runs commands or is given variables.

Only `odfchain new` and the user's own editor write manifests without the user's knowing what is in them; no
file says who wrote it. So every manifest with effects is shown, and nothing is made before that is allowed:
on the command line, in the settings, or by an answer. Source: RFC-014.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odfchain.cli.support.context import options
from odfchain.cli.support.screen import ask, echo, is_somebody_there
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import DatasetSnapshot, Workspace
    from odfchain.api.permissions import Question


def ask_for_effects(
    found: Sequence[tuple[str, DatasetSnapshot]],
    workspace: Workspace,
    *,
    allow_commands: bool,
    hosts: tuple[str, ...],
) -> None:
    """Show what the definitions do besides reading, and ask where that is not allowed yet.

    Raises:
        UsageError: it is not allowed, or the settings bind a variable to other hosts.
    """
    from odfchain.api.permissions import Allowed, questions

    asked = questions(found, Allowed(allow_commands, hosts), workspace.ingest_config)
    if not asked or options().yes:
        return
    for question in asked:
        echo(f"{question.source}: ingesting into {question.name}", err=True)
        for text in question.effects:
            echo(f"  {text}", err=True)
    flags = _flags(asked)
    if not is_somebody_there():
        raise UsageError(
            "the manifest does what has to be allowed (see above), and nobody is there to ask; "
            "nothing was made",
            hint=f"if you trust it, add {flags}",
        )
    if not ask("Is this what you want?"):
        raise UsageError("not confirmed; nothing was made", hint=f"to be asked no more, add {flags}")


def _flags(asked: Sequence[Question]) -> str:
    """The options that allow all of it."""
    import shlex

    hosts = dict.fromkeys(host for question in asked for host in question.hosts)
    given = ["--allow-commands"] * any(question.commands for question in asked)
    return " ".join(given + [f"--allow-host {shlex.quote(host)}" for host in hosts])
