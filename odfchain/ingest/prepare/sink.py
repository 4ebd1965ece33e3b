"""The file that a prepare step writes: new, bounded, and gone again when the step fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from odfchain.errors import PrepareError
from odfchain.store.fsio import remove_quietly, storage_errors

CHUNK_BYTES = 1 << 20
RATIO_FREE_BYTES = 64 << 20
"""Output below this is never called a bomb, whatever its ratio [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareLimits:
    """Bounds on what a prepare step may write; a few bytes can unpack to more than any disk holds."""

    max_bytes: int = 1 << 40
    """Largest output of a step [bytes]."""
    max_ratio: int = 1_000
    """Largest output of unpacking per byte of input, once the output exceeds 64 MiB [ratio]."""


class BoundedOutput:
    """A file that refuses to grow beyond the limits; `input_bytes` is what the output is made from."""

    def __init__(
        self, stream: BinaryIO, path: Path, name: str, limits: PrepareLimits, input_bytes: int | None
    ) -> None:
        self._stream = stream
        self._path = path
        self._name = name
        self._limits = limits
        self._input_bytes = input_bytes
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append, in full or not at all.

        Raises:
            PrepareError: a limit would be passed.
        """
        size = self.size + len(data)
        if size > self._limits.max_bytes:
            raise PrepareError(
                f"{self._name}: what comes out is larger than {self._limits.max_bytes:,} bytes "
                "(limit max_bytes)",
                hint="raise the limit if this much data is expected",
            )
        if self._input_bytes is not None and size > max(
            RATIO_FREE_BYTES, self._limits.max_ratio * self._input_bytes
        ):
            raise PrepareError(
                f"{self._name}: unpacks to more than {self._limits.max_ratio:,} times its size "
                "(limit max_ratio)",
                hint="raise the limit if the data really compresses this well",
            )
        with storage_errors(self._path):
            rest = memoryview(data)
            while rest:
                rest = rest[self._stream.write(rest) :]
        self.size = size


@contextlib.contextmanager
def bounded_output(
    path: Path, name: str, limits: PrepareLimits, *, input_bytes: int | None = None
) -> Iterator[BoundedOutput]:
    """A new file at `path`, which is removed again when the block inside fails."""
    with storage_errors(path):
        stream = path.open("xb", buffering=0)
    try:
        with stream:
            yield BoundedOutput(stream, path, name, limits, input_bytes)
            with storage_errors(path):
                stream.close()
    except BaseException:
        remove_quietly(path)
        raise


def open_source(path: Path, name: str) -> BinaryIO:
    """The file to be prepared, opened for reading only.

    Raises:
        PrepareError: it cannot be opened.
    """
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise unreadable(error, name) from error


def unreadable(error: OSError, name: str) -> PrepareError:
    """The project's error for input that the operating system does not give."""
    return PrepareError(f"{name}: cannot be read: {error.strerror or error}")


def read_chunk(stream: BinaryIO, name: str, size: int = CHUNK_BYTES) -> bytes:
    """The next bytes of the input; none at its end.

    Raises:
        PrepareError: they cannot be read.
    """
    try:
        return stream.read(size)
    except OSError as error:
        raise unreadable(error, name) from error


def file_size(stream: BinaryIO) -> int:
    """Size of an open file [bytes]."""
    return os.fstat(stream.fileno()).st_size
