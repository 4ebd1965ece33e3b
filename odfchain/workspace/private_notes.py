"""Private notes about a dataset, in its `info/`: a checksum and JSON. One that is lost is made anew.

    info/asked          the end of the last pull from the dataset's source or peer
    info/verified       the last verification that left nothing out: up to which block it came, in one run or
                        in several, and which checks the last run made; or the last one that found faults
    info/pushed         the head that was pushed last
    info/slice-counts   how many slices are here (`transfer.slice_files`)

The first three are for `status` alone, and nothing is decided by them. Source: RFC-060.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from odfchain.errors import OdfchainError, StoreError
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import read_json, to_tree
from odfchain.storage import fsio
from odfchain.workspace.dataset_files import DatasetFiles

_MOST_BYTES = 4_096
T = TypeVar("T")


def keep(dataset: DatasetFiles, name: str, value: object) -> None:
    """Keep a note, in the place of the one before; on media that cannot be written there is none."""
    body, path = json.dumps(to_tree(value)).encode(), dataset.folder / "info" / name
    with contextlib.suppress(StoreError), fsio.replaced(path, mode=0o600, durable=False) as stream:
        stream.write(b"%08x %b" % (zlib.crc32(body), body))


def kept(dataset: DatasetFiles, name: str, kind: type[T]) -> T | None:
    """The note of a name; None where there is none, or it is damaged."""
    with contextlib.suppress(OdfchainError, ValueError):
        data = fsio.read_start(dataset.folder / "info" / name, _MOST_BYTES) or b""
        if int(data[:8], 16) == zlib.crc32(data[9:]):
            return read_json(kind, data[9:], _MOST_BYTES)
    return None


ASKED, VERIFIED, PUSHED = "asked", "verified", "pushed"


@dataclass(frozen=True, slots=True)
class Reminder:
    """A time; and for a verification the block up to which it came, and the checks that passed.

    With `faults` [count], these are the checks that failed, and `fault_block` is the first faulty block.
    """

    time: Timestamp
    head: Multihash | None = None
    sequence_number: int | None = None
    checks: tuple[int, ...] = ()
    faults: int = 0
    fault_block: int | None = None


def last_verified(dataset: DatasetFiles, head: Multihash) -> tuple[int, Reminder | None]:
    """How many blocks of the chain that ends at `head` were verified without a fault, and its last note."""
    found = kept(dataset, VERIFIED, Reminder)
    number = None if found is None else found.sequence_number
    if found is None or number is None or dataset.chain.hash_at(number, head) != found.head:
        return 0, None
    return 0 if found.faults else number + 1, found


def report_path(dataset: DatasetFiles) -> Path:
    """Where the last report of a dataset is kept (`odfchain.audit.report`)."""
    return dataset.folder.parent.parent / "reports" / f"{dataset.folder.name}.json"


def forget_faults(dataset: DatasetFiles) -> None:
    """Files were looked at anew and are good: what a verification said of them before is out of date."""
    if (found := kept(dataset, VERIFIED, Reminder)) is not None and found.faults:
        fsio.remove_quietly(dataset.folder / "info" / VERIFIED)
        fsio.remove_quietly(report_path(dataset))
