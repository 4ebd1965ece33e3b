"""Queries written for other engines, as Spark SQL: what is portable is translated, the rest is refused.

DataFusion and RisingWave speak a dialect close to PostgreSQL; unquoted names keep their case here, as they
do in the reference implementation. Flink's SQL reads like Spark's. What comes out passes the same gate as a
query written for Spark, so a wrong translation can be wrong, but not dangerous. Integers are divided without
remainder in all three, unlike in Spark: where the types of both sides are known the right division is
written, where they are not the query is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from odfchain.errors import QueryError
from odfchain.model.own_engine import OWN_ENGINE
from odfchain.sql.messages import ONE_SELECT
from odfchain.text import excerpt, located, one_line

if TYPE_CHECKING:
    from sqlglot import exp

Schemas: TypeAlias = dict[str, dict[str, str]]
"""Columns and their types in Spark SQL, by table."""

NATIVE = "spark"
ENGINES = ("spark", "datafusion", "flink", "risingwave")
_RENAMED = {
    "to_timestamp_seconds": "timestamp_seconds",
    "to_timestamp_millis": "timestamp_millis",
    "to_timestamp_micros": "timestamp_micros",
    "strpos": "instr",
    "array_length": "array_size",
}


def check_engine(engine: str) -> str:
    """The name of a known engine's dialect.

    Raises:
        QueryError: it is none of the four, nor the name of this project's own.
    """
    if engine == OWN_ENGINE:
        return NATIVE
    if engine not in ENGINES:
        known = ", ".join((OWN_ENGINE, *ENGINES))
        raise QueryError(f"unknown query engine `{one_line(engine, 40)}`", hint=f"engines are {known}")
    return engine


def to_spark(engine: str, sql: str, schemas: Schemas | None, label: str) -> str:
    """The query in Spark SQL; without schemas, divisions are left for the first run to decide.

    Raises:
        QueryError: the text is not one query of this engine, or has no equal in Spark SQL.
    """
    import sqlglot
    from sqlglot import errors

    try:
        tree = _one_query(sqlglot.parse(sql, read=_dialect(engine)), label)
        _rename(tree, label)
        if schemas is not None:
            _divide(tree, schemas, engine, label)
        return str(tree.sql(dialect=_target(), unsupported_level=errors.ErrorLevel.RAISE, comments=False))
    except errors.ParseError as error:
        raise _syntax(error, engine, label, sql) from error
    except errors.UnsupportedError as error:
        raise QueryError(
            f"{label}: has no equal in Spark SQL: {one_line(str(error))}",
            hint=f"write the query with engine: {OWN_ENGINE}",
        ) from error
    except QueryError:
        raise
    except RecursionError as error:
        raise QueryError(f"{label}: is nested too deeply", hint="split it into steps") from error
    except Exception as error:  # a translator of any text: whatever it trips over is the query's
        raise QueryError(
            f"{label}: cannot be read as {engine} SQL: {one_line(str(error))}",
            hint=f"write it with engine: {OWN_ENGINE}",
        ) from error


def _one_query(trees: list[Any], label: str) -> Any:
    from sqlglot import exp

    queries = [tree for tree in trees if tree is not None]
    if len(queries) != 1 or not isinstance(queries[0], exp.Query):
        raise QueryError(f"{label}: is not one query", hint=ONE_SELECT)
    return queries[0]


def _syntax(error: Any, engine: str, label: str, query: str) -> QueryError:
    details = error.errors[0] if error.errors else {}
    line, column = details.get("line"), details.get("col")
    fragment = one_line(str(details.get("highlight") or ""), 40)
    at = f" near `{fragment}`" if fragment else ""
    said = details.get("description") or one_line(str(error).partition("\n")[0])
    if line is None or column is None:
        return QueryError(f"{label}: not valid {engine} SQL{at}: {said}")
    begin = max(1, column - len(fragment) + 1)
    said = f"not valid {engine} SQL{at}: {said}"
    return QueryError(located(label, line, begin, said), excerpt=excerpt(query, line, begin))


@lru_cache
def _dialect(engine: str) -> Any:
    """How an engine's SQL is read."""
    from sqlglot import Dialect, exp
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.dialects.spark import Spark

    def time(dialect: str) -> Any:
        def build(args: list[Any]) -> Any:
            if len(args) == 1:  # a text, or seconds since 1970: a cast reads both
                return exp.Cast(this=args[0], to=exp.DataType.build("timestamptz"))
            return exp.StrToTime(this=args[0], format=Dialect.get_or_raise(dialect).format_time(args[1]))

        return build

    base: Any = Postgres.parser_class
    functions = base.FUNCTIONS

    class RisingWaveSql(Postgres):
        """PostgreSQL, but for its one-argument `to_timestamp`, which drops fractions when translated."""

        class Parser(base):  # type: ignore[misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = {**functions, "TO_TIMESTAMP": time("postgres")}

    class DataFusionSql(Postgres):
        """Close to PostgreSQL; the formats of times are those of strftime, the library's own."""

        class Parser(base):  # type: ignore[misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = {**functions, "TO_TIMESTAMP": time("")}

    class FlinkSql(Spark):
        """Close to Spark's SQL; double quotes do not make a text."""

        class Tokenizer(Spark.Tokenizer):
            QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]

    return {"datafusion": DataFusionSql, "risingwave": RisingWaveSql, "flink": FlinkSql}[engine]


@lru_cache
def _target() -> Any:
    from sqlglot.dialects.spark import Spark

    return Spark


def _rename(tree: exp.Query, label: str) -> None:
    """Functions that go by another name in Spark."""
    from sqlglot import exp

    for call in tree.find_all(exp.Anonymous):
        if (name := _RENAMED.get(str(call.this).lower())) is not None:
            call.set("this", name)
    for command in tree.find_all(exp.Command, exp.Parameter, exp.Placeholder):
        raise QueryError(f"{label}: `{one_line(command.sql(), 60)}` is not part of a query")


def _divide(tree: exp.Query, schemas: Schemas, engine: str, label: str) -> None:
    """Writes every `/` as the division that the engine would have made.

    The types are found on a copy, since finding them rewrites names; divisions keep their order.
    """
    from sqlglot import exp

    divisions = list(tree.find_all(exp.Div))
    if not divisions:
        return
    for number, division in enumerate(divisions):
        division.meta["number"] = number
    typed = _typed(tree, schemas)
    for number, division in enumerate(divisions):
        left, right = typed.get(number, (None, None))
        if left is True and right is True:
            division.replace(exp.IntDiv(this=division.this.copy(), expression=division.expression.copy()))
        elif left is False or right is False:
            division.set("typed", False)
            division.set("safe", False)
        else:
            raise QueryError(
                f"{label}: `{one_line(division.sql(), 60)}` may divide integers, which {engine} and Spark do "
                "differently",
                hint="cast one side, as in `cast(a as double) / b`, or write it with engine: odfchain-spark",
            )


def _typed(tree: exp.Query, schemas: Schemas) -> dict[int, tuple[bool | None, bool | None]]:
    """By number of a division: whether each side is an integer, None where that is not known."""
    from sqlglot import exp
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.schema import MappingSchema

    def integer(side: Any) -> bool | None:
        if side.type is None or side.is_type(exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL):
            return None
        return bool(side.is_type(*exp.DataType.INTEGER_TYPES))

    dialect = "spark, normalization_strategy=case_sensitive"
    try:
        schema = MappingSchema({name: dict(columns) for name, columns in schemas.items()}, dialect=dialect)
        found = qualify(
            tree.copy(),
            schema=schema,
            dialect=dialect,
            expand_alias_refs=False,
            expand_stars=False,
            isolate_tables=False,
            quote_identifiers=False,
            validate_qualify_columns=False,
        )
        found = annotate_types(found, schema=schema, dialect=dialect)
    except Exception:  # noqa: BLE001 - a translator of any text: then the types are not known
        return {}
    return {
        d.meta["number"]: (integer(d.left), integer(d.right))
        for d in found.find_all(exp.Div)
        if "number" in d.meta
    }
