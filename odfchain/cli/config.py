"""`odfchain config`: the settings of the workspace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.screen import echo_json, echo_lines
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain.repo.settings import Setting

_HIDDEN = "…"
_SECRET = ("ingest.variables",)


@click.group("config")
def config_command() -> None:
    """Show and change the settings of the workspace."""


@config_command.command("list")
@format_option()
def config_list(output: str) -> None:
    """List all settings; values of variables, which may be secrets, are left out."""
    from odfchain.repo.settings import all_settings, value_of
    from odfchain.repo.workspace_config import WorkspaceConfig, load_config

    config, default = load_config(open_workspace().path / "config.yaml"), WorkspaceConfig()
    rows = []
    for item in all_settings():
        value = value_of(config, item)
        is_default = value == value_of(default, item)
        if str(item) in _SECRET:
            value = dict.fromkeys(value, _HIDDEN)
        rows.append({"setting": str(item), "value": value, "default": is_default})
    print_records(rows, ["setting", "value", "default"], output)


@config_command.command("get")
@click.argument("name")
@format_option("table", "json")
def config_get(name: str, output: str) -> None:
    """Print the value of a setting that is in force, such as share.parallel."""
    from odfchain.repo.settings import setting, value_of
    from odfchain.repo.workspace_config import load_config

    value = value_of(load_config(open_workspace().path / "config.yaml"), setting(name))
    if output == "json" or isinstance(value, dict):
        echo_json(value, indent=None)
        return
    values = value if isinstance(value, list) else [value]
    echo_lines("" if v is None else v if isinstance(v, str) else json.dumps(v) for v in values)


@config_command.command("set")
@click.argument("name")
@click.argument("values", nargs=-1)
def config_set(name: str, values: tuple[str, ...]) -> None:
    """Set a setting; one that is a list to all values that are given.

    Comments in the file stay. What is not valid changes nothing. `ingest.variables.NAME.hosts` are the only
    hosts that a variable is sent to.
    """
    from odfchain.repo.settings import parsed

    def changed(item: Setting) -> Callable[[Any], Any]:
        new = parsed(item, values)
        # a variable stays bound to its hosts
        return lambda old: {**old, "value": new} if isinstance(old, dict) else new

    _edit(name, changed, "is set")


@config_command.command("add")
@click.argument("name")
@click.argument("values", nargs=-1, required=True)
def config_add(name: str, values: tuple[str, ...]) -> None:
    """Add values to a setting that is a list, such as audit.trustedAuditors."""

    def changed(item: Setting) -> Callable[[Any], Any]:
        _check_list(item)
        return lambda old: list(dict.fromkeys([*(old or []), *values]))

    _edit(name, changed, "is set")


@config_command.command("remove")
@click.argument("name")
@click.argument("values", nargs=-1)
def config_remove(name: str, values: tuple[str, ...]) -> None:
    """Remove values from a setting that is a list, or one entry by name, such as transform.engines.flink."""

    def changed(item: Setting) -> Callable[[Any], Any]:
        if item.key is None:
            _check_list(item)
        if item.is_list != bool(values):
            raise UsageError("name the values to remove" if item.is_list else f"{item} is one entry")
        if not item.is_list:
            return _removed(item)

        def without(old: Any) -> Any:
            lacking = [value for value in values if value not in (old or [])]
            if lacking:
                raise UsageError(f"{item} does not have {', '.join(lacking)}")
            return [value for value in old if value not in values]

        return without

    _edit(name, changed, "is without them" if values else "is removed")


@config_command.command("unset")
@click.argument("name")
def config_unset(name: str) -> None:
    """Give a setting its default again, or remove an entry or a part of one by its name."""
    from odfchain.repo.settings import default_of

    def changed(item: Setting) -> Callable[[Any], Any]:
        return _removed(item) if item.key is not None else lambda _: default_of(item)

    _edit(name, changed, "is unset")


def _removed(item: Setting) -> Callable[[Any], Any]:
    def none(old: Any) -> None:
        if old is None:
            raise UsageError(f"{item} is not set")

    return none


def _check_list(item: Setting) -> None:
    if not item.is_list:
        raise UsageError(f"{item} is not a list", hint="`odfchain config set` gives it another value")


def _edit(name: str, changed: Callable[[Setting], Callable[[Any], Any]], done: str) -> None:
    from odfchain.repo.settings import edit, setting

    root = open_workspace().path
    item = setting(name)
    edit(root, item, changed(item))
    say(f"{root / 'config.yaml'}: {item} {done}")
