"""Reading a JSON document that may come from anybody: typed, and what is wrong is named by its path."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Never

from odfchain.errors import ManifestError
from odfchain.text import one_line

_LARGEST = 1 << 96
_LARGEST_REAL = sys.float_info.max


@dataclass(frozen=True, slots=True)
class DocumentNode:
    """A value inside a document and the path to it."""

    value: object
    path: str = ""
    hint: str = ""
    """What to do about a document that is not what it should be."""

    def __getitem__(self, name: str) -> DocumentNode:
        """The field of an object.

        Raises:
            ManifestError: this is no object, or has no such field.
        """
        if not isinstance(self.value, Mapping):
            self.refuse("an object")
        path = f"{self.path}.{name}" if self.path else name
        if name not in self.value:
            raise ManifestError("the field is missing", path=path, hint=self.hint or None)
        return DocumentNode(self.value[name], path, self.hint)

    def optional(self, name: str) -> DocumentNode | None:
        """The field of an object, None where it has none."""
        return self[name] if not isinstance(self.value, Mapping) or name in self.value else None

    def items(self) -> list[DocumentNode]:
        """The items of a list."""
        if not isinstance(self.value, Sequence) or isinstance(self.value, str | bytes):
            self.refuse("a list")
        return [
            DocumentNode(item, f"{self.path}[{index}]", self.hint) for index, item in enumerate(self.value)
        ]

    def text(self, limit: int = 200) -> str:
        """The text as one printable line of at most `limit` characters."""
        if not isinstance(self.value, str):
            self.refuse("text")
        return one_line(self.value, limit)

    def word(self, *allowed: str) -> str:
        """The text, which is one of these."""
        if not isinstance(self.value, str) or self.value not in allowed:
            self.refuse(" or ".join(f'"{word}"' for word in allowed))
        return self.value

    def number(self) -> int:
        """The whole number; a damaged block may claim any."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or abs(self.value) > _LARGEST:
            self.refuse("a whole number")
        return self.value

    def real(self) -> float:
        """The number, which is finite."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST_REAL:
            self.refuse("a number")
        return float(value)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def refuse(self, expected: str) -> Never:
        """Say what is expected here.

        Raises:
            ManifestError: always.
        """
        raise ManifestError(f"{expected} is expected", path=self.path, hint=self.hint or None)

    @property
    def known(self) -> bool:
        """Whether there is a value: null means that something is not known."""
        return self.value is not None
