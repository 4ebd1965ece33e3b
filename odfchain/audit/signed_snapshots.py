"""Checks 20 and 21, what they have in common: the signed lines about snapshots, and how they are judged.

The owner's word on a snapshot is held against him: what the dataset does not give is a fault. Anybody may add
a line, so another signer's wrong word is noted, and his name with it. Source: RFC-043.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odfchain.audit.checks import MANIFESTS
from odfchain.audit.report import Report
from odfchain.audit.walk import StoredChain, hash_at
from odfchain.errors import ObjectNotFoundError, OdfchainError
from odfchain.ids.did import DatasetId
from odfchain.manifest.published_objects import object_of, store_of_kind
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.text import one_line
from odfchain.trust.snapshot_lines import SNAPSHOTS, SnapshotLine

UNBELIEVED = "not all that the chain says can be believed"
"""Why nothing is made again from a chain with a fault."""
_SHOWN = 80


def signed_lines(
    dataset: DatasetFiles,
    chain: StoredChain,
    after: int,
    upto: int,
    dataset_id: DatasetId | None,
    report: Report,
) -> list[SnapshotLine]:
    """The valid lines about blocks `(after, upto]` of this chain, oldest first.

    What is no line is a fault of the file; one about a block that is not in the chain is a note.
    """
    path = dataset.folder / SNAPSHOTS.key
    try:
        content = SNAPSHOTS.content(dataset.folder)
    except OdfchainError as error:
        report.fault(MANIFESTS, path, error.message)
        return []
    if content is None or dataset_id is None:
        return []
    found: list[SnapshotLine] = []
    for line in SNAPSHOTS.lines_of(content, dataset_id):
        item = line.statement
        if item is None:
            report.fault(MANIFESTS, path, f"line {line.number}: {line.message}")
        elif chain.newest is not None and item.sequence_number < chain.newest:
            continue
        elif hash_at(chain, item.sequence_number) != item.block:
            report.notes.append(
                f"{item.signer} signed a {item.kind} of block {item.sequence_number} with the hash "
                f"{item.block}, which is not in this chain"
            )
        elif after < item.sequence_number <= upto:
            found.append(item)
    return sorted(found, key=lambda item: item.sequence_number)


def stored_document(
    dataset: DatasetFiles, line: SnapshotLine, check: int, report: Report
) -> tuple[bytes | None, bool]:
    """(the document that a line names, whether there is a file of it); damage is a fault of the copy."""
    try:
        return object_of(dataset, line), True
    except ObjectNotFoundError:
        return None, False
    except OdfchainError as error:
        place = store_of_kind(dataset, line.kind).locate(line.object)
        report.fault(check, place, error.message, line.sequence_number)
        return None, True


def disagree(dataset: DatasetFiles, line: SnapshotLine, check: int, what: str, report: Report) -> None:
    """Say that a line names something else than the dataset gives."""
    if line.by_owner:
        message = f"the {line.kind} {line.object} that the owner signed: {what}"
        report.fault(check, dataset.folder / SNAPSHOTS.key, message, line.sequence_number)
    else:
        block = line.sequence_number
        report.notes.append(
            one_line(
                f"the {line.kind} of block {block} that {line.signer} signed ({line.object}): {what}", 800
            )
        )


def first_difference(signed: Any, made: Any, path: str = "") -> str | None:
    """Where two documents differ, and what stands there; None where they are equal."""
    if isinstance(signed, Mapping) and isinstance(made, Mapping):
        for name in sorted({*signed, *made}):
            inner = f"{path}.{name}" if path else str(name)
            if name not in signed or name not in made:
                return f"{one_line(inner, 200)} is {'missing' if name in made else 'too much'}"
            if (found := first_difference(signed[name], made[name], inner)) is not None:
                return found
        return None
    if isinstance(signed, Sequence) and isinstance(made, Sequence) and not isinstance(signed, str):
        for index, (one, other) in enumerate(zip(signed, made, strict=False)):
            if (found := first_difference(one, other, f"{path}[{index}]")) is not None:
                return found
        if len(signed) != len(made):
            return f"{one_line(path, 200)} has {len(signed):,} items, there are {len(made):,}"
        return None
    if type(signed) is type(made) and signed == made:
        return None
    one, other = (one_line(str(value), _SHOWN) for value in (signed, made))
    return f"{one_line(path, 200)} says {one}, it is {other}"
