"""How far a dataset is to be trusted, in three lines: its owner's signature, the verdict here, auditors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odfchain.audit.report import CLEAN, FAULTY, MENDED_BY_COPIES, ListedAttestation
from odfchain.chain.signed_heads import HeadSignature, SignatureStatus
from odfchain.chain.statements import Problem
from odfchain.odf.identity import Multihash
from odfchain.profiles.pages import moment
from odfchain.text import counted, one_line

NEVER = "never verified here"


@dataclass(frozen=True, slots=True)
class TrustLine:
    """A word, a sentence, the icon of `parts.html.j2`, and the command that shows or mends it."""

    word: str
    text: str
    icon: str
    command: str | None = None


def signature_line(name: str, found: HeadSignature, proofs: int = 0, *, has_key: bool = False) -> TrustLine:
    """What the owner says of the head; `proofs` are those of two histories that are kept."""
    signed, sign = found.signed, f"odfchain sign {name}" if has_key else None
    at = "" if signed is None else f"block {signed.sequence_number:,}, {moment(str(signed.time))}"
    if proofs or found.problem is Problem.OTHER_HEAD:
        text = "its owner signed two histories of it"
        return TrustLine("two histories", text, "faulty", f"odfchain evidence {name}")
    if found.status is SignatureStatus.SIGNED:
        return TrustLine("signed", f"signed by its owner, {at}", "ok")
    if found.status is SignatureStatus.INVALID:
        return TrustLine("wrong", one_line(str(found.message)), "faulty", f"odfchain verify {name}")
    if signed is not None:
        return TrustLine(
            "signed an earlier head", f"its owner signed an earlier head, {at}", "unchecked", sign
        )
    return TrustLine("unsigned", "not signed by its owner", "unchecked", sign)


def verdict_line(
    name: str, report: Mapping[str, Any] | None, newest: int, block_at: Callable[[int], Multihash | None],
) -> TrustLine:  # fmt: skip
    """What the last verification here came to; of a history that is no longer this one nothing counts."""
    verify, number = f"odfchain verify {name}", -1 if report is None else int(report["sequenceNumber"])
    if report is None or number > newest or str(block_at(number)) != report["head"]:
        return TrustLine(NEVER, NEVER, "unchecked", verify)
    text = f"verified here up to block {number:,}, {moment(str(report['time']))}: "
    faults = {check["number"]: check["faults"] for check in report["checks"] if check["faults"]}
    if report["verdict"] == FAULTY:
        command = f"odfchain fsck {name}" if MENDED_BY_COPIES & faults.keys() else verify
        count = counted(sum(faults.values()), "fault")
        return TrustLine(f"faulty: {count}", f"{text}{count}", "faulty", command)
    if report["verdict"] != CLEAN:
        what = one_line(report["unchecked"][0]["message"]) if report["unchecked"] else "not all was checked"
        return TrustLine("incomplete", f"{text}incomplete, {what}", "unchecked", verify)
    if newer := newest - number:
        word = f"clean up to {number:,}, {newer:,} newer"
        rest = f"{counted(newer, 'newer block')} not checked"
        return TrustLine(word, f"{text}clean; {rest}", "unchecked", verify)
    return TrustLine("clean at head", f"{text}clean", "ok")


def attestations_line(name: str, listed: Sequence[ListedAttestation]) -> TrustLine:
    """What auditors say of blocks of this chain; one key is one auditor."""
    said = [(x.trusted, s) for x in listed if x.in_chain and (s := x.line.statement) is not None]
    trusted = {s.auditor.public_key for is_trusted, s in said if is_trusted}
    others = {s.auditor.public_key for _, s in said} - trusted
    if not said:
        return TrustLine("none", "no attestations", "none")
    words = [f"{len(trusted):,} by auditors you trust"] * bool(trusted)
    words += [f"{len(others):,} by others"] * bool(others)
    faulty = any(s.verdict.value == FAULTY for is_trusted, s in said if is_trusted)
    icon = "faulty" if faulty else "ok" if trusted else "none"
    word = ", ".join(words)
    return TrustLine(
        word, f"attested: {word}{'; one says faulty' * faulty}", icon, f"odfchain attestations {name}"
    )
