"""The signature of a dataset's head: one line in `refs/head.jws`, next to `refs/head`.

Blocks are bound by hashes, but nothing in them says who wrote them or which one is the newest. The signature
does: it is made by the key that the dataset's id is, or by one that it delegates to (`key_statements`). It is
written right after the head has moved, never before, so for a moment (and after a crash until the next
commit) it is that of the head before. A head that is set back loses its signature first.

    SIGNED     the owner's valid word about exactly this block of exactly this dataset
    UNSIGNED   no word about this block, and nothing wrong: no file; or, where the chain can be asked, the
               owner's word about an earlier block of this chain
    INVALID    a file that is something else; the problem names the attack or the damage
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from odfchain.chain.checkpoints import write_note
from odfchain.chain.key_statements import Delegate, KeyHistory, Scope, keys_content, read_lines
from odfchain.chain.statements import Did, Problem, SignedHead, read_bounded, read_branch, read_head
from odfchain.errors import SignatureError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, DatasetKey, Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalRefStore
from odfchain.storage.public_layout import SignedFile, signature_key
from odfchain.text import printable

HEAD_SIGNATURE_KEY = SignedFile.HEAD.value
"""Where it is in the dataset's folder, and in the simple transfer layout."""


BlockAt = Callable[[int], Multihash | None]
"""The hash of the chain's block with a sequence number, None when there is no such block."""


class SignatureStatus(StrEnum):
    """The status of a head's signature; there is no yes or no."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class HeadSignature:
    """The result of looking at a head's signature.

    `signed` is what the signature says and `signer` whose it is, wherever its own text was valid: a valid
    signature of another head with the same sequence number is proof of two histories.
    """

    status: SignatureStatus
    problem: Problem | None = None
    message: str | None = None
    signer: Did | None = None
    signed: SignedHead | None = None
    text: str | None = None
    delegate: Delegate | None = None
    """Who signed for the owner, where it was not the owner's own key."""

    @property
    def unsigned_since(self) -> int | None:
        """The first block that the owner has not signed; None where the head is signed, or wrongly."""
        if self.status is not SignatureStatus.UNSIGNED:
            return None
        return 0 if self.signed is None else self.signed.sequence_number + 1

    def require(self, where: str = "") -> SignedHead:
        """The head that the owner signed; `SignatureError` where the status is another."""
        if self.status is SignatureStatus.SIGNED and self.signed is not None:
            return self.signed
        prefix = f"{where}: " if where else ""
        raise SignatureError(self.problem or Problem.MISSING, f"{prefix}{self.message}")


def check_head(
    content: bytes | str | None,
    dataset_id: DatasetId,
    head: Multihash,
    sequence_number: int,
    *,
    block_at: BlockAt | None = None,
    verified: bool = True,
    keys: KeyHistory | None = None,
    there: Callable[[SignedHead], bool | Timestamp] = lambda _: True,
) -> HeadSignature:
    """The status of the content of `refs/head.jws` for this head, whatever it is; None: there is no file.

    Without `verified` the signature is believed, which is fast. `keys` says who may sign (None: the owner's
    key alone), and `there` which heads the reader knows from before (`KeyHistory.judge`).

    A valid signature of an earlier block is INVALID, unless `block_at` shows that block in this chain: then
    the newest blocks are UNSIGNED, as after a commit that was interrupted.
    """

    def judge(signed: SignedHead) -> _Judged:
        number = signed.sequence_number
        if number == sequence_number and signed.head != head:
            return _invalid(
                Problem.OTHER_HEAD,
                f"the signature is of another head with the same sequence number {number}, {signed.head}: "
                "two histories of this dataset exist",
            )
        if number > sequence_number:
            return _invalid(
                Problem.NEWER_HEAD,
                f"the signature is of a newer head (block {number}; the head here is block "
                f"{sequence_number}): the head was set back, or blocks were withheld",
            )
        if number == sequence_number:
            return SignatureStatus.SIGNED, None, None
        where = f"block {number}; the head here is block {sequence_number}"
        there = block_at(number) if block_at is not None else None
        if there == signed.head:
            return (
                SignatureStatus.UNSIGNED,
                Problem.OLDER_HEAD,
                f"unsigned commits since block {number + 1}: the owner signed block {number} last",
            )
        if block_at is not None:
            return _invalid(
                Problem.OTHER_HEAD,
                f"the signature is of an older head ({where}) that is not in this chain: two histories of "
                "this dataset exist",
            )
        message = f"the signature is of an older head ({where}): it was replayed, or a commit was interrupted"
        return _invalid(Problem.OLDER_HEAD, message)

    content = content.encode(errors="replace") if isinstance(content, str) else content
    if content is None:
        unsigned = "unsigned commits since block 0: there is no signature, or it was stripped"
        return HeadSignature(SignatureStatus.UNSIGNED, Problem.MISSING, unsigned)
    read = functools.partial(read_head, verified=verified)
    keys = keys or KeyHistory.of(dataset_id, ())
    return _checked(content, keys, "the head", "the head's signature", read, judge, there)


_Judged = tuple[SignatureStatus, Problem | None, str | None]


def _checked(
    content: bytes,
    keys: KeyHistory,
    what: str,
    about: str,
    read: Callable[[bytes], tuple[Did, SignedHead]],
    judge: Callable[[SignedHead], _Judged],
    there: Callable[[SignedHead], bool | Timestamp],
) -> HeadSignature:
    delegate = None
    line = content[:-1] if content.endswith(b"\n") else b""  # without its end it was cut
    try:
        signer, signed = read(line)
    except SignatureError as error:
        return HeadSignature(SignatureStatus.INVALID, Problem(error.problem), f"{about}: {error}")
    if signed.dataset_id != keys.dataset_id:
        found = _invalid(
            Problem.OTHER_DATASET,
            f"the signature is of another dataset, {signed.dataset_id}, not of {keys.dataset_id}",
        )
    else:
        try:
            delegate = keys.judge(signer, Scope.HEADS, signed.time, there=there(signed))
            keys.check_named(signed.keys)
            found = judge(signed)
        except SignatureError as error:
            is_other = error.problem == Problem.OTHER_KEY
            found = _invalid(Problem(error.problem), f"{what}{' is' if is_other else ':'} {error}")
    return HeadSignature(*found, signer, signed, line.decode(), delegate)


def _invalid(problem: Problem, message: str) -> _Judged:
    return SignatureStatus.INVALID, problem, message


def read_head_signature(folder: Path, ref: str = HEAD) -> bytes | None:
    """A folder's `refs/head.jws` for `check_head`, a branch's for `check_branch`; None when there is none."""
    return read_bounded(folder / signature_key(ref), ATTEST.statement_bytes + 1)


# The signature of a branch: one line in `refs/NAME.jws`, next to `refs/NAME`, as a head's is next to the
# head.
#
# It is a statement of another type (`odf-ref+jws`) with the branch's name in it. A branch may be rewound
# and made anew, so two signed blocks with one number prove nothing here, and no memory is kept of them.
#
#     SIGNED     the owner's valid word that this block is the newest of this branch
#     UNSIGNED   no word about this block: no file, or (stale) one of before the branch moved
#     INVALID    a file that is something else, the signature of another branch or dataset, or by another
#     key


def check_branch(
    content: bytes | None, dataset_id: DatasetId, ref: str, head: Multihash, keys: KeyHistory | None = None
) -> HeadSignature:
    """The status of a branch's `refs/NAME.jws` for its newest block; None: there is none."""

    def judge(signed: SignedHead) -> _Judged:
        if signed.ref != ref:
            message = f"the signature is of another branch, {signed.ref}, not of {ref}"
            return _invalid(Problem.OTHER_REF, message)
        if signed.head != head:
            at = f"block {signed.sequence_number}, {signed.head}"
            return (
                SignatureStatus.UNSIGNED,
                Problem.STALE,
                f"the signature of branch {ref} is of {at}: it has moved since",
            )
        return SignatureStatus.SIGNED, None, None

    if content is None:
        return HeadSignature(SignatureStatus.UNSIGNED, Problem.MISSING, f"branch {ref} is not signed")
    about, keys = f"the signature of branch {ref}", keys or KeyHistory.of(dataset_id, ())
    return _checked(content, keys, f"branch {ref}", about, read_branch, judge, lambda _: True)


# Signing heads where they move: at every commit, with the dataset's key, where it is here.
#
# The commit comes first and is done by then, so a signature that cannot be made is said once and nothing
# fails. The next commit, or `odfchain sign`, makes it good.

LoadKey = Callable[[], "DatasetKey | None"]
"""Finds the private key of a dataset, None where it is not here."""


@functools.lru_cache(maxsize=256)
def warn(message: str) -> None:
    """Say it on standard error, once."""
    sys.stderr.write(f"warning: {printable(message)}\n")


@dataclass(frozen=True, slots=True)
class HeadSigner:
    """Signs the heads of the dataset in `folder`. The key is loaded when it is first needed, then kept."""

    folder: Path
    load_key: LoadKey
    now: Callable[[], Timestamp] = Timestamp.now
    report: Callable[[str], None] = warn
    note: Callable[[str], None] = SILENT.note
    """Hears the name of a dataset, or branch, that got a block of this machine, but not the key."""
    _keys: list[DatasetKey] = field(default_factory=list, init=False, repr=False, compare=False)

    def head_moved(
        self, head: Multihash, sequence_number: int, ref: str = HEAD, *, committed: str | None = None
    ) -> None:
        """Sign a head that has just moved, where the key is here; whatever goes wrong is reported only.

        `ref` may be a branch: its newest block is signed in the same way, as a statement of another type.
        `committed` is the name of the dataset, where a block of this machine is the new head.
        """
        try:
            key = self._key()
            if key is not None:
                self.sign(key, head, sequence_number, ref)
            elif committed is not None:
                self.note(committed if ref == HEAD else f"{committed}@{ref}")
        except Exception as error:  # noqa: BLE001 - the commit is done and must not seem to have failed
            what = " ".join(str(error).split()) or type(error).__name__
            hint = getattr(error, "hint", None) or "`odfchain sign` makes it good"
            moved = "the new head" if ref == HEAD else f"branch {ref}"
            self.report(f"{self.folder}: {moved} is not signed: {what} ({hint})")

    def withdraw(self) -> None:
        """Durably remove the head's signature and checkpoint, where the key that can make others is here."""
        if self.load_key() is not None:
            for file in (SignedFile.CHECKPOINT, SignedFile.HEAD):
                fsio.remove_file(self.folder / file.value)

    def _key(self) -> DatasetKey | None:
        if not self._keys and (key := self.load_key()) is not None:
            self._keys.append(key)
        return self._keys[0] if self._keys else None

    def sign(self, key: DatasetKey, head: Multihash, number: int, ref: str = HEAD) -> SignedHead | None:
        """Durably write the signature of a head; None when another writer has moved the head on by then."""
        lines, now = read_lines(keys_content(self.folder))[0], self.now()
        keys = KeyHistory.of(lines[0].said.dataset_id if lines else key.dataset_id, lines)
        delegate = keys.judge(signer := keys.name_of(key), Scope.HEADS, now)
        if delegate is not None and (warning := delegate.ends_soon(now)) is not None:
            self.report(f"{self.folder}: {warning}")
        signed = SignedHead(keys.dataset_id, head, number, now, ref, keys.newest)
        line = signed.sign(key, signer).encode() + b"\n"
        # Under the lock that heads move under: a slow writer does not replace a newer head's signature.
        with fsio.locked(self.folder / "info" / "lock"):
            if LocalRefStore(self.folder).get(ref) != head:
                return None
            fsio.replace_file(self.folder / signature_key(ref), line)
            if ref == HEAD and signer in keys.signers(Scope.CHECKPOINTS):
                write_note(self.folder, key, signed.dataset_id, head)
        return signed
