"""What the running command was told for all commands, and the workspace that it works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from odfchain.cli.support.screen import ask, echo, is_somebody_there
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Dataset, Workspace


@dataclass(slots=True)
class Globals:
    """The global options."""

    workspace: str | None
    quiet: bool
    yes: bool
    debug: bool


def options() -> Globals:
    """The global options of the running command."""
    found = click.get_current_context().find_object(Globals)
    assert found is not None  # noqa: S101 - set by the group
    return found


def silence_libraries() -> None:
    """What goes wrong is told by our errors; the log of PySpark's connection would only repeat it."""
    import logging

    logging.getLogger().addHandler(logging.NullHandler())


def say(text: str) -> None:
    """Print a line for people on standard error, unless --quiet."""
    if not options().quiet:
        echo(text, err=True)


def open_workspace(*, session_stays: bool = True) -> Workspace:
    """The workspace that is meant; its Spark session may be one that stays for other commands."""
    from odfchain import Workspace
    from odfchain.api.executing import let_session_stay

    workspace = Workspace.open(Path(options().workspace or "."))
    _close_to_others(workspace.path / "config.yaml")
    if session_stays:
        let_session_stay(workspace)
    return workspace


def _close_to_others(path: Path) -> None:
    """Settings may hold secrets; earlier versions made the file for everybody to read."""
    try:
        mode = path.stat().st_mode & 0o777
        if not mode & 0o007:
            return
        path.chmod(0o600)
    except OSError:  # none, or somebody else's: what needs it says so
        return
    say(f"note: {path} could be read by everybody; its mode is 0600 now")


def confirm(question: str) -> None:
    """Ask before something that cannot be undone.

    Raises:
        UsageError: the answer is no, or nobody can be asked.
    """
    if options().yes:
        return
    if not is_somebody_there():
        raise UsageError(f"{question} nobody is there to answer", hint="use -y to say yes")
    if not ask(question):
        raise UsageError("not confirmed; nothing was changed")


def named_or_all(workspace: Workspace, datasets: tuple[str, ...]) -> list[Dataset]:
    """The datasets that names and patterns mean, each once; all when none is named."""
    if not datasets:
        return list(workspace)
    named = {d.path: d for text in datasets for d in workspace.matching(text)}
    return list(named.values())
