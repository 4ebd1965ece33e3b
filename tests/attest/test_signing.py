"""Heads are signed where they move, by whoever has the key; a commit never fails for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.chain.signed_heads import HEAD_SIGNATURE_KEY, HeadSignature, HeadSigner, SignatureStatus
from odfchain.chain.statements import Problem
from odfchain.errors import (
    ChainError,
    InvalidIdError,
    OdfchainError,
    RefConflictError,
    StoreError,
    WorkspaceError,
)
from odfchain.odf.events import MetadataEvent, SetInfo
from odfchain.odf.identity import DatasetKey
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD, LocalRefStore
from odfchain.transform.catch_up import reset_to_metadata
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.faults import faulty
from tests.kit.support import RAW_SCHEMA, T0, ChainBuilder, derivative, manifest, push
from tests.kit.upkeep_scenes import hashes


@pytest.fixture
def files(tmp_path: Path) -> WorkspaceFiles:
    """A workspace with one dataset of two blocks."""
    files = WorkspaceFiles.init(tmp_path)
    files.create(read_snapshots(manifest())[0])
    return files


@pytest.fixture
def cities(files: WorkspaceFiles) -> DatasetFiles:
    return files.dataset("cities")


def add(dataset: DatasetFiles, *events: MetadataEvent) -> None:
    """One commit."""
    state = DatasetState.read(dataset.chain)
    commit(dataset, state, events or [SetInfo(description=str(state.head))], [], system_time=Timestamp.now())


def signature(dataset: DatasetFiles) -> HeadSignature:
    return dataset.head_signature()


def key_file(files: WorkspaceFiles) -> Path:
    (found,) = (files.root / "keys").iterdir()
    return found


def assert_signed(dataset: DatasetFiles) -> None:
    found = signature(dataset)
    assert (found.status, found.message) == (SignatureStatus.SIGNED, None)
    assert found.signer == dataset.id
    assert found.signed.head == dataset.chain.head()


# --- every way in which a head moves ---------------------------------------------------------------


def test_a_new_dataset_appears_with_its_head_signed(cities: DatasetFiles) -> None:
    assert_signed(cities)
    content = (cities.folder / HEAD_SIGNATURE_KEY).read_bytes()
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")


def test_a_commit_of_one_block_and_of_several(cities: DatasetFiles) -> None:
    for events in ([SetInfo(description="a")], [SetInfo(description="b"), push("other")]):
        add(cities, *events)
        assert_signed(cities)


def test_an_appended_block(cities: DatasetFiles) -> None:
    builder = ChainBuilder(cities.chain)
    builder.prev, builder.sequence = cities.chain.head(), 2
    builder.append(SetInfo(description="x"), system_time=Timestamp.now())
    assert_signed(cities)


def test_a_watermark_and_an_update_of_the_definition(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    (made,) = workspace.add(manifest(), check=False)
    made.set_watermark(T0)
    assert_signed(made._files)
    text = manifest() + "    - {kind: SetInfo, description: Cities}\n"
    changed, events = workspace.update(read_snapshots(text)[0], check=False)
    assert events
    assert_signed(changed._files)


@pytest.mark.parametrize("definition", [True, False])
def test_a_reset_of_a_derivative_dataset(files: WorkspaceFiles, definition: bool) -> None:
    derived = files.create(read_snapshots(derivative())[0])
    if not definition:
        first, *_, head = hashes(derived)
        derived.set_head(first, expected=head)
    add(derived, RAW_SCHEMA)
    computed = derived.chain.head()
    reset_to_metadata(derived)
    assert derived.chain.head() != computed
    assert_signed(derived)


def test_a_head_that_its_owner_sets_back(cities: DatasetFiles) -> None:
    add(cities)
    old, new = hashes(cities)[-2:]
    cities.set_head(old, expected=new)
    assert cities.chain.head() == old
    assert_signed(cities)
    with pytest.raises(RefConflictError):
        cities.set_head(old, expected=new)
    assert_signed(cities)


def test_the_signature_is_no_reference(cities: DatasetFiles) -> None:
    refs = LocalRefStore(cities.folder)
    assert list(refs.names()) == [HEAD]
    head = cities.chain.head()
    with pytest.raises(InvalidIdError, match=r"'head\.jws' is not a valid reference name"):
        cities.chain.set_ref("head.jws", head, expected=None)
    assert_signed(cities)


def test_a_renamed_dataset_keeps_its_signature(files: WorkspaceFiles, cities: DatasetFiles) -> None:
    before = (cities.folder / HEAD_SIGNATURE_KEY).read_bytes()
    files.rename(cities, DatasetAlias.parse("towns"))
    assert (cities.folder / HEAD_SIGNATURE_KEY).read_bytes() == before
    assert_signed(files.dataset("towns"))


# --- what is not signed ----------------------------------------------------------------------------


def test_blocks_of_others_are_not_signed_even_where_the_key_is(cities: DatasetFiles) -> None:
    foreign = DatasetFiles.open(cities.folder)
    add(foreign)
    before = (cities.folder / HEAD_SIGNATURE_KEY).read_bytes()
    first, last = hashes(cities)[-2:]
    cities.chain.set_ref(HEAD, first, expected=last)  # as pulling does
    cities.chain.set_ref(HEAD, last, expected=first)
    assert (cities.folder / HEAD_SIGNATURE_KEY).read_bytes() == before
    found = signature(cities)
    assert (found.status, found.problem) == (SignatureStatus.UNSIGNED, Problem.OLDER_HEAD)


def test_a_commit_without_the_key_is_a_commit_and_silent(
    files: WorkspaceFiles, cities: DatasetFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    key_file(files).unlink()
    add(files.dataset("cities"))
    assert signature(cities).problem is Problem.OLDER_HEAD
    assert capsys.readouterr() == ("", "")
    (cities.folder / HEAD_SIGNATURE_KEY).unlink()
    assert signature(cities).status is SignatureStatus.UNSIGNED


def test_a_signature_of_a_head_that_was_set_back_is_named(cities: DatasetFiles) -> None:
    old = cities.chain.head()
    add(cities)
    new = cities.chain.head()
    cities.chain.set_ref(HEAD, old, expected=new)
    found = signature(cities)
    assert (found.status, found.problem) == (SignatureStatus.INVALID, Problem.NEWER_HEAD)


def test_a_dataset_without_a_head_has_no_signature_to_judge(tmp_path: Path) -> None:
    DatasetFiles.create_folders(tmp_path / "empty", DatasetAlias.parse("empty"))
    with pytest.raises(ChainError, match="has no head"):
        DatasetFiles.open(tmp_path / "empty").head_signature()


# --- a signature that cannot be made ---------------------------------------------------------------


Spoil = Callable[[Path, Path], None]


def readable_by_others(path: Path, _: Path) -> None:
    path.chmod(0o644)


def of_another(path: Path, _: Path) -> None:
    path.write_bytes(DatasetKey.generate().to_pem())


def no_key_at_all(path: Path, _: Path) -> None:
    path.write_bytes(b"\xff\0 not a key")


def in_the_way(_: Path, signature_file: Path) -> None:
    signature_file.unlink()
    (signature_file / "in the way").mkdir(parents=True)


@pytest.mark.parametrize("spoil", [readable_by_others, of_another, no_key_at_all, in_the_way])
def test_a_commit_whose_head_cannot_be_signed_is_done_and_says_so_once(
    files: WorkspaceFiles, cities: DatasetFiles, capsys: pytest.CaptureFixture[str], spoil: Spoil
) -> None:
    spoil(key_file(files), cities.folder / HEAD_SIGNATURE_KEY)
    before = hashes(cities)
    for _ in range(2):
        add(files.dataset("cities"))
    assert len(hashes(cities)) == len(before) + 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, said
    assert said[0].startswith(f"warning: {cities.folder}: the new head is not signed: ")
    assert said[0].isprintable()


def test_the_next_commit_makes_good_what_one_could_not_sign(
    files: WorkspaceFiles, cities: DatasetFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    key_file(files).chmod(0o640)
    add(cities)
    assert signature(cities).status is SignatureStatus.UNSIGNED
    assert "chmod 600" in capsys.readouterr().err
    key_file(files).chmod(0o600)
    add(cities)
    assert_signed(cities)


def test_a_link_in_place_of_the_signature_is_not_followed(cities: DatasetFiles, tmp_path: Path) -> None:
    target, link = tmp_path / "target", cities.folder / HEAD_SIGNATURE_KEY
    link.rename(target)
    link.symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(StoreError, match=r"refs/head\.jws: a link is not followed"):
        cities.head_signature()
    add(cities)
    assert_signed(cities)
    assert target.read_bytes() == before
    assert not link.is_symlink()


def test_a_pipe_in_place_of_the_signature_is_refused_at_once(cities: DatasetFiles) -> None:
    (cities.folder / HEAD_SIGNATURE_KEY).unlink()
    os.mkfifo(cities.folder / HEAD_SIGNATURE_KEY)
    with pytest.raises(StoreError, match="not an ordinary file"):
        cities.head_signature()


@pytest.mark.parametrize("forever", [False, True])
def test_whichever_system_call_fails_the_head_is_signed_or_known_to_be_not(
    cities: DatasetFiles, forever: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with faulty(None) as counter:
        add(cities)
    assert counter.count > 15
    done_unsigned = 0
    for fail_at in range(1, counter.count + 1):
        before = cities.chain.head()
        with faulty(fail_at, forever=forever), contextlib.suppress(OdfchainError):
            add(cities)
        found = signature(cities)
        if cities.chain.head() == before:
            assert found.status is SignatureStatus.SIGNED
        elif found.status is not SignatureStatus.SIGNED:
            done_unsigned += 1
            assert (found.status, found.problem) == (SignatureStatus.UNSIGNED, Problem.OLDER_HEAD)
        add(cities)
        assert_signed(cities)
    assert done_unsigned
    assert not list((cities.folder / "refs").glob(".pending*"))
    assert "no space left" in capsys.readouterr().err


# --- several writers -------------------------------------------------------------------------------


def test_a_slow_writer_does_not_replace_the_signature_of_a_newer_head(
    files: WorkspaceFiles, cities: DatasetFiles
) -> None:
    old = cities.chain.head()
    add(cities)
    key = files.key(cities.id)
    assert HeadSigner(cities.folder, lambda: key).sign(key, old, 1) is None
    assert_signed(cities)


def test_many_writers_leave_the_newest_head_signed(files: WorkspaceFiles) -> None:
    def write() -> None:
        dataset = files.dataset("cities")
        done = 0
        while done < 10:
            try:
                add(dataset)
            except RefConflictError:
                continue
            done += 1

    with ThreadPoolExecutor(4) as pool:
        for writer in [pool.submit(write) for _ in range(4)]:
            writer.result()
    cities = files.dataset("cities")
    assert len(hashes(cities)) == 2 + 40
    assert_signed(cities)


# --- signing anew ----------------------------------------------------------------------------------


def test_signing_anew_makes_good_a_damaged_or_stripped_signature(
    files: WorkspaceFiles, cities: DatasetFiles
) -> None:
    path = cities.folder / HEAD_SIGNATURE_KEY
    for damage in (path.unlink, lambda: path.write_bytes(b""), lambda: path.write_bytes(b"\xff" * 100_000)):
        damage()
        assert files.dataset("cities").head_signature().status is not SignatureStatus.SIGNED
        signed = files.sign_head(files.dataset("cities"))
        assert_signed(cities)
        assert signed.sequence_number == 1


def test_signing_without_the_key_is_refused(files: WorkspaceFiles, cities: DatasetFiles) -> None:
    key_file(files).unlink()
    before = (cities.folder / HEAD_SIGNATURE_KEY).read_bytes()
    with pytest.raises(WorkspaceError, match=r"private key of did:odf:.* is not in this workspace"):
        files.sign_head(files.dataset("cities"))
    assert (cities.folder / HEAD_SIGNATURE_KEY).read_bytes() == before


def test_the_time_is_that_of_the_signature(files: WorkspaceFiles, cities: DatasetFiles) -> None:
    key = files.key(cities.id)
    head = cities.chain.head()
    HeadSigner(cities.folder, lambda: key, now=lambda: T0).sign(key, head, 1)
    found = signature(cities)
    assert found.signed.time == T0


# --- what is loaded --------------------------------------------------------------------------------


def test_commands_that_commit_nothing_load_no_cryptography(files: WorkspaceFiles) -> None:
    program = (
        "import sys; from odfchain.cli.main import main\n"
        "for command in (['list'], ['log', 'cities'], ['rename', 'cities', 'c']):\n"
        "    assert main(command) == 0\n"
        "sys.exit(str({'cryptography'} & set(sys.modules) or '') or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=files.root.parent, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
