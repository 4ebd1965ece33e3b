"""Objects in a folder that come from elsewhere when somebody wants to read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from odfchain.ids.multihash import Multihash
from odfchain.store.local import LocalObjectStore


class BroughtObjectStore(LocalObjectStore):
    """A folder that `bring` adds to: whoever asks for an object gets it, and `names` are those that are here.

    `bring` puts an object into the store it is given, or leaves it as it is when there is none elsewhere.
    """

    on_demand = True

    def __init__(self, folder: Path, bring: Callable[[LocalObjectStore, Multihash], None]) -> None:
        super().__init__(folder)
        self._bring = bring

    def _brought(self, name: Multihash) -> None:
        if not super().contains(name):
            self._bring(LocalObjectStore(self._folder), name)

    def contains(self, name: Multihash) -> bool:
        """Whether the object is here now."""
        self._brought(name)
        return super().contains(name)

    def size(self, name: Multihash) -> int:
        """Size of the object's file [bytes]."""
        self._brought(name)
        return super().size(name)

    def read(self, name: Multihash, most: int, what: str) -> bytes:
        """As `LocalObjectStore`."""
        self._brought(name)
        return super().read(name, most, what)

    def path(self, name: Multihash) -> Path:
        """As `LocalObjectStore`."""
        self._brought(name)
        return super().path(name)

    def verified_path(self, name: Multihash) -> Path:
        """As `LocalObjectStore`."""
        self._brought(name)
        return super().verified_path(name)
