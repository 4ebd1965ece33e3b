"""Where a good copy of a damaged object may be found: in this workspace, and at any peer.

Every copy is hashed before it is used, so no peer needs to be trusted.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from odfchain.digest.physical import hash_file
from odfchain.errors import CorruptedPeerError, TransferError
from odfchain.progress import SILENT
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store import fsio
from odfchain.transfer.partial import incoming_folder
from odfchain.transfer.peer import Peer
from odfchain.transfer.public_layout import ObjectKey


class Spares:
    """Finds good copies of the objects of one dataset."""

    def __init__(self, workspace: WorkspaceFiles, dataset: DatasetFiles, peer: Peer | None) -> None:
        self._workspace = workspace
        self._dataset = dataset
        self._peer = peer
        self.problems: list[str] = []
        """What went wrong with the peer."""

    def find_here(self, key: ObjectKey) -> tuple[Path, str] | None:
        """A good copy in this workspace, and where it was found."""
        for path, where in self._candidates(key):
            try:
                if path.is_file() and not path.is_symlink() and hash_file(path)[0] == key.name:
                    return path, where
            except OSError:
                continue
        return None

    def _candidates(self, key: ObjectKey) -> Iterator[tuple[Path, str]]:
        for name in (f"{key.kind.value}/{key.name}", f"objects/{key.kind.value}-{key.name}"):
            yield incoming_folder(self._dataset) / name, "an interrupted pull"
        for other in self._workspace.datasets():
            if other.folder != self._dataset.folder:
                yield other.folder / str(key), f"dataset {other.alias}"

    def bring(self, key: ObjectKey, size: int | None, folder: Path) -> tuple[Path, str] | None:
        """A file in `folder` that is the object, and where it came from; None when nobody has it.

        `size` is what the chain says [bytes]; of blocks it is not known.
        """
        target = folder / uuid.uuid4().hex
        spare = self.find_here(key)
        with fsio.storage_errors(target):
            if spare is not None:
                shutil.copyfile(spare[0], target)
                if hash_file(target)[0] == key.name:
                    return target, spare[1]
            if self._peer is not None and self._fetch(self._peer, key, size, target):
                return target, self._peer.where
        fsio.remove_quietly(target)
        return None

    def _fetch(self, peer: Peer, key: ObjectKey, size: int | None, target: Path) -> bool:
        fsio.remove_quietly(target)
        try:
            if size is None:
                target.write_bytes(peer.block(key.name))
            else:
                peer.fetch(key, size, target, SILENT)
            return hash_file(target)[0] == key.name
        except CorruptedPeerError as error:  # of this object; others may be good
            self.problems.append(str(error))
        except TransferError as error:
            self.problems.append(str(error))
            self._peer = None  # it is gone: not asked a thousand times more
        return False
