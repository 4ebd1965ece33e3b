"""The checkpoint of a stateful transformation: one file, the same bytes for the same state on any machine.

It is an uncompressed tar (the Parquet inside is compressed): `manifest.json`, then `rows/NAME.parquet` sorted
by name. The manifest is JSON with sorted keys and without a clock. Headers are USTAR and follow from name and
size alone, as `tarfile` writes them (the same bytes from Python 3.9 on; a test pins them). What is read must
have exactly the form that is written, so links, devices, sparse files and extended headers need no rules of
their own.
Source: POSIX.1-1988 "ustar Interchange Format"; sizes from 8 GiB as GNU tar writes them (base 256). RFC-019.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, ClassVar

from odfchain.errors import CodecError, EngineError, ManifestError
from odfchain.odf.canonical_json import strict_json
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.tree import COUNT, Form, Rule, from_tree, to_tree
from odfchain.storage import fsio

FORMAT = 2
"""The form of manifest and archive that is written by the newest rules; another number is another form."""

_COUNTS = ("late", "unmatched", "waiting")
_LACKING: dict[int, tuple[str, ...]] = {1: ("unmatched", "waiting"), 2: ()}
"""The counts that a manifest lacks, by its format."""

MANIFEST_NAME = "manifest.json"

_FORM = Form(snake_case=True, nulls=True)
_Count = Annotated[int, COUNT]
_Moment = Annotated[int, range(-(1 << 63), 1 << 63)]
_Text = Annotated[str, Rule("a text that is not empty", bool)]
_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_CHUNK_BYTES = 1 << 20
_OCTAL_LIMIT = 1 << 33
_PART_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_ENTRY_NAME = re.compile(r"rows/([a-z0-9_-]{1,64})\.parquet")


@dataclass(frozen=True, slots=True)
class _Numbered:
    FORM: ClassVar = Form(others=True)
    format: _Count


@dataclass(frozen=True, slots=True)
class InputMark:
    """Position of an input."""

    FORM: ClassVar = _FORM
    dataset_id: DatasetId
    watermark_ms: _Moment | None
    """No later record of the input is older than this [ms since 1970]."""


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table of the state; its schema is in its Parquet file."""

    FORM: ClassVar = _FORM
    name: _Text
    rows: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The first entry of a checkpoint. `parts` are kept sorted by name."""

    FORM: ClassVar = _FORM
    engine_version: _Text
    kind: _Text
    """The kind of the query; a state has meaning for its own kind only."""
    query_hash: Multihash
    step: _Count
    """Steps of the transformation so far [count]."""
    inputs: tuple[InputMark, ...]
    """In the order of the query's inputs."""
    watermark_ms: _Moment | None
    """The input watermark that the state is as of."""
    output_watermark_ms: _Moment | None
    parts: tuple[StateTable, ...]
    late: Mapping[str, _Count] = field(default_factory=dict)
    """Rows that came too late in this step, by the alias of their input."""
    unmatched: Mapping[str, _Count] = field(default_factory=dict)
    """Rows of this step that would take back what is not remembered, by the alias of their input."""
    waiting: Mapping[str, _Count] = field(default_factory=dict)
    """Rows that wait for the watermark after this step, by the alias of their input."""
    format: _Count = FORMAT

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(sorted(self.parts, key=lambda part: part.name)))

    def to_bytes(self) -> bytes:
        """The manifest as JSON: the same bytes for equal manifests."""
        left_out = _LACKING[self.format]
        tree = {name: value for name, value in to_tree(self).items() if name not in left_out}
        return json.dumps(tree, sort_keys=True, indent=1).encode("ascii") + b"\n"

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """The manifest in these bytes; every error begins with `where`."""
        try:
            tree = strict_json(data)
            number = from_tree(_Numbered, tree).format
            if number not in _LACKING:
                raise EngineError(
                    f"{where}: the checkpoint has format {number}, this version reads formats up to {FORMAT}",
                    hint="run the version of the engine that the transform names, or reset the dataset",
                )
            for name in _COUNTS:
                if (name in tree) == (name in _LACKING[number]):
                    what = "is unknown" if name in tree else "is missing"
                    raise ManifestError(f"the property {name!r} {what}")  # noqa: TRY301 - is located
            manifest = from_tree(cls, tree)
        except ManifestError as error:
            raise CodecError(f"{where}: {error}") from None
        for part, following in itertools.pairwise(manifest.parts):
            if part.name == following.name:
                raise CodecError(f"{where}: parts: {part.name!r} comes twice")
        return manifest

    def write(self, path: Path, parts: Mapping[str, Path]) -> None:
        """Durably write the checkpoint under its name, all of it or nothing; parts are streamed."""
        text = self.to_bytes()
        Manifest.parse(text, str(path))
        names = [part.name for part in self.parts]
        if set(names) != set(parts):
            listed, given = ", ".join(names), ", ".join(sorted(parts))
            raise EngineError(f"{path}: the manifest lists the parts [{listed}], given are [{given}]")
        for name in names:
            if not _PART_NAME.fullmatch(name):
                raise EngineError(f"{path}: part name {name!r} (lower-case letters, digits, `_` and `-`)")
        with fsio.replaced(path) as out:
            _write_entry(out, MANIFEST_NAME, [text], len(text))
            for name in names:
                with fsio.storage_errors(parts[name]):
                    size = parts[name].stat().st_size
                _write_entry(out, _entry_name(name), _chunks(parts[name]), size)
            out.write(_ZEROS * 2)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest of a checkpoint; nothing after it is read."""
        with _opened(path) as (stream, total):
            block = _read(stream, _BLOCK, path)
            return _read_manifest(stream, _entry(block, 0, total, path), path)

    @classmethod
    def unpack(cls, path: Path, folder: Path) -> tuple[Manifest, dict[str, Path]]:
        """The manifest and, unpacked into the empty `folder`, the parts by name; nothing is left on failure.

        Raises:
            CodecError: the file is not a checkpoint in exactly the form that is written.
            EngineError: a checkpoint of another format, or the folder is not empty.
        """
        # the content of the parts is not read here
        with fsio.storage_errors(folder):
            if any(folder.iterdir()):
                raise EngineError(f"{folder}: is not empty, a checkpoint cannot be unpacked there")
        with _opened(path) as (stream, total):
            entries = _scan(stream, total, path)
            manifest = _read_manifest(stream, entries[0], path)
            names = [_part_name(entry) for entry in entries[1:]]
            listed = [part.name for part in manifest.parts]
            for name in (*listed, *names):
                if name not in names:
                    raise CodecError(f"{path}: part {name!r} of the manifest is missing")
                if name not in listed:
                    raise CodecError(f"{path}: entry {_entry_name(name)!r} is not in the manifest")
            unpacked: dict[str, Path] = {}
            try:
                for name, entry in zip(names, entries[1:], strict=True):
                    target = folder / f"{name}.parquet"
                    unpacked[name] = target
                    _unpack(stream, entry, target, path)
            except BaseException:
                for target in unpacked.values():
                    fsio.remove_quietly(target)
                raise
        return manifest, unpacked


MANIFEST_BYTES = 1 << 20
"""Limit of a manifest [bytes]; it is read into memory."""
MOST_PARTS = 1_000
"""Parts of one checkpoint [count]; each becomes a file in one folder, and the file bounds what is in them."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    start: int
    """The offset of its content in the file."""
    size: int


def _entry_name(part: str) -> str:
    return f"rows/{part}.parquet"


def _part_name(entry: _Entry) -> str:
    return entry.name.removeprefix("rows/").removesuffix(".parquet")


def _header(name: str, size: int) -> bytes:
    # fixed mode, owner and time: the same content must give the same bytes
    info = tarfile.TarInfo(name)
    if size < _OCTAL_LIMIT:
        info.size = size
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    head = info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")  # which has no larger sizes itself
    head = head[:124] + b"\x80" + size.to_bytes(11, "big") + head[136:]
    checksum = sum(head[:148]) + 8 * 0x20 + sum(head[156:])  # it counts itself as blanks
    return head[:148] + b"%06o\0 " % checksum + head[156:]


def _padding(size: int) -> int:
    return -size % _BLOCK


def _write_entry(out: BinaryIO, name: str, chunks: Iterator[bytes] | list[bytes], size: int) -> None:
    out.write(_header(name, size))
    written = 0
    for chunk in chunks:
        out.write(chunk)
        written += len(chunk)
    if written != size:
        raise EngineError(f"{name}: had {size} bytes and now has {written}, it changed while it was read")
    out.write(bytes(_padding(size)))


def _chunks(path: Path) -> Iterator[bytes]:
    with fsio.storage_errors(path), path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    # anything but a plain file (a FIFO, a device) is refused before it can block
    with fsio.storage_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CodecError(f"{path}: is not a plain file")
        with os.fdopen(fd, "rb", closefd=False) as stream:
            yield stream, found.st_size
    finally:
        os.close(fd)


def _read(stream: BinaryIO, count: int, path: Path) -> bytes:
    with fsio.storage_errors(path):
        data = stream.read(count)
    if len(data) != count:
        raise CodecError(f"{path}: the checkpoint is cut short")
    return data


def _scan(stream: BinaryIO, total: int, path: Path) -> list[_Entry]:
    # no content is read here
    entries: list[_Entry] = []
    position = 0
    while (block := _read(stream, _BLOCK, path)) != _ZEROS:
        entry = _entry(block, position, total, path)
        if entries:
            _check_order(entry, entries, path)
        entries.append(entry)
        position = entry.start + entry.size + _padding(entry.size)
        stream.seek(position)
    if not entries:
        raise CodecError(f"{path}: is not a checkpoint, it has no manifest")
    if total != position + 2 * _BLOCK or _read(stream, _BLOCK, path) != _ZEROS:
        raise CodecError(f"{path}: does not end after its last entry {entries[-1].name!r}")
    return entries


def _check_order(entry: _Entry, before: list[_Entry], path: Path) -> None:
    if entry.name == MANIFEST_NAME or entry.name == before[-1].name:
        raise CodecError(f"{path}: entry {entry.name!r} comes twice")
    if len(before) > MOST_PARTS:
        raise CodecError(f"{path}: has more than {MOST_PARTS:,} parts, from {entry.name!r} on")
    if len(before) > 1 and _part_name(entry) < _part_name(before[-1]):
        raise CodecError(f"{path}: entry {entry.name!r} is out of order")


def _entry(block: bytes, position: int, total: int, path: Path) -> _Entry:
    # exactly the one header form that is written; anything else is refused
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "backslashreplace")
    except tarfile.HeaderError as error:
        what = f"the header at byte {position} is damaged" if position else "is not a checkpoint"
        raise CodecError(f"{path}: {what} ({error})") from None
    name, size = info.name, info.size
    what = f"{path}: entry {name!r}"
    if block[156:157] != b"0":
        raise CodecError(f"{what} is not a regular file (type {block[156]:#04x})")
    if position == 0 and name != MANIFEST_NAME:
        raise CodecError(f"{what} comes first, {MANIFEST_NAME!r} was expected")
    if name != MANIFEST_NAME and not _ENTRY_NAME.fullmatch(name):
        raise CodecError(f"{what} has a name that is not allowed, like rows/NAME.parquet was expected")
    if size < 0 or _header(name, size) != block:
        raise CodecError(f"{what} has a header that is not of the expected form")
    start = position + _BLOCK
    if start + size + _padding(size) > total:
        raise CodecError(f"{what} should have {size:,} bytes, but the file ends before")
    return _Entry(name, start, size)


def _read_manifest(stream: BinaryIO, entry: _Entry, path: Path) -> Manifest:
    if entry.size > MANIFEST_BYTES:
        message = f"{path}: entry {entry.name!r} has {entry.size:,} bytes (at most {MANIFEST_BYTES:,})"
        raise CodecError(message)
    stream.seek(entry.start)
    text = _read(stream, entry.size, path)
    _check_padding(stream, entry, path)
    return Manifest.parse(text, f"{path}: {entry.name}")


def _unpack(stream: BinaryIO, entry: _Entry, target: Path, path: Path) -> None:
    stream.seek(entry.start)
    left = entry.size
    with fsio.storage_errors(target), target.open("xb") as out:
        while left:
            chunk = _read(stream, min(left, _CHUNK_BYTES), path)
            out.write(chunk)
            left -= len(chunk)
    _check_padding(stream, entry, path)


def _check_padding(stream: BinaryIO, entry: _Entry, path: Path) -> None:
    if any(_read(stream, _padding(entry.size), path)):
        raise CodecError(f"{path}: entry {entry.name!r} is followed by bytes that belong to nothing")
