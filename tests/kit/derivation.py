"""Datasets on paper: chains of roots and of what is derived from them, grown event by event, without an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from odfchain.chain import chain
from odfchain.chain.chain import MetadataChain
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias, RemoteDatasetId
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import MemoryScratch
from odfchain.storage.local import LocalObjectStore
from odfchain.transform.planner import PlannedStep, UpToDate, plan_next
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore
from tests.kit.support import T0, ChainBuilder, data_slice, hash_of, seeded_id

Place = Callable[[str], DatasetFiles]
"""Empty files for a dataset of this name."""


def lines(trees: list[Any], level: int = 0) -> list[str]:
    """The texts of trees, each as deep as it stands."""
    return [line for tree in trees for line in ("  " * level + tree.text, *lines(tree.below, level + 1))]


def at(second: int) -> Timestamp:
    """A time in 2020."""
    return Timestamp(T0.epoch_ns + second * 1_000_000_000)


def in_memory(name: str) -> DatasetFiles:
    """A dataset whose chain is in memory, with an index, and whose files do not exist."""
    nowhere = Path("/nowhere") / name
    made = MetadataChain(MemoryObjectStore(), MemoryRefStore(), MemoryScratch())
    stores = LocalObjectStore(nowhere / "data"), LocalObjectStore(nowhere / "checkpoints")
    return DatasetFiles(nowhere, DatasetAlias.parse(name), made, *stores)


def on_disk(folder: Path, name: str) -> DatasetFiles:
    """A dataset in a folder of its own."""
    DatasetFiles.create_folders(folder / name, DatasetAlias.parse(name))
    return DatasetFiles.open(folder / name)


def schema_of(version: int) -> ds.DataSchema:
    """A schema that tells its version by its number of columns."""
    fields = [ds.DataField(name=f"c{i}", type=ds.DataTypeInt64()) for i in range(version + 1)]
    return ds.DataSchema(fields=tuple(fields))


class Grown:
    """A dataset to which events are appended, one second apart."""

    def __init__(self, files: DatasetFiles, kind: DatasetKind) -> None:
        self.files = files
        self.builder = ChainBuilder(files.chain)
        self.seed = self.append(ev.Seed(dataset_id=seeded_id(str(files.alias)), dataset_kind=kind))

    def append(self, event: ev.MetadataEvent) -> Multihash:
        time = at(self.builder.sequence)
        if self.builder.prev is not None:
            time = max(time, self.files.chain.get(self.builder.prev).system_time)
        return self.builder.append(event, system_time=time)

    def resume(self) -> None:
        """Go on from a head that something else has moved."""
        state = DatasetState.read(self.files.chain)
        self.builder.prev, self.builder.sequence = state.head, state.head_block.sequence_number + 1

    @property
    def head(self) -> Multihash:
        return DatasetState.read(self.files.chain).head

    def info(self) -> Multihash:
        return self.append(ev.SetInfo(description=str(self.builder.sequence)))

    def schema(self, version: int = 0) -> Multihash:
        """Another schema, of any kind: chains of other nodes have changes that ours refuse."""
        return self.unruled(ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(schema_of(version))))

    def vocab(self, name: str) -> Multihash:
        """Another name of the event time, whatever was recorded before."""
        return self.unruled(ev.SetVocab(event_time_column=name))

    def unruled(self, event: ev.MetadataEvent) -> Multihash:
        """Append what the rules would refuse, as an older chain or one of another node has it."""
        with mock.patch.object(chain, "check_append"):
            return self.append(event)


class Root(Grown):
    """An input: data and watermarks come as told. Watermarks are seconds of 2020."""

    def __init__(self, name: str = "numbers", files: DatasetFiles | None = None) -> None:
        super().__init__(files or in_memory(name), DatasetKind.ROOT)
        self.last: int | None = None
        self.mark: int | None = None
        self.slices: list[ev.DataSlice] = []
        self.marks: list[int] = []
        """The watermark of every data block that has one."""

    def data(self, count: int = 1, watermark: int | None = None, content: bytes | None = None) -> Multihash:
        """A block with records, which are on paper unless there is content; repeats the watermark in force."""
        start = 0 if self.last is None else self.last + 1
        label = f"{self.files.alias} {start} {self.builder.prev}"
        name = hash_of(label) if content is None else self.files.data.put(content)
        data = data_slice(start, start + count - 1, len(content or b"?"), name=name)
        found = self._add(data, watermark)
        self.last = data.offset_interval.end
        self.slices.append(data)
        return found

    def watermark(self, watermark: int) -> Multihash:
        """A block with nothing but a watermark."""
        return self._add(None, watermark)

    def _add(self, data: ev.DataSlice | None, watermark: int | None) -> Multihash:
        if watermark is not None:
            self.mark = watermark
        if self.mark is not None:
            self.marks.append(self.mark)
        mark = at(self.mark) if self.mark is not None else None
        return self.append(ev.AddData(prev_offset=self.last, new_data=data, new_watermark=mark))


def transform_of(*inputs: Grown, query: str = "SELECT 1") -> ev.SetTransform:
    """A transform whose query aliases are `in0`, `in1` ..."""
    return ev.SetTransform(
        inputs=tuple(
            ev.TransformInput(dataset_ref=RemoteDatasetId(None, item.files.id), alias=f"in{index}")
            for index, item in enumerate(inputs)
        ),
        transform=TransformSql(engine="spark", queries=(SqlQueryStep(query=query),)),
    )


class Derived(Grown):
    """A derivative dataset; `run` commits what an engine would have brought: as many records as it read."""

    def __init__(self, *inputs: Grown, files: DatasetFiles | None = None) -> None:
        super().__init__(files or in_memory("derived"), DatasetKind.DERIVATIVE)
        self.inputs = inputs
        self.append(transform_of(*inputs))

    @property
    def state(self) -> DatasetState:
        return DatasetState.read(self.files.chain)

    def plan(self) -> PlannedStep | UpToDate:
        return plan_next(self.files, self.state, [item.files for item in self.inputs])

    def step(self) -> PlannedStep:
        """The next step; there must be one."""
        step = self.plan()
        assert isinstance(step, PlannedStep), step
        return step

    def event_of(self, step: PlannedStep) -> ev.ExecuteTransform:
        count = sum(item.event.record_count for item in step.inputs)
        name = hash_of(f"output {self.builder.sequence}")
        marks = [[m.event_time for m in (*i.watermarks, i.known_watermark) if m] for i in step.inputs]
        watermark = step.prev_watermark
        if all(marks):
            lowest = min(map(max, marks))
            watermark = lowest if watermark is None else max(watermark, lowest)
        return ev.ExecuteTransform(
            query_inputs=tuple(item.event for item in step.inputs),
            prev_checkpoint=step.prev_checkpoint.physical_hash if step.prev_checkpoint else None,
            prev_offset=step.prev_offset,
            new_data=data_slice(step.next_offset, step.next_offset + count - 1, 1, name=name)
            if count
            else None,
            new_checkpoint=ev.Checkpoint(physical_hash=name, size=1),
            new_watermark=watermark,
        )

    def commit(self, step: PlannedStep) -> Multihash:
        if step.schema is None:
            self.schema()
        return self.append(self.event_of(step))

    def run(self) -> list[PlannedStep]:
        """Execute until there is nothing more to do."""
        done = []
        while isinstance(step := self.plan(), PlannedStep):
            self.commit(step)
            done.append(step)
            assert len(done) <= 1 + sum(item.builder.sequence for item in self.inputs), "it does not end"
        return done
