"""Points of a dataset's history: a branch, or a block by its number or hash, or a system time.

    POINT = [BRANCH ":"] (NUMBER | TIME) | BRANCH | HASH        9   fix-names:9   2026-01   fix-names   f1620…

Without a branch a number or a time is one of the chain that is asked. A time means the newest block whose
system time is not after it. Source: specification "Time", "Metadata Chain"; RFC-033, RFC-035.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odfchain import errors
from odfchain.chain.chain import MetadataChain
from odfchain.odf.identity import Multihash
from odfchain.odf.names import is_branch_name
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.fsio import MemoryScratch
from odfchain.storage.local import HEAD, SIGNED_ENDINGS, LocalRefStore
from odfchain.storage.public_layout import signature_key
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

# The references of a dataset: its head, its branches, and heads that were given up.
#
#     refs/head                  the dataset as it is
#     refs/NAME                  a branch
#     refs/overwritten-<hash>    a head that was given up; kept until `gc` is asked to drop it

OVERWRITTEN = "overwritten-"
"""Prefix of references to heads that were given up."""


def refs_of(dataset: DatasetFiles) -> LocalRefStore:
    """The references of a dataset."""
    return LocalRefStore(dataset.folder)


def ref_names(dataset: DatasetFiles) -> list[str]:
    """The names of a dataset's references, the head first."""
    # a signature is in a file beside its reference
    return [HEAD, *(n for n in refs_of(dataset).names() if n != HEAD and not n.endswith(SIGNED_ENDINGS))]


def branch_names(dataset: DatasetFiles) -> list[str]:
    """The names of a dataset's branches, ordered; the head is none."""
    return [name for name in refs_of(dataset).names() if is_branch_name(name)]


def remove_branch(branch: DatasetFiles, block: Multihash) -> None:
    """The branch that a dataset is opened on is gone, in its store, too, with its index and its signature."""
    branch.chain.remove_ref(branch.ref, block)
    fsio.remove_quietly(branch.index_path)
    fsio.remove_quietly(branch.folder / signature_key(branch.ref))


def overwritten_name(head: Multihash) -> str:
    """The reference that keeps a head that is given up."""
    return f"{OVERWRITTEN}{head.digest.hex()[:16]}"


def keep_reachable(dataset: DatasetFiles, head: Multihash) -> str:
    """Durably name a head that is about to be given up; returns the name."""
    name = overwritten_name(head)
    dataset.chain.set_ref(name, head, expected=dataset.chain.head(name))
    return name


def lock_path(dataset: DatasetFiles) -> Path:
    """The lock for fetching objects, naming objects that no reference needs, and removing them."""
    return dataset.folder / "info" / "incoming.lock"


@contextlib.contextmanager
def locked_for(dataset: DatasetFiles, command: str | None = None) -> Iterator[None]:
    """Nothing is fetched or removed meanwhile; `StoreError` where that goes on. `command` is what locks."""
    with fsio.try_locked(lock_path(dataset)) as free:
        if not free:
            other = "" if command else ", or its garbage is being collected"
            raise errors.StoreError(
                f"{dataset.alias}: something is being pulled into it{other}",
                hint=f"run {command or 'the command'} again when that is done",
                exit_code=5,
            )
        yield


@dataclass(frozen=True, slots=True)
class OnBranch:
    """A point of a branch (or of the head, by name): a block's number, a time, or None for its newest."""

    branch: str
    at: int | Timestamp | None = None


Point = Multihash | int | Timestamp | OnBranch

_DAY = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)


def parse_point(text: str) -> Point:
    """The point that a text after `@` names; digits alone are a block's number, not a year."""
    branch, colon, rest = text.partition(":")
    if colon and _is_reference(branch):
        if (at := _number_or_time(rest)) is not None:
            return OnBranch(branch, at)
    elif _is_reference(text):
        return OnBranch(text)
    if (at := _number_or_time(text)) is not None:
        return at
    try:
        return Multihash.parse(text)
    except errors.InvalidIdError as error:
        raise errors.InvalidIdError(
            error.message,
            hint="a point is a branch, a block's number or hash, or a time, like fix-names, 9, f1620…, "
            "2026-01-10T10:30:00Z or fix-names:9",
        ) from None


def _is_reference(text: str) -> bool:
    return text == HEAD or is_branch_name(text)


def _number_or_time(text: str) -> int | Timestamp | None:
    if _NUMBER.fullmatch(text):
        return int(text)
    return parse_time(text) if text[:1].isdecimal() else None


def parse_time(text: str) -> Timestamp:
    """The moment that a time, or the beginning of a day, a month or a year, means."""
    if text[:1].isdecimal() and "T" in text.upper():
        return Timestamp.parse(text)
    try:
        day = dt.date.fromisoformat(text + "-01-01"[len(text) - 4 :] if _DAY.fullmatch(text) else "")
        return Timestamp.from_datetime(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC))
    except ValueError:
        raise errors.InvalidIdError(
            f"{one_line(text)!r} is not a time",
            hint="write it like 2024-02-29T12:00:00Z, or as a day, a month or a year, like 2024-02",
        ) from None


def block_at(dataset: DatasetFiles, point: Point, *, head: Multihash | None = None) -> Multihash:
    """The block that a point means, as of `head` (default: the present one).

    A hash is looked for among all stored blocks; `is_referenced` says whether a reference leads to it.

    Raises:
        ObjectNotFoundError: there is no such block.
        DatasetNotFoundError: the dataset was not there yet.
    """
    if isinstance(point, OnBranch):
        branch = on_branch(dataset, point.branch)
        newest = DatasetState.read(branch.chain).head
        return newest if point.at is None else block_at(branch, point.at, head=newest)
    if isinstance(point, Multihash):
        if not dataset.chain.contains(point):
            raise errors.ObjectNotFoundError(
                f"{dataset.alias}: no block {point}",
                hint=f"`odfchain log {dataset.alias}` lists them",
                exit_code=4,
            )
        return point
    state = DatasetState.read(dataset.chain, head)
    last, at = state.head_block.sequence_number, dataset.chain.by_number(state.head)

    def block(number: int) -> Multihash:
        if (found := at(number)) is not None:
            return found
        raise errors.ObjectNotFoundError(
            f"{dataset.alias}: no block {number:,}; its newest is block {last:,}",
            hint=f"`odfchain log {dataset.alias}` lists the blocks",
            exit_code=4,
        )

    def recorded(number: int) -> Timestamp:
        return dataset.chain.get(block(number)).system_time

    if isinstance(point, int):
        return block(point)
    # system times never go back (append rules)
    count = bisect.bisect_right(range(last + 1), point, key=recorded)
    if count == 0:
        raise errors.DatasetNotFoundError(f"{dataset.alias} begins at {recorded(0)}, after {point}")
    return block(count - 1)


def on_branch(dataset: DatasetFiles, branch: str) -> DatasetFiles:
    """The dataset on a reference that it has, or `PointNotFoundError`."""
    if is_branch_name(branch):
        dataset.shared.follow(dataset.folder, branch)
    found = dataset.on(branch) if _is_reference(branch) else None
    if found is None or found.chain.head() is None:
        raise errors.PointNotFoundError(
            f"{dataset.alias} has no branch {one_line(branch)!r}",
            hint="a point is a branch, a block's number or hash, or a time; "
            f"`odfchain branch list {dataset.alias}` lists the branches",
        )
    return found


def is_referenced(dataset: DatasetFiles, block: Multihash, *, head: Multihash) -> bool:
    """True if a stored block is one of those that a head is made of."""
    return dataset.chain.hash_at(dataset.chain.get(block).sequence_number, head) == block


def reference_of(dataset: DatasetFiles, block: Multihash) -> str | None:
    """The first reference, its own before the others, that leads to a stored block; None where none does."""
    for ref in dict.fromkeys([dataset.ref, *ref_names(dataset)]):
        there = dataset.on(ref)
        if (head := there.chain.head()) is not None and is_referenced(there, block, head=head):
            return ref
    return None


def named_block(dataset: DatasetFiles, point: Point) -> Multihash:
    """The block that a text names.

    Raises:
        PointNotFoundError, DatasetNotFoundError: there is no such branch or block.
        WorkspaceError: the time lies in the future.
    """
    time = point.at if isinstance(point, OnBranch) else point
    if isinstance(time, Timestamp) and time > Timestamp.now():
        raise errors.WorkspaceError(
            f"{dataset.alias}: {time} lies in the future, so what is asked for could still change",
            hint="leave the time out to ask for the present",
            exit_code=3,
        )
    try:
        return block_at(dataset, point)
    except errors.ObjectNotFoundError as error:
        if isinstance(time, Timestamp):
            raise
        raise errors.PointNotFoundError(error.message, hint=error.hint) from None


def opened_at(dataset: DatasetFiles, point: Point) -> DatasetFiles:
    """The dataset on the branch that a point names; or as of the block that it means, and then only read.

    No index of another reference is changed by reading it.
    """
    if isinstance(point, OnBranch) and point.at is None:
        return on_branch(dataset, point.branch)
    block = named_block(dataset, point)
    if isinstance(point, OnBranch):
        ref: str | None = point.branch
    else:
        ref = reference_of(dataset, block) if isinstance(point, Multihash) else dataset.ref
    scratch = MemoryScratch() if ref is None else dataset.on(ref).chain.scratch
    chain = MetadataChain(dataset.blocks, _PinnedRefs(dataset.folder, block), scratch, ref=str(block))
    return dataclasses.replace(dataset, chain=chain, signer=None)


class _PinnedRefs(LocalRefStore):
    """The references of a dataset, and one more, named by the block that it always points at."""

    def __init__(self, folder: Path, block: Multihash) -> None:
        super().__init__(folder / "refs", folder / "info" / "lock")
        self._block = block

    def get(self, name: str) -> Multihash | None:
        return self._block if name == str(self._block) else super().get(name)

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        del expected, new
        raise errors.UsageError(
            f"{one_line(name)}: a dataset as of one block is only read",
            hint="write to a branch: `odfchain branch create DATASET NAME --at POINT` makes one",
        )

    def remove(self, name: str, expected: Multihash) -> None:
        self.compare_and_swap(name, expected, self._block)
