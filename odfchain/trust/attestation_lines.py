"""The attestations of a dataset: `attestations/audits.jws`, one signed line for each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from odfchain.ids.did import DatasetId
from odfchain.limits import ATTEST
from odfchain.trust.signed_lines import About, LineFile, SignedLine
from odfchain.trust.signed_statements import Attestation, read_attestation

Accept = Callable[[Attestation], bool]
"""Whether an attestation that was received is wanted, for instance because its head is in the chain."""

AttestationLine = SignedLine[Attestation]


def _about(found: Attestation) -> About:
    return About(found.dataset_id, found.auditor, found.head, found.sequence_number, found.time)


AUDITS = LineFile(
    key="attestations/audits.jws",
    one="an attestation",
    many="attestations",
    read=read_attestation,
    unverified=functools.partial(read_attestation, verified=False),
    about=_about,
    most_bytes=lambda: ATTEST.attestations_bytes,
    per_subject=lambda: ATTEST.attestations_per_head,
)
"""An auditor has one word on a head, the latest."""

ATTESTATIONS_KEY = AUDITS.key
read_lines = AUDITS.lines_of
add_attestation = AUDITS.add
merge_attestations = AUDITS.merge


def read_attestations(folder: Path, dataset_id: DatasetId) -> list[AttestationLine]:
    """Each line of a dataset folder's attestations, valid or not."""
    return AUDITS.lines_of(AUDITS.content(folder), dataset_id)
