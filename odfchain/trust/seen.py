"""The newest block of every dataset that was ever pulled or pushed: nobody is sent back to an older one.

    seen/fed01…             `<sequence number> <hash of the block>`, one file for each dataset id;
                            a second line is the owner's signature of the newest head that came with one

Hashes prove that a chain was not altered, not that it is the newest. So the highest block seen is remembered,
also after the dataset was deleted here; a peer whose chain does not contain it is refused (RFC-021). The
signature shows later that a dataset was signed once, and is one half of the proof if the owner ever signs
another history.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from odfchain.errors import SignatureError, StoreError
from odfchain.ids.did import DatasetId
from odfchain.ids.multibase import encode_base16
from odfchain.ids.multihash import Multihash
from odfchain.limits import ATTEST
from odfchain.store import fsio
from odfchain.trust.signed_statements import SignedHead, read_head

_TEXT = re.compile(
    r"(0|[1-9][0-9]{0,19}) (f1620[0-9a-f]{64})(?:\n([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+))?",
    re.ASCII,
)
_READ_BYTES = 256 + ATTEST.statement_bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """A block of a chain: its sequence number and its hash."""

    sequence_number: int
    head: Multihash
    signature: str | None = None
    """The owner's signed statement of this block, or of an earlier one of its chain."""


@dataclass(frozen=True, slots=True)
class SeenHeads:
    """The memory of one workspace; `folder` is its `seen` folder."""

    folder: Path

    def _path(self, dataset_id: DatasetId) -> Path:
        return self.folder / encode_base16(dataset_id.to_bytes())

    def get(self, dataset_id: DatasetId) -> Seen | None:
        """The newest block seen of a dataset, None when it was never seen.

        Raises:
            StoreError: the file cannot be read, or is damaged.
        """
        path = self._path(dataset_id)
        data = fsio.read_start(path, _READ_BYTES)
        if data is None:
            return None
        found = _TEXT.fullmatch(data.decode("ascii", "replace"))
        if found is None:
            raise self._damaged(dataset_id)
        return Seen(int(found[1]), Multihash.parse(found[2]), found[3])

    def signed(self, dataset_id: DatasetId, seen: Seen | None) -> SignedHead | None:
        """What the owner signed of what was seen, verified anew; None when it was never signed.

        Raises:
            StoreError: the signature in the memory is damaged.
        """
        if seen is None or seen.signature is None:
            return None
        try:
            signer, signed = read_head(seen.signature.encode())
        except SignatureError:
            raise self._damaged(dataset_id) from None
        if not signer == signed.dataset_id == dataset_id:
            raise self._damaged(dataset_id)
        return signed

    def _damaged(self, dataset_id: DatasetId) -> StoreError:
        path = self._path(dataset_id)
        return StoreError(
            f"{path}: the memory of the newest block seen is damaged",
            hint=f"if you trust the peer to have the newest block, remove {path} and pull again",
        )

    def remember(self, dataset_id: DatasetId, seen: Seen, *, lower: bool = False) -> None:
        """Durably remember a block unless a higher one is remembered; with `lower`, whatever is.

        A signature takes the place of one that is remembered if it is of the same block or a later one.
        """
        fsio.make_folder(self.folder)
        with fsio.locked(self.folder / ".lock"):
            known = None if lower else self.get(dataset_id)
            new = seen if known is None else self._newer(dataset_id, known, seen)
            if new != known:
                text = f"{new.sequence_number} {new.head}" + (f"\n{new.signature}" if new.signature else "")
                fsio.replace_file(self._path(dataset_id), text.encode())

    def _newer(self, dataset_id: DatasetId, known: Seen, seen: Seen) -> Seen:
        new = seen if known.sequence_number < seen.sequence_number else known
        old, late = self.signed(dataset_id, known), self.signed(dataset_id, seen)
        keeps = late is None or (
            old is not None
            and (old.sequence_number, old.time.epoch_ns) >= (late.sequence_number, late.time.epoch_ns)
        )
        return replace(new, signature=known.signature if keeps else seen.signature)
