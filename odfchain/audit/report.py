"""Reports of a verification: faults, unchecked parts, and notes.

A fault is proof that something is not as recorded. What could not be checked proves nothing either way, so it
is kept apart: it neither accuses the dataset nor lets it pass. A check that did not run, or ran on a part
only, says so and why; it never counts as passed.

Checks are generators of findings, and know no report; those that read something for other checks return it in
the end. A report is what takes the findings.

As a document it is `odfchain-report/1` (`schemas/Report.json`). That is what an auditor signs, so it says
everything: what was found, what was looked at, what was not, and in which range of the chain.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from odfchain.chain.signed_lines import AttestationLine
from odfchain.errors import ObjectCorruptedError, StoreError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import record_of
from odfchain.slices.row_rules import CHECKS as ROW_CHECKS
from odfchain.storage import fsio
from odfchain.text import json_object, one_line, table_html
from odfchain.versions import __version__
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.private_notes import report_path

# The numbered checks, each with its section of the specification and what it finds out. Numbers are
# permanent: reports, attestations and documentation refer to them.


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of question that is asked of a dataset."""

    number: int
    name: str
    section: str


HEAD, BLOCKS, LINKS, RULES, PRESENT, PHYSICAL, LOGICAL = range(1, 8)
OFFSETS, SYSTEM, CORRECTIONS, SCHEMA = ROW_CHECKS
WATERMARKS, CHECKPOINTS, INPUTS, REPLAY, SIGNATURE = range(12, 17)
MERGES, FOREIGN_KEYS, STATISTICS, MANIFESTS, PROFILES = range(17, 22)

CHECKS = {
    number: Check(number, name, section)
    for number, name, section in (
        (HEAD, "head reference", "Metadata Chain"),  # it is a reference to a stored block
        (BLOCKS, "block bytes", "Metadata Block Hashing"),  # they hash to the block's name, and decode
        (LINKS, "chain links", "MetadataBlock"),  # previous hashes and numbers lead to a Seed
        (RULES, "append rules", "Metadata Reference"),  # every block may follow the blocks before it
        (PRESENT, "files present, sizes", "DataSlice"),  # slices and checkpoints, as declared
        (PHYSICAL, "physical hashes", "Physical and Logical Hashes"),  # of their bytes
        (LOGICAL, "logical hashes", "Physical and Logical Hashes"),  # of the records of slices
        (OFFSETS, "offsets, row counts", "Offset"),  # as many rows as offsets, which have no gaps
        (SYSTEM, "system columns", "Common Data Schema"),  # names, types, order, operations, times
        # -C is followed by its +C, and what is taken back was in force
        (CORRECTIONS, "corrections, retractions", "Representation of Retractions and Corrections"),
        (SCHEMA, "declared schema", "SetDataSchema"),  # columns are as they are declared
        (WATERMARKS, "watermarks", "Watermark"),  # they never go back, and are not ahead of the data
        (CHECKPOINTS, "checkpoints", "Checkpoint"),  # one of the state is the state (RFC-018)
        (INPUTS, "recorded inputs", "ExecuteTransformInput"),  # they are what executions say of them
        (REPLAY, "replayed transformations", "Dataset Validation"),  # they give what is recorded
        (SIGNATURE, "signature of the head", "Metadata Chain"),  # it is the owner's
        (MERGES, "merges", "AddData"),  # they are what their two sides merge into (RFC-036)
        (FOREIGN_KEYS, "foreign keys", "SetAttachments"),  # what rows refer to is there (RFC-037)
        (STATISTICS, "slice statistics", "DataSlice"),  # what footers report is true of rows (RFC-043)
        (MANIFESTS, "signed manifests", "Metadata Chain"),  # they are what chain and footers give (RFC-043)
        (PROFILES, "signed profiles", "Metadata Chain"),  # they are what the rows give (RFC-043)
    )
}
"""By number, in the order in which they are reported."""

MENDED_BY_COPIES = frozenset({HEAD, BLOCKS, PRESENT, PHYSICAL})
"""The checks whose faults another copy of a file mends."""

OF_ENGINES = "checkpoints of engines are compared by a replay only"
"""The reason for not checking the content of such checkpoints."""

OF_ROWS = (LOGICAL, OFFSETS, SYSTEM, CORRECTIONS, SCHEMA, STATISTICS)
"""The checks that need the rows of a slice."""


FORMAT = "odfchain-report/1"
CLEAN, FAULTY, INCOMPLETE = "clean", "faulty", "incomplete"
SIGNED, UNSIGNED, INVALID, NOT_CHECKED = "signed", "unsigned", "invalid", "notChecked"


# What a check finds.


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as recorded."""

    check: int
    file: str
    message: str
    sequence_number: int | None = None


def fault(check: int, file: object, message: str, block: int | None = None) -> Fault:
    """A fault; a message with untrusted text stays one line without control characters."""
    return Fault(check, str(file), one_line(message, _MESSAGE_CHARACTERS), block)


@dataclass(frozen=True, slots=True)
class Looked:
    """A check looked at something."""

    check: int
    things: int = 1


@dataclass(frozen=True, slots=True)
class Read:
    """Blocks or slices were read."""

    blocks: int = 0
    slices: int = 0
    records: int = 0
    data_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is worth knowing, and no fault."""

    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why checks did not run, or not on everything; the first reason of a check stays."""

    checks: Iterable[int]
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that was asked for could not be checked, in a block or in the whole dataset."""

    message: str
    block: int | None = None
    check: int | None = None
    also: Iterable[int] = ()
    """Other checks that did not run on it."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A checkpoint of which only the bytes are known to be the recorded ones."""

    checkpoint: Multihash


@dataclass(frozen=True, slots=True)
class Replayed:
    """An engine computed a transaction again; the recorded checkpoint, if the same came out."""

    engine: str
    checkpoint: Multihash | None = None


@dataclass(frozen=True, slots=True)
class SignatureLine:
    """The signature of the head; `status` is signed, unsigned, invalid or notChecked."""

    status: str = NOT_CHECKED
    signer: str | None = None
    time: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ListedAttestation:
    """One line of a dataset's attestations; `in_chain` if its block is in the dataset's chain."""

    line: AttestationLine
    in_chain: bool
    trusted: bool

    def __repr__(self) -> str:
        item = self.line.statement
        if item is None:
            return f"<no attestation: {self.line.message}>"
        return f"<{item.verdict} at block {item.sequence_number:,} by {item.auditor}>"


Finding: TypeAlias = (
    Fault | Looked | Read | Note | Skipped | LeftOut | Unjudged | Replayed | SignatureLine | ListedAttestation
)
T = TypeVar("T")
Checking: TypeAlias = Generator[Finding, None, T]
"""A check that runs: its findings, and what it has read for others."""

# What a report makes of it.


@dataclass(slots=True)
class Unchecked:
    """Something that was asked for and could not be checked, in some blocks or in the whole dataset."""

    message: str
    check: int | None = None
    _blocks: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks; none for the whole dataset."""
        return tuple(self._blocks)

    @property
    def where(self) -> str:
        """The blocks in a few words; empty for the whole dataset."""
        count = len(self._blocks)
        if count > _SHOWN_BLOCKS:
            return f"{count:,} blocks from {self._blocks[0]} to {self._blocks[-1]}"
        return f"block{'s' * (count > 1)} " + ", ".join(map(str, self._blocks)) if count else ""

    def add(self, block: int) -> None:
        """Say that it is so in this block, too."""
        # mostly the newest so far, so the search is rare
        if not self._blocks or block > self._blocks[-1] or block not in self._blocks:
            self._blocks.append(block)


_SHOWN_BLOCKS = 8
_SHOWN_ROWS = 20
_MESSAGE_CHARACTERS = 2_000


@dataclass(slots=True)
class Replay:
    """How much was computed again; `engines` are the versions that did."""

    transactions: int = 0
    engines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BlockLine:
    """A report's line of one block, without its faults."""

    sequence_number: int
    hash: Multihash
    system_time: Timestamp
    event: str
    records: int = 0
    watermark: Timestamp | None = None
    merged: str | None = None
    """The branch that it merged."""


@dataclass(slots=True, repr=False)
class Report:
    """The outcome for one dataset."""

    dataset_id: str
    alias: str
    head: str | None
    kind: DatasetKind | None = None
    """None when the Seed cannot be reached."""
    sequence_number: int | None = None
    after: Multihash | None = None
    """The range is what comes after this block."""
    upto: Multihash | None = None
    """The range ends with this block."""
    blocks: int = 0
    slices: int = 0
    records: int = 0
    data_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lines: Iterable[BlockLine] = ()
    replay: Replay | None = None
    """None when it was not asked for, or the dataset is a root."""
    signature: SignatureLine = SignatureLine()
    attestations: list[ListedAttestation] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """The inputs of the dataset, nested, as in the document."""
    done: dict[int, int] = field(default_factory=dict)
    """How many things each check looked at."""
    reasons: dict[int, str] = field(default_factory=dict)
    """The reason for not running a check, or not on everything."""
    time: Timestamp = field(default_factory=Timestamp.now, compare=False)
    _left_out: dict[str, Unchecked] = field(default_factory=dict)
    _unjudged: set[Multihash] = field(default_factory=set)

    @property
    def unchecked(self) -> list[Unchecked]:
        """Checks that were requested and not possible, by reason."""
        return list(self._left_out.values())

    @property
    def ok(self) -> bool:
        """True if every requested check was made, and no fault was found."""
        return not self.faults and not self._left_out

    @property
    def verdict(self) -> str:
        """`clean`, `faulty` or `incomplete`; about what was asked for."""
        return FAULTY if self.faults else CLEAN if self.ok else INCOMPLETE

    def raise_if_faulty(self) -> Report:
        """This report, when all that was asked for was checked and is as recorded.

        Raises:
            ObjectCorruptedError: something is not; the message has the first fault.
            StoreError: something that was asked for could not be checked.
        """
        if self.faults:
            first, more = self.faults[0], len(self.faults) - 1
            raise ObjectCorruptedError(
                f"{self.alias}: {first.file}: {first.message}{f' (and {more:,} more)' if more else ''}",
                hint=f"`odfchain verify {self.alias}` lists all of them",
            )
        if self.unchecked:
            raise StoreError(f"{self.alias}: not everything could be checked: {self.unchecked[0].message}")
        return self

    def __repr__(self) -> str:
        found = [self.verdict, f"{self.blocks:,} blocks", f"{self.records:,} records"]
        found += [f"{len(self.faults):,} faults"] if self.faults else []
        return f"<verification of {self.alias}: {', '.join(found)}>"

    def _repr_html_(self) -> str:
        found = [(f"check {f.check}", f.file, f.message) for f in self.faults]
        found += [("not checked", item.where, item.message) for item in self.unchecked]
        more = [("…", "", f"{len(found):,} in all")] * (len(found) > _SHOWN_ROWS)
        return table_html(("", "file", "message"), [*found[:_SHOWN_ROWS], *more], repr(self))

    def state(self, check: int) -> str:
        """`passed`, `failed`, `notChecked` (or not everywhere) or `notApplicable` (there was nothing)."""
        if any(fault.check == check for fault in self.faults):
            return "failed"
        if check in self.reasons:
            return "notChecked"
        return "passed" if self.done.get(check) else "notApplicable"

    def not_run(self) -> list[tuple[list[int], str]]:
        """Checks that did not run, or not on everything, by reason; those that were asked for stand apart."""
        known = self._left_out.keys()
        found = []
        for reason in dict.fromkeys(self.reasons.values()):
            numbers = [n for n in CHECKS if self.reasons.get(n) == reason and self.state(n) == "notChecked"]
            if numbers and reason not in known:
                found.append((numbers, reason))
        return found

    @property
    def remarks(self) -> list[str]:
        """The notes, without what is a reason for a check not to run."""
        return [note for note in self.notes if note not in self.reasons.values()]

    @property
    def signature_text(self) -> str:
        """The signature of the head in a sentence."""
        found = self.signature
        match found.status:
            case "signed":
                return f"signed at {found.time} by {found.signer}"
            case "unsigned":
                return f"{found.message}"
            case "invalid":
                return f"invalid signature: {found.message}"
        return f"signature not checked: {found.message or self.reasons.get(SIGNATURE)}"

    def take(self, checking: Checking[T]) -> T:
        """Add what a check finds; what it returns."""
        while True:
            try:
                self.add(next(checking))
            except StopIteration as end:
                returned: T = end.value
                return returned

    def add(self, finding: Finding) -> None:
        """Add what was found; equal reasons for leaving something out become one item."""
        match finding:
            case Fault():
                self.faults.append(finding)
            case Looked(check, things):
                self.done[check] = self.done.get(check, 0) + things
            case Read():
                self.blocks += finding.blocks
                self.slices += finding.slices
                self.records += finding.records
                self.data_bytes += finding.data_bytes
            case Note(text):
                self.notes.append(text)
            case Skipped(checks, reason):
                for check in checks:
                    self.reasons.setdefault(check, one_line(reason, _MESSAGE_CHARACTERS))
            case LeftOut(message, block, check, also):
                message = one_line(message, _MESSAGE_CHARACTERS)
                self.add(Skipped((*(() if check is None else (check,)), *also), message))
                left = self._left_out.setdefault(message, Unchecked(message, check))
                left.check = left.check or check
                if block is not None:
                    left.add(block)
            case Unjudged(checkpoint):
                self._unjudged.add(checkpoint)
                self.add(Skipped([CHECKPOINTS], OF_ENGINES))
            case Replayed():
                self._add_replayed(finding)
            case SignatureLine():
                self.signature = finding
            case ListedAttestation():
                self.attestations.append(finding)

    def _add_replayed(self, found: Replayed) -> None:
        if found.checkpoint in self._unjudged:
            self._unjudged.discard(found.checkpoint)
            self.add(Looked(CHECKPOINTS))
            if not self._unjudged and self.reasons.get(CHECKPOINTS) == OF_ENGINES:
                del self.reasons[CHECKPOINTS]
        if self.replay is not None:
            self.add(Looked(REPLAY))
            self.replay.transactions += 1
            if found.engine not in self.replay.engines:
                self.replay.engines.append(found.engine)

    def sort(self) -> None:
        """Put the faults in the order of the chain, those of the whole dataset first."""
        self.faults.sort(key=lambda f: (-1 if f.sequence_number is None else f.sequence_number, f.check))

    def to_document(self) -> dict[str, Any]:
        """The report as JSON can hold it (`schemas/Report.json`)."""
        # only faulty blocks get their hash
        faulty = {fault.sequence_number for fault in self.faults}
        hashes = {
            line.sequence_number: str(line.hash) for line in self.lines if line.sequence_number in faulty
        }
        return {
            "format": FORMAT,
            "tool": f"odfchain {__version__}",
            "time": str(self.time),
            "dataset": {
                "id": self.dataset_id,
                "alias": self.alias,
                "kind": self.kind.value.lower() if self.kind is not None else None,
            },
            **record_of(self, "head", "sequence_number"),
            "range": record_of(self, "from:after", "to:upto"),
            "verdict": self.verdict,
            "counts": record_of(self, "blocks", "slices", "records", "bytes:data_bytes")
            | {"replayed": self.replay.transactions if self.replay is not None else 0},
            "checks": [self._check_document(number) for number in CHECKS],
            "faults": [
                {
                    **record_of(fault, "check", "file", "message", "sequence_number"),
                    "block": hashes.get(fault.sequence_number) if fault.sequence_number is not None else None,
                }
                for fault in self.faults
            ],
            "unchecked": [record_of(item, "check", "message", "blocks") for item in self.unchecked],
            "notes": list(self.notes),
            "blocks": self._block_documents(),
            "signature": record_of(self.signature, "status", "signer", "time", "message"),
            "attestations": [
                record_of(item, "auditor", "head", "sequence_number", "time", "verdict")
                | {"trusted": found.trusted}
                for found in self.attestations
                if (item := found.line.statement) is not None
            ],
            "engines": [_engine(text) for text in (self.replay.engines if self.replay else ())],
            "inputs": self.inputs,
        }

    def _check_document(self, number: int) -> dict[str, Any]:
        state = self.state(number)
        return {
            **record_of(CHECKS[number], "number", "name", "section"),
            "state": state,
            "checked": self.done.get(number, 0),
            "faults": sum(fault.check == number for fault in self.faults),
            "reason": self.reasons.get(number),
        }

    def _block_documents(self) -> list[dict[str, Any]]:
        faults: dict[int | None, list[int]] = {}
        for index, fault in enumerate(self.faults):
            faults.setdefault(fault.sequence_number, []).append(index)
        unchecked = {block for item in self.unchecked for block in item.blocks}
        return [
            {
                **record_of(line, "sequence_number", "hash", "system_time", "event", "records", "watermark"),
                **({} if line.merged is None else {"merged": line.merged}),
                "faults": faults.get(line.sequence_number, []),
                "state": (
                    "faulty"
                    if line.sequence_number in faults
                    else "unchecked"
                    if line.sequence_number in unchecked
                    else "ok"
                ),
            }
            for line in self.lines
        ]


def _engine(text: str) -> dict[str, str]:
    # `odfchain_1-spark_4.3.0`, or `flink at localhost:2884`
    name, _, version = text.partition("_") if " at " not in text else text.partition(" at ")
    return {"name": name, "version": version or text}


# The last report of each dataset, for pages: private to the workspace, and nothing is decided by it.

KEPT_BYTES = 2 << 20
_BLOCKS, _LINES = 6_000, 50  # of a kept report: so many fit, and so few always do


def keep_report(dataset: DatasetFiles, report: Report) -> None:
    """Leave a report in the place of the one before; where it cannot be written there is none."""
    short, path = replace(report, lines=()), report_path(dataset)
    data = json.dumps((report if report.blocks <= _BLOCKS else short).to_document()).encode()
    if len(data) > KEPT_BYTES:
        rest = short.to_document() | {"notes": [], "attestations": [], "inputs": []}
        rest["unchecked"] = [item | {"blocks": []} for item in rest["unchecked"][:_LINES]]
        data = json.dumps(rest | {"faults": rest["faults"][:_LINES]}, ensure_ascii=False).encode()
    try:
        fsio.make_folder(path.parent)
        with fsio.replaced(path, durable=False) as stream:
            stream.write(data)
    except StoreError:
        fsio.remove_quietly(path)


def kept_report(dataset: DatasetFiles, log: Callable[[str], None]) -> dict[str, Any] | None:
    """The document that was left last; None, and a line for the log, where it is damaged or of another."""
    with contextlib.suppress(StoreError):
        data = fsio.read_start(report_path(dataset), KEPT_BYTES + 1)
        if data is None:
            return None
        found = json_object(data if len(data) <= KEPT_BYTES else b"")
        named = found.get("dataset")
        if found.get("format") == FORMAT and isinstance(named, dict) and named.get("id") == str(dataset.id):
            return found
    log(f"{report_path(dataset)}: the kept report is damaged, or of another dataset")
    return None
