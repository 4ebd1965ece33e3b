"""Attachments: small text files that a chain carries. Of a stranger's chain, their paths are a stranger's."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from odfchain.errors import NameCollisionError, StoreError, UsageError
from odfchain.limits import LIMITS
from odfchain.odf.events import AttachmentEmbedded, AttachmentsEmbedded, DatasetSnapshot, SetAttachments
from odfchain.storage import fsio
from odfchain.text import one_line, printable

_NAME_BYTES = 255  # of a name in a folder, on every common file system
_PATH_BYTES, _DEPTH = 512, 32


def path_fault(path: str) -> str | None:
    """What is wrong with an attachment's path; None where it is the path of a file below a folder."""
    names = path.split("/")
    good = printable(path, _PATH_BYTES) == path and {"", ".", ".."}.isdisjoint(names) and len(names) <= _DEPTH
    if good and max(len(name.encode()) for name in names) <= _NAME_BYTES:
        return None
    return f"{one_line(path)!r} is not the path of a file below a folder, like docs/README.md"


def _first_fault(paths: Sequence[str]) -> str | None:
    faults = (fault for path in paths if (fault := path_fault(path)) is not None)
    twice = (f"{one_line(p)!r} is attached twice" for p, count in Counter(paths).items() if count > 1)
    return next(faults, None) or next(twice, None)


def read_files(given: Sequence[str]) -> tuple[AttachmentEmbedded, ...]:
    """Files as attachments: each `FILE` has its name as its path, `PATH=FILE` another.

    Raises:
        UsageError: there is no such file, it is no text, or it is too long for a block.
    """
    items = []
    for text in given:
        path, is_named, rest = text.partition("=")
        file = Path(rest if is_named and not Path(text).exists() else text)
        if not file.is_file():
            raise fsio.no_file(file)
        data = fsio.read_start(file, LIMITS.block_bytes + 1) or b""
        if len(data) > LIMITS.block_bytes:
            raise UsageError(f"{file}: an attachment has at most {LIMITS.block_bytes:,} bytes")
        try:
            content = data.decode()
        except UnicodeDecodeError as error:
            hint = "an attachment is text; other files can be linked from it"
            raise UsageError(f"{file}: not UTF-8 (byte {error.start:,})", hint=hint) from None
        items.append(AttachmentEmbedded(path=path if str(file) != text else file.name, content=content))
    return tuple(items)


def with_files(
    snapshot: DatasetSnapshot, files: Sequence[AttachmentEmbedded], present: Sequence[AttachmentEmbedded] = ()
) -> DatasetSnapshot:
    """The definition with the files beside its own attachments.

    Where it has none of its own, those that are `present` stay, but for the paths of the files.

    Raises:
        UsageError: two have one path, or one has no path below a folder.
    """
    own = [event for event in snapshot.metadata if isinstance(event, SetAttachments)]
    new = {item.path for item in files}
    first = own[-1].attachments.items if own else tuple(item for item in present if item.path not in new)
    if fault := _first_fault([item.path for item in (*(first if own else ()), *files)]):
        raise UsageError(fault, hint="--attach PATH=FILE gives a file another path")
    event = SetAttachments(attachments=AttachmentsEmbedded(items=(*first, *files)))
    # in its place, as faults name events by their number
    events = [event if own and each is own[-1] else each for each in snapshot.metadata]
    return replace(snapshot, metadata=(*events, *[event] * (not own)))


def write_files(items: Sequence[AttachmentEmbedded], folder: Path) -> list[Path]:
    """Write attachments below a folder, whatever their paths are: nothing else there is touched.

    Raises:
        StoreError: a path leads elsewhere, or two cannot be in one folder; nothing is written.
        NameCollisionError: a file of that path exists; nothing is written.
    """
    paths = [item.path for item in items]
    fault, folders = _first_fault(paths), set[str]()
    if fault is None:
        folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        both = folders.intersection(paths)
        fault = f"{one_line(min(both))!r} is a file and a folder" if both else None
    if fault is not None:
        hint = "`odfchain inspect attachments` lists them, and Python's `attachments()` has their texts"
        raise StoreError(f"nothing was written: {fault}", hint=hint)
    for name in (*sorted(folders - {"."}), *paths):
        place = folder / name
        # a link in the folder would lead elsewhere
        if os.path.lexists(place) and (name not in folders or place.is_symlink() or not place.is_dir()):
            raise NameCollisionError(f"{place} already exists", hint="name a new folder with --to")
    for item in items:
        target = folder / item.path
        fsio.make_folder(target.parent)
        if not fsio.create_file(target, item.content.encode()):
            raise NameCollisionError(f"{target} already exists", hint="name a new folder with --to")
    return [folder / path for path in paths]
