"""The newest block of every dataset that was ever pulled, so that nobody is sent back to an older one.

    seen/fed01…             `<sequence number> <hash of the block>`, one file for each dataset id

Hashes prove that a chain was not altered, not that it is the newest. So the highest block seen is remembered,
also after the dataset was deleted here; a peer whose chain does not contain it is refused (RFC-021).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import StoreError
from odfchain.ids.did import DatasetId
from odfchain.ids.multibase import encode_base16
from odfchain.ids.multihash import Multihash
from odfchain.store import fsio

_LINE = re.compile(r"(0|[1-9][0-9]{0,19}) (f1620[0-9a-f]{64})", re.ASCII)
_READ_BYTES = 256


@dataclass(frozen=True, slots=True)
class Seen:
    """A block of a chain: its sequence number and its hash."""

    sequence_number: int
    head: Multihash


@dataclass(frozen=True, slots=True)
class SeenHeads:
    """The memory of one workspace; `folder` is its `seen` folder."""

    folder: Path

    def _path(self, dataset_id: DatasetId) -> Path:
        return self.folder / encode_base16(dataset_id.to_bytes())

    def get(self, dataset_id: DatasetId) -> Seen | None:
        """The newest block seen of a dataset, None when it was never pulled.

        Raises:
            StoreError: the file cannot be read, or is damaged.
        """
        path = self._path(dataset_id)
        try:
            with path.open("rb") as stream:
                data = stream.read(_READ_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise fsio.storage_error(error, path) from error
        found = _LINE.fullmatch(data.decode("ascii", "replace"))
        if found is None:
            raise StoreError(
                f"{path}: the memory of the newest block seen is damaged",
                hint=f"if you trust the peer to have the newest block, remove {path} and pull again",
            )
        return Seen(int(found[1]), Multihash.parse(found[2]))

    def remember(self, dataset_id: DatasetId, seen: Seen, *, lower: bool = False) -> None:
        """Durably remember a block unless a higher one is remembered; with `lower`, whatever is.

        Raises:
            StoreError: it cannot be written, or what is there is damaged (not with `lower`).
        """
        fsio.make_folder(self.folder)
        with fsio.locked(self.folder / ".lock"):
            known = None if lower else self.get(dataset_id)
            if known is None or known.sequence_number < seen.sequence_number:
                fsio.replace_file(self._path(dataset_id), f"{seen.sequence_number} {seen.head}".encode())
