"""What a node is: its versions, its key, its limits, and what it offers."""

from __future__ import annotations

from dataclasses import dataclass

from odfchain import errors
from odfchain.chain.statements import read_key_file
from odfchain.limits import ASKED
from odfchain.node.pages import Page
from odfchain.node.visit import Visit
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that a node does, or does not."""

    name: str
    there: bool
    text: str


@dataclass(frozen=True, slots=True)
class About:
    """The facts of a node."""

    version: str
    spec: str
    did: str | None
    """The key that signs answers; None before the first one, and where none is signed."""
    flight: str | None
    """The address of Flight SQL."""
    offers: tuple[Offer, ...]
    limits: dict[str, int | float]
    """Of one question in SQL: time [s], rows [count], bytes of the answer, memory [bytes]."""
    operator: bool
    """True if the pages of the operator are shown, too."""


def about(visit: Visit) -> About:
    """The facts of the node that is asked."""
    known, asked = visit.node.about, visit.node.options
    offers = (
        Offer("SQL", known["sql"], "asked on pages, by REST and by Flight SQL, behind walls"),
        Offer("Pushes", bool(asked.write), "with a token"),
        Offer("Schedules", bool(asked.pull), "datasets are pulled when they are due"),
        Offer("Restricted reading", bool(asked.restrict_reading), "a token for each reader"),
    )
    limits = {
        "seconds": ASKED.seconds, "rows": ASKED.rows, "bytes": ASKED.answer_bytes, "memory": ASKED.memory,
    }  # fmt: skip
    did, own = _did(visit) if known["sql"] else None, asked.secret is not None
    return About(known["version"], known["spec"], did, visit.node.flight, offers, limits, own)


def _did(visit: Visit) -> str | None:
    path = visit.node.files.root / visit.node.files.config.query.signing_key
    try:
        return str(read_key_file(path).dataset_id.as_did_key()) if path.exists() else None
    except errors.OdfchainError as error:
        visit.node.problem(f"the key that signs answers: {one_line(str(error))}")
        return None


PAGES = (Page("/-/about", "about", about), Page("/-/node", "about", about))
"""The second is `/-/node.json`, where programs look."""
