"""Values of the workspace in what a source says: `${{ env.NAME }}` and `${{ env.NAME || default }}`.

A value may be a secret, and messages end in logs. So messages show the text as it was written, with its
templates, and text that comes from a server is searched for the values before it is shown. Substituted values
are plain text: a `${{` in one of them means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

from odfchain.errors import FetchError

_OPEN = "${{"
_EXPRESSION = re.compile(
    r"""\$\{\{\s*env\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)\s*
    (?:\|\|\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<number>-?[0-9]+(?:\.[0-9]+)?))\s*)?\}\}""",
    re.VERBOSE,
)
_SHOWN = 200


def shown(text: str, limit: int = _SHOWN) -> str:
    """The text as one printable line of at most `limit` characters."""
    line = "".join(c if c.isprintable() else " " for c in text[: limit + 1]).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _parts(text: str, where: str) -> Iterator[str | re.Match[str]]:
    """Plain text and templates in turn."""
    start = 0
    while (opening := text.find(_OPEN, start)) >= 0:
        match = _EXPRESSION.match(text, opening)
        if match is None:
            end = text.find("}}", opening)
            found = text[opening:] if end < 0 else text[opening : end + 2]
            raise FetchError(
                f"{where}{shown(found)} is not a template",
                hint="write ${{ env.NAME }} or ${{ env.NAME || 'default' }}; a default may also be a number",
            )
        yield text[start:opening]
        yield match
        start = match.end()
    yield text[start:]


def expand(text: str, variables: Mapping[str, str], *, where: str = "") -> str:
    """The text with every template replaced by its variable's value, or by its default.

    `where` is put before messages. No message shows a value.

    Raises:
        FetchError: a variable without a default is missing, or something starts like a template and is none.
    """
    where = f"{where}: " if where else ""
    return "".join(
        part if isinstance(part, str) else _value(part, variables, where) for part in _parts(text, where)
    )


def _value(match: re.Match[str], variables: Mapping[str, str], where: str) -> str:
    name = match["name"]
    if name in variables:
        return variables[name]
    for default in match.group("single", "double", "number"):
        if default is not None:
            return default
    raise FetchError(
        f"{where}the variable {name} of {shown(match[0])} has no value",
        hint=f"define {name} under ingest.variables in the workspace's configuration, or give a default",
    )


def values_in(texts: Iterable[str], variables: Mapping[str, str]) -> frozenset[str]:
    """The values that templates in the texts stand for: what must not be shown."""
    names = {match["name"] for text in texts for match in _EXPRESSION.finditer(text)}
    return frozenset(variables[name] for name in names if variables.get(name))


def redact(text: str, values: Iterable[str]) -> str:
    """The text with every value, as it is or percent-encoded, replaced by `***`."""
    forms = {form for value in values for form in (value, quote(value), quote(value, safe=""))}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def public_name(url: str) -> str:
    """What messages call a URL: as it was written, with its templates, without user name and password."""
    masked = _EXPRESSION.sub(lambda match: "x" * len(match[0]), url)
    match = re.match(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/?#]*@)", masked)
    if match and not match["scheme"].lower().startswith("abfs"):  # there the part before @ is the container
        url = url[: match.start("user")] + url[match.end("user") :]
    return shown(url)
