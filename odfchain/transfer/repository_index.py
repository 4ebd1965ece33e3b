"""The index of a repository: the file `datasets.json` beside its datasets, for people and programs that look.

    {"version": 1,
     "datasets": [
      {"alias": "org/cities", "id": "did:odf:fed01…", "kind": "Root", "head": "f1620…",
       "blocks": 12, "records": 3400, "size": 81234}
     ]}

Ordered by alias. `size` is that of the slices in bytes. Nobody has to believe it, and nothing that is carried
depends on it: what a dataset is, its own chain says. It is no part of the transfer protocol; a repository on
a plain web server may do without. Readers ignore fields that they do not know. Source: RFC-021.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain.errors import CorruptedPeerError, InvalidIdError, OdfchainError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.limits import SHARING
from odfchain.model.enums import DatasetKind
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.text import one_line

VERSION = 1


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One dataset of a repository, as the repository says."""

    alias: DatasetAlias
    id: DatasetId
    kind: DatasetKind
    head: Multihash
    blocks: int
    records: int
    size: int

    def tree(self) -> dict[str, str | int]:
        """For JSON."""
        return {
            "alias": str(self.alias),
            "id": str(self.id),
            "kind": self.kind.value,
            "head": str(self.head),
            "blocks": self.blocks,
            "records": self.records,
            "size": self.size,
        }


def render_index(entries: Iterable[IndexEntry]) -> bytes:
    """The file for these datasets; equal for equal datasets, in whatever order they come."""
    ordered = sorted(entries, key=lambda entry: entry.alias)
    lines = ",\n".join("  " + json.dumps(entry.tree()) for entry in ordered)
    return f'{{"version": {VERSION},\n "datasets": [\n{lines}\n ]}}\n'.encode("ascii")


def parse_index(data: bytes, where: str) -> list[IndexEntry]:
    """What a peer at `where` says that it has; every value is what its type says.

    Raises:
        CorruptedPeerError: too large, not JSON, of another version, or an entry is malformed.
    """
    if len(data) > SHARING.index_bytes:
        raise CorruptedPeerError(
            f"{where}: an index of {len(data):,} bytes (at most {SHARING.index_bytes:,})"
        )
    if sum(map(data.count, (b",", b"[", b"{"))) > SHARING.index_values:  # `[],[]` is twenty times its size
        raise CorruptedPeerError(f"{where}: an index of more than {SHARING.index_values:,} values")
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptedPeerError(f"{where}: not JSON, expected the index of a repository") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("datasets"), list):
        raise CorruptedPeerError(f"{where}: not the index of a repository (no list `datasets`)")
    if tree.get("version") != VERSION:
        raise CorruptedPeerError(f"{where}: an index of another version (expected {VERSION})")
    return [_entry(item, f"{where}: dataset {number}") for number, item in enumerate(tree["datasets"], 1)]


def _entry(item: Any, where: str) -> IndexEntry:
    if not isinstance(item, dict):
        raise CorruptedPeerError(f"{where}: expected an object")
    try:
        return IndexEntry(
            DatasetAlias.parse(_text(item, "alias", where)),
            DatasetId.parse(_text(item, "id", where)),
            DatasetKind(_text(item, "kind", where)),
            Multihash.parse(_text(item, "head", where)),
            *(_count(item, name, where) for name in ("blocks", "records", "size")),
        )
    except (InvalidIdError, ValueError) as error:
        raise CorruptedPeerError(f"{where}: {one_line(str(error))}") from None


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise CorruptedPeerError(f"{where}: {name} is not a text")
    return value


def _count(item: dict[str, Any], name: str, where: str) -> int:
    value = item.get(name)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CorruptedPeerError(f"{where}: {name} is not a count")
    return value


class RepositoryIndex:
    """Entries of local datasets, made anew only for those whose head or slices changed.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._made: dict[Path, tuple[tuple[Multihash, int], IndexEntry]] = {}

    def entries(self, datasets: Sequence[DatasetFiles]) -> list[IndexEntry]:
        """One for each dataset that has a head and can be read; the others are left out."""
        made = {}
        for dataset in datasets:
            try:
                head = dataset.chain.head()
                if head is None:
                    continue
                stamp = (head, os.stat(dataset.folder / "data").st_mtime_ns)  # noqa: PTH116 - as cheap as can be
                before = self._made.get(dataset.folder)
                fits = before is not None and before[0] == stamp and before[1].alias == dataset.alias
                made[dataset.folder] = (
                    before if before is not None and fits else (stamp, _entry_of(dataset, head))
                )
            except (OdfchainError, OSError):
                continue
        self._made = made
        return [entry for _, entry in made.values()]


def _entry_of(dataset: DatasetFiles, head: Multihash) -> IndexEntry:
    state = DatasetState.read(dataset.chain, head)
    return IndexEntry(
        dataset.alias,
        state.seed.dataset_id,
        state.seed.dataset_kind,
        head,
        state.head_block.sequence_number + 1,
        state.record_count,
        sum(dataset.data.size(name) for name in dataset.data.names()),
    )
