"""HTML pages that a person sends to a colleague: one file, no script, nothing that is asked for elsewhere.

A page's content security policy lets a browser use nothing but the one style sheet that it carries. Whatever
a template shows is escaped, and text is shown on one line in which no character acts, unless it is marked as
markup. The same values always give the same page.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar

from markupsafe import Markup, escape

from odfchain.errors import ManifestError
from odfchain.limits import CheckPageLimits, DriftPageLimits, PageLimits
from odfchain.text import counted, one_line, printable

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
        halved = _halved(limits)
        if halved == limits:
            break
        limits = halved
        page = render(limits)
    return page


def _halved(limits: L) -> L:
    counts = {f.name: max(1, getattr(limits, f.name) // 2) for f in fields(limits) if f.name != "page_bytes"}
    return replace(limits, **counts)


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


def size_in_words(size: int) -> str:
    """A size in the unit that keeps it below 1,024: `12 bytes`, `3.4 MiB`."""
    if size < 1024:
        return counted(size, "byte")
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:,.1f} {_UNITS[power - 1]}"


_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def moment(text: str) -> str:
    """A time of RFC 3339 in UTC, to the second; text that is no time stays as it is."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def day(text: str) -> str:
    """The day of a time in UTC; text that is no time stays as it is."""
    words = moment(text)
    return words if words == text else words[:10]


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of numbers that follow each other, as first and last; in order, each number once."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def blocks_in_words(numbers: Iterable[int], limit: int = 8) -> str:
    """Sequence numbers in a few words: `block 3`, `blocks 3 and 20`; empty for none."""
    known = sorted(set(numbers))
    if not known:
        return ""
    runs = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in spans(known)]
    if len(runs) > limit:
        runs = [*runs[:limit], f"{len(runs) - limit:,} more ranges"]
    return f"block{'s' if len(known) > 1 else ''} {listed(runs)}"


# Inline SVG of distributions, distinguished by shape and outline, not by colour alone; without script, style
# or text but an accessible label. The classes are defined in `base.css`.

_WIDTH, _HEIGHT = 500, 90
_BAR_WIDTH, _BAR_HEIGHT = 100, 12


def histogram(counts: Sequence[float], label: str) -> Markup:
    """Bars side by side, the tallest as tall as the picture; a bin with anything in it is seen."""
    return _drawn(label, Markup("").join(_filled(counts, max(counts, default=0))))


def overlaid(one: Sequence[float], other: Sequence[float], label: str) -> Markup:
    """Two distributions over the same bins: shares of the first as bars, of the second as a dashed line."""
    most = max(*one, *other, 0)
    return _drawn(label, Markup("").join([*_filled(one, most), _outline(other, most)]))


def bar(share: float) -> Markup:
    """A share between 0 and 1 as the length of a bar; the page shows the number next to it."""
    return _bars([Markup('<rect class="bars" width="{}" height="{}"/>').format(_length(share), _BAR_HEIGHT)])


def paired_bar(one: float, other: float) -> Markup:
    """Two shares as bars, one below the other: the second is an outline with dashes."""
    half = _BAR_HEIGHT // 2
    return _bars(
        [
            Markup('<rect class="bars" width="{}" height="{}"/>').format(_length(one), half),
            Markup('<rect class="outline" y="{}" width="{}" height="{}"/>').format(
                half + 1, _length(other), half - 1
            ),
        ]
    )


def _drawn(label: str, inside: Markup) -> Markup:
    return Markup(
        '<svg class="picture" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '{}<path class="floor" d="M0 {}H{}"/></svg>'
    ).format(escape(label), _WIDTH, _HEIGHT + 1, inside, _HEIGHT + 0.5, _WIDTH)


def _bars(inside: Sequence[Markup]) -> Markup:
    return Markup('<svg class="share" aria-hidden="true" viewBox="0 0 {} {}">{}</svg>').format(
        _BAR_WIDTH, _BAR_HEIGHT, Markup("").join(inside)
    )


def _filled(counts: Sequence[float], most: float) -> Iterator[Markup]:
    # a bar for each bin that is not empty
    edges = _edges(len(counts))
    for (left, right), count in zip(pairwise(edges), counts, strict=True):
        if count > 0 and most > 0:
            height = _height(count, most)
            yield Markup('<rect class="bars" x="{}" y="{}" width="{}" height="{}"/>').format(
                left, _HEIGHT - height, round(right - left - 0.5, 2), height
            )


def _outline(counts: Sequence[float], most: float) -> Markup:
    # the upper edge of the bars as one line
    steps = [f"M0 {_HEIGHT}"]
    edges = _edges(len(counts))
    for (_, right), count in zip(pairwise(edges), counts, strict=True):
        height = _height(count, most) if count > 0 and most > 0 else 0
        steps.append(f"V{_HEIGHT - height:g}H{right:g}")
    return Markup('<path class="outline" d="{}V{}"/>').format("".join(steps), _HEIGHT)


def _edges(bins: int) -> list[float]:
    return [round(_WIDTH * number / bins, 2) for number in range(bins + 1)] if bins else [0]


def _height(count: float, most: float) -> float:
    return max(1.0, round(_HEIGHT * count / most, 2))


def _length(share: float) -> float:
    return round(_BAR_WIDTH * min(max(share, 0.0), 1.0), 2)


# A JSON document from an untrusted source, read by type; errors name the path of the field.

_LARGEST = 1 << 96
_LARGEST_REAL = sys.float_info.max


@dataclass(frozen=True, slots=True)
class DocumentNode:
    """A value inside a document and the path to it."""

    value: object
    path: str = ""
    hint: str = ""
    """A hint for an invalid document."""

    def __getitem__(self, name: str) -> DocumentNode:
        """The field of an object."""
        if not isinstance(self.value, Mapping):
            self.refuse("an object")
        path = f"{self.path}.{name}" if self.path else name
        if name not in self.value:
            raise ManifestError("the field is missing", path=path, hint=self.hint or None)
        return DocumentNode(self.value[name], path, self.hint)

    def optional(self, name: str) -> DocumentNode | None:
        """The field of an object, None where it has none."""
        return self[name] if not isinstance(self.value, Mapping) or name in self.value else None

    def items(self) -> list[DocumentNode]:
        """The items of a list."""
        if not isinstance(self.value, Sequence) or isinstance(self.value, str | bytes):
            self.refuse("a list")
        return [
            DocumentNode(item, f"{self.path}[{index}]", self.hint) for index, item in enumerate(self.value)
        ]

    def text(self, limit: int = 200) -> str:
        """The text as one printable line of at most `limit` characters."""
        if not isinstance(self.value, str):
            self.refuse("text")
        return one_line(self.value, limit)

    def word(self, *allowed: str) -> str:
        """The text, which is one of these."""
        if not isinstance(self.value, str) or self.value not in allowed:
            self.refuse(" or ".join(f'"{word}"' for word in allowed))
        return self.value

    def number(self) -> int:
        """The whole number; a damaged block may claim any."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or abs(self.value) > _LARGEST:
            self.refuse("a whole number")
        return self.value

    def real(self) -> float:
        """The number, which is finite."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST_REAL:
            self.refuse("a number")
        return float(value)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def refuse(self, expected: str) -> Never:
        """Say what is expected here."""
        raise ManifestError(f"{expected} is expected", path=self.path, hint=self.hint or None)

    @property
    def known(self) -> bool:
        """True if there is a value: null means unknown."""
        return self.value is not None
