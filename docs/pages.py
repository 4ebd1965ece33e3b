"""Writes the page of every command, made of its help, into `docs/commands`: `python docs/pages.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from odfchain.cli.main import COMMANDS, SETTINGS, cli
from odfchain.cli.parameters import examples_of

FOLDER = Path(__file__).parent / "commands"


def render() -> dict[str, str]:
    """File name to text of every page."""
    with click.Context(cli, info_name="odfchain", **SETTINGS) as root:
        found = {name: cli.get_command(root, name) for name in COMMANDS}
        return {f"{n}.md": "\n".join(_page(root, n, c, "#")) + "\n" for n, c in found.items() if c}


def _page(parent: click.Context, name: str, command: click.Command, heading: str) -> Iterator[str]:
    """A command, and below it the commands of a group."""
    with click.Context(command, info_name=name, parent=parent) as context:
        yield f"{heading} {context.command_path}"
        yield from ("", "```sh", *examples_of(context), "```", "")
        # a line for each paragraph: a terminal folds them to its width
        paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
        yield "\n\n".join(" ".join(each.split()) for each in paragraphs)
        yield from ("", "```", f"{context.command_path} {_usage(context)}".rstrip(), "```")
        found = (param.get_help_record(context) for param in command.params)
        records = [record for record in found if record and record[1]]
        if records:
            yield from ("", *(f"- `{names}`  {text}".rstrip() for names, text in records))
        if isinstance(command, click.Group):
            for inner in sorted(command.commands):
                yield ""
                yield from _page(context, inner, command.commands[inner], f"{heading}#")


def _usage(context: click.Context) -> str:
    return " ".join(context.command.collect_usage_pieces(context))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    pages = render()
    for path in FOLDER.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
