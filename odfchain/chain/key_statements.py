"""Statements about keys: who may sign for a dataset, from when until when, and who comes after its key.

A dataset's id is a public key, its identity key, which may stay offline. `attestations/keys.jws` has one
statement (`odf-keys+jws`) to a line, in the order in which they arrived. Each names the one before it by its
hash, and adds delegates, revocations, or the hash of the successor's public key. Whoever has that key may
take over with a statement of his own, a succession: then the old key's word ends.

Of what one key says of its successor the first word counts, for a thief would say something else later. Of
two statements by one key with one number neither counts: only what comes before them does.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from odfchain.chain import statements
from odfchain.chain.statements import Did, Hash, Problem, Signed, StatementType, malformed
from odfchain.errors import SignatureError, UsageError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, DatasetKey, DidKey, Multihash, encode_base16
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import Rule
from odfchain.storage import fsio
from odfchain.storage.public_layout import SignedFile
from odfchain.text import length

BEFORE = Timestamp(0)
"""The time of what the reader has from before."""
_NS = 1_000_000_000
_FEW = Rule("as many as are allowed", lambda items: len(items) <= ATTEST.statement_items)


class Scope(StrEnum):
    """What a delegate may sign for the owner."""

    HEADS = "heads"
    SNAPSHOTS = "snapshots"
    CHECKPOINTS = "checkpoints"


_IN_ORDER = Rule("scopes in order", lambda s: s and list(s) == [each for each in Scope if each in s])


@dataclass(frozen=True, slots=True)
class Delegate:
    """A key that may sign for the owner, from a time until another."""

    key: DidKey
    scopes: Annotated[tuple[Scope, ...], _IN_ORDER]
    not_before: Timestamp
    not_after: Timestamp

    @classmethod
    def of(cls, key: Did, now: Timestamp, seconds: float, scopes: Collection[str] = tuple(Scope)) -> Delegate:
        """A key that may sign from now on, for so long [s]."""
        end = Timestamp(now.epoch_ns + round(seconds) * _NS)
        return cls(DidKey(key.public_key), tuple(each for each in Scope if each in scopes), now, end)

    def ends_soon(self, now: Timestamp) -> str | None:
        """The sentence that warns of its end, in the last days before that."""
        left = (self.not_after.epoch_ns - now.epoch_ns) // _NS
        if left > ATTEST.delegate_warning_days * 86_400:
            return None
        return f"delegate {self.key} ends in {length(left)}; `odfchain key delegate` makes another"


@dataclass(frozen=True, slots=True)
class Revocation:
    """The end of a delegate: what it signed later, or cannot be shown to have signed before, is refused."""

    key: DidKey
    time: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatement(Signed):
    """What the identity key, or its successor, adds to what was said before."""

    signer: Did
    dataset_id: DatasetId
    delegates: Annotated[tuple[Delegate, ...], _FEW] = ()
    next: Hash | None = None
    """Of the successor's public key."""
    previous: Hash | None = None
    """Of the statement before: SHA3-256 of its text."""
    revoked: Annotated[tuple[Revocation, ...], _FEW] = ()
    sequence: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A statement and its text, which `previous` of the next one is the hash of."""

    text: bytes
    said: KeyStatement
    hash: Multihash


def commitment(successor: Did) -> Multihash:
    """What `next` says of a successor."""
    return hash_bytes(successor.public_key)


@functools.lru_cache(maxsize=1024)
def read_line(text: bytes) -> KeyLine:
    """The statement that was signed; `SignatureError` for every other text."""
    signer, payload = statements.read_statement(text, StatementType.KEYS)
    said = statements.read_members(KeyStatement, payload, signer=signer)
    if (said.sequence == 0) != (said.previous is None):
        raise malformed("the first statement has no 'previous', and no other")
    if any(each.not_after < each.not_before for each in said.delegates):
        raise malformed("a delegate ends before it begins")
    return KeyLine(text, said, hash_bytes(text))


def read_lines(content: bytes | None) -> tuple[list[KeyLine], list[str]]:
    """The statements of a file, and what is wrong with its other lines; nothing is raised for it."""
    found, wrong = list[KeyLine](), list[str]()
    if content is not None and len(content) > ATTEST.keys_bytes:
        return found, [f"more than {ATTEST.keys_bytes:,} bytes of keys statements"]
    *lines, rest = (content or b"").split(b"\n")
    for number, text in enumerate(lines, start=1):
        try:
            found.append(read_line(text))
        except SignatureError as error:
            wrong.append(f"keys statement {number}: {error}")
        if len(wrong) == ATTEST.statement_items:
            break
    return found, wrong + (["the last keys statement is cut"] if rest else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHistory:
    """Which keys may sign what, and when: the one rule of commit, sign, pull, push, verify and audit."""

    dataset_id: DatasetId
    authority: Did
    """The identity key, or the successor that has taken over."""
    lines: tuple[KeyLine, ...] = ()
    """The statements that count, oldest first."""
    reached: tuple[KeyLine, ...] = ()
    """These, and those beside them by a key that could have said them, in the order of their arrival."""
    conflict: tuple[KeyLine, ...] = ()
    """Two statements of one number: their signer said two things."""
    pending: KeyLine | None = None
    """A succession whose commitment the reader had not seen before."""
    superseded: tuple[tuple[Did, Timestamp], ...] = ()
    committed: Multihash | None = None
    """What the authority has said of its successor."""

    @classmethod
    def of(
        cls, dataset_id: DatasetId, lines: Iterable[KeyLine], seen: Collection[Multihash] | None = None
    ) -> KeyHistory:
        """The history that statements give, in the order of their arrival.

        A succession counts where its commitment is among those that were `seen` before (None: all were).
        """
        known = {line.hash: line for line in lines if line.said.dataset_id == dataset_id}
        after: dict[Multihash | None, list[KeyLine]] = {}
        for line in known.values():
            above = known.get(line.said.previous) if line.said.previous is not None else None
            if line.said.sequence == (0 if above is None else above.said.sequence + 1):
                after.setdefault(line.said.previous, []).append(line)
        path, superseded, reached = list[KeyLine](), list[tuple[Did, Timestamp]](), set[Multihash]()
        signer: Did = dataset_id
        while True:
            base = path[-1].hash if path else None
            ways: dict[Multihash | None, tuple[KeyLine, ...]] = {base: ()}
            for at in (waiting := [base]):
                own = [line for line in after.get(at, ()) if line.said.signer == signer]
                ways |= {line.hash: (*ways[at], line) for line in own}
                waiting += [line.hash for line in own]
            mine = [line for line in known.values() if line.hash in ways and line.hash != base]
            # the first word of a key on its successor: one that a thief adds, beside it or later, is none
            pin = next((line for line in mine if line.said.next is not None), None)
            beside = [line for at in ways for line in after.get(at, ())] if pin is not None else []
            heirs = [each for each in beside if pin and commitment(each.said.signer) == pin.said.next]
            reached |= {line.hash for line in (*mine, *heirs)}
            fresh = pin is not None and seen is not None and pin.hash not in seen
            if len(heirs) != 1 or fresh:
                break
            path += [*ways[heirs[0].said.previous], heirs[0]]
            superseded.append((signer, heirs[0].said.time))
            signer = heirs[0].said.signer
        while len(rivals := [each for each in after.get(base, ()) if each.said.signer == signer]) == 1:
            path += rivals
            base = rivals[0].hash
        return cls(
            dataset_id=dataset_id, authority=signer, lines=tuple(path), superseded=tuple(superseded),
            reached=tuple(line for line in known.values() if line.hash in reached),
            conflict=tuple((heirs if len(heirs) > 1 else rivals)[:2]),
            pending=heirs[0] if heirs and fresh else None,
            committed=pin.said.next if pin is not None else None,
        )  # fmt: skip

    @property
    def texts(self) -> tuple[str, ...]:
        """The statements that count, for a proof."""
        return tuple(line.text.decode() for line in self.lines)

    @property
    def newest(self) -> Multihash | None:
        """The statement that a head names."""
        return self.lines[-1].hash if self.lines else None

    @property
    def problems(self) -> list[str]:
        """What has to be said of the statements."""
        if not self.conflict:
            return []
        said = self.conflict[0].said
        what = f"{said.signer} has made two keys statements of number {said.sequence}"
        return [f"{what}: what comes before them counts, and `odfchain evidence` has the proof"]

    @property
    def delegates(self) -> list[tuple[Delegate, Timestamp | None]]:
        """All that were ever named, each with the time of its revocation."""
        revoked: dict[DidKey, Timestamp] = {}
        for each in (each for line in self.lines for each in line.said.revoked):
            revoked[each.key] = min(each.time, revoked.get(each.key, each.time))
        return [(each, revoked.get(each.key)) for line in self.lines for each in line.said.delegates]

    def judge(
        self, signer: Did, scope: Scope, time: Timestamp, *, there: bool | Timestamp = True
    ) -> Delegate | None:
        """The delegate that signed, None for the authority; `SignatureError` where neither may have.

        `there`: a witness's time or the reader's own memory shows that what is signed was there before the
        key was revoked or superseded; nothing else does, for who has a key can set its clock back.
        """

        def require_before(end: Timestamp, problem: Problem, said: str) -> None:
            if time >= end:
                raise SignatureError(problem, f"{said} {end}, and the signature is of {time}")
            if not (there if isinstance(there, bool) else there < end):
                raise SignatureError(problem, f"{said} {end}, and nothing shows that it was signed before")

        if (heir := self.pending) is not None:
            raise SignatureError(
                Problem.SUCCESSION,
                f"{heir.said.signer} says that it has succeeded {self.authority}, whose word on that was not "
                "seen before: neither is believed without --accept-successor",
            )
        if (since := dict(self.superseded).get(signer)) is not None:
            said = f"superseded: {self.authority} has succeeded {signer} since"
            require_before(since, Problem.SUPERSEDED, said)
            return None
        if signer == self.authority:
            return None
        if not (named := [(each, ended) for each, ended in self.delegates if each.key == signer]):
            raise SignatureError(Problem.OTHER_KEY, f"not signed by the dataset's key but by {signer}")
        if (ended := named[0][1]) is not None:
            require_before(ended, Problem.REVOKED, f"delegate {signer} was revoked on")
        if not (fits := [each for each, _ in named if scope in each.scopes]):
            may = ", ".join(each for each in Scope if any(each in found.scopes for found, _ in named))
            raise SignatureError(Problem.OUT_OF_SCOPE, f"delegate {signer} may sign {may}, not {scope}")
        begun = [each for each in fits if each.not_before <= time]
        last = max(begun or fits, key=lambda each: each.not_after)
        if begun and time <= last.not_after:
            return last
        problem, said = (Problem.EXPIRED, f"expired on {last.not_after}") if begun else (
            Problem.NOT_YET, f"may sign from {last.not_before} on"
        )  # fmt: skip
        raise SignatureError(problem, f"delegate {signer} {said}, and the signature is of {time}")

    def signers(self, scope: Scope, shown: Timestamp | None = None) -> tuple[Did, ...]:
        """Whose word counts where it has no time: a delegate's until it is revoked.

        `shown` is when it is known to have been there (`BEFORE`: the reader has it from before).
        """
        if self.pending is not None:
            return ()
        named = [(each.key, ended) for each, ended in self.delegates if scope in each.scopes]
        before = [key for key, end in (*named, *self.superseded) if end and shown and shown < end]
        return self.authority, *(key for key, ended in named if ended is None), *before

    def check_named(self, newest: Multihash | None) -> None:
        """The statement that a signed head names is known here; else `SignatureError`: it is hidden."""
        if newest is not None and newest not in {line.hash for line in self.reached}:
            message = f"the head names the keys statement {newest}: the mirror hides key statements"
            raise SignatureError(Problem.HIDDEN_KEYS, message)

    def name_of(self, key: DatasetKey) -> Did:
        """A key as statements of this dataset name it."""
        own = key.dataset_id == self.dataset_id
        return self.dataset_id if own else DidKey(key.dataset_id.public_key)

    def with_statement(
        self, key: DatasetKey, time: Timestamp, delegates: tuple[Delegate, ...] = (),
        revoked: tuple[Revocation, ...] = (), successor: Multihash | None = None,
    ) -> KeyHistory:  # fmt: skip
        """With the next statement, by the authority, or by the successor, who takes over with it."""
        signer = self.name_of(key)
        if signer != self.authority and commitment(signer) != self.committed:
            raise UsageError(
                f"{signer} is not the key that may speak of keys here: that is {self.authority}",
                hint="name its file with --key",
            )
        said = KeyStatement(
            signer=signer, dataset_id=self.dataset_id, delegates=delegates, next=successor,
            previous=self.newest, revoked=revoked, sequence=len(self.lines), time=time,
        )  # fmt: skip
        text = said.signed(key, signer, StatementType.KEYS, read_line, "keys statement")
        return KeyHistory.of(self.dataset_id, (*self.reached, read_line(text.encode())))

    def content(self) -> bytes:
        """The file of the statements, which are in the order in which they arrived.

        Those that count come first where there is no room for all.
        """
        size, kept = 0, set[Multihash]()
        for line in (*self.lines, *self.conflict, *self.reached):
            size += 0 if line.hash in kept else len(line.text) + 1
            if size <= ATTEST.keys_bytes:
                kept.add(line.hash)
        return b"".join(line.text + b"\n" for line in self.reached if line.hash in kept)


# The file: lines are added at its end, for the first commitment is the one that counts.


def key_history(folder: Path, dataset_id: DatasetId) -> KeyHistory:
    """What the file in a dataset's folder gives; it is the reader's own, so all in it was seen."""
    return KeyHistory.of(dataset_id, read_lines(keys_content(folder))[0])


def seen_keys(root: Path, dataset_id: DatasetId) -> Path:
    """Where a workspace has the statements that it has met, also of datasets that are not here."""
    return root / "seen" / f"{encode_base16(dataset_id.to_bytes())}.keys"


def keys_content(folder: Path) -> bytes | None:
    """The file, None where there is none: then the identity key alone signs."""
    return statements.read_bounded(folder / SignedFile.KEYS.value, ATTEST.keys_bytes)


def join_keys(
    dataset_id: DatasetId, here: bytes | None, there: bytes | None, *, accept: bool = False
) -> KeyHistory:
    """The history of what was here and what has come; with `accept` a succession needs no commitment seen."""
    own = read_lines(here)[0]
    seen = None if accept else {line.hash for line in own}
    return KeyHistory.of(dataset_id, [*own, *read_lines(there)[0]], seen)


def keep_keys(root: Path, folder: Path, history: KeyHistory) -> None:
    """Durably add a history to a dataset's file and to what was met, unless it awaits a decision."""
    seen = seen_keys(root, history.dataset_id)
    files = {folder / SignedFile.KEYS.value: folder / "info" / "lock", seen: seen.with_name(".lock")}
    for path, lock in files.items() if history.pending is None and history.reached else ():
        fsio.make_folder(path.parent)
        # another command may have added some meanwhile
        with fsio.locked(lock):
            here = statements.read_bounded(path, ATTEST.keys_bytes)
            content = join_keys(history.dataset_id, here, history.content(), accept=True).content()
            if content != here:
                fsio.replace_file(path, content)
