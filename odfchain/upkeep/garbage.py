"""Garbage collection: objects that no reference needs are removed after a grace period.

Nothing that a reference needs is ever removed, even with concurrent writers:

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
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from odfchain import errors
from odfchain.branches.foreign_keys import ChangeName, ForeignKeys, Rows, Search, cannot_refer, said_by
from odfchain.branches.state_cache import states_folder
from odfchain.chain.chain import descend
from odfchain.chain.index import ROW_BYTES
from odfchain.chain.signed_lines import SNAPSHOTS, SnapshotLine
from odfchain.chain.statements import read_regular
from odfchain.limits import LIMITS
from odfchain.odf.events import ExecuteTransform, MetadataBlock, Seed
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.profiles.published import KeptParts
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, SIGNED_ENDINGS, parse_ref
from odfchain.storage.public_layout import ObjectKind
from odfchain.text import counted, one_line
from odfchain.transfer.object_workspace import SharedWorkspace
from odfchain.transfer.slice_files import incoming_folder, objects_of, store_of
from odfchain.transfer.store_garbage import Garbage
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.declared_constraints import ForeignKey
from odfchain.workspace.merge_record import FetchedBranches, merged_names
from odfchain.workspace.options import GcOptions
from odfchain.workspace.points import OVERWRITTEN, branch_names, locked_for, ref_names, refs_of
from odfchain.workspace.read_slices import KeptFooters
from odfchain.workspace.workspace_files import WorkspaceFiles

# Reachable objects of a dataset.
#
#     refs/head                   the dataset as it is
#     refs/<branch>               the same dataset on another reference
#     refs/overwritten-<hash>     a head that was given up; kept until `gc --drop-refs`
#
# A block leads to its predecessor, to merged blocks that are here, so that merges of deleted branches can
# be computed again, and to the manifests and profiles of valid lines about it. The answer is complete or an
# error: gc must not act on half of it.


@dataclass(frozen=True, slots=True)
class Reachable:
    """Names of the objects that a dataset needs, for each kind."""

    _names: dict[ObjectKind, set[Multihash]] = field(
        default_factory=lambda: {kind: set() for kind in ObjectKind}
    )
    dataset_ids: set[DatasetId] = field(default_factory=set)
    """Whose blocks they are: one dataset's."""

    def of(self, kind: ObjectKind) -> set[Multihash]:
        """Those of one kind."""
        return self._names[kind]

    def keys(self) -> frozenset[str]:
        """All of them, as a dataset's layout calls them: `data/f1620…`."""
        return frozenset(f"{kind.value}/{name}" for kind, names in self._names.items() for name in names)

    @property
    def blocks(self) -> set[Multihash]:
        """The blocks."""
        return self._names[ObjectKind.BLOCK]


def reachable(
    dataset: DatasetFiles, without: frozenset[str] = frozenset(), also: Iterable[Multihash] = ()
) -> Reachable:
    """Every object that the references need, those in `without` left aside, or that some blocks `also` do."""
    refs = refs_of(dataset)
    try:
        # all at one moment: a reference that is moved meanwhile is seen before or after
        with fsio.locked(dataset.folder / "info" / "lock"):
            heads = {name: refs.get(name) for name in ref_names(dataset) if name not in without}
            heads |= _foreign_refs(dataset)
    except errors.StorageFullError:
        # nothing is damaged, and `fsck` would not help
        raise
    except errors.StoreError as error:
        raise _incomplete(dataset, str(error)) from error
    if heads[HEAD] is None:
        raise _incomplete(dataset, f"{dataset.folder / 'refs' / HEAD}: the dataset has no head")
    needed = _led_to(dataset, (*heads.values(), *also))
    try:
        for dataset_id in needed.dataset_ids:
            for line in lines_about(dataset, dataset_id, needed.blocks):
                needed.of(ObjectKind(line.kind.folder)).add(line.object)
    except errors.StorageFullError:
        raise
    except errors.StoreError as error:
        raise _incomplete(dataset, str(error)) from error
    return needed


def lines_about(dataset: DatasetFiles, owner: DatasetId, blocks: Container[Multihash]) -> list[SnapshotLine]:
    """The valid lines about some blocks, on any reference."""
    content = SNAPSHOTS.content(dataset.folder)
    lines = SNAPSHOTS.valid(content, owner, lambda line: line.block in blocks)
    return [line.statement for line in lines if line.statement is not None]


def merged_blocks(dataset: DatasetFiles, block: MetadataBlock) -> list[Multihash]:
    """Blocks here that a merge names other than its target; a copy of one chain may lack them."""
    return [name for name in merged_names(block.event) if dataset.chain.contains(name)]


def _foreign_refs(dataset: DatasetFiles) -> dict[str, Multihash | None]:
    folder = dataset.folder / "refs"
    known = set(ref_names(dataset))
    refs: dict[str, Multihash | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        # refs that we write are read elsewhere
        if name in known or path.name.startswith(".") or path.name.endswith(SIGNED_ENDINGS):
            continue
        if path.is_dir() and not path.is_symlink():
            continue
        content = read_regular(path, LIMITS.ref_bytes, follow=True)
        refs[name] = parse_ref(content[0], str(path)) if content is not None else None
    return refs


def _led_to(dataset: DatasetFiles, heads: Iterable[Multihash | None]) -> Reachable:
    def read(name: Multihash) -> MetadataBlock:
        try:
            return dataset.chain.get(name)
        except (errors.StoreError, errors.CodecError) as error:
            where = dataset.folder / "blocks" / str(name)
            text = str(error) if str(where) in str(error) else f"{where}: {error}"
            raise _incomplete(dataset, text) from error

    needed, merged = Reachable(), functools.partial(merged_blocks, dataset)
    for name, block in descend(heads, read, needed.blocks.__contains__, merged=merged):
        needed.blocks.add(name)
        if isinstance(block.event, Seed):
            needed.dataset_ids.add(block.event.dataset_id)
        for item in objects_of(block):
            needed.of(item.key.kind).add(item.key.name)
    return needed


def _incomplete(dataset: DatasetFiles, reason: str) -> errors.OdfchainError:
    return errors.ChainError(
        f"{dataset.alias}: it cannot be said what is still needed: {one_line(reason, 1000)}",
        hint=f"`odfchain fsck {dataset.alias}` says what is damaged, and repairs it from a copy (--from URL)",
    )


# References in a workspace to what would be given up: it stays, unless its loss is requested.
#
#     changes      rows in force, on any branch, that name them: BLOCK#OFFSET in a foreign key `changesOf`
#     a branch     rows on a branch of the same name that refer to records which the head does not have
#     a dataset    foreign keys to it, and what is made of it
#
# A block that something else still leads to, also as the source of a merge, is not given up. Source:
# RFC-037.

_SHOWN = 8


def refuse(what: str, referrers: Sequence[str], flag: str = "--break-references") -> None:
    """Raise if anything refers to the blocks that would be given up."""
    if referrers:
        more = f", and {len(referrers) - _SHOWN:,} more" if len(referrers) > _SHOWN else ""
        listed = ", ".join(referrers[:_SHOWN])
        raise errors.IngestError(f"{what} is referred to by {listed}{more}; nothing was given up", flag=flag)


@dataclass(frozen=True, slots=True)
class Referrers:
    """Datasets of a workspace whose rows, foreign keys and transforms refer to what would be given up."""

    workspace: WorkspaceFiles

    def of_changes(
        self, dataset: DatasetFiles, stays: Callable[[], Collection[Multihash]]
    ) -> tuple[list[str], set[Multihash]]:
        """(whose rows name changes in stored blocks that are not among those that stay, the blocks)."""
        asked = []
        for rows, key in self._keys(dataset.id):
            if key.changes and cannot_refer(key, rows, rows) is None:
                wanted = said_by(rows, key.columns)
                changes = map(ChangeName.parse, wanted.texts)
                blocks = [None if change is None else change.block for change in changes]
                asked.append((rows, key, wanted, blocks))
        known = {block for *_, blocks in asked for block in blocks if block is not None}
        lost = {block for block in known if dataset.chain.contains(block)}
        lost -= set(stays()) if lost else set()
        found, named = [], set[Multihash]()
        for rows, key, wanted, blocks in asked:
            bad = np.array([block in lost for block in blocks], bool)
            if not bad.any():
                continue
            count, _ = Search(rows.columns, key.columns, wanted, bad, "").run(rows.files())
            if count:
                found.append(f"{rows.name} ({counted(count, 'row')} with changes by {key})")
                named |= lost.intersection(block for block in blocks if block is not None)
        return found, named

    def of_branch(self, branch: DatasetFiles) -> list[str]:
        """Whose rows on their branch of the same name refer to records that the head does not have."""
        head = branch.on(HEAD)
        instead = {branch.id: Rows.up_to(head, DatasetState.read(head.chain))}
        found = []
        for rows, key in self._keys(branch.id, branch.ref):
            if not key.changes:
                now, later = (
                    ForeignKeys(self.workspace.present, pending=pending).holds(key, rows)
                    for pending in ({}, instead)
                )
                count = (later.count if later else 0) - (now.count if now else 0)
                if count > 0:
                    found.append(f"{rows.name} ({counted(count, 'row')} by {key})")
        return found

    def check_datasets_go(self, doomed: Sequence[DatasetFiles]) -> None:
        """No dataset but these declares foreign keys to one of them, or is made of one."""
        bring_branches(self.workspace)
        names = {DatasetId.from_multibase(dataset.folder.name): str(dataset.alias) for dataset in doomed}
        found = []
        for on, state in self._versions():
            if state.seed.dataset_id in names:
                continue
            keys = [key for key in state.constraints.foreign_keys if key.dataset in names]
            found += [f"{on.label} (foreign key {key} to {names[key.dataset]})" for key in keys]
            made_of = [names[item] for item in dict.fromkeys(_inputs(state)) if item in names]
            found += [f"{on.label} (made of {name})" for name in made_of]
        refuse(", ".join(names.values()), found, "--force")

    def check_branch_goes(self, branch: DatasetFiles) -> None:
        """Check that no dataset refers to blocks, or changes, of this branch only."""
        rows, _ = self.of_changes(branch, lambda: still_reached(branch))
        refuse(f"what only {branch.label} has", [*rows, *self.of_branch(branch)])

    def _versions(self, ref: str | None = None) -> Iterator[tuple[DatasetFiles, DatasetState]]:
        # a caller may hold the lock of a dataset, which opening it from a store would wait for
        for dataset in self.workspace.local_datasets():
            for name in (HEAD, *branch_names(dataset)):
                on = dataset.on(name)
                try:
                    state = DatasetState.read(on.chain)
                    _ = state.seed, state.constraints
                except errors.OdfchainError:
                    continue  # it refuses its own rows
                if ref in (None, name):
                    yield on, state

    def _keys(self, dataset: DatasetId, ref: str | None = None) -> Iterator[tuple[Rows, ForeignKey]]:
        for on, state in self._versions(ref):
            if keys := [key for key in state.constraints.foreign_keys if key.dataset == dataset]:
                # all rows of the declaring dataset, not only new ones
                rows = Rows.after(on, None, state)
                yield from ((rows, key) for key in keys)


def still_reached(dataset: DatasetFiles, *more: Multihash) -> set[Multihash]:
    """The blocks that stay when the reference of a dataset moves to others, heads given up before aside."""
    refs = (ref for ref in ref_names(dataset) if ref != dataset.ref and not ref.startswith(OVERWRITTEN))
    return _led_to(dataset, [*map(dataset.chain.head, refs), *more]).blocks


def bring_branches(workspace: WorkspaceFiles) -> None:
    """Fetch the branches of a store; the caller holds no lock of a dataset."""
    for dataset in workspace.datasets():
        dataset.shared.follow(dataset.folder)


def _inputs(state: DatasetState) -> Iterator[DatasetId]:
    if state.transform is not None:
        yield from state.transform.input_ids
    # a transform may have had other inputs before
    for hashed in state.chain.nearest_all(ExecuteTransform.KIND, head=state.head):
        event = hashed.block.event
        if isinstance(event, ExecuteTransform):
            yield from (item.dataset_id for item in event.query_inputs)


_TITLES = {kind: "slices" if kind is ObjectKind.DATA else kind.value for kind in ObjectKind}


_NONE_YOUNG = Garbage("young", 0, 0)


@dataclass(frozen=True, slots=True)
class Collected:
    """Removed garbage (with `dry_run`: removable) of a dataset, or of the workspace itself."""

    dataset: str | None
    """None for the workspace itself."""
    removed: tuple[Garbage, ...]
    young: Garbage = _NONE_YOUNG
    """Objects that no reference needs, and that the grace period protects."""
    refs: tuple[str, ...] = ()
    """References that were given up."""
    kept_refs: tuple[str, ...] = ()
    """References to overwritten heads that stay."""
    kept_until: Timestamp | None = None
    """When the newest of these has the age of the grace; None where it has."""
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
    """
    options = options or GcOptions()
    if workspace is not None:
        bring_branches(workspace)
    needing = None if options.break_references else workspace
    with locked_for(dataset, "gc"):
        found = _Collection(dataset, options, int((now() - options.grace) * 1e9), needing).run()

    def needed() -> frozenset[str]:
        return _needed(dataset, found.refs, needing)[0].keys()

    shared = dataset.shared
    if not isinstance(shared, SharedWorkspace):
        return found
    *removed, young = shared.collect(dataset.folder, needed, grace=options.grace, dry_run=options.dry_run)
    return dataclasses.replace(
        found,
        removed=(*found.removed, *(item for item in removed if item.files)),
        young=Garbage("young", found.young.files + young.files, found.young.bytes + young.bytes),
    )


def _needed(
    dataset: DatasetFiles, dropped: Sequence[str], workspace: WorkspaceFiles | None
) -> tuple[Reachable, list[str]]:
    needed = reachable(dataset, frozenset(dropped))
    if workspace is None:
        return needed, []
    referrers, named = Referrers(workspace).of_changes(dataset, lambda: needed.blocks)
    return (reachable(dataset, frozenset(dropped), named) if named else needed), referrers


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
                if (head := refs.get(name)) is not None:
                    refs.remove(name, head)
            KeptFooters(self.dataset).drop(needed.of(ObjectKind.DATA).__contains__)
        removed, young_files, young_bytes = [], 0, 0
        for kind, title in _TITLES.items():
            gone, young = self._old(kind, needed.of(kind))
            removed.append(Garbage(title, len(gone), sum(gone)))
            young_files, young_bytes = young_files + len(young), young_bytes + sum(young)
        folder, chain = self.dataset.folder, self.dataset.chain
        if not self.options.dry_run and (folder / SNAPSHOTS.key).exists():
            SNAPSHOTS.drop(folder, self.dataset.id, lambda line: chain.contains(line.block))
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
        kept = tuple(name for name in overwritten if name not in dropped)
        last = max((fsio.last_use_ns(folder / "refs" / name) for name in kept), default=0)
        grace_ns = round(self.options.grace * 1e9)
        return Collected(
            str(self.dataset.alias),
            tuple(item for item in removed if item.files),
            Garbage("young", young_files, young_bytes),
            tuple(dropped),
            kept,
            Timestamp.from_epoch_ms((last + grace_ns) // 10**6) if last >= self.before_ns else None,
            tuple(referrers),
        )

    def _is_old(self, *parts: str) -> bool:
        return fsio.is_unused_since(self.dataset.folder.joinpath(*parts), self.before_ns)

    def _old(self, kind: ObjectKind, needed: set[Multihash]) -> tuple[list[int], list[int]]:
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
        files = [
            path
            for folder in (*(kind.value for kind in ObjectKind), "refs", "info", "attestations")
            for path in (self.dataset.folder / folder).glob(f"{fsio.TEMP_PREFIX}*")
            if self._is_old(folder, path.name)
        ]
        return _remove("unfinished files", files, dry_run=self.options.dry_run)

    def _profile_parts(self, slices: set[str]) -> Garbage:
        parts = [path for path in KeptParts(self.dataset).folder.glob("*") if path.stem not in slices]
        return _remove("parts of profiles", parts, dry_run=self.options.dry_run)

    def _of_references(self) -> Iterator[Garbage]:
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
            FetchedBranches(self.dataset).forget_gone()

    def _has_too_many_rows(self, name: str) -> bool:
        dataset = self.dataset.on(name)
        path, head = dataset.index_path, dataset.chain.head()
        if head is None or not path.is_file():
            return False
        return path.stat().st_size > (dataset.chain.get(head).sequence_number + 1) * ROW_BYTES


def collect_workspace(
    workspace: WorkspaceFiles, options: GcOptions | None = None, *, now: Callable[[], float] = time.time
) -> Collected:
    """Remove remains of interrupted commands that are older than the grace period."""
    options = options or GcOptions()
    before_ns = int((now() - options.grace) * 1e9)
    root, dry_run = workspace.root, options.dry_run
    # running commands hold locks on their files, which are skipped
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
    if isinstance(workspace.shared, SharedWorkspace):
        garbage += workspace.shared.collect_left(grace=options.grace, dry_run=dry_run)
    return Collected(None, tuple(item for item in garbage if item.files))


def _incoming_of(folder: Path, before_ns: int, *, dry_run: bool) -> Garbage:
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
