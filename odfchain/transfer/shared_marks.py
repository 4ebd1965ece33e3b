"""Who removes objects of a store, and who relies on objects that he did not write, see each other.

    removing/fed01…             objects of this dataset are being removed; for an hour at most
    relying/fed01…/<random>     objects of it that were there already are about to be named; likewise

Stores do not delete on a condition. So each of the two puts his mark first and looks for the other's then: of
two at the same moment at least one sees the other, and steps back. What a commit has put itself needs no
mark, for it is young: a commit of new objects asks nothing of this. Source: RFC-048.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

from odfchain.errors import BusyError, ObjectNotFoundError, OdfchainError
from odfchain.limits import SHARING
from odfchain.transfer.object_space import ObjectSpace, WriteRefusedError

LIFE = 3_600.0
"""How long a mark holds [s], by the store's clock; who removes stops at half of it, by his own."""

_MOST = 100_000
_BYTES = 64
_LOOKS = 20
_WAIT = 0.5
"""How often, and how long [s], is waited for somebody who removes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to remove objects of a dataset."""

    now: float
    """The store's clock when it began [s since the epoch]."""
    ends: float

    def check(self) -> None:
        """It holds still.

        Raises:
            BusyError: somebody else may think that it has ended.
        """
        if time.monotonic() > self.ends:
            raise BusyError("removing took too long", hint="run gc again: it goes on where it was")


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks on one dataset, by the name of its folder in a workspace's store."""

    space: ObjectSpace
    folder: str

    @property
    def _removing(self) -> str:
        return f"removing/{self.folder}"

    @contextlib.contextmanager
    def removing(self) -> Iterator[Turn]:
        """Nobody else removes objects, and nobody relies on old ones.

        Raises:
            BusyError: somebody does.
        """
        token = secrets.token_hex(_BYTES // 4).encode()
        if not self._taken(token):
            raise BusyError(f"{self.space.where}{self._removing}: another gc is at work", hint="run gc later")
        ends = time.monotonic() + LIFE / 2
        try:
            now = self.space.modified(self._removing)
            below = f"relying/{self.folder}"
            for mark in self.space.listed(below, _MOST):
                if now - mark.modified < LIFE:
                    raise BusyError(
                        f"{self.space.where}{below}/{mark.key}: something is being committed",
                        hint="run gc again when that is done",
                    )
                self.space.delete(f"{below}/{mark.key}")
            yield Turn(now, ends)
        finally:
            if time.monotonic() < ends:
                with contextlib.suppress(OdfchainError):
                    self.space.delete(self._removing)

    def _taken(self, token: bytes) -> bool:
        try:
            self.space.write(self._removing, token, "create")
        except WriteRefusedError:
            with contextlib.suppress(ObjectNotFoundError, WriteRefusedError):
                held, version = self.space.read(self._removing, _BYTES)
                if held == token:  # our answer was lost
                    return True
                if not self._is_held(store_time(self.space)):
                    self.space.write(self._removing, token, version)
                    return True
            return False
        return True

    def _is_held(self, now: float) -> bool:
        try:
            return now - self.space.modified(self._removing) < LIFE
        except ObjectNotFoundError:
            return False

    @contextlib.contextmanager
    def relying(self) -> Iterator[None]:
        """Nobody removes objects of the dataset; what is there now stays until the end.

        Raises:
            BusyError: somebody removes some.
        """
        mark = f"relying/{self.folder}/{secrets.token_hex(16)}"
        try:
            for look in range(_LOOKS):
                if look:
                    time.sleep(_WAIT)
                self.space.write(mark, b"-")
                if not self._is_held(self.space.modified(mark)):
                    break
                self.space.delete(mark)  # else the two would wait for each other
            else:
                raise BusyError(
                    f"{self.space.where}{self._removing}: a gc is at work; nothing was committed",
                    hint="run the command again when it has ended, or in an hour, if it was killed",
                )
            yield
        finally:
            with contextlib.suppress(OdfchainError):
                self.space.delete(mark)


def store_time(space: ObjectSpace) -> float:
    """What time it is for the store [s since the epoch]."""
    probe = f"relying/{secrets.token_hex(16)}"
    space.write(probe, b"-")
    try:
        return space.modified(probe)
    finally:
        space.delete(probe)


def forget_probes(space: ObjectSpace, now: float) -> None:
    """Marks that whoever put them did not live to remove are gone."""
    for below in ("relying", "removing"):
        old = [
            f"{below}/{mark.key}"
            for mark in space.listed(below, SHARING.shared_names)
            if now - mark.modified >= LIFE
        ]
        space.delete_all(old)
