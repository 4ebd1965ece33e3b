"""In which languages the texts of a column are: the one part of a profile that rests on a library's floats.

The first 1,000 rows of the sample whose text has at least 20 letters are looked at ("Berlin" alone would be
Turkmen), each by its first 1,000 characters; fewer than ten say nothing. Who computes a profile again takes
the same version of the library, and accepts a difference of 0.005. Source: RFC-040.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from odfchain.profile.value_counts import LONGEST_SAMPLED

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

LIBRARY = "py3langid"
MOST_ROWS, LEAST_ROWS = 1_000, 10
LEAST_LETTERS = 20
_LISTED = 10


@lru_cache(maxsize=1)
def library() -> str | None:
    """Name and version of the library as a profile names it; None where it is not installed."""
    try:
        return f"{LIBRARY} {metadata.version(LIBRARY)}"
    except metadata.PackageNotFoundError:
        return None


def detected_languages(texts: pa.ChunkedArray) -> dict[str, float]:
    """The share of each language, the commonest first; `texts` are the rows of the sample, nearest first."""
    counts, rows = Counter[str](), 0
    known: dict[str, str] = {}
    for start in _long_enough(texts):
        if start not in known:
            known[start] = _identifier().classify(start)[0]
        counts[known[start]] += 1
        rows += 1
    if rows < LEAST_ROWS:
        return {}
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: count / rows for name, count in common[:_LISTED]}


def _long_enough(texts: pa.ChunkedArray) -> list[str]:
    """The first rows with enough letters; none where they are too few to say anything."""
    candidates = texts.filter(pc.greater_equal(pc.utf8_length(texts), LEAST_LETTERS))
    found: list[str] = []
    for chunk in candidates.chunks:
        for value in chunk:
            start: str = value.as_py()[:LONGEST_SAMPLED]
            if sum(map(str.isalpha, start)) >= LEAST_LETTERS:
                found.append(start)
                if len(found) == MOST_ROWS:
                    return found
    return found if len(found) >= LEAST_ROWS else []


@lru_cache(maxsize=1)
def _identifier() -> LanguageIdentifier:
    """One of our own: the library's may have been told to know some languages only."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415 - half a second

    return LanguageIdentifier.from_model_file(MODEL_FILE)
