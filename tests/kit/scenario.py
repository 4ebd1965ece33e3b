"""Chains made from labels, as the shared protocol cases write them, and datasets that hold them.

The same labels always give the same blocks, so two chains share exactly the blocks of their common beginning.
`seed…` is the seed of a dataset of that name, `schema` declares a schema, `d1` … bring a slice and a
checkpoint, and everything else is a SetInfo that says the label.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from odfchain.odf import events as ev
from odfchain.odf.block_codec import block_hash, encode_block
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import RAW_SCHEMA, conformance, data_slice, seeded_id

ROWS = 10
"""Records of every slice, on paper."""


def steps(op: str) -> list[dict[str, Any]]:
    """The steps of the shared scenario that pull, or that push."""
    scenario = conformance("protocol_cases")["sync_simple"]
    found = [step for step in scenario["steps"] if step["op"] == op]
    assert found
    return found


def scenario_steps(op: str) -> list[Any]:
    """The same as pytest parameters, named by their number."""
    import pytest

    return [pytest.param(step, id=f"step-{step['n']}") for step in steps(op)]


@dataclass
class Chain:
    """Blocks oldest first, and all objects by key."""

    hashes: list[Multihash] = field(default_factory=list)
    objects: dict[ObjectKey, bytes] = field(default_factory=dict)
    sequence: int = 0
    offset: int | None = None
    checkpoint: Multihash | None = None

    @property
    def head(self) -> Multihash:
        return self.hashes[-1]

    @property
    def blocks(self) -> list[bytes]:
        return [self.objects[ObjectKey(ObjectKind.BLOCK, name)] for name in self.hashes]

    @property
    def files(self) -> list[ObjectKey]:
        """Slices and checkpoints."""
        return [key for key in self.objects if key.kind is not ObjectKind.BLOCK]

    def key(self, index: int) -> ObjectKey:
        return ObjectKey(ObjectKind.BLOCK, self.hashes[index])

    def store(self, part: ObjectKind, data: bytes) -> Multihash:
        key = ObjectKey(part, hash_bytes(data))
        self.objects[key] = data
        return key.name

    def append(self, event: ev.MetadataEvent, **changes: Any) -> Multihash:
        """One more block; with `changes` it may break any rule."""
        fields: dict[str, Any] = {
            "system_time": time_of(self.sequence),
            "prev_block_hash": self.hashes[-1] if self.hashes else None,
            "sequence_number": self.sequence,
            "event": event,
        }
        return self.append_bytes(encode_block(MetadataBlock(**(fields | changes))))

    def append_bytes(self, data: bytes) -> Multihash:
        name = block_hash(data)
        self.objects[ObjectKey(ObjectKind.BLOCK, name)] = data
        self.hashes.append(name)
        self.sequence += 1
        return name

    def add(self, label: str) -> Multihash:
        """The block that a label stands for."""
        if label.startswith("seed"):
            return self.append(ev.Seed(dataset_id=seeded_id(label), dataset_kind=DatasetKind.ROOT))
        if label == "schema":
            return self.append(RAW_SCHEMA)
        if label.startswith("d") and label[1:].isdigit():
            return self.add_data(label)
        return self.append(ev.SetInfo(description=label))

    def add_data(self, label: str, *, size: int = 0, **changes: Any) -> Multihash:
        """A block with a slice (of `size` more bytes) and a checkpoint."""
        body = f"slice {label}".encode() + b"." * size
        start = 0 if self.offset is None else self.offset + 1
        new = data_slice(start, start + ROWS - 1, len(body), name=self.store(ObjectKind.DATA, body))
        return self.append_slice(new, f"checkpoint {label}".encode(), **changes)

    def append_slice(self, new: ev.DataSlice, state: bytes, **changes: Any) -> Multihash:
        """A block with a slice that is stored already, and with this checkpoint."""
        made = ev.Checkpoint(physical_hash=self.store(ObjectKind.CHECKPOINT, state), size=len(state))
        event = ev.AddData(
            prev_offset=self.offset, prev_checkpoint=self.checkpoint, new_data=new, new_checkpoint=made
        )
        self.offset, self.checkpoint = new.offset_interval.end, made.physical_hash
        return self.append(event, **changes)


def time_of(sequence: int) -> Timestamp:
    """System time of a block: one hour after the one before it."""
    return Timestamp.from_epoch_ms(1_500_000_000_000 + sequence * 3_600_000)


def chain_of(labels: Sequence[str]) -> Chain:
    chain = Chain()
    for label in labels:
        chain.add(label)
    return chain


def numbered(count: int, *more: str) -> list[str]:
    """Labels of a chain of `count` blocks with a slice here and there."""
    labels = ["seed", "schema"]
    labels += [f"d{n}" if n % 5 == 0 else f"note {n}" for n in range(count - 2)]
    return [*labels[:count], *more]


def install(workspace: WorkspaceFiles, name: str, chain: Chain) -> DatasetFiles:
    """A dataset with this chain, as if it had been made here."""
    hidden = workspace.root / "trash" / uuid.uuid4().hex
    alias = DatasetAlias.parse(name)
    DatasetFiles.create_folders(hidden, alias)
    dataset = DatasetFiles.open(hidden)
    extend(dataset, chain)
    return workspace.adopt(dataset)


def extend(dataset: DatasetFiles, chain: Chain) -> None:
    """Put everything of a chain into a dataset and point its head there."""
    for key, data in chain.objects.items():
        (dataset.folder / str(key)).write_bytes(data)
    dataset.chain.set_ref(HEAD, chain.head, expected=dataset.chain.head())
