"""Reset: the definition stays on the same Seed, what was computed goes, nothing is deleted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.chain.chain import MetadataChain
from odfchain.errors import DivergedInputError, RefConflictError, TransformError
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import MemoryScratch
from odfchain.transform.catch_up import reset_to_metadata
from odfchain.transform.planner import UpToDate
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.derivation import Derived, Grown, Root, at, in_memory, on_disk, transform_of
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore


@pytest.fixture
def numbers(tmp_path: Path) -> Root:
    made = Root(files=on_disk(tmp_path, "numbers"))
    made.schema()
    made.data(3, watermark=1)
    return made


@pytest.fixture
def derived(tmp_path: Path, numbers: Root) -> Derived:
    """Executed twice, with other events before, between and after."""
    made = Derived(numbers, files=on_disk(tmp_path, "derived"))
    made.append(ev.SetVocab(event_time_column="seen_at"))
    made.run()
    made.info()
    numbers.data(2)
    made.run()
    made.append(transform_of(numbers, query="SELECT 2"))
    return made


def events(files: DatasetFiles) -> list[ev.MetadataEvent]:
    return [found.block.event for found in files.chain.walk()][::-1]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_everything_but_what_was_computed_is_there_again(derived: Derived) -> None:
    before = events(derived.files)
    old_head, blocks = derived.head, names(derived.files.folder / "blocks")
    head = reset_to_metadata(derived.files, system_time=at(1000))
    assert derived.head == head
    kinds = ["Seed", "SetTransform", "SetVocab", "SetInfo", "SetTransform"]
    assert [e.KIND for e in events(derived.files)] == kinds
    assert events(derived.files) == [e for e in before if e.KIND not in ("ExecuteTransform", "SetDataSchema")]
    assert [found.hash for found in derived.files.chain.walk()][-1] == derived.seed
    assert names(derived.files.folder / "blocks") > blocks
    assert len(list(derived.files.chain.walk(old_head))) == len(before), "the old chain can still be read"
    times = [found.block.system_time for found in derived.files.chain.walk()]
    assert times == [at(1000)] * 4 + [at(0)]
    state = derived.state
    assert (state.schema, state.last_offset, state.watermark) == (None, None, None)


def test_the_files_are_left_in_the_stores(derived: Derived) -> None:
    data = derived.files.data.put(b"rows")
    checkpoint = derived.files.checkpoints.put(b"state")
    reset_to_metadata(derived.files)
    assert derived.files.data.get(data) == b"rows"
    assert derived.files.checkpoints.get(checkpoint) == b"state"


def test_the_whole_history_is_computed_anew(derived: Derived, numbers: Root) -> None:
    reset_to_metadata(derived.files)
    derived.resume()
    (step,) = derived.run()
    assert step.inputs[0].interval == ev.OffsetInterval(start=0, end=4)
    assert step.transform == transform_of(numbers, query="SELECT 2")
    assert (step.prev_checkpoint, step.next_offset) == (None, 0)
    assert derived.plan() == UpToDate()


def test_system_time_is_that_of_the_clock_and_does_not_go_back(derived: Derived) -> None:
    old, now = derived.state.head_block.system_time, Timestamp.now().truncated_to_ms()
    reset_to_metadata(derived.files, system_time=at(-5))
    assert derived.state.head_block.system_time == old
    derived.resume()
    derived.run()
    reset_to_metadata(derived.files)
    assert now <= derived.state.head_block.system_time <= Timestamp.now()


def test_a_dataset_without_anything_computed_is_left_alone(tmp_path: Path, numbers: Root) -> None:
    fresh = Derived(numbers, files=on_disk(tmp_path, "fresh"))
    head = fresh.info()
    assert reset_to_metadata(fresh.files) == head
    fresh.run()
    again = reset_to_metadata(fresh.files)
    assert again not in (head, fresh.builder.prev)
    assert reset_to_metadata(fresh.files) == again == fresh.head


def test_a_schema_and_nothing_else(tmp_path: Path) -> None:
    made = Grown(on_disk(tmp_path, "bare"), DatasetKind.DERIVATIVE)
    made.schema()
    assert reset_to_metadata(made.files) == made.seed == made.head


def test_a_root_dataset_is_refused(numbers: Root) -> None:
    head = numbers.head
    with pytest.raises(TransformError, match="numbers: a root dataset cannot be reset"):
        reset_to_metadata(numbers.files)
    assert numbers.head == head


class BusyStore(MemoryObjectStore):
    """Something else happens just before the first block that is stored after `before` is set."""

    before: Callable[[], object] | None = None

    def put(self, data: bytes) -> Multihash:
        before, self.before = self.before, None
        if before is not None:
            before()
        return super().put(data)


def test_a_faster_writer_wins(numbers: Root) -> None:
    store = BusyStore()
    chain = MetadataChain(store, MemoryRefStore(), MemoryScratch())
    derived = Derived(numbers, files=dataclasses.replace(in_memory("derived"), chain=chain))
    derived.run()
    store.before = derived.info
    with pytest.raises(RefConflictError):
        reset_to_metadata(derived.files)
    assert derived.head == derived.builder.prev
    assert events(derived.files)[-1].KIND == "SetInfo"


def test_what_is_made_of_a_reset_dataset_has_diverged(tmp_path: Path, derived: Derived) -> None:
    last = Derived(derived, files=on_disk(tmp_path, "last"))
    last.run()
    reset_to_metadata(derived.files)
    with pytest.raises(DivergedInputError, match=r"last: its input derived"):
        last.plan()
    derived.resume()
    derived.run()
    with pytest.raises(DivergedInputError, match=r"last: its input derived"):
        last.plan()
    reset_to_metadata(last.files)
    last.resume()
    assert last.step().inputs[0].interval == ev.OffsetInterval(start=0, end=4)
