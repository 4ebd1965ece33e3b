"""Reminders for people: when a dataset was last asked for, and up to which block it was verified.

    info/asked      the end of the last pull from the dataset's source or peer
    info/verified   the last verification that left nothing out and found no fault: up to which block it came,
                    in one run or in several, and which checks the last run made

Both are private, and nothing but `status` reads them. A missing or damaged one means never.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from odfchain.errors import OdfchainError, StoreError
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import read_json, to_tree
from odfchain.storage import fsio
from odfchain.workspace.dataset_files import DatasetFiles

ASKED, VERIFIED = "asked", "verified"
_MOST_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Reminder:
    """A time; and for a verification the block up to which it came, and the checks that passed."""

    time: Timestamp
    head: Multihash | None = None
    sequence_number: int | None = None
    checks: tuple[int, ...] = ()


def remember(dataset: DatasetFiles, name: str, what: Reminder) -> None:
    """Keep a reminder in the place of the one before; on media that cannot be written there is none."""
    path = dataset.folder / "info" / name
    with contextlib.suppress(StoreError), fsio.replaced(path, mode=0o600, durable=False) as stream:
        stream.write(json.dumps(to_tree(what)).encode())


def remembered(dataset: DatasetFiles, name: str) -> Reminder | None:
    """The reminder of a name; None where there is none."""
    with contextlib.suppress(OdfchainError):
        data = fsio.read_start(dataset.folder / "info" / name, _MOST_BYTES + 1)
        return None if data is None else read_json(Reminder, data, _MOST_BYTES)
    return None


def verified_blocks(dataset: DatasetFiles, head: Multihash) -> int:
    """How many blocks of the chain that ends at `head` were verified."""
    found = remembered(dataset, VERIFIED)
    number = None if found is None else found.sequence_number
    if found is None or number is None or dataset.chain.hash_at(number, head) != found.head:
        return 0
    return number + 1
