"""A README as HTML that asks for nothing, runs nothing, and leads nowhere but where it says.

Large texts are rendered by a process that is killed in time: markdown-it takes 8 s for some of 256 KiB.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from html import escape as escape_html
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from odfchain.storage.locations import escape, unescape
from odfchain.text import with_marks
from odfchain.workspace.attachments import path_fault

README_BYTES, SECONDS = 256 << 10, 1.5
_HERE_BYTES, _MEMORY = 8 << 10, 1 << 30  # 0.1 s for the worst text of 8 KiB
_HTML, _PLAIN = 400_000, 48_000  # [characters]: a page has at most 500 KB
_OUTSIDE = re.compile(r"(?i)(https?://|mailto:)")


@dataclass(frozen=True, slots=True)
class Readme:
    """HTML to be put into a page as it is; `note` says why it is plain text, or cut."""

    html: str
    note: str = ""


@functools.lru_cache(maxsize=32)
def readme(text: str, attachments: str = "-/attachments/") -> Readme:
    """A README within 2 s; relative links lead below the address of the attachments."""
    size, made, why = len(text.encode(errors="replace")), None, "it takes too long, or too much room"
    if size > README_BYTES:
        why = f"it is larger than {README_BYTES >> 10} KiB"
    else:
        made = _html(text, attachments) if size <= _HERE_BYTES else _by_child(text, attachments)
    if made is not None:
        return Readme(made)
    rest = f"; its first {_PLAIN:,} characters" if len(text) > _PLAIN else ""
    shown = escape_html(with_marks(text[:_PLAIN]))
    return Readme(f"<pre>{shown}</pre>", f"shown as plain text, because {why}{rest}")


def _by_child(text: str, attachments: str) -> str | None:
    command = [sys.executable, "-P", "-m", "odfchain.node.readme", attachments]
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=SECONDS, check=True, env=env
        )
    except (subprocess.SubprocessError, OSError, UnicodeError):
        return None
    return done.stdout.decode() if len(done.stdout) <= _HTML else None


class _Safe(MarkdownIt):
    def __init__(self, attachments: str) -> None:
        super().__init__("commonmark", {"html": False})
        self.enable("table").disable("image")
        self.attachments = attachments

    def normalizeLink(self, url: str) -> str:  # noqa: N802 - of the library
        path = posixpath.normpath(unescape(re.split(r"[?#]", url)[0]).decode(errors="replace") or "/")
        other = ":" in url or path_fault(path)
        return super().normalizeLink(url) if other else self.attachments + escape(path)

    def validateLink(self, url: str) -> bool:  # noqa: N802 - of the library
        return bool(_OUTSIDE.match(url)) or url.startswith(self.attachments)


def _html(text: str, attachments: str) -> str:
    rules = _Safe(attachments)
    # as marks at last, too: an entity may be such a character
    tokens = rules.parse(with_marks(text.removeprefix("\ufeff")))
    for token in tokens:
        _tame(token)
    return with_marks(rules.renderer.render(tokens, rules.options, {}))


def _tame(token: Token) -> None:
    if token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
    if token.type == "link_open":
        token.attrSet("rel", "nofollow noopener noreferrer")
    if align := token.attrs.pop("style", None):  # no style within a page
        token.attrs["class"] = str(align).removeprefix("text-align:")
    for child in token.children or ():
        _tame(child)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.stdout.buffer.write(_html(sys.stdin.buffer.read().decode(), sys.argv[1]).encode())
