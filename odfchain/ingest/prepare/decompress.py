"""Unpacking: a `Decompress` step, from one file to one file.

The step's format says what is expected. When the bytes carry the magic number of another single-file format
(gzip, zstd, bzip2, xz), that one is used and a note says so: publishers change their compression, and the
specification has no names for the newer ones. Only zip is not taken for gzip, because it may hold many files.
Source: specification "PrepStep::Decompress"; "subPath" may be a glob.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import accumulate
from lzma import LZMAError
from operator import or_
from pathlib import Path
from typing import BinaryIO

from odfchain.errors import PrepareError
from odfchain.ingest.prepare.compression_formats import Codec, codec_of, decoded
from odfchain.ingest.prepare.sink import (
    CHUNK_BYTES,
    BoundedOutput,
    PrepareLimits,
    bounded_output,
    file_size,
    open_source,
    read_chunk,
    unreadable,
)
from odfchain.limits import INPUT
from odfchain.model.enums import CompressionFormat
from odfchain.model.sources import PrepStepDecompress
from odfchain.progress import Progress

_SHOWN = 5
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_ENCRYPTED = 0x1
_SMALL_READ = 4 << 10
_RESOURCE_FORKS = "__MACOSX/"


def decompress(
    step: PrepStepDecompress,
    source: Path,
    target: Path,
    *,
    name: str,
    limits: PrepareLimits,
    progress: Progress,
) -> None:
    """Write the unpacked content of `source` to the new file `target`, or nothing at all.

    Raises:
        PrepareError: another format, corrupt or encrypted data, no or several fitting entries, a bomb.
        StoreError: there is no room for the result.
    """
    with open_source(source, name) as stream:
        head = read_chunk(stream, name, 8)
        stream.seek(0)
        codec = codec_of(head)
        progress.phase(f"unpacking {name}", file_size(stream))
        if codec is not None and (step.format is CompressionFormat.GZIP or step.sub_path is None):
            _note_surprises(step, codec, name, progress)
            _unpack_stream(codec, stream, target, name, limits, progress)
        elif (
            codec is None
            and step.format is CompressionFormat.ZIP
            # a program that unpacks itself has its archive at the end
            and (head.startswith(_ZIP_MAGIC) or zipfile.is_zipfile(stream))
        ):
            _unpack_zip(stream, step.sub_path, target, name, limits, progress)
        else:
            raise _unexpected(step, codec, head, name)


def _note_surprises(step: PrepStepDecompress, codec: Codec, name: str, progress: Progress) -> None:
    if codec is not Codec.GZIP or step.format is not CompressionFormat.GZIP:
        progress.note(
            f"{name}: the manifest says {step.format.value}, the file is {codec.value}: read as such"
        )
    if step.sub_path is not None:
        progress.note(f"{name}: subPath {step.sub_path!r} has no meaning for {codec.value}")


def _unexpected(step: PrepStepDecompress, codec: Codec | None, head: bytes, name: str) -> PrepareError:
    if not head:
        return PrepareError(f"{name}: is empty, a {step.format.value} file was expected")
    if codec is not None:
        return PrepareError(
            f"{name}: is {codec.value}, which has no entry {step.sub_path!r}; Zip was expected"
        )
    if head.startswith(_ZIP_MAGIC):
        return PrepareError(f"{name}: is a zip archive, Gzip was expected", hint="write `format: Zip`")
    return PrepareError(
        f"{name}: is not a {step.format.value} file (it begins with {head.hex(' ')})",
        hint="remove the Decompress step if the source is not compressed",
    )


def _unpack_stream(
    codec: Codec, stream: BinaryIO, target: Path, name: str, limits: PrepareLimits, progress: Progress
) -> None:
    def pieces() -> Iterator[bytes]:
        while piece := read_chunk(stream, name):
            yield piece
            progress.advance(len(piece))

    def head_at(offset: int) -> bytes:
        stream.seek(offset)
        return read_chunk(stream, name, 8)

    with bounded_output(target, name, limits, input_bytes=file_size(stream)) as output:
        for data in decoded(codec, pieces(), name, head_at):
            output.write(data)


# --- zip -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _zip_errors(name: str) -> Iterator[None]:
    """Everything that the zip reader and its decoders raise on bytes that are not as they should be."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, LZMAError, struct.error, EOFError, ValueError) as error:
        reason = str(error) or "it ends too early"
        raise PrepareError(f"{name}: the zip archive is corrupt: {reason}") from error
    except (NotImplementedError, RuntimeError) as error:
        raise PrepareError(f"{name}: the zip archive cannot be unpacked: {error}") from error
    except OSError as error:
        if error.errno is None:  # what the bzip2 decoder raises
            raise PrepareError(f"{name}: the zip archive is corrupt: {error}") from error
        raise unreadable(error, name) from error


def _unpack_zip(
    stream: BinaryIO, sub_path: str | None, target: Path, name: str, limits: PrepareLimits, progress: Progress
) -> None:
    with _zip_errors(name):
        archive = zipfile.ZipFile(stream)
    with archive:
        entries = archive.infolist()
        if len(entries) > INPUT.archive_members:
            raise PrepareError(
                f"{name}: {len(entries):,} members in the archive, at most {INPUT.archive_members:,} are read"
            )
        entry = _pick(entries, sub_path, name)
        what = f"{name}: entry {entry.filename!r}"
        if entry.flag_bits & _ENCRYPTED:
            raise PrepareError(f"{what} is encrypted", hint="passwords are not supported")
        size = min(entry.compress_size, file_size(stream))
        with bounded_output(target, what, limits, input_bytes=size) as output:
            _copy_entry(archive, entry, stream, output, what, progress)


def _copy_entry(
    archive: zipfile.ZipFile,
    entry: zipfile.ZipInfo,
    stream: BinaryIO,
    output: BoundedOutput,
    name: str,
    progress: Progress,
) -> None:
    # for bzip2 and lzma the library decodes all that it has read, however much comes out of it
    bounded = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    chunk = CHUNK_BYTES if bounded else _SMALL_READ
    with _zip_errors(name):
        content = archive.open(entry)
    with content:
        position = stream.tell()
        while True:
            with _zip_errors(name):
                data = content.read(chunk)
            if not data:
                break
            output.write(data)
            before, position = position, stream.tell()
            progress.advance(position - before)


def _pick(entries: list[zipfile.ZipInfo], sub_path: str | None, name: str) -> zipfile.ZipInfo:
    """The one entry that is meant; its name is only compared, never used as a path."""
    files = [entry for entry in entries if not entry.is_dir()]
    found = [entry for entry in files if entry.filename == sub_path]
    if not found:
        # what macOS adds beside every file is never the data
        files = [entry for entry in files if not entry.filename.startswith(_RESOURCE_FORKS)]
        found = files if sub_path is None else [e for e in files if glob_matches(sub_path, e.filename)]
    if len(found) == 1:
        return found[0]
    if found:
        which = "the archive has" if sub_path is None else f"subPath {sub_path!r} matches"
        raise PrepareError(
            f"{name}: {which} {len(found):,} files: {_listed(found)}",
            hint="name one of them with `subPath`; a source is one file",
        )
    if sub_path is None or not files:
        raise PrepareError(f"{name}: the archive has no files")
    raise PrepareError(
        f"{name}: subPath {sub_path!r} matches none of its {len(files):,} files: {_listed(files)}"
    )


def _listed(entries: list[zipfile.ZipInfo]) -> str:
    shown = ", ".join(repr(entry.filename) for entry in entries[:_SHOWN])
    return shown + (", …" if len(entries) > _SHOWN else "")


def glob_matches(pattern: str, path: str) -> bool:
    """Whether a glob names the path of an entry.

    `*`, `?` and `[…]` stay within one folder, the part `**` stands for any folders. A pattern
    without `/` names files in any folder, since archives often wrap their content in one.
    """
    if "/" not in pattern:
        return fnmatchcase(path.rpartition("/")[2], pattern)
    return _parts_match(pattern.split("/"), path.split("/"))


def _parts_match(patterns: list[str], parts: list[str]) -> bool:
    """Whether all parts are matched; takes patterns times parts steps, however many `**` there are."""
    # for every beginning of the path: whether the patterns so far match it
    matched = [True] + [False] * len(parts)
    for pattern in patterns:
        if pattern == "**":
            matched = list(accumulate(matched, or_))
        else:
            fits = [
                before and fnmatchcase(part, pattern) for before, part in zip(matched, parts, strict=False)
            ]
            matched = [False, *fits]
        if not any(matched):
            return False
    return matched[-1]
