"""The checkpoint of a dataset's log: a C2SP note in `refs/head.checkpoint`, with cosignatures of witnesses.

    did:odf:fed01…                              the origin, and the name of the key that signs
    3                                           blocks
    nND/nri/U0xuHUrYSy0HtMeal2vzD9V4k/BO79C+QeI=      root of the log (`transparency_log`)
    head f1620…                                 the newest block

    — did:odf:fed01… base64(key id, signature)
    — witness.example base64(key id, time, signature)

A witness signs one history only: that its line is there says that the owner showed this one to it, and when.
Nothing in a note is believed: the owner's line is verified, and each cosignature by the key that the reader
has of the witness. Lines of witnesses that he does not know are carried on. Source: signed-note,
tlog-checkpoint and tlog-cosignature of C2SP; RFC-064.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Annotated

from odfchain.chain.chain import MetadataChain
from odfchain.chain.key_statements import BEFORE, Scope, key_history
from odfchain.chain.statements import Did, Problem, check_public_key, read_bounded, verify_signature
from odfchain.chain.transparency_log import HASH_BYTES, Frontier, log_of
from odfchain.errors import InvalidIdError, SignatureError, StoreError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, DatasetKey, Multihash
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.tree import Rule
from odfchain.storage import fsio
from odfchain.storage.fsio import LocalScratch
from odfchain.storage.local import LocalObjectStore, LocalRefStore
from odfchain.storage.public_layout import SignedFile
from odfchain.text import length, one_line

_NS = 1_000_000_000
_NAME = r"[^\s+]{1,200}"
_LINE = re.compile(f"— ({_NAME}) ([A-Za-z0-9+/]{{90,200}}={{0,2}})")
_VKEY = re.compile(rf"({_NAME})\+([0-9a-f]{{8}})\+([A-Za-z0-9+/]{{44}})")
_BODY = re.compile(r"(did:odf:\S+)\n([1-9][0-9]{0,18})\n([A-Za-z0-9+/]{43}=)\nhead (f1620[0-9a-f]{64})\n")
_TIME = struct.Struct(">Q")
_verify = functools.lru_cache(1_024)(verify_signature)  # a push meets each line six times


class NoteKind(IntEnum):
    """The kinds of keys of notes that count here."""

    LOG = 1
    """Ed25519: the owner's."""
    COSIGNER = 4
    """Ed25519 over `cosignature/v1`, with a time: a witness's."""


@dataclass(frozen=True, slots=True)
class NoteKey:
    """A public key that signs notes, under a name."""

    name: str
    public_key: bytes
    kind: NoteKind = NoteKind.COSIGNER

    @property
    def id(self) -> bytes:
        """The four bytes that lines name it by."""
        return hashlib.sha256(f"{self.name}\n".encode() + bytes([self.kind]) + self.public_key).digest()[:4]

    def __str__(self) -> str:
        key = base64.b64encode(bytes([self.kind]) + self.public_key).decode()
        return f"{self.name}+{self.id.hex()}+{key}"

    @classmethod
    def of(cls, key: DatasetKey, name: str) -> NoteKey:
        """The cosigner's key of a private key; the name is a host and path, say, without blanks and `+`."""
        if re.fullmatch(_NAME, name) is None or not name.isprintable():
            raise InvalidIdError(f"{one_line(name, 80)!r} cannot name a witness: no blanks, no +")
        return cls(name, key.dataset_id.public_key)

    @classmethod
    @functools.lru_cache(256)
    def parse(cls, text: str) -> NoteKey:
        """The witness's key that a vkey is."""
        found, shown = _VKEY.fullmatch(text), repr(one_line(text, 80))
        if found is None or not text.isprintable():
            raise InvalidIdError(f"{shown} is not the key of a witness", hint="it is written NAME+HEX+BASE64")
        data = base64.b64decode(found[3])
        if data[0] != NoteKind.COSIGNER:
            raise InvalidIdError(
                f"{shown} is not a cosigner's key: it is of type 0x{data[0]:02x}, a witness's is of 0x04",
                hint="ask the witness for its key of cosignature/v1",
            )
        try:
            check_public_key(data[1:])
        except SignatureError as error:
            raise InvalidIdError(f"{shown}: {error.message}") from None
        key = cls(found[1], data[1:])
        if key.id.hex() != found[2]:
            raise InvalidIdError(f"{shown}: the key does not fit its number {found[2]}; a letter is wrong")
        return key

    def sign(self, body: bytes, key: DatasetKey, time: Timestamp) -> NoteLine:
        """The line that this key, whose private half is `key`, adds to a note."""
        if self.kind is NoteKind.LOG:
            return NoteLine(self.name, self.id, key.sign(body))
        seconds = time.epoch_ns // _NS
        return NoteLine(self.name, self.id, _TIME.pack(seconds) + key.sign(_cosigned(body, seconds)))

    def verify(self, line: NoteLine, body: bytes) -> Timestamp | None:
        """The time of a line of this key (None of an owner's), or `SignatureError`."""
        if self.kind is NoteKind.LOG:
            _verify(self.public_key, line.signature, body)
            return None
        seconds = _TIME.unpack_from(line.signature)[0]
        _verify(self.public_key, line.signature[_TIME.size :], _cosigned(body, seconds))
        try:
            return Timestamp.from_epoch_ms(seconds * 1_000)
        except InvalidIdError:
            raise _refused(f"witness {self.name} gives a time that there is not") from None


def _cosigned(body: bytes, seconds: int) -> bytes:
    return b"cosignature/v1\ntime %d\n" % seconds + body


def _refused(why: str) -> SignatureError:
    return SignatureError(Problem.DAMAGED, f"not a checkpoint: {why}")


@dataclass(frozen=True, slots=True)
class NoteLine:
    """One signature of a note."""

    name: str
    key_id: bytes
    signature: bytes

    @classmethod
    def parse(cls, text: str) -> NoteLine:
        """The signature that a line is, in the one spelling that it has."""
        found = _LINE.fullmatch(text)
        with suppress(binascii.Error):
            if found is not None and found[1].isprintable():
                data = base64.b64decode(found[2], validate=True)
                line = cls(found[1], data[:4], data[4:])
                if str(line) == text and len(data) >= 4 + 64:
                    return line
        raise _refused(f"{one_line(text, 80)!r} is no signature")

    def __str__(self) -> str:
        return f"— {self.name} {base64.b64encode(self.key_id + self.signature).decode()}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an owner says of the log of a dataset."""

    dataset_id: DatasetId
    size: int
    root: bytes
    head: Multihash

    @classmethod
    def of(cls, dataset_id: DatasetId, log: Frontier) -> Checkpoint:
        """That of a log, which is not empty."""
        assert log.head is not None  # noqa: S101 - it has a block
        return cls(dataset_id, log.size, log.root(), log.head)

    @property
    def sequence_number(self) -> int:
        """The number of the head."""
        return self.size - 1

    @property
    def time(self) -> None:
        """The owner gives none; witnesses do."""
        return

    def body(self) -> bytes:
        """The text that is signed."""
        root = base64.b64encode(self.root).decode()
        return f"{self.dataset_id}\n{self.size}\n{root}\nhead {self.head}\n".encode()


@dataclass(frozen=True, slots=True)
class Note:
    """A checkpoint whose owner's signature was verified, and lines of witnesses, which were not."""

    checkpoint: Checkpoint
    signer: Did
    lines: tuple[NoteLine, ...]
    """The owner's first, then those of cosigners by name."""

    def data(self) -> bytes:
        """The file of the note."""
        return b"%s\n%s" % (self.checkpoint.body(), "".join(f"{each}\n" for each in self.lines).encode())

    def times(self, witnesses: Iterable[NoteKey]) -> dict[NoteKey, Timestamp]:
        """When which of these witnesses cosigned."""
        found, body = dict[NoteKey, Timestamp](), self.checkpoint.body()
        for key in witnesses:
            for line in self.lines[1:]:
                if (line.name, line.key_id) == (key.name, key.id):
                    with suppress(SignatureError):
                        if (time := key.verify(line, body)) is not None:
                            found[key] = time
        return found

    def with_lines(self, lines: Iterable[NoteLine], witnesses: Sequence[NoteKey]) -> Note:
        """The union with lines of the same body: the later of each witness, none that is wrong.

        Where there is no room, those of the known `witnesses` stay.
        """
        known, body = {(key.name, key.id): key for key in witnesses}, self.checkpoint.body()
        kept: dict[tuple[str, bytes], NoteLine] = {}
        for line in (*self.lines[1:], *lines):
            place = line.name, line.key_id
            if len(line.signature) != _TIME.size + 64 or line.name == self.lines[0].name:
                continue
            if place in kept and kept[place].signature >= line.signature:
                continue
            with suppress(SignatureError):
                if place in known:
                    known[place].verify(line, body)
                kept[place] = line
        first = sorted(kept, key=lambda place: (place not in known, place))[: ATTEST.note_lines - 1]
        return replace(self, lines=(self.lines[0], *(kept[place] for place in sorted(first))))

    def merged(self, other: Note | None, witnesses: Sequence[NoteKey]) -> Note:
        """The note with what another one adds; of another body nothing."""
        same = other is not None and other.checkpoint == self.checkpoint
        return self.with_lines(other.lines[1:] if other is not None and same else (), witnesses)


def sign_note(checkpoint: Checkpoint, key: DatasetKey) -> Note:
    """The note of an owner, or of his delegate, without cosignatures."""
    signer = key.dataset_id
    own = NoteKey(str(checkpoint.dataset_id), signer.public_key, NoteKind.LOG)
    return Note(checkpoint, signer, (own.sign(checkpoint.body(), key, Timestamp.now()),))


def read_note(data: bytes, dataset_id: DatasetId | None = None, signers: Sequence[Did] | None = None) -> Note:
    """The note in a file, signed by its owner, or `SignatureError`.

    `dataset_id` is the one that is expected; `signers` are the keys that may sign (None: its own alone).
    """
    text = ""
    with suppress(UnicodeDecodeError):
        text = data.decode() if len(data) <= ATTEST.note_bytes else ""
    body, blank, rest = text.partition("\n\n")
    found = _BODY.fullmatch(f"{body}\n")
    if found is None or not blank or not rest.endswith("\n") or rest.count("\n") > ATTEST.note_lines:
        raise _refused("it is cut, too long, or has other lines")
    lines = [NoteLine.parse(each) for each in rest[:-1].split("\n")]
    root = base64.b64decode(found[3])
    try:
        origin = DatasetId.parse(found[1])
    except InvalidIdError as error:
        raise _refused(str(error)) from None
    checkpoint = Checkpoint(origin, int(found[2]), root, Multihash.parse(found[4]))
    if checkpoint.body() != f"{body}\n".encode() or len(root) != HASH_BYTES:
        raise _refused("it is written in another way than it is signed")
    if dataset_id not in (None, origin):
        raise SignatureError(Problem.OTHER_DATASET, f"the checkpoint is of another dataset, {origin}")
    check_public_key(origin.public_key)
    for signer in (origin,) if signers is None else signers:
        key = NoteKey(found[1], signer.public_key, NoteKind.LOG)
        for line in lines:
            if (line.name, line.key_id, len(line.signature)) == (key.name, key.id, 64):
                key.verify(line, checkpoint.body())
                return Note(checkpoint, signer, (line,)).with_lines(lines, ())
    raise SignatureError(Problem.OTHER_KEY, "the checkpoint is not signed by the dataset's key")


def note_in(folder: Path, dataset_id: DatasetId) -> Note | None:
    """The valid note in a dataset's folder, by the keys statements that are there."""
    with suppress(SignatureError, StoreError):  # what else is in its place is as good as none
        data = read_bounded(folder / SignedFile.CHECKPOINT.value, ATTEST.note_bytes)
        signers = key_history(folder, dataset_id).signers(Scope.CHECKPOINTS, BEFORE)
        return None if data is None else read_note(data, dataset_id, signers)
    return None


def write_note(folder: Path, key: DatasetKey, dataset_id: DatasetId, head: Multihash) -> None:
    """The note of the head is beside it, with the cosignatures that it has; the caller holds its lock."""
    chain = MetadataChain(
        LocalObjectStore(folder / "blocks"), LocalRefStore(folder), LocalScratch(folder / "info/chain-index")
    )
    note = sign_note(Checkpoint.of(dataset_id, log_of(folder, chain, head)), key)
    here = fsio.read_start(folder / SignedFile.CHECKPOINT.value, ATTEST.note_bytes) or b""
    if here.startswith(note.checkpoint.body()):
        note = note.merged(note_in(folder, dataset_id), ())
    keep_note(folder, note)


def keep_note(folder: Path, note: Note) -> None:
    """The note is beside the head, also after a loss of power."""
    with fsio.replaced(folder / SignedFile.CHECKPOINT.value) as stream:
        stream.write(note.data())


# What a reader wants of witnesses.

_VKEYS = Rule("the key of a witness", NoteKey.parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessPolicy:
    """So many of these witnesses have cosigned the head, and not long ago."""

    keys: tuple[Annotated[str, _VKEYS], ...] = ()
    quorum: Annotated[int, range(1_000)] = 0
    """0 refuses nothing."""
    max_age: Duration | None = None

    @property
    def witnesses(self) -> tuple[NoteKey, ...]:
        """The keys; each counts once."""
        return tuple(dict.fromkeys(map(NoteKey.parse, self.keys)))

    def check(self, note: Note | None, now: Timestamp, longest: int | None = None) -> None:
        """The policy is met, or `SignatureError` names who is missing; `longest` is one more age [s]."""
        ages = (self.max_age.milliseconds // 1_000 if self.max_age is not None else None, longest)
        most = min((age for age in ages if age is not None), default=None)
        times, missing = note.times(self.witnesses) if note is not None else {}, list[str]()
        for key in self.witnesses:
            age = (now.epoch_ns - times[key].epoch_ns) // _NS if key in times else None
            if age is None:
                missing.append(f"{key.name} has not")
            elif age < -ATTEST.clock_seconds:
                missing.append(f"{key.name} gives a time in the future, {times[key]}")
            elif most is not None and age > most:
                missing.append(f"{key.name} did {length(age)} ago (at most {length(most)} are accepted)")
        if (count := len(self.witnesses) - len(missing)) >= self.quorum:
            return
        why = "it has no checkpoint" if note is None else "; ".join(missing) or "no other is known"
        raise SignatureError(
            Problem.TOO_OLD if self.quorum <= len(times) else Problem.UNWITNESSED,
            f"{count} of the {self.quorum} witnesses that are wanted have cosigned this head: {why}",
            hint="ask the owner to have it cosigned (`odfchain sign`), or try another peer",
        )
