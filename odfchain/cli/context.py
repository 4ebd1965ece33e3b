"""Global options of the running command, and its workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from odfchain.cli.screen import ask, echo, is_somebody_there
from odfchain.errors import ForeignKeyError, OdfchainError, QueryError, UsageError

if TYPE_CHECKING:
    from odfchain import Dataset, Workspace
    from odfchain.api.definitions import Question
    from odfchain.odf.events import DatasetSnapshot


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
    """Silence the log of PySpark's connection, unless --debug: our errors report the same."""
    import logging

    if not options().debug:
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
    try:
        mode = path.stat().st_mode & 0o777
        if not mode & 0o007:
            return
        # earlier versions let everybody read this file, which may hold secrets
        path.chmod(0o600)
    except OSError:  # none, or somebody else's: what needs it says so
        return
    say(f"note: {path} could be read by everybody; its mode is 0600 now")


def confirm(question: str) -> None:
    """Ask before something that cannot be undone.

    Raises:
        UsageError: the answer is no, or standard input is not a terminal.
    """
    if options().yes:
        return
    if not is_somebody_there():
        raise UsageError(f"{question} standard input is not a terminal", hint="pass --yes")
    if not ask(question):
        raise UsageError("not confirmed; nothing was changed")


def named_or_all(workspace: Workspace, datasets: tuple[str, ...]) -> list[Dataset]:
    """The datasets that names and patterns mean, each once; all when none is named."""
    if not datasets:
        return list(workspace)
    named = {d.path: d for text in datasets for d in workspace.matching(text)}
    return list(named.values())


# Errors as the command line reports them, and the exit codes that are no error's.

INTEGRITY_FAULT = 6
UNCHECKED = 7
"""Something required is not here: a fault of the environment, and no proof against the dataset."""


def report_error(error: OdfchainError, *, about: str = "") -> None:
    """One line for what happened (to what it is about), one for what to do next."""
    echo("error: ", fg="red", bold=True, nl=False, err=True)
    echo(f"{about}: {error}" if about else error, err=True)
    # the wrong part of the query, or the violating rows
    for line in error.excerpt if isinstance(error, QueryError | ForeignKeyError) else ():
        echo(f"  {line}", err=True)
    if error.hint:
        echo("hint: ", fg="cyan", nl=False, err=True)
        echo(error.hint, err=True)


# Asking before an untrusted manifest runs commands or gets variables.
# No file says who wrote it, so every manifest with effects is shown, and nothing is made before they are
# allowed: by options, settings, or an answer. Source: RFC-014.


def ask_for_effects(
    found: Sequence[tuple[str, DatasetSnapshot]],
    workspace: Workspace,
    *,
    allow_commands: bool,
    hosts: tuple[str, ...],
) -> None:
    """Show the effects of the definitions other than reads, and ask where they are not allowed yet.

    Raises:
        UsageError: it is not allowed, or the settings bind a variable to other hosts.
    """
    from odfchain.api.definitions import Allowed, questions

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
            "the manifest does what has to be allowed (see above), but standard input is not a terminal; "
            "nothing was made",
            hint=f"if you trust it, add {flags}",
        )
    if not ask("Is this what you want?"):
        raise UsageError("not confirmed; nothing was made", hint=f"to be asked no more, add {flags}")


def _flags(asked: Sequence[Question]) -> str:
    import shlex

    hosts = dict.fromkeys(host for question in asked for host in question.hosts)
    given = ["--allow-commands"] * any(question.commands for question in asked)
    return " ".join(given + [f"--allow-host {shlex.quote(host)}" for host in hosts])
