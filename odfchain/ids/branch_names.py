"""Names of branches: references beside the head.

    [a-z][a-z0-9]*(-[a-z0-9]+)*      at most 64 characters; not `head`, not `overwritten-…`

A name begins with a letter and has no dot, so it is never a number, a time, or one of the names with dots
that are kept free for other kinds of references. Nor may it begin like a block hash, in an encoding that has
no capital letters: all hashes in the others have some. Source: RFC-035.
"""

from __future__ import annotations

import re

from odfchain.errors import InvalidIdError
from odfchain.text import one_line

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", re.ASCII)
# how SHA3-256 of 32 bytes begins: in base16, base32, and the draft base36, which is not read but is written
_LIKE_A_HASH = re.compile(r"f1620[0-9a-f]*|bcyq[a-p][a-z2-7]*|kr[vw][0-9a-z]{50}", re.ASCII)
_MOST_CHARACTERS = 64


def is_branch_name(text: str) -> bool:
    """Whether a text may name a branch."""
    return (
        len(text) <= _MOST_CHARACTERS
        and _NAME.fullmatch(text) is not None
        and text != "head"
        and not text.startswith("overwritten-")
        and _LIKE_A_HASH.fullmatch(text) is None
    )


def check_branch_name(text: str) -> str:
    """The text, which may name a branch.

    Raises:
        InvalidIdError: it may not; the message says why.
    """
    if is_branch_name(text):
        return text
    shown = one_line(text)
    if text == "head" or text.startswith("overwritten-"):
        reason = "that name is used for something else"
    elif _LIKE_A_HASH.fullmatch(text):
        reason = "it looks like a block hash"
    elif len(text) > _MOST_CHARACTERS:
        reason = f"it has {len(text)} characters, at most {_MOST_CHARACTERS} are allowed"
    else:
        reason = "it is not lower-case letters and digits, in words joined by '-', that begin with a letter"
    raise InvalidIdError(
        f"{shown!r} cannot name a branch: {reason}", hint="a name is like fix-names or review-2"
    )
