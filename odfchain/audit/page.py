"""Verification reports as one HTML page that a person sends to a colleague.

The page is one file that asks for nothing and runs nothing (`odfchain.pages`). What there is no room for is
counted, and said to be left out. The same reports always give the same page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odfchain.audit.page_blocks import KINDS, STATES
from odfchain.audit.page_document import checked_document
from odfchain.audit.page_summary import MARKS, DatasetSummary, checked_by, facts_of
from odfchain.audit.page_views import dataset_view
from odfchain.errors import UsageError
from odfchain.limits import PAGE, PageLimits
from odfchain.pages.document_node import DocumentNode
from odfchain.pages.one_file import fitted, one_page
from odfchain.pages.page_words import excerpt, listed
from odfchain.text import counted


def render_page(documents: Sequence[Mapping[str, object]], limits: PageLimits = PAGE) -> str:
    """One self-contained HTML page, no larger than `limits` allow, about one report or several.

    The documents are those of `odfchain verify -o json`. Faulty datasets come first. Nothing in a document
    can put markup, script or a reference to another file into the page.

    Raises:
        UsageError: there is no document.
    """
    if not documents:
        raise UsageError("there is no report to make a page from")
    several = len(documents) > 1
    parts = [checked_document(d, f"[{n}]" if several else "") for n, d in enumerate(documents)]
    parts.sort(key=lambda node: list(MARKS).index(node["verdict"].word(*MARKS)))
    return fitted(lambda limits: _render(parts, limits), limits)


def _render(parts: Sequence[DocumentNode], limits: PageLimits) -> str:
    detailed = [dataset_view(node, limits.for_each(len(parts))) for node in parts[: limits.sections]]
    facts = [facts_of(node, limits) for node in parts]
    state, title, lead = _overall(facts)
    return one_page(
        "audit",
        "page.html.j2",
        "page.css",
        state=state,
        title=title,
        lead=lead,
        by=excerpt(sorted({checked_by(node, limits) for node in parts}), 8),
        facts=excerpt(facts, limits.datasets),
        datasets=detailed,
        places={view.facts.id: number for number, view in reversed(list(enumerate(detailed)))},
        KINDS=KINDS,
        STATES=STATES,
    )


def _overall(facts: Sequence[DatasetSummary]) -> tuple[str, str, str]:
    """The verdict on all datasets: how it is marked, the headline, and a sentence."""
    if len(facts) == 1:
        return facts[0].state, facts[0].title, facts[0].lead
    counts = {verdict: sum(f.verdict == verdict for f in facts) for verdict in MARKS}
    tally = {verdict: number for verdict, number in counts.items() if number}
    worst = next(iter(tally))
    words = listed([f"{number:,} {verdict}" for verdict, number in tally.items()])
    return MARKS[worst], worst.capitalize(), f"{counted(len(facts), 'dataset')}: {words}."
