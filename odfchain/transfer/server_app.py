"""A workspace as a web application: every dataset at `/{alias}/`, readable by any client of the protocol.

    /                       a list for people
    /datasets.json          the index (`odfchain.transfer.repositories`)
    /info                   what nodes are asked first: whether all aliases have an account
    /accounts/me            whose the token is that is shown; and /platform/… (`odfchain.transfer.server_app`)
    /{alias}/refs/head      hash of the newest block
    /{alias}/blocks/…       and data/…, checkpoints/…: files as they are on the disk
    /{alias}/hints/chain    hashes of all blocks (`odfchain.storage.folder_store`)
    /{alias}/refs/head.jws  the owner's signature; and attestations/audits.jws
    /{alias}/refs/NAME      branches that are published, with refs/NAME.jws and hints/refs
    /{alias}/pull           a WebSocket: the smart protocol (`odfchain.transfer.node_pulls`)
    /{alias}/push           where writing is allowed (`odfchain.transfer.node_pushes`), with PUT of data/…,
                            checkpoints/… and refs/head.jws that belong to a push

`alias` is `name`, `account/name` or the dataset's id (`did:odf:…`); hashes may be in every final multibase.
That is all there is: the grammar needs no escapes but those of base64 in a hash, and every other path is not
found. Objects never change, hence they may be kept for ever; everything else is asked for again with its
entity tag. Where reading is restricted, a dataset is there for those alone whose token is for it
(`odfchain.transfer.access_tokens`). ASGI 3, with the extension `http.response.zerocopysend` where the server
has it. Source: specification "Dataset Sharing"; RFC-007 of
Open Data Fabric; RFC 9110; RFC-021.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from odfchain.chain.chain import MetadataChain
from odfchain.errors import InvalidIdError, OdfchainError
from odfchain.limits import LIMITS, SHARING
from odfchain.odf.identity import DatasetId, Multihash, encode_base16
from odfchain.odf.names import DatasetAlias, DatasetRef, is_branch_name
from odfchain.odf.names import parse_ref as parse_dataset_ref
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.tree import to_tree
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, parse_ref
from odfchain.storage.public_layout import (
    HEAD_KEY,
    HINT_KEY,
    INDEX_KEY,
    REFS_HINT_KEY,
    ObjectKey,
    ObjectKind,
    SignedFile,
    encode_hint,
    encode_names,
    ref_key,
)
from odfchain.transfer import node_pulls
from odfchain.transfer.access_tokens import Reader, TokenFile, holder
from odfchain.transfer.repositories import INDEX_VERSION, RepositoryEntry, RepositoryIndex
from odfchain.transfer.smart_messages import VERSION
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import ServeOptions
from odfchain.workspace.points import branch_names
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.transfer.node_pushes import Writing


# The public view of a workspace: its datasets by alias, and the files in their public folders.
#
# No part of a request becomes part of a path before it is known to be harmless: an alias is looked up among
# the datasets, an object's name has been parsed. Only regular files in a dataset's own folder are opened: a
# symbolic link, a device or a pipe is not there. What is remembered is checked against the files at each
# look-up (two calls to the system), so a dataset that is made, renamed or deleted is noticed at once.

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
        self._folders: dict[str, _Known] = {}

    def dataset(self, ref: DatasetRef) -> DatasetFiles | None:
        """The dataset of this alias (case does not matter) or id, None when there is none."""
        if isinstance(ref, DatasetId):
            folder = self._folder / encode_base16(ref.to_bytes())
            known = _opened(folder, None) if not folder.is_symlink() else None
        else:
            known = self._known.get(ref.key)
            if known is None or _stamp(known.dataset.folder) != known.stamp:
                self._scan()
                known = self._known.get(ref.key)
        return known.dataset if known else None

    def datasets(self) -> list[DatasetFiles]:
        """All datasets, ordered by alias; folders that cannot be opened are passed over."""
        self._scan()
        return [known.dataset for known in self._known.values()]

    def _scan(self) -> None:
        # texts, and no paths: there may be many thousands
        with fsio.storage_errors(self._folder), os.scandir(self._folder) as entries:
            folders = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
        before = self._folders
        found = {f: known for f in folders if (known := _opened(f, before.get(f))) is not None}
        if [*map(id, found.values())] != [*map(id, before.values())]:
            named = {known.dataset.alias.key: known for known in found.values()}
            self._known = dict(sorted(named.items()))
        self._folders = found


def _opened(folder: str | Path, before: _Known | None) -> _Known | None:
    stamp = _stamp(folder)  # before the alias is read: what changes in between is noticed next time
    if stamp is None:
        return None
    if before is not None and before.stamp == stamp:
        return before
    try:
        return _Known(stamp, DatasetFiles.open(Path(folder)))
    except (OdfchainError, UnicodeError):
        return None


def _stamp(folder: str | Path) -> _Stamp | None:
    try:
        found = os.lstat(f"{folder}/info/alias")
    except OSError:
        return None
    # renaming or replacing a dataset makes a new alias file
    return found.st_ino, found.st_mtime_ns, found.st_size


# Serving datasets of a store: heads are fetched now and then, slices when they are read.
# If the store cannot be reached, the local state is served and the problem reported. A request for an
# unknown slice costs one request to the store, and few run at once.

# How old what is known of heads may be [s].
_SECONDS = 5.0
# How long a reader waits for a store that does not answer before he sees what is here [s].
_PATIENCE = 5.0


class _StoreCopy:
    def __init__(
        self, workspace: WorkspaceFiles, problem: Callable[[str], None], *, branches: bool = False
    ) -> None:
        self._workspace = workspace
        self._problem = problem
        self._branches = branches
        self._asked: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._began = 0.0
        self._bringing = asyncio.Semaphore(SHARING.parallel)

    async def renew(self) -> None:
        """The datasets are here as they were in the store a few seconds ago, their blocks checked."""
        now = time.monotonic()
        if self._asking is None:
            if self._asked is not None and now - self._asked < _SECONDS:
                return
            self._began = now
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait({self._asking}, timeout=max(0.0, self._began + _PATIENCE - now))

    def expire(self) -> None:
        """Drop cached heads, which may be older than a notification: the store is asked again."""
        self._asked = None

    async def _ask(self) -> None:
        self._asked = self._began
        try:
            await asyncio.to_thread(self._open)
        except OdfchainError as error:
            self._problem(str(error))
        finally:
            self._asking = None
            if self._asked is not None:
                self._asked = time.monotonic()

    def _open(self) -> None:
        self._workspace.shared.renew()
        for dataset in self._workspace.datasets():
            if self._branches:
                dataset.shared.follow(dataset.folder)

    async def bring(self, dataset: DatasetFiles, key: ObjectKey) -> None:
        """A slice or checkpoint is here, if the store has it."""
        folder = dataset.folder / key.kind.value
        if key.kind not in (ObjectKind.DATA, ObjectKind.CHECKPOINT) or (folder / str(key.name)).exists():
            return
        async with self._bringing:
            await asyncio.to_thread(self._workspace.shared.objects(folder).contains, key.name)


# Conditional and range requests, as pure functions over header values.
# Malformed headers are ignored, as the standard requires. Source: RFC 9110, sections 8.8.3, 13 and 14.

_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*", re.IGNORECASE | re.ASCII)


def header_field(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header field, lines of the same name joined by commas; None when it is not there."""
    found = [value.decode("latin-1") for key, value in headers if key.lower() == name]
    return ", ".join(found) if found else None


def not_modified(if_none_match: str | None, tag: str) -> bool:
    """True if the client has this state already: `If-None-Match` lists its tag, weak or strong, or is `*`."""
    if if_none_match is None:
        return False
    known = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return tag in known or known == {"*"}


def wanted_range(text: str | None, if_range: str | None, tag: str, size: int) -> range | None:
    """The one range that is asked for, empty when there is nothing in it; None for the whole."""
    if text is None or (if_range is not None and if_range.strip() != tag):
        return None
    # several ranges, and other units, get the whole file, as RFC 9110 allows
    found = _RANGE.fullmatch(text.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return range(max(0, size - int(found[2])), size)
    first, last = int(found[1]), int(found[2] or size)
    if found[2] and last < first:
        return None
    return range(min(first, size), min(last + 1, size))


Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

ZERO_COPY = "http.response.zerocopysend"
_PIECE = 256 << 10
# Files up to this size are read without leaving the event loop: that costs less than a thread.
_AT_ONCE = 64 << 10

_NOSNIFF = (b"x-content-type-options", b"nosniff")
_FOR_EVER = (b"cache-control", b"public, max-age=31536000, immutable")
_FOR_ONE = (b"cache-control", b"private, max-age=31536000, immutable")
_WITH_A_TOKEN = (b"www-authenticate", b"Bearer")
_BY_TOKEN = (b"vary", b"authorization")
_ASK_AGAIN = (b"cache-control", b"no-cache")
_TEXT = b"text/plain; charset=us-ascii"
_JSON = b"application/json"

# `+`, `/` and `=`, which base64 has.
_ESCAPED = re.compile("%(2[BFbf]|3[Dd])")
_SIGNED = frozenset(file.value for file in SignedFile)
_CHANGING = frozenset({HEAD_KEY, HINT_KEY, REFS_HINT_KEY, *_SIGNED})


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response; with a file, that part of it, and the file is closed afterwards."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    file: OpenFile | None = None
    part: range = field(default=range(0))

    @property
    def length(self) -> int:
        return len(self.part) if self.file else len(self.body)


def _plain(status: int, text: str, *more: tuple[bytes, bytes]) -> _Answer:
    return _Answer(status, ((b"content-type", _TEXT), _ASK_AGAIN, *more), text.encode("ascii"))


_NOT_FOUND = _plain(404, "not found\n")
_NOT_ALLOWED = _plain(405, "datasets here can only be read\n", (b"allow", b"GET, HEAD"))
_NOT_UPGRADED = _plain(
    426,
    "this is asked over a WebSocket, and a proxy on the way has not passed that on\n",
    (b"upgrade", b"websocket"),
    (b"connection", b"upgrade"),
)
_FAILED = _plain(500, "this cannot be read now\n")


# Account requests of clients: `/platform/token/validate`, `/accounts/me`, `/platform/login`.
# There are tokens only, no users and no passwords. Source: the protocol as the reference node speaks it;
# RFC-050.

_LOGIN, _VALIDATE, _ACCOUNT = "platform/login", "platform/token/validate", "accounts/me"
PLATFORM = frozenset({_LOGIN, _VALIDATE, _ACCOUNT})
"""The paths that are answered here."""

UNKNOWN = "The token is not known here."
_NO_PASSWORDS = "There are no passwords here: the operator of this node makes tokens (odfchain token create)."


def answer_platform(path: str, scope: node_pulls.Message, tokens: TokenFile) -> _Answer:
    """The answer to one of these paths."""
    method = scope["method"]
    if path == _LOGIN:
        return _refused(400, _NO_PASSWORDS) if method == "POST" else _refused(405, "This is asked by POST.")
    if method not in ("GET", "HEAD"):
        return _refused(405, "This is asked by GET.")
    shown = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), None)
    if shown is None:
        return _refused(401, "No token was shown.")
    token = holder(shown.decode("latin-1"), tokens.list())
    if token is None:
        return _refused(401, UNKNOWN)
    found = {"id": token.account_id, "accountName": token.account} if path == _ACCOUNT else {}
    return _document(200, found)


def _refused(status: int, message: str) -> _Answer:
    return _document(status, {"message": message}, *((_WITH_A_TOKEN,) if status == 401 else ()))


def _document(status: int, document: dict[str, str], *more: tuple[bytes, bytes]) -> _Answer:
    headers = ((b"content-type", _JSON), _ASK_AGAIN, *more)
    return _Answer(status, headers, json.dumps(document).encode())


class Repository:
    """A workspace as an ASGI application for one event loop; without `write` it changes indices alone."""

    def __init__(self, workspace: WorkspaceFiles, options: ServeOptions) -> None:
        problem = options.on_problem or (lambda _: None)
        self._workspace = workspace
        self._anyone = Reader(TokenFile(workspace.root), bool(options.restrict_reading))
        self._behind_proxy = bool(options.behind_proxy)
        self._published = Published(workspace)
        self._copy = (
            _StoreCopy(workspace, problem, branches=bool(options.branches))
            if workspace.shared.where is not None
            else None
        )
        self._writing: Writing | None = None
        if options.write:
            from odfchain.transfer.node_pushes import Writing  # noqa: PLC0415 - few servers are written to

            refused = self._copy.expire if self._copy is not None else lambda: None
            self._writing = Writing(workspace, problem, refused)
        self._branches = options.branches or False
        self._problem = problem
        self._hints = HintCache()
        self._index = RepositoryIndex()
        # Chains keep caches that are for one thread; a request that asks one waits for the others.
        self._chains = threading.Lock()

    async def __call__(
        self, scope: node_pulls.Message, receive: node_pulls.Receive, send: node_pulls.Send
    ) -> None:
        """Answer one request; an exception is answered with 500 and passed to `problem`."""
        if self._writing is not None:
            self._writing.look_for_left()
        # a file belongs to a push, which has asked the store when it began
        if self._copy is not None and scope.get("method") != "PUT":
            await self._copy.renew()
        if scope["type"] == "websocket":
            await self._converse(scope, receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']!r} is not spoken here")
        try:
            if scope["method"] == "PUT" and self._writing is not None:
                answer = await self._put(self._writing, scope, receive)
            else:
                answer = await self._answer(scope)
        except (OdfchainError, OSError) as error:
            self._problem(str(error))
            answer = _FAILED
        if self._anyone.restricted:
            answer = _for_one(answer)
        try:
            await _respond(answer, scope, send)
        finally:
            if answer.file is not None:
                answer.file.close()

    async def _converse(
        self, scope: node_pulls.Message, receive: node_pulls.Receive, send: node_pulls.Send
    ) -> None:
        *parts, last = _path(scope).split("/")
        reader, fields = self._reader(scope), node_pulls.fields_of(scope)
        base = node_pulls.base_of(scope, fields, last, behind_proxy=self._behind_proxy)
        ref = _ref("/".join(parts)) if last in ("pull", "push") else None
        dataset = self._dataset(ref, reader)
        alias = dataset.alias if dataset is not None else ref
        if reader is None and last != "push":
            await node_pulls.refuse_upgrade(send, 401, UNKNOWN)
        elif fields.get(VERSION[0]) != VERSION[1]:
            await node_pulls.refuse_upgrade(send, 400, "Incompatible client version")
        elif last == "push" and self._writing is None:
            await node_pulls.refuse_upgrade(send, 403, "datasets here can only be read")
        elif last == "push" and self._writing is not None and isinstance(alias, DatasetAlias) and base:
            own = dataset is not None and self._workspace.has_key(dataset.id)
            await self._writing.answer_push(alias, base, own=own, scope=scope, receive=receive, send=send)
        elif last == "pull" and dataset is not None and reader is not None and base:
            serving = node_pulls.PullServing(dataset, self._chains, base, fields.get("authorization"))
            await node_pulls.answer_pull(serving, reader, receive, send)
        else:
            await node_pulls.refuse_upgrade(send, 404, "Dataset not found")

    async def _put(self, writing: Writing, scope: node_pulls.Message, receive: node_pulls.Receive) -> _Answer:
        parts = _path(scope).split("/")
        where, key, name = _key(parts)
        ref = _ref("/".join(parts[:where]))
        dataset = self._dataset(ref, self._reader(scope))
        alias = dataset.alias if dataset is not None else ref
        if not isinstance(alias, DatasetAlias):
            return _NOT_FOUND
        status, text = await writing.take_file(alias, str(name or key), scope, receive)
        return _plain(status, f"{text}\n")

    async def _answer(self, scope: node_pulls.Message) -> _Answer:
        path = _path(scope)
        if path in PLATFORM:
            return answer_platform(path, scope, self._anyone.tokens)
        if scope["method"] not in ("GET", "HEAD"):
            return _NOT_ALLOWED
        reader = self._reader(scope)
        if reader is None:
            return _refused(401, UNKNOWN)
        if path == "info":
            return _current(scope, _JSON, json.dumps({"isMultiTenant": self._has_accounts(reader)}).encode())
        if path == "":
            return _current(scope, b"text/html; charset=utf-8", _page(await self._entries(reader)))
        if path == INDEX_KEY:
            return _current(scope, _JSON, render_index(await self._entries(reader)))
        parts = path.split("/")
        if parts[-1] in ("pull", "push") and len(parts) in (2, 3):
            return _NOT_UPGRADED
        where, key, name = _key(parts)
        ref = _ref("/".join(parts[:where]))
        branch = self._branch(key)
        if name is None and key not in _CHANGING and branch is None:
            return _NOT_FOUND
        dataset = self._dataset(ref, reader)
        if dataset is None:
            return _NOT_FOUND
        if name is not None:
            if self._copy is not None:
                await self._copy.bring(dataset, name)
            return _object(dataset, name, scope)
        head = _head(dataset, branch or HEAD)
        if head is None:
            return _NOT_FOUND
        if key in (HEAD_KEY, ref_key(branch or HEAD)):
            return _current(scope, _TEXT, str(head).encode(), str(head))
        if key in _SIGNED or branch is not None:
            limit = (SignedFile.HEAD if branch else SignedFile(key)).limit
            statements = _start(dataset, key, limit + 1)
            if statements is None or len(statements) > limit:
                return _NOT_FOUND
            return _current(scope, _TEXT, statements)
        if key == REFS_HINT_KEY:
            names = encode_names(name for name in branch_names(dataset) if self._shows(name))
            return _current(scope, _TEXT, names) if names else _NOT_FOUND

        def hinted() -> bytes:
            with self._chains:
                return self._hints.get(dataset.chain, head)

        hint = await asyncio.to_thread(hinted)
        return _current(scope, _TEXT, hint, str(head)) if hint else _NOT_FOUND

    def _reader(self, scope: node_pulls.Message) -> Reader | None:
        return self._anyone.showing(header_field(scope["headers"], b"authorization"))

    def _dataset(self, ref: DatasetRef | None, reader: Reader | None) -> DatasetFiles | None:
        if ref is None or reader is None:
            return None
        found = self._published.dataset(ref)
        # every request for a dataset passes this check of read access
        return found if found is not None and reader.sees(found.alias) else None

    def _has_accounts(self, reader: Reader) -> bool:
        # only aliases that this reader may see count
        aliases = [dataset.alias for dataset in self._published.datasets() if reader.sees(dataset.alias)]
        return bool(aliases) and all(alias.account is not None for alias in aliases)

    def _branch(self, key: str) -> str | None:
        folder, _, file = key.partition("/")
        name = file.removesuffix(".jws")
        # private branches are answered like absent ones
        return name if folder == "refs" and is_branch_name(name) and self._shows(name) else None

    def _shows(self, branch: str) -> bool:
        return self._branches if isinstance(self._branches, bool) else branch in self._branches

    async def _entries(self, reader: Reader) -> list[RepositoryEntry]:
        def make() -> list[RepositoryEntry]:
            with self._chains:
                return self._index.entries(datasets)

        datasets = self._published.datasets()
        return [entry for entry in await asyncio.to_thread(make) if reader.sees(entry.alias)]


def _for_one(answer: _Answer) -> _Answer:
    headers = (_FOR_ONE if header == _FOR_EVER else header for header in answer.headers)
    return replace(answer, headers=(*headers, _BY_TOKEN))


def _path(scope: node_pulls.Message) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1").removeprefix("/")


def _key(parts: list[str]) -> tuple[int, str, ObjectKey | None]:
    for start in (1, 2):
        key = "/".join(parts[start:])
        if (name := ObjectKey.parse(_ESCAPED.sub(lambda m: chr(int(m[1], 16)), key))) is not None:
            return start, key, name
    return len(parts) - 2, "/".join(parts[-2:]), None


def _ref(text: str) -> DatasetRef | None:
    try:
        return parse_dataset_ref(text)
    except InvalidIdError:
        return None


def _head(dataset: DatasetFiles, ref: str) -> Multihash | None:
    data = _start(dataset, ref_key(ref), LIMITS.ref_bytes + 1)
    return None if data is None else parse_ref(data, str(dataset.folder / ref_key(ref)))


def _start(dataset: DatasetFiles, key: str, count: int) -> bytes | None:
    file = OpenFile.find(dataset.folder, *key.split("/"))
    if file is None:
        return None
    try:
        return file.read(0, count)
    finally:
        file.close()


def _current(scope: node_pulls.Message, kind: bytes, body: bytes, tag: str | None = None) -> _Answer:
    tag = f'"{tag or hash_bytes(body)}"'
    headers = ((b"etag", tag.encode()), _ASK_AGAIN, _NOSNIFF)
    if not_modified(header_field(scope["headers"], b"if-none-match"), tag):
        return _Answer(304, headers)
    # the page itself says which one style sheet this is
    policy = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")
    return _Answer(200, ((b"content-type", kind), *headers, policy), body)


def _object(dataset: DatasetFiles, key: ObjectKey, scope: node_pulls.Message) -> _Answer:
    file = OpenFile.find(dataset.folder, key.kind.value, str(key.name))
    if file is None:
        return _NOT_FOUND
    tag = f'"{key.name}"'
    headers: Headers = (
        (b"content-type", b"application/octet-stream"),
        (b"etag", tag.encode()),
        (b"accept-ranges", b"bytes"),
        _FOR_EVER,
        _NOSNIFF,
    )
    asked = scope["headers"]
    if not_modified(header_field(asked, b"if-none-match"), tag):
        file.close()
        return _Answer(304, headers)
    part = None
    if scope["method"] == "GET":
        wanted, condition = header_field(asked, b"range"), header_field(asked, b"if-range")
        part = wanted_range(wanted, condition, tag, file.size)
    if part is None:
        return _Answer(200, headers, file=file, part=range(file.size))
    if not part:
        file.close()
        return _plain(416, "nothing in that range\n", (b"content-range", b"bytes */%d" % file.size))
    where = b"bytes %d-%d/%d" % (part.start, part.stop - 1, file.size)
    return _Answer(206, (*headers, (b"content-range", where)), file=file, part=part)


async def _respond(answer: _Answer, scope: node_pulls.Message, send: node_pulls.Send) -> None:
    headers = list(answer.headers)
    if answer.status != 304:
        headers.append((b"content-length", b"%d" % answer.length))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if scope["method"] == "HEAD" or answer.file is None or not answer.part:
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})
        return
    start, left = answer.part.start, len(answer.part)
    if left <= _AT_ONCE:
        await send({"type": "http.response.body", "body": answer.file.read(start, left)})
    elif ZERO_COPY in (scope.get("extensions") or {}):
        await send({"type": ZERO_COPY, "file": answer.file.fd, "offset": start, "count": left})
    else:
        while left:
            piece = await asyncio.to_thread(answer.file.read, start, min(_PIECE, left))
            if not piece:
                return  # the file was cut short; the server notices that the response is, too
            start, left = start + len(piece), left - len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": left > 0})


def render_index(entries: Iterable[RepositoryEntry]) -> bytes:
    """The file for these datasets; equal for equal datasets, in any order."""
    ordered = sorted(entries, key=lambda entry: entry.alias)
    lines = ",\n".join("  " + json.dumps(to_tree(entry)) for entry in ordered)
    return f'{{"version": {INDEX_VERSION},\n "datasets": [\n{lines}\n ]}}\n'.encode("ascii")


def _page(entries: Iterable[RepositoryEntry]) -> bytes:
    # loaded here: most nodes are never looked at
    from odfchain.profiles.pages import one_page  # noqa: PLC0415

    listed = [to_tree(entry) for entry in sorted(entries, key=lambda entry: entry.alias)]
    return one_page("transfer", "datasets.html.j2", datasets=listed, head=HEAD_KEY, index=INDEX_KEY).encode()


# The hint of a chain: hashes of all its blocks, seed first, one to a line.
# Walking a chain costs one round trip per block; with a hint a client requests many blocks at a time and
# still verifies every link. The hashes come from the chain's index: no block is read. Source: RFC-021.

_CACHE_BYTES = 64 << 20


class HintCache:
    """Hints by head, as many as fit into a fixed amount of memory. For one thread at a time."""

    def __init__(self, capacity: int = _CACHE_BYTES) -> None:
        self._capacity = capacity
        self._hints: OrderedDict[Multihash, bytes] = OrderedDict()
        self._size = 0

    def get(self, chain: MetadataChain, head: Multihash) -> bytes:
        """The hint for a head of the chain, empty for a chain that is too long for one."""
        found = self._hints.get(head)
        if found is not None:
            self._hints.move_to_end(head)
            return found
        too_long = chain.get(head).sequence_number >= SHARING.hinted_blocks
        made = b"" if too_long else encode_hint(chain.hashes(head))
        if len(made) <= self._capacity:
            self._hints[head] = made
            self._size += len(made)
        while self._size > self._capacity:
            _, dropped = self._hints.popitem(last=False)
            self._size -= len(dropped)
        return made
