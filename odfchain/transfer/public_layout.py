"""Where things are behind the URL of a dataset: the simple transfer protocol's keys.

    refs/head                 hash of the newest block, as text
    blocks/f1620…             metadata blocks
    data/f1620…               slices
    checkpoints/f1620…        checkpoints
    manifests/f1620…          what describes a block, for readers without our code: made with the first of
    profiles/f1620…           them, and absent where nobody made one (RFC-042)
    hints/chain               optional: hashes of all blocks, seed first, one to a line (RFC-021)
    refs/head.jws             optional: the owner's signature of the head
    refs/NAME                 branches that are shared, with refs/NAME.jws each
    hints/refs                optional: the names of those branches, one to a line (RFC-038)
    attestations/audits.jws   optional: what auditors say, one signed statement to a line
    attestations/snapshots.jws   optional: who vouches for which manifest or profile, in the same form

Objects are stored under the base16 text of their hash, and may be asked for in every other final multibase.
The grammar of keys is closed: what is not one of these is not there, so no key leads out of a folder.
Source: specification "Dataset Layout"; RFC-007 of Open Data Fabric.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote, urlsplit

from odfchain.errors import InvalidIdError, StoreError, UnsupportedPeerError
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetName
from odfchain.net.template import public_name
from odfchain.store.interfaces import check_object_name

HEAD_KEY = "refs/head"
HINT_KEY = "hints/chain"
REFS_HINT_KEY = "hints/refs"
INDEX_KEY = "datasets.json"
"""Beside the datasets of a repository: what there is (RFC-021)."""

_OBJECT = re.compile(r"(blocks|data|checkpoints|manifests|profiles)/([!-~]{46,70})", re.ASCII)
_SMART = "odf+"
"""Before the URL of a node: the smart protocol is spoken there (RFC-050)."""
_SCHEMES = frozenset(
    {"file", "http", "https", f"{_SMART}http", f"{_SMART}https", "s3", "gs", "az", "ipfs", "ipns"}
)
_ENDPOINT = re.compile(r"s3\+https?", re.ASCII)


def ref_key(ref: str) -> str:
    """Where a reference is: the head, or a branch."""
    return f"refs/{ref}"


class ObjectKind(Enum):
    """The kinds of objects that a dataset consists of."""

    BLOCK = "blocks"
    DATA = "data"
    CHECKPOINT = "checkpoints"
    MANIFEST = "manifests"
    PROFILE = "profiles"

    @property
    def describes(self) -> bool:
        """Whether such objects describe a block: signed lines name them, the chain does not."""
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
        """The object that a key names, in whatever multibase encoding; None for every other text.

        Source: specification "Hash Representation": every encoding in state "final" has to be read.
        """
        found = _OBJECT.fullmatch(text)
        if found is None:
            return None
        try:
            return cls(ObjectKind(found[1]), Multihash.parse(found[2]))
        except (InvalidIdError, StoreError):
            return None


@dataclass(frozen=True, slots=True)
class PeerUrl:
    """The URL of a dataset or of a repository of datasets; it ends in a slash."""

    text: str

    @classmethod
    def parse(cls, text: str) -> PeerUrl:
        """The URL with a slash at its end.

        Raises:
            UnsupportedPeerError: not a URL, of a scheme that nothing here speaks, or with a query.
        """
        try:
            parts = urlsplit(text)
        except ValueError:
            raise UnsupportedPeerError(f"{public_name(text)!r} is not a URL") from None
        scheme = parts.scheme.lower()
        # what a query says may be a secret, as a password is
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        if scheme not in _SCHEMES and not _ENDPOINT.fullmatch(scheme):
            raise UnsupportedPeerError(
                f"{shown}: datasets cannot be carried over {scheme or 'that'!r}",
                hint="the schemes are file, http, https, odf+http, odf+https, s3, s3+http, s3+https, gs, az, "
                "ipfs and ipns",
            )
        if set("?#") & set(text):
            raise UnsupportedPeerError(f"{shown}: the URL of a dataset has no query and no fragment")
        if not parts.netloc and scheme != "file":
            raise UnsupportedPeerError(f"{shown}: the URL names no host")
        if scheme == "file" and "%2f" in parts.path.lower():
            raise UnsupportedPeerError(f"{shown}: an escaped slash", hint="where / is meant, write it so")
        if scheme == "file" and parts.netloc not in ("", "localhost"):
            raise UnsupportedPeerError(
                f"{shown}: a file URL names no other machine", hint="write it like file:///srv/datasets/name"
            )
        return cls(text if text.endswith("/") else f"{text}/")

    @property
    def scheme(self) -> str:
        """The protocol, in lower case."""
        return urlsplit(self.text).scheme.lower()

    @property
    def is_smart(self) -> bool:
        """Whether a node is meant, with which the smart protocol is spoken."""
        return self.scheme.startswith(_SMART)

    @property
    def plain(self) -> PeerUrl:
        """The same place over the simple protocol: without `odf+`."""
        return PeerUrl(self.text[len(_SMART) :]) if self.is_smart else self

    def dataset(self, path: str) -> PeerUrl:
        """The dataset of a repository at this URL; `path` is its alias."""
        return PeerUrl.parse(f"{self.text}{path}/")

    def name(self) -> DatasetName:
        """What a dataset from here is called when nothing else is said: the end of the path, else the host.

        Raises:
            InvalidIdError: neither can be the name of a dataset.
        """
        parts = urlsplit(self.text)
        segments = [unquote(segment) for segment in parts.path.split("/") if segment]
        text = segments[-1] if segments else parts.hostname or ""
        try:
            return DatasetName(text)
        except InvalidIdError as error:
            raise InvalidIdError(f"{self}: {error}", hint="say what to call it: --as NAME") from None

    def public(self) -> str:
        """What messages may show: no user and no password."""
        parts = urlsplit(self.text)
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=host).geturl()

    def __str__(self) -> str:
        return self.public()
