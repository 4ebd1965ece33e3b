"""The page of a profile: what it says, that nothing gets into it, and how a browser shows it."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from odfchain.limits import DRIFT_PAGE
from odfchain.profiles.pages import profile_page
from tests.kit.browser import HOSTILE, check_harmless, check_sound, measure
from tests.kit.made_profiles import profile_of_table


def cities() -> pa.Table:
    return pa.table(
        {
            "city": pa.array([f"city {n}" for n in range(300)]),
            "country": pa.array(["DE"] * 150 + ["FR"] * 100 + [""] * 30 + [None] * 20),
            "population": pa.array(range(300), pa.int64()),
            "founded": pa.array([dt.date(1200, 1, 1) + dt.timedelta(days=n) for n in range(300)]),
            "capital": pa.array([n % 10 == 0 for n in range(300)]),
            "shape": pa.array([[n, 1.5] for n in range(300)], pa.list_(pa.float64())),
            "nothing": pa.nulls(300, pa.float64()),
        }
    )


def hostile() -> dict[str, Any]:
    """A profile with this text wherever a text may stand."""
    table = pa.table({HOSTILE: [HOSTILE, "b", "b"], "other": pa.array([1, 2, 3])})
    words = ("dataset_name", "description", "pipeline_stage", "transform_description")
    return profile_of_table(table, tags={HOSTILE: HOSTILE}, **dict.fromkeys(words, HOSTILE))


LOOK = """
  pictures: all("figure svg.picture").map(s => s.getBoundingClientRect().height),
  filled: all("svg.picture rect").map(r => style(r).fill)[0],
"""


def test_a_browser_shows_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    pages = {"cities@400": profile_page(profile_of_table(cities())), "hostile@1200": profile_page(hostile())}
    seen = measure(pages, LOOK, tmp_path_factory.mktemp("browser"))
    for page in seen.values():
        check_sound(page, but=("untitled",))
        assert page["pictures"]
        assert all(height > 50 for height in page["pictures"])
        assert page["filled"] == "rgb(95, 143, 196)"
    text = seen["cities@400"]["text"]
    assert "300 rows, 7 columns; 0.0 % of the rows repeat another one." in text
    assert re.search(r"DE\s+150\s+53.6 %", text)
    assert "(empty)" in text
    assert re.search(
        r"city\s+string\s+0 \(0.0 %\)\s+300\s+6 … 8 characters, 7.6 on average: city 0, city 1", text
    )
    assert "nearly all differ" in text
    assert "Histogram" not in text, "that is for who does not see the picture"
    check_harmless(seen["hostile@1200"], 1)


def test_nothing_from_a_profile_becomes_markup() -> None:
    plain = profile_of_table(
        pa.table({"x": ["x", "b", "b"], "other": pa.array([1, 2, 3])}),
        tags={"x": "x"}, description="x", transform_description="x",
    )  # fmt: skip
    assert re.findall("<[a-z]+", profile_page(hostile())) == re.findall("<[a-z]+", profile_page(plain))


def test_hidden_columns_have_counts_only() -> None:
    page = profile_page(profile_of_table(cities(), hidden=("country", "population")))
    assert "Only counts are published of 2 columns" in page
    assert "FR" not in page
    assert "Histogram of population" not in page


def test_a_page_of_many_columns_says_how_many_it_leaves_out() -> None:
    table = pa.table({f"column {n}": pa.array(range(60)) for n in range(30)})
    page = profile_page(profile_of_table(table), replace(DRIFT_PAGE, page_bytes=60_000))
    assert len(page.encode()) <= 60_000
    assert re.search(r"Not shown here: [1-9]\d* more columns", page)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_page_of_hardly_any_rows(rows: int) -> None:
    page = profile_page(profile_of_table(cities().slice(0, rows)))
    assert f"{rows} row" in page
