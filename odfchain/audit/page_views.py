"""What a page shows of each dataset: texts in the order and the number in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from odfchain.audit.page_blocks import Row, Strip, read_blocks, rows_of, strip_of
from odfchain.audit.page_document import Part
from odfchain.audit.page_summary import (
    MARKS,
    OUTCOMES,
    Facts,
    Named,
    SignatureView,
    brief_of,
    facts_of,
    kind_of,
    name_of,
    signature_of,
)
from odfchain.audit.page_words import Some, T, blocks_in_words, moment, some
from odfchain.limits import PageLimits


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
    inputs: Some[InputView]


@dataclass(frozen=True, slots=True)
class DatasetView:
    """One dataset as the page shows it."""

    facts: Facts
    brief: tuple[Named, ...]
    identity: tuple[Named, ...]
    faults: Some[FaultView]
    checks: Some[CheckView]
    unchecked: Some[Named]
    notes: Some[str]
    strip: Strip | None
    rows: tuple[Row, ...]
    signature: SignatureView
    attestations: Some[AttestationView]
    inputs: Some[InputView]


def dataset_view(part: Part, limits: PageLimits) -> DatasetView:
    """The view of a report.

    Raises:
        ManifestError: the report is not of the form that it should be.
    """
    faults, checks = part["faults"].items(), part["checks"].items()
    names = {check["number"].number(): check["name"].text(limits.text) for check in checks}
    blocks = read_blocks(part["blocks"].items(), len(faults))
    head = part["head"].value
    return DatasetView(
        facts=facts_of(part, limits),
        brief=brief_of(part, limits),
        identity=_identity(part, limits),
        faults=_views(faults, limits.faults, lambda fault: _fault(fault, names, limits)),
        checks=_views(checks, limits.lines, lambda check: _check(check, limits)),
        unchecked=_views(part["unchecked"].items(), limits.lines, lambda u: _unchecked(u, names, limits)),
        notes=_views(part["notes"].items(), limits.lines, lambda note: note.text(limits.message)),
        strip=strip_of(blocks, limits.marks),
        rows=tuple(rows_of(blocks, limits.rows)),
        signature=signature_of(part, limits),
        attestations=_views(
            part["attestations"].items(), limits.lines, lambda a: _attestation(a, head, limits)
        ),
        inputs=_inputs(part["inputs"], limits, iter(range(limits.lines)), _DEEPEST),
    )


def _views(parts: Sequence[Part], limit: int, view: Callable[[Part], T]) -> Some[T]:
    kept = some(parts, limit)
    return Some(tuple(view(part) for part in kept.shown), kept.rest)


def _identity(part: Part, limits: PageLimits) -> tuple[Named, ...]:
    dataset, head, number = part["dataset"], part["head"], part["sequenceNumber"]
    lines = [
        Named("Dataset", dataset["id"].text(limits.text), code=True),
        Named("Kind", kind_of(dataset["kind"])),
        Named("Head", head.text(100) if head.known else "not known", code=head.known),
    ]
    if number.known:
        lines.append(Named("Newest block", f"{number.number():,}"))
    for name in ("from", "to"):
        end = part["range"][name]
        if end.known:
            lines.append(Named(f"Range {name}", end.text(100), code=True))
    return tuple(lines)


def _fault(part: Part, names: dict[int, str], limits: PageLimits) -> FaultView:
    number, block, check = part["sequenceNumber"], part["block"], part["check"].number()
    return FaultView(
        where=f"Block {number.number():,}" if number.known else "The whole dataset",
        check=f"check {check} {names.get(check, '')}".strip(),
        message=part["message"].text(limits.message),
        file=part["file"].text(limits.message),
        block=block.text(100) if block.known else "",
    )


def _check(part: Part, limits: PageLimits) -> CheckView:
    reason = part["reason"]
    state, word = OUTCOMES[part["state"].word(*OUTCOMES)]
    return CheckView(
        number=part["number"].number(),
        name=part["name"].text(limits.text),
        section=part["section"].text(limits.text),
        state=state,
        result=word,
        checked=part["checked"].number(),
        faults=part["faults"].number(),
        reason=reason.text(limits.message) if reason.known else "",
    )


def _unchecked(part: Part, names: dict[int, str], limits: PageLimits) -> Named:
    check = part["check"]
    found = f"Check {check.number()} {names.get(check.number(), '')}".strip() if check.known else ""
    blocks = blocks_in_words(block.number() for block in part["blocks"].items())
    where = ", ".join(filter(None, (found, blocks))) or "The whole dataset"
    return Named(where[0].upper() + where[1:], part["message"].text(limits.message))


def _attestation(part: Part, head: object, limits: PageLimits) -> AttestationView:
    verdict = part["verdict"].text(20)
    same, trusted = part["head"].value == head, part["trusted"].flag()
    counts = verdict != "clean" or (same and trusted)  # a stranger's praise is no green mark here
    return AttestationView(
        auditor=part["auditor"].text(limits.text),
        about=f"{'this head' if same else 'another head'}, block {part['sequenceNumber'].number():,}",
        head=part["head"].text(100),
        time=moment(part["time"].text(40)),
        state=MARKS.get(verdict, "unchecked") if counts else "none",
        verdict=verdict,
        trusted=trusted,
    )


_DEEPEST = 24
"""Datasets below each other in a lineage that are shown."""


def _inputs(part: Part, limits: PageLimits, places: Iterator[int], deeper: int) -> Some[InputView]:
    """The inputs of a dataset with theirs, as long as there are places on the page."""
    found = part.items()
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
    return Some(tuple(views), len(found) - len(views))
