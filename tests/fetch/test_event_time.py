"""Event time from paths: every notation, UTC, strict, and one line for each mistake."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import FetchError
from odfchain.ingest import fetch_files
from odfchain.ingest.fetch_files import from_path
from odfchain.odf.times import Timestamp

DATE = r"data-(\d+-\d+-\d+)\.csv"


@pytest.mark.parametrize(
    ("pattern", "form", "text", "expected"),
    [
        (DATE, "%Y-%m-%d", "data-2020-10-01.csv", "2020-10-01T00:00:00Z"),
        (DATE, "yyyy-MM-dd", "data-2020-10-01.csv", "2020-10-01T00:00:00Z"),
        (DATE, None, "data-2020-10-01.csv", "2020-10-01T00:00:00Z"),
        (r"\d{8}", "yyyyMMdd", "x/20201001.csv", "2020-10-01T00:00:00Z"),
        (r"\d{8}", None, "x/20201001.csv", "2020-10-01T00:00:00Z"),
        (r"^(.*)\.csv$", None, "2020-10-01T12:00:00.123456789+02:00.csv", "2020-10-01T10:00:00.123456789Z"),
        (r"^(.*)\.csv$", None, "2020-10-01 12:00.csv", "2020-10-01T12:00:00Z"),
        (r"^(.*)\.csv$", "%Y%m%dT%H%M%S%z", "20201001T120000+0130.csv", "2020-10-01T10:30:00Z"),
        (r"(?:a|b)_(\d+)", "yyyy", "b_2021", "2021-01-01T00:00:00Z"),
        (r"(?i)DATA-(?<when>\d+)-(\d+)", "yyyy", "data-2021-99", "2021-01-01T00:00:00Z"),
        (r"(?P<when>\d+)", "yyyy", "data-2021", "2021-01-01T00:00:00Z"),
        (r"[(](\d+)\)", "yyyy", "(2021)", "2021-01-01T00:00:00Z"),
        (r"[]([]\((\d+)", "yyyy", "[(2021", "2021-01-01T00:00:00Z"),
        (r"\Q(x)\E(\d+)", "yyyy", "(x)2021", "2021-01-01T00:00:00Z"),
        (r"é-(\d+)", "yyyy", "é-2021", "2021-01-01T00:00:00Z"),
    ],
)
def test_patterns(pattern: str, form: str | None, text: str, expected: str) -> None:
    assert str(from_path(pattern, form, text)) == expected


@pytest.mark.parametrize(
    ("pattern", "form", "text", "said"),
    [
        (DATE, None, "other.csv", r"event time pattern 'data-(\\d+-\\d+-\\d+)\\.csv' does not match 'other.csv'"),
        (DATE, "%Y/%m/%d", "data-2020-10-01.csv", "'2020-10-01' does not have the form '%Y/%m/%d'"),
        (DATE, "yyyy/MM/dd", "data-2020-10-01.csv", "'2020-10-01' does not have the form 'yyyy/MM/dd'"),
        (DATE, None, "data-2020-13-01.csv", "'2020-13-01' is not an ISO 8601 date or time"),
        (DATE, "yyyy-MM-dd", "data-2021-02-29.csv", "day is out of range for month"),
        (DATE, "%Q", "data-2020-13-01.csv", "'Q' is a bad directive"),
        (r"x(\d+)?", None, "x", "'' is not an ISO 8601"),
        (r"(\d+", None, "x", "is not a regular expression: missing )"),
        (r"(?=x)(\d+)", None, "x", "is not a regular expression: invalid perl operator"),
        (r"(\d+)\1", None, "11", "is not a regular expression: invalid escape sequence"),
        ("x" * 1_001, None, "x", "has more than 1,000 characters"),
        ("x", None, "x" * 4_097, "has more than 4,096 characters"),
        ("x", None, "\udcff", "is not a regular expression"),
    ],
)  # fmt: skip
def test_mistakes(pattern: str, form: str | None, text: str, said: str) -> None:
    with pytest.raises(FetchError) as caught:
        from_path(pattern, form, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_expression_that_would_take_for_ever_elsewhere() -> None:
    with pytest.raises(FetchError, match="does not match"):
        from_path("(a+)+$", None, "a" * 4_000 + "!")


@given(st.text(max_size=30), st.text(max_size=20), st.none() | st.text(max_size=12))
def test_nothing_foreign_is_raised(pattern: str, text: str, form: str | None) -> None:
    try:
        from_path(pattern, form, text)
    except FetchError as error:
        assert str(error)


# --- Java's notation ---------------------------------------------------------------------------------


def java_format(pattern: str, time: dt.datetime) -> str:
    """What SimpleDateFormat prints, for the patterns below."""
    offset = time.strftime("%z")
    values = {
        "yyyy": f"{time.year:04d}", "yy": f"{time.year % 100:02d}",
        "MMMM": time.strftime("%B"), "MMM": time.strftime("%b"), "MM": f"{time.month:02d}", "M": str(time.month),
        "dd": f"{time.day:02d}", "d": str(time.day), "HH": f"{time.hour:02d}", "H": str(time.hour),
        "hh": f"{(time.hour + 11) % 12 + 1:02d}", "mm": f"{time.minute:02d}", "m": str(time.minute),
        "ss": f"{time.second:02d}", "s": str(time.second),
        "SSS": f"{time.microsecond // 1000:03d}", "S": str(time.microsecond // 1000),
        "SSSSSS": f"{time.microsecond:06d}", "a": time.strftime("%p"),
        "EEE": time.strftime("%a"), "EEEE": time.strftime("%A"),
        "Z": offset, "z": f"GMT{offset[:3]}:{offset[3:]}", "XX": offset, "XXX": f"{offset[:3]}:{offset[3:]}",
    }  # fmt: skip
    out = []
    for number, part in enumerate(pattern.split("'")):
        if number % 2:
            out.append(part)
            continue
        run = ""
        for char in part + " ":
            if run and (char != run[0]):
                out.append(values.get(run, run))
                run = ""
            run += char
        assert run == " "
    return "".join(out)


PATTERNS = [
    ("yyyyMMddHHmmssSSS", 1_000),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", 1_000),
    ("d MMM yyyy H:m:s.S Z", 1_000),
    ("EEEE, d MMMM yyyy hh:mm:ss a XX", 1_000_000),
    ("EEE yyyy-M-d hh:mm a z", 60_000_000),
    ("yyyyMMdd'T'HHmmss.SSSSSSXX", 1),
    ("yyyy/MM/dd", 86_400_000_000),
]


@pytest.mark.parametrize(("pattern", "unit"), PATTERNS)
@given(
    time=st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31)),  # noqa: DTZ001 - the zone follows
    minutes=st.integers(-14 * 60, 14 * 60),
)
def test_what_is_printed_is_read_again(pattern: str, unit: int, time: dt.datetime, minutes: int) -> None:
    zoned = any(letter in pattern.replace("'T'", "") for letter in "zZX")
    zone = dt.timezone(dt.timedelta(minutes=minutes)) if zoned else dt.UTC
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    micros = (time - midnight) // dt.timedelta(microseconds=1) // unit * unit
    exact = (midnight + dt.timedelta(microseconds=micros)).replace(tzinfo=zone)
    assert fetch_files.parse(pattern, java_format(pattern, exact)) == Timestamp.from_datetime(exact)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("yy-MM-dd", "68-01-01", "2068-01-01T00:00:00Z"),
        ("yy-MM-dd", "69-01-01", "1969-01-01T00:00:00Z"),
        ("hh a", "12 am", "1970-01-01T00:00:00Z"),
        ("hh a", "12 PM", "1970-01-01T12:00:00Z"),
        ("h", "11", "1970-01-01T11:00:00Z"),
        ("yyyy-MM-dd", "2020-1-5", "2020-01-05T00:00:00Z"),
        ("yyyyMMd", "20201015", "2020-10-15T00:00:00Z"),
        ("'it''s' yyyy", "it's 2020", "2020-01-01T00:00:00Z"),
        ("yyyy''MM", "2020'05", "2020-05-01T00:00:00Z"),
        ("dMMMyyyy", "5may2020", "2020-05-05T00:00:00Z"),
        ("HH:mmX", "10:00+02", "1970-01-01T08:00:00Z"),
        ("HH:mmX", "10:00Z", "1970-01-01T10:00:00Z"),
        ("HH:mm z", "10:00 UTC", "1970-01-01T10:00:00Z"),
        ("HH:mm z", "10:00 -0330", "1970-01-01T13:30:00Z"),
        ("ss.SSSSSSSSS", "01.123456789", "1970-01-01T00:00:01.123456789Z"),
        ("yyyy.MM", "2020.05", "2020-05-01T00:00:00Z"),
    ],
)
def test_java_notation(pattern: str, text: str, expected: str) -> None:
    assert str(fetch_files.parse(pattern, text)) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "said"),
    [
        ("yyyy-ww", "2020-05", "'ww' at position 6 is not known"),
        ("yyyy-MM-ddTHH", "2020-05-01T10", "'T' at position 11 is not known"),
        ("HHXXXX", "10Z", "'XXXX' at position 3 is not known"),
        ("yyyy'T", "2020T", "the quote at position 5 is not closed"),
        ("yyyy-MM", "2020-13", "13 is not from 1 to 12"),
        ("HH:mm", "24:00", "24 is not from 0 to 23"),
        ("hh a", "0 AM", "0 is not from 1 to 12"),
        ("yyyy-MM-dd", "2021-02-29", "day is out of range"),
        ("EEE yyyy-MM-dd", "Mon 2024-02-29", "2024-02-29 is a Thursday"),
        ("s.S", "1.1000", "1000 milliseconds are more than a second"),
        ("yyyy", "0000", "year 0 is out of range"),
        ("HHX", "10+99", "+99 is not an offset"),
        ("yyyy XXX", "0001 +01:00", "the years 1 to 9999 can be represented"),
        ("yyyy", "2020 ", "does not have the form 'yyyy'"),
        ("yyyy", "\uff12\uff10\uff12\uff10", "does not have the form 'yyyy'"),
        ("HH z", "10 EST", "does not have the form"),
        ("y" * 1_001, "1", "at most 1,000 characters"),
    ],
)
def test_java_mistakes(pattern: str, text: str, said: str) -> None:
    with pytest.raises(FetchError) as caught:
        fetch_files.parse(pattern, text)
    assert said in str(caught.value)


@given(st.text("yMdHhmsSaEzZX'- :.", max_size=12), st.text("0123456789-+: .ZAPM'", max_size=14))
def test_no_pattern_and_text_raise_anything_else(pattern: str, text: str) -> None:
    try:
        assert str(fetch_files.parse(pattern, text))
    except FetchError as error:
        assert str(error)
