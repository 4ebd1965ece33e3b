"""How the demo speaks: headings, commands as a user would type them, and what they bring."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from odfchain import Dataset
from odfchain.cli.main import main as odfchain
from odfchain.results import PullResult

ROOT = Path(__file__).parent.parent


def title(text: str) -> None:
    """A heading between the parts."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def command(folder: Path, *args: str) -> None:
    """Run a command of odfchain and show it as a user would type it.

    Raises:
        SystemExit: it failed.
    """
    print(f"$ odfchain {' '.join(args)}", flush=True)
    code = odfchain(["-w", str(folder), *[str(ROOT / a) if a.endswith(".yaml") else a for a in args]])
    if code:
        sys.exit(code)


def pull(dataset: Dataset, **variables: Path) -> PullResult:
    """Bring a root dataset up to date and show the command that does it."""
    given = "".join(f" -e {name}={shown(path)}" for name, path in variables.items())
    print(f"$ odfchain pull {dataset.alias}{given}", flush=True)
    start = time.monotonic()
    outcome = dataset.pull(variables={name: str(path) for name, path in variables.items()})
    print(f"  {outcome.status}, blocks: {outcome.blocks} ({time.monotonic() - start:.1f} s)", flush=True)
    return outcome


def derive(dataset: Dataset) -> PullResult:
    """Bring a derivative dataset up to date and show the command that does it."""
    print(f"$ odfchain pull {dataset.alias}", flush=True)
    start = time.monotonic()
    outcome = dataset.pull()
    rows = ", ".join(f"{n:,} {op}" for op, n in outcome.operations.items() if n) or "nothing new"
    print(
        f"  {outcome.rows:,} rows read; {rows}; "
        f"watermark {outcome.watermark or 'unknown'} ({time.monotonic() - start:.1f} s)",
        flush=True,
    )
    return outcome


def shown(path: Path) -> str:
    """A path as one would type it from the checkout."""
    return f"$PWD/{path.relative_to(ROOT)}" if path.is_relative_to(ROOT) else str(path)
