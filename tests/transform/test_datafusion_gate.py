"""The corpus of attacks in the dialect of DataFusion: nothing comes through, and ordinary queries run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from odfchain.errors import EngineError, OdfchainError, QueryError
from tests.kit import query_corpus
from tests.kit.datafusion_steps import OneRow, apart, text_of
from tests.kit.support import FIXTURES

CORPUS: dict[str, Any] = yaml.safe_load(
    (FIXTURES / "queries" / "datafusion.yaml").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> OneRow:
    return OneRow(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("case", CORPUS["cases"], ids=lambda case: f"{case['number']} {case['title']}")
def test_cases(case: dict[str, Any], tables: OneRow, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    sql, expected = text_of(case["input"]).replace("{file}", str(canary)), case["expectation"]
    if isinstance(expected, int):
        assert tables.ask(sql) == expected
    else:
        with pytest.raises(QueryError) as found:
            tables.ask(sql)
        assert expected in str(found.value)
        # what a version does not allow is no fault of who recorded it
        assert found.value.refused == ("not allowed" in expected)
    assert not canary.exists()


def test_the_corpus_for_spark_means_no_harm_here(tables: OneRow, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    runs = {each["input"]: each["expectation"] for group in CORPUS["runs"] for each in group["queries"]}
    found = {}
    for sql in [*query_corpus.shared(), *(sql for _, sql in query_corpus.own(canary))]:
        if sql[:120] in CORPUS["slow"]:
            continue
        try:
            found[sql[:120]] = tables.ask(sql)
        except OdfchainError:
            continue
    assert found == runs
    assert not canary.exists()


@pytest.mark.parametrize("case", CORPUS["bounded"], ids=lambda case: f"{case['number']} {case['title']}")
def test_what_has_no_end_ends_with_its_process(case: dict[str, Any], tables: OneRow) -> None:
    walled = case["number"] % 2 == 0
    with apart(tables.folder, walled=walled, deadline=5.0, memory_mib=1_024) as engine:
        with pytest.raises((EngineError, QueryError)):
            tables.ask(case["input"], engine)
        assert not (tables.folder / "output").exists()
