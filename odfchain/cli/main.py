"""The command `odfchain`: global options, errors and exit codes. Commands are in the other modules.

Data goes to standard output, everything else to standard error. Exit codes (RFC-008): 0 done or nothing to
do, 1 internal error, 2 the command was not understood, 3 bad input or manifest, 4 not found, 5 conflict with
another writer or name, 6 integrity fault, 7 the environment (no Java, no space), 8 a source or a peer that
cannot be reached, 130 interrupted.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from odfchain.cli.context import report_error
from odfchain.cli.parameters import argument, command, formats, global_options
from odfchain.cli.screen import echo, echo_document, echo_json
from odfchain.errors import UsageError, was_interrupted
from odfchain.spark.known_errors import known_error
from odfchain.startup import start_lean
from odfchain.text import first_line
from odfchain.versions import SPEC_VERSION, __version__

INTERRUPTED = 130


def _topics() -> dict[str, dict[str, tuple[str, str, bool]]]:
    topics: dict[str, dict[str, tuple[str, str, bool]]] = {}
    for line in Path(__file__).with_name("commands.txt").read_text(encoding="utf-8").splitlines():
        if line[0] in " *":
            command, module, text = line[1:].split(maxsplit=2)
            topics[next(reversed(topics))][command] = module, text, line[0] == "*"
        else:
            topics[line] = {}
    return topics


# Topics with their commands, the most used first: the file of each, its line of help, and whether it is on
# the first screen (`*`).
_TOPICS = _topics()

COMMANDS = [name for commands in _TOPICS.values() for name in commands]
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_ALIASES = {"ls": "list", "mv": "rename", "rm": "delete"}
_OF_GIT = {
    "clone": "`odfchain pull URL` brings a dataset from another place",
    "commit": "`odfchain ingest DATASET FILE` commits the rows of a file",
    "checkout": "there is no working copy: write DATASET@BRANCH where a command takes a dataset",
    "remote": "`odfchain repo` gives names to other places",
    "show": "`odfchain log DATASET` shows blocks, `odfchain tail DATASET` rows",
}
"""What users of git may type, and the command for it."""
_MORE_HELP = """
odfchain COMMAND --help  begins with an example
odfchain help start      opens a page of the manual
odfchain help --all      lists all commands, and the options of every command
"""


def module_of(command: str) -> str:
    """The file of a command."""
    return next(commands[command][0] for commands in _TOPICS.values() if command in commands)


class LazyGroup(click.Group):
    """Loads a command's module only when the command is used: start-up stays short."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return COMMANDS

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Help is one screen, with the commands of `*`; `help --all` shows what click makes."""
        formatter.write(f"{self.help}\n\n")
        for topic, commands in _TOPICS.items():
            shown = {name: text for name, (_, text, is_first) in commands.items() if is_first}
            for name, text in shown.items():
                formatter.write(f"{topic if name == next(iter(shown)) else '':8}{name:9}{text}\n")
        formatter.write(_MORE_HELP)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for topic, commands in _TOPICS.items():
            with formatter.section(topic):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text, _) in commands.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        module = import_module(f"odfchain.cli.{module_of(name)}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            # the beginning of a name means it before another one that looks like it
            begun = [name for name in COMMANDS if name.startswith(args[0])]
            close = begun or difflib.get_close_matches(args[0], COMMANDS, n=1)
            meant = f"did you mean {' or '.join(close[:3])}?"
            hint = meant if close else "`odfchain help --all` lists the commands"
            raise UsageError(f"no such command '{args[0]}'", hint=_OF_GIT.get(args[0], hint))
        return super().resolve_command(ctx, [_ALIASES.get(args[0], args[0]), *args[1:]])


@click.command(cls=LazyGroup, context_settings=SETTINGS, params=global_options())
@click.version_option(package_name="odfchain", prog_name="odfchain")
def cli() -> None:
    """Version control for tables: every change is kept, and anybody can check it."""


@command("completions")
def completions_command(shell: str = argument(click.Choice(["bash", "zsh", "fish"]))) -> None:
    """Print a completion script. For bash: eval "$(odfchain completions bash)" in ~/.bashrc."""
    from click.shell_completion import ShellComplete, get_completion_class

    cls = get_completion_class(shell)
    assert cls is not None  # noqa: S101 - one of click's own
    echo_document(ShellComplete.source(cls(cli, {}, "odfchain", "_ODFCHAIN_COMPLETE")))


@command("version")
def version_command(output: str = formats("table", "json")) -> None:
    """Print the versions of odfchain and its libraries."""
    from importlib.metadata import version

    found: dict[str, Any] = {
        "odfchain": __version__,
        "specification": SPEC_VERSION,
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
    }
    if output == "json":
        echo_json(found)
    else:
        for name, value in found.items():
            echo(f"{name:14}{value}")


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; never raises for a user's mistake."""
    debug = "--debug" in (sys.argv if args is None else args)
    colours = os.environ.get("NO_COLOR")
    try:
        result: Any = cli.main(
            args=list(args) if args is not None else None, prog_name="odfchain", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as error:
        _report_misuse(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _interrupted()
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as end:
        # what else click ends the program for: the reader of its output has left
        return int(end.code or 0) if os.environ.get("_ODFCHAIN_COMPLETE") else _reader_left()
    except Exception as error:  # noqa: BLE001 - nothing is above it
        if was_interrupted(error):
            return _interrupted()
        if (known := known_error(error)) is not None and (known is error or not debug):
            report_error(known)
            return known.exit_code
        if debug:
            # messages are as foreign here as anywhere
            for line in "".join(traceback.format_exception(error)).split("\n"):
                echo(line, err=True)
            return 1
        echo("internal error: ", fg="red", bold=True, nl=False, err=True)
        echo(f"{type(error).__name__}: {first_line(error)}", err=True)
        echo("this is a fault of odfchain; run again with --debug and report what it prints", err=True)
        return 1
    finally:
        if colours is None:  # `--no-color` is for one command, and another here may have colours
            os.environ.pop("NO_COLOR", None)
    return result if isinstance(result, int) else 0


def _report_misuse(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        for line in error.format_message().split("\n"):
            echo(line, err=True)
        return
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "odfchain"
    # choices, which are ours, are listed line by line; a proposal is a hint
    close = getattr(error, "possibilities", None)
    text = " ".join((error.message if close else error.format_message()).split())
    message = text[:1].lower() + text[1:].removesuffix(".")
    hint = f"did you mean {' or '.join(close)}?" if close else f"`{path} --help` shows how it is used"
    if context is not None and re.search(
        "no such option.*'-o'|'-o'.*'[^']*[./][^']*' is not one", text, re.IGNORECASE
    ):
        files = [param for param in context.command.params if param.metavar in (None, "FILE", "PATH")]
        names = {name for param in files for name in param.opts}
        file = next((name for name in ("--output", "--to") if name in names), ">")
        hint = f"-o is a format, and a file is {file} FILE; {hint}"
    if path == "odfchain sql" and "is not one of '-', 'server'" in text:
        hint = "a query is given with -c: `odfchain sql -c 'select 1'`"
    report_error(UsageError(message, hint=hint))


def _interrupted() -> int:
    echo("interrupted; nothing was committed", err=True)
    return INTERRUPTED


def _reader_left() -> int:
    # `| head` has closed the pipe: Python would report it again at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def run() -> None:
    """Entry point of the installed command."""
    start_lean()
    sys.exit(main())
