"""Languages of texts: which rows are looked at, what is said of them, and what is said without the library."""

from __future__ import annotations

from importlib import metadata

import pyarrow as pa
import pytest

from odfchain.odf.canonical_json import canonical_bytes
from odfchain.profiles import document
from odfchain.profiles.document import LEAST_ROWS, MOST_ROWS, detected_languages, library
from tests.kit.made_profiles import profile_of_table

ENGLISH = "the quick brown fox jumps over the lazy dog"
GERMAN = "der schnelle braune Fuchs springt über den faulen Hund"
LONGEST_WITHOUT = "abcdefghij klmnopqrs 1234567890"
assert sum(map(str.isalpha, LONGEST_WITHOUT)) == 19


def column(*texts: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.string())])


def test_shares_of_languages_the_commonest_first() -> None:
    found = detected_languages(column(*[ENGLISH] * 9, *[GERMAN] * 3))
    assert found == {"en": 0.75, "de": 0.25}
    assert list(found) == ["en", "de"]


def test_rows_without_enough_letters_are_not_looked_at() -> None:
    short: list[str | None] = [None, "", "Berlin", LONGEST_WITHOUT] * 50
    assert detected_languages(column(*short, *[GERMAN] * (LEAST_ROWS - 1))) == {}
    assert detected_languages(column(*short, *[GERMAN] * LEAST_ROWS)) == {"de": 1.0}
    assert detected_languages(column()) == {}


def test_the_first_rows_of_the_sample_count() -> None:
    assert detected_languages(column(*[ENGLISH] * MOST_ROWS, *[GERMAN] * MOST_ROWS)) == {"en": 1.0}


def test_the_start_of_a_long_text_says_its_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "LONGEST_SAMPLED", len(ENGLISH))
    assert detected_languages(column(*[ENGLISH + GERMAN * 100] * LEAST_ROWS)) == {"en": 1.0}


def test_at_most_ten_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numbered:
        def classify(self, text: str) -> tuple[str, float]:
            return text[-2:], 0.0

    monkeypatch.setattr(document, "_identifier", Numbered)
    found = detected_languages(column(*[f"{ENGLISH} {n:02}" for n in range(12, 0, -1)]))
    assert found == {f"{n:02}": 1 / 12 for n in range(1, 11)}


def test_a_profile_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"text": [GERMAN] * 10, "number": range(10)})
    told, silent = profile_of_table(table, languages=True), profile_of_table(table)
    assert told["odf"]["languages"] == f"py3langid {metadata.version('py3langid')}" == library()
    assert told["column_stats"]["text"]["detected_languages"] == {"de": 1.0}
    assert "detected_languages" not in told["column_stats"]["number"]
    assert silent["odf"]["languages"] is None
    assert silent["column_stats"]["text"]["detected_languages"] == {}
    library.cache_clear()
    monkeypatch.setattr(document, "LIBRARY", "a-library-that-nobody-has")
    assert canonical_bytes(profile_of_table(table, languages=True)) == canonical_bytes(silent)
    library.cache_clear()
