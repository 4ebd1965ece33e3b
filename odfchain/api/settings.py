"""Settings by name, such as `audit.trustedAuditors`: what is in force, and editing the file that says so.

Only the value is replaced in the text, so that comments and everything else stay as they are. The result is
read again and has to say what was meant, and to be valid, before it replaces the file. Source: RFC-008.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from odfchain.chain.checkpoints import NoteKey
from odfchain.errors import ManifestError, UsageError
from odfchain.odf.times import Recurrence
from odfchain.odf.tree import camel_case, properties_of, to_tree
from odfchain.odf.yaml import read_document
from odfchain.spark.known_errors import OwnErrors
from odfchain.storage import fsio
from odfchain.storage.locations import parse_target, public_name
from odfchain.text import SECRET, one_line
from odfchain.workspace import config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import member

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./\[\]*:-]*", re.ASCII)
_HIDDEN = "…"
_VARIABLES = "ingest.variables"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: its section and property.

    `key` is one entry of a property that has entries by name, `part` is one property of such an entry.
    """

    section: str
    name: str
    hint: Any
    key: str | None = None
    part: str | None = None

    def __str__(self) -> str:
        return ".".join(name for name in (self.section, self.name, self.key, self.part) if name is not None)

    @property
    def is_list(self) -> bool:
        """True if it holds several values."""
        hint = self.hint if self.part is None else _parts_of(self)[self.part]
        return any(typing.get_origin(kind) is tuple for kind in (hint, *typing.get_args(hint)))

    @property
    def has_keys(self) -> bool:
        """True if it holds entries by name."""
        return typing.get_origin(self.hint) is dict


def all_settings(of: config.SettingsFile = config.OF_WORKSPACE) -> list[Setting]:
    """Every setting, in the order of the file."""
    settings = []
    for section, (_, cls, _) in properties_of(of.kind.content).items():
        settings += [Setting(section, name, hint) for name, (_, hint, _) in properties_of(cls).items()]
    return settings


def setting(text: str, of: config.SettingsFile = config.OF_WORKSPACE) -> Setting:
    """The setting of a name; else a `UsageError` suggests near ones."""
    known = all_settings(of)
    for item in known:
        if text == str(item):
            return item
        if item.has_keys and text.startswith(f"{item}.") and len(text) > len(str(item)) + 1:
            return _entry(item, text[len(str(item)) + 1 :])
    if of is not config.OF_USER and text in map(str, all_settings(config.OF_USER)):
        raise UsageError(f"{text} is of the user, no workspace has it", hint="give --global")
    if text == str(_PULL_EVERY):
        raise UsageError(f"{text} is of a dataset", hint="give --dataset NAME")
    names = [str(item) for item in known]
    ends = [name for name in names if name.lower().endswith(f".{text.lower()}")]
    close = ends or difflib.get_close_matches(text, names, n=3)
    raise UsageError(
        f"unknown setting {text!r}",
        hint=f"did you mean {' or '.join(close)}?" if close else "`odfchain config list` shows all",
    )


def _entry(item: Setting, key: str) -> Setting:
    name, _, part = key.rpartition(".")
    if name and part in _parts_of(item):
        return replace(item, key=name, part=part)
    return replace(item, key=key)


def _entry_type(item: Setting) -> Any:
    _, entry = typing.get_args(item.hint)
    return getattr(entry, "__origin__", entry)  # without its rule


def _parts_of(item: Setting) -> dict[str, Any]:
    entry = _entry_type(item)
    if not dataclasses.is_dataclass(entry):
        return {}
    return {name: hint for name, (_, hint, _) in properties_of(typing.cast("type[Any]", entry)).items()}


def default_of(item: Setting, of: config.SettingsFile = config.OF_WORKSPACE) -> Any:
    """The default of a setting, as `value_of` has it; None for an entry or a part of one."""
    return None if item.key is not None else value_of(of.kind.content(), item)


def value_of(known: Any, item: Setting) -> Any:
    """The value in force as a plain tree; None where nothing is set and there is no default."""
    section = getattr(known, _field(type(known), item.section))
    value = to_tree(getattr(section, _field(type(section), item.name)))
    if item.key is None:
        return value
    if item.key not in value:
        raise UsageError(f"{replace(item, part=None)} is not set")
    entry = value[item.key]
    return entry if item.part is None else _in_parts(entry, item).get(item.part)


def _in_parts(entry: Any, item: Setting) -> dict[str, Any]:
    """The properties of an entry that may be written as a text alone."""
    return entry if isinstance(entry, dict) else {} if entry is None else {_entry_type(item).SHORT: entry}


def _field(cls: type[Any], name: str) -> str:
    return next(f.name for f in dataclasses.fields(cls) if camel_case(f.name) == name)


def parsed(item: Setting, texts: Sequence[str]) -> Any:
    """The value that words of a command line mean, or `UsageError`."""
    if item.has_keys and item.key is None:
        raise UsageError(f"{item} has entries by name", hint=f"name one: {item}.NAME")
    if item.is_list:
        return list(texts)
    if len(texts) != 1:
        raise UsageError(f"{item} takes one value, not {len(texts)}")
    as_text = item.key is not None or item.hint is str
    if as_text or (isinstance(item.hint, type) and issubclass(item.hint, Enum)):
        return texts[0]
    try:
        return read_document(texts[0]).value
    except ManifestError:
        return texts[0]


def edit(
    root: Path, item: Setting, change: Callable[[Any], Any], of: config.SettingsFile = config.OF_WORKSPACE
) -> Any:
    """Durably replace the value of a setting by `change(value in force)`; returns the new value."""
    path = root / "config.yaml"
    fsio.make_folder(root, mode=0o700)
    with fsio.locked(root / "lock"):
        before = value_of(of.load(root), replace(item, key=None, part=None))
        text = path.read_bytes().decode() if path.exists() else of.text
        value = change(before) if item.key is None else _with_entry(before, item, change)
        if value == before and path.exists():
            return value
        edited = _edited(text, (item.section, item.name), value, str(path))
        of.parse(edited.encode(), str(path))
        if edited != text or not path.exists():
            fsio.replace_file(path, edited.encode(), mode=0o600)
    return value


def _with_entry(entries: dict[str, Any], item: Setting, change: Callable[[Any], Any]) -> dict[str, Any]:
    assert item.key is not None  # noqa: S101 - an entry is meant
    old = entries.get(item.key)
    if item.part is None:
        new = change(old)
    else:
        if old is None and not properties_of(_entry_type(item))[_entry_type(item).SHORT][2]:
            raise UsageError(f"{replace(item, part=None)} is not set", hint="set its value first")
        parts = _in_parts(old, item)
        new = {**parts, item.part: change(parts.get(item.part))}
        new = {name: part for name, part in new.items() if part is not None}
    others = {name: entry for name, entry in entries.items() if name != item.key}
    return others | ({} if new is None else {item.key: new})


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
    of: config.SettingsFile = config.OF_WORKSPACE

    @classmethod
    def of_user(cls) -> Configuration:
        """Those of the user, for every workspace: which workspaces of others are used."""
        return cls(config.user_folder(), config.OF_USER)

    @property
    def file(self) -> Path:
        """The file of the settings."""
        return self.folder / "config.yaml"

    def all(self) -> Iterator[tuple[str, Any, bool]]:
        """Name, value and whether that is the default of each setting; what may be a secret is left out."""
        known = self.of.load(self.folder)
        for item in all_settings(self.of):
            value = value_of(known, item)
            yield str(item), _shown(str(item), value), value == default_of(item, self.of)

    def get(self, name: str) -> Any:
        """The value that is in force."""
        return value_of(self.of.load(self.folder), setting(name, self.of))

    def set(self, name: str, values: Sequence[str]) -> str:
        """Set a setting; one that is a list to all values."""
        item = setting(name, self.of)
        new = _checked(self.folder, item, parsed(item, self._paths(values)))
        # a variable stays bound to its hosts
        return self._edit(
            item,
            lambda old: {**old, _entry_type(item).SHORT: new} if item.key and isinstance(old, dict) else new,
        )

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
            if lacking := [value for value in named if value not in (old or [])]:
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
        return [config.absolute(value) for value in values] if self.of is config.OF_USER else list(values)

    def _edit(self, item: Setting, change: Callable[[Any], Any]) -> str:
        edit(self.folder, item, change, self.of)
        return str(item)


@dataclass(frozen=True, slots=True)
class DatasetConfiguration(OwnErrors):
    """Settings of one dataset: those of `snapshots` override the workspace's, and `pull.every` is its own.

    Methods and errors are those of `Configuration`.
    """

    folder: Path
    """Of the workspace's settings."""
    files: DatasetFiles

    @classmethod
    def of(cls, dataset: Dataset) -> DatasetConfiguration:
        """Those of a dataset."""
        return cls(dataset._workspace.path, dataset._files)

    @property
    def file(self) -> Path:
        """The file of the settings."""
        return config.config_path(self.files)

    def all(self) -> Iterator[tuple[str, Any, bool]]:
        """Name, value and whether nothing is set of each setting that a dataset can have."""
        for name in _OF_DATASETS:
            value = self.get(name)
            yield name, value, value is None

    def get(self, name: str) -> Any:
        """The value that is set; None where the workspace's is in force."""
        item = _of_datasets(name)
        return to_tree(getattr(getattr(config.read_config(self.files), item.section), item.name, None))

    def set(self, name: str, values: Sequence[str]) -> str:
        """Set a setting."""
        item = _of_datasets(name)
        value = _checked(self.folder, item, parsed(item, values))
        if item.hint is config.ProfileWhen:
            value = member(config.ProfileWhen, str(item), value, config.ProfileWhen.DEMAND)
        if item == _PULL_EVERY:
            value = Recurrence.parse(value)
        return self._change(item, value)

    def unset(self, name: str) -> str:
        """Let the workspace's be in force again."""
        return self._change(_of_datasets(name), None)

    def _change(self, item: Setting, value: Any) -> str:
        def change(known: config.DatasetConfig) -> config.DatasetConfig:
            none = config.OwnPull() if item == _PULL_EVERY else config.OwnSnapshots()
            own = replace(getattr(known, item.section) or none, **{item.name: value})
            changed: dict[str, Any] = {item.section: None if own == none else own}
            return replace(known, **changed)

        config.change_config(self.files, change)
        return str(item)


def add_witness(folder: Path, url: str, key: str, quorum: int | None) -> str:
    """As `Workspace.add_witness`, in the folder of the settings."""
    name, settings = NoteKey.parse(key).name, Configuration(folder)
    parse_target(url, name=url)
    known = settings.get("trust.witnesses")
    known |= {"keys": list(dict.fromkeys([*known.get("keys", ()), key]))}
    known |= {"quorum": quorum} if quorum is not None else {}
    settings.set("trust.witnesses", [json.dumps(known)])
    settings.set(f"trust.ask.{key}", [url])
    return name


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
        from odfchain.api.branching import read_policy_file

        read_policy_file(folder, value)
    return value


_PULL_EVERY = Setting("pull", "every", str)
_OF_DATASETS = ("snapshots.profile", "snapshots.guard", str(_PULL_EVERY))


def _of_datasets(name: str) -> Setting:
    item = _PULL_EVERY if name == str(_PULL_EVERY) else setting(name)
    if str(item) not in _OF_DATASETS:
        raise UsageError(f"{item} is of the whole workspace", hint=f"a dataset has {', '.join(_OF_DATASETS)}")
    return item


def _nothing(item: Setting) -> Callable[[Any], Any]:
    def none(old: Any) -> None:
        if old is None:
            raise UsageError(f"{item} is not set")

    return none


def _checked_list(item: Setting) -> Setting:
    if not item.is_list:
        raise UsageError(f"{item} is not a list", hint="`odfchain config set` gives it another value")
    return item


# --- text ------------------------------------------------------------------------------------------


def _edited(text: str, keys: tuple[str, str], value: Any, source: str) -> str:
    tree = copy.deepcopy(read_document(text, source=source).value)
    result = _replaced(text, keys, value, source)
    content = tree["content"] = tree.get("content") or {}
    section = content[keys[0]] = content.get(keys[0]) or {}
    section[keys[1]] = value
    if read_document(result, source=source).value != tree:
        raise ManifestError(
            "the file is written in a way that cannot be edited here",
            source=source,
            path=".".join(keys),
            hint="edit it by hand",
        )
    return result


def _replaced(text: str, keys: tuple[str, str], value: Any, source: str) -> str:
    section, name = keys
    if (content := _member(yaml.compose(text, Loader=yaml.SafeLoader), "content")) is None:
        raise ManifestError("the manifest has no 'content'", source=source)
    if (members := _member(content, section)) is None:
        if not _has_lines(content):
            return _put(text, content, {**_plain(text, content), section: {name: value}}, source)
        return _insert(text, content, f"{section}:\n", f"  {name}: {_flow(value)}\n")
    if (old := _member(members, name)) is not None:
        return _put(text, old, value, source)
    if not _has_lines(members):
        return _put(text, members, {**_plain(text, members), name: value}, source)
    return _insert(text, members, f"{name}: {_flow(value)}\n")


def _member(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _has_lines(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and not node.flow_style and bool(node.value)


def _plain(text: str, node: yaml.Node) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    value: dict[str, Any] = read_document(text[node.start_mark.index : node.end_mark.index]).value
    return value


def _insert(text: str, mapping: yaml.Node, *lines: str) -> str:
    first = mapping.value[0][0].start_mark
    at = first.index - first.column
    return text[:at] + "".join(" " * first.column + line for line in lines) + text[at:]


def _put(text: str, node: yaml.Node, value: Any, source: str) -> str:
    start, end = node.start_mark.index, _end(node)
    if _has_comments(text, node):
        raise ManifestError(
            "comments next to this value would be lost", source=source, line=node.start_mark.line + 1,
            hint="edit the file by hand",
        )  # fmt: skip
    blank = "" if text[start - 1 : start].isspace() else " "
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        blank = "  "  # the items of a block may be as far left as its key, `[` may not
    return text[:start] + blank + _flow(value) + text[end:]


def _end(node: yaml.Node) -> int:
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        # the mark of a block is where the next thing begins, not where its last line ends
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _has_comments(text: str, node: yaml.Node) -> bool:
    if isinstance(node, yaml.ScalarNode):
        return False
    at, between = node.start_mark.index, ""
    for scalar in _scalars(node):
        between += text[at : scalar.start_mark.index]
        at = scalar.end_mark.index
    return "#" in between


def _scalars(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        for child in item if isinstance(item, tuple) else (item,):
            yield from _scalars(child)


def _flow(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and read_document(value).value == value:
        return value
    # JSON is YAML
    return json.dumps(value, ensure_ascii=False)
