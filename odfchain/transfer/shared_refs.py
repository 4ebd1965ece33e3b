"""The head of a dataset in a store that machines share: what it names first, then one conditional write.

    1. slices and checkpoints of the new blocks     data/…, checkpoints/…
    2. the new blocks, oldest first                 blocks/…
       (what was there before is marked, so that no gc removes it: `odfchain.transfer.shared_marks`)
    3. the head, if it is still in the version that was seen        refs/head
    4. the head in the folder

A crash before 3 leaves objects that nothing names. After it the commit is done for all machines, and the next
opening moves the head in the folder, too. An answer that is lost is no conflict: whether the head that is
there is this one, or goes on from it, decides, so nothing is recorded twice. A head that does not continue
the one before (a reset, a compaction) moves in the same way; its intention is noted in the folder before 3,
since another machine, or this one after a crash, would take it for a store that somebody set back. Branches
move as the head does, and may be deleted, and made anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn

from odfchain.errors import OutcomeUnknownError, RefConflictError, TransferError
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.store.interfaces import HEAD, check_object_name
from odfchain.store.local import LocalRefStore, conflict
from odfchain.transfer.object_peer import ObjectPeer
from odfchain.transfer.object_space import ConditionsUnknownError, Version, WriteRefusedError
from odfchain.transfer.public_layout import ObjectKey
from odfchain.transfer.shared_sending import Sent
from odfchain.trust.parties import SignedFile


@dataclass(slots=True)
class KnownHead:
    """The head in the store as it was seen last, and its version; one value, for threads replace it."""

    seen: tuple[Multihash | None, Version | None] = (None, None)


@dataclass(frozen=True, slots=True)
class SharedRefStore:
    """The references of a dataset; fulfils `RefStore`. Reading them asks nobody: opening has done that."""

    local: LocalRefStore
    peer: Callable[[str], ObjectPeer]
    known: Callable[[str], KnownHead]
    send: Callable[[ObjectPeer, Multihash | None, Multihash], Sent]
    """Sends what a head names that follows another one."""
    kept: Callable[[ObjectPeer, list[ObjectKey]], AbstractContextManager[None]]
    """Keeps what was there from being removed."""
    came: Callable[[ObjectPeer, Multihash | None, Multihash, Multihash], bool]
    """Whether the head that is there is the one that followed another, or goes on from it."""
    intended: Callable[[Multihash, Multihash], AbstractContextManager[None]]
    """Notes that a head is about to be replaced by one that does not continue it."""
    follow: Callable[[str], None]
    """Is told of a conflict, to bring what the other writer has done."""

    def get(self, name: str) -> Multihash | None:
        """What the reference file holds."""
        return self.local.get(name)

    def names(self) -> Iterator[str]:
        """Every reference in the folder."""
        return self.local.names()

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        """Move the head or a branch in the store, then here; other references stay in the folder.

        Raises:
            RefConflictError: another writer was faster.
            ObjectNotFoundError: a slice that the new blocks name is neither here nor there.
            AccessError, TransferError: from the store; what it has is as it was, or the message says more.
        """
        check_object_name(new)
        actual = self.local.get(name)
        if name != HEAD and not is_branch_name(name):
            self.local.compare_and_swap(name, expected, new)
            return
        if actual != expected:
            raise conflict(name, expected, actual)
        if expected is None and name != HEAD:
            self._check_head()
        peer, version = self.peer(name), self._version(name, expected)
        sent = self.send(peer, expected, new)
        if not sent.replaces or expected is None:
            self._commit(peer, expected, version, new, sent)
            return
        with self.intended(expected, new) if name == HEAD else contextlib.nullcontext():
            self._commit(peer, expected, version, new, sent)
        with contextlib.suppress(TransferError):  # it is of a block that the chain does not have any more
            peer.put_signed(SignedFile.HEAD, None)

    def remove(self, name: str, expected: Multihash) -> None:
        """A branch that points at `expected` now is none any more, in the store; here it stays."""
        peer, known = self.peer(name), self.known(name)
        head, version = known.seen = peer.versioned_head()
        if head is None:
            return
        if head != expected:
            self._conflict(name, expected, head)
        try:
            known.seen = None, peer.empty_ref(version)
        except WriteRefusedError:  # by another writer, or by our own request that was repeated
            head, _ = known.seen = peer.versioned_head()
            if head is not None:
                self._conflict(name, expected, head)
        with contextlib.suppress(TransferError):
            peer.put_signed(SignedFile.HEAD, None)

    def _check_head(self) -> None:
        """The head in the store has all blocks of the head here, from which a branch is to begin.

        Else they may be garbage there: another machine has put the head back.
        """
        here, peer = self.local.get(HEAD), self.peer(HEAD)
        there = peer.head()
        if here is not None and there != here and (there is None or not self.came(peer, None, here, there)):
            self._conflict(HEAD, here, there)

    def _version(self, name: str, expected: Multihash | None) -> Version | None:
        known = self.known(name)
        head, version = known.seen
        if head is None or head != expected:
            head, version = known.seen = self.peer(name).versioned_head()
        if head != expected:
            self._conflict(name, expected, head)
        return version

    def _commit(
        self,
        peer: ObjectPeer,
        expected: Multihash | None,
        version: Version | None,
        new: Multihash,
        sent: Sent,
    ) -> None:
        with self.kept(peer, sent.reused):
            self._move(peer, expected, version, new)
        with contextlib.suppress(RefConflictError):  # who opened the dataset has moved it at least as far
            self.local.compare_and_swap(peer.ref, expected, new)

    def _move(
        self, peer: ObjectPeer, expected: Multihash | None, version: Version | None, new: Multihash
    ) -> None:
        problem: TransferError | None = None
        known = self.known(peer.ref)
        try:
            known.seen = new, peer.replace_head(version, new)
        except ConditionsUnknownError:
            raise TransferError(f"{peer.where}: the store has no conditional writes any more") from None
        except WriteRefusedError:
            pass
        except TransferError as error:  # nobody knows what became of the request
            problem = error
        else:
            return
        head, is_made = self._look(peer, expected, new, problem)
        if is_made:
            return
        if head != expected or problem is None:
            self._conflict(peer.ref, expected, head)
        raise problem

    def _look(
        self, peer: ObjectPeer, expected: Multihash | None, new: Multihash, problem: TransferError | None
    ) -> tuple[Multihash | None, bool]:
        """The head in the store now, and whether it is this one, or goes on from it."""
        try:
            head, _ = self.known(peer.ref).seen = peer.versioned_head()
            return head, head is not None and self.came(peer, expected, new, head)
        except TransferError as error:
            self.known(peer.ref).seen = None, None
            raise OutcomeUnknownError(
                f"{(problem or error).message}: whether block {new} was committed is not known",
                hint="see with `odfchain log` whether it is there before the command is run again",
            ) from error

    def _conflict(self, name: str, expected: Multihash | None, actual: Multihash | None) -> NoReturn:
        self.follow(name)
        raise conflict(name, expected, actual)
