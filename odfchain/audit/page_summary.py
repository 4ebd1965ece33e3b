"""What a page says first of a dataset: the verdict in plain words, and what it rests on.

What is not of the form that a report has is a ManifestError.
"""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.limits import PageLimits
from odfchain.pages.document_node import DocumentNode
from odfchain.pages.page_words import LabelledValue, excerpt, listed, moment, size_in_words
from odfchain.text import counted

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


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """What is said of a dataset wherever it is mentioned; `state` is how it is marked."""

    id: str
    name: str
    kind: str
    verdict: str
    state: str
    title: str
    lead: str
    blocks: int
    records: int
    faults: int


@dataclass(frozen=True, slots=True)
class SignatureView:
    """Whether the head is signed: in a word with its mark, in a sentence, and by whom."""

    state: str
    word: str
    sentence: str
    signer: str


def facts_of(node: DocumentNode, limits: PageLimits) -> DatasetSummary:
    """What a report says first."""
    dataset, counts = node["dataset"], node["counts"]
    verdict = node["verdict"].word(*MARKS)
    title, lead = _verdict(node, verdict)
    return DatasetSummary(
        id=dataset["id"].text(limits.text),
        name=name_of(dataset["alias"], limits),
        kind=kind_of(dataset["kind"]),
        verdict=verdict,
        state=MARKS[verdict],
        title=title,
        lead=lead,
        blocks=counts["blocks"].number(),
        records=counts["records"].number(),
        faults=len(node["faults"].items()),
    )


def checked_by(node: DocumentNode, limits: PageLimits) -> str:
    """Which tool made a report, when, and which engines computed for it."""
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
    """The verdict in a word, and in a sentence that does not say more than was done."""
    omitted = [check for check in node["checks"].items() if check["state"].value == "notChecked"]
    missing = bool(omitted or node["unchecked"].items())
    if verdict == "faulty":
        found = counted(len(node["faults"].items()), "fault")
        rest = " Besides, not everything was checked." if missing else ""
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
    return (*lines, LabelledValue("Signature", signature_of(node, limits).sentence))


def signature_of(report: DocumentNode, limits: PageLimits) -> SignatureView:
    """Whether the head of a report is signed."""
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
    return SignatureView(state, word, f"{sentence[:-1]}: {message}" if message else sentence, signer)


_UNSIGNED = {
    "invalid": "The signature of the head is not valid.",
    "unsigned": "The head is not signed: nothing here shows who published it.",
    "notChecked": "Whether the head is signed was not checked.",
}
