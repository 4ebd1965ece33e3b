"""What the datasets in a store are called: one small object for each name, so that nobody takes one twice.

    names/<alias in lower case>         `did:odf:… <the alias as it was written>`; empty when it was given up

A name is taken by a conditional write. It is given up by one, too, and not by deleting: stores do not delete
conditionally, and a name that somebody else took meanwhile would be gone. A listing says which names are in
use (empty objects are not) and, by their entity tags, which of them are not known yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import InvalidIdError, NameCollisionError, ObjectNotFoundError, StoreError, TransferError
from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.limits import SHARING
from odfchain.store import fsio
from odfchain.transfer.object_space import Listed, ObjectSpace, Version, WriteRefusedError

_FOLDER = "names"
_BYTES = 1_024
_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Name:
    """A dataset and what it is called."""

    dataset_id: DatasetId
    alias: DatasetAlias

    @classmethod
    def parse(cls, key: str, data: bytes) -> Name | None:
        """The name in an object; None for one that was given up, or that means nothing."""
        words = data.decode("utf-8", "replace").split(" ")
        try:
            found = cls(DatasetId.parse(words[0]), DatasetAlias.parse(words[-1]))
        except InvalidIdError:
            return None
        return found if len(words) == 2 and found.alias.key == key else None

    def to_bytes(self) -> bytes:
        """The object's content."""
        return f"{self.dataset_id} {self.alias}".encode()


@dataclass(frozen=True, slots=True)
class SharedNames:
    """The names in a store; `cache` is a file with those that were read before."""

    space: ObjectSpace
    cache: Path

    def all(self) -> list[Name]:
        """Every name in use, by one listing and one request for each that is new or has changed."""
        listed = [each for each in self.space.listed(_FOLDER, SHARING.shared_names) if each.size]
        known = self._cached()
        old = {each.key: text for each in listed if (text := known.get(_tagged(each)))}
        new = [each.key for each in listed if each.key not in old]
        with ThreadPoolExecutor(SHARING.parallel, thread_name_prefix="names") as pool:
            read = dict(zip(new, pool.map(lambda key: self._read(key)[0], new), strict=True))
        texts = {**{key: text.encode() for key, text in old.items()}, **read}
        if new or len(known) != len(old):
            self._keep({_tagged(each): texts[each.key].decode("utf-8", "replace") for each in listed})
        return [name for key, data in texts.items() if (name := Name.parse(key, data))]

    def get(self, alias: DatasetAlias) -> Name | None:
        """What the store says now that a name means."""
        return Name.parse(alias.key, self._read(alias.key)[0])

    def claim(self, name: Name) -> None:
        """The name means this dataset from now on.

        Raises:
            NameCollisionError: it means another one.
        """
        data, version = self._read(name.alias.key)
        held = Name.parse(name.alias.key, data)
        if data == name.to_bytes():
            return
        if held is None or held.dataset_id == name.dataset_id:
            try:
                self._write(name.alias.key, name.to_bytes(), version)
            except WriteRefusedError:  # by another writer, or by our own request that was repeated
                if self._read(name.alias.key)[0] == name.to_bytes():
                    return
            else:
                return
        raise NameCollisionError(
            f"a dataset called {str(name.alias)!r} exists already in {self.space.where}",
            hint="choose another name, or delete or rename the existing dataset",
        )

    def give_up(self, name: Name) -> None:
        """The name is free, unless it means another dataset.

        Raises:
            AccessError, TransferError: from the store.
        """
        data, version = self._read(name.alias.key)
        held = Name.parse(name.alias.key, data)
        if held is None or held.dataset_id != name.dataset_id:
            return
        try:
            self._write(name.alias.key, b"", version)
        except WriteRefusedError:
            held = self.get(name.alias)
            if held is not None and held.dataset_id == name.dataset_id:
                raise TransferError(
                    f"{self.space.where}{_FOLDER}/{name.alias.key}: another writer changes it",
                    hint="run the command again",
                ) from None

    def _read(self, key: str) -> tuple[bytes, Version | None]:
        try:
            return self.space.read(f"{_FOLDER}/{key}", _BYTES)
        except ObjectNotFoundError:
            return b"", None

    def _write(self, key: str, data: bytes, version: Version | None) -> None:
        self.space.write(f"{_FOLDER}/{key}", data, "create" if version is None else version)

    def _cached(self) -> dict[str, str]:
        try:
            found = json.loads(fsio.read_start(self.cache, _CACHE_BYTES) or b"{}")
        except (ValueError, RecursionError, StoreError):
            return {}
        wanted = isinstance(found, dict) and all(isinstance(text, str) for text in found.values())
        return found if wanted else {}

    def _keep(self, texts: dict[str, str]) -> None:
        fsio.replace_file(self.cache, json.dumps(texts).encode())


def _tagged(listed: Listed) -> str:
    """What a name is kept under: a listing that says nothing of its content is never believed twice."""
    return f"{listed.key} {listed.tag}" if listed.tag else ""


def by_id(names: Iterable[Name]) -> dict[DatasetId, Name]:
    """The names of datasets; of two, which a renaming that was killed leaves, the last one."""
    return {name.dataset_id: name for name in names}
