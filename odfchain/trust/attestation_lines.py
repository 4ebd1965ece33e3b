"""The attestations of a dataset: `attestations/audits.jws`, one signed line for each.

They travel with the dataset, and anyone can add one, so nothing in the file is believed: each line is read
and judged by itself. An auditor has one word on a head, the latest. Lines are sorted, so that copies which
have exchanged theirs are equal, in whatever order they met. Where there is no room for all, those of trusted
auditors come first, then those that are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import SignatureError, StoreError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.limits import ATTEST
from odfchain.store import fsio
from odfchain.trust.files import read_bounded
from odfchain.trust.problems import Problem
from odfchain.trust.signed_statements import Attestation, read_attestation
from odfchain.trust.signing_keys import Did

ATTESTATIONS_KEY = "attestations/audits.jws"
"""Where they are in the dataset's folder, and in the simple transfer layout."""

_DAMAGED_LINES = 100
"""Bad lines after which a file is given up [count]: a million empty ones would cost a reader seconds."""

Accept = Callable[[Attestation], bool]
"""Whether an attestation that was received is wanted, for instance because its head is in the chain."""


@dataclass(frozen=True, slots=True)
class AttestationLine:
    """One line: the attestation, or what is wrong with it."""

    number: int
    text: bytes
    attestation: Attestation | None = None
    problem: Problem | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did: how many attestations came in, and what was not taken and why."""

    added: int
    refused: tuple[str, ...]


def read_lines(content: bytes | None, dataset_id: DatasetId) -> list[AttestationLine]:
    """Each line of an attestations file (None: there is no file), valid or not; nothing is raised for it."""
    if content is None:
        return []
    if len(content) > ATTEST.attestations_bytes:
        return [_bad(1, b"", f"more than {ATTEST.attestations_bytes} bytes of attestations")]
    *lines, rest = content.split(b"\n")
    found, damaged = [], 0
    for number, line in enumerate(lines, start=1):
        found.append(_read(number, line, dataset_id))
        damaged += found[-1].attestation is None
        if damaged == _DAMAGED_LINES and number < len(lines):
            found.append(_bad(number + 1, b"", f"after {damaged} bad lines the rest is not read"))
            return found
    if rest or not lines:
        found.append(_bad(len(lines) + 1, rest, "the file is empty or its last line is cut"))
    return found


def _read(number: int, line: bytes, dataset_id: DatasetId) -> AttestationLine:
    try:
        attestation = read_attestation(line)
    except SignatureError as error:
        return AttestationLine(number, line, None, Problem(error.problem), str(error))
    if attestation.dataset_id != dataset_id:
        message = f"an attestation of another dataset, {attestation.dataset_id}"
        return AttestationLine(number, line, None, Problem.OTHER_DATASET, message)
    return AttestationLine(number, line, attestation)


def _bad(number: int, text: bytes, message: str) -> AttestationLine:
    return AttestationLine(number, text, None, Problem.DAMAGED, message)


def read_attestations(folder: Path, dataset_id: DatasetId) -> list[AttestationLine]:
    """Each line of a dataset folder's attestations, valid or not.

    Raises:
        StoreError: the file cannot be read, or is not an ordinary file.
    """
    return read_lines(read_attestations_file(folder), dataset_id)


def read_attestations_file(folder: Path) -> bytes | None:
    """The content of a dataset folder's attestations as it stands, None when there is none.

    Raises:
        StoreError: it cannot be read, or is not an ordinary file.
    """
    return read_bounded(folder / ATTESTATIONS_KEY, ATTEST.attestations_bytes)


def add_attestation(folder: Path, dataset_id: DatasetId, text: str, *, trusted: Collection[Did] = ()) -> None:
    """Durably keep one attestation in a dataset's folder; it takes the place of the auditor's earlier one.

    Raises:
        SignatureError: it is not a valid attestation of this dataset.
        StoreError: there are too many already, the auditor has a later one, or it cannot be written; what is
            there stays.
    """
    line = _read(1, text.encode(), dataset_id)
    if line.attestation is None:
        raise SignatureError(line.problem or Problem.DAMAGED, line.message or "")
    merged = merge_attestations(folder, dataset_id, line.text + b"\n", trusted=trusted)
    if merged.refused:
        raise StoreError(f"{folder / ATTESTATIONS_KEY}: {merged.refused[0]}")


def merge_attestations(
    folder: Path,
    dataset_id: DatasetId,
    received: bytes,
    *,
    accept: Accept | None = None,
    trusted: Collection[Did] = (),
) -> Merged:
    """Durably take over the valid attestations of `received` beside those that are here.

    Damaged lines that are here are dropped when something is written.

    Raises:
        StoreError: the file cannot be read or written; what is there stays.
    """
    lines = read_lines(received, dataset_id)
    refused = [f"line {line.number}: {line.message}" for line in lines if line.attestation is None]
    wanted = [line for line in lines if line.attestation and (accept is None or accept(line.attestation))]
    if not wanted:
        return Merged(0, tuple(refused))
    path = folder / ATTESTATIONS_KEY
    fsio.make_folder(path.parent)
    with fsio.locked(folder / "info" / "lock"):
        here = [line for line in read_attestations(folder, dataset_id) if line.attestation]
        kept, more = joined(here, wanted, trusted)
        texts = {line.text for line in here}
        added = sum(line.text not in texts for line in kept)
        if added:
            fsio.replace_file(path, b"".join(line.text + b"\n" for line in kept))
    return Merged(added, tuple(refused + more))


def joined(
    here: Sequence[AttestationLine], wanted: Sequence[AttestationLine], trusted: Collection[Did] = ()
) -> tuple[Sequence[AttestationLine], list[str]]:
    """The valid lines of both within the bounds, sorted; and why others are not among them."""
    keys = {did.public_key for did in trusted}
    kept: dict[tuple[Multihash, bytes], AttestationLine] = {}
    refused: list[str] = []
    per_head: dict[Multihash, int] = {}
    size = 0
    for line in sorted((*here, *wanted), key=lambda line: _signer(line) not in keys):
        found = line.attestation
        assert found is not None  # noqa: S101 - both are valid lines
        key = (found.head, _signer(line))  # one key is one auditor, under either method
        old = kept.get(key)
        if old is not None and _age(old) >= _age(line):
            if line.text != old.text:
                refused.append(f"line {line.number}: {found.auditor} has a later word on block {found.head}")
            continue
        count = per_head.get(key[0], 0) + (old is None)
        larger = size + len(line.text) + 1 - (len(old.text) + 1 if old is not None else 0)
        if count > ATTEST.attestations_per_head:
            most = ATTEST.attestations_per_head
            refused.append(f"line {line.number}: block {found.head} has {most} attestations already")
        elif larger > ATTEST.attestations_bytes:
            refused.append(
                f"line {line.number}: no room for more than {ATTEST.attestations_bytes} bytes of attestations"
            )
        else:
            kept[key], per_head[key[0]], size = line, count, larger
    return sorted(kept.values(), key=_order), refused


def _signer(line: AttestationLine) -> bytes:
    assert line.attestation is not None  # noqa: S101
    return line.attestation.auditor.public_key


def _age(line: AttestationLine) -> tuple[int, bytes]:
    assert line.attestation is not None  # noqa: S101
    return line.attestation.time.epoch_ns, line.text


def _order(line: AttestationLine) -> tuple[int, bytes, bytes]:
    found = line.attestation
    assert found is not None  # noqa: S101
    return found.sequence_number, found.head.digest, _signer(line)
