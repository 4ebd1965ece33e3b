"""What can be wrong with a signature, in a word each: programs ask for it, messages explain it."""

from __future__ import annotations

from enum import StrEnum


class Problem(StrEnum):
    """Why a signature does not count."""

    MISSING = "missing"
    """There is none: it was never made, or stripped."""

    DAMAGED = "damaged"
    """Not the text of a signed statement: cut, changed, or written in another way than it is signed."""

    WRONG_TYPE = "wrong-type"
    """A statement of another kind."""

    WRONG_ALGORITHM = "wrong-algorithm"
    """Another algorithm than EdDSA, or none."""

    FOREIGN_HEADER = "foreign-header"
    """Members in the header that may redirect the check: a key, a URL, an extension."""

    WEAK_KEY = "weak-key"
    """A public key that anyone can sign for."""

    NOT_VERIFIED = "not-verified"
    """It was not made with the key that it names, or for other text."""

    OTHER_KEY = "other-key"
    """It was made by someone else than the dataset's owner."""

    OTHER_DATASET = "other-dataset"
    """It is of another dataset."""

    OTHER_HEAD = "other-head"
    """It is of another block with the same sequence number: two histories exist."""

    OTHER_REF = "other-ref"
    """It is of another branch."""

    STALE = "stale"
    """The branch has moved since."""

    OLDER_HEAD = "older-head"
    """It is of an earlier block."""

    NEWER_HEAD = "newer-head"
    """It is of a later block, which is not here."""

    TOO_OLD = "too-old"
    """It was made longer ago than the reader accepts: newer blocks may be withheld."""

    IN_FUTURE = "in-future"
    """It says that it was made at a time which has not come."""
