"""Verification reports as one HTML page that a person sends to a colleague.

The page is one file that asks for nothing and runs nothing (`profiles.pages`). What there is no room for is
counted, and said to be left out. The same reports always give the same page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odfchain.errors import ManifestError, UsageError
from odfchain.limits import PAGE, PageLimits
from odfchain.profiles.pages import (
    DocumentNode,
    Excerpt,
    LabelledValue,
    T,
    blocks_in_words,
    day,
    excerpt,
    fitted,
    listed,
    moment,
    one_page,
    size_in_words,
)
from odfchain.text import counted

# The blocks of a chain on a page: marks of a strip, and rows of a table; few of both for many blocks.
# A mark may represent several blocks, and has the worst state among them. In the table faulty blocks and
# their neighbours keep rows of their own; the others form ranges.

STATES = {"faulty": "faulty", "unchecked": "not checked", "ok": "as recorded"}
"""The states of a block, the worst first, in words."""

KINDS = {
    "data": "data added",
    "merge": "branch merged",
    "transform": "transformation executed",
    "definition": "definition changed",
    "seed": "dataset created",
}
"""Labels of event kinds."""

# What a template shows; every text in it is cut.
View = dict[str, Any]

_KIND_OF = {"AddData": "data", "ExecuteTransform": "transform", "Seed": "seed"}


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block as the report has it; `faults` are indexes into the faults of the report."""

    number: int
    hash: str
    time: str
    event: str
    records: int
    watermark: str | None
    state: str
    faults: tuple[int, ...]
    merged: str | None = None
    """The branch that it merged."""

    @property
    def kind(self) -> str:
        """The event's kind, as in `KINDS`."""
        return "merge" if self.merged is not None else _KIND_OF.get(self.event, "definition")

    @property
    def what(self) -> str:
        """Its event in words."""
        return self.event if self.merged is None else f"{self.event}, merged from {self.merged}"


def read_blocks(parts: Sequence[DocumentNode], faults: int) -> list[BlockView]:
    """The blocks of a report with `faults` faults, oldest first as in the report."""
    views = []
    for node in parts:
        named = []
        for index in node["faults"].items():
            if not 0 <= index.number() < faults:
                index.refuse("the index of a fault")
            named.append(index.number())
        mark, merged = node["watermark"], node.optional("merged")
        views.append(
            BlockView(
                number=node["sequenceNumber"].number(),
                hash=node["hash"].text(100),
                time=node["systemTime"].text(40),
                event=node["event"].text(40),
                records=node["records"].number(),
                watermark=mark.text(40) if mark.known else None,
                state=node["state"].word(*STATES),
                faults=tuple(named),
                merged=merged.text(64) if merged is not None else None,
            )
        )
    return views


def strip_of(blocks: Sequence[BlockView], limit: int) -> View | None:
    """The time line of a chain in at most `limit` marks; None for a chain of which no block is known."""
    if not blocks:
        return None
    each = -(-len(blocks) // limit)
    groups = [blocks[start : start + each] for start in range(0, len(blocks), each)]
    kinds, states = _tally(blocks)
    return {
        "marks": tuple(_mark(group) for group in groups),
        "blocks": len(blocks),
        "each": each,
        "first": f"block {blocks[0].number:,}, {day(blocks[0].time)}",
        "last": f"block {blocks[-1].number:,}, {day(blocks[-1].time)}" if len(blocks) > 1 else "",
        "kinds": kinds,
        "states": states,
        "summary": f"{counted(len(blocks), 'block')}: {_states_in_words(states)}; {_kinds_in_words(kinds)}",
    }


def _tally(blocks: Sequence[BlockView]) -> tuple[dict[str, int], dict[str, int]]:
    # in the order of the tables above
    kinds, states = Counter(b.kind for b in blocks), Counter(b.state for b in blocks)
    return {k: kinds[k] for k in KINDS if kinds[k]}, {s: states[s] for s in STATES if states[s]}


def _states_in_words(states: Mapping[str, int]) -> str:
    return listed([f"{number:,} {STATES[state]}" for state, number in states.items()])


def _kinds_in_words(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{KINDS[kind]}: {number:,}" for kind, number in kinds.items())


_HEIGHT = 40
# Heights tell kinds apart, as colours do: a dataset has data or transformations, and one creation.
_HEIGHTS = {"data": 40, "merge": 40, "transform": 40, "definition": 18, "seed": 40}
# The height of a kind that few blocks of a mark have.
_SEEN = 4


def _mark(group: Sequence[BlockView]) -> View:
    kinds, states = _tally(group)
    if len(group) == 1:
        (block,) = group
        height = _HEIGHTS[block.kind]
        title = f"Block {block.number:,}, {moment(block.time)}: {block.what}, {STATES[block.state]}"
        bars = [{"kind": block.kind, "top": _HEIGHT - height, "height": height}]
        return {"title": title, "state": block.state, "bars": bars}
    bars, below = [], _HEIGHT
    for kind, number in sorted(kinds.items(), key=lambda item: item[1]):
        top = max(0, below - max(_SEEN, round(_HEIGHT * number / len(group))))
        bars.append({"kind": kind, "top": top, "height": below - top})
        below = top
    title = f"Blocks {group[0].number:,} to {group[-1].number:,}, {_days(group)}: "
    title += f"{_kinds_in_words(kinds)}; {_states_in_words(states)}"
    return {"title": title, "state": next(iter(states)), "bars": bars}


def _days(group: Sequence[BlockView]) -> str:
    first, last = day(group[0].time), day(group[-1].time)
    return first if first == last else f"{first} to {last}"


def rows_of(blocks: Sequence[BlockView], limit: int) -> list[View]:
    """The table of a chain in about `limit` rows (at most twice as many), every block in one of them."""
    if len(blocks) <= limit:
        return [_row(block) for block in blocks]
    return [
        _row(group[0]) if len(group) == 1 else _range_row(group) for group in _groups(blocks, max(4, limit))
    ]


def _groups(blocks: Sequence[BlockView], limit: int) -> Iterator[Sequence[BlockView]]:
    alone = {0, len(blocks) - 1}
    for index, block in enumerate(blocks):
        if len(alone) >= limit // 2:
            break
        if block.state == "faulty":
            alone |= {index - 1, index, index + 1} & set(range(len(blocks)))
    # ranges of a round length, so that their labels are easy to read
    piece = _round_up(-(-len(blocks) // max(1, limit // 3)))
    start = 0
    for index in [*sorted(alone), len(blocks)]:
        while start < index:
            end = min(index, start - start % piece + piece)
            yield blocks[start:end]
            start = end
        if index < len(blocks):
            yield blocks[index : index + 1]
            start = index + 1


def _round_up(number: int) -> int:
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= number:
                return step * factor
        step *= 10


def _row(block: BlockView) -> View:
    return {
        "where": f"{block.number:,}",
        "time": moment(block.time),
        "event": block.what,
        "records": block.records,
        "watermark": moment(block.watermark) if block.watermark else "",
        "state": block.state,
        "result": STATES[block.state],
        "hash": block.hash,
        "faults": block.faults,
    }


def _range_row(group: Sequence[BlockView]) -> View:
    kinds, states = _tally(group)
    watermarks = [block.watermark for block in group if block.watermark]
    worst = next(iter(states))
    return {
        "where": f"{group[0].number:,} to {group[-1].number:,}",
        "time": _days(group),
        "event": _kinds_in_words(kinds),
        "records": sum(block.records for block in group),
        "watermark": moment(watermarks[-1]) if watermarks else "",
        "state": worst,
        "result": f"all {STATES[worst]}" if len(states) == 1 else _states_in_words(states),
        "hash": "",
        "faults": (),
    }


# Reading a report document (`odfchain-report/1`), typed, with paths in errors.
# Reports are handed on as files, and a page must not claim more than its report: missing, mistyped and
# contradictory members are refused.

FORMAT = "odfchain-report/1"
VERDICTS = ("clean", "faulty", "incomplete")
_HINT = "a page is made from the whole output of `odfchain verify -o json`"


def checked_document(document: Mapping[str, object], path: str) -> DocumentNode:
    """The document, which is a report and does not contradict itself in what it says first."""
    node = DocumentNode(document, path, _HINT)
    form = node["format"]
    if form.value != FORMAT:
        form.refuse(f'"{FORMAT}"')
    verdict = node["verdict"].word(*VERDICTS)
    faulty = bool(node["faults"].items())
    for check in node["checks"].items():
        faulty |= check["state"].value == "failed" or check["faults"].number() > 0
    faulty |= any(block["state"].value == "faulty" for block in node["blocks"].items())
    if faulty != (verdict == "faulty"):
        contrary = "faults, blocks or checks say otherwise"
        raise ManifestError(
            f'the verdict is "{verdict}", its {contrary}', path=node["verdict"].path, hint=_HINT
        )
    return node


# Summary of a dataset at the top of a page: the verdict and its evidence.

MARKS = {"faulty": "faulty", "incomplete": "unchecked", "clean": "ok"}
"""The verdicts, the worst first, and how each is marked."""

OUTCOMES = {
    "failed": ("faulty", "failed"),
    "notChecked": ("unchecked", "not checked"),
    "passed": ("ok", "passed"),
    "notApplicable": ("none", "not applicable"),
}
"""The outcomes of a check, the worst first: how each is marked, and in words."""

_SIGNATURES = {
    "signed": ("ok", "signed"),
    "unsigned": ("none", "not signed"),
    "invalid": ("faulty", "invalid"),
    "notChecked": ("unchecked", "not checked"),
}


def facts_of(node: DocumentNode, limits: PageLimits) -> View:
    """The summary of a report."""
    dataset, counts = node["dataset"], node["counts"]
    verdict = node["verdict"].word(*MARKS)
    title, lead = _verdict(node, verdict)
    return {
        "id": dataset["id"].text(limits.text),
        "name": name_of(dataset["alias"], limits),
        "kind": kind_of(dataset["kind"]),
        "verdict": verdict,
        "state": MARKS[verdict],
        "title": title,
        "lead": lead,
        "blocks": counts["blocks"].number(),
        "records": counts["records"].number(),
        "faults": len(node["faults"].items()),
    }


def checked_by(node: DocumentNode, limits: PageLimits) -> str:
    """The tool of a report, its time, and its engines."""
    engines = [f"{e['name'].text(60)} {e['version'].text(60)}" for e in node["engines"].items()[:8]]
    using = f"; transformations computed again with {listed(engines)}" if engines else ""
    return f"Checked by {node['tool'].text(limits.text)} on {moment(node['time'].text(40))}{using}."


def name_of(alias: DocumentNode, limits: PageLimits) -> str:
    """The name of a dataset, or that it has none."""
    return (alias.text(limits.text) if alias.known else "") or "dataset without a name"


def kind_of(kind: DocumentNode) -> str:
    """The kind of a dataset in words."""
    return f"{kind.word('root', 'derivative')} dataset" if kind.known else "dataset of unknown kind"


def _verdict(node: DocumentNode, verdict: str) -> tuple[str, str]:
    omitted = [check for check in node["checks"].items() if check["state"].value == "notChecked"]
    # a clean verdict must not claim more than was checked
    missing = bool(omitted or node["unchecked"].items())
    if verdict == "faulty":
        found = counted(len(node["faults"].items()), "fault")
        rest = " Not everything was checked." if missing else ""
        return "Faulty", f"{found} found: what is stored is not what was recorded.{rest}"
    if verdict == "incomplete":
        return "Incomplete", "No fault was found, but not everything that was asked for could be checked."
    if missing:
        return "Clean", "No fault was found in what was checked; not every check was made."
    return "Clean", "No fault was found: every check that applies was made, and passed."


def brief_of(node: DocumentNode, limits: PageLimits) -> tuple[LabelledValue, ...]:
    """How the checks ended, what was read, what was not checked, and whether the head is signed."""
    checks, counts = node["checks"].items(), node["counts"]
    states = [check["state"].word(*OUTCOMES) for check in checks]
    words = [f"{states.count(s):,} {word}" for s, (_, word) in OUTCOMES.items() if s in states]
    left = [check["name"].text(limits.text) for check in checks if check["state"].value == "notChecked"]
    omitted = excerpt(left, limits.lines)
    more = [f"{omitted.rest:,} more"] if omitted.rest else []
    reach = [
        counted(counts["blocks"].number(), "block"),
        counted(counts["slices"].number(), "slice"),
        counted(counts["records"].number(), "record"),
        f"{size_in_words(counts['bytes'].number())} of data",
    ]
    replayed = counts["replayed"].number()
    again = f"; {counted(replayed, 'transaction')} computed again" if replayed else ""
    lines = [
        LabelledValue("Checks", f"{listed(words)}." if words else "none."),
        LabelledValue("Read", f"{listed(reach)}{again}."),
    ]
    partly = {block.number() for item in node["unchecked"].items() for block in item["blocks"].items()}
    if partly:
        more.append(f"parts of {counted(len(partly), 'block')}")
    if left or more:
        lines.append(LabelledValue("Not checked", f"{listed([*omitted.shown, *more])}."))
    return (*lines, LabelledValue("Signature", signature_of(node, limits)["sentence"]))


def signature_of(report: DocumentNode, limits: PageLimits) -> View:
    """The signature of the head of a report."""
    node = report["signature"]
    status = node["status"].word(*_SIGNATURES)
    state, word = _SIGNATURES[status]
    signer, time, message = (
        field.text(limits.message) if field.known else ""
        for field in (node["signer"], node["time"], node["message"])
    )
    if status == "signed":
        own = node["signer"].value == report["dataset"]["id"].value
        key = "the dataset's own key" if own else "another key than the dataset's own"
        sentence = f"The head is signed with {key}{f', on {moment(time)}' if time else ''}."
    else:
        sentence = _UNSIGNED[status]
    whole = f"{sentence[:-1]}: {message}" if message else sentence
    return {"state": state, "word": word, "sentence": whole, "signer": signer}


_UNSIGNED = {
    "invalid": "The signature of the head is not valid.",
    "unsigned": "The head is not signed: nothing here shows who published it.",
    "notChecked": "Whether the head is signed was not checked.",
}


# View of each dataset: texts in order, limited in number.


def dataset_view(node: DocumentNode, limits: PageLimits) -> View:
    """The view of a report."""
    faults, checks = node["faults"].items(), node["checks"].items()
    names = {check["number"].number(): check["name"].text(limits.text) for check in checks}
    blocks = read_blocks(node["blocks"].items(), len(faults))
    head = node["head"].value
    return {
        "facts": facts_of(node, limits),
        "brief": brief_of(node, limits),
        "identity": _identity(node, limits),
        "faults": _views(faults, limits.faults, lambda fault: _fault(fault, names, limits)),
        "checks": _views(checks, limits.lines, lambda check: _check(check, limits)),
        "unchecked": _views(node["unchecked"].items(), limits.lines, lambda u: _unchecked(u, names, limits)),
        "notes": _views(node["notes"].items(), limits.lines, lambda note: note.text(limits.message)),
        "strip": strip_of(blocks, limits.marks),
        "rows": tuple(rows_of(blocks, limits.rows)),
        "signature": signature_of(node, limits),
        "attestations": _views(
            node["attestations"].items(), limits.lines, lambda a: _attestation(a, head, limits)
        ),
        "inputs": _inputs(node["inputs"], limits, iter(range(limits.lines)), _DEEPEST),
    }


def _views(parts: Sequence[DocumentNode], limit: int, view: Callable[[DocumentNode], T]) -> Excerpt[T]:
    kept = excerpt(parts, limit)
    return Excerpt(tuple(view(node) for node in kept.shown), kept.rest)


def _identity(node: DocumentNode, limits: PageLimits) -> tuple[LabelledValue, ...]:
    dataset, head, number = node["dataset"], node["head"], node["sequenceNumber"]
    lines = [
        LabelledValue("Dataset", dataset["id"].text(limits.text), code=True),
        LabelledValue("Kind", kind_of(dataset["kind"])),
        LabelledValue("Head", head.text(100) if head.known else "not known", code=head.known),
    ]
    if number.known:
        lines.append(LabelledValue("Newest block", f"{number.number():,}"))
    for name in ("from", "to"):
        end = node["range"][name]
        if end.known:
            lines.append(LabelledValue(f"Range {name}", end.text(100), code=True))
    return tuple(lines)


def _fault(node: DocumentNode, names: dict[int, str], limits: PageLimits) -> View:
    number, block, check = node["sequenceNumber"], node["block"], node["check"].number()
    return {
        "where": f"Block {number.number():,}" if number.known else "The whole dataset",
        "check": f"check {check} {names.get(check, '')}".strip(),
        "message": node["message"].text(limits.message),
        "file": node["file"].text(limits.message),
        "block": block.text(100) if block.known else "",
    }


def _check(node: DocumentNode, limits: PageLimits) -> View:
    reason = node["reason"]
    state, word = OUTCOMES[node["state"].word(*OUTCOMES)]
    return {
        "number": node["number"].number(),
        "name": node["name"].text(limits.text),
        "section": node["section"].text(limits.text),
        "state": state,
        "result": word,
        "checked": node["checked"].number(),
        "faults": node["faults"].number(),
        "reason": reason.text(limits.message) if reason.known else "",
    }


def _unchecked(node: DocumentNode, names: dict[int, str], limits: PageLimits) -> LabelledValue:
    check = node["check"]
    name = f"Check {check.number()} {names.get(check.number(), '')}".strip() if check.known else ""
    blocks = blocks_in_words(block.number() for block in node["blocks"].items())
    where = ", ".join(filter(None, (name, blocks))) or "The whole dataset"
    return LabelledValue(where[0].upper() + where[1:], node["message"].text(limits.message))


def _attestation(node: DocumentNode, head: object, limits: PageLimits) -> View:
    verdict = node["verdict"].text(20)
    same, trusted = node["head"].value == head, node["trusted"].flag()
    counts = verdict != "clean" or (same and trusted)  # an unknown auditor's praise is no green mark here
    return {
        "auditor": node["auditor"].text(limits.text),
        "about": f"{'this head' if same else 'another head'}, block {node['sequenceNumber'].number():,}",
        "head": node["head"].text(100),
        "time": moment(node["time"].text(40)),
        "state": MARKS.get(verdict, "unchecked") if counts else "none",
        "verdict": verdict,
        "trusted": trusted,
    }


# Datasets below each other in a lineage that are shown.
_DEEPEST = 24


def _inputs(node: DocumentNode, limits: PageLimits, places: Iterator[int], deeper: int) -> Excerpt[View]:
    found = node.items()
    views: list[View] = []
    for item in found if deeper else ():
        # the number of places bounds the page, whatever the document claims
        if next(places, None) is None:
            break
        views.append(
            {
                "id": item["id"].text(limits.text),
                "name": name_of(item["alias"], limits),
                "kind": kind_of(item["kind"]),
                "missing": item["missing"].flag(),
                "inputs": _inputs(item["inputs"], limits, places, deeper - 1),
            }
        )
    return Excerpt(tuple(views), len(found) - len(views))


def render_page(documents: Sequence[Mapping[str, object]], limits: PageLimits = PAGE) -> str:
    """One self-contained HTML page, no larger than `limits` allow, about one report or several.

    Nothing in a document can put markup, script or a reference to another file into the page.
    """
    if not documents:
        raise UsageError("no report to make a page from")
    several = len(documents) > 1
    parts = [checked_document(d, f"[{n}]" if several else "") for n, d in enumerate(documents)]
    # faulty datasets come first
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
        places={view["facts"]["id"]: number for number, view in reversed(list(enumerate(detailed)))},
        KINDS=KINDS,
        STATES=STATES,
    )


def _overall(facts: Sequence[View]) -> tuple[str, str, str]:
    if len(facts) == 1:
        return facts[0]["state"], facts[0]["title"], facts[0]["lead"]
    counts = {verdict: sum(f["verdict"] == verdict for f in facts) for verdict in MARKS}
    tally = {verdict: number for verdict, number in counts.items() if number}
    # verdicts are ordered from the worst
    worst = next(iter(tally))
    words = listed([f"{number:,} {verdict}" for verdict, number in tally.items()])
    return MARKS[worst], worst.capitalize(), f"{counted(len(facts), 'dataset')}: {words}."
