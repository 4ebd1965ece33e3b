"""Publishing what describes a dataset at a block, and reading what was published (RFC-042)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.snapshots import Snapshots

if TYPE_CHECKING:
    from odfchain.api.snapshots import Manifest, Profile
    from odfchain.manifest.published_objects import WrittenSnapshot
    from odfchain.trust.snapshot_lines import SnapshotKind, SnapshotLine


class Publishing(Snapshots):
    """Manifests and profiles of a dataset, made here or signed by somebody."""

    def write_manifest(self, key: str | Path | None = None) -> WrittenSnapshot:
        """The manifest is stored and, with the key in a file, or else the dataset's own, signed.

        Without a key here it is stored and not published: `published` of the result says so.

        Raises:
            PartialCopyError, ObjectCorruptedError, OversizedInputError: naming the slice.
            CodecError: the manifest is too large.
            InvalidIdError, WorkspaceError: the file is no key, or others may read it.
            StoreError: it cannot be stored, or there is no room for its line.
        """
        from odfchain.trust.snapshot_lines import SnapshotKind

        return self._publish(SnapshotKind.MANIFEST, self._made_manifest(), key)

    def write_profile(
        self, profile: Profile | None = None, *, key: str | Path | None = None
    ) -> WrittenSnapshot:
        """The profile, or one that `profile` made of this block in another way, is stored and signed.

        Keys are as in `write_manifest`, and so are the errors.

        Raises:
            UsageError: the profile is of another block.
        """
        from odfchain.trust.snapshot_lines import SnapshotKind

        return self._publish(SnapshotKind.PROFILE, profile or self.profile(), key)

    def _publish(
        self, kind: SnapshotKind, found: Manifest | Profile, key: str | Path | None
    ) -> WrittenSnapshot:
        from odfchain.errors import UsageError
        from odfchain.manifest.published_objects import publish
        from odfchain.repo.dataset_state import DatasetState
        from odfchain.text import one_line
        from odfchain.trust.signing_keys import read_key_file

        state, block = DatasetState.read(self._files.chain), str(found.document["snapshot_id"])
        if block != str(state.head):
            raise UsageError(
                f"{self._files.label}: the {kind} is of block {one_line(block, 80)}, not of {state.head}",
                hint="the dataset at that block publishes it: `at`",
            )
        signer, workspace = None, self._workspace._files
        if key is not None:
            signer = read_key_file(Path(key))
        elif workspace.has_key(state.seed.dataset_id):
            signer = workspace.key(state.seed.dataset_id)
        written = publish(self._files, state, kind, found.content, signer)
        self._files.shared.stated(self._files.folder)
        return written

    def published(self, kind: SnapshotKind | None = None) -> list[SnapshotLine]:
        """Who vouches for which manifest or profile: valid lines, of the newest blocks first.

        Of one block the owner's stands first. Lines about blocks of other chains are left out.

        Raises:
            StoreError: the lines cannot be read.
        """
        from odfchain.manifest.published_objects import published

        return published(self._files, kind)

    def published_document(
        self, line: SnapshotLine, source: str | None = None, *, token: str | None = None
    ) -> bytes:
        """The manifest or profile that a line names: what is not here comes from a copy, and stays.

        `source` is a URL or `repo/name`; None is where the dataset was pulled from.

        Raises:
            ObjectCorruptedError, StoreError: what is here is damaged, or it cannot be stored.
            UsageError: it is not here, and no source is given or known.
            InvalidIdError, WorkspaceError, TransferError: the source does not have it.
        """
        from odfchain.errors import ObjectNotFoundError
        from odfchain.manifest.published_objects import object_of
        from odfchain.transfer.snapshot_objects import object_from

        try:
            return object_of(self._files, line)
        except ObjectNotFoundError:
            sharing = self._workspace._sharing
            with closing(sharing.mirror(self._files, source, token=token)) as peer:
                return object_from(self._files, peer, line)
