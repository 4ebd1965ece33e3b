"""A file of data becomes a dataset: all of it, or nothing stays behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.known_errors import OwnErrors
from odfchain.errors import NameCollisionError, UsageError
from odfchain.progress import Progress
from odfchain.store import fsio

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.options import MergeKeywords
    from odfchain.api.workspace import Workspace
    from odfchain.ingest.importing import ImportPlan
    from odfchain.ingest.ingesting import IngestOutcome


@dataclass(frozen=True, slots=True)
class Imported(OwnErrors):
    """What an import made, of what was inferred."""

    dataset: Dataset
    manifest: Path
    """The file that defines the dataset."""
    inferred: ImportPlan
    outcome: IngestOutcome

    def __repr__(self) -> str:
        columns = ", ".join(f"{c.name} {c.type}" for c in self.inferred.file.columns)
        return f"<{self.dataset.alias}: {self.inferred.file.rows:,} rows of {columns}>"


def import_file(
    workspace: Workspace,
    path: Path,
    *,
    name: str | None,
    key: Sequence[str],
    event_time: str | None,
    merge: str | None,
    input_format: str | None,
    force: bool,
    on_inferred: Callable[[ImportPlan], None] | None,
    progress: Progress,
    options: MergeKeywords,
) -> Imported:
    """Make a dataset of a file; errors as `Workspace.import_`."""
    from odfchain.ingest.importing import SYSTEM_COLUMNS, merge_for, name_for, plan_import
    from odfchain.ingest.read.inferred_file import infer_file

    strategy, alias = merge_for(merge, key), name_for(path, name)
    if workspace._files.resolve(alias) is not None:
        raise NameCollisionError(
            f"there is a dataset {alias} already",
            hint=f"bring the file into it: odfchain ingest {alias} FILE; or choose another name with --as",
        )
    manifest = path.absolute().parent / f"{alias.name}.yaml"
    if manifest.exists() and not force:
        raise _is_there(manifest)
    progress.phase("Inferring the columns")
    with tempfile.TemporaryDirectory(dir=workspace._files.run_folder) as scratch:
        found = infer_file(path, Path(scratch), input_format=input_format, reserved=SYSTEM_COLUMNS)
    plan = plan_import(path, found, alias, key, event_time, strategy)
    if on_inferred is not None:
        on_inferred(plan)
    dataset = workspace.create(plan.snapshot, progress=progress)
    try:
        outcome = dataset.ingest(path, progress=progress, **options)
        _write(manifest, plan.manifest.encode(), force=force)
    except BaseException:
        workspace._files.delete(dataset._files, with_key=True)
        raise
    return Imported(dataset, manifest, plan, outcome)


def _write(manifest: Path, text: bytes, *, force: bool) -> None:
    if force:
        fsio.replace_file(manifest, text)
    elif not fsio.create_file(manifest, text):
        raise _is_there(manifest)


def _is_there(manifest: Path) -> UsageError:
    return UsageError(
        f"{manifest} exists already", hint="choose another name with --as, or replace it with --force"
    )
