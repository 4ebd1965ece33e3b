"""Descriptions of a dataset at a block: its manifest and its profile (RFC-039, RFC-040)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain import errors
from odfchain.chain.statements import read_key_file
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT, Progress
from odfchain.spark.known_errors import OwnErrors, with_own_errors
from odfchain.storage import fsio
from odfchain.text import one_line
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import ExportOptions, ProfileOptions, takes

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.chain.signed_lines import SnapshotKind, SnapshotLine
    from odfchain.odf.identity import Multihash
    from odfchain.profiles.drift import Drift
    from odfchain.profiles.export import Exported
    from odfchain.profiles.published import WrittenSnapshot
    from odfchain.slices.footers import FileStats
    from odfchain.workspace.dataset_files import DatasetFiles


@dataclass(frozen=True, slots=True)
class Profile(OwnErrors):
    """Statistics of the rows in force at a block; the same rows give the same bytes everywhere."""

    document: Mapping[str, Any]
    """As JSON has it: the fields of ADR-0001, flat and under their names."""

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """A profile from a file.

        Raises:
            UsageError: there is no such file.
        """
        from odfchain.profiles.reader import MOST_BYTES, read_profile

        return cls(read_profile(fsio.read_named(path, MOST_BYTES)))

    @property
    def num_rows(self) -> int:
        """How many rows are in force."""
        return int(self.document["num_rows"])

    @property
    def column_stats(self) -> Mapping[str, Mapping[str, Any]]:
        """The statistics of each data column, by its name."""
        found: Mapping[str, Mapping[str, Any]] = self.document["column_stats"]
        return found

    @property
    def content(self) -> bytes:
        """The one text of the profile: canonical JSON (RFC 8785)."""
        return canonical_bytes(self.document)

    @property
    def hash(self) -> Multihash:
        """The SHA3-256 of that text."""
        return hash_bytes(self.content)

    def to_html(self) -> str:
        """The profile as one page that asks for nothing and runs nothing, with pictures of the columns."""
        from odfchain.profiles.pages import profile_page

        return profile_page(self.document)

    def __repr__(self) -> str:
        found = self.document
        name, number = found["dataset_name"], found["odf"]["sequence_number"]
        return (
            f"<profile of {name} at block {number}: {self.num_rows:,} rows, {found['num_columns']} columns>"
        )


@dataclass(frozen=True, slots=True)
class Manifest(OwnErrors):
    """Files of a dataset at a block with their statistics; the same everywhere, byte for byte."""

    document: Mapping[str, Any]
    """As JSON has it: the fields of Lode's manifest, and under `odf` what only ODF knows."""
    _stats: tuple[FileStats, ...] = field(repr=False, compare=False)
    _schema: pa.Schema = field(repr=False, compare=False)
    signed: bool = False
    """True if it is signed by the owner, because slices are not here; else it was made here."""

    @property
    def files(self) -> Sequence[Mapping[str, Any]]:
        """The files, oldest first: `path`, `size_bytes`, `checksum`, `stats`, `odf`."""
        found: Sequence[Mapping[str, Any]] = self.document["files"]
        return found

    @property
    def row_count(self) -> int:
        """How many records they hold."""
        return int(self.document["row_count"])

    @property
    def content(self) -> bytes:
        """The one text of the manifest: canonical JSON (RFC 8785)."""
        from odfchain.profiles.manifests import manifest_bytes

        return manifest_bytes(self.document)

    @property
    def hash(self) -> Multihash:
        """The SHA3-256 of that text."""
        return hash_bytes(self.content)

    def times_of(self, file: Mapping[str, Any]) -> tuple[str, str] | None:
        """The earliest and the latest event time in one of the files; None where that is not reported."""
        from odfchain.slices.footers import quoted

        name = quoted(self.document["odf"]["columns"]["event_time"])
        for column in file["stats"]["columns"]:
            if column["name"] == name and "min" in column:
                return str(column["min"]), str(column["max"])
        return None

    def prune(self, where: str) -> Sequence[Mapping[str, Any]]:
        """The files that may hold a row that an SQL condition keeps: a file is left out only if none can."""
        from odfchain.slices.conditions import parse_where
        from odfchain.slices.skipping import may_match

        wanted = parse_where(where, self._schema).condition
        return [file for file, stats in zip(self.files, self._stats, strict=True) if may_match(stats, wanted)]

    def understands(self, where: str) -> bool:
        """True if a part of a condition can exclude a file."""
        from odfchain.slices.conditions import parse_where

        return parse_where(where, self._schema).understood

    def __repr__(self) -> str:
        found = self.document
        return (
            f"<manifest of {found['dataset_id']} at block {found['odf']['sequence_number']}: "
            f"{len(self.files):,} files, {self.row_count:,} records>"
        )


@contextmanager
def _needing_slices() -> Iterator[None]:
    try:
        yield
    except errors.OversizedInputError:
        raise
    except errors.BadInputError as error:
        raise errors.ObjectCorruptedError(str(error), hint=error.hint) from None


@with_own_errors
def compare_profiles(before: Profile, after: Profile, policy: str | Path | None = None) -> Drift:
    """How far two profiles are apart, by the limits of a policy file; no data are read."""
    from odfchain.profiles.drift import compare_profiles as compared

    chosen = None
    if policy is not None:
        from odfchain.limits import LIMITS
        from odfchain.profiles.drift import read_policy

        chosen = read_policy(fsio.read_named(policy, LIMITS.manifest_bytes), source=str(policy))
    return compared(before.document, after.document, chosen)


class Snapshots(OwnErrors):
    """Manifest and profile of a dataset at its newest block or of a `View`, made here or signed by others."""

    _workspace: Workspace
    _files: DatasetFiles

    def _bring(self, progress: Progress = SILENT) -> None:
        """All slices that can be had are here."""

    @takes(ProfileOptions)
    def profile(self, options: ProfileOptions) -> Profile:
        """The profile of the rows in force; reads only slices that are not known yet.

        No JVM is started.
        `stage`, `description`, `tags` and `created_by` are the publisher's words. Of the columns in `hide`
        only counts are said, for what is published. Near duplicates are looked for among at most 262,144
        rows, or among any number; the `languages` of texts are detected with `odfchain[languages]` only.
        """
        from odfchain.profiles.document import profile_of
        from odfchain.profiles.published import keep_profile

        self._bring(options.progress)
        with _needing_slices():
            state = DatasetState.read(self._files.chain)
            document = profile_of(self._files, state, options, options.progress)
        if options.languages:
            keep_profile(self._files, document)
        return Profile(document)

    def known_profile(self) -> Profile | None:
        """The profile of the rows in force, where one is here already; None where it is to be computed.

        It may be of an earlier block that has the same rows.
        """
        from odfchain.profiles.published import kept_profile

        state = DatasetState.read(self._files.chain)
        # blocks without rows have the profile of the last block with rows
        last = next(state.slices_newest_first(), None)
        for block in [state.head] if last is None else [state.head, last.block_hash]:
            found = kept_profile(self._files, block) or _owners_profile(self._files, block)
            if found is not None:
                return Profile(found)
        return None

    def manifest(self) -> Manifest:
        """The manifest: files, checksums, and what the footers of the files report.

        Where slices are not here, it is the one that the owner signed of this block, if that is.
        """
        from odfchain.profiles.manifests import OwnersManifests
        from odfchain.workspace.read_slices import columns_of

        try:
            return self._made_manifest()
        except errors.SliceNotFoundError:
            state = DatasetState.read(self._files.chain)
            if (found := OwnersManifests(self._files, state).of_block()) is None:
                raise
            return Manifest(found[0], tuple(found[1]), columns_of(state, None), signed=True)

    def _made_manifest(self) -> Manifest:
        from odfchain.profiles.manifests import described
        from odfchain.workspace.read_slices import columns_of

        state = DatasetState.read(self._files.chain)
        self._bring()
        with _needing_slices():
            document, stats = described(self._files, state)
        return Manifest(document, tuple(stats), columns_of(state, None))

    @takes(ExportOptions)
    def export(self, asked: ExportOptions) -> Exported:
        """The folder `to` has the dataset as `lode`, `delta` or `iceberg`; what is there is continued.

        `rows` of a table are all `records`, with a version for each data block, or the `state` alone.
        `catalog` is one of PyIceberg's. `force` starts anew what cannot be continued, if it is an export.

        Raises:
            NameCollisionError, ChainsDifferError: something else is there, or the histories have parted.
            SchemaError: a column cannot be expressed.
        """
        from odfchain.profiles.export import Exporting

        self._bring(asked.progress)
        with _needing_slices():
            return Exporting(self._files, DatasetState.read(self._files.chain), asked).run()

    def write_manifest(self, key: str | Path | None = None) -> WrittenSnapshot:
        """The manifest is stored and, with the key in a file, or else the dataset's own, signed.

        Without a key here it is stored and not published: `published` of the result says so.
        """
        from odfchain.chain.signed_lines import SnapshotKind

        return self._publish(SnapshotKind.MANIFEST, self._made_manifest(), key)

    def write_profile(
        self, profile: Profile | None = None, *, key: str | Path | None = None
    ) -> WrittenSnapshot:
        """The profile, or one that `profile` made of this block in another way, is stored and signed.

        Keys are as in `write_manifest`, and so are the errors.
        """
        from odfchain.chain.signed_lines import SnapshotKind

        return self._publish(SnapshotKind.PROFILE, profile or self.profile(), key)

    def _publish(self, kind: SnapshotKind, of: Manifest | Profile, key: str | Path | None) -> WrittenSnapshot:
        from odfchain.profiles.published import publish

        state, block = DatasetState.read(self._files.chain), str(of.document["snapshot_id"])
        if block != str(state.head):
            raise errors.UsageError(
                f"{self._files.label}: the {kind} is of block {one_line(block, 80)}, not of {state.head}",
                hint="the dataset at that block publishes it: `at`",
            )
        signer, workspace = None, self._workspace._files
        if key is not None:
            signer = read_key_file(Path(key))
        elif workspace.has_key(state.seed.dataset_id):
            signer = workspace.key(state.seed.dataset_id)
        written = publish(self._files, state, kind, of.content, signer)
        self._files.shared.publish_statements(self._files.folder)
        return written

    def published(self, kind: SnapshotKind | None = None) -> list[SnapshotLine]:
        """Who vouches for which manifest or profile: valid lines, of the newest blocks first.

        Of one block the owner's stands first. Lines about blocks of other chains are left out.
        """
        from odfchain.profiles.published import published

        return published(self._files, kind)

    def published_document(
        self, line: SnapshotLine, source: str | None = None, *, token: str | None = None
    ) -> bytes:
        """The manifest or profile that a line names: what is not here comes from a copy, and stays.

        `source` is a URL or `repo/name`; None is where the dataset was pulled from.
        """
        from odfchain.profiles.published import object_of
        from odfchain.transfer.snapshot_objects import object_from

        try:
            return object_of(self._files, line)
        except errors.ObjectNotFoundError:
            sharing = self._workspace.sharing
            with closing(sharing.mirror(self._files, source, token=token)) as peer:
                return object_from(self._files, peer, line)


# Which profiles `diff --profile` compares: files, datasets at points, or the last two data blocks of one.


def is_profile_file(text: str) -> bool:
    """True if a text is a path and no `DATASET@POINT`: it ends in `.json`, or begins with `.` or `/`."""
    return text.endswith(".json") or text[:1] in {".", "/"} or bool(Path(text).drive)


def drift_between(
    a: str,
    b: str | None,
    workspace: Callable[[], Workspace],
    *,
    policy: str | Path | None = None,
    compute: bool = True,
    progress: Progress = SILENT,
) -> Drift:
    """How far two profiles are apart: of files, of `DATASET@POINT`; of the last two data blocks of one.

    The workspace is opened where a dataset is named. A profile that was kept, or that the owner published, is
    taken as it is; others are computed, which reads slices.
    """
    notes: list[str] = []
    shared = functools.cache(workspace)

    def of_dataset(dataset: Dataset) -> Profile:
        return _profile_of(dataset, notes, compute=compute, progress=progress)

    def named(text: str) -> Profile:
        from odfchain.api.branching import at_point  # files need no chain

        return Profile.read(text) if is_profile_file(text) else of_dataset(at_point(shared(), text))

    if b is None:
        before, after = map(of_dataset, _last_two(shared(), a))
    else:
        before, after = named(a), named(b)
    found = compare_profiles(before, after, policy)
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _last_two(workspace: Workspace, text: str) -> list[Dataset]:
    from odfchain.api.branching import at_point, open_dataset_at

    dataset = at_point(workspace, text)
    # blocks without data change no profile
    newest = [ref.block_hash for ref in islice(dataset.summary.slices_newest_first(), 2)]
    if len(newest) < 2:
        raise errors.PointNotFoundError(
            f"{text} has no two blocks with data to compare",
            hint="name two: `odfchain diff --profile A B`, each DATASET@POINT or the file of a profile",
        )
    return [open_dataset_at(dataset._files, workspace, block) for block in reversed(newest)]


def _profile_of(dataset: Dataset, notes: list[str], *, compute: bool, progress: Progress) -> Profile:
    from odfchain.profiles.published import kept_profile

    files, summary = dataset._files, dataset.summary
    if (kept := kept_profile(files, summary.head)) is not None:
        return Profile(kept)
    block = f"block {summary.head_block.sequence_number:,}"
    if (published := _owners_profile(files, summary.head)) is not None:
        notes.append(f"{dataset.alias}, {block}: the profile is the one that its owner published")
        return Profile(published)
    if not compute:
        raise errors.PointNotFoundError(
            f"{dataset.alias}: no profile of {block} is here",
            hint="leave --no-compute out, and it is computed",
        )
    return dataset.profile(progress=progress)


def _owners_profile(dataset: DatasetFiles, block: Multihash) -> dict[str, Any] | None:
    # what the owner signed for a block; None where it is missing or damaged
    from odfchain.chain.signed_lines import SnapshotKind
    from odfchain.profiles.published import object_of, published
    from odfchain.profiles.reader import read_profile

    for line in published(dataset, SnapshotKind.PROFILE, owners=True):
        if line.block == block:
            with suppress(errors.StoreError, errors.CodecError):
                return read_profile(object_of(dataset, line))
    return None
