"""Whether a signed answer is true: hashes, signature, the blocks it names, and the query once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from odfchain.errors import (
    DatasetNotFoundError,
    EngineError,
    PointNotFoundError,
    QueryError,
    SignatureError,
    SliceNotFoundError,
)
from odfchain.limits import ASKED
from odfchain.query.answer import FILE_BYTES, Answer, hash_of
from odfchain.query.answer_values import FORMATS
from odfchain.query.arrow_json import SCHEMA_FORMAT
from odfchain.query.embedded import DIALECT, engine_version
from odfchain.query.pins import Pins
from odfchain.query.proving import output_of, repeatable, volatile_refused
from odfchain.query.worker import Worker
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.text import counted, one_line

_LIMITS = replace(ASKED, seconds=60.0, memory=2 << 30, rows=1_000_000, answer_bytes=4 * FILE_BYTES)
"""Whoever checks an answer waits longer than a node does for others."""

INPUT_HASH = "InvalidRequest::InputHash"
SUB_QUERIES_HASH = "InvalidRequest::SubQueriesHash"
BAD_SIGNATURE = "InvalidRequest::BadSignature"
OUTPUT_MISMATCH = "VerificationFailed::OutputMismatch"
DATASET_NOT_FOUND = "VerificationFailed::DatasetNotFound"
BLOCK_NOT_FOUND = "VerificationFailed::DatasetBlockNotFound"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofVerdict:
    """What a check of a signed answer ended with."""

    ok: bool
    """It is what whoever signed it says: the same blocks give the same rows."""
    message: str
    """In a sentence."""
    kind: str | None = None
    """What is wrong, as nodes name it; None where it is right, or cannot be asked here."""
    incomplete: bool = False
    """Not false, as far as can be said here."""
    signer: str
    engine: str | None = None
    """What computed the answer, as it says itself."""
    datasets: tuple[str, ...] = ()
    """The blocks that it reads, where they are here."""
    rows: int | None = None
    """Rows that were computed anew [count]."""
    details: Mapping[str, str] = field(default_factory=dict)
    """More of what is wrong."""

    @property
    def exit_code(self) -> int:
        """0 right, 6 false, 7 cannot be checked here."""
        return 0 if self.ok else 7 if self.incomplete else 6

    def to_json(self) -> dict[str, Any]:
        """The verdict as nodes send it."""
        if self.ok:
            return {"ok": True}
        return {"ok": False, "error": {"kind": self.kind, **self.details, "message": self.message}}


def verify(answer: Answer, workspace: WorkspaceFiles, *, seconds: float | None = None) -> ProofVerdict:
    """Whether an answer is true, as far as the datasets here can tell."""

    def verdict(message: str, **more: Any) -> ProofVerdict:
        more = {"ok": False} | more
        return ProofVerdict(message=message, signer=answer.signer, engine=answer.engine, **more)

    for name, kind in (("inputHash", INPUT_HASH), ("subQueriesHash", SUB_QUERIES_HASH)):
        if answer.commitment[name] != answer.hash_of(name):
            part = "what was asked" if kind == INPUT_HASH else "the answers of others"
            return verdict(f"{part} was changed: it does not hash to the {name} that was signed", kind=kind)
    try:
        answer.check_signature()
    except SignatureError as error:
        return verdict(error.message, kind=BAD_SIGNATURE)
    signed = answer.commitment["outputHash"]
    if answer.output is not None and (found := answer.hash_of("outputHash")) != signed:
        details = {"expected_hash": signed, "actual_hash": found}
        message = "the rows were changed: they do not hash to the outputHash that was signed"
        return verdict(message, kind=OUTPUT_MISMATCH, details=details)
    if why := _unknown_form(answer):
        return verdict(why, incomplete=True)
    try:
        pins = Pins(workspace, given=answer.datasets)
        names, absent = _pinned(answer, workspace, pins)
        if absent is not None:
            return verdict(**absent, incomplete=True)
        table, output = _computed_again(answer, pins, seconds)
    except (QueryError, EngineError, SliceNotFoundError) as error:
        return verdict(f"it cannot be computed again here: {error.message}", incomplete=True)
    found = hash_of(output)
    about = {"datasets": names, "rows": table}
    if found == signed:
        return verdict(f"recomputed: the same {counted(table, 'row')}", ok=True, **about)
    details = {"expected_hash": signed, "actual_hash": found}
    ours = engine_version()
    if answer.engine == ours:
        return verdict("recomputed: another answer", kind=OUTPUT_MISMATCH, details=details, **about)
    theirs = one_line(answer.engine, 40) if answer.engine else "an engine that it does not name"
    message = f"recomputed by {ours}: another answer, and it was computed by {theirs}"
    return verdict(message, kind=OUTPUT_MISMATCH, details=details, incomplete=True, **about)


def _unknown_form(answer: Answer) -> str | None:
    """Why nobody here can compute the answer again, whatever datasets are here."""
    asked = answer.input
    if answer.sub_queries:
        return "it is made of answers of other nodes, which are not checked here"
    for value, known in (
        (asked["queryDialect"], (DIALECT,)),
        (asked["dataFormat"], FORMATS),
        (asked.get("schemaFormat", SCHEMA_FORMAT), (SCHEMA_FORMAT,)),
    ):
        if value not in known:
            return f"it is in {one_line(value, 40)!r}; what is checked here is {', '.join(known)}"
    return None


def _pinned(
    answer: Answer, workspace: WorkspaceFiles, pins: Pins
) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    """(the datasets with their blocks, what is not here)."""
    found = []
    for name, (dataset_id, block) in answer.datasets.items():
        shown, details = one_line(name, 80), {"dataset_id": str(dataset_id)}
        try:
            workspace.dataset(dataset_id)
        except DatasetNotFoundError:
            message = f"the dataset {shown} ({dataset_id}) is not here"
            return (), {"message": message, "kind": DATASET_NOT_FOUND, "details": details}
        try:
            pin = pins.pin(name)
        except PointNotFoundError:
            message = f"block {block} is no part of {shown} ({dataset_id}) here"
            details["block_hash"] = str(block)
            return (), {"message": message, "kind": BLOCK_NOT_FOUND, "details": details}
        found.append(f"{pin.alias} @ {pin.sequence_number}")
    return tuple(found), None


def _computed_again(answer: Answer, pins: Pins, seconds: float | None) -> tuple[int, dict[str, Any]]:
    """(rows, output) of the query in an answer, which somebody else wrote: by a process that sees no more."""
    asked, signed = answer.input, repeatable()
    worker = Worker(
        limits=_LIMITS if seconds is None else replace(_LIMITS, seconds=seconds),
        partitions=signed.partitions,
        batch_size=signed.batch_size,
        without=signed.without,
    )
    with volatile_refused():
        result = worker.answer(answer.query, pins, skip=int(asked["skip"]), limit=int(asked["limit"]))
    table = result.to_arrow()
    return len(table), output_of(table, asked["dataFormat"], schema="schemaFormat" in asked)
