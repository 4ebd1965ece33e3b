"""Drawings of lineage over datasets whose every text is hostile: nothing of it acts, in DOT and in HTML."""

from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest

from odfchain.audit.drawings import GraphDrawing
from tests.kit.hostile_dataset import make_workspace

_LINE = re.compile(
    r'digraph lineage \{|\}|  (?:rankdir|node|edge).*;|  n\d+ \[label="(?:[^"\\]|\\.)*", tooltip="(?:[^"\\]|\\.)*", '
    r'shape=\w+, style=\w+\];|  n\d+ -> n\d+(?: \[style=dashed, label="(?:[^"\\]|\\.)*"\])?;'
)


def acting(text: str) -> set[str]:
    return {
        hex(ord(c)) for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") and c != "\n"
    }


class Tags(HTMLParser):
    """The elements of a page, and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("downstream", [False, True])
def test_names_cannot_leave_their_labels(tmp_path: Path, downstream: bool) -> None:
    graph = make_workspace(tmp_path).lineage((), downstream=downstream)
    dot, page = GraphDrawing(graph).to_dot(), GraphDrawing(graph).to_html()
    assert acting(dot) == set() == acting(page)
    if not downstream:  # what is not here is not looked for in what is made of the others
        assert "gone a\\\\x1b]0;owned" in dot
        assert "gone a\\x1b]0;owned" in page
    for line in dot.splitlines():
        assert _LINE.fullmatch(line), line
    found = Tags()
    found.feed(page)
    assert "script" not in found.tags
    assert not {
        name for name in found.attributes if name.startswith("on") or name in ("src", "href", "xlink:href")
    }
