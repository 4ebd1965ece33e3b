"""Formats of dates and times as manifests give them, in the notation of Java."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import SchemaError
from odfchain.odf.times import check_date_format, check_timestamp_format, java_format


@pytest.mark.parametrize(
    ("text", "java"),
    [
        ("rfc3339", "rfc3339"),
        ("yyyy-MM-dd", "yyyy-MM-dd"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSX", "yyyy-MM-dd'T'HH:mm:ss.SSSX"),
        ("d. MMM yy, h a", "d. MMM yy, h a"),
        ("%Y-%m-%d", "yyyy-M-d"),
        ("%d/%m/%Y %H:%M:%S", "d/M/yyyy H:m:s"),
        ("%Y%m%d", "yyyyMMdd"),
        ("%Y%m%dT%H%M%S", "yyyyMMdd'T'HHmmss"),
        ("%Y-%m-%dT%H:%M:%S%.fZ", "yyyy-M-d'T'H:m:s.SSSSSSSSS'Z'"),
        ("%Y-%m-%dT%H:%M:%S.%3f%z", "yyyy-M-d'T'H:m:s.SSSXX"),
        ("%FT%T%:z", "yyyy-M-d'T'H:m:sXXX"),
        ("%b %-d, %Y %I:%M %p", "MMM d, yyyy h:m a"),
        ("%d.%m.%y o'clock", "d.M.yy 'o''clock'"),
        ("%Y-%j", "yyyy-D"),
        ("100%% of %Y [x]", "100% 'of' yyyy '[x]'"),
    ],
)
def test_a_format_in_the_notation_of_java(text: str, java: str) -> None:
    assert java_format(text) == java


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%Q", "'%Q' is not known"),
        ("%Y-%", "'%' is not known"),
        ("%Y %A", "'%A' is not known"),
        ("%s", "'%s' is not known"),
        ("YYYY-MM-DD", "'YYYY' at position 1 is not known"),
        ("yyyy-MM-DD", "D is the day of the year"),
        ("yyyy-mm-ddThh", "'T' at position 11 is not known"),
        ("EEE yyyy", "'EEE' at position 1 is not known"),
        ("yyyy 'x", "the quote at position 6 is not closed"),
        ("", "empty"),
        ("--", "holds no field"),
        ("y" * 201, "at most 200 characters"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        java_format(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yyyy-mm-dd", "does not read the month"),
        ("%Y-%M-%d", "does not read the month"),
        ("dd.MM. HH:mm", "does not read the year"),
        ("%H:%M", "does not read the year"),
        ("%j", "does not read the year"),
        ("%Y %H", "does not read the month"),
        ("yyyy-MM-dd ss", "does not read the hour"),
        ("yyyy-MM-dd HH.SSS", "does not read the minute"),
        ("yyyy-MM-dd hh:mm", "not which half"),
        ("%Y-%m-%d %I", "not which half"),
        ("%%", "holds no field"),
        ("%Q", "not known"),
    ],
)
def test_what_would_be_the_same_in_every_value(text: str, message: str) -> None:
    for check in (check_timestamp_format, check_date_format):
        with pytest.raises(SchemaError) as caught:
            check(text)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["rfc3339", "yyyy", "%Y-%m", "%Y-%j", "yyyyDDD", "d. MMM yy, h a", "%d.%m.%y %H", "yyyy-MM-dd'T'HH:mm:ss.SSS", "%D %r"],
)  # fmt: skip
def test_formats_of_whole_dates_and_times(text: str) -> None:
    check_timestamp_format(text)
    check_date_format(text)


@pytest.mark.parametrize("text", ["%Y-%m-%d%z", "yyyy-MM-ddX"])
def test_a_date_has_no_time_zone(text: str) -> None:
    check_timestamp_format(text)
    with pytest.raises(SchemaError, match="reads a time zone"):
        check_date_format(text)


@given(st.text(max_size=30))
def test_nothing_but_the_projects_error_is_raised(text: str) -> None:
    try:
        assert java_format(text)
    except SchemaError as error:
        assert str(error)
