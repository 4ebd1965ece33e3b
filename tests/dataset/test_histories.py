"""Eight writers of all kinds, killed and stopped at random: the chain is a history that can have happened.

What was acknowledged is there once, what nobody knows at most once, in the order of real time; no reader's head
goes back, and a dead writer stops nobody. The judge is `tests/kit/linearizability.py`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.chain import signed_heads
from odfchain.odf.identity import Multihash
from tests.kit import shared_store
from tests.kit.history_writers import (
    READERS,
    Client,
    Plan,
    Recorded,
    append,
    chain_values,
    history_of,
    recorded,
)
from tests.kit.linearizability import NEVER, anomalies
from tests.kit.node_process import Node
from tests.kit.run_length import scaled
from tests.kit.small_s3 import SmallS3
from tests.kit.smart_site import push

Note = Callable[[str, object], None]
PATIENCE = 1.0
"""Of everybody, after a death [s]."""
SHARED, PUSHED = (
    [f"shared-{number}" for number in range(scaled(4, 4, 12))],
    [f"pushed-{number}" for number in range(2)],
)


def clients_of(machines: list[Path], ours: Path, copies: Path, to: dict[str, str]) -> list[Client]:
    """Two writers of each kind (one, where there are seconds), as many who look, and one who pulls."""
    kinds, count = ["api", "command", "merge", "look"], scaled(1, 2, 2)
    here = [
        Client(f"{kind}-{number}", kind, str(machines[-number]), SHARED)
        for kind in kinds
        for number in range(count)
    ]
    pushing = [Client(f"push-{number}", "push", str(ours), PUSHED, to) for number in range(count)]
    return [*here, *pushing, Client("pull-0", "pull", str(copies), PUSHED, to)]


@contextlib.contextmanager
def site(folder: Path, store: SmallS3 | None) -> Iterator[tuple[list[Client], Workspace]]:
    """Clients of a folder or of a store, and the workspace that they write to."""
    machines = [folder / "here", folder / "there"] if store else [folder / "here"]
    made = [shared_store.machine(store, each) if store else odf.init(each) for each in machines]
    for name in SHARED:
        shared_store.add(made[0], name)
    ours, copies = folder / "ours", folder / "copies"
    (there, _) = odf.init(ours), odf.init(copies)
    token = made[0].tokens.create("all", ["push:%"]).text
    node = Node(machines[0])
    try:
        assert node.url, (machines[0] / "log").read_text(encoding="utf-8")
        for name in PUSHED:
            push(shared_store.add(there, name), f"{node.url}{name}", token=token)
        for each in made[1:]:
            assert [each[name].head for name in SHARED]  # this machine has seen them
        yield clients_of(machines, ours, copies, {"url": node.url, "token": token}), made[0]
    finally:
        node.process.terminate()
        node.process.wait(60)
        node.process.stdout.close()


def judged(found: Recorded, workspace: Workspace, note: Note) -> None:
    """All that is promised of a run, and its figures."""
    for name in (*SHARED, *PUSHED):
        values, lengths = chain_values(workspace[name])
        assert anomalies(history_of(found, name, lengths), values) == []
    for name in SHARED:  # what is next works, and sweeps
        append(workspace[name]._files, "the end")
        assert [path.name for path in (workspace[name].path / "staging").glob("[!.]*")] == []
    assert {report.verdict for report in workspace.verify()} == {"clean"}
    waits = found.waits()
    said = Counter(each.client.partition("-")[0] for _, each in found.history if each.returned < NEVER)
    note("acknowledged", found.acknowledged())
    note("by kind", dict(said))
    note("kills", found.kills())
    note("stops", found.stops())
    note("seconds until all locks were free, at most", round(found.held, 3))
    note(
        "seconds until another commit: median, longest",
        [round(waits[len(waits) // 2], 3), round(waits[-1], 3)],
    )
    assert found.crashes == []
    assert set(said) == {"api", "command", "merge", "push", *READERS}
    assert min(found.kills(), found.stops()) > 0
    assert found.held <= PATIENCE + found.late
    assert waits[len(waits) // 2] <= PATIENCE


@pytest.mark.parametrize("where", ["folder", pytest.param("store", marks=pytest.mark.soak)])
def test_what_eight_writers_did_can_have_happened(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    shared_store.environment(monkeypatch, tmp_path / "home")
    folder = where == "folder"
    count = scaled(50, 500, 8_000) if folder else scaled(30, 200, 2_000)
    with SmallS3() as store, site(tmp_path, None if folder else store) as (clients, workspace):
        every = scaled(300, 200, 500) / 1_000
        found = recorded(Plan(str(tmp_path), clients, count, every, seconds=scaled(90, 240, 900)))
        judged(found, workspace, record_property)
        assert found.acknowledged() >= count


@pytest.mark.soak
def test_a_reference_that_is_moved_without_a_lock_is_found_out(tmp_path: Path) -> None:
    """The checker has something to find: the same writers, with the mistake that others have made."""
    shared_store.add(odf.init(tmp_path), "shared")
    clients = [Client(f"api-{number}", "api", str(tmp_path), ["shared"]) for number in range(4)]
    found = recorded(Plan(str(tmp_path), clients, 20, 0.3, seconds=20, broken=True))
    values, lengths = chain_values(odf.open(tmp_path)["shared"])
    assert any(text.endswith("is lost") for text in anomalies(history_of(found, "shared", lengths), values))


def test_readers_verify_beside_writers(tmp_path: Path, record_property: Note) -> None:
    """Four that append, compact and damage the index meanwhile: no reader meets an error, or half a commit."""
    workspace, names = odf.init(tmp_path), ["one", "two"]
    for name in names:
        append(shared_store.add(workspace, name), "first")
    options = {"anew": 10, "all": scaled(50, 200, 500), "pause": scaled(50, 100, 200) / 1_000}
    kinds = ["check"] * 4 + ["api"] * 2 + ["compact", "reindex"]
    clients = [Client(f"{kind}-{n}", kind, str(tmp_path), names, options) for n, kind in enumerate(kinds)]
    count = scaled(200, 5_000, 100_000)
    found = recorded(
        Plan(str(tmp_path), clients, count, None, seconds=scaled(90, 240, 900), counted=["check"])
    )
    assert found.crashes == []
    said = Counter(each.client.partition("-")[0] for _, each in found.history if each.returned < NEVER)
    record_property("reads", said["check"])
    record_property("beside", {kind: said[kind] for kind in set(kinds) if kind != "check"})
    assert said["check"] >= count
    assert min(said[kind] for kind in kinds) > 0
    assert {report.verdict for report in workspace.verify()} == {"clean"}


def test_a_commit_within_a_verification_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature is of a block that the verification has not read; of a head that stays it is a fault."""
    workspace, read = odf.init(tmp_path), signed_heads.read_head_signature
    append(files := shared_store.add(workspace, "one"), "first")

    def late(*given: Any) -> bytes | None:
        monkeypatch.undo()
        append(files, "second")
        return read(*given)

    monkeypatch.setattr(signed_heads, "read_head_signature", late)
    report = workspace["one"].verify()
    assert (report.verdict, report.signature.message) == (
        "clean", "the head has moved meanwhile, and with it the signature",
    )  # fmt: skip
    assert workspace["one"].head != report.head
    files.chain.set_ref("head", Multihash.parse(report.head), expected=files.chain.head())
    assert {fault.check for fault in workspace["one"].verify().faults} == {16}
