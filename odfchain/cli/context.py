"""Global options of the running command, and its workspace."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.screen import ask, echo, is_interactive, print_records
from odfchain.errors import IngestError, OdfchainError, UsageError
from odfchain.text import counted

if TYPE_CHECKING:
    from odfchain import Dataset, Workspace
    from odfchain.results import IngestOutcome


@dataclass(slots=True)
class Globals:
    """The global options."""

    workspace: str | None = None
    quiet: bool = False
    yes: bool = False
    debug: bool = False


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


def say(text: str, **style: Any) -> None:
    """Print a line for people on standard error, unless --quiet."""
    if not options().quiet:
        echo(text, err=True, **style)


def open_workspace(*, session_stays: bool = True) -> Workspace:
    """The workspace that is meant; its Spark session may be one that stays for other commands."""
    from odfchain import Workspace
    from odfchain.api.executing import engines_of, say_unsigned

    workspace = Workspace.open(Path(options().workspace or "."))
    unsigned: dict[str, None] = {}
    say_unsigned(workspace, unsigned.setdefault)
    # at the end: progress may be shown until then
    click.get_current_context().call_on_close(
        lambda: say(f"note: not signed here: no key: {', '.join(unsigned)}") if unsigned else None
    )
    _close_to_others(workspace.path / "config.yaml")
    if session_stays:
        engines_of(workspace).may_stay = True
    return workspace


def opened(text: str) -> Dataset:
    """The dataset that `DATASET[@POINT]` names, for who reads."""
    from odfchain.api.branching import at_point

    return at_point(open_workspace(), text)


def _close_to_others(path: Path) -> None:
    try:
        mode = path.stat().st_mode & 0o777
        if not mode & 0o007:
            return
        # earlier versions made this file, which may hold secrets, readable by other users
        path.chmod(0o600)
    except OSError:  # missing, or owned by another user: what needs it says so
        return
    say(f"note: {path} was readable by other users; its mode is 0600 now")


class _Terminated(BaseException):
    """SIGTERM, which unwinds like Ctrl-C does; an exit of another kind keeps its code."""


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block, everything in it is put away, and what comes after it goes on."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except _Terminated:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def confirm(question: str) -> None:
    """Ask before something that cannot be undone."""
    if options().yes:
        return
    if not is_interactive():
        raise UsageError(f"{question} standard input is not a terminal", hint="answer on one, or pass --yes")
    if not ask(question):
        raise UsageError("not confirmed; nothing was changed")


# Errors as the command line reports them, and the exit codes that are no error's.

INTEGRITY_FAULT = 6
UNCHECKED = 7
"""Something required is not here: a fault of the environment, and no proof against the dataset."""


def report_error(error: OdfchainError, *, about: str = "") -> None:
    """One line for what happened (to what it is about), one for what to do next."""
    echo("error: ", fg="red", bold=True, nl=False, err=True)
    echo(f"{about}: {error}" if about else error, err=True)
    # the wrong part of the query, or the violating rows
    for line in error.excerpt if isinstance(error, IngestError) else ():
        echo(f"  {line}", err=True)
    if error.hint:
        echo("hint: ", fg="cyan", nl=False, err=True)
        echo(error.hint, err=True)


# Results of ingestion, for people and programs.


def print_outcome(outcome: IngestOutcome, output: str) -> None:
    """Print what each file brought, and what was committed."""
    columns = ["file", "rows", "+A", "-R", "-C", "+C", "offsets"]
    rows = [
        {
            "file": Path(item.file).name if output == "table" else item.file,
            "rows": item.input_rows,
            **{op: item.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")},
            "offsets": f"{item.offsets[0]}-{item.offsets[1]}" if item.offsets else None,
            **({"ingestedWith": str(item.ingested_with.hash)} if item.ingested_with else {}),
        }
        for item in outcome.inputs
    ]
    print_records(rows, columns, output, right=columns[1:])
    if outcome.up_to_date:
        say("up to date: nothing new to commit", fg="yellow")
    else:
        say(f"committed {counted(outcome.blocks, 'block')}, head is {outcome.head}", fg="green")
