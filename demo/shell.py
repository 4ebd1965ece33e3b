"""How the demo speaks: headings, commands as a user would type them, and what they bring."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from odfchain import Dataset
from odfchain.cli.main import main as odfchain
from odfchain.ingest.polling import PullOptions, PullOutcome
from odfchain.transform.execute import TransformOutcome

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


def pull(dataset: Dataset, **variables: Path) -> PullOutcome:
    """Bring a root dataset up to date and show the command that does it."""
    given = "".join(f" -e {name}={shown(path)}" for name, path in variables.items())
    print(f"$ odfchain pull {dataset.alias}{given}", flush=True)
    start = time.monotonic()
    outcome = dataset.pull(PullOptions(variables={name: str(path) for name, path in variables.items()}))
    print(
        f"  {outcome.status.value}, blocks: {outcome.blocks} ({time.monotonic() - start:.1f} s)", flush=True
    )
    return outcome


def derive(dataset: Dataset) -> TransformOutcome:
    """Bring a derivative dataset up to date and show the command that does it."""
    print(f"$ odfchain pull {dataset.alias}", flush=True)
    start = time.monotonic()
    outcome = dataset.transform()
    counts: Counter[str] = Counter()
    for step in outcome.steps:
        counts.update(step.operations)
    rows = ", ".join(f"{n:,} {op}" for op, n in counts.items() if n) or "nothing new"
    print(
        f"  {sum(step.input_rows for step in outcome.steps):,} rows read; {rows}; "
        f"watermark {outcome.watermark or 'unknown'} ({time.monotonic() - start:.1f} s)",
        flush=True,
    )
    return outcome


def shown(path: Path) -> str:
    """A path as one would type it from the checkout."""
    return f"$PWD/{path.relative_to(ROOT)}" if path.is_relative_to(ROOT) else str(path)
