"""The settings of a workspace by name, such as `audit.trustedAuditors`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.known_errors import OwnErrors
from odfchain.errors import UsageError
from odfchain.storage.template import public_name
from odfchain.text import SECRET, one_line
from odfchain.workspace.config import (
    DatasetConfig,
    OwnSnapshots,
    ProfileWhen,
    absolute,
    change_config,
    config_path,
    read_config,
    user_folder,
)
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.settings import (
    OF_USER,
    OF_WORKSPACE,
    Setting,
    SettingsFile,
    all_settings,
    default_of,
    edit,
    parsed,
    setting,
    value_of,
)

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace


_HIDDEN = "…"
_VARIABLES = "ingest.variables"


@dataclass(frozen=True, slots=True)
class Configuration(OwnErrors):
    """The settings in a file of a folder, a workspace's or the user's, which is read anew at each call.

    Comments in the file stay, and what is not valid changes nothing. Every method that changes returns the
    setting's full name.

    Raises:
        UsageError: there is no such setting, or it takes no such value.
        ManifestError: the file is malformed, or cannot be edited without losing comments.
        StoreError: it cannot be written.
    """

    folder: Path
    of: SettingsFile = OF_WORKSPACE

    @classmethod
    def of_user(cls) -> Configuration:
        """Those of the user, for every workspace: which workspaces of others are used."""
        return cls(user_folder(), OF_USER)

    @property
    def file(self) -> Path:
        """The file of the settings."""
        return self.folder / "config.yaml"

    def all(self) -> Iterator[tuple[str, Any, bool]]:
        """Name, value and whether that is the default of each setting; what may be a secret is left out."""
        config = self.of.load(self.folder)
        for item in all_settings(self.of):
            value = value_of(config, item)
            is_default = value == default_of(item, self.of)
            yield str(item), _shown(str(item), value), is_default

    def get(self, name: str) -> Any:
        """The value that is in force."""
        return value_of(self.of.load(self.folder), setting(name, self.of))

    def set(self, name: str, values: Sequence[str]) -> str:
        """Set a setting; one that is a list to all values."""
        item = setting(name, self.of)
        new = _checked(self.folder, item, parsed(item, self._paths(values)))
        # a variable stays bound to its hosts
        return self._edit(item, lambda old: {**old, "value": new} if isinstance(old, dict) else new)

    def add(self, name: str, values: Sequence[str]) -> str:
        """Add values to a list."""
        item = _checked_list(setting(name, self.of))
        return self._edit(item, lambda old: list(dict.fromkeys([*(old or []), *self._paths(values)])))

    def remove(self, name: str, values: Sequence[str]) -> str:
        """Remove values from a list, or one entry by its name."""
        item = setting(name, self.of)
        if item.key is None:
            _checked_list(item)
        if item.is_list != bool(values):
            raise UsageError("name the values to remove" if item.is_list else f"{item} is one entry")
        if not item.is_list:
            return self._edit(item, _nothing(item))

        def without(old: Any) -> Any:
            named = self._paths(values)
            lacking = [value for value in named if value not in (old or [])]
            if lacking:
                raise UsageError(f"{item} does not have {', '.join(lacking)}")
            return [value for value in old if value not in named]

        return self._edit(item, without)

    def unset(self, name: str) -> str:
        """Give a setting its default again, or remove an entry or a part of one."""
        item = setting(name, self.of)
        default = default_of(item, self.of)
        return self._edit(item, _nothing(item) if item.key is not None else lambda _: default)

    def _paths(self, values: Sequence[str]) -> list[str]:
        # a user's settings are read in every folder, so their paths are absolute
        return [absolute(value) for value in values] if self.of is OF_USER else list(values)

    def _edit(self, item: Setting, change: Callable[[Any], Any]) -> str:
        edit(self.folder, item, change, self.of)
        return str(item)


@dataclass(frozen=True, slots=True)
class DatasetConfiguration(OwnErrors):
    """Settings of one dataset that override those of the workspace, of `snapshots` only.

    Methods and errors are those of `Configuration`.
    """

    folder: Path
    """Of the workspace's settings."""
    files: DatasetFiles

    @property
    def file(self) -> Path:
        """The file of the settings."""
        return config_path(self.files)

    def all(self) -> Iterator[tuple[str, Any, bool]]:
        """Name, value and whether nothing is set of each setting that a dataset can have."""
        for name in ("snapshots.profile", "snapshots.guard"):
            value = self.get(name)
            yield name, value, value is None

    def get(self, name: str) -> Any:
        """The value that is set; None where the workspace's is in force."""
        value = getattr(read_config(self.files).snapshots or OwnSnapshots(), _of_datasets(name).name)
        return value.value if isinstance(value, ProfileWhen) else value

    def set(self, name: str, values: Sequence[str]) -> str:
        """Set a setting."""
        item = _of_datasets(name)
        value = _checked(self.folder, item, parsed(item, values))
        return self._change(item, _profile_when(value) if item.hint is ProfileWhen else value)

    def unset(self, name: str) -> str:
        """Let the workspace's be in force again."""
        return self._change(_of_datasets(name), None)

    def _change(self, item: Setting, value: Any) -> str:
        def change(config: DatasetConfig) -> DatasetConfig:
            own = replace(config.snapshots or OwnSnapshots(), **{item.name: value})
            return replace(config, snapshots=None if own == OwnSnapshots() else own)

        change_config(self.files, change)
        return str(item)


def configuration(workspace: Workspace, dataset: str | None = None) -> Configuration | DatasetConfiguration:
    """The settings of a workspace, or of one of its datasets.

    Raises:
        DatasetNotFoundError: there is no such dataset.
    """
    if dataset is None:
        return Configuration(workspace.path)
    return DatasetConfiguration(workspace.path, workspace[dataset]._files)


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _HIDDEN if name == _VARIABLES else _shown(key, entry) for key, entry in value.items()}
    if not isinstance(value, str):
        return value
    keeps = "://" in value and public_name(value) != one_line(value)
    return _HIDDEN if keeps or SECRET.search(name) or SECRET.search(value) else value


def _checked(folder: Path, item: Setting, value: Any) -> Any:
    # a policy is read now, not at the next commit
    if str(item) == "snapshots.guard" and value:
        from odfchain.api.changing import read_policy_file

        read_policy_file(folder, value)
    return value


def _of_datasets(name: str) -> Setting:
    item = setting(name)
    if item.section != "snapshots":
        raise UsageError(
            f"{item} is of the whole workspace", hint="a dataset has snapshots.profile and snapshots.guard"
        )
    return item


def _profile_when(value: str) -> ProfileWhen:
    try:
        return ProfileWhen(value)
    except ValueError:
        known = ", ".join(when.value for when in ProfileWhen)
        raise UsageError(f"snapshots.profile: {one_line(value)!r} is not one of {known}") from None


def _nothing(item: Setting) -> Callable[[Any], Any]:
    def none(old: Any) -> None:
        if old is None:
            raise UsageError(f"{item} is not set")

    return none


def _checked_list(item: Setting) -> Setting:
    if not item.is_list:
        raise UsageError(f"{item} is not a list", hint="`odfchain config set` gives it another value")
    return item
