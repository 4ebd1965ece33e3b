"""Indented lines as a tree on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odfchain.cli.support.screen import console, styled

if TYPE_CHECKING:
    from rich.tree import Tree

    from odfchain.lineage.graph_document import Twig

_WIDE = 10_000
"""Where lines are not wrapped: what is piped on is cut and folded by whoever reads it."""


def print_twigs(twigs: Iterable[Twig]) -> None:
    """Print indented lines as a tree; nothing in a text acts or is read as markup."""
    import sys

    from rich.tree import Tree

    target = console(width=None if sys.stdout.isatty() else _WIDE)
    for twig in twigs:
        tree = Tree(styled(twig.text, twig.style or "bold"))
        _grow(tree, twig)
        target.print(tree)


def _grow(tree: Tree, twig: Twig) -> None:
    for item in twig.below:
        _grow(tree.add(styled(item.text, item.style)), item)
