"""The page of a comparison: what exceeds its limit first, then every column, last what was not compared.

One file that asks for nothing and runs nothing (`odfchain.pages`). Names and values come from the publishers
of the data: they are escaped, cut, and counted where there is no room for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from odfchain.drift.compared_profile import ComparedProfile
from odfchain.drift.page_columns import column_view, line_view, shared_columns
from odfchain.limits import DRIFT_PAGE, DriftPageLimits
from odfchain.pages.one_file import fitted, one_page
from odfchain.pages.page_words import excerpt, moment
from odfchain.text import counted, cut


class Fact(NamedTuple):
    """A line of a list of facts; a `code` is there to be copied."""

    label: str
    value: str
    code: bool = False


def drift_page(
    document: Mapping[str, Any],
    before: ComparedProfile,
    after: ComparedProfile,
    limits: DriftPageLimits = DRIFT_PAGE,
) -> str:
    """One self-contained HTML page about a comparison, no larger than `limits` allow."""
    return fitted(lambda limits: _render(document, before, after, limits), limits)


def _render(
    document: Mapping[str, Any], before: ComparedProfile, after: ComparedProfile, limits: DriftPageLimits
) -> str:
    names = excerpt(shared_columns(before, after, document["lines"]), limits.columns)
    places = {name: place for place, name in enumerate(names.shown)}
    lines = [line_view(line, places, limits) for line in document["lines"]]
    by_column: dict[int, list[Any]] = {}
    for line in lines:
        if line.place is not None:
            by_column.setdefault(line.place, []).append(line)
    rows = before.rows, after.rows
    columns = [
        column_view(before.columns[name], after.columns[name], rows, by_column.get(place, []), limits)
        for name, place in places.items()
    ]
    state, title, lead = _verdict(document)
    missing = [
        (cut(each["column"], limits.text) if each["column"] is not None else "all rows", each["reason"])
        for each in document["notCompared"]
    ]
    return one_page(
        "drift",
        "drift.html.j2",
        "drift.css",
        state=state,
        title=title,
        lead=lead,
        name=_name(before, after, limits),
        facts=_facts(document, before, after),
        notes=excerpt(document["notes"], limits.lines),
        breaches=excerpt([line for line in lines if line.state == "faulty"], limits.lines),
        columns=columns,
        columns_rest=names.rest,
        lines=excerpt(lines, limits.lines),
        missing=excerpt(missing, limits.lines),
        sides=(f"before: block {before.sequence_number:,}", f"after: block {after.sequence_number:,}"),
    )


def _verdict(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """How the comparison is marked, its headline, and a sentence that does not say more than was done."""
    number = document["breaches"]
    if number:
        return "faulty", "Limits exceeded", f"{counted(number, 'figure')} beyond what the limits allow."
    if not any(line["verdict"] == "ok" and line["column"] is not None for line in document["lines"]):
        return "unchecked", "Not judged", "No distribution was held against a limit; the last part says why."
    rest = " by what was compared; the last part says what was not" if document["notCompared"] else ""
    return "ok", "Within the limits", f"No limit is exceeded{rest}."


def _name(before: ComparedProfile, after: ComparedProfile, limits: DriftPageLimits) -> str:
    names = dict.fromkeys(cut(side.name, limits.text) for side in (before, after))
    return " → ".join(names)


def _facts(document: Mapping[str, Any], before: ComparedProfile, after: ComparedProfile) -> list[Fact]:
    whole = {line["metric"]: line for line in document["lines"] if line["column"] is None}
    facts = [Fact("Rows", f"{before.rows:,} → {after.rows:,}")]
    if "jaccard" in whole:
        facts.append(Fact("In common", whole["jaccard"]["text"]))
    for label, side in (("Before", before), ("After", after)):
        facts += [
            Fact(label, f"block {side.sequence_number:,} of {side.name}, {moment(side.created_at)}"),
            Fact("", side.snapshot_id, code=True),
        ]
    if before.dataset_id != after.dataset_id:
        facts += [Fact("Datasets", side.dataset_id, code=True) for side in (before, after)]
    else:
        facts.append(Fact("Dataset", after.dataset_id, code=True))
    return facts
