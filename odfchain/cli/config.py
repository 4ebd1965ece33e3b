"""`odfchain config`: the settings of the workspace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import DATASET
from odfchain.cli.support.screen import echo_json, echo_lines
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain.api.configuration import Configuration, DatasetConfiguration


_GLOBAL = "odfchain.global"


class _Settings(click.Group):
    """`config --global NAME [VALUE]…` shows a setting of the user, or adds to it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.meta.get(_GLOBAL) and "." in args[0]:
            args = ["add" if args[1:] else "get", *args]
        return super().resolve_command(ctx, args)


def _remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_GLOBAL] = True


_of_user = click.option(
    "--global",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="The settings of the user, for every workspace: safe.workspace.",
)


@click.group("config", cls=_Settings)
@_of_user
def config_command() -> None:
    """Show and change the settings of the workspace, or with --global of the user.

    `odfchain config --global safe.workspace PATH` trusts the workspace in a folder that belongs to another
    user, or that others may write to; PATH/* means all below it, and * every one. Without that it is refused,
    because a workspace's settings run programs.
    """


_of_dataset = click.option(
    "--dataset", type=DATASET, help="What is set for this dataset in place of the workspace's setting."
)


def _configuration() -> Configuration:
    from odfchain.api.configuration import Configuration

    if click.get_current_context().meta.get(_GLOBAL):
        return Configuration.of_user()
    return Configuration(open_workspace().path)


def _of(dataset: str | None) -> Configuration | DatasetConfiguration:
    if dataset is None:
        return _configuration()
    if click.get_current_context().meta.get(_GLOBAL):
        raise UsageError("--global and --dataset contradict each other", hint="leave one of them out")
    from odfchain.api.configuration import configuration

    return configuration(open_workspace(), dataset)


def _say(configuration: Configuration | DatasetConfiguration, name: str, done: str) -> None:
    say(f"{configuration.file}: {name} {done}")


@config_command.command("list")
@_of_dataset
@format_option()
@_of_user
def config_list(dataset: str | None, output: str) -> None:
    """List all settings; what may be a secret, as the values of variables, is left out."""
    columns = ("setting", "value", "default")
    rows = [dict(zip(columns, found, strict=True)) for found in _of(dataset).all()]
    print_records(rows, columns, output)


@config_command.command("get")
@click.argument("name")
@_of_dataset
@format_option("table", "json")
@_of_user
def config_get(name: str, dataset: str | None, output: str) -> None:
    """Print the value of a setting that is in force, such as share.parallel."""
    value = _of(dataset).get(name)
    if output == "json" or isinstance(value, dict):
        echo_json(value, indent=None)
        return
    values = value if isinstance(value, list) else [value]
    echo_lines("" if v is None else v if isinstance(v, str) else json.dumps(v) for v in values)


@config_command.command("set")
@click.argument("name")
@click.argument("values", nargs=-1)
@_of_dataset
@_of_user
def config_set(name: str, values: tuple[str, ...], dataset: str | None) -> None:
    """Set a setting; one that is a list to all values that are given.

    Comments in the file stay. What is not valid changes nothing. `ingest.variables.NAME.hosts` are the only
    hosts that a variable is sent to. A dataset may have its own `snapshots.profile` and `snapshots.guard`.
    """
    found = _of(dataset)
    _say(found, found.set(name, values), "is set")


@config_command.command("add")
@click.argument("name")
@click.argument("values", nargs=-1, required=True)
@_of_user
def config_add(name: str, values: tuple[str, ...]) -> None:
    """Add values to a setting that is a list, such as audit.trustedAuditors."""
    found = _configuration()
    _say(found, found.add(name, values), "is set")


@config_command.command("remove")
@click.argument("name")
@click.argument("values", nargs=-1)
@_of_user
def config_remove(name: str, values: tuple[str, ...]) -> None:
    """Remove values from a setting that is a list, or one entry by name, such as transform.engines.flink."""
    found = _configuration()
    _say(found, found.remove(name, values), "is without them" if values else "is removed")


@config_command.command("unset")
@click.argument("name")
@_of_dataset
@_of_user
def config_unset(name: str, dataset: str | None) -> None:
    """Give a setting its default again, or remove an entry or a part of one by its name."""
    found = _of(dataset)
    _say(found, found.unset(name), "is unset")
