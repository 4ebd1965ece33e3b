"""What ingesting by a definition does besides reading: commands, containers, and variables that are sent.

A manifest may have been written by somebody else. Whoever adds it should see this before it happens.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from odfchain.errors import FetchError
from odfchain.model.events import MetadataEvent, SetPollingSource
from odfchain.model.sources import (
    FetchStepContainer,
    FetchStepUrl,
    PrepStepPipe,
)
from odfchain.net.template import has_templates, mask_templates, names_in
from odfchain.net.url import parse_target

_AUTHORITY = re.compile(r"(?P<scheme>[^:/?#]+)://(?P<authority>[^/?#\\]*)")


class EffectKind(Enum):
    """What has to be allowed."""

    COMMAND = "command"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that ingestion does."""

    kind: EffectKind
    text: str
    """What happens, as it stands in the manifest: not safe to be printed as it is."""
    host: str = ""
    """Where variables go; as it is written where templates are part of it."""
    variables: tuple[str, ...] = ()
    port: int | None = None


def effects_of(events: Iterable[MetadataEvent]) -> tuple[Effect, ...]:
    """The effects of the polling sources among some events, in their order."""
    return tuple(
        effect for event in events if isinstance(event, SetPollingSource) for effect in _effects(event)
    )


def _effects(source: SetPollingSource) -> Iterator[Effect]:
    match source.fetch:
        case FetchStepContainer() as step:
            yield _container(step)
        case FetchStepUrl() as step:
            yield from _sent(step)
    for prep in source.prepare or ():
        if isinstance(prep, PrepStepPipe):
            yield Effect(EffectKind.COMMAND, f"runs the command: {shlex.join(prep.command)}")


def _container(step: FetchStepContainer) -> Effect:
    own = [v.value for v in step.env or () if v.value is not None]
    names = names_in([step.image, *(step.args or ()), *own]) | {
        v.name for v in step.env or () if v.value is None
    }
    text = f"runs the container image: {step.image}"
    if command := (*(step.command or ()), *(step.args or ())):
        text += f" with {shlex.join(command)}"
    if names:
        text += f", and gives it the variables {', '.join(sorted(names))}"
    return Effect(EffectKind.COMMAND, text, variables=tuple(sorted(names)))


def _sent(step: FetchStepUrl) -> Iterator[Effect]:
    names = names_in([step.url, *(h.value for h in step.headers or ())])
    host = host_as_written(step.url) if names else None
    if host is None:
        return
    what = "variable" if len(names) == 1 else "variables"
    yield Effect(
        EffectKind.VARIABLE,
        f"sends the {what} {', '.join(sorted(names))} to {host[0]}",
        host=host[0],
        variables=tuple(sorted(names)),
        port=host[1],
    )


def host_as_written(url: str) -> tuple[str, int | None] | None:
    """Host and port that a URL leads to, None for a file of this machine.

    Where templates are part of the host (or of what comes before it), the host is their text.
    """
    masked, texts = mask_templates(url)

    def unmasked(text: str) -> str:
        for mark, template in texts.items():
            text = text.replace(mark, template)
        return text

    match = _AUTHORITY.match(masked)
    if match is None:
        # `file:/x` is a file; whatever else begins with a template may become anything
        return (unmasked(masked), None) if has_templates(url) and not _is_file(masked) else None
    if _is_file(masked):
        return None
    user, _, rest = match["authority"].rpartition("@")
    marks_user = [mark for mark in texts if mark in user]
    # a default could end the host early: `https://${{ env.X || 'a@evil.example/' }}@good.example/`
    unclear = any("||" in texts[mark] for mark in marks_user)
    if unclear or any(mark in match["scheme"] + rest for mark in texts):
        return unmasked(match["authority"] if marks_user else rest or match[0]), None
    return _host(masked, match)


def _is_file(masked: str) -> bool:
    return masked[:5].lower() == "file:"


def _host(url: str, match: re.Match[str]) -> tuple[str, int | None]:
    """As the fetchers understand it."""
    try:
        if match["scheme"].lower() in ("http", "https"):
            target = parse_target(url, name="")
            return target.host, target.port
        parts = urlsplit(url)
        return parts.hostname or match["authority"], parts.port
    except (FetchError, ValueError):
        return match["authority"], None
