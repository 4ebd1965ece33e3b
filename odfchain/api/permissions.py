"""What a manifest does besides reading: what of it is allowed, and what is to be asked. Source: RFC-014."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from odfchain.errors import UsageError
from odfchain.ids.names import DatasetAlias
from odfchain.ingest.fetch.bindings import is_admitted
from odfchain.ingest.fetch.effects import Effect, EffectKind, effects_of
from odfchain.model.metadata_block import DatasetSnapshot
from odfchain.repo.workspace_config import IngestConfig


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the user allows in advance."""

    commands: bool
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """The effects of one manifest, of which some are not allowed yet."""

    source: str
    """Where it was read."""
    name: DatasetAlias
    effects: tuple[str, ...]
    """All of them, as they stand in the manifest: not safe to be printed as they are."""
    commands: bool
    """Whether commands wait to be allowed."""
    hosts: tuple[str, ...]
    """Where variables wait to be sent."""


def questions(
    found: Iterable[tuple[str, DatasetSnapshot]], allowed: Allowed, config: IngestConfig
) -> list[Question]:
    """What has to be asked before datasets are made of the definitions, each with where it was read.

    Raises:
        UsageError: the settings bind a variable to other hosts.
    """
    asked = []
    for source, snapshot in found:
        effects = effects_of(snapshot.metadata)
        waiting = [effect for effect in effects if not _is_allowed(effect, allowed, config, source)]
        if waiting:
            asked.append(_question(source, snapshot, effects, waiting))
    return asked


def _question(
    source: str, snapshot: DatasetSnapshot, effects: Sequence[Effect], waiting: Sequence[Effect]
) -> Question:
    return Question(
        source,
        snapshot.name,
        tuple(effect.text for effect in effects),
        any(effect.kind is EffectKind.COMMAND for effect in waiting),
        tuple(effect.host for effect in waiting if effect.kind is EffectKind.VARIABLE),
    )


def _is_allowed(effect: Effect, allowed: Allowed, config: IngestConfig, source: str) -> bool:
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
