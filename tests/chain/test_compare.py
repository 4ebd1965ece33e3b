"""How two chains lie to each other, and how little is read to find out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.chain.chain import MetadataChain
from odfchain.chain.compare import Ahead, Behind, Comparison, Descent, Diverged, Equal, compare
from odfchain.errors import ChainError, DatasetNotFoundError
from odfchain.limits import LIMITS
from odfchain.odf import events as ev
from odfchain.odf.block_codec import decode_header
from odfchain.odf.events import BlockHeader
from odfchain.odf.identity import HashList, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.pulling import pull_dataset
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.memory_peer import MemoryPeer
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore
from tests.kit.scenario import Chain, chain_of, numbered
from tests.kit.support import cases


class CountingLinks:
    """Links of a chain of labels; writes down what is read."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.read: list[Multihash] = []

    def link(self, name: Multihash) -> BlockHeader:
        self.read.append(name)
        return decode_header(self.chain.objects[ObjectKey(ObjectKind.BLOCK, name)])

    def broken(self, problem: str) -> ChainError:
        return ChainError(problem)


def compared(lhs: list[str], rhs: list[str]) -> tuple[Comparison, Chain, CountingLinks]:
    source, destination, blocks = chain_of(lhs), CountingLinks(chain_of(rhs)), MemoryObjectStore()
    for data in source.blocks:
        blocks.put(data)
    stored = MetadataChain(blocks, MemoryRefStore())
    head = destination.chain.head if rhs else None
    return compare(stored, source.head, head, destination), source, destination


def labels_of(chain: Chain, labels: list[str], blocks: Any) -> list[str]:
    return [labels[chain.hashes.index(name)] for name in blocks]


@pytest.mark.parametrize("case", cases("protocol_cases", "compare_chains"))
def test_chains_compare_as_the_shared_cases_say(case: dict[str, Any]) -> None:
    found, source, destination = compared(case["lhs"], case["rhs"])
    expect = case["expect"]
    match found:
        case Equal():
            assert expect == {"result": "Equal"}
        case Ahead(blocks):
            labels = labels_of(source, case["lhs"], blocks)
            assert expect == {"result": "LhsAhead", "lhs_ahead_blocks": labels}
        case Behind(blocks):
            labels = labels_of(destination.chain, case["rhs"], blocks)
            assert expect == {"result": "LhsBehind", "rhs_ahead_blocks": labels}
        case Diverged(n, m):
            uncommon = {"uncommon_blocks_in_lhs": n, "uncommon_blocks_in_rhs": m}
            assert expect == {"result": "Divergence", **uncommon}


@pytest.mark.parametrize("case", cases("protocol_cases", "remote_status"))
def test_a_local_chain_has_the_status_that_the_shared_cases_say(case: dict[str, Any], tmp_path: Any) -> None:
    if case["remote"] is None:
        assert case["expect"] == {"error": "RemoteDatasetNotFound"}
        with pytest.raises(DatasetNotFoundError, match="memory://peer/"):
            pull_dataset(WorkspaceFiles.init(tmp_path), Store(MemoryPeer(None)), DatasetAlias.parse("x"))
        return
    found, _, _ = compared(case["local"], case["remote"])
    actual: Any
    match found:
        case Equal():
            actual = "Equal"
        case Ahead(blocks):
            actual = {"LhsAhead": len(blocks)}
        case Behind(blocks):
            actual = {"LhsBehind": len(blocks)}
        case Diverged(n, m):
            actual = {"Divergence": [n, m]}
    assert actual == case["expect"]


@settings(max_examples=150, deadline=None)
@given(common=st.integers(1, 6), left=st.integers(0, 6), right=st.integers(0, 6))
def test_every_pair_of_chains_is_told_apart_with_few_reads(common: int, left: int, right: int) -> None:
    shared = numbered(common)
    lhs = [*shared, *(f"l{i}" for i in range(left))]
    rhs = [*shared, *(f"r{i}" for i in range(right))]
    found, source, destination = compared(lhs, rhs)
    if left == right == 0:
        assert found == Equal()
        assert destination.read == []
    elif right == 0:
        assert isinstance(found, Ahead)
        assert list(found.blocks) == source.hashes[: common - 1 : -1]
        assert len(destination.read) == 1
    elif left == 0:
        assert isinstance(found, Behind)
        assert list(found.blocks) == destination.chain.hashes[: common - 1 : -1] == destination.read
    else:
        assert found == Diverged(left, right, source.hashes[common - 1])
        assert len(destination.read) == right


def test_chains_of_different_seeds_have_nothing_in_common() -> None:
    found, _, _ = compared(["seedA", "a", "b"], ["seedB"])
    assert found == Diverged(3, 1, None)


def broken(first: int, *, prev: bool = True) -> Chain:
    """A chain whose newest block but one has a wrong number."""
    chain = chain_of(["seed", "schema"])
    chain.append(chain_event("x"), sequence_number=first, **({} if prev else {"prev_block_hash": None}))
    chain.append(chain_event("y"))
    return chain


def chain_event(text: str) -> Any:
    return ev.SetInfo(description=text)


@pytest.mark.parametrize(
    ("chain", "says"),
    [
        (broken(1), "has sequence number 1, expected 2"),
        (broken(3), "has sequence number 3, expected 2"),
        (broken(0), "has sequence number 0, expected 2"),
        (broken(2, prev=False), "has sequence number 2 and no predecessor"),
    ],
    ids=["repeats", "does-not-fall", "seed-too-early", "ends-before-0"],
)
def test_a_walk_ends_where_numbers_do_not_count_down(chain: Chain, says: str) -> None:
    links = CountingLinks(chain)
    with pytest.raises(ChainError, match=says):
        Descent(links, chain.head).to_known()
    assert len(links.read) == 2


def test_a_seed_with_a_predecessor_does_not_continue_the_walk() -> None:
    chain = chain_of(["seed"])
    chain.append(chain_event("x"), sequence_number=0)
    with pytest.raises(ChainError, match="has sequence number 0 and a predecessor"):
        Descent(CountingLinks(chain), chain.head).to_known()


def test_a_head_beyond_the_limit_is_refused_at_once() -> None:
    chain = chain_of(["seed"])
    chain.append(chain_event("x"), sequence_number=LIMITS.chain_blocks)
    links = CountingLinks(chain)
    with pytest.raises(ChainError, match="block 10,000,000 "):
        Descent(links, chain.head).to_known()
    assert links.read == [chain.head]


def test_a_list_of_hashes_is_a_sequence() -> None:
    hashes = chain_of(["seed", "schema", "a"]).hashes
    found = HashList(hashes)
    assert (list(found), len(found), found[-1], found[1]) == (hashes, 3, hashes[2], hashes[1])
    assert list(found[::-1]) == hashes[::-1]
    assert hashes[2] in found
    with pytest.raises(IndexError):
        found[3]
