"""The members of a signed payload, each read as exactly what it has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from odfchain.errors import InvalidIdError, SignatureError, StoreError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.limits import ATTEST
from odfchain.model.timestamp import Timestamp
from odfchain.store.interfaces import check_object_name
from odfchain.trust.problems import Problem

_T = TypeVar("_T")

_MAX_SEQUENCE = 2**64 - 1
_MAX_CHECK = 999


class Members:
    """The members of a payload: exactly the known ones, each read as what it has to be."""

    def __init__(self, payload: dict[str, Any], names: set[str]) -> None:
        if payload.keys() != names:
            raise malformed(f"its members are not {', '.join(sorted(names))}")
        self._payload = payload

    def text(self, name: str) -> str:
        """Text that can be printed."""
        value = self._payload[name]
        if not isinstance(value, str) or not 0 < len(value) <= ATTEST.statement_text:
            raise malformed(f"{name!r} is not a text of 1 to {ATTEST.statement_text} characters")
        if not value.isprintable():
            raise malformed(f"{name!r} has characters that cannot be printed")
        return value

    def number(self, name: str, largest: int = _MAX_SEQUENCE) -> int:
        """A number from 0 on."""
        return _number(self._payload[name], name, 0, largest)

    def items(self, name: str) -> list[Any]:
        """A list."""
        value = self._payload[name]
        if not isinstance(value, list) or len(value) > ATTEST.statement_items:
            raise malformed(f"{name!r} is not a list of at most {ATTEST.statement_items}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """Numbers of checks, ascending."""
        found = [_number(value, name, 1, _MAX_CHECK) for value in self.items(name)]
        if found != sorted(set(found)):
            raise malformed(f"the numbers of {name!r} are not in ascending order")
        return tuple(found)

    def id(self, name: str) -> DatasetId:
        """The id of a dataset."""
        return self._spelled(name, DatasetId.parse)

    def time(self, name: str) -> Timestamp:
        """A moment."""
        return self._spelled(name, Timestamp.parse)

    def hash(self, name: str) -> Multihash:
        """The name of an object."""
        value = self._spelled(name, Multihash.parse)
        try:
            check_object_name(value)
        except StoreError:
            raise malformed(f"{name!r} is not a sha3-256 hash") from None
        return value

    def _spelled(self, name: str, parse: Callable[[str], _T]) -> _T:
        """Values with many spellings are written in one."""
        text = self._payload[name]
        try:
            value = parse(text if isinstance(text, str) else "")
        except InvalidIdError:
            raise malformed(f"{name!r} is malformed") from None
        if str(value) != text:
            raise malformed(f"{name!r} is not spelled as it is printed")
        return value


def _number(value: Any, name: str, smallest: int, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise malformed(f"{name!r} is not a number from {smallest} to {largest}")
    return value


def malformed(why: str) -> SignatureError:
    """The error of a statement whose payload is not what it has to be."""
    return SignatureError(Problem.DAMAGED, f"a malformed statement: {why}")
