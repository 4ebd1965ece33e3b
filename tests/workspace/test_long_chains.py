"""What is asked of a dataset every day costs the same however long its chain is: counted, not timed."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import odfchain
from odfchain import Workspace
from odfchain.chain.index import ROW_BYTES
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.errors import ObjectNotFoundError
from odfchain.odf.events import SetInfo
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.transfer.pulling import SyncStatus
from odfchain.transfer.slice_files import LocalSlices, local_slices
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.long_chains import counted_reads, long_chain
from tests.kit.sharing import Sharing
from tests.kit.support import snapshot

SHORT, LONG = 100, 10_000


def _log(dataset: DatasetFiles, workspace: Workspace) -> None:
    assert len(list(workspace["long"].log(20))) == 20


def _list(dataset: DatasetFiles, workspace: Workspace) -> None:
    for found in workspace:
        count = found.summary.head_block.sequence_number + 1
        assert found.summary.record_count == 10 * count
        assert found.data_size == 0
        assert found.local_slices() == LocalSlices(0, count // 10)


def _tail(dataset: DatasetFiles, workspace: Workspace) -> None:
    with pytest.raises(ObjectNotFoundError, match="is not here"):
        workspace["long"].tail(5)


def _schema(dataset: DatasetFiles, workspace: Workspace) -> None:
    assert workspace["long"].schema is not None


def _pull(dataset: DatasetFiles, workspace: Workspace) -> None:
    pulled = Sharing(workspace._files).pull("long").outcome
    assert (pulled.status, pulled.blocks) == (SyncStatus.UP_TO_DATE, 0)
    assert pulled.missing_slices == workspace["long"].summary.record_count // 100


def _verify_newest(dataset: DatasetFiles, workspace: Workspace) -> None:
    report = workspace["long"].verify(last=50)
    assert (report.blocks, report.faults, len(report.unchecked[0].blocks)) == (50, [], 5)


def _append(dataset: DatasetFiles, workspace: Workspace) -> None:
    opened = DatasetFiles.open(dataset.folder)
    state = DatasetState.read(opened.chain)
    time = Timestamp.parse("2100-01-01T00:00:00Z")
    commit(opened, state, [SetInfo(description="one more")], [], system_time=time)
    opened.chain.set_ref(HEAD, state.head, expected=opened.chain.head())


def _known_copy(folder: Path, blocks: int) -> Workspace:
    """A workspace with a chain that is known as a copy of another; it was listed once."""
    mine = long_chain(folder / "mine", "long", blocks)
    theirs = folder / "theirs"
    shutil.copytree(mine.folder, theirs, copy_function=os.link)
    os.utime(mine.folder / "data", ns=(0, 0))  # as if it had been made a while ago
    workspace = odfchain.open(folder / "mine")
    workspace["long"].add_alias("pull", theirs.as_uri() + "/")
    workspace["long"].local_slices()
    return workspace


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Workspace]:
    return {blocks: _known_copy(tmp_path_factory.mktemp(f"{blocks}"), blocks) for blocks in (SHORT, LONG)}


ASKED = [_log, _list, _tail, _schema, _pull, _verify_newest, _append]


@pytest.mark.parametrize("ask", ASKED)
def test_what_is_read_does_not_grow_with_the_chain(
    ask: Callable[[DatasetFiles, Workspace], None], copies: dict[int, Workspace]
) -> None:
    short, long = (_read_by(ask, workspace) for workspace in copies.values())
    assert short == long
    assert short["blocks"] < 130
    assert short["bytes of the index"] <= short["reads of the index"] * ROW_BYTES


@pytest.mark.soak
def test_nor_does_it_of_a_hundred_thousand_blocks(copies: dict[int, Workspace], tmp_path: Path) -> None:
    longer = _known_copy(tmp_path, 100_000)
    for ask in ASKED:
        assert _read_by(ask, longer) == _read_by(ask, copies[SHORT])


def _read_by(ask: Callable[[DatasetFiles, Workspace], None], workspace: Workspace) -> Counter[str]:
    files = workspace["long"]._files
    with counted_reads(files) as found:
        ask(files, workspace)
    return found


def test_the_counts_of_slices_follow_the_chain_and_the_folder(tmp_path: Path) -> None:
    dataset = long_chain(tmp_path, "long", 100)
    data, kept = dataset.folder / "data", dataset.folder / "info" / "slice-counts"
    assert local_slices(dataset) == LocalSlices(0, 10)
    assert not kept.exists(), "the folder of slices is too new to tell when it changes"
    os.utime(data, ns=(0, 0))
    assert local_slices(dataset) == LocalSlices(0, 10)
    kept.write_bytes(kept.read_bytes().replace(b'"total": 10', b'"total": 77'))
    assert local_slices(dataset) == LocalSlices(0, 10), "a damaged file is not believed"

    slices = [ref.slice for ref in DatasetState.read(dataset.chain).slices()]
    (data / str(slices[3].physical_hash)).write_bytes(bytes(slices[3].size))
    (data / str(slices[4].physical_hash)).write_bytes(b"of another size")
    (data / ("f1620" + 64 * "0")).write_bytes(b"no slice of the chain")
    assert local_slices(dataset) == LocalSlices(1, 10)
    os.utime(data, ns=(1, 1))
    assert local_slices(dataset) == LocalSlices(1, 10)

    longer = long_chain(tmp_path, "long", 200)
    assert local_slices(longer) == LocalSlices(1, 20), "the new blocks are counted on top"
    opened = DatasetFiles.open(dataset.folder)
    head = opened.chain.hash_at(59, opened.chain.head())
    opened.chain.set_ref(HEAD, head, expected=opened.chain.head())
    assert local_slices(opened) == LocalSlices(1, 6), "a head that went back is counted anew"


def test_a_signature_of_an_earlier_block_is_looked_up(tmp_path: Path) -> None:
    """Its block is found by the index: nobody walks back to it."""
    workspace = Workspace.init(tmp_path)
    (dataset,) = workspace.add(snapshot("mine"))
    signed = (dataset.path / "refs" / "head.jws").read_bytes()
    for number in range(60):
        state = DatasetState.read(dataset._files.chain)
        commit(dataset._files, state, [SetInfo(description=f"{number}")], [], system_time=Timestamp.now())
    (dataset.path / "refs" / "head.jws").write_bytes(signed)
    DatasetFiles.open(dataset.path).head_signature()  # from here on the index knows the blocks
    files = DatasetFiles.open(dataset.path)
    with counted_reads(files) as found:
        judged = files.head_signature()
    assert judged.status is SignatureStatus.UNSIGNED
    assert judged.signed is not None
    assert found["blocks"] < 5
