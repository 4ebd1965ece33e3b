"""`docs/plain.py`: a page that is hard to read fails with file, line and sentence; code and addresses are no prose."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.support import ROOT

PLAIN_PAGE = """\
# Keep

The command keeps the table. Its name stays (`odfchain rename OLD_REPOSITORY NEW_REPOSITORY --unquestionably`).
A [link](https://example.org/an/incomprehensible/administrative/address) is its text.

```sh
odfchain what is typed counts for nothing, however incomprehensible and however many words it may take in the end
```

| file | is |
|---|---|
| `a.csv` | a list. The list is short. |
"""
LONG = "The dog " + "and the cat " * 8 + "run."


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    """The program; it stands in no package."""
    spec = spec_from_file_location("plain", ROOT / "docs" / "plain.py")
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "plain", module)
        spec.loader.exec_module(module)
    return module


def test_sentences_are_prose_alone(plain: ModuleType) -> None:
    found = plain.sentences_of(PLAIN_PAGE)
    assert [(each.line, each.text) for each in found if each.whole] == [
        (3, "The command keeps the table."),
        (3, "Its name stays (`odfchain rename OLD_REPOSITORY NEW_REPOSITORY --unquestionably`)."),
        (4, "A link is its text."),
        (12, "a list."),
        (12, "The list is short."),
    ]
    assert found[2].words == ("Its", "name", "stays", "code")
    assert plain.faults_of("keep.md", PLAIN_PAGE) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (f"\n\nIt is so.\n{LONG}\n", f"page.md:4: 27 words, at most 25: {LONG}"),
        (f"| a |\n|---|\n| {LONG} |\n", f"page.md:3: 27 words, at most 25: {LONG}"),
        ("- It is. What it does\n  is clear.", "page.md:1: opens with a question word, not with a noun: What it does is clear."),
        ("# Who reads it", "page.md:1: opens with a question word, not with a noun: Who reads it"),
        ("Those that run are *named*.", "page.md:1: opens with a question word, not with a noun: Those that run are named."),
        ("The dog and the cat and the cow and the hen and the cat all run.", "page.md: sentences have 16 words (median), at most 14"),
        ("Administrative repositories incorporate verifiability.", "page.md:1: grade 45.0: Administrative repositories incorporate verifiability."),
    ],
)  # fmt: skip
def test_a_page_that_is_hard_to_read_fails(
    plain: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str, said: str
) -> None:
    assert said in plain.faults_of("page.md", bad)
    page = tmp_path / "page.md"
    page.write_text(bad, encoding="utf-8")
    assert plain.main([str(page)]) == 1
    assert capsys.readouterr().out.startswith(f"{page}:")
    page.write_text(PLAIN_PAGE, encoding="utf-8")
    assert plain.main([str(page)]) == 0
