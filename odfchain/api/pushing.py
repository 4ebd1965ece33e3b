"""`push` of several datasets: their order and destinations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.branching import check_branch, matching_at, on_branch
from odfchain.api.pulling import is_copy, with_inputs
from odfchain.api.snapshots import Snapshots
from odfchain.errors import DatasetNotFoundError, InvalidIdError, OdfchainError, UsageError
from odfchain.odf.names import DatasetName, RepoName
from odfchain.transfer.public_layout import PlainUrl
from odfchain.transfer.repositories import parse_peer_url
from odfchain.transfer.sharing import AliasKind, aliases

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.snapshots import Manifest, Profile
    from odfchain.api.workspace import Workspace
    from odfchain.chain.signed_lines import SnapshotKind, SnapshotLine
    from odfchain.profiles.published import WrittenSnapshot
    from odfchain.transfer.sharing import Sharing


@dataclass(frozen=True, slots=True)
class PushTarget:
    """One dataset of a push; `target.dataset.push(target.to)` sends it."""

    dataset: Dataset
    to: str | None
    """A URL or `repo/name`; None is where it was pushed to before."""

    def __str__(self) -> str:
        return self.dataset.label


def targets_of(
    workspace: Workspace, names: Sequence[str] | None, to: str | None, *, recursive: bool
) -> list[PushTarget]:
    """Targets of a push of these names, inputs before what is made of them; None is everything.

    One dataset by its name goes to `to` itself, or below it where that is a repository's name; several go to
    a repository, each by its own name there.

    Raises:
        InvalidIdError, DatasetNotFoundError, WorkspaceError, UnsupportedPeerError: a name means nothing here.
        UsageError: two of them would go to the same place, or `to` is one dataset for several.
    """
    sharing = workspace._sharing
    found = _named(workspace, names, to)
    if recursive:
        found = [
            dataset
            for dataset in with_inputs(workspace, found[::-1])  # so what is independent keeps its order
            # what came from elsewhere is there already
            if to is not None or dataset in found or not is_copy(dataset)
        ]
    elif names is None:
        found = _inputs_first(workspace, found)
    if to is None:
        targets = [PushTarget(dataset, None) for dataset in found]
    elif recursive or names is None or len(names) != 1 or "%" in names[0]:
        targets = [PushTarget(dataset, _below(sharing, to, dataset.alias.name)) for dataset in found]
    else:
        targets = [PushTarget(dataset, to) for dataset in found]
    _refuse_collisions(sharing, targets)
    return targets


def split_target(
    workspace: Workspace, texts: Sequence[str], *, everything: bool
) -> tuple[list[str], str | None]:
    """Split names of datasets from the destination at the end: a URL, `repo/name`, or a repository's name.

    Raises:
        UsageError: no dataset is named, or one with `everything`; the last one may be either.
        DatasetNotFoundError: the last one is neither a dataset nor a place.
    """
    if (everything and len(texts) > 1) or not (everything or texts):
        raise UsageError("name the datasets to push (names, ids or % patterns), or use --all")
    if everything:
        return [], texts[0] if texts else None
    *names, last = texts
    if not names:
        return [last], None
    known = "/" not in last and _is_repository(workspace._sharing, last)
    if known and last in workspace:
        raise UsageError(
            f"{last} is a dataset here and a repository, too", hint=f"for the repository write --to {last}"
        )
    if known or ((":" in last or "/" in last) and workspace.is_remote(last)):
        return names, last
    if not {"/", "%", "@"} & set(last) and last not in workspace:
        raise DatasetNotFoundError(
            f"no dataset and no repository is called {last!r}",
            hint="`odfchain list` and `odfchain repo list` show those that there are",
        )
    return [*names, last], None


def _is_repository(sharing: Sharing, text: str) -> bool:
    try:
        return sharing.repositories.find(RepoName(text)) is not None
    except InvalidIdError:
        return False


def _named(workspace: Workspace, names: Iterable[str] | None, to: str | None) -> list[Dataset]:
    if names is None:
        return [each for each in workspace if to is not None or each.aliases(AliasKind.PUSH.value)]
    found: list[Dataset] = []
    for name in names:
        check_branch(name)
        found += matching_at(workspace, name) if "%" in name else [_one(workspace, name)]
    return list(dict.fromkeys(found))


def _one(workspace: Workspace, name: str) -> Dataset:
    workspace._sharing.named(name.partition("@")[0])  # says what `a/b` may have meant
    return on_branch(workspace, name)


def _inputs_first(workspace: Workspace, datasets: list[Dataset]) -> list[Dataset]:
    try:
        return [dataset for dataset in with_inputs(workspace, datasets[::-1]) if dataset in datasets]
    # the order is best effort: every dataset that can be pushed is pushed
    except OdfchainError:
        return datasets


def _below(sharing: Sharing, to: str, name: DatasetName) -> str:
    if "://" in to or to.lower().startswith("file:"):
        return parse_peer_url(to).dataset(str(name)).text
    if "/" in to:
        sharing.url_of(to)  # says what else is wrong with it
        raise UsageError(
            f"{to} is one dataset, and several are to be pushed",
            hint=f"name the repository, and they keep their names: --to {to.partition('/')[0]}",
        )
    # fails for an unknown repository
    sharing.repositories.get(RepoName(to))
    return f"{to}/{name}"


def _refuse_collisions(sharing: Sharing, targets: Iterable[PushTarget]) -> None:
    taken: dict[tuple[object, ...], PushTarget] = {}
    for target in targets:
        files = target.dataset._files
        text = target.to or next(iter(aliases(files, AliasKind.PUSH)), None)
        if text is None:
            continue  # which is said when its turn comes
        try:
            url = sharing.destination(files, text)[0]
        except OdfchainError:
            if target.to is not None:
                raise
            continue  # as above
        place = PlainUrl.of(url)
        key = (place.protocol, place.server, *(each.lower() for each in place.path), files.ref)
        # the second push would find the first one's blocks there
        other = taken.setdefault(key, target)
        if other is not target:
            first, second = sorted(map(str, (other, target)))
            raise UsageError(
                f"{first} and {second} would both be pushed to {url}; nothing was sent",
                hint="push them one by one, each with a name of its own there: --to REPOSITORY/NAME",
            )


# Publishing what describes a dataset at a block, and reading what was published (RFC-042).


class Publishing(Snapshots):
    """Manifests and profiles of a dataset, made here or signed by others."""

    def write_manifest(self, key: str | Path | None = None) -> WrittenSnapshot:
        """The manifest is stored and, with the key in a file, or else the dataset's own, signed.

        Without a key here it is stored and not published: `published` of the result says so.

        Raises:
            PartialCopyError, ObjectCorruptedError, OversizedInputError: naming the slice.
            CodecError: the manifest is too large.
            InvalidIdError, WorkspaceError: the file is no key, or others may read it.
            StoreError: it cannot be stored, or there is no room for its line.
        """
        from odfchain.chain.signed_lines import SnapshotKind

        return self._publish(SnapshotKind.MANIFEST, self._made_manifest(), key)

    def write_profile(
        self, profile: Profile | None = None, *, key: str | Path | None = None
    ) -> WrittenSnapshot:
        """The profile, or one that `profile` made of this block in another way, is stored and signed.

        Keys are as in `write_manifest`, and so are the errors.

        Raises:
            UsageError: the profile is of another block.
        """
        from odfchain.chain.signed_lines import SnapshotKind

        return self._publish(SnapshotKind.PROFILE, profile or self.profile(), key)

    def _publish(
        self, kind: SnapshotKind, found: Manifest | Profile, key: str | Path | None
    ) -> WrittenSnapshot:
        from odfchain.chain.statements import read_key_file
        from odfchain.profiles.published import publish
        from odfchain.text import one_line
        from odfchain.workspace.dataset_state import DatasetState

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
        """Published manifests and profiles with their signers: valid lines, of the newest blocks first.

        Of one block the owner's comes first. Lines about blocks of other chains are left out.

        Raises:
            StoreError: the lines cannot be read.
        """
        from odfchain.profiles.published import published

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
        from odfchain.profiles.published import object_of
        from odfchain.transfer.snapshot_objects import object_from

        try:
            return object_of(self._files, line)
        except ObjectNotFoundError:
            sharing = self._workspace._sharing
            with closing(sharing.mirror(self._files, source, token=token)) as peer:
                return object_from(self._files, peer, line)
