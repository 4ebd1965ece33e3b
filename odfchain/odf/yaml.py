"""YAML and JSON documents as plain trees, strictly.

Only the JSON-compatible subset of YAML is read (specification "Metadata Format"): no anchors, aliases or
tags, no duplicate keys, string keys only, and scalars are resolved by the rules of YAML 1.2, so `no` stays
text and a time stays text. Size, depth and number of nodes are bounded (RFC-003). JSON is a subset of what
is read here. Every node remembers its line, so that later errors can name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from odfchain.errors import ManifestError, child_path, line_of
from odfchain.limits import LIMITS, Limits
from odfchain.odf.canonical_json import unique_members

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Document:
    """A plain tree of dicts, lists, strings, numbers, booleans and None, and the line of every path in it."""

    value: Any
    lines: dict[str, int] = field(default_factory=dict)
    """Path such as `metadata[2].merge` to its 1-based line."""

    def line_of(self, path: str) -> int | None:
        """The line of `path`, or of the nearest enclosing node that has one."""
        return line_of(self.lines, path)


def read_documents(
    text: str | bytes, *, source: str | None = None, limits: Limits = LIMITS
) -> list[Document]:
    """All documents of a YAML stream, or the one document of a JSON text, else `ManifestError`."""
    if len(text) > limits.manifest_bytes:
        raise ManifestError(f"larger than {limits.manifest_bytes:,} bytes", source=source)
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ManifestError(f"not UTF-8 at byte {error.start}", source=source) from None
    try:
        return list(_compose(yaml.parse(text.removeprefix("\ufeff"), Loader=_LOADER), limits))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = f"not valid YAML: {error.problem or error}"
        if "nesting depth" in problem:  # newer libraries read ahead, and stop before the bound here is met
            problem = f"nested deeper than {limits.manifest_depth}"
        raise ManifestError(problem, line=mark.line + 1 if mark else None, source=source) from None
    except yaml.reader.ReaderError as error:
        documents = _read_json(text)
        if documents is not None:
            return [documents]
        message = f"not valid YAML: {error.reason} (position {error.position})"
        raise ManifestError(message, source=source) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"not valid YAML: {error}".splitlines()[0], source=source) from None
    except ManifestError as error:
        raise error.located(source=source) from None


def _read_json(text: str) -> Document | None:
    # JSON allows characters that YAML does not; None says it is not JSON either
    try:
        return Document(json.loads(text, object_pairs_hook=unique_members))
    except (ValueError, RecursionError):
        return None


def read_document(text: str | bytes, *, source: str | None = None, limits: Limits = LIMITS) -> Document:
    """The only document of a text; errors as `read_documents`."""
    documents = read_documents(text, source=source, limits=limits)
    if len(documents) != 1:
        raise ManifestError(f"{len(documents)} documents where one was expected", source=source)
    return documents[0]


def _scalar(event: yaml.ScalarEvent, line: int) -> Any:
    text: str = event.value
    if not event.implicit[0]:  # quoted or block text
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        if len(text) > 40:
            raise ManifestError(f"a number of {len(text)} digits", line=line)
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _compose(events: Iterator[Any], limits: Limits) -> Iterator[Document]:
    # an explicit stack: how deep a document is costs no recursion
    document: Document | None = None
    stack: list[tuple[Any, str, str | None]] = []  # (container, its path, pending key)
    nodes = 0

    def place(value: Any, line: int) -> str:
        nonlocal document
        if not stack:
            document = Document(value)
            document.lines[""] = line
            return ""
        container, path, key = stack[-1]
        if isinstance(container, list):
            here = child_path(path, len(container))
            container.append(value)
        else:
            assert key is not None  # noqa: S101 - set just before by the key event
            here = child_path(path, key)
            container[key] = value
            stack[-1] = (container, path, None)
        assert document is not None  # noqa: S101 - the root was placed first
        document.lines[here] = line
        return here

    for event in events:
        if isinstance(event, yaml.DocumentEndEvent):
            if document is not None:
                yield document
            document = None
            continue
        if not isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            continue
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
            continue
        nodes += 1
        if nodes > limits.manifest_nodes:
            raise ManifestError(f"more than {limits.manifest_nodes:,} values", line=line)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise ManifestError("anchors and aliases are not allowed", line=line)
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            raise ManifestError(f"tags are not allowed ({tag})", line=line)
        if stack and isinstance(stack[-1][0], dict) and stack[-1][2] is None:
            container, path, _ = stack[-1]
            if not isinstance(event, yaml.ScalarEvent):
                raise ManifestError("a key must be plain text", path=path, line=line)
            if event.value in container:
                raise ManifestError(f"duplicate key {event.value!r}", path=path, line=line)
            stack[-1] = (container, path, event.value)
            continue
        if isinstance(event, yaml.ScalarEvent):
            place(_scalar(event, line), line)
            continue
        if len(stack) >= limits.manifest_depth:
            raise ManifestError(f"nested deeper than {limits.manifest_depth}", line=line)
        container = {} if isinstance(event, yaml.MappingStartEvent) else []
        stack.append((container, place(container, line), None))


# Trees as YAML or JSON text, for people and for programs.
#
# YAML output stays inside the subset that `yaml_reader` reads: text that a YAML reader could take for a
# time, a number or a boolean is quoted, text of several lines is written as a block.

_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if not all(line.isprintable() for line in text.split("\n")):
        style = '"'  # the only style in which every character survives
    elif "\n" in text:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(tree: Any) -> str:
    """The tree as one YAML document, keys in their order, ending in a newline."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def dump_json(tree: Any, *, indent: int | None = 2) -> str:
    """The tree as JSON, without a final newline; readable as YAML too."""
    text = json.dumps(tree, ensure_ascii=False, indent=indent)
    # JSON allows these in text as they are, YAML does not
    return _NOT_YAML.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
