"""What is told before history is given up: who has it elsewhere, and whom it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odfchain.cli.support.context import say
from odfchain.cli.support.output import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from odfchain import Dataset, Dependent, Remote


def tell_consequences(places: Sequence[Remote], dependents: Sequence[Dependent]) -> None:
    """Say which places have what is given up, and whose transactions have read it."""
    for place in places:
        known = f"has {len(place.has):,} of these blocks" if place.has else place.answer.value
        say(f"  {' and '.join(place.kinds)} {place.alias}: {place.problem or known}")
    for item in dependents:
        say(f"  breaks {item.alias}: {count_of(item.transactions, 'transaction')} read what is given up")


def tell_of_proof(dataset: Dataset) -> None:
    """Say that a second history can be proven, where the first one is signed."""
    if dataset.has_key and dataset.ref == "head":
        say("  the old head was signed: whoever saw it and sees the new one has proof of two histories")


def places_tree(places: Sequence[Remote]) -> list[dict[str, Any]]:
    """The places for programs."""
    return [
        {
            "alias": place.alias,
            "kinds": list(place.kinds),
            "answer": place.answer.value,
            "blocks": len(place.has),
            "problem": place.problem,
        }
        for place in places
    ]


def dependents_tree(found: Sequence[Dependent]) -> list[dict[str, Any]]:
    """The dependents for programs."""
    return [{"dataset": item.alias, "transactions": item.transactions} for item in found]
