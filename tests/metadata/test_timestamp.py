from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import InvalidIdError
from odfchain.odf.times import Timestamp

NS = st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9 + 999_999_999)


@given(NS)
def test_text_round_trip(ns: int) -> None:
    assert Timestamp.parse(str(Timestamp(ns))) == Timestamp(ns)


@given(NS)
def test_struct_round_trip(ns: int) -> None:
    parts = Timestamp(ns).to_parts()
    assert Timestamp.from_parts(*parts) == Timestamp(ns)
    assert 1 <= parts[1] <= 366
    assert parts[2] < 86_400
    assert parts[3] < 10**9


@given(st.datetimes(timezones=st.just(dt.UTC)))
def test_agrees_with_datetime(value: dt.datetime) -> None:
    stamp = Timestamp.from_datetime(value)
    assert stamp.to_datetime() == value
    assert dt.datetime.fromisoformat(str(stamp)) == value
    year, ordinal, second, nanos = stamp.to_parts()
    assert (year, ordinal) == (value.year, value.timetuple().tm_yday)
    assert second == value.hour * 3600 + value.minute * 60 + value.second
    assert nanos == value.microsecond * 1000


@given(NS, NS)
def test_order_is_that_of_time(a: int, b: int) -> None:
    assert (Timestamp(a) < Timestamp(b)) == (a < b)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("2020-01-01T12:00:00Z", "2020-01-01T12:00:00Z"),
        ("2020-01-01t12:00:00z", "2020-01-01T12:00:00Z"),
        ("2020-01-01 12:00:00-01:30", "2020-01-01T13:30:00Z"),
        ("2020-01-01T00:00:00+14:00", "2019-12-31T10:00:00Z"),
        ("2020-01-01T12:00:00.000001Z", "2020-01-01T12:00:00.000001Z"),
        ("2020-01-01T12:00:00.1234567891Z", "2020-01-01T12:00:00.123456789Z"),
        ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
    ],
)
def test_parse(text: str, printed: str) -> None:
    assert str(Timestamp.parse(text)) == printed


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2020-01-01", "2020-01-01T12:00Z", "2020-01-01T12:00:00", "2020-02-30T00:00:00Z",
        "2020-01-01T24:00:00Z", "2020-01-01T23:59:60Z", "2020-01-01T12:00:00+25:00", "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00", "٢٠٢٠-01-01T12:00:00Z", "1577880000",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(InvalidIdError):
        Timestamp.parse(text)


@pytest.mark.parametrize(
    "parts", [(0, 1, 0, 0), (10_000, 1, 0, 0), (2020, 0, 0, 0), (2019, 366, 0, 0), (2020, 367, 0, 0),
              (2020, 1, 86_400, 0), (2020, 1, 0, 10**9)],
)  # fmt: skip
def test_impossible_structs_are_refused(parts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidIdError):
        Timestamp.from_parts(*parts)


def test_milliseconds_round_towards_the_past() -> None:
    assert str(Timestamp.parse("1969-12-31T23:59:59.1239Z").truncated_to_ms()) == "1969-12-31T23:59:59.123Z"
    assert Timestamp.now().epoch_ns % 1_000_000 == 0
