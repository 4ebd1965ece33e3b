"""What is done while the power goes, what each promises once it has returned, and whether a disk is sound then."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from odfchain.api.settings import DatasetConfiguration
from odfchain.api.workspace import Workspace
from odfchain.chain.key_statements import Delegate, Revocation, commitment
from odfchain.chain.statements import create_key_file, read_key_file
from odfchain.errors import NameCollisionError, OdfchainError, StoreError, UsageError, WorkspaceError
from odfchain.node.schedule import Finished, Schedule
from odfchain.odf import events as ev
from odfchain.odf.block_codec import decode_block
from odfchain.odf.identity import DatasetKey, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.credentials import Credentials
from odfchain.transfer.open_peer import open_peer
from odfchain.transfer.pulling import SyncOptions, pull_dataset
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import PushOptions
from odfchain.workspace.read_slices import KeptFooters
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import commits, smart_site, upkeep_scenes
from tests.kit.branch_cases import made_scene
from tests.kit.local_folder import LocalDataset
from tests.kit.recorded_dataset import add_slice
from tests.kit.recording_disk import Disk, RecordedDisk
from tests.kit.scenario import chain_of, install
from tests.kit.sharing import Sharing
from tests.kit.upkeep_scenes import everything, new_workspace, root

Files = dict[str, bytes | None]
Prepare = Callable[[Path], Any]
Promise = Callable[..., None]
Work = Callable[[Path, Promise], Any]
"""Does it in a folder, and calls what it is given with each promise, once what it promises was acknowledged."""


# --- promises --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reached:
    """A block is in the chain of a reference."""

    ref: str
    block: Multihash

    def holds(self, files: Files) -> bool:
        text = files.get(self.ref)
        return text is not None and self.block in chain_in(files, self.ref, text)


def reached(folder: Path, dataset: DatasetFiles) -> Reached:
    """The head, or branch, of a dataset is not lost."""
    ref = (dataset.folder / "refs" / dataset.ref).relative_to(folder).as_posix()
    return Reached(ref, upkeep_scenes.head_of(dataset))


# --- soundness, by the files alone -----------------------------------------------------------------------

_PLACE = re.compile(r"(?P<dataset>(.*/)?datasets/[0-9a-f]{60,}|place)/(?P<kind>[a-z]+)/(?P<name>[^/]+)")
_OBJECT = re.compile(r"f1620[0-9a-f]{64}")
_ONLY_HELPS = re.compile(
    r"/(\.?staging|incoming|run|trash|reports)/|/\.pending-|lock$|/info/(chain-index[^/]*|log-frontier|file-stats|pulling|asked|verified|pushed)$"
)
"""Paths of what may be lost: it is made anew."""
_OBJECTS = ("blocks", "data", "checkpoints", "manifests", "profiles")


@lru_cache(maxsize=20_000)
def _named(content: bytes) -> str:
    return str(hash_bytes(content))


@lru_cache(maxsize=20_000)
def _decoded(content: bytes) -> tuple[Multihash | None, tuple[str, ...]]:
    block = decode_block(content)
    needed = []
    if isinstance(event := block.event, ev.AddData | ev.ExecuteTransform):
        if event.new_data is not None:
            needed.append(f"data/{event.new_data.physical_hash}")
        if event.new_checkpoint is not None:
            needed.append(f"checkpoints/{event.new_checkpoint.physical_hash}")
    return block.prev_block_hash, tuple(needed)


def chain_in(files: Files, ref: str, text: bytes) -> dict[Multihash, None]:
    """The blocks of a reference, newest first; `LookupError` names what is not there."""
    folder = ref.rpartition("/refs/")[0]
    found = dict[Multihash, None]()
    here: Multihash | None = Multihash.parse(text.decode().strip())
    while here is not None:
        content = files.get(f"{folder}/blocks/{here}")
        if content is None or _named(content) != str(here):
            raise LookupError(f"{ref}: {here}")
        found[here] = None
        here, needed = _decoded(content)
        for path in needed:
            if files.get(f"{folder}/{path}") is None:
                raise LookupError(f"{ref}: {path}")
    return found


def faults_of(disk: Disk, recorded: RecordedDisk) -> list[str]:
    """What is wrong with a disk: torn objects, chains that are not whole, promises that are broken."""
    faults = [
        f"lost: {each}" for one in disk.acknowledged for each in one.what if not _held(each, disk.files)
    ]
    if disk.acknowledged:
        last = disk.acknowledged[-1]
        faults += [
            f"lost: {path}"
            for path, content in last.left.items()
            if disk.files.get(path) is not content
            and not _ONLY_HELPS.search(path)
            and not (content is None and _PLACE.fullmatch(path))  # an object that gc takes again
            and disk.files.get(path) not in recorded.may_have(last, path)
        ]
    for path, content in disk.files.items():
        if content is None or (found := _PLACE.fullmatch(path)) is None:
            continue
        kind, name = found["kind"], found["name"]
        if kind in _OBJECTS and _OBJECT.fullmatch(name) and _named(content) != name:
            faults.append(f"torn: {path}")
        if kind == "refs" and not name.startswith(".") and not name.endswith((".jws", ".checkpoint")):
            try:
                chain_in(disk.files, path, content)
            except (LookupError, ValueError, OdfchainError) as error:
                faults.append(f"no chain: {path}: {error}")
        if (kind, name) == ("info", "alias") and not content.strip(b"\0"):
            faults.append(f"no name: {path}")
    return faults


def _held(promise: Reached, files: Files) -> bool:
    try:
        return bool(promise.holds(files))
    except (LookupError, ValueError, OdfchainError):
        return False


# --- soundness, by opening it ----------------------------------------------------------------------------


def laid_out(disk: Disk, folder: Path) -> Path:
    """The disk in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, content in sorted(disk.files.items()):
        target = folder / path
        if content is None:
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(content)
            target.chmod(0o600 if not path.startswith("place") else 0o644)
    return folder


def check_opened(folder: Path, scene: Scene) -> None:
    """It opens, all of it is there, blocks are appended, and the command that was interrupted ends well."""
    for again in (False, True):
        if again:
            with contextlib.suppress(*scene.known):
                scene.work(folder, lambda *_: None)
        for path in sorted(folder.rglob(".odfchain")):
            workspace = WorkspaceFiles.find(path.parent)
            for dataset in workspace.datasets():
                assert everything(dataset), dataset.folder
                state = DatasetState.read(dataset.chain)
                plain = DatasetState.read(dataset.reindexed().chain)
                assert (state.head, state.slices()) == (plain.head, plain.slices())
        if again:
            for dataset in workspace.datasets():
                note(dataset, "after the loss")


def note(dataset: DatasetFiles, text: str) -> None:
    """One more block."""
    state = DatasetState.read(dataset.chain)
    # of a time that does not pass: what is done again makes the same blocks
    time = state.head_block.system_time
    commits.commit(dataset, state, [ev.SetInfo(description=text)], [], system_time=time)


# --- what is done ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    """A command, what it needs, and what must be there in the end."""

    name: str
    prepare: Prepare
    work: Work
    known: tuple[type[OdfchainError], ...] = ()
    """How it ends where it was done already."""


SCENES: dict[str, Scene] = {}


def in_scene(prepare: Prepare, *known: type[OdfchainError]) -> Callable[[Work], Work]:
    def keep(work: Work) -> Work:
        SCENES[work.__name__] = Scene(work.__name__, prepare, work, known)
        return work

    return keep


def of_cities(slices: int) -> Prepare:
    return lambda folder: root(new_workspace(folder), slices=slices)


def cities(folder: Path) -> DatasetFiles:
    return WorkspaceFiles.find(folder).dataset("cities")


def nothing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


@in_scene(of_cities(1))
def commit(folder: Path, promise: Promise) -> None:
    """Two transactions, the second of real slices; a promise after each."""
    dataset = cities(folder)
    commits.run(dataset, b"one" * 500, b"rest")
    promise(reached(folder, dataset))
    add_slice(dataset, ["a", "b"])
    promise(reached(folder, dataset))


@in_scene(nothing, NameCollisionError)
def creation(folder: Path, promise: Promise) -> None:
    """A workspace, a dataset and its key."""
    workspace = WorkspaceFiles.init(folder, exists_ok=True)
    promise()
    dataset = root(workspace)
    promise(reached(folder, dataset))
    promise()


def of_an_owner(folder: Path) -> None:
    """The owner's key is elsewhere: another is to sign here."""
    root(new_workspace(folder), slices=1)
    (key,) = (folder / ".odfchain" / "keys").iterdir()
    key.rename(folder / "owner.pem")


@in_scene(of_an_owner, StoreError)
def keys(folder: Path, promise: Promise) -> None:
    """A key is made, may sign and signs, has a successor, and is revoked."""
    dataset, owner = Workspace.open(folder)["cities"], read_key_file(folder / "owner.pem")
    key = dataset.new_key()
    promise()
    dataset.say_keys(owner, delegates=[Delegate.of(key, Timestamp.now(), 86_400)])
    promise(reached(folder, dataset._files))
    dataset.sign()
    promise(reached(folder, dataset._files))
    dataset.say_keys(owner, successor=commitment(DatasetKey.generate().dataset_id))
    promise()
    dataset.say_keys(owner, revoked=[Revocation(key, Timestamp.now())])
    promise(reached(folder, dataset._files))


def audited_cities(folder: Path) -> None:
    of_cities(1)(folder)
    create_key_file(folder / "auditor.pem")


@in_scene(audited_cities)
def signing(folder: Path, promise: Promise) -> None:
    """The head is signed anew, and what an auditor says is kept."""
    dataset = Workspace.open(folder)["cities"]
    dataset.sign()
    promise(reached(folder, dataset._files))
    for _ in range(2):
        dataset.attest(folder / "auditor.pem")
        promise()


@in_scene(of_cities(0), NameCollisionError)
def tokens(folder: Path, promise: Promise) -> None:
    """A token is made and one is revoked; credentials of two nodes are kept."""
    workspace = WorkspaceFiles.find(folder)
    kept = TokenFile(workspace.root)

    def keep(path: Path) -> None:
        promise()

    for name in ("reader", "writer"):
        kept.create(name, ["push:%"], Timestamp.now())
        promise()
    kept.revoke("reader")
    promise()
    known = Credentials(folder / "user" / "credentials.json")
    for host in ("a", "b"):
        known.put(PeerUrl.parse(f"https://{host}.example.com/"), "t" * 40)
        promise()


@in_scene(of_cities(3))
def footers(folder: Path, promise: Promise) -> None:
    """What is known of slices: a cache, of which nothing is promised, and none of whose lines is ever wrong."""
    dataset = cities(folder)
    refs = DatasetState.read(dataset.chain).slices()
    kept = KeptFooters(dataset)
    for number in range(2):
        kept.keep((ref.slice.physical_hash, f"{number}" * 700) for ref in refs)
    kept.drop(lambda name: name != refs[0].slice.physical_hash)
    kept.keep([(refs[0].slice.physical_hash, "x" * 100)])
    promise(reached(folder, dataset))


def scheduled_cities(folder: Path) -> None:
    root(new_workspace(folder))
    DatasetConfiguration.of(Workspace.open(folder)["cities"]).set("pull.every", ["1h"])


@in_scene(scheduled_cities)
def schedule(folder: Path, promise: Promise) -> None:
    """Runs of a schedule, and what is kept of them."""
    now = Timestamp.parse("2026-03-02T00:00:00Z")
    for hour in range(4):
        Schedule(folder, now=partial(now.shifted, hour * 3_600_000), run=Done())._step()
        promise()


class Done:
    """Runs that end well at once."""

    def __call__(self, dataset_id: str, lock: int) -> Finished:
        return Finished("updated")

    def end(self) -> None:
        pass


@in_scene(lambda folder: root(new_workspace(folder), slices=5), UsageError, WorkspaceError)
def reset(folder: Path, promise: Promise) -> None:
    upkeep_scenes.reset(WorkspaceFiles.find(folder))
    promise()


@in_scene(of_cities(4), UsageError, WorkspaceError)
def hard_compact(folder: Path, promise: Promise) -> None:
    upkeep_scenes.hard(WorkspaceFiles.find(folder))
    promise()


@in_scene(of_cities(4), NameCollisionError)
def soft_compact(folder: Path, promise: Promise) -> None:
    upkeep_scenes.soft(WorkspaceFiles.find(folder))
    promise(reached(folder, cities(folder)))
    promise(reached(folder, WorkspaceFiles.find(folder).dataset("fewer")))


def garbage(folder: Path) -> None:
    dataset = root(new_workspace(folder), slices=4)
    files = Workspace.open(folder)["cities"]
    files.compact(files.plan_compact())
    (dataset.folder / "data" / ".pending-left").write_bytes(b"left")


@in_scene(garbage)
def gc(folder: Path, promise: Promise) -> None:
    promise(reached(folder, cities(folder)))
    upkeep_scenes.gc(WorkspaceFiles.find(folder))
    promise(reached(folder, cities(folder)))


def two_branches(folder: Path) -> None:
    made = made_scene(
        folder / "made", base=["1xy", "2uv"], ours=["-C 1xy", "+C 1qy"], theirs=["-C 2uv", "+C 2uw"]
    )
    made.workspace.close()
    (folder / "made" / "workspace" / ".odfchain").rename(folder / ".odfchain")
    shutil.rmtree(folder / "made")


@in_scene(two_branches, UsageError)
def merge(folder: Path, promise: Promise) -> None:
    with Workspace.open(folder) as workspace:
        workspace["d"].merge("theirs")
        promise(reached(folder, workspace["d"]._files))


def with_peer(*labels: str) -> Prepare:
    def prepare(folder: Path) -> None:
        workspace = new_workspace(folder)
        if labels:
            install(workspace, "cities", chain_of(labels))
        LocalDataset(folder / "peer", ["seed", "schema", *(f"d{n}" for n in range(1, 13))])

    return prepare


def pulled(folder: Path, promise: Promise) -> None:
    pull_dataset(
        WorkspaceFiles.find(folder),
        open_peer(PeerUrl.parse((folder / "peer").as_uri())),
        DatasetAlias.parse("cities"),
        SyncOptions(parallel=1),
    )
    promise(reached(folder, cities(folder)))


@in_scene(with_peer())
def pull(folder: Path, promise: Promise) -> None:
    """A dataset is new here."""
    pulled(folder, promise)


@in_scene(with_peer("seed", "schema", "d1"))
def pull_more(folder: Path, promise: Promise) -> None:
    """So much is new of a dataset that its files are synced together."""
    pulled(folder, promise)


@in_scene(lambda folder: install(new_workspace(folder), "cities", chain_of(["seed", "schema", "d1"])))
def push(folder: Path, promise: Promise) -> None:
    """Into a folder, twice."""
    ours = Sharing(WorkspaceFiles.find(folder))
    for label in ("a", "b"):
        ours.push("cities", (folder / "place").as_uri())
        promise(Reached(f"place/refs/{HEAD}", upkeep_scenes.head_of(cities(folder))))
        note(cities(folder), label)


@in_scene(new_workspace)
def received(folder: Path, promise: Promise) -> None:
    """What a node got by two pushes."""
    node = WorkspaceFiles.find(folder)
    with TemporaryDirectory() as beside, RepositoryServer(node, write=True) as server:
        ours = WorkspaceFiles.init(Path(beside))
        dataset = install(ours, "cities", chain_of(["seed", "schema", "d1", "d2"]))
        secret = TokenFile(node.root).create(Path(beside).name, ["push:%", "force:%"], Timestamp.now()).text
        for label in ("a", "b"):
            smart_site.push(dataset, f"{server.url}cities", PushOptions(force=True), token=secret)
            promise(reached(folder, cities(folder)))
            note(dataset, label)
