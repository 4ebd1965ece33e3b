"""The gate's rules that need no Spark: what text becomes a time, and what depends on the Java at hand."""

from __future__ import annotations

from typing import Any

import pytest

from odfchain.spark.query_gate import shown_count
from odfchain.spark.query_refusals import (
    deciding_arguments,
    has_text,
    holds,
    java_dependence,
    names_zone,
    option_dependence,
    pattern_dependence,
    reads_times,
    spark_error,
    spells_date,
    times_in,
    unformatted,
)
from tests.kit.support import fixture

CASES = fixture("queries/rules.yaml")


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def struct(*types: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


READS = [
    ("string", "timestamp", True),
    ("string", "time(6)", True),
    ("varchar(9)", "date", True),
    ("char(9)", "timestamp_ntz", True),
    ("string collate UNICODE", "date", True),
    ("variant", "timestamp", True),
    ("variant", array("date"), True),
    ("variant", array("string"), False),
    ("string", "int", False),
    ("timestamp", "date", False),
    ("date", "string", False),
    (array("string"), array("timestamp"), True),
    (array("date"), array("timestamp"), False),
    (array("string"), "string", False),
    (struct("string", "date"), struct("string", "timestamp"), False),
    (struct("int", "string"), struct("int", "timestamp"), True),
    (mapping("string", "int"), mapping("timestamp", "int"), True),
    (mapping("string", array(struct("string"))), mapping("string", array(struct("date"))), True),
    (mapping("string", "date"), mapping("string", "timestamp"), False),
    ("time(6)", "timestamp", True),
    ("time(0)", "timestamp_ntz", True),
    ("time(6)", "time(0)", False),
    ("time(6)", "string", False),
    (array("time(6)"), array("timestamp"), True),
    (struct("time(6)", "date"), struct("time(6)", "timestamp"), False),
    ("void", "timestamp", False),
]


@pytest.mark.parametrize(("source", "target", "expected"), READS)
def test_a_cast_is_judged_by_its_types_at_every_depth(source: Any, target: Any, expected: bool) -> None:
    assert reads_times(source, target) is expected


def test_types_say_what_they_hold() -> None:
    assert times_in(struct("int", array(mapping("date", "timestamp_ntz")))) == {"date", "timestamp_ntz"}
    assert times_in("time(3)") == {"time"}
    assert times_in("interval day to second") == frozenset()
    assert has_text(array(struct("int", "varchar(3)")))
    assert not has_text(struct("int", array("binary")))
    assert holds(mapping("string", array("double")), {"float", "double"})
    assert not holds({"type": "struct", "fields": [{"name": "double", "type": "int"}]}, {"double"})


@pytest.mark.parametrize(("kind", "options", "missing"), CASES["times_of_a_schema_need_formats"])
def test_times_of_a_schema_need_formats(kind: Any, options: dict[str, str], missing: str | None) -> None:
    assert unformatted(kind, options) == missing


DATES = ["2020-01-01", " 2020-1-1 ", "2020", "+12020-01-01T10:00", "2020-01-01 10:00"]
CLOCK = ["10:00", "T10:00", "now", " Today", "", "20:00", "\u0662\u0660\u0662\u0660-01-01"]


@pytest.mark.parametrize(("text", "spelled"), [(t, True) for t in DATES] + [(t, False) for t in CLOCK])
def test_a_constant_begins_with_its_date(text: str, spelled: bool) -> None:
    assert spells_date(text) is spelled


@pytest.mark.parametrize(("text", "named"), CASES["named_zones_are_seen"])
def test_named_zones_are_seen(text: str, named: bool) -> None:
    assert names_zone(text) is named


@pytest.mark.parametrize(("function", "count", "text", "refused"), CASES["java"])
def test_arguments_that_decide(function: str, count: int, text: str | None, refused: bool) -> None:
    assert bool(deciding_arguments(function, count)) is (function != "abs")
    wrong = java_dependence(function, count, text) if deciding_arguments(function, count) else None
    assert (wrong is not None) is refused


def test_the_zone_of_a_time_that_is_made_stands_last() -> None:
    assert deciding_arguments("make_timestamp", 2) == deciding_arguments("make_timestamp", 6) == ()
    assert deciding_arguments("make_timestamp", 3) == (2,)
    assert deciding_arguments("try_make_timestamp", 7) == (6,)


@pytest.mark.parametrize(("options", "formats", "refused"), CASES["options_of_json_and_csv"])
def test_options_of_json_and_csv(options: dict[str, str], formats: bool, refused: bool) -> None:
    assert (option_dependence(options, formats=formats) is not None) is refused


@pytest.mark.parametrize(("pattern", "fault"), CASES["patterns_that_differ_between_versions_of_java"])
def test_patterns_that_differ_between_versions_of_java(pattern: str, fault: str | None) -> None:
    wrong = pattern_dependence(pattern)
    assert (wrong is None) if fault is None else (wrong is not None and f"`{fault}`" in wrong[0])


def test_counts_are_shown_short() -> None:
    assert shown_count(1 << 20) == "1,048,576"
    assert shown_count(1 << 5_000) == "about 10^1505"


def test_a_chain_of_with_that_spark_gives_up_on_is_said_in_words() -> None:
    said = "An error occurred while calling x.\n: java.lang.RuntimeException: Max iterations (100) reached for batch"
    error = spark_error(RuntimeError(said), "query")
    assert str(error).startswith("query: has more names that stand for one another")
