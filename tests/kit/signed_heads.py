"""A signed dataset in a folder, in the hands of its owner or of an attacker, and copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odfchain.chain.statements import SignedHead
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import DatasetKey
from odfchain.odf.times import Timestamp
from odfchain.transfer.pulling import Pulled, SyncOptions
from odfchain.transfer.signed_statements import SignaturePolicy
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import forge
from tests.kit.scenario import Chain
from tests.kit.sharing import Sharing
from tests.kit.support import tree_of

NOW = Timestamp.parse("2026-01-02T04:00:00Z")
"""An hour after the usual signature."""
COMMON = ["d1", "note 1", "d2"]
"""What all histories begin with, after the seed and a schema."""


def now() -> Timestamp:
    return NOW


REQUIRE = SignaturePolicy(require=True, now=now)


def owned(labels: Sequence[str], key: DatasetKey = forge.OWNER) -> Chain:
    """The chain of a dataset whose id is a key, with these blocks after the seed and a schema."""
    chain = Chain()
    chain.append(ev.Seed(dataset_id=key.dataset_id, dataset_kind=DatasetKind.ROOT))
    for label in ("schema", *labels):
        chain.add(label)
    return chain


def head_of(chain: Chain, number: int = -1, time: Timestamp = forge.TIME) -> SignedHead:
    """What the owner says of a block of a chain."""
    index = number % len(chain.hashes)
    return forge.signed(head=chain.hashes[index], sequence_number=index, time=time)


def line(statement: SignedHead, key: DatasetKey = forge.OWNER) -> bytes:
    """The file of a signed head."""
    return statement.sign(key).encode() + b"\n"


def publish(folder: Path, chain: Chain, *signature: bytes | None) -> None:
    """A folder with the protocol's layout; the owner signs the head, or this is its signature (None: none)."""
    for part in ("refs", "blocks", "data", "checkpoints"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for key, data in chain.objects.items():
        (folder / str(key)).write_bytes(data)
    (folder / "refs/head").write_text(str(chain.head))
    content = signature[0] if signature else line(head_of(chain))
    if content is None:
        (folder / "refs/head.jws").unlink(missing_ok=True)
    else:
        (folder / "refs/head.jws").write_bytes(content)


class Reader:
    """Somebody with a workspace of their own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files = WorkspaceFiles.init(folder, exists_ok=True)
        self.sharing = Sharing(self.files)
        self.root = folder

    def pull(
        self,
        url: str,
        policy: SignaturePolicy | None = None,
        *,
        name: str = "copy",
        force: bool = False,
    ) -> Pulled:
        return self.sharing.pull(url, name, SyncOptions(force=force, signature=policy))

    @property
    def copy(self) -> Path:
        (dataset,) = self.files.datasets()
        return dataset.folder

    def signature(self) -> bytes | None:
        """The file beside the head of the copy."""
        path = self.copy / "refs/head.jws"
        return path.read_bytes() if path.exists() else None

    def state(self) -> dict[str, dict[str, bytes]]:
        """Everything of the datasets that anybody can see, and the memory of the newest blocks."""
        found = {dataset.folder.name: tree_of(dataset.folder) for dataset in self.files.datasets()}
        seen = {p.name: p.read_bytes() for p in sorted((self.files.root / "seen").glob("f*"))}
        return found | {"seen": seen}
