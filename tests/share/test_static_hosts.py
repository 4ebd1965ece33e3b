"""The exported layout is readable behind any web server: here Python's own and nginx."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.transfer.open_peer import open_peer, open_writable
from odfchain.transfer.pushing import push_dataset
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.nginx import nginx
from tests.kit.served_workspace import make_dataset, read_all
from tests.kit.web_peers import by_child

SLICES = (700, 1 << 20, 0, 3_000_000)


@contextlib.contextmanager
def python_server(folder: Path) -> Iterator[str]:
    """`python -m http.server` for a folder."""
    with by_child(folder) as place:
        yield f"http://127.0.0.1:{place.port}/"


@contextlib.contextmanager
def static_nginx(folder: Path) -> Iterator[str]:
    """nginx for a folder."""
    with nginx(
        folder.parent / "nginx", lambda port: f"server {{ listen 127.0.0.1:{port}; root {folder}; }}"
    ) as url:
        yield url


HOSTS = [pytest.param(python_server, id="python"), pytest.param(static_nginx, id="nginx")]


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    return make_dataset(WorkspaceFiles.init(tmp_path), "cities", *SLICES)


@pytest.fixture
def folder(dataset: DatasetFiles, tmp_path: Path) -> Path:
    """What `push --to file:///…` makes."""
    url = PeerUrl.parse((tmp_path / "exported" / "cities").as_uri())
    with contextlib.closing(open_writable(url)) as destination:
        push_dataset(dataset, destination)
    return tmp_path / "exported"


def everything(dataset: DatasetFiles) -> set[ObjectKey]:
    blocks = {ObjectKey(ObjectKind.BLOCK, found.hash) for found in dataset.chain.walk()}
    data = {ObjectKey(ObjectKind.DATA, name) for name in dataset.data.names()}
    return blocks | data | {ObjectKey(ObjectKind.CHECKPOINT, name) for name in dataset.checkpoints.names()}


@pytest.mark.parametrize("host", HOSTS)
def test_a_folder_behind_a_plain_web_server_is_a_dataset(
    host: Callable[[Path], AbstractContextManager[str]], folder: Path, dataset: DatasetFiles
) -> None:
    with host(folder) as url:
        read = list(read_all(f"{url}cities/"))
    assert set(read) == everything(dataset)
    assert [key.kind for key in read[: dataset.chain.get(read[0].name).sequence_number + 1]] == [
        ObjectKind.BLOCK for found in dataset.chain.walk()
    ]


def test_our_client_reads_from_a_plain_web_server(
    folder: Path, dataset: DatasetFiles, tmp_path: Path
) -> None:
    """Python's own is one of the places of `test_peer_contract.py`."""
    with static_nginx(folder) as url, contextlib.closing(open_peer(PeerUrl.parse(f"{url}cities/"))) as peer:
        head = peer.head()
        assert head is not None
        assert head == dataset.chain.head()
        for found in dataset.chain.walk():
            assert peer.block(found.hash) == dataset.chain.get_bytes(found.hash)
        for name in dataset.data.names():
            peer.fetch(
                ObjectKey(ObjectKind.DATA, name), dataset.data.size(name), tmp_path / str(name), SILENT
            )
            assert hash_bytes((tmp_path / str(name)).read_bytes()) == name
        assert peer.hint(100) == dataset.chain.hashes(head)


def test_our_own_server_gives_the_same_for_the_same_requests(dataset: DatasetFiles) -> None:
    with RepositoryServer(WorkspaceFiles.find(dataset.folder)) as server:
        assert set(read_all(f"{server.url}cities/")) == everything(dataset)
