"""Reading the small files that keys and signed statements are kept in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from odfchain.errors import StoreError
from odfchain.store import fsio


def read_bounded(path: Path, limit: int) -> bytes | None:
    """At most `limit + 1` bytes of a file, None when it is not there; links are not followed."""
    found = read_regular(path, limit)
    return found[0] if found is not None else None


def read_regular(path: Path, limit: int, *, follow: bool = False) -> tuple[bytes, int] | None:
    """At most `limit + 1` bytes of a file and its permissions, None when it is not there.

    Raises:
        StoreError: it is not an ordinary file (a link is one only with `follow`), or cannot be read.
    """
    # Not blocking: a pipe that nobody writes to would be waited for.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not follow and path.is_symlink():
            raise StoreError(f"{path}: a link is not followed (expected a file)") from None
        raise fsio.storage_error(error, path) from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise StoreError(f"{path}: not an ordinary file")
        with os.fdopen(fd, "rb", closefd=False) as stream:
            return stream.read(limit + 1), stat.S_IMODE(info.st_mode)
    except OSError as error:
        raise fsio.storage_error(error, path) from error
    finally:
        os.close(fd)
