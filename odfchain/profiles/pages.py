"""HTML pages that a person sends to a colleague: one file, no script, nothing that is asked for elsewhere.

A page's content security policy lets a browser use nothing but the one style sheet that it carries. All that
a template shows is escaped, and text is shown on one line in which no character acts, unless it is marked as
markup. The same values always give the same page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from odfchain.limits import CheckPageLimits, DriftPageLimits, PageLimits
from odfchain.text import counted, printable

if TYPE_CHECKING:
    from jinja2 import Environment, Template


L = TypeVar("L", PageLimits, DriftPageLimits, CheckPageLimits)


def one_page(room: str, template: str, style: str, **values: Any) -> str:
    """The page that a template makes of some values, in the common style and one of its own.

    Both are names of files in a room of the package, such as `audit`. The template extends `frame.html.j2`
    (blocks `title` and `body`), and finds macros in `parts.html.j2`.
    """
    sheet = _packaged("profiles", "base.css") + _packaged(room, style)
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    return _template(room, template).render(style=sheet, style_source=f"sha256-{digest}", **values)


def fitted(render: Callable[[L], str], limits: L) -> str:
    """The page that is made within these limits, halved again and again until it is small enough."""
    page = render(limits)
    while len(page.encode()) > limits.page_bytes:
        names = [f.name for f in fields(limits) if f.name != "page_bytes"]
        halved = replace(limits, **{name: max(1, getattr(limits, name) // 2) for name in names})
        if halved == limits:
            break
        limits = halved
        page = render(limits)
    return page


@lru_cache(maxsize=16)
def _packaged(room: str, name: str) -> str:
    return resources.files("odfchain").joinpath(room, name).read_text(encoding="utf-8")


@lru_cache(maxsize=16)
def _template(room: str, name: str) -> Template:
    return _environment().from_string(_packaged(room, name))


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: _packaged("profiles", name)),
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["counted"] = counted
    return environment


# Formatting of numbers, times and lists of blocks.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LabelledValue:
    """A line of a list of facts; a `code` is there to be copied."""

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class Excerpt(Generic[T]):
    """The first of many things, and how many were left out."""

    shown: tuple[T, ...]
    rest: int = 0


def excerpt(things: Sequence[T], limit: int) -> Excerpt[T]:
    """At most `limit` of the things."""
    return Excerpt(tuple(things[:limit]), max(0, len(things) - limit))


def listed(words: Sequence[str]) -> str:
    """Words as in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def moment(text: str) -> str:
    """A time of RFC 3339 in UTC, to the second; text that is no time stays as it is."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
