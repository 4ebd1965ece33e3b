"""Garbage collection: what no reference needs any more is removed, once it has not been used for a while.

Nothing that a reference needs is ever removed, whoever writes at the same time:

- what is needed is found out completely or nothing is removed;
- a transaction's objects are unreachable until the head moves. They are young then, because storing an object
  marks it as used also when it was there before, under the lock that removing takes
  (`LocalObjectStore.discard`); so the grace period covers them, and may not be shorter than `SHORTEST_GRACE`;
- a pull, which may use objects without storing them again, holds a lock that is held here as well.

Of a dataset in a store the same goes for the objects there, by the store's clock (RFC-048).

Killed at any moment it has removed some of what it may remove, and the next run removes the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain.branch.state_cache import states_folder
from odfchain.chain.index import ROW_BYTES
from odfchain.errors import BusyError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.profile.kept_parts import parts_folder
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.fetched_branches import forget_gone
from odfchain.repo.kept_footers import drop_footers
from odfchain.repo.references import OVERWRITTEN, lock_path, ref_names, refs_of
from odfchain.repo.shared_store import Garbage
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store import fsio
from odfchain.transfer.partial import incoming_folder
from odfchain.transfer.public_layout import ObjectKind
from odfchain.transfer.slice_files import store_of
from odfchain.upkeep.reachable import Reachable, forget_lines, reachable
from odfchain.upkeep.referrers import bring_branches, of_changes

GRACE = 24 * 3600.0
"""How long what is not needed stays [s] when nothing else is said."""

SHORTEST_GRACE = 600.0
"""The shortest grace period [s]: far longer than from storing the first object of a transaction to moving the
head, which is what it has to cover."""

_TITLES = {kind: "slices" if kind is ObjectKind.DATA else kind.value for kind in ObjectKind}
_TEMP_FOLDERS = (*(kind.value for kind in ObjectKind), "refs", "info", "attestations")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """How to collect garbage."""

    grace: float = GRACE
    """What was used in this time stays [s]."""
    drop_refs: bool = False
    """Give up heads that were overwritten or reset before the grace period."""
    dry_run: bool = False
    """Remove nothing, count what would be removed."""
    break_references: bool = False
    """Remove also changes that foreign keys name."""

    def __post_init__(self) -> None:
        """Refuse what would endanger running transactions.

        Raises:
            UsageError: the grace period is too short.
        """
        if not self.grace >= SHORTEST_GRACE:
            raise UsageError(
                f"a grace period of {self.grace:g} seconds is too short for what other processes are writing",
                hint=f"the shortest one is {SHORTEST_GRACE:g} seconds",
            )


_NONE_YOUNG = Garbage("young", 0, 0)


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed (with `dry_run`: would be) of a dataset, or of the workspace beside the datasets."""

    dataset: str | None
    """None for the workspace itself."""
    removed: tuple[Garbage, ...]
    young: Garbage = _NONE_YOUNG
    """Objects that no reference needs, and that the grace period protects."""
    refs: tuple[str, ...] = ()
    """References that were given up."""
    kept_refs: tuple[str, ...] = ()
    """References to overwritten heads that stay."""
    referrers: tuple[str, ...] = ()
    """Datasets whose rows name changes that nothing else needs; these stay."""

    @property
    def bytes(self) -> int:
        """Size of everything that was removed [bytes]."""
        return sum(item.bytes for item in self.removed)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{item.files:,} {item.kind}" for item in self.removed) or "nothing"
        return f"<garbage of {self.dataset or 'the workspace'}: {kinds}, {self.bytes:,} bytes>"


def collect(
    dataset: DatasetFiles,
    options: GcOptions | None = None,
    *,
    workspace: WorkspaceFiles | None = None,
    now: Callable[[], float] = time.time,
) -> Collected:
    """The dataset has all that its references need, and nothing else that is older than the grace period.

    What foreign keys in the `workspace` name stays, too.

    Raises:
        BusyError: something is being pulled into it.
    """
    options = options or GcOptions()
    if workspace is not None:
        bring_branches(workspace)
    needing = None if options.break_references else workspace
    with fsio.try_locked(lock_path(dataset)) as free:
        if not free:
            raise BusyError(
                f"{dataset.alias}: something is being pulled into it", hint="run gc again when that is done"
            )
        found = _Collection(dataset, options, int((now() - options.grace) * 1e9), needing).run()
    stored = dataset.shared.collect(
        dataset.folder,
        functools.partial(_needed_keys, dataset, found.refs, needing),
        grace=options.grace,
        dry_run=options.dry_run,
    )
    if not stored:
        return found
    *removed, young = stored
    return dataclasses.replace(
        found,
        removed=(*found.removed, *(item for item in removed if item.files)),
        young=Garbage("young", found.young.files + young.files, found.young.bytes + young.bytes),
    )


def _needed(
    dataset: DatasetFiles, dropped: Sequence[str], workspace: WorkspaceFiles | None
) -> tuple[Reachable, list[str]]:
    """(what stays without some references, who keeps what they alone lead to)."""
    needed = reachable(dataset, frozenset(dropped))
    if workspace is None:
        return needed, []
    referrers, named = of_changes(workspace, dataset, lambda: needed.blocks)
    return (reachable(dataset, frozenset(dropped), named) if named else needed), referrers


def _needed_keys(*asked: Any) -> frozenset[str]:
    return _needed(*asked)[0].keys()


@dataclass(frozen=True, slots=True)
class _Collection:
    """One run over a dataset; what was last used before `before_ns` is old."""

    dataset: DatasetFiles
    options: GcOptions
    before_ns: int
    workspace: WorkspaceFiles | None

    def run(self) -> Collected:
        overwritten = [name for name in ref_names(self.dataset) if name.startswith(OVERWRITTEN)]
        dropped = [n for n in overwritten if self.options.drop_refs and self._is_old("refs", n)]
        needed, referrers = _needed(self.dataset, dropped, self.workspace)
        if not self.options.dry_run:
            refs = refs_of(self.dataset)
            for name in dropped:
                head = refs.get(name)
                if head is not None:
                    refs.remove(name, head)
            drop_footers(self.dataset, needed.of(ObjectKind.DATA).__contains__)
        removed, young_files, young_bytes = [], 0, 0
        for kind, title in _TITLES.items():
            gone, young = self._old(kind, needed.of(kind))
            removed.append(Garbage(title, len(gone), sum(gone)))
            young_files, young_bytes = young_files + len(young), young_bytes + sum(young)
        if not self.options.dry_run:
            forget_lines(self.dataset)
        incoming = incoming_folder(self.dataset)
        dead = fsio.clear_abandoned(self.dataset.folder / "staging", keep=self.options.dry_run)
        left = [incoming] if fsio.is_unused_since(incoming, self.before_ns) else []
        removed += [
            self._temporary(),
            self._profile_parts({str(name) for name in needed.of(ObjectKind.DATA)}),
            Garbage("staging", *dead),
            _remove("incoming", left, dry_run=self.options.dry_run),
            _remove("states", list(states_folder(self.dataset).glob("*")), dry_run=self.options.dry_run),
            *self._of_references(),
        ]
        return Collected(
            str(self.dataset.alias),
            tuple(item for item in removed if item.files),
            Garbage("young", young_files, young_bytes),
            tuple(dropped),
            tuple(name for name in overwritten if name not in dropped),
            tuple(referrers),
        )

    def _is_old(self, *parts: str) -> bool:
        return fsio.is_unused_since(self.dataset.folder.joinpath(*parts), self.before_ns)

    def _old(self, kind: ObjectKind, needed: set[Multihash]) -> tuple[list[int], list[int]]:
        """Sizes of what is not needed of a kind: what was removed, and what is too young."""
        store = store_of(self.dataset, kind)
        old: list[Multihash] = []
        young: list[Multihash] = []
        for name in store.names():
            if name not in needed:
                (old if self._is_old(kind.value, str(name)) else young).append(name)
        if self.options.dry_run:
            gone = {name: store.size(name) for name in old}
        else:
            gone = dict(store.discard(old, unused_since_ns=self.before_ns))
        # what was stored again meanwhile is young now
        kept = [store.size(name) for name in [*young, *(n for n in old if n not in gone)]]
        return list(gone.values()), kept

    def _temporary(self) -> Garbage:
        """Files that were never given their name."""
        files = [
            path
            for folder in _TEMP_FOLDERS
            for path in (self.dataset.folder / folder).glob(f"{fsio.TEMP_PREFIX}*")
            if self._is_old(folder, path.name)
        ]
        return _remove("unfinished files", files, dry_run=self.options.dry_run)

    def _profile_parts(self, slices: set[str]) -> Garbage:
        """What profiles found of slices that are not needed any more; that is never kept for a while."""
        parts = [path for path in parts_folder(self.dataset).glob("*") if path.stem not in slices]
        return _remove("parts of profiles", parts, dry_run=self.options.dry_run)

    def _of_references(self) -> Iterator[Garbage]:
        """What belongs to references that are gone, and indexes with rows of blocks that a chain has not."""
        folder, names = self.dataset.folder, frozenset(ref_names(self.dataset))
        signatures = [
            path
            for path in (folder / "refs").glob("*.jws")
            if path.stem not in names and self._is_old("refs", path.name)
        ]
        yield _remove("signatures", signatures, dry_run=self.options.dry_run)
        current = {self.dataset.on(name).index_path for name in names}
        indexes = [path for path in (folder / "info").glob("chain-index*") if path not in current]
        indexes += [self.dataset.on(name).index_path for name in names if self._has_too_many_rows(name)]
        yield _remove("chain index", indexes, dry_run=self.options.dry_run)
        if not self.options.dry_run:
            forget_gone(self.dataset)
        states = list((folder / "info" / "states").glob("*"))
        yield _remove("cached states", states, dry_run=self.options.dry_run)

    def _has_too_many_rows(self, name: str) -> bool:
        dataset = self.dataset.on(name)
        path, head = dataset.index_path, dataset.chain.head()
        if head is None or not path.is_file():
            return False
        return path.stat().st_size > (dataset.chain.get(head).sequence_number + 1) * ROW_BYTES


def collect_workspace(
    workspace: WorkspaceFiles, options: GcOptions | None = None, *, now: Callable[[], float] = time.time
) -> Collected:
    """What interrupted commands left beside the datasets is gone once it is older than the grace period.

    Looked at are `incoming`, `trash`, `run` and temporary files; nothing of a command that runs is touched.
    """
    options = options or GcOptions()
    before_ns = int((now() - options.grace) * 1e9)
    root, dry_run = workspace.root, options.dry_run
    garbage = [_incoming_of(root / "incoming", before_ns, dry_run=dry_run)]
    with fsio.locked(root / "lock"):  # under it datasets are built in the trash
        garbage.append(_remove("trash", list((root / "trash").glob("*")), dry_run=dry_run))
    garbage.append(Garbage("run", *fsio.clear_abandoned(root / "run", keep=dry_run)))
    temporary = [
        path
        for folder in (root, root / "seen", root / "keys", root / "evidence", *(root / "evidence").glob("*"))
        for path in folder.glob(f"{fsio.TEMP_PREFIX}*")
        if fsio.is_unused_since(path, before_ns)
    ]
    garbage.append(_remove("unfinished files", temporary, dry_run=dry_run))
    garbage += workspace.shared.collect_left(grace=options.grace, dry_run=dry_run)
    return Collected(None, tuple(item for item in garbage if item.files))


def _incoming_of(folder: Path, before_ns: int, *, dry_run: bool) -> Garbage:
    """Datasets that did not arrive."""
    files = size = 0
    for path in folder.glob("*") if folder.is_dir() else ():
        if not path.is_dir():
            continue
        with fsio.try_locked(folder / f".lock-{path.name}") as free:
            if free and fsio.is_unused_since(path, before_ns):
                gone = _remove("incoming", [path], dry_run=dry_run)
                files, size = files + gone.files, size + gone.bytes
    return Garbage("incoming", files, size)


def _remove(kind: str, paths: list[Path], *, dry_run: bool) -> Garbage:
    files = size = 0
    for path in paths:
        here = fsio.weigh(path)
        files, size = files + here[0], size + here[1]
        if not dry_run:
            fsio.remove_tree(path)
    return Garbage(kind, files, size)
