"""Two machines that write to one store at the same time, and stores that fail in between: no commit is lost."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError, RefConflictError, SetBackError, TransferError
from odfchain.progress import SILENT
from odfchain.storage.local import HEAD, LocalRefStore
from odfchain.transfer import pulling
from odfchain.workspace.commit import on_the_newest_head
from tests.kit.shared_store import QUICK, add, append, at, calm, machine, reopened, texts
from tests.kit.small_s3 import RESET, SmallS3

AGAIN = replace(QUICK, retries=2)
ROOT = Path(__file__).parents[2]
MOST = 9
"""More requests than a commit of one block has [count]."""


@pytest.fixture
def one(one: Workspace) -> Workspace:
    """A machine with a dataset that has no rows."""
    add(one)
    return reopened(one)


@pytest.fixture
def other(one: Workspace, other: Workspace) -> Workspace:
    """Another one, which has seen the dataset."""
    assert texts(other) == []
    return reopened(other)


def write(workspace: Workspace, text: str, retries: int = 5, ref: str = HEAD) -> None:
    """A commit of one row, repeated as `ingest` repeats it."""
    root = workspace["cities"].branch(ref)._files
    on_the_newest_head(lambda: append(root, text), retries, SILENT)


@pytest.mark.parametrize(
    ("after", "ref"),
    [
        (False, HEAD),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [(True, HEAD), (False, "fix"), (True, "fix")]
        ),
    ],
)
def test_who_writes_at_whatever_moment_loses_nothing(
    store: SmallS3, one: Workspace, other: Workspace, after: bool, ref: str
) -> None:
    if ref != HEAD:
        one["cities"].create_branch(ref)

    written, moments = list[str](), list[str]()
    for number in range(MOST):
        fired = at(store, number, lambda n=number: write(other, f"other {n}", ref=ref), after=after)  # type: ignore[misc]
        write(one, f"one {number}", ref=ref)
        calm(store)
        written += [f"one {number}"] + [f"other {number}"] * len(fired)
        moments += fired
        assert sorted(texts(other, ref=ref)) == sorted(written)
    assert sorted(texts(one, ref=ref)) == sorted(written)
    assert any(moment.endswith(f"refs/{ref}") and moment.startswith("PUT") for moment in moments)
    assert any("/data/" in moment for moment in moments)
    assert all(not report.faults for report in one.verify())


@pytest.mark.parametrize(
    ("fault", "after", "limits"),
    [
        (503, True, AGAIN), (RESET, False, QUICK),
        *(pytest.param(fault, after, limits, marks=pytest.mark.soak)
          for fault, after, limits in [
              (503, False, QUICK), (503, False, AGAIN), (503, True, QUICK),
              (RESET, True, QUICK), (RESET, False, AGAIN), (RESET, True, AGAIN),
              (429, False, QUICK), (429, True, QUICK), (429, False, AGAIN), (429, True, AGAIN),
          ]),
    ],
)  # fmt: skip
def test_a_store_that_fails_at_whatever_moment_has_each_commit_once(
    store: SmallS3, one: Workspace, other: Workspace, fault: int, after: bool, limits: object
) -> None:
    one = reopened(one, limits)
    failed, moments, written = list[str](), list[str](), list[str]()
    for number in range(MOST):
        fired = at(store, number, lambda: fault, after=after)
        try:
            write(one, str(number))
        except TransferError:
            failed += fired
            calm(store)
            if str(number) not in texts(other):
                write(one, str(number))
        calm(store)
        written.append(str(number))
        moments += fired
        assert texts(other) == written
    assert any(moment.startswith("PUT") and moment.endswith("refs/head") for moment in moments)
    assert not [request for request in failed if limits is AGAIN or request.startswith("PUT")]
    assert texts(one) == written


def test_an_answer_that_is_lost_is_no_conflict(store: SmallS3, one: Workspace, other: Workspace) -> None:
    """Also where somebody else has gone on from the commit by then."""

    def lose(method: str, path: str) -> int | None:
        if method == "PUT" and path.endswith("refs/head"):
            store.after = lambda *_: None
            write(other, "other")
            return 503
        return None

    store.after = lose
    write(one, "one", retries=0)
    assert texts(one) == texts(other) == ["one", "other"]


def test_what_nobody_knows_is_said(store: SmallS3, one: Workspace, other: Workspace) -> None:

    def die(method: str, path: str) -> int | None:
        if method == "PUT" and path.endswith("refs/head"):
            store.before = lambda *_: 503
            return 503
        return None

    store.after = die
    with pytest.raises(TransferError, match="was committed is not known") as caught:
        write(one, "one")
    assert "odfchain log" in str(caught.value.hint)
    calm(store)
    assert texts(other) == texts(one) == ["one"]


def test_a_process_that_dies_between_the_heads(
    one: Workspace, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:

    def die(*_: object) -> None:
        raise SystemExit

    root = one["cities"]._files
    with monkeypatch.context() as patch:
        patch.setattr(LocalRefStore, "compare_and_swap", die)
        with pytest.raises(SystemExit):
            append(root, "one")
    assert root.chain.head() != other["cities"]._files.chain.head()
    assert texts(reopened(one)) == texts(other) == ["one"]
    write(reopened(one), "two")
    assert texts(other) == ["one", "two"]


def test_a_process_that_dies_before_the_head_leaves_no_trace(
    store: SmallS3, one: Workspace, other: Workspace
) -> None:
    store.before = lambda method, path: 503 if method == "PUT" and path.endswith("refs/head") else None
    with pytest.raises(OdfchainError):
        write(one, "one")
    calm(store)
    assert texts(other) == []
    write(other, "other")
    write(one, "one")
    assert texts(reopened(other)) == ["other", "one"]


def test_many_at_once(store: SmallS3, tmp_path: Path, one: Workspace, other: Workspace) -> None:
    third = machine(store, tmp_path / "third")

    def run(workspace: Workspace, name: str) -> None:
        for number in range(3):
            write(workspace, f"{name} {number}", retries=100)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, (one, other, third), "abc"))
    expected = sorted(f"{name} {number}" for name in "abc" for number in range(3))
    for workspace in (one, other, third):
        assert sorted(texts(workspace)) == expected


@pytest.mark.soak
def test_processes_that_have_nothing_in_common(one: Workspace, other: Workspace) -> None:
    code = """
import sys
from pathlib import Path
import odfchain as odf
from tests.share.test_shared_writers import write
workspace = odf.open(Path(sys.argv[1]))
for number in range(5):
    write(workspace, f"{sys.argv[2]} {number}", retries=100)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code, workspace.path.parent, name], cwd=ROOT)
        for workspace, name in zip((one, other), "ab", strict=True)
    ]
    assert [process.wait(120) for process in running] == [0, 0]
    expected = sorted(f"{name} {number}" for name in "ab" for number in range(5))
    assert sorted(texts(one)) == sorted(texts(other)) == expected


def test_a_commit_of_another_command_here_is_no_rewound_store(
    one: Workspace, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves the head here and in the store after a pull has asked for the latter."""
    write(other, "theirs")
    asked = pulling.read_offer

    def asked_then_moved(*given: Any) -> Any:
        found = asked(*given)
        monkeypatch.setattr(pulling, "read_offer", asked)
        write(reopened(one), "ours")
        return found

    monkeypatch.setattr(pulling, "read_offer", asked_then_moved)
    assert texts(one) == texts(reopened(other)) == ["theirs", "ours"]


def test_who_reads_while_another_command_here_moves_the_head_has_no_conflict(
    one: Workspace, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(other, "first")
    first = other["cities"].head
    write(other, "second")
    swap = LocalRefStore.compare_and_swap

    def late(refs: LocalRefStore, name: str, old: Any, new: Any) -> None:
        # the command that committed `first` here is slow to say so
        monkeypatch.setattr(LocalRefStore, "compare_and_swap", swap)
        swap(refs, name, old, first)
        swap(refs, name, old, new)

    monkeypatch.setattr(LocalRefStore, "compare_and_swap", late)
    assert texts(one) == ["first", "second"]


def test_a_store_that_gives_an_old_head_each_time_is_called_rewound(
    one: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has the right one when it is asked again: that is done a few times, and not for ever."""
    root, answer, asked = one["cities"]._files, pulling.read_offer, list[object]()
    old = root.chain.head()
    write(one, "ours")

    def outdated(*given: Any) -> Any:
        asked.append(given)
        found = answer(*given)
        return replace(found, head=old, content=None)

    monkeypatch.setattr(pulling, "read_offer", outdated)
    with pytest.raises(SetBackError):
        root.shared.stored(root.folder).bring(root.alias)
    assert len(asked) == 3


def test_threads_of_one_process(one: Workspace, other: Workspace) -> None:
    """They share what is known of the head."""
    won, lost = list[str](), list[str]()

    def run(name: str) -> None:
        root = one["cities"]._files
        for number in range(6):
            text = f"{name} {number}"
            try:
                append(root, text)
            except RefConflictError:
                lost.append(text)
            else:
                won.append(text)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, "ab"))
    assert sorted(texts(other)) == sorted(won)
    assert len(won) + len(lost) == 12
