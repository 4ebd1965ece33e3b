"""Trees as YAML or JSON text, for people and for programs.

YAML output stays inside the subset that `yaml_reader` reads: text that a YAML reader could take for a time,
a number or a boolean is quoted, text of several lines is written as a block.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

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
