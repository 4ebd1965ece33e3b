"""What describes a dataset at a block: its manifest and its profile (RFC-039, RFC-040)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.drift.comparison import Drift
    from odfchain.ids.multihash import Multihash
    from odfchain.repo.dataset_files import DatasetFiles


@dataclass(frozen=True, slots=True)
class Profile:
    """What the rows in force look like at a block; anybody who has them computes the same bytes."""

    document: Mapping[str, Any]
    """As JSON has it: the fields of ADR-0001, flat and under their names."""

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """A profile from a file.

        Raises:
            UsageError: there is no such file.
            CodecError, UnsupportedVersionError: it is no profile, or of another format.
        """
        from odfchain.profile.profile_reader import MOST_BYTES, read_profile

        return cls(read_profile(_bytes_of(path, MOST_BYTES)))

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
        from odfchain.codec.document_bytes import canonical_bytes

        return canonical_bytes(self.document)

    @property
    def hash(self) -> Multihash:
        """The SHA3-256 of that text."""
        from odfchain.digest.physical import hash_bytes

        return hash_bytes(self.content)

    def __repr__(self) -> str:
        found = self.document
        name, number = found["dataset_name"], found["odf"]["sequence_number"]
        return (
            f"<profile of {name} at block {number}: {self.num_rows:,} rows, {found['num_columns']} columns>"
        )


def _bytes_of(path: str | Path, most: int) -> bytes:
    """The content of a file; one byte more than it may have says that it is too large."""
    from odfchain.errors import UsageError
    from odfchain.store import fsio

    found = fsio.read_start(Path(path), most + 1)
    if found is None:
        raise UsageError(f"{path}: there is no such file")
    return found


def compare_profiles(before: Profile, after: Profile, policy: str | Path | None = None) -> Drift:
    """How far two profiles are apart, by the limits of a policy file; no data are read.

    Raises:
        ManifestError: the policy is none.
        UsageError: there is no such file.
    """
    from odfchain.drift.comparison import compare_profiles as compared
    from odfchain.drift.policy import read_policy
    from odfchain.limits import LIMITS

    chosen = None
    if policy is not None:
        chosen = read_policy(_bytes_of(policy, LIMITS.manifest_bytes), source=str(policy))
    return compared(before.document, after.document, chosen)


class Snapshots:
    """What describes a dataset at its newest block, or at a point (`Dataset.at`)."""

    _workspace: Workspace
    _files: DatasetFiles

    def profile(
        self,
        *,
        stage: str | None = None,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        hide: Iterable[str] = (),
        progress: Progress = SILENT,
    ) -> Profile:
        """The profile of the rows in force; starts no JVM, and reads only slices that are not known yet.

        `stage`, `description` and `tags` are the publisher's words. Of the columns in `hide` only counts are
        said, for what is published.

        Raises:
            UsageError: a hidden column is none.
            SliceNotFoundError, ObjectCorruptedError, BadInputError, OversizedInputError: naming the slice.
        """
        from odfchain.profile.of_dataset import ProfileOptions, profile_of
        from odfchain.repo.dataset_state import DatasetState

        options = ProfileOptions(stage=stage, description=description, tags=tags or {}, hidden=tuple(hide))
        return Profile(profile_of(self._files, DatasetState.read(self._files.chain), options, progress))

    def manifest(self) -> Mapping[str, Any]:
        """The manifest: files, checksums and what their footers report, as `manifest_bytes` has it.

        Raises:
            SliceNotFoundError, ObjectCorruptedError, BadInputError, OversizedInputError: naming the slice.
        """
        from odfchain.manifest.manifest_of import manifest_of
        from odfchain.repo.dataset_state import DatasetState

        return manifest_of(self._files, DatasetState.read(self._files.chain))
