"""How often each value of a column occurs, for as long as there are few enough of them.

What is counted are keys: numbers as they are, times in their unit, dates as days, texts as a profile shows
them (long ones are cut, and told apart by a hash), everything else by its hash. So no value of megabytes is
held.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from odfchain.digest.row_hash import Numbers

MOST_VALUES = 16_384
"""So many distinct values are counted one by one; beyond that there are estimates."""
_GATHERED = 3 * MOST_VALUES
"""Counts that are gathered before equal keys are added up."""
LONGEST_SHOWN = 200
"""Characters of a text that a profile shows."""
LONGEST_SAMPLED = 1_000
"""Characters of a text that are kept in the sample of rows."""
_MARK = "…#"
_NO_NUMBERS = np.zeros(0, dtype=np.int64)


class ValueCounts:
    """Counts of keys; `add` in any order."""

    def __init__(self, kind: pa.DataType) -> None:
        self._keys = [pa.array([], kind)]
        self._numbers = [_NO_NUMBERS]
        self._gathered = 0

    def add(self, keys: pa.Array, numbers: Numbers) -> None:
        """These keys occur so many times more, each at least once; a key may be there twice."""
        self._keys.append(keys)
        self._numbers.append(numbers.astype(np.int64, copy=False))
        self._gathered += len(keys)

    @property
    def may_be_too_many(self) -> bool:
        """Whether it is time to add up what was gathered."""
        return self._gathered > _GATHERED

    @property
    def too_many(self) -> bool:
        """Whether there are more distinct keys than are counted."""
        return len(self.keys) > MOST_VALUES

    @property
    def keys(self) -> pa.Array:
        """The distinct keys."""
        self._settle()
        return self._keys[0]

    @property
    def numbers(self) -> Numbers:
        """How often each key occurs."""
        self._settle()
        return self._numbers[0]

    def _settle(self) -> None:
        if len(self._keys) > 1:
            both = pa.concat_arrays(self._keys).dictionary_encode()
            codes = both.indices.to_numpy(zero_copy_only=False)
            found = np.zeros(len(both.dictionary), dtype=np.int64)
            np.add.at(found, codes, np.concatenate(self._numbers))
            self._keys, self._numbers, self._gathered = [both.dictionary], [found], 0


def shown(texts: pa.Array) -> pa.Array:
    """Texts as a profile shows them: of long ones the beginning, and a hash of the whole text."""
    return _cut(texts, LONGEST_SHOWN)


def _cut(texts: pa.Array, most: int) -> pa.Array:
    return _replaced(texts, most, lambda text: text[:most] + _hash_of(text))


def sampled_texts(texts: pa.Array) -> pa.Array:
    """Texts as the sample of rows keeps them."""
    return _cut(texts, LONGEST_SAMPLED)


def shown_of_sampled(texts: pa.Array) -> pa.Array:
    """As `shown`, of texts that the sample of rows has kept."""

    def one(text: str) -> str:
        return text[:LONGEST_SHOWN] + (
            text[LONGEST_SAMPLED:] if len(text) > LONGEST_SAMPLED else _hash_of(text)
        )

    return _replaced(texts, LONGEST_SHOWN, one)


def _hash_of(text: str) -> str:
    return _MARK + xxhash.xxh64_hexdigest(text.encode(errors="surrogatepass"))


def _replaced(texts: pa.Array, most: int, one: Callable[[str], str]) -> pa.Array:
    long = pc.greater(pc.utf8_length(texts), most).fill_null(False)
    if not pc.any(long).as_py():
        return texts
    found = [one(text) for text in texts.filter(long).to_pylist()]
    return pc.replace_with_mask(texts, long, pa.array(found, texts.type))
