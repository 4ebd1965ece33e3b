"""Where the copies of a relocation go, and what they are called; nothing is asked of any store.

A copy has one name for one pair of ids: bytes that stores or people read differently are escaped, so that two
pairs never become one object. What would lose an object is refused before anything is copied.
Source: RFC-047.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath

from odfchain.assets.hrefs import checked_location, href_of
from odfchain.assets.lock_table import AssetRow, Facts
from odfchain.errors import AssetError, InvalidIdError, NameCollisionError
from odfchain.store.locations import Location
from odfchain.text import one_line

JOBS = 4
_KEPT = re.compile(rb"[A-Za-z0-9._=-]")


class Layout(Enum):
    """How copies are called."""

    ITEM_ASSET = "item-asset"
    """`<item_id>/<asset_key>`, with the source's suffix."""
    SOURCE_KEY = "source-key"
    """As the source is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocateOptions:
    """How objects are copied."""

    layout: Layout = Layout.ITEM_ASSET
    prefix: Location | None = None
    """With `SOURCE_KEY`: what is left out of the beginnings of sources' keys."""
    overwrite: bool = False
    checksum: bool = False
    """Whether the new rows have SHA-256 of the bytes that were copied."""
    jobs: int = JOBS
    relative_to: Path | None = None
    """The folder of the new lock: copies in it are named relative to it."""
    sources_in: Path | None = None
    """The folder of the lock whose objects are copied."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row, and where its copy goes."""

    row: AssetRow
    target: Location


def usual_layout(rows: Iterable[AssetRow]) -> Layout:
    """How copies are called where nobody says: those of a dataset's own slices as their sources."""
    return Layout.SOURCE_KEY if all(map(_is_own_slice, rows)) else Layout.ITEM_ASSET


def _is_own_slice(row: AssetRow) -> bool:
    checksum = row.facts.file_checksum
    return (
        checksum is not None
        and row.item_id.startswith("did:odf:")
        and row.asset_key.endswith(f"/f{checksum}")
    )


def plan(rows: Iterable[AssetRow], to: Location, options: RelocateOptions) -> list[Planned]:
    """Where each copy goes.

    Raises:
        NameCollisionError: two rows would have the same target, or a copy would replace another's source.
    """
    chosen = list(rows)
    sources = {place_of(row.location, options.sources_in): row for row in chosen}
    found, taken = list[Planned](), dict[str, AssetRow]()
    for row in chosen:
        target = _target_of(row, to, options)
        other = taken.setdefault(target.key, row)
        if other is not row:
            raise NameCollisionError(
                f"{one_line(row.label)} and {one_line(other.label)} would both become {href_of(target)}",
                hint="--layout item-asset names copies by item and asset",
            )
        if target in sources and target != place_of(row.location, options.sources_in):
            raise NameCollisionError(
                f"{one_line(row.label)} would replace the source of {one_line(sources[target].label)}",
                hint="name another place with --to",
            )
        found.append(Planned(row, target))
    return found


def place_of(location: Location, folder: Path | None) -> Location:
    """A location as it is named from anywhere; `folder` is that of its lock."""
    if location.store != "file" or folder is None:
        return location
    return replace(location, key=str(folder / location.key))


def alike_in_folders(planned: Sequence[Planned]) -> tuple[Planned, Planned] | None:
    """Two copies whose names are one where a file system does not tell letters' case or forms apart."""
    taken = dict[str, Planned]()
    for item in planned:
        name = unicodedata.normalize("NFC", item.target.key).casefold()
        other = taken.setdefault(name, item) if item.target.store == "file" else item
        if other is not item:
            return other, item
    return None


def described_plan(planned: Sequence[Planned], options: RelocateOptions) -> list[AssetRow]:
    """The rows as they would be: a plan proves nothing, so of the facts only the size stays."""
    return [
        replace(each.row, location=shown(each.target, options), facts=Facts(each.row.facts.size_bytes))
        for each in planned
    ]


def file_name(item_id: str, asset_key: str, source_key: str) -> str:
    """`<item_id>/<asset_key>` with the source's suffix; other pairs have other names, but for the suffix."""
    suffix = PurePosixPath(source_key).suffix
    name = asset_key if asset_key.lower().endswith(suffix.lower()) else asset_key + suffix
    return f"{_segment(item_id)}/{_segment(name)}"


def _segment(text: str) -> str:
    shown = "".join(
        chr(byte) if _KEPT.match(bytes([byte])) else f"~{byte:02x}"
        for byte in text.encode(errors="surrogatepass")
    )
    return shown.replace(".", "~2e") if not shown.strip(".") else shown


def _target_of(row: AssetRow, to: Location, options: RelocateOptions) -> Location:
    key = _key_of(row, options)
    try:
        below = to.below(key)
        return checked_location(below.store, below.container, below.endpoint, below.key)
    except (AssetError, InvalidIdError) as error:
        raise AssetError(f"{one_line(row.label)}: what its copy would be called: {error.message}") from None


def _key_of(row: AssetRow, options: RelocateOptions) -> str:
    key = row.location.key
    if options.layout is Layout.ITEM_ASSET:
        return file_name(row.item_id, row.asset_key, key)
    prefix = options.prefix
    if prefix is None:
        return key.removeprefix("/")
    same = (prefix.store, prefix.container) == (row.location.store, row.location.container)
    start = f"{prefix.key}/" if prefix.key and not prefix.key.endswith("/") else prefix.key
    if not same or not key.startswith(start):
        raise AssetError(f"{one_line(row.label)}: {href_of(row.location)} does not begin with the prefix")
    return key[len(start) :]


def shown(target: Location, options: RelocateOptions) -> Location:
    """A target as the new lock names it."""
    folder = options.relative_to
    if target.store != "file" or folder is None or not Path(target.key).is_relative_to(folder):
        return target
    return replace(target, key=Path(target.key).relative_to(folder).as_posix())
