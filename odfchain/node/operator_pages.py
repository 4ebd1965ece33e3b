"""What only the operator sees, on a node of one user (`odfchain ui`): tokens, schedule, keys; no secrets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from odfchain.errors import OdfchainError
from odfchain.node.pages import Page
from odfchain.node.schedule import Schedule
from odfchain.node.visit import Visit, not_found
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import record_of


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens by name: `account`, `created`, `allow`; neither their texts nor their hashes."""

    tokens: tuple[dict[str, Any], ...]


def tokens(visit: Visit) -> Tokens:
    """The tokens that are in force, ordered by name."""
    known = visit.node.workspace.tokens.list()
    return Tokens(tuple(record_of(each, "name", "account", "created", "allow") for each in known))


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """What is pulled by itself: `every`, the `last` run, its `outcome` and `message`, and the `next` one."""

    planned: tuple[dict[str, Any], ...]
    is_here: bool
    """True if this node pulls them."""


def schedule(visit: Visit) -> SchedulePage:
    """Every dataset with a schedule, in the order of their next runs."""
    names = ("dataset", "every", "last:last.begun", "outcome:last.outcome", "message", "failures", "next")
    found, now = Schedule(visit.node.files.root).state(), Timestamp.now()
    planned = tuple(record_of(each, *names) | {"when": each.when(now)} for each in found)
    return SchedulePage(planned, bool(visit.node.options.pull))


@dataclass(frozen=True, slots=True)
class Keys:
    """Whose keys are here, and whose word counts; only what is public of each."""

    owned: dict[str, str]
    """Of the datasets whose heads are signed here, names and ids."""
    auditors: tuple[str, ...]


def keys(visit: Visit) -> Keys:
    """The owners' keys, and the auditors that are trusted."""
    files, owned = visit.node.files, dict[str, str]()
    for each in visit.node.published.datasets():
        with suppress(OdfchainError):  # of a damaged one the id is not known
            owned |= {str(each.alias): str(each.id)} if files.has_key(each.id) else {}
    return Keys(owned, files.config.audit.trusted_auditors)


def _operators(view: Callable[[Visit], Any]) -> Callable[[Visit], Any]:
    def shown(visit: Visit) -> Any:
        # such a node answers its user alone; no token says that somebody is the operator
        if visit.node.options.secret is None:
            raise not_found(hint="`odfchain ui` shows it to the operator")
        return view(visit)

    shown.__annotations__ = view.__annotations__
    return shown


PAGES = tuple(
    Page(f"/-/{each.__name__}", each.__name__, _operators(each)) for each in (tokens, schedule, keys)
)
