"""Sessions that somebody else has made: everything runs there, and they stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import odfchain as odf
from odfchain.spark.plans import jvm_of
from odfchain.spark.session import SAME_EVERYWHERE, SparkEngine, check_given
from tests.kit.support import derivative, manifest


@pytest.fixture
def given(engine: SparkEngine) -> SparkSession:
    """A user's session, with settings that would change what is recorded."""
    session = engine.session.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.caseSensitive", "false")
    return session


@pytest.mark.parametrize("queries", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_files_and_queries_run_in_a_session_that_is_given(
    tmp_path: Path, given: SparkSession, monkeypatch: pytest.MonkeyPatch, queries: bool
) -> None:
    monkeypatch.setattr(SparkEngine, "_start", lambda _: pytest.fail("another Spark was started"))
    monkeypatch.setattr(SparkEngine, "begin", lambda _: pytest.fail("another Spark was started"))
    odf.init(tmp_path)
    (tmp_path / "in.csv").write_text("city,population\nA,1\nB,2\n")
    with odf.open(tmp_path, spark=given) as workspace:
        workspace.add(manifest())
        workspace["cities"].ingest(tmp_path / "in.csv", event_time="2025-01-01T00:00:00Z")
        result = workspace["cities"]
        if queries:
            workspace.add(derivative("SELECT op, event_time, upper(city) AS city, population FROM cities"))
            result = workspace["derived"]
            result.pull()
        rows = result.scan(["event_time", "city"]).to_arrow().to_pylist()
        assert [(row["event_time"].isoformat(), row["city"]) for row in rows] == [
            ("2025-01-01T00:00:00+00:00", "A"), ("2025-01-01T00:00:00+00:00", "B"),
        ]  # fmt: skip
        result.verify(replay=queries).raise_if_faulty()
    assert given.range(3).count() == 3, "it is not stopped"
    assert given.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert given.conf.get("spark.sql.ansi.enabled") == "false"


@pytest.fixture
def java(given: SparkSession) -> Iterator[Any]:
    """`java.util` of the session's driver, whose defaults are put back."""
    java = jvm_of(given).java.util
    locale, zone = java.Locale.getDefault(), java.TimeZone.getDefault()
    yield java
    java.Locale.setDefault(locale)
    java.TimeZone.setDefault(zone)


def test_a_driver_of_another_locale_is_refused(tmp_path: Path, given: SparkSession, java: Any) -> None:
    check_given(given)
    odf.init(tmp_path)
    java.Locale.setDefault(java.Locale("tr", "TR"))
    java.TimeZone.setDefault(java.TimeZone.getTimeZone("Asia/Tokyo"))
    with pytest.raises(
        odf.errors.UsageError, match="Java is tr_TR; the time zone of the driver's Java is Asia"
    ) as caught:
        odf.open(tmp_path, spark=given)
    assert caught.value.hint == f'start Spark with --conf "spark.driver.extraJavaOptions={SAME_EVERYWHERE}"'
    java.Locale.setDefault(java.Locale("en", "US"))
    java.TimeZone.setDefault(java.TimeZone.getTimeZone("Etc/UTC"))
    check_given(given)


@pytest.mark.parametrize(
    ("conf", "fine"),
    [
        ({}, False),
        ({"spark.executor.extraJavaOptions": SAME_EVERYWHERE.replace("UTC", "CET")}, False),
        ({"spark.executor.extraJavaOptions": f"-Xss4m {SAME_EVERYWHERE}"}, True),
        ({"spark.executor.defaultJavaOptions": SAME_EVERYWHERE}, True),
    ],
)
def test_executors_need_the_same(
    given: SparkSession, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], fine: bool
) -> None:
    """Java of executors is not seen by the driver: what they were started with is looked at."""
    names = ("spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions")
    monkeypatch.setattr("odfchain.spark.session.is_local", lambda _: False)
    found = {n: v for n, v in given.sparkContext.getConf().getAll() if n not in names} | conf
    monkeypatch.setattr(given.sparkContext, "getConf", lambda: found)
    if fine:
        check_given(given)
        return
    with pytest.raises(
        odf.errors.UsageError, match=r"spark\.executor\.extraJavaOptions has no -Duser"
    ) as caught:
        check_given(given)
    assert "driver" not in str(caught.value.hint)
