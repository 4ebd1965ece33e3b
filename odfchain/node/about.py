"""What a node is: version, limits, what it offers."""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.node.pages import Page
from odfchain.node.visit import Visit


@dataclass(frozen=True, slots=True)
class About:
    """The facts of the node."""

    version: str
    spec: str
    sql: bool


def about(visit: Visit) -> About:
    """The facts of the node that is asked."""
    return About(**visit.node.about)


PAGES = (Page("/-/about", "about", about),)
