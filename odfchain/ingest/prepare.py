"""From the bytes of a source to the bytes that a reader takes, through the steps of the polling source.

Source: specification "PrepStep"; decisions in the comments of `decompress` and `pipe`.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import lzma
import os
import re
import selectors
import shlex
import signal
import struct
import subprocess
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from itertools import accumulate, groupby
from lzma import LZMAError
from operator import or_
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from odfchain.errors import IngestError
from odfchain.limits import INPUT
from odfchain.odf.enums import CompressionFormat
from odfchain.odf.sources import PrepStep, PrepStepDecompress, PrepStepPipe
from odfchain.progress import SILENT, Progress
from odfchain.storage.fsio import remove_quietly, storage_errors
from odfchain.text import one_line, printable

# Streaming decoders for gzip, zstd, bzip2 and xz. All members are decoded. Zero bytes between and after
# members are padding, anything else is an error. A decoder needs a few dozen MiB at most (RFC 1952; RFC 8878;
# .xz file format 1.2).

_OUTPUT_BYTES = 1 << 20
_LZMA_MEMORY = 512 << 20
_ZSTD_FEED = 2 << 10  # one call returns at most 128 KiB for every 4 bytes: 64 MiB


class Codec(Enum):
    """A single-file format."""

    GZIP = "gzip"
    ZSTD = "zstd"
    BZIP2 = "bzip2"
    XZ = "xz"


def codec_of(head: bytes) -> Codec | None:
    """The format whose magic number the bytes begin with."""
    if head.startswith(b"\x1f\x8b"):
        return Codec.GZIP
    if head.startswith(b"BZh") and head[3:4] in tuple(b"%d" % n for n in range(1, 10)):
        return Codec.BZIP2
    if head.startswith(b"\xfd7zXZ\x00"):
        return Codec.XZ
    skippable = len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"
    if head.startswith(b"\x28\xb5\x2f\xfd") or skippable:
        return Codec.ZSTD
    return None


class _Decoder(Protocol):
    """Decodes one member; fed with b"" as long as it does not need input."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(out) < max_length and not self._inner.unconsumed_tail
        return out


class _Zstd:
    """The library bounds no output, so its input is rationed."""

    def __init__(self) -> None:
        import zstandard

        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self._rest = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._rest

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data + self._rest

    def decompress(self, data: bytes, _max_length: int, /) -> bytes:
        data = self._rest + data if self._rest else data
        self._rest = data[_ZSTD_FEED:]
        return self._inner.decompress(data[:_ZSTD_FEED])


def _new_decoder(codec: Codec) -> _Decoder:
    if codec is Codec.BZIP2:
        return bz2.BZ2Decompressor()
    if codec is Codec.XZ:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)
    return _Gzip() if codec is Codec.GZIP else _Zstd()


def _errors(kind: Codec) -> tuple[type[Exception], ...]:
    if kind is Codec.ZSTD:
        import zstandard

        return (zstandard.ZstdError,)
    return {Codec.GZIP: (zlib.error,), Codec.XZ: (lzma.LZMAError,)}.get(kind, (OSError, ValueError, EOFError))


def _decoded(
    codec: Codec, pieces: Iterable[bytes], name: str, head_at: Callable[[int], bytes]
) -> Iterator[bytes]:
    # the bytes at an offset tell what follows a member from a broken member
    errors = _errors(codec)
    decoder: _Decoder | None = None
    read = start = 0  # offsets in the input: what was taken from `pieces`, and where the member begins
    for piece in pieces:
        read += len(piece)
        data = piece
        while True:
            if decoder is None:
                data = data.lstrip(b"\0") if read > len(data) or start else data
                if not data:
                    break
                start = read - len(data)
                decoder = _new_decoder(codec)
            try:
                out = decoder.decompress(data, _OUTPUT_BYTES)
            except errors as error:
                reason = str(error).rpartition(": ")[2] or "unknown reason"
                raise _broken(codec, name, start, head_at(start), reason) from error
            if out:
                yield out
            if decoder.eof:
                data, decoder = decoder.unused_data, None
                continue
            data = b""
            if decoder.needs_input:
                break
    if decoder is not None:
        raise _broken(codec, name, start, head_at(start), "it ends too early: the file is cut short")


def _broken(codec: Codec, name: str, start: int, head: bytes, reason: str) -> IngestError:
    if start and codec_of(head) is not codec:
        return IngestError(f"{name}: from byte {start:,} on, the file is not {codec.value} any more")
    where = f" (in the member that begins at byte {start:,})" if start else ""
    return IngestError(f"{name}: the {codec.value} data is corrupt{where}: {reason}")


# Output file of a prepare step: new, bounded in size, removed on failure.

CHUNK_BYTES = 1 << 20
RATIO_FREE_BYTES = 64 << 20
"""Output below this is never called a bomb, at any ratio [bytes]."""
MAX_RATIO = 1_000
"""Largest output of unpacking per byte of input beyond that: few bytes can unpack to more than a disk has."""


@dataclass(slots=True)
class BoundedOutput:
    """A file that refuses to grow beyond the limits."""

    stream: BinaryIO
    path: Path
    name: str
    max_bytes: int
    input_bytes: int | None = None
    """What the output is unpacked from [bytes]."""
    size: int = 0

    def write(self, data: bytes) -> None:
        """Append, in full or not at all."""
        size = self.size + len(data)
        if size > self.max_bytes:
            message = f"{self.name}: what comes out is larger than {self.max_bytes:,} bytes (limit max_bytes)"
            raise IngestError(message, hint="raise the limit if this much data is expected")
        if self.input_bytes is not None and size > max(RATIO_FREE_BYTES, MAX_RATIO * self.input_bytes):
            message = f"{self.name}: unpacks to more than {MAX_RATIO:,} times its size (limit max_ratio)"
            raise IngestError(message, hint="raise the limit if the data really compresses this well")
        with storage_errors(self.path):
            rest = memoryview(data)
            while rest:
                rest = rest[self.stream.write(rest) :]
        self.size = size


@dataclass(frozen=True, slots=True)
class _Step:
    """One step: the file it reads, the new file it writes, and what messages call the input."""

    source: Path
    target: Path
    name: str
    max_bytes: int
    progress: Progress

    def open(self) -> BinaryIO:
        try:
            return self.source.open("rb", buffering=0)
        except OSError as error:
            raise _unreadable(error, self.name) from error

    @contextlib.contextmanager
    def output(self, name: str, input_bytes: int | None = None) -> Iterator[BoundedOutput]:
        # removed again when the block inside fails
        with storage_errors(self.target):
            stream = self.target.open("xb", buffering=0)
        try:
            with stream:
                yield BoundedOutput(stream, self.target, name, self.max_bytes, input_bytes)
                with storage_errors(self.target):
                    stream.close()
        except BaseException:
            remove_quietly(self.target)
            raise


def _unreadable(error: OSError, name: str) -> IngestError:
    return IngestError(f"{name}: cannot be read: {error.strerror or error}")


def _read_chunk(stream: BinaryIO, name: str, size: int = CHUNK_BYTES) -> bytes:
    try:
        return stream.read(size)
    except OSError as error:
        raise _unreadable(error, name) from error


def _file_size(stream: BinaryIO) -> int:
    return os.fstat(stream.fileno()).st_size


# A `Decompress` step. The magic number decides among gzip, zstd, bzip2 and xz, with a note if it is not the
# declared format: publishers change their compression, and the specification has no names for newer ones. Zip
# must be declared, because it may hold many files (specification "PrepStep::Decompress"; `subPath` may be a
# glob).

_SHOWN = 5
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_ENCRYPTED = 0x1
_SMALL_READ = 4 << 10
_RESOURCE_FORKS = "__MACOSX/"


def _decompress(how: PrepStepDecompress, step: _Step) -> None:
    name = step.name
    with step.open() as stream:
        head = _read_chunk(stream, name, 8)
        stream.seek(0)
        codec = codec_of(head)
        step.progress.phase(f"unpacking {name}", _file_size(stream))
        if codec is not None and (how.format is CompressionFormat.GZIP or how.sub_path is None):
            _note_surprises(how, codec, step)
            _unpack_stream(codec, stream, step)
        elif (
            codec is None
            and how.format is CompressionFormat.ZIP
            # a program that unpacks itself has its archive at the end
            and (head.startswith(_ZIP_MAGIC) or zipfile.is_zipfile(stream))
        ):
            _unpack_zip(stream, how.sub_path, step)
        else:
            raise _unexpected(how, codec, head, name)


def _note_surprises(how: PrepStepDecompress, codec: Codec, step: _Step) -> None:
    note, name = step.progress.note, step.name
    if codec is not Codec.GZIP or how.format is not CompressionFormat.GZIP:
        note(f"{name}: the manifest says {how.format.value}, the file is {codec.value}: read as such")
    if how.sub_path is not None:
        note(f"{name}: subPath {how.sub_path!r} has no meaning for {codec.value}")


def _unexpected(step: PrepStepDecompress, kind: Codec | None, head: bytes, name: str) -> IngestError:
    if not head:
        return IngestError(f"{name}: is empty, a {step.format.value} file was expected")
    if kind is not None:
        return IngestError(f"{name}: is {kind.value}, which has no entry {step.sub_path!r}; Zip was expected")
    if head.startswith(_ZIP_MAGIC):
        return IngestError(f"{name}: is a zip archive, Gzip was expected", hint="write `format: Zip`")
    message = f"{name}: is not a {step.format.value} file (it begins with {head.hex(' ')})"
    return IngestError(message, hint="remove the Decompress step if the source is not compressed")


def _unpack_stream(codec: Codec, stream: BinaryIO, step: _Step) -> None:
    def pieces() -> Iterator[bytes]:
        while piece := _read_chunk(stream, step.name):
            yield piece
            step.progress.advance(len(piece))

    def head_at(offset: int) -> bytes:
        stream.seek(offset)
        return _read_chunk(stream, step.name, 8)

    with step.output(step.name, _file_size(stream)) as output:
        for data in _decoded(codec, pieces(), step.name, head_at):
            output.write(data)


# --- zip -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _zip_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, LZMAError, struct.error, EOFError, ValueError) as error:
        reason = str(error) or "it ends too early"
        raise IngestError(f"{name}: the zip archive is corrupt: {reason}") from error
    except (NotImplementedError, RuntimeError) as error:
        raise IngestError(f"{name}: the zip archive cannot be unpacked: {error}") from error
    except OSError as error:
        if error.errno is None:  # what the bzip2 decoder raises
            raise IngestError(f"{name}: the zip archive is corrupt: {error}") from error
        raise _unreadable(error, name) from error


def _unpack_zip(stream: BinaryIO, sub_path: str | None, step: _Step) -> None:
    name = step.name
    with _zip_errors(name):
        archive = zipfile.ZipFile(stream)
    with archive:
        entries = archive.infolist()
        if len(entries) > INPUT.archive_members:
            raise IngestError(
                f"{name}: {len(entries):,} members in the archive, at most {INPUT.archive_members:,} are read"
            )
        entry = _pick(entries, sub_path, name)
        what = f"{name}: entry {entry.filename!r}"
        if entry.flag_bits & _ENCRYPTED:
            raise IngestError(f"{what} is encrypted", hint="passwords are not supported")
        with step.output(what, min(entry.compress_size, _file_size(stream))) as output:
            _copy_entry(archive, entry, stream, output, what, step.progress)


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


def _pick(entries: list[zipfile.ZipInfo], glob: str | None, name: str) -> zipfile.ZipInfo:
    # the name is only compared, never used as a path
    files = [entry for entry in entries if not entry.is_dir()]
    found = [entry for entry in files if entry.filename == glob]
    if not found:
        # the files that macOS adds are never the data
        files = [entry for entry in files if not entry.filename.startswith(_RESOURCE_FORKS)]
        found = files if glob is None else [e for e in files if glob_matches(glob, e.filename)]
    if len(found) == 1:
        return found[0]
    if found:
        which = "the archive has" if glob is None else f"subPath {glob!r} matches"
        hint = "name one of them with `subPath`; a source is one file"
        raise IngestError(f"{name}: {which} {len(found):,} files: {_listed(found)}", hint=hint)
    if glob is None or not files:
        raise IngestError(f"{name}: the archive has no files")
    raise IngestError(f"{name}: subPath {glob!r} matches none of its {len(files):,} files: {_listed(files)}")


def _listed(entries: list[zipfile.ZipInfo]) -> str:
    shown = ", ".join(repr(entry.filename) for entry in entries[:_SHOWN])
    return shown + (", …" if len(entries) > _SHOWN else "")


def glob_matches(pattern: str, path: str) -> bool:
    """True if a glob names the path of an entry.

    `*`, `?` and `[…]` stay within one folder, the part `**` matches any folders. A pattern
    without `/` names files in any folder, since archives often wrap their content in one.
    """
    if "/" not in pattern:
        return fnmatchcase(path.rpartition("/")[2], pattern)
    return _parts_match(pattern.split("/"), path.split("/"))


def _parts_match(patterns: list[str], parts: list[str]) -> bool:
    # at most len(patterns) * len(parts) steps, however many `**` there are
    # for every beginning of the path: whether the patterns so far match it
    matched = [True] + [False] * len(parts)
    for glob in patterns:
        if glob == "**":
            matched = list(accumulate(matched, or_))
        else:
            fits = [before and fnmatchcase(part, glob) for before, part in zip(matched, parts, strict=False)]
            matched = [False, *fits]
        if not any(matched):
            return False
    return matched[-1]


# Consecutive `Pipe` steps as one pipeline, without a shell. Each program has its own process group, so that
# nothing survives the step, and a reader for its standard error. A manifest names the programs, so they get
# few environment variables (specification "PrepStep::Pipe").

TAIL_BYTES = 4 << 10
"""Length of the kept end of a program's standard error [bytes]."""

_TAIL_LINES = 5
_LAST_READS = 64  # a child that it left behind may write for ever
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
_WATCH_SECONDS = 0.1  # how soon a program that failed silently is noticed
_END_SECONDS = 0.01
_BROKEN_PIPE = (-signal.SIGPIPE, 128 + signal.SIGPIPE)  # the second is how a shell reports the first


class Tail:
    """The last words of a program on its standard error, which never blocks it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self._data = b""
        os.set_blocking(stream.fileno(), False)

    def listen(self) -> bool:
        """Take what there is; False: no more for now, or for good."""
        try:
            data = os.read(self.stream.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._data = (self._data + data)[-TAIL_BYTES:]
        return bool(data)

    def lines(self) -> list[str]:
        """The last lines."""
        lines = re.split("[\r\n]", self._data.decode("utf-8", "replace"))
        return [line.strip() for line in lines if line.strip()][-_TAIL_LINES:]


class Stage:
    """A running program, whose two outputs are pipes."""

    def __init__(self, process: subprocess.Popen[bytes], command: Sequence[str]) -> None:
        self.process = process
        self.command = command
        self.stdout = cast("BinaryIO", process.stdout)
        self.tail = Tail(cast("BinaryIO", process.stderr))
        self.code: int | None = None
        """The exit code, or less than 0 for a signal, once it is known that it has `ended`."""

    def ended(self) -> bool:
        """True if it has ended, though it may not be the last of its process group."""
        # not reaped, so that the id of its process group stays its own
        if self.code is None:
            status = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is not None:
                self.code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        return self.code is not None

    def kill(self) -> None:
        """End its whole process group; harmless after its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for its end."""
        self.process.wait()
        self.stdout.close()
        self.tail.stream.close()

    def last_words(self) -> list[str]:
        """What it said at last on its standard error."""
        for _ in range(_LAST_READS):
            if not self.tail.listen():
                break
        return self.tail.lines()

    def verdict(self) -> str:
        """How it failed."""
        code = self.code or 0
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {_signal_name(-code)}"
        said = " | ".join(map(printable, self.last_words()))
        return f"`{_shown(self.command)}` {how}" + (f": {said}" if said else "")


def _run_pipeline(commands: Sequence[Sequence[str]], step: _Step) -> None:
    # in the folder of the target; no process survives
    name, position = step.name, 0

    def look() -> None:
        # the first program shares our file and so its position
        nonlocal position
        before, position = position, stream.tell()
        step.progress.advance(position - before)

    with step.open() as stream:
        step.progress.phase(f"piping {name} through {commands[0][0]}", _file_size(stream))
        with step.output(name) as output, _running(commands, stream, step.target.parent, name) as stages:
            pump(stages, output.write, look)
            # a broken pipe is no failure of a program whose successor had read enough
            failed = [stage for stage in stages if _has_failed(stage, last=stage is stages[-1])]
            if failed:
                raise IngestError(f"{name}: " + "; ".join(stage.verdict() for stage in failed))


def _has_failed(stage: Stage, *, last: bool) -> bool:
    if not stage.ended() or stage.code == 0:
        return False
    return last or stage.code not in _BROKEN_PIPE


@contextlib.contextmanager
def _running(
    commands: Sequence[Sequence[str]], stream: BinaryIO, folder: Path, name: str
) -> Iterator[list[Stage]]:
    stages: list[Stage] = []
    try:
        stdin: BinaryIO = stream
        for command in commands:
            stages.append(Stage(_start(command, stdin, folder, name), command))
            if stdin is not stream:
                stdin.close()  # else the program before would never see that this one has gone
            stdin = stages[-1].stdout
        yield stages
    finally:
        for stage in stages:
            stage.kill()
        for stage in stages:
            stage.close()


def _start(command: Sequence[str], stdin: BinaryIO, folder: Path, name: str) -> subprocess.Popen[bytes]:
    environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    try:
        return subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        hint = "a Pipe step is a list of a program and its arguments, without a shell; is it installed?"
        raise IngestError(f"{name}: the program of `{_shown(command)}` was not found", hint=hint) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise IngestError(f"{name}: `{_shown(command)}` cannot be started: {reason}") from error


def pump(stages: Sequence[Stage], take: Callable[[bytes], None], look: Callable[[], None]) -> None:
    """Hand on what the last program prints, until all have ended, or one has failed.

    Every pipe is drained, because a full one would block its program. `look` is called about ten times a
    second at least.
    """
    flowing = True
    with selectors.DefaultSelector() as selector:
        selector.register(stages[-1].stdout, selectors.EVENT_READ)
        for stage in stages:
            selector.register(stage.tail.stream, selectors.EVENT_READ, stage)
        while flowing or not all(stage.ended() for stage in stages):
            for key, _ in selector.select(_WATCH_SECONDS if flowing else _END_SECONDS):
                if isinstance(key.data, Stage):
                    if not key.data.tail.listen():
                        selector.unregister(key.fileobj)
                elif data := os.read(key.fd, CHUNK_BYTES):
                    take(data)
                else:
                    flowing = False
                    selector.unregister(key.fileobj)
            look()
            if any(_has_failed(stage, last=stage is stages[-1]) for stage in stages):
                return


def _shown(command: Sequence[str]) -> str:
    return one_line(shlex.join(command))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def prepare(
    steps: Sequence[PrepStep],
    source: Path,
    folder: Path,
    *,
    name: str,
    max_bytes: int = 1 << 40,
    progress: Progress = SILENT,
    allow_commands: bool = False,
) -> Path:
    """The file that results from `source` by all steps; `source` itself is never changed.

    The result lies in `folder`, which is private to the run. Without steps it is `source` (no copy). Only the
    result is left in `folder`, and nothing after a failure. `name` is what messages call the input. A
    manifest may come from an untrusted publisher, so commands run only with `allow_commands`.
    """
    _check_commands(steps, name, allow_commands=allow_commands)
    current = source
    for action in _actions(steps):
        target = folder / f"prepared-{uuid.uuid4().hex}"
        try:
            action(_Step(current, target, name, max_bytes, progress))
        finally:
            if current != source:
                remove_quietly(current)
        current = target
    return current


def _actions(steps: Sequence[PrepStep]) -> Iterator[Callable[[_Step], None]]:
    # consecutive commands are one pipeline, every unpacking is alone
    for is_pipe, group in groupby(steps, lambda step: isinstance(step, PrepStepPipe)):
        if is_pipe:
            yield functools.partial(_run_pipeline, [s.command for s in group if isinstance(s, PrepStepPipe)])
        else:
            yield from (functools.partial(_decompress, s) for s in group if isinstance(s, PrepStepDecompress))


def _check_commands(steps: Sequence[PrepStep], name: str, *, allow_commands: bool) -> None:
    for step in steps:
        if not isinstance(step, PrepStepPipe):
            continue
        if not step.command:
            raise IngestError(f"{name}: a Pipe step has an empty command")
        if not allow_commands:
            raise IngestError(
                f"{name}: the manifest pipes the data through the command `{step.command[0]}`, "
                "and commands are not allowed",
                hint="if you trust this manifest, pull with --allow-commands, or set ingest.allowCommands",
            )
