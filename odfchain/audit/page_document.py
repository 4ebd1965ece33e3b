"""Reading a report document (`odfchain-report/1`) that may come from anybody: typed, and named by path.

The documents of `odfchain verify -o json` are handed on as files. A page made from one must not say more than
the document does, so what is missing, of another type, or contradicts itself is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Never

from odfchain.errors import ManifestError
from odfchain.text import one_line

FORMAT = "odfchain-report/1"
VERDICTS = ("clean", "faulty", "incomplete")


@dataclass(frozen=True, slots=True)
class DocumentNode:
    """A value inside a document and the path to it."""

    value: object
    path: str = ""

    def __getitem__(self, name: str) -> DocumentNode:
        """The field of an object.

        Raises:
            ManifestError: this is no object, or has no such field.
        """
        if not isinstance(self.value, Mapping):
            self.refuse("an object")
        path = f"{self.path}.{name}" if self.path else name
        if name not in self.value:
            raise ManifestError("the field is missing", path=path, hint=_HINT)
        return DocumentNode(self.value[name], path)

    def optional(self, name: str) -> DocumentNode | None:
        """The field of an object, None where it has none.

        Raises:
            ManifestError: this is no object.
        """
        return self[name] if not isinstance(self.value, Mapping) or name in self.value else None

    def items(self) -> list[DocumentNode]:
        """The items of a list.

        Raises:
            ManifestError: this is no list.
        """
        if not isinstance(self.value, Sequence) or isinstance(self.value, str | bytes):
            self.refuse("a list")
        return [DocumentNode(item, f"{self.path}[{index}]") for index, item in enumerate(self.value)]

    def text(self, limit: int = 200) -> str:
        """The text as one printable line of at most `limit` characters.

        Raises:
            ManifestError: this is no text.
        """
        if not isinstance(self.value, str):
            self.refuse("text")
        return one_line(self.value, limit)

    def word(self, *allowed: str) -> str:
        """The text, which is one of these.

        Raises:
            ManifestError: it is another.
        """
        if not isinstance(self.value, str) or self.value not in allowed:
            self.refuse(" or ".join(f'"{word}"' for word in allowed))
        return self.value

    def number(self) -> int:
        """The whole number; a damaged block may claim any.

        Raises:
            ManifestError: this is none, or beyond what blocks can hold.
        """
        if not isinstance(self.value, int) or isinstance(self.value, bool) or abs(self.value) > _LARGEST:
            self.refuse("a whole number")
        return self.value

    def flag(self) -> bool:
        """True or false.

        Raises:
            ManifestError: this is neither.
        """
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def refuse(self, expected: str) -> Never:
        """Say what is expected here.

        Raises:
            ManifestError: always.
        """
        raise ManifestError(f"{expected} is expected", path=self.path, hint=_HINT)

    @property
    def known(self) -> bool:
        """Whether there is a value: null means that something is not known."""
        return self.value is not None


_LARGEST = 1 << 96
_HINT = "a page is made from the whole output of `odfchain verify -o json`"


def checked_document(document: Mapping[str, object], path: str) -> DocumentNode:
    """The document, which is a report and does not contradict itself in what it says first.

    Raises:
        ManifestError: it is no report, of another format, or its verdict is not that of its faults.
    """
    node = DocumentNode(document, path)
    form = node["format"]
    if form.value != FORMAT:
        form.refuse(f'"{FORMAT}"')
    verdict = node["verdict"].word(*VERDICTS)
    faulty = bool(node["faults"].items())
    for check in node["checks"].items():
        faulty |= check["state"].value == "failed" or check["faults"].number() > 0
    faulty |= any(block["state"].value == "faulty" for block in node["blocks"].items())
    if faulty != (verdict == "faulty"):
        contrary = "faults, blocks or checks say otherwise"
        raise ManifestError(
            f'the verdict is "{verdict}", its {contrary}', path=node["verdict"].path, hint=_HINT
        )
    return node
