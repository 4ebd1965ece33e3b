"""Witnesses on loopback, and owners who ask them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from odfchain import Workspace
from odfchain.chain.checkpoints import Checkpoint, Note, NoteKey, WitnessPolicy, sign_note
from odfchain.chain.transparency_log import Frontier
from odfchain.node.witness import Witness
from odfchain.odf.identity import DatasetId, DatasetKey
from odfchain.odf.times import Timestamp
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.witnesses import NoteMemory, WitnessLog
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import forge
from tests.kit.signed_heads import owned

Running = tuple[str, NoteKey]


@contextmanager
def witness(
    folder: Path, name: str = "w0.example", admits: Callable[[DatasetId], bool] = lambda _: True
) -> Iterator[Running]:
    """A witness with its memory in a folder: its URL and key."""
    folder.mkdir(parents=True, exist_ok=True)
    files = WorkspaceFiles.init(folder, exists_ok=True)
    key = DatasetKey.from_pem((folder / "key.pem").read_bytes()) if (folder / "key.pem").exists() else None
    if key is None:
        key = DatasetKey.generate()
        (folder / "key.pem").write_bytes(key.to_pem())
    with (
        closing(WitnessLog(folder / "log.db", key, name)) as log,
        RepositoryServer(files, Witness(log, admits, NoteMemory(files.root / "seen")), port=0) as server,
    ):
        yield server.url, log.key


@contextmanager
def witnesses(folder: Path, count: int) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        names = [f"w{n}.example" for n in range(count)]
        yield [stack.enter_context(witness(folder / name, name)) for name in names]


def ask(workspace: Workspace, running: list[Running]) -> None:
    for url, key in running:
        workspace.add_witness(url, str(key))


def policy(running: list[Running], quorum: int, **also: object) -> WitnessPolicy:
    return WitnessPolicy(keys=tuple(str(key) for _, key in running), quorum=quorum, **also)  # type: ignore[arg-type]


def note_of(labels: list[str], key: DatasetKey = forge.OWNER) -> Note:
    """The owner's note of a chain with these blocks after the seed and a schema."""
    log = Frontier()
    for block in owned(labels, key).hashes:
        log = log.append(block)
    return sign_note(Checkpoint.of(key.dataset_id, log), key)


def cosigned(note: Note, keys: list[DatasetKey], time: Timestamp) -> tuple[Note, tuple[NoteKey, ...]]:
    """The note with cosignatures of that time, and the witnesses."""
    names = tuple(NoteKey.of(key, f"w{n}.example") for n, key in enumerate(keys))
    lines = [name.sign(note.checkpoint.body(), key, time) for name, key in zip(names, keys, strict=True)]
    return note.with_lines(lines, names), names
