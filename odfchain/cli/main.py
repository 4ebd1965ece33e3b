"""The command `odfchain`: global options, errors and exit codes. Commands live in the modules beside.

Data goes to standard output, everything else to standard error. Exit codes (RFC-008): 0 done or nothing to
do, 1 internal error, 2 the command was not understood, 3 bad input or manifest, 4 not found, 5 conflict with
another writer or name, 6 integrity fault, 7 the environment (no Java, no space), 8 a source or a peer that
cannot be reached, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from odfchain.errors import OdfchainError, QueryError, was_interrupted

INTERRUPTED = 130

_COMMANDS = {
    "add": "odfchain.cli.datasets",
    "attest": "odfchain.cli.audit",
    "attestations": "odfchain.cli.audit",
    "blame": "odfchain.cli.lineage",
    "block": "odfchain.cli.blocks",
    "compact": "odfchain.cli.upkeep",
    "completions": "odfchain.cli.misc",
    "delete": "odfchain.cli.datasets",
    "digest": "odfchain.cli.data",
    "engine": "odfchain.cli.engine",
    "evidence": "odfchain.cli.evidence",
    "fetch": "odfchain.cli.share",
    "fsck": "odfchain.cli.upkeep",
    "gc": "odfchain.cli.upkeep",
    "ingest": "odfchain.cli.data",
    "init": "odfchain.cli.datasets",
    "inspect": "odfchain.cli.blocks",
    "key": "odfchain.cli.sign",
    "list": "odfchain.cli.datasets",
    "log": "odfchain.cli.blocks",
    "new": "odfchain.cli.templates",
    "pull": "odfchain.cli.pull",
    "push": "odfchain.cli.share",
    "rename": "odfchain.cli.datasets",
    "repo": "odfchain.cli.repo",
    "reset": "odfchain.cli.upkeep",
    "search": "odfchain.cli.repo",
    "serve": "odfchain.cli.serve",
    "sign": "odfchain.cli.sign",
    "tail": "odfchain.cli.data",
    "verify": "odfchain.cli.audit",
    "version": "odfchain.cli.misc",
}
_ALIASES = {"ls": "list", "mv": "rename", "rm": "delete"}


class LazyGroup(click.Group):
    """Loads a command's module only when the command is used: start-up stays short."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = _ALIASES.get(cmd_name, cmd_name)
        module = _COMMANDS.get(name)
        if module is None:
            return None
        command: click.Command = getattr(import_module(module), f"{name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


@dataclass(slots=True)
class Globals:
    """The global options."""

    workspace: str | None
    quiet: bool
    yes: bool
    debug: bool


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "-w",
    "--workspace",
    envvar="ODFCHAIN_WORKSPACE",
    metavar="DIR",
    help="Work in the workspace of this folder instead of the current one.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
@click.option("-y", "--yes", is_flag=True, help="Answer yes to every question.")
@click.option("--no-color", is_flag=True, help="Do not colour the output.")
@click.option("--debug", is_flag=True, help="Show a traceback when something unexpected happens.")
@click.version_option(package_name="odfchain", prog_name="odfchain")
@click.pass_context
def cli(
    ctx: click.Context, workspace: str | None, quiet: bool, yes: bool, no_color: bool, debug: bool
) -> None:  # fmt: skip
    """Content-addressed, verifiable ledgers of data (Open Data Fabric 0.34.1)."""
    ctx.obj = Globals(workspace, quiet, yes, debug)
    if no_color or os.environ.get("NO_COLOR"):
        ctx.color = False
        os.environ["NO_COLOR"] = "1"  # rich looks there


def report_error(error: OdfchainError, *, about: str = "") -> None:
    """One line for what happened (to what it is about), one for what to do next.

    Where a query is wrong is shown between them.
    """
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo((f"{about}: " if about else "") + " ".join(str(error).splitlines()), err=True)
    for line in error.excerpt if isinstance(error, QueryError) else ():
        click.echo(f"  {line}", err=True)
    if error.hint:
        click.secho("hint: ", fg="cyan", nl=False, err=True)
        click.echo(error.hint, err=True)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; never raises for a user's mistake."""
    debug = "--debug" in (sys.argv if args is None else args)
    try:
        result: Any = cli.main(
            args=list(args) if args is not None else None, prog_name="odfchain", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _interrupted()
    except BrokenPipeError:
        return _nobody_listens()
    except SystemExit:
        if os.environ.get("_ODFCHAIN_COMPLETE"):
            raise
        return _nobody_listens()  # the only other reason for which click ends the program itself
    except Exception as error:
        if was_interrupted(error):
            return _interrupted()
        if isinstance(error, OdfchainError):
            report_error(error)
            return error.exit_code
        if debug:
            raise
        click.secho("internal error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", err=True)
        click.echo("this is a fault of odfchain; run again with --debug and report what it prints", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _interrupted() -> int:
    click.echo("interrupted; nothing was committed", err=True)
    return INTERRUPTED


def _nobody_listens() -> int:
    """The reader of our output went away (`| head`): not an error, and nothing more can be said."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def run() -> None:
    """Entry point of the installed command."""
    sys.exit(main())
