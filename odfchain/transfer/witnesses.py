"""Witnesses of heads: an owner asks them to cosign, and whoever is one remembers what he has cosigned.

Witnesses are asked side by side, in bounded time and of bounded bytes, over one kept connection each, and no
redirect is followed. One that is down, slow or lies is a warning, and nothing of it is kept. One that says it
has cosigned another history is believed as far as to stop: either it or a note that is remembered here proves
that the owner has two. Source: tlog-witness of C2SP; RFC-064.
"""

from __future__ import annotations

import base64
import functools
import re
import sqlite3
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from odfchain import errors
from odfchain.chain.checkpoints import (
    Checkpoint,
    Note,
    NoteKey,
    NoteLine,
    WitnessPolicy,
    keep_note,
    note_in,
    read_note,
)
from odfchain.chain.equivocation import EvidenceStore, NoteClaim
from odfchain.chain.key_statements import BEFORE, KeyHistory, Scope, read_lines, seen_keys
from odfchain.chain.signed_heads import warn
from odfchain.chain.statements import Problem, create_key_file, read_bounded, read_key_file
from odfchain.chain.transparency_log import (
    Frontier,
    consistency_proof,
    kept_log,
    log_of,
    tree_root,
    verify_consistency,
)
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, DatasetKey, Multihash, encode_base16
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.http_client import HttpPool, request_headers
from odfchain.storage.http_rules import Deadline, Timing, TransientError
from odfchain.storage.local import HEAD
from odfchain.storage.locations import parse_target
from odfchain.storage.public_layout import SignedFile
from odfchain.storage.store import PEER_LIMITS, as_transfer_errors
from odfchain.text import one_line
from odfchain.transfer.sync import with_answers
from odfchain.workspace.config import TrustConfig
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

OTHER_HISTORY = "other-history"
ADD = "add-checkpoint"
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})((?:\n[A-Za-z0-9+/]{43}=){0,63})")
_ANSWER_BYTES = 8 << 10
_PAUSE_SECONDS = 60.0
REQUEST_BYTES = ATTEST.note_bytes + (4 << 10)
"""The largest request to a witness [bytes]."""


@dataclass(frozen=True, slots=True)
class NoteMemory:
    """The newest note of each dataset that this workspace has met; `folder` is its `seen` folder."""

    folder: Path

    def _path(self, dataset_id: DatasetId) -> Path:
        return self.folder / f"{encode_base16(dataset_id.to_bytes())}.checkpoint"

    def keys(self, dataset_id: DatasetId) -> KeyHistory:
        """The keys statements of a dataset that were met."""
        data = None
        with suppress(errors.StoreError):
            data = read_bounded(seen_keys(self.folder.parent, dataset_id), ATTEST.keys_bytes)
        return KeyHistory.of(dataset_id, read_lines(data)[0])

    def get(self, dataset_id: DatasetId) -> Note | None:
        """That of a dataset; what is damaged was never seen."""
        with suppress(errors.SignatureError, errors.StoreError):
            data = read_bounded(self._path(dataset_id), ATTEST.note_bytes)
            signers = self.keys(dataset_id).signers(Scope.CHECKPOINTS, BEFORE)
            return None if data is None else read_note(data, dataset_id, signers)
        return None

    def remember(self, note: Note, witnesses: Sequence[NoteKey], *, lower: bool = False) -> None:
        """Remember a note, unless one of a longer log is; with `lower` whatever is.

        It is not synced: witnesses remember it, too.
        """
        dataset_id = note.checkpoint.dataset_id
        fsio.make_folder(self.folder)
        with fsio.locked(self.folder / ".lock"):
            known = self.get(dataset_id)
            if known is None or lower or known.checkpoint.size <= note.checkpoint.size:
                data = note.merged(known, witnesses).data()
                if known is None or data != known.data():
                    with fsio.replaced(self._path(dataset_id), durable=False) as stream:
                        stream.write(data)


@dataclass(slots=True, weakref_slot=True)
class Witnesses:
    """The witnesses that a workspace asks; a connection to each is kept."""

    root: Path
    trust: TrustConfig
    seconds: float = ATTEST.witness_seconds
    _pool: HttpPool = field(default_factory=lambda: HttpPool(PEER_LIMITS, 1_000), init=False)
    _silent: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)
    """When a witness did not answer, and why: it is not asked again for a minute."""

    def __post_init__(self) -> None:
        weakref.finalize(self, self._pool.close)

    @property
    def asked(self) -> dict[NoteKey, str]:
        """Who is asked, and where."""
        return {NoteKey.parse(key): url for key, url in self.trust.ask.items()}

    @property
    def known(self) -> tuple[NoteKey, ...]:
        """Whose lines are verified here: all that the settings name."""
        return known_witnesses(self.trust)

    @property
    def memory(self) -> NoteMemory:
        """The notes that were met."""
        return NoteMemory(self.root / "seen")

    def check_not_rewound(self, dataset: DatasetFiles) -> errors.SignatureError | None:
        """Why witnesses that are asked cannot cosign the head: they did cosign another history. None: can."""
        known = self.memory.get(dataset.id) if self.asked else None
        head = dataset.chain.head()
        if known is None or head is None or not (times := known.times(self.known)):
            return None
        one, number = known.checkpoint, dataset.chain.get(head).sequence_number
        if dataset.chain.hash_at(one.sequence_number, head) == one.head:
            return None
        own, keys = note_in(dataset.folder, dataset.id), dataset.keys_history()
        if own and own.checkpoint.head == head and known.signer in keys.signers(Scope.CHECKPOINTS):
            claim = NoteClaim(own, dataset.chain.by_number(head), keys.texts)
            if (proof := claim.prove(NoteClaim(known, keys=keys.texts))) is not None:
                EvidenceStore(self.root / "evidence").keep(proof, str(dataset.alias), Timestamp.now())
        name, what = next(iter(times)).name, f"block {one.sequence_number} {one.head}"
        back = "a later head" if one.size > number + 1 else "another history"
        return errors.SignatureError(
            OTHER_HISTORY,
            f"{dataset.alias}: witness {name} has cosigned {back}, {what}; the head here is block {number} "
            f"{head}: no witness can cosign that",
            hint="go on from what was cosigned (`odfchain pull`); --force pushes a head without witnesses",
        )

    def ask(self, dataset: DatasetFiles) -> None:
        """As `cosign`, once; what is to be said is a warning, another history an error."""
        if not self.asked or dataset.ref != HEAD:
            return
        if (rewound := self.check_not_rewound(dataset)) is not None:
            raise rewound
        warnings, conflict = self.cosign(dataset)
        for warning in warnings:
            warn(f"{dataset.alias}: {warning}")
        if conflict is not None:
            raise conflict

    def cosign(self, dataset: DatasetFiles) -> tuple[list[str], errors.SignatureError | None]:
        """The note of the head has the cosignatures of those that are asked, as far as they answer.

        Returns what is to be said of the others, and the error of one that has cosigned another history.
        """
        if not self.asked:
            return [], None
        warnings, conflict, dataset_id, known = list[str](), None, dataset.id, self.known
        note = note_in(dataset.folder, dataset_id)
        if note is None or note.checkpoint.head != dataset.chain.head():
            return ["no witness was asked: the head has no checkpoint of its owner"], None
        memory = self.memory.get(dataset_id)
        sizes = dict.fromkeys(memory.times(known), memory.checkpoint.size) if memory else {}
        chain, head, asked = dataset.chain, note.checkpoint.head, note

        @functools.lru_cache(8)
        def prove(old: int) -> Sequence[bytes]:
            return consistency_proof(chain.hashes(head), old) if 0 < old < asked.checkpoint.size else ()

        with suppress(errors.OdfchainError):  # once, and not by each thread, which says what is wrong
            prove(memory.checkpoint.size if memory else 0)

        def ask(witness: tuple[NoteKey, str]) -> NoteLine | errors.OdfchainError:
            try:
                return self._ask(*witness, asked, sizes.get(witness[0], 0), prove)
            except errors.OdfchainError as error:
                return error

        lines = list[NoteLine]()
        for (key, _), said in with_answers(ask, self.asked.items(), len(self.asked)):
            if isinstance(said, NoteLine):
                lines.append(said)
            elif isinstance(said, errors.SignatureError):
                conflict = said
            else:
                warnings.append(f"witness {key.name} has not cosigned: {one_line(said.message, 300)}")
        if lines:
            note = note.with_lines(lines, known)
            with fsio.locked(dataset.folder / "info" / "lock"):
                if dataset.chain.head() == note.checkpoint.head:
                    keep_note(dataset.folder, note.merged(note_in(dataset.folder, dataset_id), known))
            self.memory.remember(note, known)
        return warnings, conflict

    def _ask(self, key: NoteKey, url: str, note: Note, old: int, prove: _Prove) -> NoteLine:
        one, size = note.checkpoint, note.checkpoint.size
        plain = replace(note, lines=note.lines[:1]).data()  # some take 10 KiB, cosignatures of others too
        since, why = self._silent.get(url, (0.0, ""))
        if why and monotonic() - since < _PAUSE_SECONDS:
            raise errors.TransferError(why)
        asked, at = set[int](), old
        while not asked or (at <= size and at not in asked and len(asked) < 3):
            asked.add(at)  # it may have cosigned another head than is remembered here
            proof = "".join(f"{base64.b64encode(each).decode()}\n" for each in prove(at))
            status, answer = self._post(url, f"old {at}\n{proof}\n".encode() + plain)
            if status == 200:
                return _cosignature(key, one, answer)
            if (known := _SIZE.fullmatch(answer) if status == 409 else None) is not None:
                at = int(known[1])
        if status == 422 or (known is not None and (at > size or at in asked)):
            what = "a later head" if at > size else "another history"
            raise errors.SignatureError(
                OTHER_HISTORY,
                f"witness {key.name} has cosigned {what} (of {at:,} blocks); the head here is block "
                f"{one.sequence_number} {one.head}",
                hint="if you did not set the head back, another machine with your key has gone on",
            )
        what = {403: "it does not know the key", 404: "it does not know the dataset"}.get(status, "")
        raise errors.TransferError(f"it answers with HTTP status {status}{what and f': {what}'}")

    def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        name = f"{url.rstrip('/')}/{ADD}"
        deadline = Deadline(self.seconds, Timing(), name=name)
        try:
            with as_transfer_errors():
                route = self._pool.route(parse_target(name, name=name), name)
                headers = request_headers(route, (), [("Content-Type", "text/plain")])
                with self._pool.exchange(route, headers, deadline=deadline, name=name, body=body) as answer:
                    data = answer.read(_ANSWER_BYTES)
        except (errors.OdfchainError, TransientError) as error:  # what may pass is not waited for
            why = one_line(str(error), 300)
            self._silent[url] = monotonic(), why
            raise errors.TransferError(why) from None
        if data is None:
            raise errors.TransferError(f"its answer has more than {_ANSWER_BYTES:,} bytes")
        return answer.status, data


@dataclass(frozen=True, slots=True)
class KnownWitness:
    """A witness that settings name."""

    key: NoteKey
    url: str | None
    """Where it is asked; None: it is not."""
    wanted: bool
    """True if it counts for the quorum of pulls."""


_ASKED: dict[Path, Witnesses] = {}


def witnesses_of(root: Path, trust: TrustConfig) -> Witnesses:
    """Those of a workspace: the same for all of its commands in one process."""
    if root not in _ASKED or _ASKED[root].trust != trust:
        _ASKED[root] = Witnesses(root, trust)
    return _ASKED[root]


_Prove = Callable[[int], Sequence[bytes]]


def known_witnesses(trust: TrustConfig, *more: WitnessPolicy | None) -> tuple[NoteKey, ...]:
    """All whose lines are verified where these are the settings."""
    wanted = [key for each in (trust.witnesses, *more) if each is not None for key in each.witnesses]
    return tuple(dict.fromkeys((*wanted, *map(NoteKey.parse, trust.ask))))


def _cosignature(witness: NoteKey, checkpoint: Checkpoint, answer: bytes) -> NoteLine:
    try:
        lines = [NoteLine.parse(text) for text in answer.decode().removesuffix("\n").split("\n")]
        line = next(each for each in lines if (each.name, each.key_id) == (witness.name, witness.id))
        time = witness.verify(line, checkpoint.body())
    except (errors.SignatureError, UnicodeDecodeError, StopIteration, struct.error):
        raise errors.TransferError("what it answers is not its cosignature of this head") from None
    if time is None or time.epoch_ns - Timestamp.now().epoch_ns > ATTEST.clock_seconds * 1_000_000_000:
        raise errors.TransferError(f"its cosignature is of the future, {time}")
    return line


# What a pull finds beside the head.


@dataclass(slots=True)
class Witnessed:
    """The note of the peer's head, if it has one that holds, and what is to be said."""

    workspace: WorkspaceFiles
    trust: TrustConfig
    wanted: tuple[WitnessPolicy, ...]
    warnings: list[str]
    note: Note | None = None
    """It is of the very head, and its root that of the chain."""

    def shown(self, data: bytes | None, keys: KeyHistory, head: Multihash) -> Timestamp | None:
        """When so many known witnesses as are wanted had seen a head, by a note; None: they had not."""
        with suppress(errors.SignatureError):
            note = read_note(data or b"", keys.dataset_id, keys.signers(Scope.CHECKPOINTS, BEFORE))
            times = sorted(note.times(known_witnesses(self.trust, *self.wanted)).values())
            most = max([1, *(each.quorum for each in self.wanted)])
            return times[most - 1] if note.checkpoint.head == head and len(times) >= most else None
        return None

    def examine(
        self, data: bytes | None, keys: KeyHistory, dataset: DatasetFiles | None, number: int,
        theirs: Callable[[int], Multihash | None], about: str, where: str, now: Timestamp,
        *, proven: bool,
    ) -> None:  # fmt: skip
        """Judge what a peer has as the note of its head, block `number`.

        A proof of two histories is kept, unless signed heads have proven them.
        """
        if data is None:
            return
        dataset_id, signers = keys.dataset_id, keys.signers(Scope.CHECKPOINTS)
        may = (
            keys.signers(Scope.CHECKPOINTS, self.shown(data, keys, head)) if (head := theirs(number)) else ()
        )
        try:
            note = read_note(data, dataset_id, may)
        except errors.SignatureError as error:
            self.warnings.append(f"{about}: {error.message}; this checkpoint is not kept")
            return
        one = note.checkpoint
        in_chain = one.size <= number + 1 and theirs(one.sequence_number) == one.head
        offered = NoteClaim(note, theirs if in_chain else lambda _: None, keys.texts)
        known = [NoteMemory(self.workspace.root / "seen").get(dataset_id)]
        known += [note_in(dataset.folder, dataset_id)] if dataset is not None else []
        for each in (each for each in known if each is not None and each.signer in signers and not proven):
            claim, head = NoteClaim(each, keys=keys.texts), each.checkpoint.head
            if dataset is not None and dataset.chain.contains(head):
                claim = replace(claim, at=dataset.chain.by_number(head))
            if (proof := claim.prove(offered)) is not None:
                EvidenceStore(self.workspace.root / "evidence").keep(proof, where, now)
                self.warnings.append(
                    f"{about}: the owner has signed two histories up to block {proof.sequence_number}, "
                    f"{proof.hashes[0]} and {proof.hashes[1]}: `odfchain evidence` has the proof"
                )
        if in_chain and one.size == number + 1 and _log_root(dataset, number, theirs) == one.root:
            self.note = note
        elif not in_chain or one.size == number + 1:
            what = f"the checkpoint is of another history, block {one.sequence_number} {one.head}"
            self.warnings.append(f"{about}: {what}; it is not kept")

    def require(
        self, dataset_id: DatasetId, about: str, now: Timestamp, longest: int | None, *, force: bool
    ) -> None:
        """The policies are met, or `SignatureError`."""
        wanted = not force and any(policy.quorum for policy in self.wanted)
        kept = EvidenceStore(self.workspace.root / "evidence").list(dataset_id) if wanted else ()
        proven = any(each.evidence is not None and not each.evidence.statements for each in kept)
        for policy in self.wanted:
            if policy.quorum and proven:
                raise errors.SignatureError(
                    Problem.OTHER_HEAD,
                    f"{about}: its owner has signed two histories, so the word of witnesses on one of them "
                    "is worth nothing",
                    hint="`odfchain evidence` has the proof; --force takes this one all the same",
                )
            try:
                policy.check(self.note, now, longest)
            except errors.SignatureError as error:
                message = f"{about}: {error.message}"
                raise errors.SignatureError(error.problem, message, hint=error.hint) from None
            times = {} if self.note is None else self.note.times(policy.witnesses)
            if policy.keys and not policy.quorum and not times:
                self.warnings.append(f"{about}: none of {len(policy.keys)} known witnesses has cosigned it")

    def keep(self, dataset: DatasetFiles, head: Multihash, *, lower: bool) -> None:
        """The note is beside the head that has moved, cosigned where the settings say that."""
        note, known = self.note, known_witnesses(self.trust, *self.wanted)
        with fsio.locked(dataset.folder / "info" / "lock"):
            if dataset.chain.head() != head:
                return
            here = note_in(dataset.folder, dataset.id)
            if note is not None:
                keep_note(dataset.folder, note := note.merged(here, known))
            elif here is None or dataset.chain.hash_at(here.checkpoint.sequence_number, head) != (
                here.checkpoint.head
            ):
                fsio.remove_quietly(dataset.folder / SignedFile.CHECKPOINT.value)
        if note is None:
            return
        log_of(dataset.folder, dataset.chain, head)  # the next pull need not walk
        NoteMemory(self.workspace.root / "seen").remember(note, known, lower=lower)
        if self.trust.cosign:
            try:
                with closing(own_log(self.workspace, "verified")) as log:
                    note = note.with_lines([log.cosign_chain(note, dataset.chain.hashes(head))], (log.key,))
            except errors.OdfchainError as error:
                self.warnings.append(f"{dataset.alias}: the head is not cosigned here: {error.message}")
                return
            keep_note(dataset.folder, note)


def _log_root(
    dataset: DatasetFiles | None, number: int, theirs: Callable[[int], Multihash | None]
) -> bytes | None:
    log = kept_log(dataset.folder) if dataset is not None else Frontier()
    if log.size > number + 1 or (log.size and theirs(log.size - 1) != log.head):
        log = Frontier()
    for at in range(log.size, number + 1):
        if (block := theirs(at)) is None:
            return None
        log = log.append(block)
    return log.root()


# Being a witness.


@dataclass(frozen=True, slots=True)
class Request:
    """A request to cosign: the size that the caller believes was cosigned last, the proof, the note."""

    old: int
    proof: tuple[bytes, ...]
    note: Note

    @classmethod
    def parse(cls, data: bytes) -> tuple[int, tuple[bytes, ...], bytes]:
        """What a body asks for, the note as it is; `SignatureError` where it is none."""
        head, blank, note = data.partition(b"\n\n")
        found = _OLD.fullmatch(head.decode("ascii", "replace"))
        if found is None or not blank or len(data) > REQUEST_BYTES:
            raise errors.SignatureError(Problem.DAMAGED, "not a request to cosign")
        return int(found[1]), tuple(map(base64.b64decode, found[2].split())), note


_TABLE = """
pragma journal_mode = wal; pragma synchronous = full;
create table if not exists log (id blob primary key, size integer not null, root blob not null) without rowid
"""


class WitnessLog:
    """What a witness has cosigned, the newest of each log, in one file; safe to use from threads."""

    def __init__(self, path: Path, private: DatasetKey, name: str) -> None:
        self.key = NoteKey.of(private, name)
        self._private, self._path, self._lock = private, path, threading.Lock()
        with _database(path):
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.executescript(_TABLE)
            self._logs: int = self._db.execute("select count(*) from log").fetchone()[0]

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def cosign(self, requests: Sequence[Request]) -> list[tuple[int, bytes]]:
        """The answers, by status and body; what was cosigned is durable by then."""
        with self._lock, _database(self._path):
            self._db.execute("begin immediate")
            try:
                answers = [self._answer(each) for each in requests]
                self._db.execute("commit")
            except BaseException:
                self._db.execute("rollback")
                raise
        return answers

    def _last(self, dataset_id: DatasetId) -> tuple[int, bytes]:
        query = "select size, root from log where id = ?"
        return self._db.execute(query, (dataset_id.public_key,)).fetchone() or (0, tree_root(()))

    def _answer(self, asked: Request) -> tuple[int, bytes]:
        one = asked.note.checkpoint
        if asked.old > one.size:
            return 400, b"the old size is larger than the new one\n"
        size, root = self._last(one.dataset_id)
        if asked.old != size or (size == one.size and root != one.root):
            return 409, b"%d\n" % size
        try:
            verify_consistency(size, root, one.size, one.root, asked.proof)
        except errors.SignatureError as error:
            return 422, f"{error.message}\n".encode()
        if not size and self._logs >= ATTEST.witness_logs:
            return 503, b"this witness has no room for another log\n"
        if size != one.size:
            row = one.dataset_id.public_key, one.size, one.root
            self._db.execute("insert or replace into log values (?, ?, ?)", row)
            self._logs += not size
        return 200, f"{self.key.sign(one.body(), self._private, Timestamp.now())}\n".encode()

    def cosign_chain(self, note: Note, blocks: Sequence[Multihash]) -> NoteLine:
        """The cosignature of a head whose chain is here; `SignatureError` where another was cosigned."""
        size, _ = self._last(note.checkpoint.dataset_id)
        ((status, answer),) = self.cosign([Request(size, tuple(consistency_proof(blocks, size)), note)])
        if status != 200:
            raise errors.SignatureError(
                OTHER_HISTORY, "another history, or a later head, was cosigned before"
            )
        return NoteLine.parse(answer.decode().rstrip("\n"))


@contextmanager
def _database(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise errors.StoreError(f"{path}: {one_line(str(error), 200)}") from error


def own_log(workspace: WorkspaceFiles, kind: str, name: str | None = None) -> WitnessLog:
    """The log of this workspace as a witness, or of what it has `verified`; its key is made when needed.

    The kinds have a key each: the word of one that verified chains says more, and no line of the other may
    be taken for it.
    """
    path = workspace.root / f"{kind}.pem"
    key = read_key_file(path) if path.exists() else create_key_file(path)
    name = name or f"odfchain.{kind}/{key.dataset_id.public_key.hex()[:16]}"
    return WitnessLog(path.with_suffix(".db"), key, name)
