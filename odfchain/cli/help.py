"""`odfchain help`: the page of the manual about a command or a topic."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from odfchain.cli.support.screen import echo_manual
from odfchain.errors import UsageError


@click.command("help")
@click.argument("topic", required=False)
@click.pass_context
def help_command(context: click.Context, topic: str | None) -> None:
    """Open the page about a command, or about a topic such as start, bring, look, share, check and keep."""
    root = context.find_root()
    if topic is None:
        echo_manual(root.get_help())
        return
    pages = _pages()
    command = root.command.get_command(root, topic) if isinstance(root.command, click.Group) else None
    page = pages.get((command and command.name) or topic)
    if page is None:
        near = difflib.get_close_matches(topic, pages, n=3)
        raise UsageError(
            f"there is no page about {topic!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(pages))}",
        )
    echo_manual(page.read_text(encoding="utf-8"))


def _pages() -> dict[str, Path]:
    """Every page by its name: of the installed package, or of the checkout that this is run from."""
    package = Path(__file__).parent.parent
    shipped = package / "docs"
    folder = shipped if shipped.is_dir() else package.parent / "docs"
    return {path.stem: path for path in (*folder.glob("*.md"), *folder.glob("commands/*.md"))}
