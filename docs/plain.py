"""Says where README and manual are hard to read: long sentences, bad openings, a grade that is too high.

python docs/plain.py                  README.md and docs/*.md
python docs/plain.py docs/check.md    these pages alone

The grade is that of Flesch and Kincaid, as the package `readability` computes it: years of school. Code in a
line is one plain word, whatever its name. Blocks of code and addresses of links are no prose.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from markdown_it import MarkdownIt
from markdown_it.token import Token
from readability import getmeasures

ROOT = Path(__file__).resolve().parent.parent
GRADE, LONGEST, MEDIAN = 8.0, 25, 14
CODE, PLAIN = "\ue000", "code"
_ENDS = re.compile(rf"(?<=[.!?])(?:[\"')\]]*)\s+(?=[A-Z0-9\"'(\[{CODE}])")
_OPENINGS = re.compile(
    r"\W*(?:what|who|whom|whose|which|whoever|whatever|whichever|those (?:that|who|which))\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page, or words in a table, a list or a heading that are none."""

    line: int
    text: str
    words: tuple[str, ...]
    whole: bool

    @property
    def grade(self) -> float:
        return grade_of([self])


def grade_of(sentences: list[Sentence]) -> float:
    """Years of school that these sentences ask for together."""
    found = getmeasures([" ".join(each.words) for each in sentences])
    return float(found["readability grades"]["Kincaid"])


def sentences_of(markdown: str) -> list[Sentence]:
    """All prose of a page in order. Headings and cells without a full stop are no whole sentences."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    found: list[Sentence] = []
    for before, token in pairwise(tokens):
        if token.type == "inline" and token.map:
            loose = before.type in {"heading_open", "th_open", "td_open"} or before.hidden
            found += _sentences(token, token.map[0] + 1, loose=loose)
    return found


def _sentences(token: Token, line: int, *, loose: bool) -> Iterator[Sentence]:
    codes = []
    text = ""
    for child in token.children or ():
        if child.type == "code_inline":
            codes.append(child.content)
            text += CODE
        elif child.type == "text":
            text += child.content
        elif child.type in {"softbreak", "hardbreak"}:
            text += "\n"
    shown = iter(codes)
    start = 0
    for end in (*(match.end() for match in _ENDS.finditer(text)), len(text)):
        part = text[start:end]
        words = tuple(_word(word) for word in part.split() if re.search(rf"[\w{CODE}]", word))
        if words:
            said = re.sub(CODE, lambda _: f"`{next(shown)}`", " ".join(part.split()))
            whole = not loose or part.rstrip(" \n\"')]").endswith((".", "!", "?"))
            yield Sentence(line + text.count("\n", 0, start), said, words, whole)
        start = end


def _word(word: str) -> str:
    bare = word.strip(".,:;!?()[]\"'…")
    return bare if re.search(r"[a-zA-Z]", bare) and CODE not in bare else PLAIN


def faults_of(name: str, markdown: str) -> list[str]:
    """A line for each fault of a page: file, line, the sentence, and which rule it breaks."""
    found = sentences_of(markdown)
    faults = []
    for each in found:
        if len(each.words) > LONGEST:
            faults.append(f"{name}:{each.line}: {len(each.words)} words, at most {LONGEST}: {each.text}")
        if _OPENINGS.match(each.text):
            faults.append(f"{name}:{each.line}: opens with a question word, not with a noun: {each.text}")
    whole = [each for each in found if each.whole]
    if whole and (middle := median(len(each.words) for each in whole)) > MEDIAN:
        faults.append(f"{name}: sentences have {middle:g} words (median), at most {MEDIAN}")
    if whole and (grade := grade_of(whole)) > GRADE:
        faults.append(f"{name}: grade {grade:.1f}, at most {GRADE:g}; the hardest sentences:")
        hardest = sorted(whole, key=lambda each: each.grade, reverse=True)[:3]
        faults += [f"{name}:{each.line}: grade {each.grade:.1f}: {each.text}" for each in hardest]
    return faults


def main(names: list[str]) -> int:
    """Prints all faults; 1 where there is one."""
    pages = [Path(name) for name in names] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    faults: list[str] = []
    for page in pages:
        resolved = page.resolve()
        name = str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else str(page)
        faults += faults_of(name, page.read_text(encoding="utf-8"))
    print("\n".join(faults), end="\n" if faults else "")  # noqa: T201
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
