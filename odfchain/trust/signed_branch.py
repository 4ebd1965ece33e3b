"""The signature of a branch: one line in `refs/NAME.jws`, beside `refs/NAME`, as a head's is beside the head.

It is a statement of another type (`odf-ref+jws`) with the branch's name in it. A branch may be set back and
made anew, so two signed blocks with one number prove nothing here, and no memory is kept of them.

    SIGNED     the owner's valid word that this block is the newest of this branch
    UNSIGNED   no word about this block: no file, or (stale) one of before the branch moved
    INVALID    a file that is something else, the signature of another branch or dataset, or by another key
"""

from __future__ import annotations

from odfchain.errors import SignatureError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.trust.problems import Problem
from odfchain.trust.signed_head import HeadSignature, SignatureStatus
from odfchain.trust.signed_statements import SignedHead, read_branch
from odfchain.trust.signing_keys import Did


def check_branch(content: bytes | None, dataset_id: DatasetId, ref: str, head: Multihash) -> HeadSignature:
    """What the content of a branch's `refs/NAME.jws` is worth for its newest block; None: there is none."""
    if content is None:
        return HeadSignature(SignatureStatus.UNSIGNED, Problem.MISSING, f"branch {ref} is not signed")
    line = content[:-1] if content.endswith(b"\n") else b""  # without its end it was cut
    try:
        signer, signed = read_branch(line)
    except SignatureError as error:
        return HeadSignature(
            SignatureStatus.INVALID, Problem(error.problem), f"the signature of branch {ref}: {error}"
        )
    status, problem, message = _judge(signer, signed, dataset_id, ref, head)
    return HeadSignature(status, problem, message, signer, signed, line.decode())


def _judge(
    signer: Did, signed: SignedHead, dataset_id: DatasetId, ref: str, head: Multihash
) -> tuple[SignatureStatus, Problem | None, str | None]:
    if signed.dataset_id != dataset_id:
        return (
            SignatureStatus.INVALID,
            Problem.OTHER_DATASET,
            f"the signature is of another dataset, {signed.dataset_id}, not of {dataset_id}",
        )
    if signer != dataset_id:
        return (
            SignatureStatus.INVALID,
            Problem.OTHER_KEY,
            f"branch {ref} is not signed by the dataset's key but by {signer}",
        )
    if signed.ref != ref:
        return (
            SignatureStatus.INVALID,
            Problem.OTHER_REF,
            f"the signature is of another branch, {signed.ref}, not of {ref}",
        )
    if signed.head != head:
        at = f"block {signed.sequence_number}, {signed.head}"
        return (
            SignatureStatus.UNSIGNED,
            Problem.STALE,
            f"the signature of branch {ref} is of {at}: it has moved since",
        )
    return SignatureStatus.SIGNED, None, None
