"""Several datasets, one after the other: one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from odfchain.api.known_errors import known_error
from odfchain.cli.support.faults import report_error
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.errors import was_interrupted

_T = TypeVar("_T")


def one_by_one(
    targets: Sequence[_T], work: Callable[[_T], dict[str, Any]], progress: TerminalProgress
) -> tuple[list[dict[str, Any]], int]:
    """The rows of the targets that the work was done for, and the exit code of the first that failed, or 0.

    What fails is reported at once, and by its name where there are several.

    Raises:
        KeyboardInterrupt: the user has had enough.
    """
    rows: list[dict[str, Any]] = []
    code = 0
    for target in targets:
        try:
            rows.append(work(target))
        except Exception as error:
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            known = known_error(error)
            if known is None:
                raise
            progress.stop()
            report_error(known, about=str(target) if len(targets) > 1 else "")
            code = code or known.exit_code
    return rows, code
