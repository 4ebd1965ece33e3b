"""A dataset whose owner speaks of keys, and the times and keys of the cases of that."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from odfchain.chain.key_statements import Delegate, KeyHistory, Revocation, Scope, commitment
from odfchain.odf.identity import DatasetKey, DidKey
from odfchain.odf.times import Timestamp
from odfchain.storage.public_layout import SignedFile
from tests.kit.forge import DATASET, OWNER, later
from tests.kit.support import ROOT

LAPTOP, SUCCESSOR, THIEF = DatasetKey.generate(), DatasetKey.generate(), DatasetKey.generate()


@functools.cache
def _cases() -> dict[int, dict[str, Any]]:
    found = yaml.safe_load((ROOT / "fixtures" / "trust" / "key_cases.yaml").read_text(encoding="utf-8"))
    return {each["number"]: each for each in found}


def case(number: int) -> tuple[Any, Any]:
    """Input and expectation of a case."""
    return _cases()[number]["input"], _cases()[number]["expectation"]


def did(key: DatasetKey) -> DidKey:
    return DidKey(key.dataset_id.public_key)


def day(number: float) -> Timestamp:
    """So many days after the time of everything else."""
    return later(round(number * 86_400))


NOBODY = KeyHistory.of(DATASET, ())
"""No statement: the identity key alone."""


def delegated(
    history: KeyHistory = NOBODY,
    key: DatasetKey = LAPTOP,
    by: DatasetKey = OWNER,
    scopes: tuple[Scope, ...] = tuple(Scope),
) -> KeyHistory:
    """A key may sign for thirty days."""
    return history.with_statement(by, day(0), (Delegate.of(did(key), day(0), 30 * 86_400, scopes),))


def announced(history: KeyHistory = NOBODY, key: DatasetKey = SUCCESSOR) -> KeyHistory:
    return history.with_statement(OWNER, day(0), successor=commitment(did(key)))


def revoked(history: KeyHistory, on: float = 2) -> KeyHistory:
    return history.with_statement(OWNER, day(on), revoked=(Revocation(did(LAPTOP), day(on)),))


def joined(*histories: KeyHistory) -> KeyHistory:
    """All that was said, in the order of the histories."""
    return KeyHistory.of(DATASET, [line for each in histories for line in each.reached])


def put(folder: Path, history: KeyHistory) -> None:
    """The file of a published dataset."""
    path = folder / SignedFile.KEYS.value
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(history.content())
