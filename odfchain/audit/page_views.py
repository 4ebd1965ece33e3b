"""What a page shows of each dataset: texts in the order and the number in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from odfchain.audit.page_blocks import BlockRow, Timeline, read_blocks, rows_of, strip_of
from odfchain.audit.page_summary import (
    MARKS,
    OUTCOMES,
    DatasetSummary,
    SignatureView,
    brief_of,
    facts_of,
    kind_of,
    name_of,
    signature_of,
)
from odfchain.limits import PageLimits
from odfchain.pages.document_node import DocumentNode
from odfchain.pages.page_words import Excerpt, LabelledValue, T, blocks_in_words, excerpt, moment


@dataclass(frozen=True, slots=True)
class FaultView:
    """A fault, its place in the chain, and the check that found it."""

    where: str
    check: str
    message: str
    file: str
    block: str


@dataclass(frozen=True, slots=True)
class CheckView:
    """A line of the table of checks."""

    number: int
    name: str
    section: str
    state: str
    result: str
    checked: int
    faults: int
    reason: str


@dataclass(frozen=True, slots=True)
class AttestationView:
    """What an auditor has signed."""

    auditor: str
    about: str
    head: str
    time: str
    state: str
    verdict: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class InputView:
    """A dataset that another one is derived from, with its own inputs."""

    id: str
    name: str
    kind: str
    missing: bool
    inputs: Excerpt[InputView]


@dataclass(frozen=True, slots=True)
class DatasetView:
    """One dataset as the page shows it."""

    facts: DatasetSummary
    brief: tuple[LabelledValue, ...]
    identity: tuple[LabelledValue, ...]
    faults: Excerpt[FaultView]
    checks: Excerpt[CheckView]
    unchecked: Excerpt[LabelledValue]
    notes: Excerpt[str]
    strip: Timeline | None
    rows: tuple[BlockRow, ...]
    signature: SignatureView
    attestations: Excerpt[AttestationView]
    inputs: Excerpt[InputView]


def dataset_view(node: DocumentNode, limits: PageLimits) -> DatasetView:
    """The view of a report."""
    faults, checks = node["faults"].items(), node["checks"].items()
    names = {check["number"].number(): check["name"].text(limits.text) for check in checks}
    blocks = read_blocks(node["blocks"].items(), len(faults))
    head = node["head"].value
    return DatasetView(
        facts=facts_of(node, limits),
        brief=brief_of(node, limits),
        identity=_identity(node, limits),
        faults=_views(faults, limits.faults, lambda fault: _fault(fault, names, limits)),
        checks=_views(checks, limits.lines, lambda check: _check(check, limits)),
        unchecked=_views(node["unchecked"].items(), limits.lines, lambda u: _unchecked(u, names, limits)),
        notes=_views(node["notes"].items(), limits.lines, lambda note: note.text(limits.message)),
        strip=strip_of(blocks, limits.marks),
        rows=tuple(rows_of(blocks, limits.rows)),
        signature=signature_of(node, limits),
        attestations=_views(
            node["attestations"].items(), limits.lines, lambda a: _attestation(a, head, limits)
        ),
        inputs=_inputs(node["inputs"], limits, iter(range(limits.lines)), _DEEPEST),
    )


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


def _fault(node: DocumentNode, names: dict[int, str], limits: PageLimits) -> FaultView:
    number, block, check = node["sequenceNumber"], node["block"], node["check"].number()
    return FaultView(
        where=f"Block {number.number():,}" if number.known else "The whole dataset",
        check=f"check {check} {names.get(check, '')}".strip(),
        message=node["message"].text(limits.message),
        file=node["file"].text(limits.message),
        block=block.text(100) if block.known else "",
    )


def _check(node: DocumentNode, limits: PageLimits) -> CheckView:
    reason = node["reason"]
    state, word = OUTCOMES[node["state"].word(*OUTCOMES)]
    return CheckView(
        number=node["number"].number(),
        name=node["name"].text(limits.text),
        section=node["section"].text(limits.text),
        state=state,
        result=word,
        checked=node["checked"].number(),
        faults=node["faults"].number(),
        reason=reason.text(limits.message) if reason.known else "",
    )


def _unchecked(node: DocumentNode, names: dict[int, str], limits: PageLimits) -> LabelledValue:
    check = node["check"]
    name = f"Check {check.number()} {names.get(check.number(), '')}".strip() if check.known else ""
    blocks = blocks_in_words(block.number() for block in node["blocks"].items())
    where = ", ".join(filter(None, (name, blocks))) or "The whole dataset"
    return LabelledValue(where[0].upper() + where[1:], node["message"].text(limits.message))


def _attestation(node: DocumentNode, head: object, limits: PageLimits) -> AttestationView:
    verdict = node["verdict"].text(20)
    same, trusted = node["head"].value == head, node["trusted"].flag()
    counts = verdict != "clean" or (same and trusted)  # an unknown auditor's praise is no green mark here
    return AttestationView(
        auditor=node["auditor"].text(limits.text),
        about=f"{'this head' if same else 'another head'}, block {node['sequenceNumber'].number():,}",
        head=node["head"].text(100),
        time=moment(node["time"].text(40)),
        state=MARKS.get(verdict, "unchecked") if counts else "none",
        verdict=verdict,
        trusted=trusted,
    )


_DEEPEST = 24
"""Datasets below each other in a lineage that are shown."""


def _inputs(node: DocumentNode, limits: PageLimits, places: Iterator[int], deeper: int) -> Excerpt[InputView]:
    """The inputs of a dataset with theirs, as long as there are places on the page."""
    found = node.items()
    views: list[InputView] = []
    for item in found if deeper else ():
        if next(places, None) is None:
            break
        views.append(
            InputView(
                id=item["id"].text(limits.text),
                name=name_of(item["alias"], limits),
                kind=kind_of(item["kind"]),
                missing=item["missing"].flag(),
                inputs=_inputs(item["inputs"], limits, places, deeper - 1),
            )
        )
    return Excerpt(tuple(views), len(found) - len(views))
