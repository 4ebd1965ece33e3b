"""Walks along chains end: random chains against a model of the rules, broken ones, and one of a million blocks."""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.chain import rules
from odfchain.chain.chain import MetadataChain
from odfchain.errors import AppendError, OdfchainError
from odfchain.limits import LIMITS
from odfchain.odf import events as ev
from odfchain.odf.block_codec import MANIFEST_VERSION, encode_block
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import MemoryScratch
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore
from tests.kit.run_length import scaled
from tests.kit.support import RAW_SCHEMA, T0, data_slice, hash_of, seeded_id

Record = Callable[[str, object], None]
SEED = ev.Seed(dataset_id=seeded_id("random"), dataset_kind=DatasetKind.ROOT)
KINDS = ("Seed", "SetDataSchema", "SetInfo", "AddData")
WRONG = (
    "seq-plus-one", "system-time-monotonic", "prev-offset-continues", "offset-interval-start", "offset-interval-order",
    "watermark-monotonic", "watermark-kept", "seed-only-once", "seed-first", "prev-block-exists",
)  # fmt: skip
BROKEN = ("gap", "repeat", "zero", "no predecessor", "missing", "endless")


class Model:
    """A chain that grows at random, and what a few numbers say that it must be."""

    def __init__(self, seed: int) -> None:
        self.draw, self.store = random.Random(seed), MemoryObjectStore()
        self.chain = MetadataChain(self.store, MemoryRefStore(), MemoryScratch())
        self.kept: list[tuple[Multihash, str]] = []
        self.at = T0
        self.last: int | None = None
        self.mark: Timestamp | None = None
        self.add(SEED)
        self.add(RAW_SCHEMA)

    def block(self, event: ev.MetadataEvent, **changes: Any) -> MetadataBlock:
        fields = {
            "system_time": self.at, "prev_block_hash": self.kept[-1][0] if self.kept else None,
            "sequence_number": len(self.kept), "event": event,
        }  # fmt: skip
        return MetadataBlock(**(fields | changes))

    def add(self, event: ev.MetadataEvent) -> None:
        self.kept.append((self.chain.append(self.block(event)), event.KIND))

    def data(self, **changes: Any) -> ev.AddData:
        start = 0 if self.last is None else self.last + 1
        made = {
            "prev_offset": self.last,
            "new_data": data_slice(start, start + 4),
            "new_watermark": self.mark,
        }
        return ev.AddData(**(made | changes))

    def grow(self) -> None:
        """One block that follows all rules."""
        self.at = self.at.shifted(self.draw.choice((0, 1, 1_000)))
        if self.draw.random() < 0.4:
            return self.add(ev.SetInfo(description=f"{self.draw.random()}"))
        self.mark = (self.mark or T0).shifted(self.draw.choice((0, 7)))
        event = self.data()
        self.add(event)
        self.last = event.last_offset
        return None

    def wrong(self, rule: str) -> MetadataBlock | None:
        """A block that breaks this rule and no other; None where the chain has not what it takes."""
        info, number, last = ev.SetInfo(description="x"), len(self.kept), self.last
        if rule.startswith(("watermark", "prev-offset")) and last is None:
            return None
        match rule:
            case "seq-plus-one":
                others = {0, 1, number - 1, number + 1, 2**32, 2**64 - 1, self.draw.getrandbits(64)} - {
                    number
                }
                return self.block(info, sequence_number=self.draw.choice(sorted(others)))
            case "system-time-monotonic":
                return self.block(info, system_time=self.at.shifted(-self.draw.choice((1, 10**9))))
            case "prev-offset-continues":
                before = last + self.draw.choice((-1, 1, 50))
                return self.block(self.data(prev_offset=before, new_data=data_slice(before + 1, before + 5)))
            case "offset-interval-start":
                return self.block(self.data(new_data=data_slice((last or 0) + 2, (last or 0) + 9)))
            case "offset-interval-order":
                start = 0 if last is None else last + 1
                return self.block(self.data(new_data=data_slice(start, start - 1))) if start else None
            case "watermark-monotonic":
                return self.block(self.data(new_watermark=self.mark.shifted(-1)))
            case "watermark-kept":
                return self.block(self.data(new_watermark=None))
            case "seed-only-once":
                return self.block(SEED)
            case "seed-first":
                return self.block(info, prev_block_hash=None, sequence_number=0)
        return self.block(info, prev_block_hash=hash_of(f"{self.draw.random()}"))

    def run(self, steps: int, done: Counter[str]) -> None:
        """Grow, with refusals between; the chain is what the model kept, by walks and by its index."""
        for _ in range(steps):
            rule = self.draw.choice(WRONG) if self.draw.random() < 0.5 else None
            if rule is None or (block := self.wrong(rule)) is None:
                self.grow()
                done["blocks"] += 1
                continue
            with pytest.raises(AppendError) as caught:
                self.chain.append(block)
            assert caught.value.rule == rule
            done[rule] += 1
        newest_first = [name for name, _ in self.kept][::-1]
        assert [each.hash for each in self.chain.walk()] == newest_first
        assert self.chain.hashes(newest_first[0])[::-1] == newest_first
        at = self.draw.randrange(len(self.kept))
        for kind in KINDS:
            expected = next((name for name, its in self.kept[at::-1] if its == kind), None)
            found = self.chain.nearest(kind, head=self.kept[at][0])
            assert (found and found.hash) == expected

    def broken(self, done: Counter[str]) -> None:
        """A block that the rules refuse is put below some that are right: a walk ends there, and says so."""
        fault, above, number = self.draw.choice(BROKEN), self.draw.randrange(6), len(self.kept)
        changes, extra = {
            "gap": ({"sequence_number": number + self.draw.choice((1, 2, 1_000))}, 1),
            "repeat": ({"sequence_number": number - 1}, 1),
            "zero": ({"sequence_number": 0}, 0),
            "no predecessor": ({"prev_block_hash": None}, 0),
            "missing": ({"prev_block_hash": hash_of(f"{self.draw.random()}")}, 0),
            "endless": ({"sequence_number": self.draw.choice((LIMITS.chain_blocks, 2**63, 2**64 - 10))}, 0),
        }[fault]
        block = self.block(ev.SetInfo(description="broken"), **changes)
        for _ in range(above + 1):
            name = self.store.put(encode_block(block, MANIFEST_VERSION))
            number = block.sequence_number + 1
            block = self.block(ev.SetInfo(description="above"), prev_block_hash=name, sequence_number=number)
        seen = list[Multihash]()
        with pytest.raises(OdfchainError):
            seen.extend(each.hash for each in self.chain.walk(name))
        assert len(seen) == (1 if fault == "endless" else above + 1 + extra)
        with pytest.raises(OdfchainError):
            list(self.chain.walk_files(name))
        with pytest.raises(OdfchainError):
            self.chain.nearest("ExecuteTransform", head=name)
        done[fault] += 1


def grown(count: int, done: Counter[str]) -> Iterator[Model]:
    for seed in range(count):
        model = Model(seed)
        model.run(12, done)
        yield model


def test_random_chains_are_what_a_model_says(record_property: Record) -> None:
    done = Counter[str]()
    count = scaled(60, 1_000, 10_000)
    for model in grown(count, done):
        model.broken(done)
    assert set(done) == {"blocks", *WRONG, *BROKEN}
    for name, number in {"chains": count, **done}.items():
        record_property(name, number)


@pytest.mark.parametrize("rule", ["_sequence", "_system_time", "_watermark", "_offsets"])
def test_a_rule_that_is_left_out_is_found_out(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, rule, lambda *_: None)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        list(grown(60, Counter()))


@pytest.mark.soak
def test_a_million_blocks_are_walked_in_the_memory_of_a_few(record_property: Record) -> None:
    """Blocks of a store in memory: by files, decoded, and by an index made anew; nothing is kept of a walk."""
    count, store, prev = scaled(1, 100_000, 1_000_000), MemoryObjectStore(), None
    for number in range(count):
        event = SEED if number == 0 else ev.SetInfo(description=f"{number}")
        at = Timestamp.from_epoch_ms(number)
        block = MetadataBlock(system_time=at, prev_block_hash=prev, sequence_number=number, event=event)
        prev = store.put(encode_block(block, MANIFEST_VERSION))
    chain, head = MetadataChain(store, MemoryRefStore(), scratch := MemoryScratch()), prev
    before = most = _resident()
    for name, walk in {"s of walk": chain.walk, "s of walk of files": chain.walk_files}.items():
        began, walked = time.monotonic(), 0
        for walked, _ in enumerate(walk(head), start=1):
            if walked % 10_000 == 0:
                most = max(most, _resident())
        assert walked == count
        record_property(name, time.monotonic() - began)
    assert most - before < 32 << 10
    began = time.monotonic()
    assert chain.nearest("Seed", head=head).block.event == SEED
    record_property("s of index", time.monotonic() - began)
    assert len(scratch.data) > count
    assert chain.hash_at(count // 2, head) is not None
    record_property("blocks", count)
    record_property("KiB grown", most - before)


def _resident() -> int:
    # [KiB] now: the most that there was, as getrusage has it, hides what a walk takes below it
    return int(Path("/proc/self/statm").read_text().split()[1]) * (resource.getpagesize() >> 10)
