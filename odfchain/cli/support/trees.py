"""Indented lines as a tree on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odfchain.cli.support.screen import console, styled

if TYPE_CHECKING:
    from rich.tree import Tree

    from odfchain import TextTree

_WIDE = 10_000
"""Where lines are not wrapped: what is piped on is cut and folded by whoever reads it."""


def print_trees(trees: Iterable[TextTree]) -> None:
    """Print indented lines as a tree; nothing in a text acts or is read as markup."""
    import sys

    from rich.tree import Tree

    target = console(width=None if sys.stdout.isatty() else _WIDE)
    for branch in trees:
        tree = Tree(styled(branch.text, branch.style or "bold"))
        _grow(tree, branch)
        target.print(tree)


def _grow(tree: Tree, branch: TextTree) -> None:
    for item in branch.below:
        _grow(tree.add(styled(item.text, item.style)), item)
