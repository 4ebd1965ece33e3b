"""The public view of a workspace: its datasets by alias, and the files in their public folders.

Nothing that a request says becomes part of a path before it is known to be harmless: an alias is looked up
among the datasets that there are, an object's name has been parsed. And nothing but a regular file in a
dataset's own folder is opened: a symbolic link, a device or a pipe is not there.

What is remembered is checked against the files at each look-up, so that a dataset that is made, renamed or
deleted is noticed at once; a look-up costs two calls to the system however many datasets there are.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import OdfchainError
from odfchain.odf.identity import DatasetId, encode_base16
from odfchain.odf.names import DatasetAlias, DatasetRef
from odfchain.storage import fsio
from odfchain.transfer.access_tokens import AccessToken, Right, TokenFile, holder
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file that is open for reading; the receiver closes it."""

    fd: int
    size: int

    @classmethod
    def find(cls, folder: Path, part: str, name: str) -> OpenFile | None:
        """A regular file in a part of a dataset's folder, None when there is none; links are not followed.

        `part` and `name` are single components that the caller vouches for.
        """
        try:
            at = os.open(f"{folder}/{part}", _FOLDER)  # joining paths would cost more than opening the file
            try:
                fd = os.open(name, _FILE, dir_fd=at)
            finally:
                os.close(at)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise fsio.storage_error(error, folder / part / name) from error
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            return None
        return cls(fd, found.st_size)

    def read(self, start: int, count: int) -> bytes:
        """Up to `count` bytes from `start`."""
        return os.pread(self.fd, count, start)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class _Known:
    stamp: _Stamp
    dataset: DatasetFiles


class Published:
    """The datasets of a workspace as they are now. For one thread."""

    def __init__(self, workspace: WorkspaceFiles) -> None:
        self._folder = workspace.root / "datasets"
        self._known: dict[str, _Known] = {}

    def dataset(self, ref: DatasetRef) -> DatasetFiles | None:
        """The dataset of this alias (case does not matter) or id, None when there is none."""
        return self._by_id(ref) if isinstance(ref, DatasetId) else self._by_alias(ref)

    def _by_id(self, dataset_id: DatasetId) -> DatasetFiles | None:
        folder = self._folder / encode_base16(dataset_id.to_bytes())
        found = _current(folder, None) if not folder.is_symlink() else None
        return found.dataset if found else None

    def _by_alias(self, alias: DatasetAlias) -> DatasetFiles | None:
        known = self._known.get(alias.key)
        if known is None or _stamp(known.dataset.folder) != known.stamp:
            self._scan()
            known = self._known.get(alias.key)
        return known.dataset if known else None

    def datasets(self) -> list[DatasetFiles]:
        """All datasets, ordered by alias; folders that cannot be opened are passed over."""
        self._scan()
        return [self._known[key].dataset for key in sorted(self._known)]

    def _scan(self) -> None:
        before = {known.dataset.folder: known for known in self._known.values()}
        found = {}
        with fsio.storage_errors(self._folder), os.scandir(self._folder) as entries:
            folders = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
        for folder in sorted(folders):
            known = _current(folder, before.get(folder))
            if known is not None:
                found[known.dataset.alias.key] = known
        self._known = found


def _current(folder: Path, before: _Known | None) -> _Known | None:
    stamp = _stamp(folder)  # before the alias is read: what changes in between is noticed next time
    if stamp is None:
        return None
    if before is not None and before.stamp == stamp:
        return before
    try:
        return _Known(stamp, DatasetFiles.open(folder))
    except (OdfchainError, UnicodeError):
        return None


def _stamp(folder: Path) -> _Stamp | None:
    try:
        found = os.lstat(f"{folder}/info/alias")
    except OSError:
        return None
    # renaming or replacing a dataset makes a new alias file
    return found.st_ino, found.st_mtime_ns, found.st_size


# Read access: the one rule for everything that shows, lists or hands out datasets.
# Unless reading is restricted, everybody may. If it is, a forbidden dataset looks like one that does not
# exist. Source: RFC-050.


@dataclass(frozen=True, slots=True)
class Readers:
    """The rule of a server."""

    tokens: TokenFile
    restricted: bool = False

    def reader(self, authorization: str | None) -> Reader | None:
        """The reader with this header `Authorization`; None where its token is not in force."""
        # a proxy's password is no token
        if not self.restricted or (authorization or "")[:7].lower() != "bearer ":
            return Reader(self, None)
        token = holder(authorization, self.tokens.tokens())
        return None if token is None else Reader(self, token)


@dataclass(frozen=True, slots=True)
class Reader:
    """A client that reads, with a token that was in force or with none."""

    rule: Readers
    token: AccessToken | None

    def sees(self, alias: DatasetAlias) -> bool:
        """True if the reader has access to the dataset."""
        if not self.rule.restricted:
            return True
        return self.token is not None and self.token.may(Right.READ, alias)

    def is_current(self) -> bool:
        """True if the access still holds: a token may be revoked meanwhile."""
        return self.token is None or self.token in self.rule.tokens.tokens()


# A workspace published to the world, read only.

HOST = "127.0.0.1"
PORT = 8080
"""Where, when nothing else is said."""
