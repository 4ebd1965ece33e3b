"""Asking before a manifest that may be somebody else's runs commands or is given variables.

Only `odfchain new` and the user's own editor write manifests without the user's knowing what is in them; no
file says who wrote it. So every manifest with effects is shown, and nothing is made before that is allowed:
on the command line, in the settings, or by an answer. Source: RFC-014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.cli.support.context import options
from odfchain.cli.support.screen import ask, echo, is_somebody_there
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain.ingest.fetch.effects import Effect
    from odfchain.model.block import DatasetSnapshot
    from odfchain.repo.workspace_config import IngestConfig


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the user allows in advance."""

    commands: bool
    hosts: tuple[str, ...]


def ask_for_effects(
    found: Sequence[tuple[str, DatasetSnapshot]], allowed: Allowed, config: IngestConfig
) -> None:
    """Show what the definitions do besides reading, and ask where that is not allowed yet.

    Raises:
        UsageError: it is not allowed, or the settings bind a variable to other hosts.
    """
    from odfchain.ingest.fetch.effects import effects_of

    waiting: list[Effect] = []
    lines: list[str] = []
    for source, snapshot in found:
        effects = [(e, _is_allowed(e, allowed, config, source)) for e in effects_of(snapshot.metadata)]
        if all(done for _, done in effects):
            continue
        waiting += [effect for effect, done in effects if not done]
        lines.append(f"{source}: ingesting into {snapshot.name}")
        lines += [f"  {effect.text}" for effect, _ in effects]
    if not waiting or options().yes:
        return
    for line in lines:
        echo(line, err=True)
    flags = _flags(waiting)
    if not is_somebody_there():
        raise UsageError(
            "the manifest does what has to be allowed (see above), and nobody is there to ask; "
            "nothing was made",
            hint=f"if you trust it, add {flags}",
        )
    if not ask("Is this what you want?"):
        raise UsageError("not confirmed; nothing was made", hint=f"to be asked no more, add {flags}")


def _is_allowed(effect: Effect, allowed: Allowed, config: IngestConfig, source: str) -> bool:
    from odfchain.ingest.fetch.bindings import is_admitted
    from odfchain.ingest.fetch.effects import EffectKind

    bindings = config.bindings
    bound = [name for name in effect.variables if name in bindings]
    for name in bound:
        if effect.kind is EffectKind.COMMAND or not is_admitted(bindings[name], effect.host, effect.port):
            only = ", ".join(bindings[name]) or "no host"
            raise UsageError(
                f"{source}: {effect.text}: the variable {name} may be sent to {only} only",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )
    if effect.kind is EffectKind.COMMAND:
        return allowed.commands or config.allow_commands
    if len(bound) == len(effect.variables):
        return True
    return is_admitted(allowed.hosts, effect.host, effect.port)


def _flags(effects: Sequence[Effect]) -> str:
    """The options that allow all of it."""
    import shlex

    from odfchain.ingest.fetch.effects import EffectKind

    commands = any(effect.kind is EffectKind.COMMAND for effect in effects)
    hosts = dict.fromkeys(effect.host for effect in effects if effect.kind is EffectKind.VARIABLE)
    given = ["--allow-commands"] * commands + [f"--allow-host {shlex.quote(host)}" for host in hosts]
    return " ".join(given)
