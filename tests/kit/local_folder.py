"""Datasets in folders whose blocks are made from labels: equal labels at equal places are equal blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.support import RAW_SCHEMA, ChainBuilder, seeded_id


class LocalDataset:
    """A dataset; `hashes` are its blocks by label."""

    def __init__(self, folder: Path, labels: Sequence[str], *, name: str = "foo", seed: str = "test") -> None:
        DatasetFiles.create_folders(folder, DatasetAlias.parse(name))
        self.files = DatasetFiles.open(folder)
        self.hashes: list[Multihash] = []
        self._builder = ChainBuilder(self.files.chain)
        self._records = 0
        self._checkpoint: Multihash | None = None
        self._seed = seed
        for label in labels:
            self.add(label)

    @property
    def head(self) -> Multihash:
        return self.hashes[-1]

    def add(self, label: str) -> None:
        """One more block: `seed`, `schema`, or data of this label, with a slice and a checkpoint."""
        event: ev.MetadataEvent
        if label.startswith("seed"):
            event = ev.Seed(
                dataset_id=seeded_id(self._seed + label.removeprefix("seed")), dataset_kind=DatasetKind.ROOT
            )
        elif label == "schema":
            event = RAW_SCHEMA
        else:
            event = self._data(label)
        self.hashes.append(self._builder.append(event))

    def _data(self, label: str) -> ev.AddData:
        data, state = f"slice {label}".encode(), f"checkpoint {label}".encode()
        name, checkpoint = self.files.data.put(data), self.files.checkpoints.put(state)
        event = ev.AddData(
            prev_checkpoint=self._checkpoint,
            prev_offset=self._records - 1 if self._records else None,
            new_data=ev.DataSlice(
                logical_hash=name,
                physical_hash=name,
                offset_interval=ev.OffsetInterval(start=self._records, end=self._records + 9),
                size=len(data),
            ),
            new_checkpoint=ev.Checkpoint(physical_hash=checkpoint, size=len(state)),
        )
        self._records += 10
        self._checkpoint = checkpoint
        return event
