"""Datasets with very many blocks and no data: real blocks with real hashes, made as fast as files can be.

Of every ten blocks one adds a slice, which is nowhere (the dataset is a copy of metadata only), four record
how far a source was read, and five change the description. The same length gives the same blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow, from_arrow
from odfchain.odf.block_codec import block_hash, encode_block
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import DatasetId, Multicodec, Multihash, encode_base16
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

START = Timestamp.parse("2020-01-01T00:00:00Z")
ROWS = 100
"""Rows of each slice."""
SLICE_BYTES = 4_096
BLOCKS_OF_A_SLICE = 10
_TIME = pa.timestamp("ms", "UTC")
_SYSTEM = {"offset": pa.uint64(), "op": pa.uint8(), "system_time": _TIME, "event_time": _TIME}
SCHEMA = pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in _SYSTEM.items())])


def long_chain(workspace: Path, name: str, blocks: int, *, identity: int = 1) -> DatasetFiles:
    """A dataset of a workspace with so many blocks; nothing is synced, and nothing is known of it yet."""
    root = WorkspaceFiles.init(workspace, exists_ok=True).root
    seed = DatasetId(hashlib.sha3_256(b"identity %d" % identity).digest())
    folder = root / "datasets" / encode_base16(seed.to_bytes())
    DatasetFiles.create_folders(folder, DatasetAlias.parse(name))
    (folder / "info" / "partial").write_text('{"metadataOnly": true}')
    head = extend(folder, None, 0, blocks, seed)
    (folder / "refs" / "head").write_text(str(head))
    return DatasetFiles.open(folder)


def lengthen(folder: Path, blocks: int) -> Multihash:
    """The dataset of a folder, made a moment ago, has so many blocks instead of its own; returns the head."""
    head = extend(folder, None, 0, blocks, DatasetId.from_multibase(folder.name))
    (folder / "info" / "partial").write_text('{"metadataOnly": true}')
    (folder / "refs" / "head").write_text(str(head))
    return head


def extend(folder: Path, head: Multihash | None, first: int, until: int, seed: DatasetId) -> Multihash:
    """Write the blocks from `first` to `until` after `head`; returns the new head, which is not moved."""
    blocks = folder / "blocks"
    for number, event in enumerate(events(first, until, seed), start=first):
        time = Timestamp.from_epoch_ms(START.epoch_ms + number * 1_000)
        data = encode_block(
            MetadataBlock(system_time=time, prev_block_hash=head, sequence_number=number, event=event)
        )
        head = block_hash(data)
        (blocks / str(head)).write_bytes(data)
    assert head is not None
    return head


def events(first: int, until: int, seed: DatasetId) -> Iterator[ev.MetadataEvent]:
    """The events of the blocks from `first` to `until`."""
    for number in range(first, until):
        place, group = number % BLOCKS_OF_A_SLICE, number // BLOCKS_OF_A_SLICE
        last = group * ROWS - 1
        # that of the newest slice
        mark = Timestamp.from_epoch_ms(START.epoch_ms + group * BLOCKS_OF_A_SLICE * 1_000) if group else None
        if number == 0:
            yield ev.Seed(dataset_id=seed, dataset_kind=DatasetKind.ROOT)
        elif number == 1:
            yield ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(SCHEMA)))
        elif place == BLOCKS_OF_A_SLICE - 1:
            names = [hashlib.sha3_256(b"%s %d" % (what, group)).digest() for what in (b"rows", b"file")]
            yield ev.AddData(
                prev_offset=last if last >= 0 else None,
                new_data=ev.DataSlice(
                    logical_hash=Multihash(Multicodec.ARROW0_SHA3_256, names[0]),
                    physical_hash=Multihash.sha3_256(names[1]),
                    offset_interval=ev.OffsetInterval(start=last + 1, end=last + ROWS),
                    size=SLICE_BYTES,
                ),
                new_watermark=Timestamp.from_epoch_ms(START.epoch_ms + (number + 1) * 1_000),
            )
        elif place % 2 == 1:
            yield ev.AddData(
                prev_offset=last if last >= 0 else None,
                new_watermark=mark,
                new_source_state=ev.SourceState(
                    source_name="default", kind="odf/etag", value=f'"version {number}"'
                ),
            )
        else:
            yield ev.SetInfo(description=f"as of block {number}", keywords=("scale",))
