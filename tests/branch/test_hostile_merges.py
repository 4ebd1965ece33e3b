"""Branches and merges of a hostile peer: cycles, bases that are none, sources nobody has, other datasets' blocks, names that are paths."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.audit.report import MERGES
from odfchain.errors import OdfchainError
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import KIND, SOURCE_NAME, Granularity, MergeMode, MergeRecord, Resolution
from tests.kit.branched_dataset import fork, write
from tests.kit.recorded_dataset import add, slice_of
from tests.kit.run_length import scaled
from tests.kit.sharing import Sharing
from tests.kit.support import seeded_id, tree_of
from tests.kit.upkeep_scenes import head_of, new_workspace, root

SOON = 10.0
"""What any command takes at most [s]."""
NOBODYS = hash_bytes(b"nobody has it")
Parts = Callable[[dict[str, Multihash]], dict[str, object]]
HOSTILE: dict[str, Parts] = {
    "a source that nobody has": lambda _: {"source": NOBODYS},
    "bases that nobody has": lambda _: {"base": tuple(hash_bytes(bytes([n])) for n in range(100))},
    "its own target as source": lambda at: {"source": at["head"], "base": (at["head"],)},
    "its seed as source": lambda at: {"source": at["seed"], "base": (at["seed"],)},
    "a base that is newer": lambda at: {"base": (at["source"],)},
    "a base that is no ancestor": lambda at: {"base": (at["side"],)},
    "another dataset's source": lambda at: {"source": at["other"], "base": (at["fork"],)},
    "another dataset's base": lambda at: {"base": (at["other"],)},
    "another target": lambda at: {"target": at["seed"]},
    "a target that nobody has": lambda _: {"target": NOBODYS},
    "a name that is a path": lambda _: {"source_ref": "../../../outside"},
    "a name with bytes that act": lambda _: {"source_ref": "\x1b[2J\0\n"},
    "a name of the head": lambda _: {"source_ref": "head"},
    "a long name": lambda _: {"source_ref": "a" * 10_000},
    "many conflicts": lambda _: {"conflicts": 2**63},
    "its own target as base": lambda at: {"base": (at["head"],)},
    "one base many times": lambda at: {"base": (at["fork"],) * 150},
    "decisions where nothing was to decide": lambda _: {"resolution": Resolution.THEIRS, "conflicts": 3},
    "rows that somebody decided": lambda _: {"resolution": Resolution.ROWS, "granularity": Granularity.ROW},
    "a revert of another branch": lambda at: {"mode": MergeMode.REVERT, "base": (at["side"],)},
    "references that nobody has": lambda _: {"references": {seeded_id(str(n)): NOBODYS for n in range(50)}},
}
RAW = {
    "no JSON": "\x1b[2J{",
    "deep": "[" * 8_000,
    "more than a record has": " " * 100_000 + "{}",
    "another version": '{"version":2,"base":["x"]}',
    "two of one name": '{"source":1,"source":2}',
    "a large number": '{"version":1' + "0" * 10_000 + "}",
}
"""Texts in the place of a record."""


class Peer:
    """A hostile owner: a dataset with a branch, and another dataset whose blocks lie among its own."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "place"
        self.sharing = Sharing(new_workspace(folder / "peer"))
        self.cities = root(self.sharing.workspace, slices=2)
        self.at = {
            "fork": head_of(self.cities),
            "seed": [found.hash for found in self.cities.chain.walk()][-1],
        }
        self.fix, self.side = fork(self.cities, "fix"), fork(self.cities, "side")
        self.at |= {
            "source": write(self.fix, "b"),
            "side": write(self.side, "s"),
            "head": write(self.cities, "c"),
        }
        other = Sharing(new_workspace(folder / "elsewhere"))
        foreign = root(other.workspace, slices=1)
        self.at["other"] = head_of(foreign)
        for name, data in tree_of(foreign.folder).items():
            if name.startswith(("blocks/", "data/")) and not (self.cities.folder / name).exists():
                (self.cities.folder / name).write_bytes(data)

    def merge(self, parts: dict[str, object], text: str | None = None) -> Multihash:
        """A block that says so, or has `text` in the place of its record."""
        state = DatasetState.read(self.cities.chain)
        record = {
            "base": (self.at["fork"],),
            "source": self.at["source"],
            "source_ref": "fix",
            "target": state.head,
        } | parts
        start = (state.last_offset or 0) + 1
        if text is None:
            source_state = MergeRecord(**record).to_state()  # type: ignore[arg-type]
        else:
            source_state = ev.SourceState(source_name=SOURCE_NAME, kind=KIND, value=text)
        event = ev.AddData(
            prev_offset=state.last_offset, new_data=slice_of(self.cities, start, ["merged"]),
            new_watermark=state.watermark, new_source_state=source_state,
        )  # fmt: skip
        add(self.cities, event)
        return head_of(self.cities)

    def publish(self) -> str:
        self.sharing.push(self.cities, self.place.as_uri())
        for ref in (self.fix, self.side):
            self.sharing.push(ref, self.place.as_uri())
        for name, data in tree_of(self.cities.folder).items():  # the peer serves what it likes
            if name.startswith(("blocks/", "data/")):
                (self.place / name).write_bytes(data)
        return self.place.as_uri()


def every_use(dataset: Dataset, workspace: Workspace) -> list[str]:
    """Whatever looks at branches and merges; what was refused."""
    refused = []
    for name, use in {
        "fetch merged": dataset.fetch_merged,
        "graph": lambda: list(dataset.log_graph()),
        "branches": dataset.branches,
        "diff": lambda: dataset.diff("fix", "head"),
        "plan": lambda: dataset.plan_merge("fix"),
        "merge": lambda: dataset.merge("fix"),
        "history": lambda: dataset.scan().to_arrow(),
        "gc": workspace.gc,
        "fsck": dataset.fsck,
    }.items():
        began = time.monotonic()
        try:
            use()
        except OdfchainError as error:
            refused.append(name)
            assert str(error).isprintable()
        assert time.monotonic() - began < SOON, name
    return refused


@pytest.mark.hypothesis  # no property, but `make soak` tries all of it
@pytest.mark.parametrize("kind", [*HOSTILE, *RAW][:: scaled(7, 1, 1)])
def test_a_merge_that_is_none_is_said_and_harms_nobody(
    kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    peer = Peer(tmp_path)
    (tmp_path / "outside").mkdir()
    block = peer.merge(HOSTILE[kind](peer.at) if kind in HOSTILE else {}, RAW.get(kind))
    reader = Sharing(new_workspace(tmp_path / "reader"))
    url = peer.publish()
    reader.pull(url, "cities")
    assert head_of(reader.workspace.dataset("cities")) == block
    workspace = Workspace.open(tmp_path / "reader")
    dataset = workspace["cities"]
    for name in ("fix", "side"):
        with contextlib.suppress(OdfchainError):
            reader.pull_branch(reader.workspace.dataset("cities").on(name), url)
    refused = every_use(dataset, workspace)
    report = dataset.verify()
    if report.ok:  # of what nobody has nothing is said
        assert "is not here" in report.reasons[MERGES]
        assert not report.done.get(MERGES)
    else:
        assert {fault.check for fault in report.faults} == {MERGES}
    assert list((tmp_path / "outside").iterdir()) == []
    record_property("refused", len(refused))
    record_property("faults", len(report.faults))


@pytest.mark.hypothesis
def test_a_merge_upon_the_other(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Each has the two newest blocks as parents, and a hundred bases: paths double, and each block is visited once."""
    peer, count = Peer(tmp_path), scaled(20, 200, 600)
    bases = tuple(hash_bytes(bytes([n])) for n in range(100))
    source = peer.at["source"]
    for _ in range(count):
        source, peer.at["head"] = peer.at["head"], peer.merge({"source": source, "base": bases})
    dataset = Workspace.open(tmp_path / "peer")["cities"]
    assert len(list(dataset.log_graph())) >= count
    refused = every_use(dataset, Workspace.open(tmp_path / "peer"))
    record_property("merges", count)
    record_property("refused", len(refused))


@pytest.mark.hypothesis
def test_thousands_of_branches(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    peer, count = Peer(tmp_path), scaled(100, 3_000, 10_000)
    refs = peer.cities.folder / "refs"
    for number in range(count):
        (refs / f"b{number}").write_text(str(peer.at["source" if number % 2 else "side"]))
    workspace = Workspace.open(tmp_path / "peer")
    began = time.process_time()  # other tests run beside this one
    assert len(workspace["cities"].branch_names) == count + 2
    assert len(workspace["cities"].branches()) == count + 2
    list(workspace["cities"].log_graph(limit=20))
    assert workspace["cities"].fsck().whole
    workspace.gc()
    seconds = time.process_time() - began
    record_property("branches", count)
    record_property("seconds", round(seconds, 1))
    assert seconds < SOON + count / 100
