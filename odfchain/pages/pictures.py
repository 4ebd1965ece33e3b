"""Pictures of distributions as SVG that stands in a page: by shape and outline, not by colour alone.

They have no script, no style of their own and no text but a label for who does not see them; numbers stand
beside them, in the page. Which class means what is in `base.css`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from markupsafe import Markup, escape

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
    """A share between 0 and 1 as the length of a bar; the number stands beside it."""
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
    """A bar for each bin that is not empty."""
    edges = _edges(len(counts))
    for (left, right), count in zip(pairwise(edges), counts, strict=True):
        if count > 0 and most > 0:
            height = _height(count, most)
            yield Markup('<rect class="bars" x="{}" y="{}" width="{}" height="{}"/>').format(
                left, _HEIGHT - height, round(right - left - 0.5, 2), height
            )


def _outline(counts: Sequence[float], most: float) -> Markup:
    """The upper edge of bars as one line."""
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
