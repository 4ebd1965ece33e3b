"""The look of a node's pages: frame and macros hold what strangers write, on every screen, without a style of their own."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from odfchain.audit.page import by_month, render_page, strip_of
from odfchain.limits import PAGE
from odfchain.profiles.pages import icon, profile_page, site_page, stylesheet, within
from tests.kit import report_documents as docs
from tests.kit.browser import DARK, HOSTILE, check_harmless, check_sound, measure
from tests.kit.made_profiles import profile_of_table

SITE = {"version": "0.1.0", "sql": True, "did": "did:odf:fed01"}


def head(text: str) -> SimpleNamespace:
    """The head of a dataset with this text wherever a text may stand."""
    return SimpleNamespace(
        name=text, kind="Root", license=text, keywords=(text, text), description=text, alarm=text, id=text,
        head=text, origin=text, states=[("ok", text, text), ("unchecked", text, ""), ("faulty", text, "")],
        figures=[(text, text)], tabs=[("Audit", "x/-/audit"), ("Overview", "x/")],
    )  # fmt: skip


def pages(text: str) -> dict[str, str]:
    """Pages below that head, with the stylesheet in them: a frame of the test has no address."""
    reports = copy.deepcopy(docs.faulty())
    table = pa.table({HOSTILE: [text, "b", "b"], "other": pa.array([1, 2, 3])})
    profile = profile_of_table(table, tags={text: text}, dataset_name=text, description=text)
    made = {}
    for tab in ("Audit", "Overview"):
        writer = within(
            root="/at/", site=SITE, dataset=head(text), tab=tab, on_command_line=text, search=text
        )
        made[tab] = (
            render_page([reports], render=writer) if tab == "Audit" else profile_page(profile, render=writer)
        )
    return made


def carried(page: str) -> str:
    link = f'<link rel="stylesheet" href="/at/-/{stylesheet()[0]}">'
    assert page.count(link) == 1
    return page.replace(link, f"<style>{stylesheet()[1].decode()}</style>").replace(
        '<link rel="icon" type="image/svg+xml" href="/at/-/icon.svg">', ""
    )


@pytest.mark.parametrize("flags", [(), (DARK,)])
def test_pages_with_foreign_texts_fit_every_screen(tmp_path_factory: Any, flags: tuple[str, ...]) -> None:
    made = {f"{tab}@{width}": carried(page) for tab, page in pages(HOSTILE).items() for width in (320, 1280)}
    look = 'small: all("header a, nav a, button, input, summary").filter(e => e.getClientRects().length && e.getBoundingClientRect().height < 24 && !e.closest("p")).length,'
    for name, page in measure(made, look, tmp_path_factory.mktemp("browser"), *flags).items():
        # links lead to other pages of the node
        check_sound(page, but=("broken", "untitled", "unnamed"))
        assert page["small"] == 0, name
        check_harmless(page, 4)


def test_foreign_texts_become_no_markup() -> None:
    for harmful, plain in zip(pages(HOSTILE).values(), pages("x").values(), strict=True):
        assert re.findall("<[a-z]+", harmful) == re.findall("<[a-z]+", plain)
        assert not re.search(r'\sstyle=|<style|<script|javascript:|http-equiv="Content', harmful)


def test_the_stylesheet_is_small_and_named_by_its_bytes_and_the_mark_has_no_style() -> None:
    name, content = stylesheet()
    assert len(content) <= 24 << 10
    assert re.fullmatch(r"style\.[0-9a-f]{16}\.css", name)
    assert b"url(" not in content
    assert b"@import" not in content
    assert not re.search(rb"<style|style=|<script", icon())


def test_the_frame_shows_what_the_node_offers() -> None:
    view = SimpleNamespace(status=404, message="no dataset is called 'x'", hint=None)
    shown = site_page("error", root="/", site=SITE, view=view)
    assert 'href="/-/sql"' in shown
    assert "did:odf:fed01" in shown
    shown = site_page("error", root="/p/", site={"version": "0.1.0", "sql": False}, view=view)
    assert "-/sql" not in shown
    assert 'action="/p/"' in shown
    assert "command line" not in shown


def test_months_without_records_are_shown_and_many_months_become_years() -> None:
    assert by_month([]) == []
    found = by_month([("2024-11-03T00:00:00Z", 2), ("2025-01-31T10:00:00Z", 3), ("2024-11-30T00:00:00Z", 5)])
    assert found == [("2024-11", 7), ("2024-12", 0), ("2025-01", 3)]
    assert by_month([("2000-01-01T00:00:00Z", 1), ("2020-05-01T00:00:00Z", 4)])[::20] == [
        ("2000", 1),
        ("2020", 4),
    ]


def test_a_time_line_of_blocks_that_nobody_verified_claims_nothing() -> None:
    blocks = [block | {"state": ""} for block in docs.faulty()["blocks"]]
    for limit in (PAGE.line_marks, 3):
        strip = strip_of(blocks, limit)
        assert strip is not None
        assert strip["states"] == {}
        assert "as recorded" not in f"{strip['summary']} {[mark['title'] for mark in strip['marks']]}"
