"""Branches as references: made, listed, renamed, deleted; points that name them; an index for each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import multiformats.multibase
import pytest

import odfchain as odf
from odfchain.api.branching import at_point
from odfchain.api.workspace import Workspace
from odfchain.odf import identity
from odfchain.odf.identity import Multihash
from odfchain.odf.names import is_branch_name
from odfchain.storage import fsio
from odfchain.storage.fsio import LocalScratch
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.points import lock_path, parse_point, refs_of
from tests.kit.branch_cases import run_here
from tests.kit.query_datasets import make
from tests.kit.small_branches import DAYS, SPEC, add, merged


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    workspace = Workspace.init(tmp_path)
    make(workspace, "d", SPEC)
    return workspace


@pytest.fixture
def d(ws: Workspace) -> odf.Dataset:
    return ws["d"]


def keys(table: odf.Scan) -> list[str]:
    return [str(key) for key in table.to_arrow()["k"].to_pylist()]


@pytest.mark.parametrize("name", ["fix-1", "a", "x" * 64, "f1620-not-a-hash", "header"])
def test_case_50_names_that_are_made(d: odf.Dataset, name: str) -> None:
    made = d.create_branch(name)
    assert (made.ref, made.head) == (name, d.head)
    assert d.branch_names == [name]


@pytest.mark.parametrize(
    "name",
    ["head", "Fix", "2025", "a.b", "x" * 65, "overwritten-1", "f1620ab", "", "-a", "a--b", "a/b", "a b", "ä"],
)
def test_case_50_names_that_are_refused(d: odf.Dataset, name: str) -> None:
    with pytest.raises(odf.errors.InvalidIdError, match="cannot name a branch"):
        d.create_branch(name)
    assert d.branch_names == []


ENCODINGS = sorted(identity.FINAL_PREFIXES.values())
BLOCKS = [bytes(32), bytes(range(32)), b"\xff" * 32]


@pytest.mark.parametrize("encoding", [*ENCODINGS, "base36"])
@pytest.mark.parametrize("digest", BLOCKS)
def test_no_name_is_a_block_hash_in_any_encoding(d: odf.Dataset, encoding: str, digest: bytes) -> None:
    text = multiformats.multibase.encode(Multihash.sha3_256(digest).to_bytes(), encoding)
    assert not is_branch_name(text)
    with pytest.raises(odf.errors.InvalidIdError, match="cannot name a branch"):
        d.create_branch(text)
    d.create_branch("fix")
    with pytest.raises(odf.errors.InvalidIdError, match="cannot name a branch"):
        d.rename_branch("fix", text)
    assert is_branch_name(text[:4].lower())  # as words begin


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_block_is_read_by_its_hash_in_every_final_encoding(
    ws: Workspace, d: odf.Dataset, encoding: str
) -> None:
    block = d._files.chain.hashes(d.head)[2]
    text = identity.encode(block.to_bytes(), encoding)
    assert parse_point(text) == block
    assert at_point(ws, f"d@{text}").head == d.at(text).head == block
    assert d.create_branch("there", at=text).head == block
    assert d.plan_reset(text).new_head == block
    assert ws.sql(f'select * from "d@{text}"').to_arrow().num_rows == 1
    assert run_here(ws)("tail", f"d@{text}").code == 0
    assert run_here(ws)("reset", f"d@{text}", "0").code == 2  # what is written to is a branch


def test_a_branch_of_an_earlier_release_that_is_named_like_a_block_hash_is_none(d: odf.Dataset) -> None:
    block = d._files.chain.hashes(d.head)[2]
    text = identity.encode(block.to_bytes(), "base32")
    refs_of(d._files).compare_and_swap(text, None, d.head)
    assert d.branch_names == []
    assert d.at(text).head == block


# --- making and listing ----------------------------------------------------------------------------


def test_a_branch_goes_its_own_way(d: odf.Dataset) -> None:
    fix = d.create_branch("fix")
    add(fix, "c")
    assert keys(fix.scan()) == ["a", "b", "a", "c"]
    assert keys(d.scan()) == ["a", "b", "a"]
    add(d, "h")
    add(d, "i")
    (listed,) = d.branches()
    assert listed == odf.results.Branch(
        name="fix", block=fix.head, number=4, ahead=1, behind=2, base=d._files.chain.hashes(d.head)[3],
        base_number=3, last_change=odf.Timestamp.parse(DAYS[4]), signature="signed",
    )  # fmt: skip
    assert fix.branches() == [listed]  # wherever the dataset is opened
    assert (fix.label, d.label) == ("d@fix", "d")
    assert fix != d
    assert fix == d.branch("fix")


def test_a_branch_begins_at_any_point(d: odf.Dataset) -> None:
    names = d._files.chain.hashes(d.head)
    points = {"one": 2, "two": DAYS[2], "three": str(names[2]), "four": names[2], "five": "head:2"}
    for name, point in points.items():
        assert d.create_branch(name, at=point).head == names[2]
    add(d.branch("one"), "c")
    assert d.create_branch("six", at="one").head == d.branch("one").head
    assert d.branch("one").create_branch("seven").head == d.branch("one").head  # where it is opened


def test_names_are_taken_once(d: odf.Dataset) -> None:
    block = d.create_branch("fix", at=2).head
    other = d.create_branch("other")
    with pytest.raises(odf.errors.NameCollisionError, match="has a branch 'fix' already"):
        d.create_branch("fix")
    for name, to, error in (
        ("fix", "other", odf.errors.NameCollisionError),
        ("fix", "head", odf.errors.InvalidIdError),
        ("head", "main", odf.errors.InvalidIdError),
    ):
        with pytest.raises(error):
            d.rename_branch(name, to)
    renamed = d.rename_branch("fix", "better")
    assert (renamed.ref, renamed.head) == ("better", block)
    assert d.rename_branch("better", "better") == renamed
    with pytest.raises(odf.errors.PointNotFoundError, match="no branch"):
        d.branch("fix")
    assert d.branch_names == ["better", "other"]
    assert other.head == d.head


def without_reference(d: odf.Dataset, *keys: str, at: int | None = None) -> Multihash:
    """A block that rows with these keys led to, and no reference does now."""
    gone = d.create_branch("fix", at=at)
    for key in keys:
        add(gone, key)
    block, kept = gone.head, d.delete_branch("fix", force=True)
    (d.path / "refs" / kept).unlink()  # as `gc --drop-refs` does
    return block


def test_an_unreferenced_block_is_named_under_the_lock_of_garbage_collection(d: odf.Dataset) -> None:
    block = without_reference(d, "c")
    with fsio.locked(lock_path(d._files)), pytest.raises(odf.errors.StoreError, match=r"pulled|at work"):
        d.create_branch("again", at=block)
    assert d.branch_names == []
    assert d.create_branch("again", at=block).head == block
    with fsio.locked(lock_path(d._files)):
        d.create_branch("third", at=block)  # a reference leads to it now


def test_a_chain_that_garbage_collection_has_begun_to_remove_is_not_named(d: odf.Dataset) -> None:
    block = without_reference(d, "c", "e")
    (d.path / "blocks" / str(d._files.chain.get(block).prev_block_hash)).unlink()
    with pytest.raises(odf.errors.PointNotFoundError, match="here no more"):
        d.create_branch("again", at=block)


def test_case_51_what_nobody_has_merged_is_not_deleted_in_silence(d: odf.Dataset) -> None:
    fix = d.create_branch("fix")
    add(fix, "c")
    head = fix.head
    with pytest.raises(odf.errors.WorkspaceError, match="has merged"):
        d.delete_branch("fix")
    assert d.branch_names == ["fix"]
    kept = d.delete_branch("fix", force=True)
    assert kept.startswith("overwritten-")
    assert d._files.chain.head(kept) == head
    assert (d.branch_names, d.branches()) == ([], [])  # what was given up is no branch
    with pytest.raises(odf.errors.PointNotFoundError, match="no branch"):
        d.branch(kept)
    with pytest.raises(odf.errors.InvalidIdError):
        d.delete_branch(kept, force=True)


def test_case_51_what_another_reference_has_is_deleted(d: odf.Dataset) -> None:
    fix = d.create_branch("fix")
    assert d.delete_branch("fix") is None  # no block of its own
    fix = d.create_branch("fix")
    add(fix, "c")
    d.create_branch("more", at="fix")
    assert d.delete_branch("fix") is None
    for name, error, message in (
        ("more", odf.errors.WorkspaceError, "nowhere|neither"),
        ("head", odf.errors.InvalidIdError, "cannot name a branch"),
        ("fix", odf.errors.PointNotFoundError, "no branch"),
    ):
        with pytest.raises(error, match=message):
            d.delete_branch(name)


def listed(dataset: odf.Dataset) -> tuple[int, int, int]:
    """How the only branch lies to the head."""
    (branch,) = dataset.branches()
    return branch.ahead, branch.behind, branch.base_number


def test_case_51_what_was_merged_is_deleted(d: odf.Dataset) -> None:
    fix = d.create_branch("fix")
    add(fix, "c")
    add(fix, "e")
    merged(d, fix)
    assert listed(d) == (0, 1, 5)
    add(fix, "f")
    assert listed(d) == (1, 1, 5)
    with pytest.raises(odf.errors.WorkspaceError, match=r"nowhere|neither"):
        d.delete_branch("fix")
    merged(fix, d)
    assert listed(d) == (2, 0, 4)  # the head, which it has merged
    merged(d, fix)
    assert d.delete_branch("fix") is None
    assert d.branch_names == []


def test_case_39_points(d: odf.Dataset) -> None:
    fix = d.create_branch("fix", at=2)
    add(fix, "c")
    assert keys(d.at("2026-01-03T18:00:00Z").scan()) == ["a"]  # between blocks: the one before
    assert keys(d.at("2026-01-04T12:00:00Z").scan()) == ["a", "b", "a"]
    assert keys(d.at("head:3").scan()) == keys(d.at(3).scan()) == ["a", "b", "a"]
    assert keys(d.at("fix:3").scan()) == keys(d.at("fix").scan()) == ["a", "c"]
    assert keys(d.at("fix:2").state(key=["k"])) == ["a"]
    assert [b.block.sequence_number for b in d.at(1).log()] == [1, 0]
    assert d.at("head:2").tail(5)["k"].to_pylist() == ["a"]
    d.delete_branch("fix", force=True)
    block = without_reference(d, "c", at=2)
    assert keys(d.at(block).scan()) == keys(d.at(block).state(key=["k"])) == ["a", "c"]


def test_as_of_a_block_a_dataset_is_only_read(d: odf.Dataset) -> None:
    at = d.at(2)
    with pytest.raises(odf.errors.UsageError, match="only read"):
        add(at, "c")
    assert d.at(2) == at


# --- one index for each reference ------------------------------------------------------------------


def test_switching_between_branches_builds_no_index(
    ws: Workspace, d: odf.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(d, "h")
    fix = d.create_branch("fix", at=2)
    add(fix, "c")
    other = d.create_branch("other", at=2)
    add(other, "o")
    assert [len(x.scan().to_arrow()) for x in (d, fix, other)] == [4, 2, 2]  # every index is there now
    written: list[str] = []
    write = LocalScratch.write

    def counting(self: LocalScratch, start: int, data: bytes) -> None:
        written.append(self._path.name)
        write(self, start, data)

    monkeypatch.setattr(LocalScratch, "write", counting)
    for _ in range(3):
        for point in ("head", "fix", "other", 1, "fix:2", str(fix.head), str(d.head), "2026-01-04"):
            fresh = Workspace.open(ws.path)["d"]
            fresh.at(point).scan().to_arrow()
            fresh.branches()
    assert written == []


def test_a_new_branch_reads_only_the_blocks_that_the_head_does_not_have(
    d: odf.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        add(d, str(number))
    fix = d.create_branch("fix", at=20)
    assert not (d.path / "info" / "chain-index.fix").exists()  # nothing is written but the reference
    read: list[str] = []
    get = DatasetFiles.open(d.path).chain._blocks.__class__.get
    monkeypatch.setattr(
        "odfchain.storage.local.LocalObjectStore.get",
        lambda self, name: read.append(str(name)) or get(self, name),
    )
    assert fix.summary.record_count == 20
    assert len(read) <= 4
    assert (d.path / "info" / "chain-index.fix").exists()
    assert d.delete_branch("fix") is None
    assert not (d.path / "info" / "chain-index.fix").exists()


def test_a_branch_costs_as_much_as_a_head_that_moves(d: odf.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files made durable: the reference and its folder, as for a head; however long the chain is."""
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or sync(fd))
    d._files.chain.set_ref("head", d._files.chain.hashes(d.head)[2], expected=d.head)
    move = len(synced)
    d.create_branch("fix")
    assert len(synced) - move <= move


def test_points_are_found_without_reading_the_whole_index(
    ws: Workspace, d: odf.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = d._files.chain.hashes(d.head)
    chain = d._files.chain
    assert [*map(chain.by_number(d.head), range(-1, len(names) + 1))] == [names[-1], *names, None]
    (d.path / "info" / "chain-index").write_bytes(b"damaged")
    damaged = Workspace.open(ws.path)["d"]._files.chain.by_number(d.head)
    assert [*map(damaged, range(len(names)))] == names
    monkeypatch.setattr("odfchain.chain.index.ChainIndex.hashes", lambda *_: pytest.fail("all was read"))
    assert d.create_branch("one", at=2).head == names[2]
    assert d.create_branch("two", at="2026-01-03T18:00:00Z").head == names[2]


# --- the command line ------------------------------------------------------------------------------


def test_the_command_makes_lists_renames_and_deletes(ws: Workspace, d: odf.Dataset) -> None:
    run = run_here(ws)
    assert "no branches yet" in run("branch", "list", "d").err
    made = run("branch", "create", "d", "fix-names", "--at", "2")
    assert (made.code, made.err) == (0, "d@fix-names begins at block 2\n")
    add(d.branch("fix-names"), "c")
    shown = run("branch", "list", "d").out
    assert " ".join(shown.split("\n")[0].split()) == "name block ahead behind base last change signature"
    (row,) = run("branch", "list", "d", "-o", "json").rows
    expected = {"name": "fix-names", "block": 3, "ahead": 1, "behind": 1, "base": 2, "signature": "signed"}
    assert {name: row[name] for name in expected} == expected
    assert run("branch", "rename", "d", "fix-names", "b").code == 0
    refused = run("branch", "delete", "d", "b")
    assert refused.code == 5
    assert "--force" in refused.err
    assert "overwritten-" in run("branch", "delete", "d", "b", "--force").err
    assert run("branch", "delete", "d", "b").code == 4
    for words, code in (("Fix", 2), ("x --at 2999-01-01", 3), ("x --at 99", 4)):
        assert run("branch", "create", "d", *words.split()).code == code


def test_commands_take_a_dataset_at_a_point(ws: Workspace, d: odf.Dataset) -> None:
    fix = d.create_branch("fix", at=2)
    add(fix, "c")

    def shown(*words: str) -> list[dict[str, Any]]:
        return run_here(ws)(*words, "-o", "json").rows

    assert [row["k"] for row in shown("tail", "d@fix")] == ["a", "c"]
    assert [row["k"] for row in shown("tail", "d@head:2")] == ["a"]
    assert [block["blockHash"] for block in shown("log", "d@fix", "-n", "1")] == [str(fix.head)]
    assert len(shown("log", "d@2026-01-03T12:00:00Z")) == 3
    codes = [run_here(ws)("log", f"d@{point}").code for point in ("2999-01-01", "2025-12-01", "99", "none")]
    assert codes == [3, 4, 4, 4]
    reports = [*shown("verify", "d@fix"), *shown("verify", f"d@{fix.head}"), *shown("verify", "d", "d@1")]
    assert [(report["sequenceNumber"], report["verdict"]) for report in reports] == [
        (3, "clean"), (3, "clean"), (3, "clean"), (1, "clean"),
    ]  # fmt: skip
    assert reports[0]["dataset"]["alias"] == "d@fix"


@pytest.mark.parametrize("command", ["ingest d@2 {csv}", "reset d@2 1", "pull d@2", "sign d@2"])
def test_commands_that_write_take_branches_only(
    ws: Workspace, d: odf.Dataset, command: str, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("k,v\na,1\n")
    before = d.head
    said = run_here(ws)(*command.format(csv=tmp_path / "in.csv").split())
    assert (said.code, d.head) == (2, before)
    assert "branch create d NAME --at 2" in said.err


def test_a_branch_is_signed_and_its_signature_verified(ws: Workspace, d: odf.Dataset) -> None:
    fix = d.create_branch("fix")
    (report,) = ws.verify([fix])
    assert (report.verdict, report.signature.status) == ("clean", "unsigned")
    assert ws.verify([fix], require_signature=True)[0].verdict == "faulty"
    (row,) = run_here(ws)("sign", "d@fix", "-o", "json").rows
    assert (row["dataset"], row["head"]) == ("d@fix", str(fix.head))
    (report,) = ws.verify([fix], require_signature=True)
    assert (report.verdict, report.signature.status) == ("clean", "signed")
    assert [branch.signature for branch in fix.branches()] == ["signed"]
    (fix.path / "refs" / "fix.jws").write_bytes((fix.path / "refs" / "head.jws").read_bytes())
    assert ws.verify([fix])[0].verdict == "faulty"  # of another reference
    (report,) = ws.verify([d.at(2)])
    assert (report.verdict, report.signature.status) == ("clean", "notChecked")


def test_a_branch_is_reset_alone(ws: Workspace, d: odf.Dataset) -> None:
    fix = d.create_branch("fix")
    add(fix, "c")
    before = fix.head
    said = run_here(ws)("-y", "reset", "d@fix", "2", "--force")
    assert said.code == 0
    assert "can prove equivocation" not in said.err
    assert (fix.summary.head_block.sequence_number, d.summary.head_block.sequence_number) == (2, 3)
    assert run_here(ws)("reset", "d@fix", str(before)).code == 0  # and back
    assert fix.head == before


def test_an_attestation_may_be_of_a_branch(ws: Workspace, d: odf.Dataset, tmp_path: Path) -> None:
    run = run_here(ws)
    fix = d.create_branch("fix")
    add(fix, "c")
    assert run("key", "create", str(tmp_path / "key.pem")).code == 0
    said = run("attest", "d@fix", "--key", str(tmp_path / "key.pem"), "-o", "json")
    assert (said.code, json.loads(said.out)["head"]) == (0, str(fix.head))


def test_branches_complete_behind_the_at(ws: Workspace, d: odf.Dataset) -> None:
    from click.shell_completion import ShellComplete

    from odfchain.cli.main import cli

    d.create_branch("fix-names")
    d.create_branch("other")
    complete = ShellComplete(cli, {}, "odfchain", "_ODFCHAIN_COMPLETE")
    before = ["-w", str(ws.path.parent)]

    def offered(args: list[str], incomplete: str) -> list[str]:
        return [item.value for item in complete.get_completions([*before, *args], incomplete)]

    for command in ("log", "tail", "ingest", "pull", "verify", "reset", "sign", "attest"):
        assert offered([command], "d@") == ["d@head", "d@fix-names", "d@other"], command
    for words, incomplete, expected in (
        ("log", "d@f", ["d@fix-names"]),
        ("log", "D", ["d"]),
        ("log", "nothing@", []),
        ("branch delete d", "", ["fix-names", "other"]),
        ("branch delete d", "o", ["other"]),
        ("merge", "", ["d"]),
        ("merge d", "", ["fix-names", "other", "d"]),
        ("merge d fix-names --into", "o", ["other"]),
        ("diff d", "f", ["fix-names"]),
    ):
        assert offered(words.split(), incomplete) == expected, words


def test_a_copy_has_branches_of_its_own(d: odf.Dataset, tmp_path: Path) -> None:
    url = (tmp_path / "public").as_uri()
    d.push(url)
    other = Workspace.init(tmp_path / "other")
    copy = other.pull(url, name="copy").dataset
    mine = copy.create_branch("mine")
    add(mine, "mine")
    add(d, "theirs")
    d.push()
    copy.pull()
    assert (copy.head, mine.summary.record_count) == (d.head, 4)
    (listed,) = copy.branches()
    assert (listed.ahead, listed.behind, listed.signature) == (1, 1, "unsigned")  # the key is elsewhere
    assert copy.rename_branch("mine", "ours").label == "copy@ours"
    with pytest.raises(odf.errors.WorkspaceError, match=r"nowhere|neither"):
        copy.delete_branch("ours")
    assert d.branch_names == []


def test_a_damaged_reference_is_said_to_be_one(ws: Workspace, d: odf.Dataset) -> None:
    run = run_here(ws)
    d.create_branch("fix")
    (d.path / "refs" / "fix").write_text("f1620zz")
    said = run("branch", "list", "d")
    assert (said.code, "refs/fix" in said.err) == (7, True)
    assert run("log", "d").code == run("verify", "d").code == 0  # the head is as it was
    assert run("branch", "create", "d", "fix").code == 7
