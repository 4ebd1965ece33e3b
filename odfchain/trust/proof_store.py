"""Where a workspace keeps proofs of two histories, and when and where it met them.

evidence/<dataset id>/<name>.json       the proof: `odfchain.trust.two_histories`; never changed
evidence/<dataset id>/<name>.seen       one line for each place: `<time> <URL>`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import InvalidIdError, OdfchainError, StoreError
from odfchain.ids.did import DatasetId
from odfchain.ids.multibase import encode_base16
from odfchain.limits import ATTEST
from odfchain.model.timestamp import Timestamp
from odfchain.store import fsio
from odfchain.text import one_line
from odfchain.trust.files import read_bounded
from odfchain.trust.two_histories import Evidence, read_evidence

_SEEN_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Sighting:
    """When a proof was met, and at which peer."""

    time: Timestamp
    where: str


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    """A proof that is kept; None, and what is wrong, where its file is damaged."""

    path: Path
    evidence: Evidence | None
    sightings: tuple[Sighting, ...]
    problem: str | None = None


def read_evidence_file(path: Path) -> Evidence:
    """The proof in a file, checked.

    Raises:
        StoreError: there is no such file, or it cannot be read.
    """
    data = read_bounded(path, ATTEST.evidence_bytes)
    if data is None:
        raise StoreError(f"{path}: there is no such file")
    return read_evidence(data, str(path))


@dataclass(frozen=True, slots=True)
class EvidenceStore:
    """The proofs of one workspace; `folder` is its `evidence` folder."""

    folder: Path

    def keep(self, evidence: Evidence, where: str, time: Timestamp) -> Path:
        """Durably keep a proof and where it was met; what is kept of the same heads already stays."""
        folder = self.folder / encode_base16(evidence.dataset_id.to_bytes())
        path = folder / f"{evidence.name}.json"
        fsio.make_folder(folder)
        with fsio.locked(self.folder / ".lock"):
            if not fsio.create_file(path, evidence.to_bytes()) and not _is_sound(path):
                fsio.replace_file(path, evidence.to_bytes())
            known = _sightings(path)
            if where not in {s.where for s in known} and len(known) < ATTEST.evidence_sightings:
                lines = [f"{s.time} {s.where}\n" for s in (*known, Sighting(time, one_line(where, 500)))]
                fsio.replace_file(path.with_suffix(".seen"), "".join(lines).encode())
        return path

    def list(self, dataset_id: DatasetId | None = None) -> list[KeptEvidence]:
        """Every proof, or those of one dataset, ordered by file; damaged ones are among them."""
        return [_load(path) for path in self._paths(dataset_id)]

    def _paths(self, dataset_id: DatasetId | None) -> Iterator[Path]:
        wanted = "*" if dataset_id is None else encode_base16(dataset_id.to_bytes())
        with fsio.storage_errors(self.folder):
            yield from sorted(self.folder.glob(f"{wanted}/[0-9]*.json"))


def _load(path: Path) -> KeptEvidence:
    try:
        evidence = read_evidence_file(path)
    except OdfchainError as error:
        return KeptEvidence(path, None, _sightings(path), error.message)
    return KeptEvidence(path, evidence, _sightings(path))


def _is_sound(path: Path) -> bool:
    return _load(path).evidence is not None


def _sightings(path: Path) -> tuple[Sighting, ...]:
    """Where a proof was met, as far as that can be read: nothing depends on it."""
    try:
        data = read_bounded(path.with_suffix(".seen"), _SEEN_BYTES) or b""
    except StoreError:
        return ()
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        time, _, where = line.partition(" ")
        try:
            found.append(Sighting(Timestamp.parse(time), one_line(where, 500)))
        except InvalidIdError:
            continue
    return tuple(found)
