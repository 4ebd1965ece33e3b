"""Text to values: a text means exactly one value of its type, or none."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column

from odfchain.errors import SchemaError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow_type
from odfchain.odf.enums import TimeUnit
from odfchain.odf.times import java_format
from odfchain.spark.java_formats import as_rfc3339
from odfchain.spark.session import SparkEngine
from odfchain.spark.text_values import TextRules, can_be_read, read_texts
from odfchain.spark.types import as_physical, carried_type
from tests.kit.spark_texts import kept, parse_text, too_fine

MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
UTC = dt.UTC
BAD = object()


def at(*args: int, ms: int = 0) -> dt.datetime:
    return dt.datetime(*args, microsecond=ms * 1000, tzinfo=UTC)


INTEGERS = {"0": 0, "7": 7, "-7": -7, "+7": 7, "007": 7, "": BAD, " 7": BAD, "7 ": BAD, "1.0": BAD, "1e3": BAD,
            "0x10": BAD, "1,000": BAD, "NaN": BAD, "--1": BAD, "७": BAD, "1_000": BAD, "7\n": BAD, "7\x00": BAD}  # fmt: skip

CASES: list[tuple[ds.DataType, dict[str, Any]]] = [
    (ds.DataTypeString(), {"": "", " a ": " a ", "ü😀": "ü😀"}),
    (ds.DataTypeBool(), {"true": True, "TRUE": True, "False": False, "t": BAD, "1": BAD, "yes": BAD, " true": BAD, "": BAD}),
    (ds.DataTypeInt8(), INTEGERS | {"127": 127, "128": BAD, "-128": -128, "-129": BAD}),
    (ds.DataTypeInt16(), INTEGERS | {"32767": 32767, "32768": BAD}),
    (ds.DataTypeInt32(), INTEGERS | {"2147483647": 2**31 - 1, "2147483648": BAD}),
    (ds.DataTypeInt64(), INTEGERS | {"9223372036854775807": 2**63 - 1, "9223372036854775808": BAD, "-9223372036854775808": -(2**63)}),
    (ds.DataTypeUInt8(), {"0": 0, "255": 255, "256": BAD, "-1": BAD, "-0": BAD, "+1": 1, "": BAD, "1.0": BAD, " 1": BAD}),
    (ds.DataTypeUInt32(), {"4294967295": 2**32 - 1, "4294967296": BAD}),
    (ds.DataTypeUInt64(), {"18446744073709551615": Decimal(2**64 - 1), "18446744073709551616": BAD, "9" * 30: BAD}),
    (ds.DataTypeFloat64(), {"1": 1.0, "-1.5": -1.5, "1e3": 1000.0, "1E-3": 0.001, ".5": 0.5, "5.": 5.0, "": BAD, "1d": BAD, "1f": BAD,
                            "1D": BAD, " 1": BAD, "1 ": BAD, "1,5": BAD, "abc": BAD, "Infinity": float("inf"), "-Infinity": float("-inf"),
                            "inf": float("inf"), "1e999": BAD, "-1e999": BAD, "1e-999": BAD, "0e999": 0.0, "0x1p3": BAD, "1\n": BAD, "\x0b1": BAD}),
    (ds.DataTypeFloat32(), {"1.5": 1.5, "abc": BAD}),
    (ds.DataTypeDecimal(precision=5, scale=2), {"1": Decimal("1.00"), "1.25": Decimal("1.25"), "1.2500": Decimal("1.25"), "1.255": BAD,
                                                "999.99": Decimal("999.99"), "1000": BAD, "-0.01": Decimal("-0.01"), "": BAD, ".": BAD,
                                                "1e2": BAD, " 1": BAD, "+1.5": Decimal("1.50"), "NaN": BAD}),
    (ds.DataTypeDate(), {"2020-02-29": dt.date(2020, 2, 29), "2021-02-29": BAD, "2020-1-1": BAD, "2020-01": BAD, "2020": BAD,
                         "2020-01-01T00:00:00": BAD, "01/02/2020": BAD, " 2020-01-01": BAD, "now": BAD, "epoch": BAD, "2020-01-01 ": BAD,
                         "0001-01-01": dt.date(1, 1, 1), "9999-12-31": dt.date(9999, 12, 31), "20200101": BAD, "": BAD, "2020-1-01\n": BAD}),
    (MS, {"2020-01-01": at(2020, 1, 1), "2020-01-01 10:00:00": at(2020, 1, 1, 10), "2020-01-01T10:00:00": at(2020, 1, 1, 10),
          "2020-01-01T10:00:00Z": at(2020, 1, 1, 10), "2020-01-01T10:00:00.1239Z": at(2020, 1, 1, 10, ms=123),
          "2020-02-29T23:59:59Z": at(2020, 2, 29, 23, 59, 59), "2020-02-30T10:00:00Z": BAD, "2020-01-01T24:00:00Z": BAD,
          "2020-01-01T10:60:00Z": BAD, "2020-01-01T10:00:60Z": BAD, "0001-01-01T00:00:00Z": at(1, 1, 1), "0000-12-31T00:00:00Z": BAD,
          "1582-10-10T00:00:00Z": at(1582, 10, 10), "2020-01-01T0:0+1:00Z": BAD, "2020-01-01T10:00:00z": BAD,
          "2020-01-01T10:00:00-01:00": at(2020, 1, 1, 11), "2020-01-01T10:00:00+05:30": at(2020, 1, 1, 4, 30),
          "1969-12-31T23:59:59.9999Z": at(1969, 12, 31, 23, 59, 59, ms=999), "10:00:00": BAD, "T10:00:00": BAD, "2020": BAD,
          "9/25/2022 1:02:03": BAD, "now": BAD, "yesterday": BAD, " 2020-01-01": BAD, "2020-13-01": BAD, "2020-01-01T25:00:00": BAD,
          "1577926923": BAD, "": BAD, "2020-01-01T10:00:00Zjunk": BAD, "2020-01-01T10:00:00Z\n": BAD, "\t2020-01-01": BAD}),
    (ds.DataTypeTime(unit=TimeUnit.MILLISECOND), {"10:11:12.345": 36672345, "10:11": 36660000, "00:00:00": 0, "24:00:00": BAD, "1:00:00": BAD,
                                                  "10:11:12.3456789": 36672345, "10:11\n": BAD, "": BAD, "10": BAD}),
    (ds.DataTypeTime(unit=TimeUnit.SECOND), {"10:11:12": 36672000}),  # recorded as milliseconds
    (ds.DataTypeTime(unit=TimeUnit.MICROSECOND), {"00:00:01.000001": 1_000_001}),
    (ds.DataTypeTime(unit=TimeUnit.NANOSECOND), {"00:00:01": 1_000_000_000}),
    (ds.DataTypeBinary(fixed_length=16), {"00112233-4455-6677-8899-aabbccddeeff": bytes.fromhex("00112233445566778899aabbccddeeff"),
                                          "00112233445566778899aabbccddeeff": BAD, "xyz": BAD, "": BAD}),
]  # fmt: skip


EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)


def run(engine: SparkEngine, data_type: ds.DataType, texts: list[str | None], rules: TextRules) -> list[Any]:
    if rules.formats(data_type):
        (written,) = by_spark(engine, texts, lambda text: [as_rfc3339(text, data_type, rules)])
        return run(engine, data_type, written, rules.without_formats)
    column = pa.array(texts, pa.string())
    found = read_texts(column, data_type, rules)
    values = plain(found.values)
    alone = [read_texts(column[i : i + 1], data_type, rules) for i in range(len(texts))]
    assert [repr(plain(each.values)[0]) for each in alone] == [repr(v) for v in values]
    bad = [False] * len(texts) if found.bad is None else found.bad.tolist()
    assert bad == [value is None and text is not None for value, text in zip(values, texts, strict=True)]
    assert bad == [each.bad is not None and bool(each.bad[0]) for each in alone]
    return values


def plain(values: pa.Array) -> list[Any]:
    return [
        v if v is None or not isinstance(v, dt.datetime) else v.astimezone(UTC) for v in values.to_pylist()
    ]


def by_spark(
    engine: SparkEngine, texts: list[str | None], read: Callable[[Column], list[Column]]
) -> list[list[Any]]:
    """What each column has for the texts, by one job."""
    from pyspark.sql import functions as F

    given = pa.table({"n": range(len(texts)), "text": pa.array(texts, pa.string())})
    frame = engine.session.createDataFrame(given)  # columns can be made once a session is there
    columns = [column.alias(f"v{n}") for n, column in enumerate(read(F.col("text")))]
    rows = frame.select("n", *columns).orderBy("n").collect()
    _, *found = zip(*rows, strict=True)
    return [[bytes(v) if isinstance(v, bytearray) else v for v in column] for column in found]


@pytest.mark.parametrize(
    ("data_type", "expected"), [pytest.param(t, e, id=f"{i}-{t.KIND}") for i, (t, e) in enumerate(CASES)]
)
def test_texts(engine: SparkEngine, data_type: ds.DataType, expected: dict[str, Any]) -> None:
    found = run(engine, data_type, [*expected, None], TextRules())
    assert found.pop() is None
    wanted = {text: None if value is BAD else value for text, value in expected.items()}
    assert dict(zip(expected, found, strict=True)) == wanted


def test_option_is_transparent(engine: SparkEngine) -> None:
    assert run(engine, ds.optional(ds.DataTypeInt32()), ["5", "x", None], TextRules()) == [5, None, None]


def test_custom_formats(engine: SparkEngine) -> None:
    rules = TextRules(date_format="dd/MM/yyyy", timestamp_format="dd.MM.yyyy HH:mm")
    assert run(engine, ds.DataTypeDate(), ["25/09/2022", "2022-09-25", "31/02/2022"], rules) == [
        dt.date(2022, 9, 25), None, None
    ]  # fmt: skip
    assert run(engine, MS, ["25.09.2022 10:30", "x"], rules) == [at(2022, 9, 25, 10, 30), None]


NOON = at(2022, 9, 5, 12, 30)


PATTERNS = [
    ("%Y-%m-%d %H:%M", ["2022-09-05 12:30", "2022-9-5 12:30"], ["2022-09-05", "2022-13-05 12:30", " 2022-09-05 12:30"]),
    ("%Y%m%d%H%M", ["202209051230"], ["20220905123", "2022-09-05 12:30"]),
    ("%FT%T%.fZ", ["2022-09-05T12:30:00.0Z", "2022-09-05T12:30:00.000000Z"], ["2022-09-05T12:30:00Z"]),
    ("%FT%T.%3f%z", ["2022-09-05T14:30:00.000+0200", "2022-09-05T12:30:00.000Z"], ["2022-09-05T12:30:00.000"]),
    ("%FT%T%:z", ["2022-09-05T14:30:00+02:00"], ["2022-09-05T14:30:00+0200"]),
    ("%b %-d, %Y %I:%M %p", ["Sep 5, 2022 12:30 PM"], ["Sep 5, 2022 13:30 PM", "September 5, 2022 12:30 PM"]),
    ("%d.%m.%y o'clock %R", ["05.09.22 o'clock 12:30"], ["05.09.22 12:30"]),
    ("%Y/%j %T", ["2022/248 12:30:00"], ["2022/367 12:30:00"]),
]  # fmt: skip


def test_formats_of_strftime(engine: SparkEngine) -> None:
    rules = [TextRules(timestamp_format=java_format(pattern)) for pattern, _, _ in PATTERNS]
    texts = [text for _, good, bad in PATTERNS for text in (*good, *bad)]
    written = by_spark(engine, [*texts], lambda text: [as_rfc3339(text, MS, each) for each in rules])
    for (pattern, good, bad), own in zip(PATTERNS, written, strict=True):
        mine = [own[texts.index(text)] for text in (*good, *bad)]
        found = run(engine, MS, mine, rules[0].without_formats)
        assert found == [NOON] * len(good) + [None] * len(bad), pattern


def test_every_letter_that_is_let_through_is_one_for_spark(engine: SparkEngine) -> None:
    rules = [TextRules(timestamp_format=java_format(letter)) for letter in "GyMLdDahHkKmsSzOXxZ"]
    found = by_spark(engine, ["nonsense"], lambda text: [as_rfc3339(text, MS, each) for each in rules])
    texts = [text for (text,) in found]
    assert run(engine, MS, texts, rules[0].without_formats) == [None] * len(rules)


def test_whole_numbers_as_times_only_where_the_format_says_so(engine: SparkEngine) -> None:
    ndjson = TextRules(integer_timestamps=True)
    assert run(engine, MS, ["1577926923", "-1", "2020-01-01", "9" * 18], ndjson) == [
        at(1970, 1, 19, 6, 18, 46, ms=923), at(1969, 12, 31, 23, 59, 59, ms=999), at(2020, 1, 1), None
    ]  # fmt: skip


@pytest.mark.parametrize("data_type", [ds.DataTypeDuration(unit=TimeUnit.SECOND), ds.DataTypeBinary()])
def test_types_without_a_text_form(engine: SparkEngine, data_type: ds.DataType) -> None:
    with pytest.raises(SchemaError, match=data_type.KIND):
        run(engine, data_type, ["x"], TextRules())


def test_not_a_number_is_a_float(engine: SparkEngine) -> None:
    found = run(engine, ds.DataTypeFloat64(), ["NaN", "nan"], TextRules())
    assert [str(v) for v in found] == ["nan", "nan"]


def by_rule(pattern: str, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def oracle(text: str) -> Any:
        if not re.fullmatch(pattern, text, re.ASCII):
            return None
        try:
            return convert(text)
        except (ValueError, OverflowError):
            return None

    return oracle


def int64(text: str) -> int | None:
    return int(text) if -(2**63) <= int(text) < 2**63 else None


def float64(text: str) -> float | None:
    """Neither more than a float holds, nor zero without being it."""
    value, digits = float(text), re.split("[eE]", text)[0].strip("+-0.")
    return None if math.isinf(value) or (value == 0 and digits) else value


def decimal(text: str) -> Decimal | None:
    value = Decimal(text)
    return value if value == round(value, 2) and abs(value) < 1000 else None


@pytest.mark.parametrize(
    ("data_type", "alphabet", "oracle"),
    [
        (ds.DataTypeInt64(), "0123456789+- .\n\te", by_rule(r"[+-]?[0-9]+", int64)),
        (ds.DataTypeFloat64(), "0123456789+-.eEdfxXIn \n", by_rule(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", float64)),
        (ds.DataTypeDecimal(precision=5, scale=2), "0012459+-. \n", by_rule(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", decimal)),
        (ds.DataTypeDate(), "001123- T\n", by_rule(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", dt.date.fromisoformat)),
    ],
)  # fmt: skip
def test_random_texts_mean_what_the_grammar_says(
    engine: SparkEngine, data_type: ds.DataType, alphabet: str, oracle: Callable[[str], Any]
) -> None:
    random = Random(7)
    texts = ["".join(random.choices(alphabet, k=random.randint(1, 6))) for _ in range(4_000)]
    if isinstance(data_type, ds.DataTypeDate):
        digits = "0123"
        texts += ["".join(random.choice(digits) if c == "9" else random.choice(f"{c}{c}{c}{c}{c} ") for c in "2099-19-39")
                  for _ in range(4_000)]  # fmt: skip
    found = run(engine, data_type, list(texts), TextRules())
    differing = {t: (f, oracle(t)) for t, f in zip(texts, found, strict=True) if f != oracle(t)}
    assert differing == {}
    assert sum(f is not None for f in found) > 50, "the sample is too poor"


PARTS = {name: texts.split("|") for name, texts in {
    "integer": "0|-1|1577926923|-62135596800000|-62135596800001|253402300799999|253402300800000|+5|1.5|9999999999999999999|2020",
    "day": "2020-02-29|2021-02-29|0001-01-01|9999-12-31|1969-12-31|2020-10-25|2020-1-05|2020-01-5",
    "clock": "|T10| 10:30|T10:30:59|T23:59:59.9|T00:00:00.000| 01:02:03.1234567|T10:00:00.123456789|T24:00:00|T1:2:3|T10:00:60|"
             "t10:00:00|T10:00:00.|T02:30:00",
    "zone": "||Z|z|+01:00|-05:30|+0100|+01|+1|+18:00|+18:01|+19:00| +01:00| UTC|GMT+2|UTC+01:30| Europe/Berlin|America/New_York|"
            " EST| PST|+01:00:30|x|+1:30|-00:00| Nowhere/At_All",
    "hour": "00|23|24|7|12",
    "minute": "00|59|60|5",
    "second": "|:00|:59|:60|:01.5|:01.123456789|:01.1234567891|:|:00.",
    "sign": "|+|-",
    "number": "0|1|007|65504|65505|3.4e38|3.5e38|1e400|1e-400|0e-999|1.7976931348623159e308|4.9e-324|1e-46|inf|Infinity|NaN|nan|INF|"
              ".5|5.|1e|0x10|1d|1_0|16777217|123456789012345678901234567890|0.1|2.50|99999.99|100000.00|1.005|255|256|127|128|-129|"
              "9223372036854775808|18446744073709551615|18446744073709551616",
    "truth": "true|TRUE|False|fAlSe|t|1|yes|ture|\u017f|",
}.items()}  # fmt: skip
SPELLED = {
    "time": ["day", "clock", "zone"],
    "clock": ["hour", "minute", "second"],
    "number": ["sign", "number"],
    "truth": ["truth"],
}


def spelled(kind: str, random: Random) -> str:
    """A text that is likely to mean something of a kind, or nearly."""
    if kind == "integer time" and random.random() < 0.3:
        return random.choice(PARTS["integer"])
    parts = [random.choice(PARTS[part]) for part in SPELLED[kind.removeprefix("integer ")]]
    return ":".join(parts[:2]) + parts[2] if kind == "clock" else "".join(parts)


TIMES = [ds.DataTypeTimestamp(unit=unit, timezone="UTC") for unit in TimeUnit]
ORACLE_TYPES: dict[str, list[ds.DataType]] = {
    "time": [*TIMES],
    "integer time": [*TIMES],
    "clock": [ds.DataTypeTime(unit=unit) for unit in TimeUnit],
    "number": [
        *(t() for t in (
            ds.DataTypeInt8, ds.DataTypeInt16, ds.DataTypeInt32, ds.DataTypeInt64, ds.DataTypeUInt8, ds.DataTypeUInt16,
            ds.DataTypeUInt32, ds.DataTypeUInt64, ds.DataTypeFloat16, ds.DataTypeFloat32, ds.DataTypeFloat64,
        )),
        ds.DataTypeDecimal(precision=7, scale=2), ds.DataTypeDecimal(precision=38, scale=0),
    ],
    "truth": [ds.DataTypeBool()],
}  # fmt: skip


@pytest.mark.parametrize("kind", ORACLE_TYPES)
def test_texts_are_read_as_spark_reads_them(engine: SparkEngine, kind: str) -> None:
    """All types of a kind by one job."""
    from pyspark.sql import functions as F

    rules, random, types = TextRules(integer_timestamps=kind == "integer time"), Random(7), ORACLE_TYPES[kind]
    texts = list(dict.fromkeys(spelled(kind, random) for _ in range(2_000)))
    moments, finer = kind.endswith("time"), kind not in {"truth", "number"}

    def read(text: Column) -> list[Column]:
        values = [parse_text(text, each, rules) for each in types]
        # collected timestamps would be naive and local
        values = [F.unix_micros(value) for value in values] if moments else values
        return values + ([too_fine(text, each, rules) for each in types] if finer else [])

    by_column = by_spark(engine, [*texts], read)
    for data_type, column in zip(types, by_column[: len(types)], strict=True):
        wanted = [EPOCH + dt.timedelta(microseconds=v) if moments and v is not None else v for v in column]
        found = run(engine, data_type, [*texts], rules)
        assert {t: (f, w) for t, f, w in zip(texts, found, wanted, strict=True) if repr(f) != repr(w)} == {}
    for data_type, lost in zip(types, by_column[len(types) :], strict=False):
        fine = read_texts(pa.array(texts), data_type, rules).finer
        assert {t: (f, w) for t, f, w in zip(texts, fine.tolist(), lost, strict=True) if f != w} == {}


FINE_DAY = dt.datetime(2020, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
MIDNIGHT = dt.datetime(1969, 12, 31, tzinfo=UTC)
EDGES: list[pa.Array] = [
    pa.array([True, False, None]),
    *[pa.array([0, 1, -1, 5, 127, None, -128], getattr(pa, f"int{bits}")()) for bits in (8, 16, 32, 64)],
    pa.array([2, 300, 40_000, 2**31, 2**53, 2**53 + 1, 2**60, 2**63 - 1024, -(2**63), None]),
    pa.array([0, 1, 255, None], pa.uint8()),
    pa.array([0, 2**63, 2**64 - 1, None], pa.uint64()),
    *[pa.array([0.0, -0.0, 1.0, 0.5, 0.1, 1e7, 9999999.0, 1e-4, 123456.789, -3.25, None, float("nan"), float("inf")], kind)
      for kind in (pa.float32(), pa.float64())],
    pa.array([1e300, -1e-300, 2.0**31, 1577880000.123456, 1e22, 2.0**24 + 1]),
    pa.array(list(map(Decimal, ("1.00", "1.25", "0.10", "-0.01", "99999999.99", "16777217.00"))), pa.decimal128(10, 2)),
    pa.array(list(map(Decimal, ("123456789012345678", "0", "9007199254740993"))), pa.decimal128(38, 10)),
    pa.array([dt.date(2020, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    pa.array([FINE_DAY, MIDNIGHT, MIDNIGHT.replace(hour=1), FINE_DAY.replace(microsecond=120_000), None], pa.timestamp("us", "UTC")),
    pa.array([b"", b"abc", "ü".encode(), None]),
]  # fmt: skip
TARGETS = [
    t() for t in (
        ds.DataTypeBool, ds.DataTypeInt8, ds.DataTypeInt16, ds.DataTypeInt32, ds.DataTypeInt64, ds.DataTypeUInt64,
        ds.DataTypeFloat32, ds.DataTypeFloat64, ds.DataTypeDate, ds.DataTypeString, ds.DataTypeBinary,
    )
] + [
    ds.DataTypeDecimal(precision=5, scale=1), ds.DataTypeDecimal(precision=38, scale=10), MS,
    ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC"),
]  # fmt: skip


@pytest.mark.parametrize("values", EDGES, ids=lambda values: f"{values.type}")
def test_values_become_those_of_other_types_as_with_spark(engine: SparkEngine, values: pa.Array) -> None:
    from pyspark.sql import functions as F

    own = from_arrow_type(values.type)
    given = pa.table({"n": range(len(values)), "v": as_physical(values, carried_type(own))})
    frame = engine.session.createDataFrame(given)
    asked = {f"{target}": kept(F.col("v"), own, target).alias(f"{target}") for target in TARGETS}
    for target in TARGETS:
        try:
            frame.select(asked[f"{target}"])
        except AnalysisException:
            del asked[f"{target}"]
        assert can_be_read(own, target) == (f"{target}" in asked)
    wanted = frame.orderBy("n").select(*asked.values()).toArrow()
    for target in TARGETS:
        if f"{target}" in asked:
            found = read_texts(values, target, TextRules())
            bad = np.zeros(len(values), bool) if found.bad is None else found.bad
            shown = [
                None if wrong else value for wrong, value in zip(bad, found.values.to_pylist(), strict=True)
            ]
            assert repr(shown) == repr(wanted[f"{target}"].to_pylist()), f"{values.type} as {target}"
