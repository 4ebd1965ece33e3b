"""Keys of the simple transfer protocol, below the URL of a dataset.

    refs/head                 hash of the newest block, as text
    blocks/f1620…             metadata blocks
    data/f1620…               slices
    checkpoints/f1620…        checkpoints
    manifests/f1620…          what describes a block, for readers without our code: made with the first of
    profiles/f1620…           them, and absent where none was made (RFC-042)
    hints/chain               optional: hashes of all blocks, seed first, one to a line (RFC-021)
    refs/head.jws             optional: the owner's signature of the head
    refs/head.checkpoint      optional: the head as a checkpoint of a log, with cosignatures (RFC-064)
    refs/NAME                 branches that are shared, with refs/NAME.jws each
    hints/refs                optional: the names of those branches, one to a line (RFC-038)
    attestations/audits.jws   optional: auditors' attestations, one signed statement to a line
    attestations/snapshots.jws   optional: signed hashes of manifests and profiles, in the same form
    attestations/keys.jws     optional: which keys may sign for the owner, and who comes after him (RFC-065)

Objects are stored under the base16 text of their hash, and may be asked for in every other final multibase.
The grammar of keys is closed: what is not one of these is not there, so no key leads out of a folder.
Source: specification "Dataset Layout"; RFC-007 of Open Data Fabric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from odfchain.errors import InvalidIdError, StoreError
from odfchain.limits import ATTEST, SHARING
from odfchain.odf.identity import HashList, Multihash
from odfchain.storage.local import check_object_name

HEAD_KEY = "refs/head"
HINT_KEY = "hints/chain"
REFS_HINT_KEY = "hints/refs"
INDEX_KEY = "datasets.json"
"""The list of a repository's datasets, next to them (RFC-021)."""

_OBJECT = re.compile(r"(blocks|data|checkpoints|manifests|profiles)/([!-~]{46,70})", re.ASCII)


def ref_key(ref: str) -> str:
    """The key of a reference: the head, or a branch."""
    return f"refs/{ref}"


class SignedFile(Enum):
    """The files of signed statements: unlike objects they change, and nothing about them is known before."""

    HEAD = "refs/head.jws"
    CHECKPOINT = "refs/head.checkpoint"
    AUDITS = "attestations/audits.jws"
    SNAPSHOTS = "attestations/snapshots.jws"
    KEYS = "attestations/keys.jws"

    @property
    def limit(self) -> int:
        """The largest that is read [bytes]."""
        match self:
            case SignedFile.HEAD:
                return ATTEST.statement_bytes + 1
            case SignedFile.CHECKPOINT:
                return ATTEST.note_bytes
            case SignedFile.AUDITS:
                return ATTEST.attestations_bytes
            case SignedFile.SNAPSHOTS:
                return ATTEST.snapshot_lines_bytes
            case SignedFile.KEYS:
                return ATTEST.keys_bytes

    def key(self, ref: str) -> str:
        """Its key; the signature of a head is next to the reference."""
        return signature_key(ref) if self is SignedFile.HEAD else self.value


def signature_key(ref: str) -> str:
    """The key of the signature of a reference."""
    return f"refs/{ref}.jws"


class ObjectKind(Enum):
    """The kinds of objects that a dataset consists of."""

    BLOCK = "blocks"
    DATA = "data"
    CHECKPOINT = "checkpoints"
    MANIFEST = "manifests"
    PROFILE = "profiles"

    @property
    def describes(self) -> bool:
        """True if such objects describe a block: signed lines name them, the chain does not."""
        return self in (ObjectKind.MANIFEST, ObjectKind.PROFILE)


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The place of an object under a dataset's URL."""

    kind: ObjectKind
    name: Multihash

    def __post_init__(self) -> None:
        check_object_name(self.name)

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ObjectKey | None:
        """The object that a key names, in any multibase encoding; None for every other text."""
        found = _OBJECT.fullmatch(text)
        if found is None:
            return None
        try:
            # every encoding in state "final" is read (specification "Hash Representation")
            return cls(ObjectKind(found[1]), Multihash.parse(found[2]))
        except (InvalidIdError, StoreError):
            return None


# Hint files: the hashes of a chain's blocks, seed first, and the names of branches, one to a line. They
# save time and are untrusted. Source: RFC-021, RFC-038.

MOST_NAMES_BYTES = 64 << 10
"""The largest list of branches that is read [bytes]."""


def encode_hint(hashes: Iterable[Multihash]) -> bytes:
    """The content of the file."""
    return b"".join(b"%s\n" % str(name).encode("ascii") for name in hashes)


def encode_names(branches: Iterable[str]) -> bytes:
    """The content of the file that lists branches; empty where it would be too long."""
    data = b"".join(b"%s\n" % name.encode("ascii") for name in sorted(branches))
    return data if len(data) <= MOST_NAMES_BYTES else b""


# A hash in base16 and the end of its line [bytes].
_HINT_LINE_BYTES = 70
_LINE = re.compile(rb"f1620[0-9a-f]{64}")


def hint_bytes(limit: int) -> int:
    """Size of a hint that lists so many blocks, and at most what a hint may list."""
    return min(limit, SHARING.hinted_blocks) * _HINT_LINE_BYTES


def parse_hint(data: bytes, limit: int) -> HashList | None:
    """The hashes that the file lists; None if it is malformed, empty, or lists more than `limit`."""
    if not data or len(data) > hint_bytes(limit):
        return None
    found = HashList()
    # an untrusted publisher chose the number of lines: packed, not one object for each
    for start in range(0, len(data), _HINT_LINE_BYTES):
        line = data[start : start + _HINT_LINE_BYTES]
        if not _LINE.fullmatch(line.removesuffix(b"\n")):
            return None
        found.append(Multihash.sha3_256(bytes.fromhex(line[5:].decode("ascii"))))
    return found
