"""Proofs that owners signed two histories, as files to be sent and checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from odfchain.errors import StoreError, UsageError
from odfchain.ids.multibase import encode_base16
from odfchain.store import fsio
from odfchain.trust.proof_store import read_evidence_file
from odfchain.trust.two_histories import Evidence

__all__ = ["export_evidence", "read_evidence_file"]


def export_evidence(proofs: Sequence[Evidence], target: Path) -> Iterator[Path]:
    """Copy one proof into a new file, or all into a folder; yields each file when it is written.

    Raises:
        UsageError: there are none.
        StoreError: a file exists already, or cannot be written.
    """
    if not proofs:
        raise UsageError("there is no proof to export")
    into_folder = target.is_dir() or len(proofs) > 1
    if into_folder:
        fsio.make_folder(target)
    for proof in proofs:
        name = f"{encode_base16(proof.dataset_id.to_bytes())}-{proof.name}.json"
        path = target / name if into_folder else target
        if not fsio.create_file(path, proof.to_bytes()):
            raise StoreError(f"{path}: the file exists already", hint="choose another name")
        yield path
