"""The check of foreign keys for one run, and the file that lists what breaks them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import ForeignKeyError
from odfchain.progress import Progress

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.branch.foreign_keys import ForeignKeys


@contextlib.contextmanager
def foreign_keys(
    workspace: Workspace, progress: Progress, violations: str | Path | None = None, **how: Any
) -> Iterator[ForeignKeys]:
    """The check for what is committed in the block; what it finds is then written to `violations`.

    `how` is as in `ForeignKeys.of`.

    Raises:
        UsageError: the file has another ending than `.csv` and `.ndjson`.
        StoreError: it cannot be written.
    """
    from odfchain.branch.foreign_keys import ForeignKeys
    from odfchain.branch.violations import check_ending, write_violations

    path = None if violations is None else Path(violations)
    if path is not None:
        check_ending(path)
    check = ForeignKeys.of(workspace._files, progress.note, **how)
    try:
        yield check
    except ForeignKeyError:
        if path is not None:
            write_violations(check.found, path)
        raise
    if path is not None:
        write_violations(check.found, path)
