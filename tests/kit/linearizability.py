"""Whether a history of operations could have happened one after the other: the rules of Porcupine, which are pure.

An operation has its moment somewhere between its call and its return. The search of Wing and Gong, with Lowe's
cache, looks for an order of all that returned; what never returned has its moment after its call, or none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client; times are of one clock."""

    client: str
    asked: Any
    answer: Any
    called: float
    returned: float = NEVER


Step = Callable[[Any, Any, Any], "Hashable | None"]
"""(state, asked, answer) -> the state after it, None where the answer cannot be."""


class _Entry:
    """A call or a return in a list that entries leave and come back to."""

    __slots__ = ("after", "before", "match", "number")

    def __init__(self, number: int, match: _Entry | None) -> None:
        self.number, self.match = number, match
        self.before: _Entry | None = None
        self.after: _Entry | None = None

    def out(self) -> None:
        self.before.after = self.after
        if self.after is not None:
            self.after.before = self.before

    def back(self) -> None:
        self.before.after = self
        if self.after is not None:
            self.after.before = self


def linearizable(history: Sequence[Operation], start: Hashable, step: Step) -> bool:
    """Whether there is an order of operations that the model allows, and that real time allows."""
    events: list[tuple[float, int, _Entry]] = []
    for number, each in enumerate(history):
        end = _Entry(number, None)
        # a call at the time of a return is beside it
        events.append((each.called, 0, _Entry(number, end)))
        if each.returned != NEVER:
            events.append((each.returned, 1, end))
    events.sort(key=lambda event: event[:2])
    first = last = _Entry(-1, None)
    for _, _, entry in events:
        last.after, entry.before, last = entry, last, entry
    open_returns = sum(each.returned != NEVER for each in history)
    state, done, seen = start, 0, set[tuple[int, Hashable]]()
    taken: list[tuple[_Entry, Hashable]] = []
    entry = first.after
    while open_returns:
        assert entry is not None
        if entry.match is not None:
            each, bit = history[entry.number], 1 << entry.number
            following = step(state, each.asked, each.answer)
            if following is not None and (key := (done | bit, following)) not in seen:
                seen.add(key)
                taken.append((entry, state))
                state, done = following, done | bit
                entry.out()
                if each.returned != NEVER:
                    entry.match.out()
                    open_returns -= 1
                entry = first.after
            else:
                entry = entry.after
            if entry is not None or not open_returns:
                continue
        # this return has to come now, and its call could not
        if not taken:
            return False
        entry, state = taken.pop()
        done &= ~(1 << entry.number)
        if history[entry.number].returned != NEVER:
            entry.match.back()
            open_returns += 1
        entry.back()
        entry = entry.after
    return True


# The model of a chain: a list to which values are appended, and of which a reader sees all.

APPEND, READ = "append", "read"
EMPTY = (0, b"")


def grown(state: tuple[int, bytes], value: str) -> tuple[int, bytes]:
    """A list by its length and a digest, with one value more."""
    return state[0] + 1, hashlib.blake2b(state[1] + value.encode(), digest_size=16).digest()


def append_list(state: Any, asked: Any, answer: Any) -> Hashable | None:
    """The step of a list: an append answers the list after it (None: not known), a read the list that is there."""
    kind, value = asked
    following = grown(state, value) if kind == APPEND else state
    return following if answer in (None, following) else None


def register(state: Any, asked: Any, answer: Any) -> Hashable | None:
    """The step of a register: `("write", x)` with no answer, `("read", None)`, `("swap", (old, new))`, whether it did."""
    kind, value = asked
    if kind == READ:
        return state if answer == state else None
    if kind == "write":
        return value
    old, new = value
    if answer is None:
        return new if state == old else state
    return (new if answer else state) if answer == (state == old) else None


def states_of(chain: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    """The lists that a chain was, the empty one first."""
    state = EMPTY
    yield state
    for value in chain:
        yield (state := grown(state, value))


def read_back(history: Sequence[Operation], chain: Sequence[str]) -> list[Operation]:
    """A history with what the chain shows of it: where each append is, and which never happened.

    Whose end nobody knows has its place all the same, and no end; what is not in the chain and was not
    acknowledged did nothing.
    """
    states = list(states_of(chain))
    places = {value: number for number, value in enumerate(chain, start=1)}
    found = []
    for each in history:
        kind, value = each.asked
        if kind == READ:
            length = each.answer
            found.append(replace(each, answer=states[length] if length is not None else "no such list"))
        elif value in places:
            found.append(replace(each, answer=states[places[value]]))
        elif each.returned != NEVER:
            found.append(replace(each, answer="lost"))
    return found


def anomalies(history: Sequence[Operation], chain: Sequence[str]) -> list[str]:
    """What is wrong, each by its name; the last word is that of `linearizable`.

    Appends are of values that differ; a read answers the length of the list it saw, None for one that is no
    part of the chain.
    """
    places = {value: number for number, value in enumerate(chain, start=1)}
    said = {each.asked[1]: each for each in history if each.asked[0] == APPEND}
    found = [f"{value} is there {count} times" for value, count in Counter(chain).items() if count > 1]
    found += [f"nobody wrote {value}" for value in places if value not in said]
    found += [f"{v} is lost" for v, each in said.items() if each.returned != NEVER and v not in places]
    seen: dict[str, Operation] = {}
    for each in sorted((each for each in history if each.asked[0] == READ), key=lambda each: each.called):
        before = seen.get(each.client)
        if each.answer is None or (before and before.answer is not None and each.answer < before.answer):
            found.append(f"the head of {each.client} went back: {before and before.answer}, {each.answer}")
        seen[each.client] = each
    if not found and not linearizable(read_back(history, chain), EMPTY, append_list):
        found.append("the order is not that of real time")
    return found
