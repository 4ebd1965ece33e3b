"""Branches that came from elsewhere: where from, and up to which block they were verified here.

    info/branches.json      [{"branch": "fix", "from": "https://…", "block": "f1620…", "verified": "f1620…"}]

What is merged is believed to say what the rows were before (RFC-036), so blocks of others are verified first.
An entry outlives its branch until that is done: another branch may have begun there. Source: RFC-038.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odfchain.errors import InvalidIdError, StoreError
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD

_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FetchedBranch:
    """A branch as it was fetched last; it may have gone on here since."""

    branch: str | None
    """What it is called here; None once it is gone."""
    where: str
    """The URL, or `repo/name`, that it came from."""
    block: Multihash
    """Its newest block there."""
    verified: Multihash
    """The newest of its blocks that was here before it came, or that was verified here."""

    @property
    def is_verified(self) -> bool:
        """Whether nothing of it is left to be verified."""
        return self.block == self.verified


def fetched_branches(dataset: DatasetFiles) -> tuple[FetchedBranch, ...]:
    """What was fetched of the dataset, and is still a branch or unverified.

    Raises:
        StoreError: the file cannot be read, or is damaged.
    """
    path = _path(dataset)
    data = fsio.read_start(path, _MOST_BYTES)
    if data is None:
        return ()
    try:
        return tuple(_parse(item) for item in [*json.loads(data)])
    except (ValueError, TypeError, KeyError, RecursionError, InvalidIdError):
        raise StoreError(
            f"{path}: what is known of fetched branches is damaged",
            hint=f"remove {path}, and fetch the branches again: until then they are taken for your own",
        ) from None


def fetched_branch(dataset: DatasetFiles, name: str) -> FetchedBranch | None:
    """What is known of a branch; None where it was made here. Errors as `fetched_branches`."""
    return next((found for found in fetched_branches(dataset) if found.branch == name), None)


def remember_fetched(dataset: DatasetFiles, fetched: FetchedBranch) -> None:
    """Durably note that a branch came in; what is verified of it stays verified."""

    def change(found: list[FetchedBranch]) -> list[FetchedBranch]:
        kept = [replace(old, branch=None) if old.branch == fetched.branch else old for old in found]
        return [*kept, fetched]

    _change(dataset, change)


def mark_verified(dataset: DatasetFiles, entry: FetchedBranch, block: Multihash) -> None:
    """Durably note that the blocks of an entry up to one of them were verified."""

    def change(found: list[FetchedBranch]) -> list[FetchedBranch]:
        return [replace(old, verified=block) if old == entry else old for old in found]

    _change(dataset, change)


def rename_fetched(dataset: DatasetFiles, old: str, new: str | None) -> None:
    """Durably note that a branch has another name, or is gone."""
    if _path(dataset).exists():
        _change(dataset, lambda all_: [replace(e, branch=new) if e.branch == old else e for e in all_])


def forget_gone(dataset: DatasetFiles) -> None:
    """Durably forget what names blocks that are not stored any more."""
    if _path(dataset).exists():
        _change(dataset, lambda all_: [entry for entry in all_ if dataset.chain.contains(entry.block)])


# --- what was not verified -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unverified:
    """Blocks that were fetched and not verified, as far as a chain has them."""

    entry: FetchedBranch
    after: Multihash
    upto: Multihash


def unverified(dataset: DatasetFiles, upto: Multihash) -> list[Unverified]:
    """What the chain up to a block has of fetched branches that was not verified."""
    found = []
    chain, top = dataset.chain, dataset.chain.get(upto).sequence_number
    for entry in fetched_branches(dataset):
        if entry.is_verified or not chain.contains(entry.block):
            continue
        for name, block in chain.walk(entry.block, tail=entry.verified):
            if block.sequence_number <= top and chain.hash_at(block.sequence_number, upto) == name:
                found.append(Unverified(entry, entry.verified, name))
                break
    return found


def is_known_here(dataset: DatasetFiles, after: Multihash, upto: Multihash, *, owner: bool) -> bool:
    """Whether the blocks after one, up to another, were all made or verified here.

    Who is not the `owner` has not made the blocks of the head: a copy's moves by pulls alone.
    """
    foreign = {
        name
        for part in unverified(dataset, upto)
        for name, _ in dataset.chain.walk(part.upto, tail=part.after)
    }
    if not owner:
        lowest, head = dataset.chain.get(after).sequence_number, dataset.chain.head(HEAD)
        for name, block in dataset.chain.walk(head) if head is not None else ():
            if block.sequence_number <= lowest:
                break
            foreign.add(name)
    return not any(name in foreign for name, _ in dataset.chain.walk(upto, tail=after)) if foreign else True


# --- the file --------------------------------------------------------------------------------------------


def _path(dataset: DatasetFiles) -> Path:
    return dataset.folder / "info" / "branches.json"


def _parse(item: Any) -> FetchedBranch:
    branch, where = item["branch"], item["from"]
    if not isinstance(where, str) or not (branch is None or is_branch_name(branch)):
        raise ValueError
    return FetchedBranch(branch, where, Multihash.parse(item["block"]), Multihash.parse(item["verified"]))


def _change(dataset: DatasetFiles, change: Callable[[list[FetchedBranch]], list[FetchedBranch]]) -> None:
    path = _path(dataset)
    with fsio.locked(dataset.folder / "info" / "branches.lock"):
        before = list(fetched_branches(dataset))
        after = [entry for entry in change(before) if entry.branch is not None or not entry.is_verified]
        if after == before:
            return
        if not after:
            fsio.remove_file(path)
            return
        found = [
            {"branch": e.branch, "from": e.where, "block": str(e.block), "verified": str(e.verified)}
            for e in after
        ]
        fsio.replace_file(path, json.dumps(found, indent=1).encode())
