"""From the bytes of a source to the bytes that a reader takes, through the steps of the polling source.

Source: specification "PrepStep"; decisions in the comments of `decompress` and `pipe`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from odfchain.errors import PrepareError
from odfchain.ingest.prepare.decompress import decompress
from odfchain.ingest.prepare.pipe import run_pipeline
from odfchain.ingest.prepare.sink import PrepareLimits
from odfchain.model.sources import PrepStep, PrepStepDecompress, PrepStepPipe
from odfchain.progress import SILENT, Progress
from odfchain.store.fsio import remove_quietly

__all__ = ["PrepareLimits", "prepare"]

_NO_LIMITS_GIVEN = PrepareLimits()


def prepare(
    steps: Sequence[PrepStep],
    source: Path,
    folder: Path,
    *,
    name: str,
    limits: PrepareLimits = _NO_LIMITS_GIVEN,
    progress: Progress = SILENT,
    allow_commands: bool = False,
) -> Path:
    """The file that results from `source` by all steps; `source` itself is never changed.

    The result lies in `folder`, which is private to the run. Without steps it is `source` (no copy). Only the
    result is left in `folder`, and nothing after a failure. `name` is what messages call the input. A
    manifest may come from an untrusted publisher, so commands run only with `allow_commands`.
    """
    _check_commands(steps, name, allow_commands=allow_commands)
    current = source
    for part in _parts(steps):
        target = folder / f"prepared-{uuid.uuid4().hex}"
        try:
            _apply(part, current, target, name, limits, progress)
        finally:
            if current != source:
                remove_quietly(current)
        current = target
    return current


def _parts(steps: Sequence[PrepStep]) -> list[list[PrepStep]]:
    """Consecutive commands together, as one pipeline; every unpacking alone."""
    parts: list[list[PrepStep]] = []
    for step in steps:
        if parts and isinstance(step, PrepStepPipe) and isinstance(parts[-1][-1], PrepStepPipe):
            parts[-1].append(step)
        else:
            parts.append([step])
    return parts


def _check_commands(steps: Sequence[PrepStep], name: str, *, allow_commands: bool) -> None:
    for step in steps:
        if not isinstance(step, PrepStepPipe):
            continue
        if not step.command:
            raise PrepareError(f"{name}: a Pipe step has an empty command")
        if not allow_commands:
            raise PrepareError(
                f"{name}: the manifest pipes the data through the command `{step.command[0]}`, "
                "and commands are not allowed",
                hint="pull with --allow-commands, or set ingest.allowCommands in the workspace's "
                "configuration, if you trust this manifest",
            )


def _apply(
    steps: Sequence[PrepStep],
    source: Path,
    target: Path,
    name: str,
    limits: PrepareLimits,
    progress: Progress,
) -> None:
    commands = [step.command for step in steps if isinstance(step, PrepStepPipe)]
    if commands:
        run_pipeline(commands, source, target, name=name, limits=limits, progress=progress)
    for step in steps:
        if isinstance(step, PrepStepDecompress):
            decompress(step, source, target, name=name, limits=limits, progress=progress)
