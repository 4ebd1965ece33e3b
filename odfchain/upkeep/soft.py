"""Soft compaction: a new root dataset with the records of an old one in few slices; the old one stays.

    incoming/<alias>/dataset    the new dataset while it is made; it appears by one rename

It has an identity of its own, so nobody who follows the old dataset breaks. What it holds, and up to which
block of which dataset, stands in its attachment `PROVENANCE.yaml`. Carried over are the records with their
offsets and system times, the schemas and vocabulary they were recorded under, watermarks, and the
description, license and attachments in force. Sources stay with the old dataset: two datasets that read one
source would both seem to be the one to follow.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odfchain.chain.chain import HashedBlock, link_blocks
from odfchain.chain.earlier_blocks import ReplayHistory
from odfchain.chain.rules import check_append
from odfchain.codec.yaml_writer import dump_yaml
from odfchain.errors import StoreError, UsageError
from odfchain.ids.keys import DatasetKey
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.model import events as ev
from odfchain.model.enums import DatasetKind
from odfchain.model.metadata_block import MetadataBlock
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import keep_staged
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.declared_constraints import moved_attachments
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store import fsio
from odfchain.trust.signer import HeadSigner
from odfchain.upkeep.batches import Batch, BatchLimits
from odfchain.upkeep.hard_compaction import mergeable, rewritten

PROVENANCE = "PROVENANCE.yaml"
"""The attachment that says where the records come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftPlan:
    """What a soft compaction would make."""

    dataset: str
    head: Multihash
    alias: DatasetAlias
    """Name of the new dataset."""
    blocks_before: int
    slices_before: int
    slices_after: int
    records: int
    metadata: tuple[ev.MetadataEvent, ...]
    batches: tuple[Batch, ...]

    def __repr__(self) -> str:
        sizes = f"{self.slices_before:,} to {self.slices_after:,} slices, {self.records:,} records"
        return f"<{self.alias} made of {self.dataset}: {sizes}>"


def plan_soft(
    workspace: WorkspaceFiles, dataset: DatasetFiles, alias: DatasetAlias, limits: BatchLimits | None = None
) -> SoftPlan:
    """What the new dataset would be.

    Raises:
        UsageError: the dataset is derivative.
    """
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is DatasetKind.DERIVATIVE:
        raise UsageError(
            f"{dataset.alias}: records of a derivative dataset in a root dataset could not be verified by "
            "its query any more"
        )
    workspace.check_new(DatasetKey.generate().dataset_id, alias)
    chain = list(dataset.chain.walk(state.head))[::-1]
    found = mergeable(dataset, _carried(chain), limits or BatchLimits())
    before = sum(block.new_data is not None for _, block in chain)
    return SoftPlan(
        dataset=str(dataset.alias),
        head=state.head,
        alias=alias,
        blocks_before=len(chain),
        slices_before=before,
        slices_after=sum(bool(batch.slices) for batch in found),
        records=state.record_count,
        metadata=tuple(_metadata(dataset, state, chain)),
        batches=tuple(found),
    )


def _carried(chain: list[HashedBlock]) -> Iterator[MetadataBlock]:
    """The blocks that records and their meaning are in, without what concerns sources."""
    for _, block in chain:
        event = block.event
        if isinstance(event, ev.SetDataSchema | ev.SetVocab):
            yield block
        elif isinstance(event, ev.AddData):
            bare = dataclasses.replace(
                event, prev_checkpoint=None, new_checkpoint=None, new_source_state=None
            )
            yield dataclasses.replace(block, event=bare)


def _metadata(
    dataset: DatasetFiles, state: DatasetState, chain: list[HashedBlock]
) -> Iterator[ev.MetadataEvent]:
    for kind in (ev.SetInfo, ev.SetLicense):
        block = dataset.chain.nearest(kind.KIND, head=state.head)
        if block is not None:
            yield block.block.event
    attached = dataset.chain.nearest_event(ev.SetAttachments, head=state.head)
    items = attached.attachments.items if attached is not None else ()
    document = {
        "compactedFrom": {
            "id": str(state.seed.dataset_id),
            "alias": str(dataset.alias),
            "head": str(state.head),
            "blocks": len(chain),
            "records": state.record_count,
            "systemTime": str(state.head_block.system_time),
        }
    }
    own = ev.AttachmentEmbedded(path=PROVENANCE, content=dump_yaml(document))
    kept = tuple(item for item in items if item.path != PROVENANCE)
    yield ev.SetAttachments(attachments=ev.AttachmentsEmbedded(items=(*kept, own)))


def soft_compact(
    workspace: WorkspaceFiles, dataset: DatasetFiles, plan: SoftPlan, progress: Progress = SILENT
) -> DatasetFiles:
    """The new dataset, complete; or there is none. The old one is not touched."""
    incoming = workspace.root / "incoming"
    fsio.make_folder(incoming)
    name = plan.alias.key.replace("/", "+")
    with fsio.locked(incoming / f".lock-{name}"):
        area = incoming / name
        fsio.remove_tree(area)  # of a run that died
        try:
            key = DatasetKey.generate()
            built = _build(dataset, plan, key, area / "dataset", progress)
            workspace.store_key(key)
            return workspace.adopt(built)
        finally:
            shutil.rmtree(area, ignore_errors=True)


def _build(
    dataset: DatasetFiles, plan: SoftPlan, key: DatasetKey, folder: Path, progress: Progress
) -> DatasetFiles:
    DatasetFiles.create_folders(folder, plan.alias)
    made = DatasetFiles.open(folder, HeadSigner(folder, lambda: key))
    progress.phase(f"Merging slices of {dataset.alias}", plan.slices_before)
    events: list[ev.MetadataEvent] = [
        ev.Seed(dataset_id=key.dataset_id, dataset_kind=DatasetKind.ROOT),
        *(_moved(event, dataset, key) for event in plan.metadata),
    ]
    with made.staging() as staging:
        for event, file, _ in rewritten(dataset, plan.batches, staging, (), progress):
            if file is not None:
                keep_staged(made.data, file)
            elif isinstance(event, ev.AddData) and event.new_data is not None:
                _copy(dataset, event.new_data.physical_hash, made, staging)
            events.append(event)
    blocks = link_blocks(
        events, prev=None, next_sequence_number=0, system_time=Timestamp.now().truncated_to_ms()
    )
    history = ReplayHistory()
    for encoded in blocks:
        check_append(encoded.block, history if encoded.block.sequence_number else None)
        history.add(encoded.block)
    made.chain.publish(blocks, expected_head=None)
    return made


def _moved(event: ev.MetadataEvent, dataset: DatasetFiles, key: DatasetKey) -> ev.MetadataEvent:
    if not isinstance(event, ev.SetAttachments):
        return event
    return moved_attachments(event, dataset.id, key.dataset_id)


def _copy(dataset: DatasetFiles, name: Multihash, made: DatasetFiles, staging: Path) -> None:
    """A slice that stays as it is, in a file of its own: datasets share nothing that one could damage."""
    target = staging / str(name)
    with fsio.storage_errors(target):
        shutil.copyfile(dataset.data.verified_path(name), target)
    made.data.put_file(target, name)
    try:
        made.data.verified_path(name)
    except StoreError:
        fsio.remove_quietly(made.folder / "data" / str(name))
        raise
