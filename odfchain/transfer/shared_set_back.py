"""A store whose head does not continue what a machine has seen: noticed, and followed by who says so.

    info/replacing      `<a head> <another>`, while this machine replaces the one by the other

Somebody who has the right to write has put the dataset back, or compacted it; or it was an attacker, and no
machine can tell. So it is an error, until the user names the head that he wants to follow. Only what this
machine has begun itself, and was killed at, it goes on with: that is what the note is for. It says nothing
any more once the head here is another one. Source: RFC-048.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from odfchain.errors import ChainsDifferError, InvalidIdError, RefConflictError, SetBackError
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.limits import SHARING
from odfchain.progress import SILENT
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.references import lock_path
from odfchain.store import fsio
from odfchain.transfer.beside_head import arriving
from odfchain.transfer.object_peer import ObjectPeer
from odfchain.transfer.shared_sending import came

_NOTE_BYTES = 256


@contextlib.contextmanager
def intended(folder: Path, expected: Multihash, new: Multihash) -> Iterator[None]:
    """It is noted durably that this machine replaces a head, unless it is known to have failed."""
    note = _note(folder)
    fsio.replace_file(note, f"{expected} {new}".encode())
    try:
        yield
    except RefConflictError:
        fsio.remove_quietly(note)
        raise
    fsio.remove_quietly(note)


def was_intended(dataset: DatasetFiles, peer: ObjectPeer, there: Multihash) -> bool:
    """Whether this machine itself has replaced its head by the one in the store, or one a later one."""
    text = (fsio.read_start(_note(dataset.folder), _NOTE_BYTES) or b"").decode("ascii", "replace")
    try:
        expected, new = map(Multihash.parse, text.split(" "))
    except (InvalidIdError, ValueError):
        return False
    return dataset.chain.head() == expected and came(dataset, peer, expected, new, there)


def set_back(alias: DatasetAlias, folder: Path, peer: ObjectPeer, error: ChainsDifferError) -> SetBackError:
    """What is said where the store does not continue what was seen here."""
    if folder.is_dir():
        hint = (
            "somebody put it back, or compacted it: if that is known to be right, "
            f"`odfchain reset {alias} {error.source_head}` follows; what is here is in {folder}, from where "
            "`odfchain pull` brings it into another workspace"
        )
    else:
        memory = folder.parent.parent / "seen" / folder.name
        hint = (
            f"somebody set it back: if that is known to be right, remove {memory} and run the command again"
        )
    return SetBackError(
        f"{peer.where}: the history there does not continue what was seen here: {error.message}",
        head=error.source_head,
        hint=hint,
    )


def bring_blocks(dataset: DatasetFiles, peer: ObjectPeer, head: Multihash) -> None:
    """The blocks up to a head in the store are here, checked; no reference leads to them."""
    with fsio.locked(lock_path(dataset)), arriving(dataset, peer, SHARING.parallel, SILENT) as beside:
        beside.read(head)
        beside.store()


def _note(folder: Path) -> Path:
    return folder / "info" / "replacing"
