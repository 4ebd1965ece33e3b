"""The page of a comparison: what it says and in which order, that nothing gets into it, how a browser shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from odfchain.limits import DRIFT_PAGE, DriftPageLimits
from odfchain.profiles.drift import Drift, compare_profiles
from odfchain.profiles.pages import common_bins, drift_page
from odfchain.profiles.reader import ComparedColumn, ComparedProfile
from tests.kit import browser
from tests.kit.browser import check_harmless, check_painted, check_sound, measure
from tests.kit.drift_profiles import Document, profile_of

HOSTILE = browser.HOSTILE + " \ud800"


def airports(american: int, shift: float) -> Document:
    """Rows with a country, positions, times and keys; a share is American, and positions are moved."""
    return {
        "iata": {"type": "string", "values": {"keys": 200}},
        "country": {"type": "string", "values": {"counts": {"US": american, "FR": 170 - american, "": 10}, "nulls": 20}},
        "lon": {"type": "float64", "values": {"from": shift, "to": 100 + shift, "number": 200}},
        "when": {"type": "timestamp[ms]", "values": {"constant": 0, "number": 200}},
        "open": {"type": "bool", "values": [n % 3 == 0 for n in range(200)]},
    }  # fmt: skip


def moved() -> Drift:
    return compare_profiles(profile_of(airports(50, 0)), profile_of(airports(120, 20), number=6))


def hostile() -> Drift:
    """Profiles with this text wherever a text may stand, but where a page could not be made."""
    sides = []
    for number, shares in ((5, [150, 50]), (6, [50, 150])):
        side = profile_of(
            {"v": {"type": "string", "values": {"counts": {"a": shares[0], "b": shares[1]}}}}, number=number
        )
        side["dataset_name"] = side["snapshot_id"] = side["created_at"] = HOSTILE
        side["odf"]["dataset_id"] = HOSTILE + str(number)
        side["columns"][0]["name"] = side["columns"][0]["dtype"] = HOSTILE
        stats = side["column_stats"].pop("v")
        stats["top_values"] = {HOSTILE: shares[0], "b": shares[1]}
        stats["detected_languages"] = {HOSTILE: 0.5}
        stats["min"] = HOSTILE
        side["column_stats"][HOSTILE] = stats
        sides.append(side)
    return compare_profiles(*sides)


LOOK = """
  columns: all("h3 bdi").map(h => h.innerText),
  pictures: all("svg.picture").map(s => s.getBoundingClientRect().height),
  before: all("svg.picture rect.bars").map(r => style(r).fill)[0],
  after: all("svg.picture path.outline").map(style).map(s => [s.fill, s.strokeDasharray])[0],
  order: [top("#breaches"), top("#columns"), top("#figures"), top("#missing")],
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made, harmful = moved().to_html(), hostile().to_html()
    pages = {"moved@400": made, "moved@1200": made, "hostile@400": harmful, "hostile@1200": harmful}
    return measure(pages, LOOK, tmp_path_factory.mktemp("browser"))


def test_a_browser_shows_it_and_it_can_be_read_aloud(seen: dict[str, Any]) -> None:
    for page in seen.values():
        check_sound(page)
    check_harmless(seen["hostile@1200"], 9)


def test_breaches_are_first_and_what_was_not_compared_is_last(seen: dict[str, Any]) -> None:
    page = seen["moved@1200"]
    assert page["title"].startswith("Limits exceeded: measured ")
    assert page["headings"] == [
        "Beyond a limit", "Columns", "All that was compared", "What was not compared, and why", "How to read this page",
    ]  # fmt: skip
    assert page["order"] == sorted(page["order"])
    assert page["columns"] == ["country", "lon", "iata", "when", "open"], "breaches before the others"
    assert re.search(r"country\s+js 0.\d+, limit 0.1\s+US 27.8 % → 66.7 %", page["text"])
    assert "2 figures beyond what the limits allow." in page["text"]
    assert "when: distributions of datetime64[ms] are not compared, only nulls" in page["text"]


def test_numbers_stand_beside_the_pictures(seen: dict[str, Any]) -> None:
    for page in (seen["moved@400"], seen["moved@1200"]):
        assert len(page["pictures"]) == 1
        assert page["pictures"][0] > 50
        assert re.search(r"median\s+50\s+70\n", page["text"])
        assert re.search(r"US\s+27.78 %\s+66.67 %", page["text"])
        assert re.search(r"\(empty text\)\s+5.56 %\s+5.56 %", page["text"])
        assert re.search(r"least\s+1970-01-01T00:00:00Z\s+1970-01-01T00:00:00Z", page["text"])


def test_before_and_after_are_told_apart_without_colours(seen: dict[str, Any]) -> None:
    page = seen["moved@1200"]
    assert page["before"] != "none", "filled bars"
    assert page["after"] == ["none", "4px, 2px"], "a dashed outline"
    assert "before: block 5" in page["text"]
    assert "after: block 6" in page["text"]


def test_nothing_from_a_profile_becomes_markup() -> None:
    page = hostile().to_html()
    assert re.findall(r'(?:href|src)="([^#][^"]*)"', page) == []
    assert page.count("<script") == page.count("<img") == 0
    page.encode()


@pytest.mark.soak
def test_a_browser_paints_it_also_in_the_dark(tmp_path: Path) -> None:
    check_painted(moved().to_html(), tmp_path)


def test_the_same_comparison_gives_the_same_page() -> None:
    assert moved().to_html() == moved().to_html()


def page_within(columns: int, limits: DriftPageLimits = DRIFT_PAGE) -> str:
    """The page of profiles with so many columns of numbers."""
    sides = []
    for shift in (0, 20):
        side = profile_of({"lon": airports(50, shift)["lon"]})
        (declared,), statistics = side["columns"], side["column_stats"]["lon"]
        names = [f"lon{n}" for n in range(columns)]
        side["columns"] = [{**declared, "name": name} for name in names]
        side["column_stats"] = dict.fromkeys(names, statistics)
        sides.append(side)
    found = compare_profiles(*sides)
    return drift_page(found.to_document(), found.before, found.after, limits)


def test_many_columns_fit_and_the_page_counts_what_it_leaves_out() -> None:
    small = page_within(30, DriftPageLimits(page_bytes=60_000))
    assert len(small.encode()) <= 60_000
    assert small.endswith("</html>")
    assert re.search(r"Not shown here: [1-9]\d* more columns", small)
    assert "Not shown here: " not in page_within(5)


@pytest.mark.soak
def test_hundreds_of_columns_fit() -> None:
    page = page_within(1_000)
    assert len(page.encode()) <= DRIFT_PAGE.page_bytes
    assert re.search(r"Not shown here: [1-9]\d\d more columns", page)


def test_too_few_rows_are_shown_and_not_judged() -> None:
    few = [
        profile_of({"v": {"type": "string", "values": {"counts": counts}}}) for counts in ({"a": 9}, {"b": 9})
    ]
    page = compare_profiles(*few).to_html()
    assert "Not judged" in page
    assert "too few rows: 9 and 9" in page
    assert ">100.00 %<" in page


@pytest.mark.parametrize("columns", [{}, {"w": {"type": "int64", "values": []}}])
def test_nothing_in_common_and_no_rows_make_a_page(columns: Document) -> None:
    page = compare_profiles(profile_of(airports(50, 0)), profile_of(columns, number=6)).to_html()
    assert "The two have no column in common." in page
    assert page.index("200 → 0 rows") < page.index("is gone"), "no rows are the loudest"


# --- two distributions over the same bins -----------------------------------------------------------


def numbers(values: Any) -> ComparedColumn:
    return ComparedProfile(profile_of({"v": {"type": "float64", "values": values}})).columns["v"]


def test_bins_are_common_and_all_values_are_in_them() -> None:
    found = common_bins(
        numbers({"from": 0, "to": 100, "number": 1001}), numbers({"from": 50, "to": 150, "number": 1001})
    )
    assert (found.low, found.high, found.middle) == (0, 150, False)
    assert len(found.before) == len(found.after) == 40
    assert sum(found.before) == pytest.approx(1)
    assert sum(found.after) == pytest.approx(1)
    assert found.before[30:] == (0,) * 10
    assert sum(found.after[:13]) < 0.01
    assert found.before[5] == pytest.approx(found.after[35], rel=0.1)


def test_bins_that_both_have_are_left_as_they_are() -> None:
    one = numbers({"from": 0, "to": 100, "number": 101})
    found = common_bins(one, one)
    assert [round(part * 101) for part in found.before] == [*[2] * 49, 3]


def test_a_far_value_does_not_hide_all_others() -> None:
    far = numbers([*range(200), 1_000_000])
    found = common_bins(far, numbers(list(range(200))))
    assert found.middle
    assert found.high < 300
    assert min(found.before) > 0


def test_constants_and_columns_without_values() -> None:
    five, six = numbers({"constant": 5, "number": 9}), numbers({"constant": 6, "number": 9})
    same, apart = common_bins(five, five), common_bins(five, six)
    assert (same.before, same.after) == ((1.0,), (1.0,))
    assert (apart.before[0], apart.after[-1], sum(apart.before), sum(apart.after)) == (1, 1, 1, 1)
    assert common_bins(five, numbers([None])) is None
