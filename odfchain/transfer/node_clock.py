"""What time it is at a node: addresses that it gives expire by its clock, not by that of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.model.timestamp import Timestamp

_NOTICED_MS = 120_000
"""Clocks that are closer together are not worth a word [ms]: storages allow minutes."""


@dataclass(frozen=True, slots=True)
class NodeClock:
    """A node's `Date`, and what time has passed since, by a clock that nobody sets."""

    date: Timestamp | None = None
    """None where the node gave none: then the clock of this machine is asked."""
    at: float = 0.0
    """When that was, by the clock that nobody sets [s]."""

    def now_ms(self, at: float) -> int:
        """The time at the node [ms since 1970], now that the other clock says `at` [s]."""
        if self.date is None:
            return Timestamp.now().epoch_ms
        return self.date.epoch_ms + round((at - self.at) * 1_000)

    def has_passed(self, time: Timestamp | None, at: float) -> bool:
        """Whether it is later than a time at the node; never later than none."""
        return time is not None and time.epoch_ms <= self.now_ms(at)

    def refusal_hint(self, storage: Timestamp | None, at: float) -> str | None:
        """Why a storage with this `Date` may refuse an address of the node's; None if not for its clock."""
        apart = 0 if storage is None else abs(storage.epoch_ms - self.now_ms(at))
        if apart <= _NOTICED_MS:
            return None
        clock = "the node" if self.date is not None else "this machine"
        return (
            f"the clocks of {clock} and of the storage are {round(apart / 60_000):,} minutes apart, "
            "so that addresses are refused: have them set"
        )
