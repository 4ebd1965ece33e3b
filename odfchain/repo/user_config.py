"""What a user sets for himself, whatever the workspace: a manifest of kind `UserConfig`.

$XDG_CONFIG_HOME/odfchain/config.yaml       (~/.config where that is not set), mode 0600
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from odfchain.codec.yaml_manifest import ManifestKind, read_manifest
from odfchain.codec.yaml_reader import read_document
from odfchain.errors import UsageError

EVERY = "*"
BELOW = "/*"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeConfig:
    """What is trusted although others could have written it."""

    workspace: tuple[str, ...] = ()
    """Folders of workspaces that are used whoever owns them: a path, `PATH/*` for all below it, or `*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """Settings of a user."""

    safe: SafeConfig = SafeConfig()


USER_CONFIG = ManifestKind("UserConfig", UserConfig, range(1, 2))

USER_TEXT = """\
# Settings of this user, for every workspace.
kind: UserConfig
version: 1
content:
  safe:
    workspace: []           # workspaces of other users that may be used, by their paths
"""


def user_folder() -> Path:
    """Where the settings of the user are."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or _expanded("~/.config")) / "odfchain"


def _expanded(text: str) -> Path:
    return Path(os.path.expanduser(text))  # noqa: PTH111 - `Path` fails where a user has no home


def parse_user_config(data: bytes, source: str) -> UserConfig:
    """The settings in the text of a file.

    Raises:
        ManifestError: naming the line and path of what is wrong.
    """
    config: UserConfig = read_manifest(read_document(data, source=source), USER_CONFIG, source)
    return config


def absolute(text: str) -> str:
    """A value of `safe.workspace` that means the same in whichever folder it is read.

    Raises:
        UsageError: it is empty.
    """
    if not text.strip():
        raise UsageError("safe.workspace: a path is empty", hint="name the folder of the workspace")
    return text if text == EVERY else str(_expanded(text).absolute())


def is_safe(root: Path, config: UserConfig) -> bool:
    """Whether the user trusts the workspace whose `.odfchain` folder is `root`."""
    real = root.resolve()
    return any(_means(text, real, root.name) for text in config.safe.workspace)


def _means(text: str, real: Path, name: str) -> bool:
    if text == EVERY:
        return True
    path = _expanded(text.removesuffix(BELOW))
    if not path.is_absolute():  # it would mean another folder wherever a command runs
        return False
    if text.endswith(BELOW):
        return real.is_relative_to(path.resolve())
    return real in (path.resolve(), (path / name).resolve())
