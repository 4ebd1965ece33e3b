"""Files of signed statements, one to a line, which travel with a dataset and which anyone can add to.

So nothing in such a file is believed: each line is read and judged by itself. A signer has one word on a
subject, the latest. Lines are sorted, so that copies which have exchanged theirs are equal, in any order
they met. Where there is no room for all, those of trusted signers come first, then those that are here; in a
file of the newest blocks the older ones give way before that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from odfchain.chain import statements
from odfchain.chain.key_statements import KeyHistory, Scope
from odfchain.errors import SignatureError, StoreError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, DatasetKey, DidKey, Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.public_layout import SignedFile

T = TypeVar("T")

# Bad lines after which a file is given up [count]: a million empty ones would cost a reader seconds.
_DAMAGED_LINES = 100


@dataclass(frozen=True, slots=True)
class About:
    """The subject of a statement, and its signer; `kind` separates subjects of one block."""

    dataset_id: DatasetId
    signer: statements.Did
    block: Multihash
    sequence_number: int
    time: Timestamp
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SignedLine(Generic[T]):
    """One line: the statement, or what is wrong with it."""

    number: int
    text: bytes
    statement: T | None = None
    problem: statements.Problem | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge: lines that came in, malformed ones, and those that were not kept and why."""

    added: int
    damaged: tuple[str, ...] = ()
    outdone: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """Both."""
        return self.damaged + self.outdone


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFile(Generic[T]):
    """A file of signed lines: its path, its kind of statements, and its bounds."""

    key: str
    """Where it is in the dataset's folder, and in the simple transfer layout."""
    one: str
    many: str
    """The word for a statement in messages, and for several."""
    read: Callable[[bytes], T]
    unverified: Callable[[bytes], T]
    """The statement of a line, with and without a look at its signature, which takes ten times as long."""
    about: Callable[[T], About]
    most_bytes: Callable[[], int]
    per_subject: Callable[[], int]
    """The largest file [bytes], and the most signers of one subject [count]."""
    newest_first: bool = False
    """True if lines of newer blocks come first, and older ones are dropped where there is no room."""

    def lines_of(self, content: bytes | None, dataset_id: DatasetId) -> list[SignedLine[T]]:
        """Each line of a file (None: there is none), valid or not; nothing is raised for it."""
        if content is None:
            return []
        if len(content) > self.most_bytes():
            return [_bad(1, b"", f"more than {self.most_bytes()} bytes of {self.many}")]
        # every line ends with a line break, so a whole file has no rest
        *lines, rest = content.split(b"\n")
        found: list[SignedLine[T]] = []
        damaged = 0
        for number, text in enumerate(lines, start=1):
            found.append(self.line(number, text, dataset_id))
            damaged += found[-1].statement is None
            if damaged == _DAMAGED_LINES and number < len(lines):
                found.append(_bad(number + 1, b"", f"after {damaged} bad lines the rest is not read"))
                return found
        if rest or not lines:
            found.append(_bad(len(lines) + 1, rest, "the file is empty or its last line is cut"))
        return found

    def line(self, number: int, text: bytes, dataset_id: DatasetId) -> SignedLine[T]:
        """One line, valid or not."""
        try:
            statement = self.read(text)
        except SignatureError as error:
            return SignedLine(number, text, None, statements.Problem(error.problem), str(error))
        if (other := self.about(statement).dataset_id) != dataset_id:
            message = f"{self.one} of another dataset, {other}"
            return SignedLine(number, text, None, statements.Problem.OTHER_DATASET, message)
        return SignedLine(number, text, statement)

    def valid(
        self, content: bytes | None, dataset_id: DatasetId, accept: Callable[[T], bool] = lambda _: True
    ) -> list[SignedLine[T]]:
        """The valid lines of a file that are wanted."""
        lines = self.lines_of(content, dataset_id)
        return [line for line in lines if line.statement is not None and accept(line.statement)]

    def of_chain(self, block_at: Callable[[int], Multihash | None]) -> Callable[[T], bool]:
        """True if a statement is about a block of the chain whose hashes `block_at` knows by number."""

        def found(statement: T) -> bool:
            about = self.about(statement)
            return block_at(about.sequence_number) == about.block

        return found

    def content(self, folder: Path) -> bytes | None:
        """The content of the file in a dataset's folder, None when there is none."""
        return statements.read_bounded(folder / self.key, self.most_bytes())

    def add(
        self, folder: Path, dataset_id: DatasetId, text: str, *, trusted: Collection[statements.Did] = ()
    ) -> None:
        """Durably keep one statement in a dataset's folder, in place of what its signer said before.

        Raises:
            SignatureError: it is not a valid one of this dataset.
            StoreError: there are too many already, the signer has a later one, or it cannot be written; what
                is there stays.
        """
        line = self.line(1, text.encode(), dataset_id)
        if line.statement is None:
            raise SignatureError(line.problem or statements.Problem.DAMAGED, line.message or "")
        merged = self.merge(folder, dataset_id, line.text + b"\n", trusted=trusted)
        if merged.outdone and not merged.added:
            raise StoreError(f"{folder / self.key}: {merged.outdone[0]}")

    def merge(
        self,
        folder: Path,
        dataset_id: DatasetId,
        received: bytes,
        *,
        accept: Callable[[T], bool] = lambda _: True,
        trusted: Collection[statements.Did] = (),
    ) -> Merged:
        """Durably add the valid statements of `received` to those that are here."""
        # the same bytes bring nothing new, so no signature is verified
        if received == self.content(folder):
            return Merged(0)
        lines = self.lines_of(received, dataset_id)
        damaged = tuple(f"line {line.number}: {line.message}" for line in lines if line.statement is None)
        wanted = [line for line in lines if line.statement is not None and accept(line.statement)]
        if not wanted:
            return Merged(0, damaged)
        path = folder / self.key
        fsio.make_folder(path.parent)
        with fsio.locked(folder / "info" / "lock"):
            # malformed lines are dropped; of the others only those that compete with new ones are verified
            here = self._kept(self.content(folder), dataset_id, {self._subject(line) for line in wanted})
            kept, outdone = self.joined(here, wanted, trusted)
            texts = {line.text for line in here}
            added = sum(line.text not in texts for line in kept)
            if added:
                fsio.replace_file(path, content_of(kept))
        return Merged(added, damaged, tuple(outdone))

    def about_block(self, content: bytes | None, dataset_id: DatasetId, block: Multihash) -> list[T]:
        """The valid statements of a file about one block; the signatures of others are not looked at."""
        forms = [form for form in self._forms(content) if self._about(form).block == block]
        found = [self.line(form.number, form.text, dataset_id) for form in forms]
        return [line.statement for line in found if line.statement is not None]

    def _kept(
        self, content: bytes | None, dataset_id: DatasetId, subjects: Collection[tuple[Multihash, str]]
    ) -> list[SignedLine[T]]:
        own = [form for form in self._forms(content) if self._about(form).dataset_id == dataset_id]
        found = [
            self.line(form.number, form.text, dataset_id) if self._subject(form) in subjects else form
            for form in own
        ]
        return [line for line in found if line.statement is not None]

    def _forms(self, content: bytes | None) -> Iterator[SignedLine[T]]:
        if content is None or len(content) > self.most_bytes():
            return
        damaged = 0
        for number, text in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                # the form only; verifying signatures takes longer and is left to the caller
                yield SignedLine(number, text, self.unverified(text))
            except SignatureError:
                damaged += 1
                if damaged == _DAMAGED_LINES:
                    return

    def drop(self, folder: Path, dataset_id: DatasetId, wanted: Callable[[T], bool]) -> None:
        """Durably remove the lines that are not wanted, and those that are none."""
        with fsio.locked(folder / "info" / "lock"):
            before = self.content(folder)
            content = content_of(self.valid(before, dataset_id, wanted))
            if before is None or content == before:
                return
            if content:
                fsio.replace_file(folder / self.key, content)
            else:
                fsio.remove_file(folder / self.key)

    def joined(
        self,
        here: Sequence[SignedLine[T]],
        wanted: Sequence[SignedLine[T]],
        trusted: Collection[statements.Did] = (),
    ) -> tuple[list[SignedLine[T]], list[str]]:
        """The valid lines of both within the bounds, sorted; and why others are not among them."""
        keys = {did.public_key for did in trusted}
        kept: dict[tuple[Multihash, str, bytes], SignedLine[T]] = {}
        outdone: list[str] = []
        signers: dict[tuple[Multihash, str], int] = {}
        size = 0
        for line in sorted((*here, *wanted), key=lambda line: self._preference(line, keys)):
            about, subject = self._about(line), self._subject(line)
            key = (*subject, about.signer.public_key)  # one key is one signer, under either method
            old = kept.get(key)
            if old is not None and self._age(old) >= self._age(line):
                if line.text != old.text:
                    outdone.append(
                        f"line {line.number}: {about.signer} already signed a newer statement "
                        f"about block {about.block}"
                    )
                continue
            count = signers.get(subject, 0) + (old is None)
            larger = size + len(line.text) + 1 - (len(old.text) + 1 if old is not None else 0)
            if count > self.per_subject():
                most = self.per_subject()
                outdone.append(f"line {line.number}: block {about.block} has {most} {self.many} already")
            elif larger > self.most_bytes():
                text = f"line {line.number}: no room for more than {self.most_bytes()} bytes of {self.many}"
                outdone.append(text)
            else:
                kept[key], signers[subject], size = line, count, larger
        return sorted(kept.values(), key=self._order), outdone

    def _about(self, line: SignedLine[T]) -> About:
        assert line.statement is not None  # noqa: S101 - callers have a valid line
        return self.about(line.statement)

    def _subject(self, line: SignedLine[T]) -> tuple[Multihash, str]:
        about = self._about(line)
        return about.block, about.kind

    def _preference(self, line: SignedLine[T], trusted: set[bytes]) -> tuple[bool, int]:
        about = self._about(line)
        return about.signer.public_key not in trusted, -about.sequence_number if self.newest_first else 0

    def _age(self, line: SignedLine[T]) -> tuple[int, bytes]:
        return self._about(line).time.epoch_ns, line.text

    def _order(self, line: SignedLine[T]) -> tuple[int, bytes, str, bytes]:
        about = self._about(line)
        number = -about.sequence_number if self.newest_first else about.sequence_number
        return number, about.block.digest, about.kind, about.signer.public_key


def content_of(lines: Sequence[SignedLine[T]]) -> bytes:
    """The file that these lines are."""
    return b"".join(line.text + b"\n" for line in lines)


def _bad(number: int, text: bytes, message: str) -> SignedLine[T]:
    return SignedLine(number, text, None, statements.Problem.DAMAGED, message)


# The attestations of a dataset: `attestations/audits.jws`, one signed line for each.

AttestationLine = SignedLine[statements.Attestation]


def _about(found: statements.Attestation) -> About:
    return About(found.dataset_id, found.auditor, found.head, found.sequence_number, found.time)


AUDITS = LineFile(
    key=SignedFile.AUDITS.value,
    one="an attestation",
    many="attestations",
    read=statements.read_attestation,
    unverified=functools.partial(statements.read_attestation, verified=False),
    about=_about,
    most_bytes=lambda: ATTEST.attestations_bytes,
    per_subject=lambda: ATTEST.attestations_per_head,
)
"""An auditor has one word on a head, the latest."""


def read_attestations(folder: Path, dataset_id: DatasetId) -> list[AttestationLine]:
    """Each line of a dataset folder's attestations, valid or not."""
    return AUDITS.lines_of(AUDITS.content(folder), dataset_id)


# Signed manifests and profiles of blocks: `attestations/snapshots.jws`, one signed line for each.
#
# A line names a manifest or a profile, an object of the dataset, by its hash and size. The documents follow
# from the dataset: a line of its owner saves a reader the walk along the chain, and that of anybody else is
# a second opinion. Source: RFC-042.


class SnapshotKind(StrEnum):
    """The kinds of documents that describe a snapshot."""

    MANIFEST = "manifest"
    PROFILE = "profile"

    @property
    def folder(self) -> str:
        """Where a dataset has such objects."""
        return f"{self.value}s"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SnapshotLine(statements.Signed):
    """A signer's word that an object is the manifest, or a profile, of a block."""

    signer: statements.Did
    dataset_id: DatasetId
    block: statements.Hash
    sequence_number: int
    kind: SnapshotKind
    object: statements.Hash
    size: int
    time: Timestamp
    tool: statements.Word

    def by_owner(self, keys: KeyHistory | None = None) -> bool:
        """True if it is the owner's word, by his keys statements (None: by the dataset's own key)."""
        own = self.signer.public_key == self.dataset_id.public_key
        signer = self.dataset_id if own else DidKey(self.signer.public_key)
        try:
            (keys or KeyHistory.of(self.dataset_id, ())).judge(
                signer, Scope.SNAPSHOTS, self.time, there=False
            )
        except SignatureError:
            return False
        return True

    def sign(self, key: DatasetKey) -> str:
        """Its signed text, without its end; `UsageError` where it could not be read again."""
        kind = statements.StatementType.SNAPSHOT
        return self.signed(key, self.signer, kind, read_snapshot, "line about a snapshot")

    def __repr__(self) -> str:
        return f"<{self.kind} of block {self.sequence_number:,} by {self.signer}: {self.object}>"


def read_snapshot(text: bytes, *, verified: bool = True) -> SnapshotLine:
    """The line that was signed; without `verified`, what has the form of one."""
    signer, payload = statements.read_statement(text, statements.StatementType.SNAPSHOT, verified=verified)
    line = statements.read_members(SnapshotLine, payload, signer=signer)
    if line.size > ATTEST.snapshot_bytes:
        raise statements.malformed(f"'size' is not a number from 0 to {ATTEST.snapshot_bytes}")
    return line


def _about_snapshot(line: SnapshotLine) -> About:
    return About(line.dataset_id, line.signer, line.block, line.sequence_number, line.time, str(line.kind))


SNAPSHOTS = LineFile(
    key=SignedFile.SNAPSHOTS.value,
    one="a line about a snapshot",
    many="lines about snapshots",
    # one command reads the lines of the same dataset several times
    read=functools.lru_cache(maxsize=8192)(read_snapshot),
    unverified=functools.lru_cache(maxsize=8192)(functools.partial(read_snapshot, verified=False)),
    about=_about_snapshot,
    most_bytes=lambda: ATTEST.snapshot_lines_bytes,
    per_subject=lambda: ATTEST.snapshot_signers,
    newest_first=True,
)
"""A signer has one word on each kind of document of a block."""
