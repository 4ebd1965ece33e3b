"""Settings by name, such as `audit.trustedAuditors`: what is in force, and editing the file that says so.

Only the value is replaced in the text, so that comments and everything else stay as they are. The result is
read again and has to say what was meant, and to be valid, before it replaces the file. Source: RFC-008.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from odfchain.errors import ManifestError, UsageError
from odfchain.odf.tree import camel_case, properties_of, to_tree
from odfchain.odf.yaml import read_document
from odfchain.storage import fsio
from odfchain.workspace.config import (
    DEFAULT_TEXT,
    USER_TEXT,
    UserConfig,
    WorkspaceConfig,
    parse_config,
    parse_user_config,
)

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./\[\]*:-]*", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class SettingsFile:
    """A kind of `config.yaml`: its settings, the text of a new one, and how it is read."""

    kind: type[Any]
    text: str
    parse: Callable[[bytes, str], Any]

    def load(self, folder: Path) -> Any:
        """The settings in a folder's file, or the defaults when there is none."""
        path = folder / "config.yaml"
        return self.parse(path.read_bytes(), str(path)) if path.exists() else self.kind()


OF_WORKSPACE = SettingsFile(WorkspaceConfig, DEFAULT_TEXT, parse_config)
OF_USER = SettingsFile(UserConfig, USER_TEXT, parse_user_config)


@dataclasses.dataclass(frozen=True, slots=True)
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


def all_settings(of: SettingsFile = OF_WORKSPACE) -> list[Setting]:
    """Every setting, in the order of the file."""
    settings = []
    for section, (_, cls, _) in properties_of(of.kind).items():
        settings += [Setting(section, name, hint) for name, (_, hint, _) in properties_of(cls).items()]
    return settings


def setting(text: str, of: SettingsFile = OF_WORKSPACE) -> Setting:
    """The setting of a name.

    Raises:
        UsageError: there is none; near names are suggested.
    """
    import difflib

    known = all_settings(of)
    for item in known:
        if text == str(item):
            return item
        if item.has_keys and text.startswith(f"{item}.") and len(text) > len(str(item)) + 1:
            return _entry(item, text[len(str(item)) + 1 :])
    if of is not OF_USER and text in map(str, all_settings(OF_USER)):
        raise UsageError(f"{text} is of the user, no workspace has it", hint="give --global")
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
        return dataclasses.replace(item, key=name, part=part)
    return dataclasses.replace(item, key=key)


def _parts_of(item: Setting) -> dict[str, Any]:
    _, entry = typing.get_args(item.hint)
    if not dataclasses.is_dataclass(entry):
        return {}
    return {name: hint for name, (_, hint, _) in properties_of(typing.cast("type[Any]", entry)).items()}


def default_of(item: Setting, of: SettingsFile = OF_WORKSPACE) -> Any:
    """The default of a setting, as `value_of` has it; None for an entry or a part of one."""
    return None if item.key is not None else value_of(of.kind(), item)


def value_of(config: Any, item: Setting) -> Any:
    """The value in force as a plain tree; None where nothing is set and there is no default."""
    section = getattr(config, _field(type(config), item.section))
    value = to_tree(getattr(section, _field(type(section), item.name)))
    if item.key is None:
        return value
    if item.key not in value:
        raise UsageError(f"{dataclasses.replace(item, part=None)} is not set")
    entry = value[item.key]
    return entry if item.part is None else _in_parts(entry, item).get(item.part)


def _in_parts(entry: Any, item: Setting) -> dict[str, Any]:
    """The properties of an entry that may be written as a text alone."""
    _, cls = typing.get_args(item.hint)
    return entry if isinstance(entry, dict) else {} if entry is None else {cls.SHORT: entry}


def _field(cls: type[Any], name: str) -> str:
    return next(f.name for f in dataclasses.fields(cls) if camel_case(f.name) == name)


def parsed(item: Setting, texts: Sequence[str]) -> Any:
    """The value that words of a command line mean.

    Raises:
        UsageError: one value is expected and there are more, or a name of an entry is missing.
    """
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


def edit(root: Path, item: Setting, change: Callable[[Any], Any], of: SettingsFile = OF_WORKSPACE) -> Any:
    """Durably replace the value of a setting by `change(value in force)`; returns the new value."""
    path = root / "config.yaml"
    fsio.make_folder(root, mode=0o700)
    with fsio.locked(root / "lock"):
        before = value_of(of.load(root), dataclasses.replace(item, key=None, part=None))
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
        if old is None:
            raise UsageError(f"{dataclasses.replace(item, part=None)} is not set", hint="set its value first")
        parts = _in_parts(old, item)
        new = {**parts, item.part: change(parts.get(item.part))}
        new = {name: part for name, part in new.items() if part is not None}
    others = {name: entry for name, entry in entries.items() if name != item.key}
    return others | ({} if new is None else {item.key: new})


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
    content = _member(yaml.compose(text, Loader=yaml.SafeLoader), "content")
    if content is None:
        raise ManifestError("the manifest has no 'content'", source=source)
    members = _member(content, section)
    if members is None:
        if not _has_lines(content):
            return _put(text, content, {**_plain(text, content), section: {name: value}}, source)
        return _insert(text, content, f"{section}:\n", f"  {name}: {_flow(value)}\n")
    old = _member(members, name)
    if old is not None:
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
