"""Values of the workspace in what a source says: `${{ env.NAME }}`, with alternatives and literals.

    ${{ env.A || env.B || 'x' }}    the first that has a value: a variable that is defined, a text, a number

A value may be a secret, and messages end in logs. So messages show the text as it was written, with its
templates, and text that comes from a server is searched for the values before it is shown. Substituted values
are plain text: a `${{` in one of them means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from odfchain.errors import FetchError, IngestError
from odfchain.text import one_line

_OPEN = "${{"
_NAME = r"env\.[A-Za-z0-9_-]+"  # as the reference implementation has it
_LITERAL = r"""'[^']*'|"[^"]*"|-?[0-9]+(?:\.[0-9]+)?"""
_OPERAND = re.compile(rf"{_LITERAL}|{_NAME}")
_EXPRESSION = re.compile(rf"\$\{{\{{\s*(?:{_OPERAND.pattern})(?:\s*\|\|\s*(?:{_OPERAND.pattern}))*\s*\}}\}}")
_MOST_NAMES = 5


def _parts(text: str, where: str) -> Iterator[str | re.Match[str]]:
    start = 0
    while (opening := text.find(_OPEN, start)) >= 0:
        match = _EXPRESSION.match(text, opening)
        if match is None:
            end = text.find("}}", opening)
            found = text[opening:] if end < 0 else text[opening : end + 2]
            raise FetchError(
                f"{where}{one_line(found)} is not a template",
                hint="write ${{ env.NAME }}, or alternatives as ${{ env.NAME || env.OTHER || 'default' }}; "
                "a default may also be a number",
            )
        yield text[start:opening]
        yield match
        start = match.end()
    yield text[start:]


def has_templates(text: str) -> bool:
    """True if the text contains templates."""
    return _OPEN in text


def expand(text: str, variables: Mapping[str, str], *, where: str = "") -> str:
    """The text with the first value for every template; messages begin with `where` and show no value."""
    where = f"{where}: " if where else ""
    return "".join(
        part if isinstance(part, str) else _value(part, variables, where) for part in _parts(text, where)
    )


def _value(match: re.Match[str], variables: Mapping[str, str], where: str) -> str:
    for operand in _operands(match):
        if not operand.startswith("env."):
            return operand[1:-1] if operand[0] in "'\"" else operand
        if operand[4:] in variables:
            return variables[operand[4:]]
    names = [operand[4:] for operand in _operands(match)]
    if len(names) == 1:
        message = f"the variable {names[0]} of {one_line(match[0])} has no value"
    else:
        listed = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        message = f"none of the variables {listed} in {one_line(match[0])} has a value"
    raise IngestError(f"{where}{message}", hint=how_to_define(names[0]))


def how_to_define(name: str) -> str:
    """The ways to give a variable its value."""
    return f"give -e {name}=VALUE, or `odfchain config set ingest.variables.{name} VALUE` for all runs"


def _operands(match: re.Match[str]) -> list[str]:
    return _OPERAND.findall(match[0].removeprefix(_OPEN))


def names_in(texts: Iterable[str]) -> frozenset[str]:
    """The variables that templates in the texts name, whether one of their alternatives is taken or not."""
    return frozenset(
        operand[4:]
        for text in texts
        for match in _EXPRESSION.finditer(text)
        for operand in _operands(match)
        if operand.startswith("env.")
    )


def mask_templates(text: str) -> tuple[str, dict[str, str]]:
    """(the text with a mark of letters for every template with variables, the template of each mark)."""
    prefix = "odfv"
    while prefix in text.lower():
        prefix += "x"
    templates: dict[str, str] = {}

    def mark(match: re.Match[str]) -> str:
        if not _operands(match)[0].startswith("env."):
            return _value(match, {}, "")
        name = f"{prefix}{len(templates)}q"
        templates[name] = match[0]
        return name

    return _EXPRESSION.sub(mark, text), templates


def blanked(text: str) -> str:
    """The text with every template replaced by as many letters."""
    return _EXPRESSION.sub(lambda match: "x" * len(match[0]), text)


def shown_value(value: str) -> str:
    """What may be shown of a value, which may be a secret: its templates alone, or that there is one."""
    if _EXPRESSION.sub("", value) or not value:
        return "…" if value else ""
    return _OPERAND.sub(lambda match: match[0] if match[0].startswith("env.") else "…", value)
