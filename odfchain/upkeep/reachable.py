"""What a dataset needs: every object that can be reached from its references.

    refs/head                   the dataset as it is
    refs/<branch>               the same dataset on another reference
    refs/overwritten-<hash>     a head that was given up; kept until garbage collection is told to drop it

A block leads to its predecessor, and a merge also to what was merged, as far as that is here: so a merged
branch may be deleted, and its merge still be computed again. And it leads to the manifests and profiles that
valid lines about it name.

The answer is complete or there is none: who removes what is not in it must not act on half of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from odfchain.errors import BrokenChainError, CodecError, OdfchainError, StoreError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS
from odfchain.model.events import MetadataEvent, Seed
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.merge_record import merged_names
from odfchain.repo.references import ref_names, refs_of
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD, parse_ref
from odfchain.text import one_line
from odfchain.transfer.public_layout import ObjectKind
from odfchain.transfer.slice_files import objects_of
from odfchain.trust.files import read_regular
from odfchain.trust.snapshot_lines import SNAPSHOTS, SnapshotLine


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
    """Every object that the references need, those in `without` left aside, or that some blocks `also` do.

    All references are read at one moment, so that one which is given up meanwhile is seen, or what it is
    given up for.

    Raises:
        BrokenChainError: a reference or a block is missing or damaged; the message names the file.
    """
    refs = refs_of(dataset)
    try:
        with fsio.locked(dataset.folder / "info" / "lock"):
            heads = {name: refs.get(name) for name in ref_names(dataset) if name not in without}
            heads |= _foreign_refs(dataset)
    except StoreError as error:
        raise _incomplete(dataset, str(error)) from error
    if heads[HEAD] is None:
        raise _incomplete(dataset, f"{dataset.folder / 'refs' / HEAD}: the dataset has no head")
    needed = Reachable()
    for head in (*heads.values(), *also):
        if head is not None:
            _add(dataset, head, needed)
    try:
        for dataset_id in needed.dataset_ids:
            for line in lines_about(dataset, dataset_id, needed.blocks):
                needed.of(ObjectKind(line.kind.folder)).add(line.object)
    except StoreError as error:
        raise _incomplete(dataset, str(error)) from error
    return needed


def led_to(dataset: DatasetFiles, heads: Iterable[Multihash | None]) -> set[Multihash]:
    """The blocks that some heads lead to, also by merges; errors as `reachable`."""
    needed = Reachable()
    for head in heads:
        if head is not None:
            _add(dataset, head, needed)
    return needed.blocks


def lines_about(
    dataset: DatasetFiles, dataset_id: DatasetId, blocks: Container[Multihash]
) -> list[SnapshotLine]:
    """The valid lines about some blocks, of whatever reference."""
    content = SNAPSHOTS.content(dataset.folder)
    lines = SNAPSHOTS.valid(content, dataset_id, lambda line: line.block in blocks)
    return [line.statement for line in lines if line.statement is not None]


def forget_lines(dataset: DatasetFiles) -> None:
    """Lines about blocks that are not stored any more are gone."""
    if (dataset.folder / SNAPSHOTS.key).exists():
        SNAPSHOTS.drop(dataset.folder, dataset.id, lambda line: dataset.chain.contains(line.block))


def merged_blocks(dataset: DatasetFiles, event: MetadataEvent) -> list[Multihash]:
    """What a merge names beside its target, as far as it is here: a copy of one chain may lack it."""
    return [name for name in merged_names(event) if dataset.chain.contains(name)]


def _foreign_refs(dataset: DatasetFiles) -> dict[str, Multihash | None]:
    """References that other tools have made, in names and folders that are never written here."""
    folder = dataset.folder / "refs"
    known = set(ref_names(dataset))
    refs: dict[str, Multihash | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name in known or path.name.startswith(".") or path.name.endswith(".jws"):
            continue
        if path.is_dir() and not path.is_symlink():
            continue
        content = read_regular(path, LIMITS.ref_bytes, follow=True)
        refs[name] = parse_ref(content[0], str(path)) if content is not None else None
    return refs


def _add(dataset: DatasetFiles, head: Multihash, needed: Reachable) -> None:
    waiting = [head]
    while waiting:
        current: Multihash | None = waiting.pop()
        while current is not None and current not in needed.blocks:
            try:
                block = dataset.chain.get(current)
            except (StoreError, CodecError) as error:
                where = dataset.folder / "blocks" / str(current)
                text = str(error) if str(where) in str(error) else f"{where}: {error}"
                raise _incomplete(dataset, text) from error
            needed.blocks.add(current)
            if isinstance(block.event, Seed):
                needed.dataset_ids.add(block.event.dataset_id)
            for item in objects_of(block):
                needed.of(item.key.kind).add(item.key.name)
            waiting += merged_blocks(dataset, block.event)
            current = block.prev_block_hash


def _incomplete(dataset: DatasetFiles, reason: str) -> OdfchainError:
    return BrokenChainError(
        f"{dataset.alias}: it cannot be said what is still needed: {one_line(reason, 1000)}",
        hint=f"`odfchain fsck {dataset.alias}` says what is damaged, and repairs it from a copy (--from URL)",
    )
