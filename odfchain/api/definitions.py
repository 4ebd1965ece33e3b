"""A file of data becomes a dataset: all of it, or nothing stays behind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import ManifestError, NameCollisionError
from odfchain.limits import LIMITS
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.manifests import read_definitions, read_snapshots
from odfchain.odf.names import DatasetAlias
from odfchain.spark.known_errors import OwnErrors

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.ingest.importing import ImportPlan
    from odfchain.ingest.ingesting import IngestOutcome


@dataclass(frozen=True, slots=True)
class Imported(OwnErrors):
    """Result of an import, with the inferred columns."""

    dataset: Dataset
    manifest: Path
    """The file that defines the dataset."""
    inferred: ImportPlan
    outcome: IngestOutcome

    def __repr__(self) -> str:
        columns = ", ".join(f"{c.name} {c.type}" for c in self.inferred.file.columns)
        return f"<{self.dataset.alias}: {self.inferred.file.rows:,} rows of {columns}>"


# Definitions of datasets in manifests (YAML or JSON): where they are found, and their order (RFC-054).

_SUFFIXES = (".yaml", ".yml")
# A text with one of these defines a dataset, also where it cannot be read as YAML.
_SAYS_DATASET = re.compile(rb"\bDatasetSnapshot\b|opendatafabric\.org/schemas/[\w/]+/Dataset\b")


@dataclass(frozen=True, slots=True)
class Definitions:
    """Datasets that manifests define, each with its file, and notes on the rest."""

    found: list[tuple[str, DatasetSnapshot]] = field(default_factory=list)
    passed_over: list[ManifestError] = field(default_factory=list)
    """Reasons for skipping files and documents below a folder."""

    def read(self, text: str | bytes, source: str) -> None:
        """Take in a text that defines datasets and nothing else."""
        self.found.extend((source, snapshot) for snapshot in read_snapshots(text, source=source or None))

    def say(self, note: Callable[[str], None]) -> None:
        """Say what is not made, and what is not kept of what is made.

        Raises:
            ManifestError: no dataset is defined.
        """
        for error in self.passed_over:
            note(f"passed over: {error}")
        for source, snapshot in self.found:
            for text in snapshot.origin.notes if snapshot.origin else ():
                note(f"{source}: {text}" if source else text)
        if not self.found:
            raise ManifestError("no manifest of a dataset is there", hint="`odfchain new NAME` writes one")


def read_given(manifest: str | bytes | Path | Sequence[Path], source: str = "") -> Definitions:
    """Read definitions from a text, manifest files, or folders; a file counts once.

    Hidden names and links to folders below a folder are not followed.
    """
    given = Definitions()
    if isinstance(manifest, str | bytes):
        given.read(manifest, source)
        return given
    seen: set[Path] = set()
    for path in (manifest,) if isinstance(manifest, Path) else manifest:
        for file in _below(path) if path.is_dir() else (path,):
            if (real := file.resolve()) in seen:
                continue
            seen.add(real)
            # a named file must define datasets; other files below a folder are skipped with a note
            if file is path:
                given.read(read_manifest(file), str(file))
            else:
                _read_below(file, given)
    return given


def _below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise ManifestError(f"cannot be read: {error.strerror}", source=str(error.filename))

    count = 0
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith(".") or not name.lower().endswith(_SUFFIXES):
                continue
            count += 1
            if count > LIMITS.manifest_files:
                most = f"more than {LIMITS.manifest_files:,} YAML files are below it"
                raise ManifestError(most, source=str(folder), hint="name the folder of the manifests")
            yield Path(parent, name)


def _read_below(file: Path, given: Definitions) -> None:
    source = str(file)
    if not file.is_file():
        given.passed_over.append(ManifestError("no file", source=source))
        return
    data = read_manifest(file)
    try:
        snapshots, others = read_definitions(data, source=source)
    except ManifestError as error:
        if _SAYS_DATASET.search(data):
            raise
        snapshots, others = [], [error]
    given.found.extend((source, snapshot) for snapshot in snapshots)
    given.passed_over.extend(others)


def read_manifest(path: Path) -> bytes:
    """A manifest's bytes; one more than it may have says that it is too long.

    Raises:
        ManifestError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(LIMITS.manifest_bytes + 1)
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror}", source=str(path)) from None


def check_free(names: Iterable[DatasetAlias], known: Container[DatasetAlias]) -> None:
    """No dataset of a workspace has one of these names.

    Raises:
        NameCollisionError: all that are taken are in it.
    """
    if taken := [repr(str(name)) for name in names if name in known]:
        what, are = ("a dataset", "exists") if len(taken) == 1 else ("datasets", "exist")
        raise NameCollisionError(
            f"{what} called {', '.join(taken)} already {are}; nothing was made",
            hint="`odfchain add --update` records what manifests say differently; or choose other names",
        )
