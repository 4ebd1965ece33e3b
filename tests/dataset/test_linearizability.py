"""The checker of histories: it lets through what can have happened, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.linearizability import (
    APPEND,
    EMPTY,
    NEVER,
    READ,
    Operation,
    anomalies,
    append_list,
    grown,
    linearizable,
    register,
)


def made(*lines: tuple[Any, ...]) -> list[Operation]:
    """(client, kind, value, answer, called, returned), the last two as numbers."""
    return [
        Operation(client, (kind, value), answer, called, ended)
        for client, kind, value, answer, called, ended in lines
    ]


REGISTERS: dict[str, tuple[bool, list[Operation]]] = {
    "one after the other": (
        True,
        made(("a", "write", 1, None, 0, 1), ("b", READ, None, 1, 2, 3)),
    ),
    "a read beside a write sees either": (
        True,
        made(("a", "write", 1, None, 0, 9), ("b", READ, None, 0, 1, 2), ("c", READ, None, 1, 3, 4)),
    ),
    "new, then old": (
        False,
        made(("a", "write", 1, None, 0, 9), ("b", READ, None, 1, 1, 2), ("c", READ, None, 0, 3, 4)),
    ),
    "a write that was answered is not seen": (
        False,
        made(("a", "write", 1, None, 0, 1), ("b", READ, None, 0, 2, 3)),
    ),
    "two swaps of one value": (
        False,
        made(("a", "swap", (0, 1), True, 0, 5), ("b", "swap", (0, 2), True, 0, 5)),
    ),
    "a swap that lost beside the one that won": (
        True,
        made(("a", "swap", (0, 1), True, 0, 5), ("b", "swap", (0, 2), False, 0, 5)),
    ),
    "a swap that lost to nobody": (False, made(("a", "swap", (0, 1), False, 0, 1))),
    "unknown, and seen much later": (
        True,
        made(("a", "swap", (0, 1), None, 0, NEVER), ("b", READ, None, 0, 1, 2), ("b", READ, None, 1, 3, 4)),
    ),
    "unknown, and seen before": (
        False,
        made(("b", READ, None, 1, 0, 1), ("a", "swap", (0, 1), None, 2, NEVER)),
    ),
    "unknown, and never": (
        True,
        made(("a", "write", 1, None, 0, NEVER), ("b", READ, None, 0, 1, 2)),
    ),
}


@pytest.mark.parametrize("title", REGISTERS)
def test_a_register(title: str) -> None:
    expected, history = REGISTERS[title]
    assert linearizable(history, 0, register) is expected


GOOD = made(
    ("a", APPEND, "a0", None, 0, 2), ("b", APPEND, "b0", None, 1, 3), ("r", READ, None, 1, 2.1, 2.5),
    ("r", READ, None, 2, 4, 5), ("a", APPEND, "a1", None, 4, NEVER), ("b", APPEND, "b1", None, 5, NEVER),
    ("r", READ, None, 3, 6, 7),
)  # fmt: skip


@pytest.mark.parametrize(
    ("chain", "change", "anomaly"),
    [
        ("a0 b0 a1", None, None),
        ("a0 b0 b1", None, None),
        ("a0 b0 b1 a1", None, None),
        ("b0 a0 a1", None, "the order is not that of real time"),
        ("b0 a1", None, "a0 is lost"),
        ("a0 b0 a1 a0", None, "a0 is there 2 times"),
        ("a0 b0 a1 c0", None, "nobody wrote c0"),
        ("a0 a1 b0", None, "the order is not that of real time"),
        ("a0 b0 a1", (3, 0), "the head of r went back: 1, 0"),
        ("a0 b0 a1", (3, None), "the head of r went back: 1, None"),
        ("a0 b0 a1", (3, 1), "the order is not that of real time"),
        ("a0 b0 a1", (3, 3), None),
        ("a0 b0 a1", (2, 3), "the head of r went back: 3, 2"),
    ],
)
def test_chains_of_one_history(chain: str, change: tuple[int, Any] | None, anomaly: str | None) -> None:
    history = list(GOOD)
    if change is not None:
        number, answer = change
        old = history[number]
        history[number] = Operation(old.client, old.asked, answer, old.called, old.returned)
    assert anomalies(history, chain.split()) == ([] if anomaly is None else [anomaly])


def by_definition(history: Sequence[Operation]) -> bool:
    """Every order of every choice of what happened, one by one."""
    known = [each for each in history if each.returned != NEVER]
    unknown = [each for each in history if each.returned == NEVER]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *chosen]):
                if any(b.returned < a.called for a, b in itertools.combinations(order, 2)):
                    continue
                state: Any = EMPTY
                for each in order:
                    state = append_list(state, each.asked, each.answer)
                    if state is None:
                        break
                if state is not None:
                    return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """At most five operations, whose answers are often right."""
    states, found = [EMPTY], []
    for number in range(draw(st.integers(1, 5))):
        called = draw(st.integers(0, 6))
        returned = called + draw(st.sampled_from([1, 2, 4, NEVER]))
        if draw(st.booleans()):
            states.append(grown(draw(st.sampled_from(states)), str(number)))
            answer = draw(st.sampled_from([None, states[-1]]))
            found.append(Operation(str(number), (APPEND, str(number)), answer, called, returned))
        else:
            answer = draw(st.sampled_from(states))
            found.append(Operation(str(number), (READ, None), answer, called, returned))
    return found


@given(histories())
def test_the_search_is_the_definition(history: list[Operation]) -> None:
    assert linearizable(history, EMPTY, append_list) is by_definition(history)


def test_a_long_history_takes_seconds() -> None:
    """Four writers one after the other, and unknown ones that are there: nothing is tried twice."""
    count = 10_000
    history = [
        Operation(str(n % 4), (APPEND, str(n)), None, n, NEVER if n % 50 == 0 else n + 3.5)
        for n in range(count)
    ]
    chain = [str(n) for n in range(count)]
    assert anomalies(history, chain) == []
    swapped = [*chain[:5_001], chain[5_005], *chain[5_002:5_005], chain[5_001], *chain[5_006:]]
    assert anomalies(history, swapped) == ["the order is not that of real time"]
