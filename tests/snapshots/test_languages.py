"""Languages of texts: which rows are looked at, what is said of them, and what is said without the library."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pytest

from odfchain.api.settings import Configuration
from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.profiles import document, reader
from odfchain.profiles.document import LEAST_ROWS, MOST_ROWS, detected_languages
from odfchain.profiles.drift import DriftPolicy, compare_profiles
from odfchain.profiles.reader import library
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
    monkeypatch.setattr(reader, "LIBRARY", "a-library-that-nobody-has")
    assert canonical_bytes(profile_of_table(table, languages=True)) == canonical_bytes(silent)
    library.cache_clear()


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reader, "LIBRARY", "a-library-that-nobody-has")
    library.cache_clear()
    yield
    library.cache_clear()


LIMITED = DriftPolicy(min_rows=0, limits={"languages": 0.1})


def test_only_a_policy_judges_languages() -> None:
    # without one a verdict would depend on which packages are installed
    before, after = (
        profile_of_table(pa.table({"text": [text] * 12}), languages=True) for text in (ENGLISH, GERMAN)
    )
    verdicts = [
        {line.metric: line.verdict for line in compare_profiles(before, after, policy).lines}["languages"]
        for policy in (DriftPolicy(min_rows=0), LIMITED)
    ]
    assert verdicts == ["note", "BREACH"]


@pytest.mark.usefixtures("no_library")
def test_a_limit_of_languages_needs_the_package(tmp_path: Path) -> None:
    made = profile_of_table(pa.table({"text": [GERMAN] * 12}), languages=True)
    with pytest.raises(EngineError, match="without the package that tells languages") as caught:
        compare_profiles(made, made, DriftPolicy(columns={"text": {"languages": 0.2}}))
    assert caught.value.hint == "pip install 'odfchain[languages]'"
    assert not compare_profiles(made, made).breaches
    Workspace.init(tmp_path)
    (tmp_path / "drift.yaml").write_text(
        "kind: DriftPolicy\nversion: 1\ncontent: {defaults: {languages: 0.1}}\n"
    )
    with pytest.raises(EngineError, match=r"drift\.yaml"):
        Configuration(tmp_path / ".odfchain").set("snapshots.guard", ["drift.yaml"])


def test_a_profile_made_without_the_package_is_not_compared_by_a_limit() -> None:
    told, silent = (
        profile_of_table(pa.table({"text": [GERMAN] * 12}), languages=is_told) for is_told in (True, False)
    )
    with pytest.raises(EngineError) as caught:
        compare_profiles(told, silent, LIMITED)
    assert "compute the profile again" in (caught.value.hint or "")
