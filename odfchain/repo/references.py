"""The references of a dataset: its head, its branches, and heads that were given up.

refs/head                   the dataset as it is
refs/NAME                   a branch
refs/overwritten-<hash>     a head that was given up; kept until garbage collection is told to drop it
"""

from __future__ import annotations

from pathlib import Path

from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.store.local import LocalRefStore
from odfchain.trust.signed_head import signature_key

OVERWRITTEN = "overwritten-"
"""Prefix of references to heads that were given up."""

_NOT_REFS = ".jws"
"""Suffix of signatures, which stand beside the references they are about."""


def refs_of(dataset: DatasetFiles) -> LocalRefStore:
    """The references of a dataset."""
    return LocalRefStore(dataset.folder / "refs", dataset.folder / "info" / "lock")


def ref_names(dataset: DatasetFiles) -> list[str]:
    """The names of a dataset's references, the head first."""
    found = [n for n in refs_of(dataset).names() if n != HEAD and not n.endswith(_NOT_REFS)]
    return [HEAD, *found]


def branch_names(dataset: DatasetFiles) -> list[str]:
    """The names of a dataset's branches, ordered; the head is none."""
    return [name for name in refs_of(dataset).names() if is_branch_name(name)]


def remove_branch(branch: DatasetFiles, block: Multihash) -> None:
    """The branch that a dataset is opened on is gone here, with its index and its signature."""
    refs_of(branch).remove(branch.ref, block)
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
    """The lock of whoever lets objects arrive, names objects that no reference needs, or removes them."""
    return dataset.folder / "info" / "incoming.lock"
