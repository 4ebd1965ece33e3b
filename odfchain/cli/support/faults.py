"""Errors as the command line reports them, and the exit codes that are no error's."""

from __future__ import annotations

from odfchain.cli.support.screen import echo
from odfchain.errors import ForeignKeyError, OdfchainError, QueryError

INTEGRITY_FAULT = 6
UNCHECKED = 7
"""What was asked for needs what is not here: an environment's fault, and no proof against the dataset."""


def report_error(error: OdfchainError, *, about: str = "") -> None:
    """One line for what happened (to what it is about), one for what to do next.

    Where a query is wrong, or which rows are, is shown between them.
    """
    echo("error: ", fg="red", bold=True, nl=False, err=True)
    echo(f"{about}: {error}" if about else error, err=True)
    for line in error.excerpt if isinstance(error, QueryError | ForeignKeyError) else ():
        echo(f"  {line}", err=True)
    if error.hint:
        echo("hint: ", fg="cyan", nl=False, err=True)
        echo(error.hint, err=True)
