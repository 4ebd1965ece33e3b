"""What JSON leaves open is refused with file and line: by one rule, for lines, documents and features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odfchain.errors import BadInputError
from odfchain.ingest.read_formats import open_input
from odfchain.odf.schema import parse_ddl
from odfchain.odf.sources import ReadStepNdJson
from odfchain.spark.documents import LineFile
from odfchain.spark.input_frames import first_bad_row
from odfchain.spark.jobs import explain
from odfchain.spark.json_values import RecordError, parse_object
from tests.kit.support import Result, manifest, unchanged

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.spark.session import SparkEngine

FIELDS = parse_ddl(("a BIGINT", "s STRING", "o STRUCT<x: INT>")).fields
AFTER = "something follows the JSON value, at column %s"
BAD = [
    ('{"a":1}{"a":2}', AFTER % "8: '{\"a\":2}'"),
    ('{"a":1} oops', AFTER % "9: 'oops'"),
    ('{"a":1}]', AFTER % "8: ']'"),
    ('{"a":1}\0', AFTER % r"8: '\x00'"),
    ('{"a":1} //x', AFTER % "9: '//x'"),
    ('{"a":1},', AFTER % "8: ','"),
    ('{"a":1,"a":1}', "key 'a' occurs twice in one object"),
    ('{"s":[{"x":1,"x":2}]}', "key 'x' occurs twice in one object"),
    ('{"a":NaN}', "not valid JSON: NaN is not a JSON number"),
    ('{"s":-Infinity}', "not valid JSON: -Infinity is not a JSON number"),
    ("{'a':1}", "not valid JSON: Expecting property name enclosed in double quotes at column 2"),
    ('{"a":01}', "not valid JSON: Expecting ',' delimiter at column 7"),
    ('{"a":1,}', "not valid JSON: Expecting property name enclosed in double quotes at column 8"),
    ('{"s":"x\ty"}', "not valid JSON: Invalid control character at column 8"),
    ('{"s":"\\x"}', "not valid JSON: Invalid \\escape at column 7"),
    ('{"s":"\\ud800"}', "not valid JSON: \\ud800 is half of a surrogate pair, without the other half"),
    ('{"\\udc00":1}', "not valid JSON: \\udc00 is half of a surrogate pair, without the other half"),
    ('{"s":' + "[" * 200 + "]" * 200 + "}", "nested more than 200 levels deep"),
    ('{"s":' + "[" * 100_000, "nested more than 200 levels deep"),
    ('{"a":' + "7" * 1_001 + "}", "a number of more than 1,000 digits"),
    ("\ufeff{}", "not valid JSON: Expecting value at column 1"),
    ("\x1c", "not valid JSON: Expecting value at column 1"),
    ("\xa0", "not valid JSON: Expecting value at column 1"),
    ('"x"', "not a JSON object"),
    ("null", "not a JSON object"),
    ('{"A":1}', "key 'A' differs from column 'a' only by case"),
    ('{"a":1,"A":2}', "key 'A' differs from column 'a' only by case"),
    ('{"o":{"X":1}}', "column `o`: key 'X' differs from column 'x' only by case"),
    ('{"o":[1]}', "column `o`: a value does not fit the nested type of its column: '[1]' where an object was expected"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "in"
    path.write_text('\ufeff{"a":1}\n \t\n' + line + '\n{"a":3}\n', encoding="utf-8", newline="")
    assert str(LineFile(path, parse_object).first_bad(FIELDS, "f.ndjson")) == f"f.ndjson: line 3: {message}"


def test_what_is_json_is_read_as_it_is_written() -> None:
    text = ' {"é":"\\ud83d\\ude00\\u0000","n":-0,"m":1.50e+400,"l":[{},null,[true]]}\r\n'
    assert parse_object(text) == {"é": "😀\0", "n": "-0", "m": "1.50e+400", "l": [{}, None, [True]]}
    assert len(parse_object('{"s":' + "[" * 199 + "]" * 199 + "}")) == 1


def test_keys_that_are_no_columns_are_left_out(tmp_path: Path) -> None:
    """Whatever they hold, they have to be JSON."""
    path = tmp_path / "in"
    path.write_text('{"a":1,"zip":{"b":[1]}}')
    assert LineFile(path, parse_object).first_bad(FIELDS, "f") is None
    path.write_text('{"a":1,"zip":{"b":1,"b":1}}')
    assert LineFile(path, parse_object).first_bad(FIELDS, "f") is not None
    with pytest.raises(RecordError, match="occurs twice"):
        parse_object('{"zip":1,"zip":1}')


# --- on Spark --------------------------------------------------------------------------------------


def read(engine: SparkEngine, path: Path, text: str, *ddl: str) -> str:
    """The rows, or why the file is refused, as the writer says it."""
    path.write_text(text, encoding="utf-8", newline="")
    opened = None
    try:
        step = ReadStepNdJson(ddl_schema=ddl or None)
        opened = open_input(lambda: engine.session, path, step, scratch=path.parent)
        assert opened is not None
        return str([tuple(r) for r in opened.frame.drop("__odfchain_row").collect()])
    except BadInputError as error:
        return str(error).removeprefix(f"{path}: ")
    except Exception as error:
        assert opened is not None
        found = first_bad_row(opened, frozenset()) or explain(error)
        return str(found).removeprefix(f"{path}: ")


def test_lines_on_spark_with_a_schema_and_without(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "in"
    dropped = '{"a":1}\n{"a":1}{"a":2}\n'
    assert read(engine, path, dropped, "a BIGINT") == "line 2: " + AFTER % "8: '{\"a\":2}'"
    assert read(engine, path, dropped) == "line 2: " + AFTER % "8: '{\"a\":2}'"
    apart = "differ only by case"
    assert read(engine, path, '{"a":1}\n\n{"A":1}\n') == f"line 3: the keys 'a' and 'A' {apart}"
    assert (
        read(engine, path, '{"o":[{"x":1}]}\n{"o":[{"y":1},{"X":2}]}\n')
        == f"line 2: the keys 'x' and 'X' {apart}"
    )
    unnamed = "line 2: a key is empty, which no column can be; declare a schema to leave it out"
    assert read(engine, path, '{"a":1}\n{"":1,"a":2}\n') == unnamed
    assert read(engine, path, '{"a":1}\n{"b":[{"":1}]}\n') == unnamed
    assert read(engine, path, '{"":1,"a":2}\n', "a BIGINT") == "[(2,)]"
    assert read(engine, path, '{"__odfchain_row":1}\n').startswith(
        "column '__odfchain_row': names that begin"
    )
    assert read(engine, path, '{"a":1}\r\n\r\n{"a":2}\r{"a":3}') == "[(1,), (2,), (3,)]"
    assert read(engine, path, '{"a":{},"b":1}\n') == "[('{}', 1)]", "no column is dropped"
    deep = '{"a":' + "[" * 40 + "]" * 40 + "}"
    assert read(engine, path, deep).startswith("line 1: column 'a': nested more than 32 levels deep")


NESTED = (
    "l ARRAY<INT>",
    "d ARRAY<DOUBLE>",
    "m ARRAY<DECIMAL(4,2)>",
    "t ARRAY<DATE>",
    "o STRUCT<x: INT, `y.z`: STRING>",
)


def test_nested_values_follow_the_rules_of_columns(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "in"
    good = '{"l":[1,null],"d":[1e3],"m":[1.250],"t":["2020-01-05"],"o":{"x":7,"y.z":{"k":1.10}}}'
    assert read(engine, path, good, *NESTED) == (
        "[([1, None], [1000.0], [Decimal('1.25')], [datetime.date(2020, 1, 5)], Row(x=7, y.z='{\"k\":1.10}'))]"
    )
    for bad, column in [
        ('{"l":[1,2.5]}', "l"), ('{"l":[3000000000]}', "l"), ('{"d":[1e400]}', "d"), ('{"m":[1.005]}', "m"),
        ('{"t":["10:00"]}', "t"), ('{"o":{"x":"y"}}', "o"),
    ]:  # fmt: skip
        assert read(engine, path, f"{{}}\n{bad}\n", *NESTED).startswith(f"row 2: column `{column}`: "), bad


def test_on_the_command_line(run_cli: Callable[..., Result], workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(kind="NdJson", name="n"))
    path = tmp_path / "x.ndjson"
    path.write_text('{"city":"A","population":1}\n{"city":"B","population":2} {"city":"C","population":3}\n')
    with unchanged(dataset.path):
        result = run_cli("-w", workspace.path, "ingest", "n", path)
    assert (result.code, result.out) == (3, "")
    assert f"error: {path}: line 2: something follows the JSON value, at column 29" in result.err
