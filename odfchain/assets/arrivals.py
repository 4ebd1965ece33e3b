"""What has arrived of a relocation, in a file beside the lock that is to come.

A later run of the same relocation copies the rest. A line is believed if it is whole, and if it speaks of the
same row and the same target; and its copy is looked at again. Source: RFC-047.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from odfchain.assets.lock_table import Facts
from odfchain.assets.relocation_plan import Planned
from odfchain.store import fsio

_LONGEST = 1 << 30
"""Bytes that are read of such a file."""


class Arrivals:
    """What has arrived; without a path nothing is remembered."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        data = (None if path is None else fsio.read_start(path, _LONGEST)) or b""
        self._known = dict(_believed(data))
        self._is_cut = not data.endswith(b"\n") and data != b""

    def facts_of(self, item: Planned) -> Facts | None:
        """The facts of a copy that an earlier run made of the same source."""
        return self._known.get(_name_of(item))

    def add(self, item: Planned, facts: Facts) -> None:
        """Durably write down that a copy is there."""
        if self._path is None:
            return
        entry = {"copy": _name_of(item), "facts": asdict(facts)}
        line = json.dumps(entry | {"sum": _sum(entry)}).encode() + b"\n"
        fsio.make_folder(self._path.parent)
        with self._lock, fsio.storage_errors(self._path), self._path.open("ab") as file:
            file.write(b"\n" + line if self._is_cut else line)  # a line that a crash has cut stays alone
            self._is_cut = False
            file.flush()
        fsio.sync_file(self._path)


def _believed(data: bytes) -> Iterator[tuple[str, Facts]]:
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # cut, or damaged
            found = json.loads(line)
            if found.pop("sum") == _sum(found):
                yield str(found["copy"]), Facts(**found["facts"])


def _sum(entry: dict[str, Any]) -> str:
    return hashlib.sha3_256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _name_of(item: Planned) -> str:
    parts = (item.row.key, asdict(item.row.location), asdict(item.row.facts), asdict(item.target))
    return hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()
