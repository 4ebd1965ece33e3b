"""Forks, ancestors and merge bases against sets of blocks, on random histories."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.branches.branches import BlockGraph
from odfchain.chain.chain import link_blocks
from odfchain.errors import ObjectNotFoundError
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import MergeMode, MergeRecord
from odfchain.workspace.points import refs_of
from tests.kit.root_rows import MADE
from tests.kit.support import hash_of


@dataclass
class History:
    """A dataset's blocks without data, and the ancestors of each by definition."""

    dataset: DatasetFiles
    ancestors: dict[Multihash, frozenset[Multihash]] = field(default_factory=dict)
    made: int = 0

    @classmethod
    def begin(cls, folder: Path, name: str = "d") -> History:
        text = f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {name}, kind: Root, metadata: []}}\n"
        dataset = Workspace.init(folder).add(text)[0]._files
        seed = dataset.chain.head()
        return cls(dataset, {seed: frozenset([seed])})

    def head(self, branch: str) -> Multihash:
        return self.dataset.chain.head(branch)

    def point(self, branch: str, block: Multihash | None) -> None:
        """Let a reference be there, or not."""
        if block is None:
            refs_of(self.dataset).remove(branch, self.head(branch))
        else:
            (self.dataset.folder / "refs" / branch).write_text(str(block))

    def append(self, branch: str, event: ev.MetadataEvent, *more: Multihash) -> Multihash:
        prev = self.head(branch)
        chain = self.dataset.chain
        number = chain.get(prev).sequence_number + 1
        # straight into the store: the rules of events are not the subject
        (block,) = link_blocks([event], prev=prev, next_sequence_number=number, system_time=MADE)
        name = block.hash
        Path(chain._blocks.locate(name)).write_bytes(block.data)
        self.point(branch, name)
        known = [self.ancestors.get(other, frozenset()) for other in (prev, *more)]
        self.ancestors[name] = frozenset([name]).union(*known)
        return name

    def plain(self, branch: str) -> Multihash:
        self.made += 1
        return self.append(branch, ev.SetInfo(description=f"{branch} {self.made}"))

    def merge(self, branch: str, source: Multihash, mode: MergeMode = MergeMode.MERGE) -> Multihash:
        self.made += 1
        target = self.head(branch)
        record = MergeRecord(
            base=(target,), source=source, source_ref="x", target=target, mode=mode, message=str(self.made)
        )
        edges = [source] if mode is MergeMode.MERGE else []
        return self.append(branch, ev.AddData(new_source_state=record.to_state()), *edges)

    def best(self, one: Multihash, other: Multihash) -> set[Multihash]:
        common = self.ancestors[one] & self.ancestors[other]
        return {b for b in common if not any(b in self.ancestors[c] for c in common if c != b)}


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))]
)
def test_ancestors_and_bases_are_those_of_the_sets(tmp_path: Path, seed: int) -> None:
    rng, history = random.Random(seed), History.begin(tmp_path)
    branches = ["head", "a", "b", "c"]
    for name in branches[1:]:
        history.point(name, history.head("head"))
    for _ in range(60):
        on, kind = rng.choice(branches), rng.random()
        if kind < 0.5:
            history.plain(on)
        elif kind < 0.9:
            history.merge(on, rng.choice([*history.ancestors, *(history.head(b) for b in branches)]))
        elif kind < 0.95:
            history.merge(on, rng.choice(list(history.ancestors)), MergeMode.REVERT)
        elif on != "head":
            # an abandoned line stays as blocks that no reference leads to, and as the source of merges
            history.point(on, rng.choice(list(history.ancestors)))
    graph = BlockGraph(DatasetFiles.open(history.dataset.folder))
    for _ in range(150):
        one, other = rng.choices(list(history.ancestors), k=2)
        assert graph.is_ancestor(one, other) == (one in history.ancestors[other])
        found = graph.best_common([one], [other])
        assert set(found) == history.best(one, other)
        assert list(found) == sorted(found, key=lambda block: (graph.number(block), str(block)))


def test_a_merged_block_that_is_elsewhere_matters_only_if_both_sides_merged_it(tmp_path: Path) -> None:
    history, elsewhere = History.begin(tmp_path), hash_of("elsewhere")
    history.point("a", history.head("head"))
    mine, theirs = history.merge("head", elsewhere), history.plain("a")
    seed = history.dataset.chain.hash_at(0, mine)
    assert BlockGraph(history.dataset).best_common([mine], [theirs]) == (seed,)
    theirs = history.merge("a", elsewhere)
    with pytest.raises(ObjectNotFoundError, match="both sides merged block") as caught:
        BlockGraph(history.dataset).best_common([mine], [theirs])
    assert "fetch d --merged" in str(caught.value.hint)


def test_the_base_of_long_chains_is_found_without_reading_them(tmp_path: Path) -> None:
    """Through the index alone: however many blocks there are, few are read."""
    history = History.begin(tmp_path)
    for _ in range(60):
        history.plain("head")
    fork = history.head("head")
    history.point("a", fork)
    for _ in range(60):
        history.plain("head")
        history.plain("a")
    for name in ("head", "a"):
        history.dataset.on(name).chain.hash_at(0, history.head(name))
    graph = BlockGraph(DatasetFiles.open(history.dataset.folder), ["a"])
    read: list[Multihash] = []
    store = graph._chain._blocks.get  # type: ignore[attr-defined]
    graph._chain._blocks.get = lambda name: read.append(name) or store(name)  # type: ignore[attr-defined]
    assert graph.best_common([history.head("head")], [history.head("a")]) == (fork,)
    assert len(read) <= 4
