"""The settings of a workspace by name, such as `audit.trustedAuditors`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain.errors import UsageError
from odfchain.repo.settings import Setting, all_settings, default_of, edit, parsed, setting, value_of
from odfchain.repo.workspace_config import WorkspaceConfig, load_config

_HIDDEN = "…"
_SECRET = ("ingest.variables",)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings in a file of a workspace's folder, which is read anew at each call.

    Comments in the file stay, and what is not valid changes nothing. Every method that changes returns the
    setting's full name.

    Raises:
        UsageError: there is no such setting, or it takes no such value.
        ManifestError: the file is malformed, or cannot be edited without losing comments.
        StoreError: it cannot be written.
    """

    folder: Path

    @property
    def file(self) -> Path:
        """Where the settings are."""
        return self.folder / "config.yaml"

    def all(self) -> Iterator[tuple[str, Any, bool]]:
        """Name, value and whether that is the default of each setting; values of variables are left out."""
        config, default = load_config(self.file), WorkspaceConfig()
        for item in all_settings():
            value = value_of(config, item)
            is_default = value == value_of(default, item)
            shown = dict.fromkeys(value, _HIDDEN) if str(item) in _SECRET else value
            yield str(item), shown, is_default

    def get(self, name: str) -> Any:
        """The value that is in force."""
        return value_of(load_config(self.file), setting(name))

    def set(self, name: str, values: Sequence[str]) -> str:
        """Set a setting; one that is a list to all values."""
        item = setting(name)
        new = parsed(item, values)
        # a variable stays bound to its hosts
        return self._edit(item, lambda old: {**old, "value": new} if isinstance(old, dict) else new)

    def add(self, name: str, values: Sequence[str]) -> str:
        """Add values to a list."""
        item = _checked_list(setting(name))
        return self._edit(item, lambda old: list(dict.fromkeys([*(old or []), *values])))

    def remove(self, name: str, values: Sequence[str]) -> str:
        """Remove values from a list, or one entry by its name."""
        item = setting(name)
        if item.key is None:
            _checked_list(item)
        if item.is_list != bool(values):
            raise UsageError("name the values to remove" if item.is_list else f"{item} is one entry")
        if not item.is_list:
            return self._edit(item, _nothing(item))

        def without(old: Any) -> Any:
            lacking = [value for value in values if value not in (old or [])]
            if lacking:
                raise UsageError(f"{item} does not have {', '.join(lacking)}")
            return [value for value in old if value not in values]

        return self._edit(item, without)

    def unset(self, name: str) -> str:
        """Give a setting its default again, or remove an entry or a part of one."""
        item = setting(name)
        return self._edit(item, _nothing(item) if item.key is not None else lambda _: default_of(item))

    def _edit(self, item: Setting, change: Callable[[Any], Any]) -> str:
        edit(self.folder, item, change)
        return str(item)


def _nothing(item: Setting) -> Callable[[Any], Any]:
    def none(old: Any) -> None:
        if old is None:
            raise UsageError(f"{item} is not set")

    return none


def _checked_list(item: Setting) -> Setting:
    if not item.is_list:
        raise UsageError(f"{item} is not a list", hint="`odfchain config set` gives it another value")
    return item
