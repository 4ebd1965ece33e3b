"""A README of a stranger: no element but those of text, no link but where it says, in time (cases 8, 9, 10)."""

from __future__ import annotations

import time
from html.parser import HTMLParser
from typing import Any

import pytest

from odfchain.node.readme import readme
from tests.kit.support import fixture


def case(number: int) -> dict[str, Any]:
    found: dict[str, Any] = fixture(f"node/cases/{number:02}.yaml")
    return found


class Seen(HTMLParser):
    """What a browser makes of HTML: elements, their attributes, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str | None] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "a":
            self.links.append(dict(attrs)["href"])
            assert dict(attrs)["rel"] == "nofollow noopener noreferrer"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("given", case(8)["readme"], ids=lambda given: given["text"][:12])
def test_case_8_nothing_acts_and_links_lead_where_they_say(given: dict[str, Any]) -> None:
    seen = Seen(readme(given["text"]).html)
    assert (seen.elements, seen.links) == (set(given["elements"]), given["links"])
    assert seen.attributes <= {"href", "rel", "title", "class"}
    assert [text for text in given["shows"] if text not in seen.text] == []


@pytest.mark.parametrize(
    "given", case(9)["readme"], ids=lambda given: f"{given['times']} {given['repeat'][:4]}"
)
def test_case_9_long_and_deep_ones_are_shown_in_time(given: dict[str, Any]) -> None:
    text = given["repeat"] * given["times"]
    began = time.monotonic()
    found = readme(text)
    assert time.monotonic() - began < case(9)["seconds"]
    assert (found.html.startswith("<pre>"), given["plain"] or "") == (
        given["plain"] is not None,
        given["plain"] or "",
    )
    assert (given["plain"] or "") in found.note
    assert bool(found.note) == bool(given["plain"])
    assert len(found.html) < 500_000


@pytest.mark.parametrize("given", case(10)["readme"], ids=lambda given: ascii(given["text"]))
def test_case_10_characters_that_act_are_marks(given: dict[str, Any]) -> None:
    html = readme(given["text"]).html
    assert Seen(html).text.strip() == given["shows"]
    assert "\u202e" not in html


def test_a_large_one_is_the_same_as_a_small_one() -> None:
    text = "# T\n\n[a](docs/a.md) é\n\n"
    small, large = readme(text).html, readme(text * 500)
    assert (large.html, large.note) == (small * 500, "")
    assert readme(text, "/x/-/attachments/").html.count('href="/x/-/attachments/docs/a.md"') == 1
