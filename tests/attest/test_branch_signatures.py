"""Branches are signed as heads are, by statements of another type that prove nothing against anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.chain.signed_heads import SignatureStatus, check_branch, check_head, read_head_signature
from odfchain.chain.statements import Problem, SignedHead, read_branch, read_head
from odfchain.errors import WorkspaceError
from odfchain.odf.identity import DatasetKey
from odfchain.transfer.signed_statements import SeenHeads
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import forge
from tests.kit.branched_dataset import fork, write
from tests.kit.upkeep_scenes import head_of, new_workspace, root

SIGNED, UNSIGNED, INVALID = SignatureStatus.SIGNED, SignatureStatus.UNSIGNED, SignatureStatus.INVALID


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    return new_workspace(tmp_path)


@pytest.fixture
def cities(workspace: WorkspaceFiles) -> DatasetFiles:
    return root(workspace, slices=1)


def content(dataset: DatasetFiles) -> bytes:
    return read_head_signature(dataset.folder, dataset.ref)


def test_a_branch_is_signed_where_it_moves(workspace: WorkspaceFiles, cities: DatasetFiles) -> None:
    before, memory = content(cities), SeenHeads(workspace.root / "seen").get(cities.id)
    fix = fork(cities, "fix-names")
    assert fix.head_signature().problem is Problem.MISSING
    block = write(fix, "b")
    found = fix.head_signature()
    assert found.status is SIGNED
    assert (found.signed.ref, found.signed.head) == ("fix-names", block)
    assert found.signed.to_json()["ref"] == "fix-names"
    assert content(cities) == before, "that of the head stays"
    assert SeenHeads(workspace.root / "seen").get(cities.id) == memory
    assert Workspace(workspace)["cities"].branches()[0].signature == "signed"


def test_case_53_a_signed_head_and_a_signed_branch_with_one_number_prove_nothing(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    fix = fork(cities, "fix-names")
    write(fix, "b")
    write(cities, "h")
    one, other = cities.head_signature(), fix.head_signature()
    assert (one.status, other.status) == (SIGNED, SIGNED)
    assert one.signed.sequence_number == other.signed.sequence_number
    assert list((workspace.root / "evidence").glob("*")) == []
    number = one.signed.sequence_number
    swapped = check_head(content(fix), cities.id, head_of(cities), number)
    assert (swapped.status, swapped.problem, swapped.signed) == (INVALID, Problem.WRONG_TYPE, None)
    swapped = check_branch(content(cities), cities.id, "fix-names", head_of(fix))
    assert (swapped.status, swapped.problem) == (INVALID, Problem.WRONG_TYPE)


def test_case_53_the_signature_of_another_reference_is_invalid(cities: DatasetFiles) -> None:
    fix = fork(cities, "fix-names")
    block = write(fix, "b")
    other = fork(cities, "other", at=block)
    (other.folder / "refs" / "other.jws").write_bytes(content(fix))
    found = other.head_signature()
    assert (found.status, found.problem) == (INVALID, Problem.OTHER_REF)
    assert found.message == "the signature is of another branch, fix-names, not of other"


def test_a_branch_that_moved_without_its_owner_has_a_stale_signature(cities: DatasetFiles) -> None:
    fix = fork(cities, "fix")
    first = write(fix, "b")
    fix.chain.set_ref("fix", head_of(cities), expected=first)
    found = fix.head_signature()
    assert (found.status, found.problem) == (UNSIGNED, Problem.STALE)


def test_others_and_damage_are_invalid(cities: DatasetFiles) -> None:
    fix, key = fork(cities, "fix"), DatasetKey.generate()
    block = write(fix, "b")
    mine = SignedHead(key.dataset_id, block, 3, forge.TIME, "fix")
    line = mine.sign(key).encode() + b"\n"
    assert check_branch(line, cities.id, "fix", block).problem is Problem.OTHER_DATASET
    assert check_branch(content(fix)[:-1], cities.id, "fix", block).problem is Problem.DAMAGED
    assert check_branch(b"", cities.id, "fix", block).problem is Problem.DAMAGED
    assert read_branch(line[:-1]) == (key.dataset_id, mine)
    with pytest.raises(Exception, match="odf-ref"):
        read_head(line[:-1])


def test_a_branch_is_signed_anew_by_who_has_the_key(workspace: WorkspaceFiles, cities: DatasetFiles) -> None:
    fix = fork(cities, "fix")
    signed = workspace.sign_head(fix)
    assert (signed.ref, signed.head) == ("fix", head_of(cities))
    assert Workspace(workspace)["cities"].branch("fix").signature().status is SIGNED
    for path in (workspace.root / "keys").iterdir():
        path.unlink()
    with pytest.raises(WorkspaceError):
        workspace.sign_head(fix)
    stranger = WorkspaceFiles.find(workspace.root.parent).dataset("cities").on("fix")
    write(stranger, "c")
    assert stranger.head_signature().problem is Problem.STALE


def test_the_list_says_what_a_signature_is_worth(workspace: WorkspaceFiles, cities: DatasetFiles) -> None:
    fork(cities, "fix")
    path = cities.folder / "refs" / "fix.jws"

    def listed() -> str:
        return Workspace(workspace)["cities"].branches()[0].signature

    assert listed() == "unsigned"
    path.write_text("?")
    assert listed() == "invalid"
    path.unlink()
    path.symlink_to(cities.folder / "refs" / "head.jws")
    assert listed() == "invalid"
