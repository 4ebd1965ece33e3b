"""Signing heads where they move: at every commit, with the dataset's key, where it is here.

The commit comes first and is done by then, so a signature that cannot be made is said once and nothing fails.
The next commit, or `odfchain sign`, makes it good.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.chain.signed_heads import (
    HEAD_SIGNATURE_KEY,
)
from odfchain.chain.signed_lines import AUDITS, SNAPSHOTS
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetKey, Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalRefStore
from odfchain.text import printable

if TYPE_CHECKING:
    from odfchain.chain.statements import SignedHead


LoadKey = Callable[[], "DatasetKey | None"]
"""Finds the private key of a dataset, None where it is not here."""


@functools.lru_cache(maxsize=256)
def warn(message: str) -> None:
    """Say it on standard error, once."""
    sys.stderr.write(f"warning: {printable(message)}\n")


@dataclass(frozen=True, slots=True)
class HeadSigner:
    """Signs the heads of the dataset in `folder`. The key is loaded when it is first needed, then kept."""

    folder: Path
    load_key: LoadKey
    now: Callable[[], Timestamp] = Timestamp.now
    report: Callable[[str], None] = warn
    _keys: list[DatasetKey] = field(default_factory=list, init=False, repr=False, compare=False)

    def head_moved(self, head: Multihash, sequence_number: int, ref: str = HEAD) -> None:
        """Sign a head that has just moved, where the key is here; whatever goes wrong is reported only.

        `ref` may be a branch: its newest block is signed in the same way, as a statement of another type.
        """
        try:
            key = self._key()
            if key is not None:
                self.sign(key, head, sequence_number, ref)
        except Exception as error:  # noqa: BLE001 - the commit is done and must not seem to have failed
            what = " ".join(str(error).split()) or type(error).__name__
            hint = getattr(error, "hint", None) or "`odfchain sign` makes it good"
            moved = "the new head" if ref == HEAD else f"branch {ref}"
            self.report(f"{self.folder}: {moved} is not signed: {what} ({hint})")

    def _key(self) -> DatasetKey | None:
        if not self._keys and (key := self.load_key()) is not None:
            self._keys.append(key)
        return self._keys[0] if self._keys else None

    def sign(
        self, key: DatasetKey, head: Multihash, sequence_number: int, ref: str = HEAD
    ) -> SignedHead | None:
        """Durably write the signature of a head; None when another writer has moved the head on by then."""
        # Loaded here: most commands that open a dataset never sign.
        from odfchain.chain.signed_heads import signature_key  # noqa: PLC0415
        from odfchain.chain.statements import SignedHead, sign_head  # noqa: PLC0415

        signed = SignedHead(key.dataset_id, head, sequence_number, self.now(), ref)
        line = sign_head(key, signed).encode() + b"\n"
        # Under the lock that heads move under: a slow writer does not replace a newer head's signature.
        lock = self.folder / "info" / "lock"
        with fsio.locked(lock):
            if LocalRefStore(self.folder / "refs", lock).get(ref) != head:
                return None
            fsio.replace_file(self.folder / signature_key(ref), line)
        return signed


class SignedFile(Enum):
    """The files of signed statements: unlike objects they change, and nothing about them is known before."""

    HEAD = HEAD_SIGNATURE_KEY
    AUDITS = AUDITS.key
    SNAPSHOTS = SNAPSHOTS.key

    @property
    def limit(self) -> int:
        """The largest that is read [bytes]."""
        match self:
            case SignedFile.HEAD:
                return ATTEST.statement_bytes + 1
            case SignedFile.AUDITS:
                return ATTEST.attestations_bytes
            case SignedFile.SNAPSHOTS:
                return ATTEST.snapshot_lines_bytes
