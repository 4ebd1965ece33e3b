"""A file of data becomes a dataset: all of it, or nothing stays behind."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.known_errors import OwnErrors
from odfchain.errors import ManifestError, NameCollisionError, UsageError
from odfchain.ingest.fetching import Effect, EffectKind, effects_of, is_admitted
from odfchain.limits import LIMITS
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.manifests import read_definitions, read_snapshots
from odfchain.odf.names import DatasetAlias
from odfchain.progress import Progress
from odfchain.storage import fsio
from odfchain.workspace.config import IngestConfig

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.options import MergeKeywords
    from odfchain.api.workspace import Workspace
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
    from odfchain.ingest.importing import SYSTEM_COLUMNS, infer_file, merge_for, name_for, plan_import

    strategy, alias = merge_for(merge, key), name_for(path, name)
    if workspace._files.resolve(alias) is not None:
        raise NameCollisionError(
            f"the dataset {alias} already exists",
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
        f"{manifest} already exists", hint="choose another name with --as, or replace it with --force"
    )


# Commented manifests to start from; each is valid as it is.

_ROOT = """\
# A root dataset: its data comes from a source. `odfchain add` makes the dataset, `odfchain pull` fills it.
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      # Where the data is: Url (https, file, s3, gs, az), FilesGlob (one file after the other) or Container.
      fetch:
        kind: Url
        url: https://example.com/cities.csv
        # eventTime: {{kind: FromMetadata}}    # time of rows that carry none: of the file, or FromSystemTime
      # Unpacking, or commands to pipe it through; in order.
      # prepare:
      #   - {{kind: Decompress, format: Zip, subPath: "*.csv"}}
      # What the columns are. Also NdJson, Json, GeoJson, NdGeoJson, EsriShapefile and Parquet.
      read:
        kind: Csv
        header: true
        schema:
          - city STRING NOT NULL
          - population BIGINT
      # SQL over the rows that were read; the table is called `input`.
      # preprocess:
      #   kind: Sql
      #   engine: odfchain-spark
      #   query: select city, population from input where population > 0
      # How rows meet what is recorded:
      #   Append    every row is new
      #   Ledger    a row is new when its key was never seen
      #   Snapshot  the input is the whole present state: additions, removals and corrections are recorded
      merge:
        kind: Snapshot
        primaryKey: [city]
      # Which event times count as complete: up to the largest so far, or less where rows come late.
      # watermark: {{maxDelay: 1 day}}    # or fromSystemTime
    - kind: SetInfo
      description: Say what this is
      keywords: [example]
"""

_DERIVATIVE = """\
# A derivative dataset: a function of its inputs that anybody can recompute.
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      # The datasets to read, and what the queries call them.
      inputs:
        - datasetRef: org.example.cities
          alias: cities
      transform:
        kind: Sql
        engine: odfchain-spark
        query: select event_time, city, population * 2 as twice from cities
        # How long windows, sessions and bounded joins still take late rows and corrections (default: not):
        # allowedLateness: 1 day
    - kind: SetInfo
      description: Say what this is
      keywords: [example]
"""


_ASSETS = """\
# A lock of assets as a dataset: `odfchain assets derive … --into {name}` records what has changed.
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: Parquet
        schema:
          - item_id STRING NOT NULL
          - asset_key STRING NOT NULL
          - store_type STRING
          - store_container STRING
          - store_endpoint_url STRING
          - key STRING
          - size_bytes BIGINT
          - etag STRING
          - last_modified STRING
      # Snapshot: the catalog is the whole present state. Ledger: objects never change, and none is withdrawn.
      merge:
        kind: {merge}
        primaryKey: [item_id, asset_key]
    - kind: SetInfo
      description: Where the files of a catalog are, and what they were
      keywords: [asset-lock]
"""

_TEMPLATES = {"root": _ROOT, "derivative": _DERIVATIVE, "assets": _ASSETS}


def manifest_template(alias: DatasetAlias, kind: str, *, first: str = "", merge: str = "Snapshot") -> str:
    """The manifest of a dataset that is a root, a derivative, or a lock of assets.

    `first` is a comment above it; `merge` how a lock meets what is recorded.
    """
    text = _TEMPLATES[kind].format(name=alias, merge=merge)
    return f"# {first}\n{text}" if first else text


# Effects of a manifest other than reads: the allowed ones, and those to ask about. Source: RFC-014.


@dataclass(frozen=True, slots=True)
class Allowed:
    """Permissions that the user gives in advance."""

    commands: bool
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """The effects of one manifest, of which some are not allowed yet."""

    source: str
    """Its file."""
    name: DatasetAlias
    effects: tuple[str, ...]
    """All of them, as they stand in the manifest: not safe to be printed as they are."""
    commands: bool
    """True if commands need permission."""
    hosts: tuple[str, ...]
    """Hosts to which variables would be sent."""


def questions(
    found: Iterable[tuple[str, DatasetSnapshot]], allowed: Allowed, config: IngestConfig
) -> list[Question]:
    """Open permissions of the definitions, each with its file.

    Raises:
        UsageError: the settings bind a variable to other hosts.
    """
    asked = []
    for source, snapshot in found:
        effects = effects_of(snapshot.metadata)
        waiting = [effect for effect in effects if not _is_allowed(effect, allowed, config, source)]
        if waiting:
            asked.append(_question(source, snapshot, effects, waiting))
    return asked


def _question(
    source: str, snapshot: DatasetSnapshot, effects: Sequence[Effect], waiting: Sequence[Effect]
) -> Question:
    return Question(
        source,
        snapshot.name,
        tuple(effect.text for effect in effects),
        any(effect.kind is EffectKind.COMMAND for effect in waiting),
        tuple(effect.host for effect in waiting if effect.kind is EffectKind.VARIABLE),
    )


def _is_allowed(effect: Effect, allowed: Allowed, config: IngestConfig, source: str) -> bool:
    bindings = config.bindings
    bound = [name for name in effect.variables if name in bindings]
    for name in bound:
        if effect.kind is EffectKind.COMMAND or not is_admitted(bindings[name], effect.host, effect.port):
            only = ", ".join(bindings[name]) or "no host"
            raise UsageError(
                f"{source}: {effect.text}: the variable {name} may be sent to {only} only",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )
    if effect.kind is EffectKind.COMMAND:
        return allowed.commands or config.allow_commands
    if len(bound) == len(effect.variables):
        return True
    return is_admitted(allowed.hosts, effect.host, effect.port)


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
        """Take in a text that defines datasets and nothing else.

        Raises:
            ManifestError: it does not.
        """
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

    Raises:
        ManifestError: a manifest is wrong, or cannot be read.
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
    taken = [repr(str(name)) for name in names if name in known]
    if taken:
        what, are = ("a dataset", "exists") if len(taken) == 1 else ("datasets", "exist")
        raise NameCollisionError(
            f"{what} called {', '.join(taken)} already {are}; nothing was made",
            hint="`odfchain add --update` records what manifests say differently; or choose other names",
        )
