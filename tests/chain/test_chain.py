"""Walking, the index, and attacks on both."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import pytest

from odfchain.chain.chain import HashedBlock, MetadataChain, link_blocks
from odfchain.chain.index import EVENT_KINDS, MERGE, ROW_BYTES
from odfchain.errors import (
    AppendError,
    ChainError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    RefConflictError,
    StorageFullError,
)
from odfchain.odf import events as ev
from odfchain.odf.block_codec import decode_block, encode_block
from odfchain.odf.enums import DatasetKind
from odfchain.odf.flatbuffers import load_fbs
from odfchain.odf.identity import Multihash
from odfchain.odf.sources import MergeStrategyAppend, ReadStepCsv
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import MemoryScratch
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore
from tests.kit.support import ChainBuilder, conformance, data_slice, hash_of, memory_chain, seeded_id


def grow(builder: ChainBuilder, count: int, seed: int = 0) -> None:
    """A chain of many kinds of events."""
    rng = random.Random(seed)
    if builder.prev is None:
        builder.seed()
        builder.append(ev.SetDataSchema(raw_arrow_schema=b"x"))
    offset = builder.chain.nearest("AddData")
    last = offset.block.event.last_offset if offset else None
    for _ in range(count):
        choice = rng.random()
        if choice < 0.6:
            start = 0 if last is None else last + 1
            source = ev.SourceState(source_name=MERGE, kind=MERGE, value="{}") if choice < 0.1 else None
            added = data_slice(start, start + 4)
            builder.append(ev.AddData(prev_offset=last, new_data=added, new_source_state=source))
            last = start + 4
        elif choice < 0.8:
            builder.append(ev.SetInfo(description=str(rng.random())))
        else:
            name, read = f"s{rng.randrange(3)}", ReadStepCsv(separator=str(rng.random()))
            builder.append(ev.AddPushSource(source_name=name, read=read, merge=MergeStrategyAppend()))


@pytest.fixture
def scratch() -> MemoryScratch:
    return MemoryScratch()


@pytest.fixture
def chain(scratch: MemoryScratch) -> MetadataChain:
    return MetadataChain(MemoryObjectStore(), MemoryRefStore(), scratch)


def answers(chain: MetadataChain) -> list[Any]:
    """What the chain says about the nearest block of every kind, from every fifth block."""
    found = []
    for hb in list(chain.walk())[::5]:
        for kind in (*EVENT_KINDS, MERGE):
            nearest = chain.nearest(kind, head=hb.hash)
            found.append(nearest.hash if nearest else None)
        found.append([h.hash for h in chain.nearest_all("AddPushSource", head=hb.hash)])
    return found


def answers_with(data: bytes, chain: MetadataChain, scratch: MemoryScratch) -> list[Any]:
    """What it says when it is opened with this index."""
    scratch.data[:] = data
    return answers(MetadataChain(chain._blocks, chain._refs, scratch))


def without_index(chain: MetadataChain) -> MetadataChain:
    return MetadataChain(chain._blocks, chain._refs)


def test_event_kinds_are_those_of_the_schema() -> None:
    assert load_fbs("odf.fbs").unions["MetadataEvent"] == EVENT_KINDS


def test_the_index_answers_like_a_walk(chain: MetadataChain) -> None:
    grow(ChainBuilder(chain), 60)
    assert answers(chain) == answers(without_index(chain))


@pytest.mark.parametrize("keep", [0, 1, ROW_BYTES - 1, ROW_BYTES, 7 * ROW_BYTES, 20 * ROW_BYTES + 5])
def test_a_truncated_index_is_only_slower(chain: MetadataChain, scratch: MemoryScratch, keep: int) -> None:
    grow(ChainBuilder(chain), 40)
    expected = answers(chain)
    assert answers_with(scratch.data[:keep], chain, scratch) == expected
    assert answers(chain) == expected


def test_a_damaged_index_is_rebuilt(chain: MetadataChain, scratch: MemoryScratch) -> None:
    grow(ChainBuilder(chain), 40)
    expected, intact = answers(chain), bytes(scratch.data)
    rng = random.Random(3)
    for _ in range(200):
        damaged = bytearray(intact)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(intact))] ^= 1 << rng.randrange(8)
        assert answers_with(damaged, chain, scratch) == expected


def test_an_index_of_a_release_that_knew_no_merges_is_rebuilt(
    chain: MetadataChain, scratch: MemoryScratch
) -> None:
    grow(ChainBuilder(chain), 40)
    expected, body = answers(chain), struct.Struct("<32sB7x13Q")
    assert any(chain.nearest_all(MERGE))
    rows = [scratch.data[start : start + body.size] for start in range(0, len(scratch.data), ROW_BYTES)]
    old = b"".join(row + struct.pack("<I4x", zlib.crc32(row)) for row in rows)
    assert answers_with(old, chain, scratch) == expected


def test_another_datasets_index_is_not_believed(chain: MetadataChain, scratch: MemoryScratch) -> None:
    other_scratch = MemoryScratch()
    other = MetadataChain(MemoryObjectStore(), MemoryRefStore(), other_scratch)
    grow(ChainBuilder(chain), 40, seed=1)
    grow(ChainBuilder(other), 50, seed=2)
    expected = answers(chain)
    answers(other)
    assert answers_with(other_scratch.data, chain, scratch) == expected


def test_an_older_and_a_newer_index(chain: MetadataChain, scratch: MemoryScratch) -> None:
    builder = ChainBuilder(chain)
    grow(builder, 20)
    old_head = chain.head()
    answers(chain)
    old = bytes(scratch.data)
    grow(builder, 20, seed=9)
    expected = answers(chain)
    assert answers_with(old, chain, scratch) == expected
    chain.set_ref("head", old_head, expected=builder.prev)
    assert answers(chain) == answers(without_index(chain))


def test_a_fork_is_indexed_as_what_it_is(chain: MetadataChain) -> None:
    builder = ChainBuilder(chain)
    grow(builder, 10)
    at, sequence = builder.prev, builder.sequence
    grow(builder, 10, seed=5)
    left = chain.head()
    builder.prev, builder.sequence = at, sequence
    for n in range(12):
        builder.prev = chain.append(builder.block(ev.SetInfo(description=f"fork {n}")), publish=False)
        builder.sequence += 1
    for head in (left, builder.prev, left):
        assert chain.nearest("SetInfo", head=head) == without_index(chain).nearest("SetInfo", head=head)


class ReadOnlyScratch(MemoryScratch):
    def write(self, start: int, data: bytes) -> None:
        raise StorageFullError("no space left")


def test_an_index_that_cannot_be_written_stops_nothing() -> None:
    chain = MetadataChain(MemoryObjectStore(), MemoryRefStore(), ReadOnlyScratch())
    grow(ChainBuilder(chain), 30)
    assert answers(chain) == answers(without_index(chain))


class CountingStore(MemoryObjectStore):
    reads = 0

    def get(self, name: Any) -> bytes:
        self.reads += 1
        return super().get(name)


def test_appending_reads_a_constant_number_of_blocks() -> None:
    store = CountingStore()
    refs, scratch = MemoryRefStore(), MemoryScratch()
    builder = ChainBuilder(MetadataChain(store, refs, scratch))
    counts = []
    for size in (10, 100, 400):
        grow(builder, size - builder.sequence, seed=size)
        builder.chain = MetadataChain(store, refs, scratch)  # nothing cached
        last = builder.chain.nearest("AddData")
        end = last.block.event.last_offset
        store.reads = 0
        builder.chain = MetadataChain(store, refs, scratch)
        builder.append(ev.AddData(prev_offset=end, new_data=data_slice(end + 1, end + 2)))
        counts.append(store.reads)
    assert max(counts) <= 8, counts


# --- attacks -----------------------------------------------------------------------------------------


def test_a_damaged_block_is_never_returned(chain: MetadataChain) -> None:
    grow(ChainBuilder(chain), 5)
    names = [hb.hash for hb in chain.walk()]
    data = bytearray(chain._blocks.objects[names[2]])
    data[100] ^= 1
    chain._blocks.objects[names[2]] = bytes(data)
    with pytest.raises(ObjectCorruptedError, match=str(names[2])):
        list(without_index(chain).walk())


def test_a_missing_block_in_the_middle(chain: MetadataChain) -> None:
    grow(ChainBuilder(chain), 5)
    names = [hb.hash for hb in chain.walk()]
    store = chain._blocks
    del store.objects[names[3]]
    with pytest.raises(ChainError, match="is missing"):
        list(without_index(chain).walk())
    del store.objects[names[0]]
    with pytest.raises(ObjectNotFoundError):
        list(without_index(chain).walk())


class LyingStore(MemoryObjectStore):
    """A store that does not hash: what a cycle would need."""

    def get(self, name: Any) -> bytes:
        return self._find(name)


def test_a_cycle_is_refused_at_its_first_wrong_number() -> None:
    store = LyingStore()
    chain = MetadataChain(store, MemoryRefStore())
    builder = ChainBuilder(chain)
    builder.seed()
    head = builder.append(ev.SetInfo(description="x"))
    block = builder.block(ev.SetInfo(description="loop"), prev_block_hash=head, sequence_number=7)
    store.objects[head] = encode_block(block)
    with pytest.raises(ChainError, match="sequence number 7, expected 6"):
        list(MetadataChain(store, chain._refs).walk(head))


def test_a_second_seed_in_the_middle_is_refused() -> None:
    store = MemoryObjectStore()
    chain = MetadataChain(store, MemoryRefStore())
    builder = ChainBuilder(chain)
    seed = builder.block(ev.Seed(dataset_id=seeded_id("a"), dataset_kind=DatasetKind.ROOT), sequence_number=3)
    name = store.put(encode_block(seed))
    with pytest.raises(ChainError, match="no predecessor"):
        list(chain.walk(name))


def test_foreign_bytes_are_kept_as_they_are() -> None:
    """A version 2 block is stored and hashed as received, not written again as version 3."""
    chain = memory_chain()
    vectors = conformance("flatbuffers_blocks")["derived_vectors_not_upstream"]["vectors"]
    (vector,) = [v for v in vectors if v["id"] == "seed_root"]
    data = bytes.fromhex(vector["v2"]["manifest_hex"])
    name = chain.append(decode_block(data), data=data)
    assert name.digest.hex() == vector["v2"]["block_hash_sha3_256"]
    assert chain.get_bytes(name) == data


# --- transactions --------------------------------------------------------------------------------------


def linked(seed: Multihash, *events: ev.MetadataEvent) -> list[HashedBlock]:
    """Blocks that follow a seed."""
    return link_blocks(events, prev=seed, next_sequence_number=1, system_time=Timestamp.now())


def test_several_blocks_become_visible_together(chain: MetadataChain) -> None:
    seed = ChainBuilder(chain).seed()
    blocks = linked(seed, ev.SetDataSchema(raw_arrow_schema=b"x"), ev.AddData(new_data=data_slice(0, 4)))
    chain.check_all(blocks, expected_head=seed)
    assert chain.head() == seed
    chain.publish(blocks, expected_head=seed)
    assert chain.head() == blocks[-1].hash


def test_one_bad_block_refuses_all(chain: MetadataChain) -> None:
    seed = ChainBuilder(chain).seed()
    blocks = linked(seed, ev.SetInfo(description="fine"), ev.AddData(new_data=data_slice(0, 4)))
    with pytest.raises(AppendError):
        chain.check_all(blocks, expected_head=seed)
    assert not chain.contains(blocks[0].hash)


def test_losing_the_race_changes_nothing(chain: MetadataChain) -> None:
    builder = ChainBuilder(chain)
    seed = builder.seed()
    mine = linked(seed, ev.SetInfo(description="mine"))
    theirs = builder.append(ev.SetInfo(description="theirs"))
    with pytest.raises(RefConflictError):
        chain.publish(mine, expected_head=seed)
    assert chain.head() == theirs


def test_blocks_that_do_not_link_are_refused(chain: MetadataChain) -> None:
    seed = ChainBuilder(chain).seed()
    with pytest.raises(OdfchainError, match="does not follow"):
        chain.check_all(linked(hash_of("elsewhere"), ev.SetInfo()), expected_head=seed)
