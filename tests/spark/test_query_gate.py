"""The query gate: what untrusted SQL may not ask for is refused before anything executes."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from odfchain.errors import QueryError
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.spark import query_rules as functions
from odfchain.spark.plans import java_schema
from odfchain.spark.query import Queries, private_session
from odfchain.spark.query_gate import Gate, TableSize
from tests.kit.query_corpus import SCHEMA, TABLES, own, queries, shared

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE", "ci") in ("soak", "deep")


@pytest.fixture(scope="module")
def frame(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Rows in a file, as inputs are: a table of one has columns that are not shown (`_metadata`)."""
    path = str(tmp_path_factory.mktemp("corpus") / "in.parquet")
    session.createDataFrame([], SCHEMA).write.parquet(path)
    return session.read.parquet(path)


@contextmanager
def no_jobs(session: SparkSession) -> Iterator[None]:
    group = f"gate-{uuid.uuid4()}"
    session.sparkContext.setJobGroup(group, "must stay empty")
    try:
        yield
    finally:
        session.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert list(session.sparkContext.statusTracker().getJobIdsForGroup(group)) == []


def asked(session: SparkSession, sql: str) -> Queries:
    return Queries(session, TransformSql(engine="spark", query=sql), pytest.fail)


def run(session: SparkSession, frame: DataFrame, sql: str) -> DataFrame:
    return asked(session, sql).run(dict.fromkeys(TABLES, frame))


def passes(session: SparkSession, sql: str) -> bool:
    """Whether the query is not refused where only the names of tables are known."""
    try:
        asked(session, sql).check(TABLES)
    except QueryError:
        return False
    return True


def refused(session: SparkSession, frame: DataFrame, sql: str) -> QueryError:
    with no_jobs(session), pytest.raises(QueryError) as caught:
        run(session, frame, sql)
    assert is_clear(caught.value)
    return caught.value


def is_clear(error: QueryError) -> bool:
    said = str(error)
    return not any(part in said for part in ("\n", "\tat ", "Exception")) and len(said) < 500


@contextmanager
def one_gate(
    session: SparkSession, frame: DataFrame, *, replayed: bool = False
) -> Iterator[Callable[[str], object]]:
    """Asks for many queries as `run` does: a session with its tables for each is most of what that takes."""
    with private_session(session) as private, no_jobs(session):
        gate, schema = Gate(session, private, replayed=replayed), java_schema(session, frame.schema)
        sizes = {f.name(): max(1, f.dataType().sql().count(":")) for f in schema.fields()}
        for name in TABLES:
            gate.declare(name, schema, TableSize.of(sizes, 1))

        def ask(sql: str) -> object:
            (step,) = asked(session, sql)._steps(TABLES)
            return gate.resolve(step, gate.read(step))

        yield ask


def let_through(ask: Callable[[str], object], given: Iterable[str]) -> list[tuple[str, object]]:
    """What is not refused, or not clearly."""
    found: list[tuple[str, object]] = []
    for sql in given:
        try:
            ask(sql)
        except QueryError as error:
            found += [] if is_clear(error) else [(sql, error)]
        else:
            found.append((sql, "passed the gate"))
    return found


@pytest.mark.parametrize("corpus", ["files", "programs", "state", "chance", "clock"])
def test_the_rejection_corpus(session: SparkSession, frame: DataFrame, tmp_path: Path, corpus: str) -> None:
    given = [sql for category, sql in queries("gate", tmp_path / "canary") if category == corpus]
    assert len(given) > 20
    with one_gate(session, frame) as ask:
        assert let_through(ask, given) == []
    assert list(tmp_path.iterdir()) == []


def whole_corpus(canary: Path) -> list[str]:
    return [*shared(), *(sql for _, sql in own(canary))]


def test_the_corpus_is_refused_line_by_line(
    session: SparkSession, frame: DataFrame, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    given = whole_corpus(tmp_path / "canary")
    assert len(given) >= 2 * len(shared()) >= 60
    assert len(set(given)) == len(given)
    with one_gate(session, frame) as ask:
        assert let_through(ask, given) == []
        assert let_through(ask, ["SELECT a FROM input"]) != [], "what passes is seen"
    record_property("queries", len(given))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_the_corpus_is_refused_by_runs(session: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    """Each query in a session of its own, as a pull has it."""
    canary = tmp_path / "canary"
    gated = [sql for category, sql in queries("gate", canary) if category != "ordinary"]
    for sql in (*whole_corpus(canary), *gated):
        refused(session, frame, sql)
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_could_have_been_done(session: SparkSession, tmp_path: Path) -> None:
    """The corpus proves something: without the gate, Spark does these things."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    assert session.sql(f"SELECT * FROM text.`{secret}`").collect()[0][0] == "secret"
    assert session.sql("SELECT reflect('java.lang.System', 'getProperty', 'user.dir')").collect()[0][0]
    assert session.sql("SELECT '${system:user.dir}'").collect()[0][0] != "${system:user.dir}"
    assert session.sql("SELECT cast(concat('no', 'w') AS timestamp)").collect()[0][0].year > 2020


PLACES = [
    ("SELECT a,\n  rand() FROM input", "line 2, column 3: the function `rand` is random"),
    ("SELECT a FROM inptu", "line 1, column 15: there is no table `inptu`"),
    ("SELECT a FROM INPUT", "line 1, column 15: there is no table `INPUT`"),
    ("SELECT 'ü😀', bb FROM input", "query, line 1, column 14: there is no column `bb`"),
    ("SELECT a FRM input WHERE", "line 1, column 14: Syntax error at or near 'input'"),
    ("SELECT 'x', current_timestamp FROM input", "line 1, column 13: `current_timestamp` reads the clock"),
    ("SET a = b", "is a command, not a query"),
    ("SELECT summ(b) FROM input", "the function `summ` is not on the list"),
    ("SELECT * FROM t TABLESAMPLE (1 PERCENT)", "column 17: `TABLESAMPLE (1 PERCENT)` takes a random sample"),
    ("", "unexpected empty statement"),
    ("SELECT a FROM (WITH z AS (SELECT 1) SELECT * FROM z) q, z", "`z` cannot be found"),
]


@pytest.mark.parametrize(("sql", "expected"), PLACES)
def test_a_refusal_says_where_and_what(
    session: SparkSession, frame: DataFrame, sql: str, expected: str
) -> None:
    assert expected in str(refused(session, frame, sql))


def test_refusals_say_what_to_do_instead(session: SparkSession, frame: DataFrame) -> None:
    assert refused(session, frame, "SELECT * FROM inptu").hint == "did you mean `input`?"
    assert refused(session, frame, "SELECT summ(b) FROM input").hint == "did you mean sum?"
    assert "row_number()" in str(refused(session, frame, "SELECT monotonically_increasing_id()").hint)


BOUNDS = [
    pytest.param("SELECT '" + "x" * (64 << 10) + "'", "longer than 64 KiB", id="text"),
    pytest.param("SELECT " + "(" * 101 + "1" + ")" * 101, "100 brackets", id="brackets"),
    pytest.param("SELECT" + " NOT" * 5_000 + " true", "too deeply|too complex", id="parser's stack"),
    pytest.param("SELECT " + ",".join(["1"] * 12_000), "10,000 nodes", id="nodes"),
    pytest.param("SELECT \ud800", "not valid Unicode", id="surrogate"),
]


@pytest.mark.parametrize(("sql", "message"), BOUNDS)
def test_bounds(session: SparkSession, frame: DataFrame, sql: str, message: str) -> None:
    assert re.search(message, str(refused(session, frame, sql)))


def test_ordinary_sql_passes(session: SparkSession, frame: DataFrame) -> None:
    for sql in [sql for category, sql in queries("gate") if category == "ordinary"]:
        with no_jobs(session):
            run(session, frame, sql)


def test_every_listed_function_exists_and_is_deterministic(session: SparkSession) -> None:
    """A name that Spark does not know would be a gap in the list, or a slip in it."""
    registry = getattr(session._jvm.org.apache.spark.sql.catalyst.analysis, "FunctionRegistry$")
    built_in = getattr(registry, "MODULE$").expressions()
    missing = {n for n in functions.ALL_NAMES if not built_in.contains(n)}
    assert missing <= {"range", "||", "!=", "<>", "case"}
    assert functions.PLAIN_NAMES.isdisjoint(
        functions.ORDERED_NAMES | functions.SORTED_NAMES | set(functions.UNLISTED)
    )


TOKENS = """SELECT FROM WHERE ( ) , * a b input t WITH AS JOIN ON GROUP BY ORDER 1 'x' "y" `z` -- /* */ ; :: -> |>
? :p $ @ \\ rand() reflect( current_date text.`/etc/passwd` TRANSFORM USING VALUES CASE WHEN END NULL OVER WINDOW
LATERAL VIEW SET DROP INSERT é 😀 \x00 0x1 1e400 [ ] { } DATE TIMESTAMP INTERVAL 'now'"""
WORDS = st.sampled_from(TOKENS.split())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sql=st.one_of(st.lists(WORDS, max_size=12).map(" ".join), st.text(max_size=40)))
def test_any_text_passes_or_is_a_query_error(session: SparkSession, sql: str) -> None:
    try:
        asked(session, sql).check(TABLES)
    except QueryError as error:
        assert "\n" not in str(error)
        json.dumps(str(error))


def test_a_check_without_data_finds_what_names_alone_can_tell(session: SparkSession) -> None:
    asked(session, "SELECT whatever FROM `com.acme.readings-v2`").check(["com.acme.readings-v2"])
    for sql, message in (
        ("SELECT 1 FROM readings", "there is no table `readings`"),
        ("SELECT rand()", "`rand` is random"),
    ):
        with pytest.raises(QueryError, match=message):
            asked(session, sql).check(["input"])


def test_other_tables_of_the_session_cannot_be_reached(session: SparkSession, frame: DataFrame) -> None:
    secret: Any = session.createDataFrame([("secret",)], "s string")
    secret.createOrReplaceTempView("gate_secret")
    secret.createOrReplaceGlobalTempView("gate_secret")
    try:
        for name in ("gate_secret", "global_temp.gate_secret"):
            assert "there is no table" in str(refused(session, frame, f"SELECT * FROM {name}"))
        hidden = "SELECT * FROM (WITH gate_secret AS (SELECT 1) SELECT * FROM gate_secret) q, gate_secret"
        assert "cannot be found" in str(refused(session, frame, hidden))
    finally:
        session.catalog.dropTempView("gate_secret")
        session.catalog.dropGlobalTempView("gate_secret")


def recomputed(session: SparkSession, frame: DataFrame, sql: str) -> str | None:
    """What is wrong with how the query of a derivative is refused, which others compute again; None when all is well."""
    return wrong(lambda sql: asked(session, sql).resolved(dict.fromkeys(TABLES, frame.schema), views={}), sql)


def wrong(ask: Callable[[str], object], sql: str) -> str | None:
    try:
        ask(sql)
    except QueryError as error:
        return None if is_clear(error) and error.hint else f"unclear: {error}"
    return "passed the gate"


def test_what_nobody_can_repeat_is_refused_in_derivatives(session: SparkSession, frame: DataFrame) -> None:
    given = [sql for _, sql in queries("not_repeatable")]
    assert len(given) == len(set(given)) >= 60
    with one_gate(session, frame, replayed=True) as ask:
        found = {sql: what for sql in given if (what := wrong(ask, sql))}
    assert found == {}
    # in a session of its own, as a pull has it
    some = given[:: 1 if THOROUGH else 10]
    found = {sql: what for sql in some if (what := recomputed(session, frame, sql))}
    assert found == {}


@pytest.mark.soak
def test_what_nobody_can_repeat_is_refused_only_there(session: SparkSession, frame: DataFrame) -> None:
    for _, sql in queries("not_repeatable"):
        run(session, frame, sql)


@pytest.mark.soak
def test_refusals_are_not_too_wide(session: SparkSession, frame: DataFrame) -> None:
    given = [sql for _, sql in queries("allowed")]
    assert len(given) == len(set(given)) >= 30
    passed = "passed the gate"
    wide = {sql: what for sql in given if (what := recomputed(session, frame, sql)) != passed}
    assert wide == {}
    # the way of a query that nobody computes again is that of the refused ones above
    for sql in given[:: 1 if THOROUGH else 3]:
        run(session, frame, sql)


def test_what_is_refused_for_its_size_is_refused_at_once(session: SparkSession, frame: DataFrame) -> None:
    """Also where the tables are not known: nothing is built to find out how large it would be."""
    large = [sql for category, sql in own(Path("x")) if category == "size"]
    by_tables = ("struct(", "*, *", "CROSS JOIN", "GROUPING SETS (ROLLUP")
    passed = [sql for sql in large if passes(session, sql)]
    assert [sql for sql in passed if not any(part in sql for part in by_tables)] == []


def test_steps_that_double_are_counted_together(session: SparkSession, frame: DataFrame) -> None:
    steps = [SqlQueryStep(alias="s0", query="SELECT a FROM input")]
    for n in range(1, 14):
        query = f"SELECT * FROM s{n - 1} UNION ALL SELECT * FROM s{n - 1}"
        steps.append(SqlQueryStep(alias=f"s{n}", query=query))
    transform = TransformSql(engine="spark", queries=(*steps, SqlQueryStep(query="SELECT a FROM s13")))
    with pytest.raises(QueryError, match=r"query step \d+ .*grows to .* nodes as a plan"):
        Queries(session, transform).run(dict.fromkeys(TABLES, frame))


@pytest.mark.soak
def test_most_of_it_is_refused_when_the_transform_is_declared(session: SparkSession, tmp_path: Path) -> None:
    """Without data only what the names of columns and types decide is left for the first run."""
    categories = {"files", "programs", "state", "scripts"}
    passed = [(category, sql) for category, sql in own(tmp_path / "canary") if passes(session, sql)]
    columns = ("_metadata", "session.x", "current_database", "CURRENT_CATALOG", "session_user")
    assert [s for c, s in passed if c in categories and not any(name in s for name in columns)] == []


def test_every_function_of_spark_that_is_on_no_list_is_refused_by_name(session: SparkSession) -> None:
    """The registry of this version of Spark is walked: what a later one adds is refused as well."""
    analysis = session._jvm.org.apache.spark.sql.catalyst.analysis
    wrong, seen = [], 0
    for registry, template in (
        ("FunctionRegistry$", "SELECT `{}`()"),
        ("TableFunctionRegistry$", "SELECT * FROM `{}`()"),
    ):
        listed = getattr(getattr(analysis, registry), "MODULE$").builtin().listFunction()
        names = {listed.apply(i).funcName() for i in range(listed.size())}
        for name in sorted(names - functions.ALL_NAMES):
            seen += 1
            try:
                asked(session, template.format(name)).check(TABLES)
            except QueryError as error:
                if f"`{name}" not in str(error) or (
                    "is not on the list" not in str(error) and name not in functions.UNLISTED
                ):
                    wrong.append((name, str(error)))
            else:
                wrong.append((name, "passed"))
    assert wrong == []
    assert seen > 100
