"""The page of a check: what is missing or changed first, store by store; that nothing gets into it; how it looks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from odfchain.assets.checking import CheckedAsset, CheckSummary, Status
from odfchain.assets.lock_table import AssetRow
from odfchain.limits import CHECK_PAGE, CheckPageLimits
from odfchain.storage.locations import Location
from tests.kit.browser import HOSTILE, check_harmless, check_painted, check_sound, measure

TIME = "2026-07-01T12:00:00Z"
COGS = ("s3", "sentinel-cogs", None)
MIRROR = ("s3", "mirror", "http://minio:9000")
WEB = ("https", "https://example.org", None)
FILES = ("file", None, None)


def found(
    place: tuple[str, str | None, str | None], number: int, status: Status, *errors: str, note: str = ""
) -> CheckedAsset:
    location = Location(*place, f"33/U/WP/2024/7/{number}/B04.tif")
    return CheckedAsset(AssetRow(f"S2A_33UWP_{number:08}", "B04", location), status, errors, note)


def checked() -> CheckSummary:
    """Five stores; in two something is wrong, one cannot be reached."""
    summary = CheckSummary()
    for number in range(300):
        summary.add(found(FILES, number, Status.SAME))
        summary.add(found(COGS, number, Status.SAME, note="last modified a → b" if number < 4 else ""))
    for number in range(3):
        summary.add(found(COGS, 300 + number, Status.CHANGED, "size 210763412 → 210770001", "etag"))
        summary.add(found(MIRROR, number, Status.MISSING, "no such object"))
    summary.add(found(MIRROR, 3, Status.CHANGED, "etag"))
    summary.add(found(WEB, 1, Status.UNREACHABLE, "HTTP error: error sending request"))
    summary.add(found(WEB, 2, Status.UNKNOWN, note="there is nothing"))
    return summary


def hostile(text: str = HOSTILE) -> CheckSummary:
    """This text wherever a text may stand."""
    summary = CheckSummary()
    for status in Status:
        row = AssetRow(text, text, Location("https", None, None, "x"))
        object.__setattr__(row.location, "container", text)
        object.__setattr__(row.location, "endpoint", text)
        object.__setattr__(row.location, "key", text)
        summary.add(CheckedAsset(row, status, (text,), text))
    return summary


LOOK = """
  stores: all("h3").map(h => h.innerText),
  rows: all("#bad ~ .store").map(s => s.querySelectorAll("tbody tr").length),
"""


def test_a_browser_shows_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    made, harmful = checked().to_html("s2.assets", TIME), hostile().to_html(HOSTILE, TIME)
    pages = {"made@400": made, "made@1200": made, "hostile@400": harmful, "hostile@1200": harmful}
    seen = measure(pages, LOOK, tmp_path_factory.mktemp("browser"))
    for page in seen.values():
        check_sound(page)
    hold_order(seen["made@1200"])
    check_harmless(seen["hostile@1200"], 21)


def hold_order(page: dict[str, Any]) -> None:
    assert page["title"].startswith("Missing and changed: s2.assets ")
    assert page["headings"] == [
        "Missing or changed", "Unreachable", "Nothing to compare", "Stores", "How to read this page",
    ]  # fmt: skip
    assert page["stores"] == [
        "s3 mirror at http://minio:9000", "s3 sentinel-cogs", "https://example.org",
        "https://example.org",
    ]  # fmt: skip
    assert page["rows"] == [4, 3]
    text = page["text"]
    assert "Of 609 assets 3 are missing and 4 are changed." in text
    assert "600 assets are the same as in the lock. Of 4 assets among them only the time" in text
    assert re.search(r"S2A_33UWP_00000300\s+B04\s+changed\s+size 210763412 → 210770001, etag", text)
    assert re.search(r"s3 sentinel-cogs\s+0\s+3\s+0\s+0\s+300\s+303", text)
    assert "S2A_33UWP_00000299" not in text, "what is the same has no row"


@pytest.mark.soak
def test_a_browser_paints_it_also_in_the_dark(tmp_path: Path) -> None:
    check_painted(checked().to_html("s2.assets", TIME), tmp_path)


def test_nothing_from_a_lock_becomes_markup() -> None:
    page = hostile().to_html(HOSTILE, HOSTILE)
    assert re.findall("<[a-z]+", page) == re.findall("<[a-z]+", hostile("x").to_html("x", "x"))
    page.encode()


@pytest.mark.parametrize(
    ("statuses", "title", "lead", "code"),
    [
        ((Status.SAME,), "As locked", "Of 1 asset all that could be compared is equal.", 0),
        ((Status.SAME, Status.UNKNOWN), "As locked", "is equal; of 1 nothing could be", 0),
        ((Status.UNKNOWN,), "Nothing was compared", "Of 1 asset nothing is known", 0),
        ((), "Nothing was compared", "Of 0 assets", 0),
        ((Status.SAME, Status.UNREACHABLE), "Not all could be reached", "Of 2 assets 1 could not", 8),
        ((Status.UNREACHABLE, Status.MISSING), "Missing", "Of 2 assets 1 is missing.", 6),
        ((Status.CHANGED,), "Changed", "Of 1 asset 1 is changed.", 6),
    ],
)
def test_the_headline_says_what_was_found(
    statuses: tuple[Status, ...], title: str, lead: str, code: int
) -> None:
    summary = CheckSummary()
    for status in statuses:
        summary.add(found(COGS, 1, status))
    page = summary.to_html("x", TIME)
    assert f"<title>{title}: x" in page
    assert lead in page
    assert summary.exit_code == code


def test_what_is_kept_is_bounded_and_what_is_left_out_is_counted() -> None:
    limits = CheckPageLimits(stores=3, assets=5)
    summary = CheckSummary(limits)
    for number in range(400):
        summary.add(found(("s3", f"bucket{number % 40}", None), number, Status.MISSING))
    assert len(summary.stores) == 4
    assert sum(len(kept) for each in summary.stores for kept in each.kept.values()) == 20
    page = summary.to_html("x", TIME)
    assert "all other stores" in page
    assert "Not shown here: 365 more assets" in page
    assert "Of 400 assets 400 are missing." in page


def test_many_stores_fit_on_a_page() -> None:
    summary = CheckSummary()
    for number in range(20_000):
        summary.add(found(("s3", f"bucket{number % 150}", None), number, Status.CHANGED, "etag"))
    page = summary.to_html("x", TIME)
    assert len(page.encode()) <= CHECK_PAGE.page_bytes
    assert page.endswith("</html>")
    assert re.search(r"Not shown here: [1-9]\d* more assets", page)


def test_the_same_findings_give_the_same_page() -> None:
    assert checked().to_html("x", TIME) == checked().to_html("x", TIME)
