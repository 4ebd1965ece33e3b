"""Every error odfchain raises on purpose.

    OdfchainError
     ├─ InvalidIdError, ManifestError, SchemaError, AssetError, SignatureError
     ├─ UsageError
     │   └─ KeyReusedError
     ├─ CodecError
     │   └─ UnsupportedVersionError
     ├─ ChainError
     │   └─ AppendError
     ├─ StoreError
     │   ├─ RefConflictError, SetBackError, StorageFullError
     │   ├─ ObjectCorruptedError
     │   │   └─ FaultyDatasetError
     │   └─ ObjectNotFoundError
     │       └─ SliceNotFoundError
     ├─ WorkspaceError
     │   ├─ NotAWorkspaceError, DatasetNotFoundError, PointNotFoundError
     │   └─ MergeConflictError, NameCollisionError
     ├─ IngestError
     │   ├─ NothingToCommitError, QueryError
     │   ├─ BadInputError
     │   │   └─ OversizedInputError
     │   └─ FetchError
     │       └─ SourceNotFoundError
     ├─ TransformError
     │   └─ DivergedInputError
     ├─ TransferError
     │   └─ UnsupportedPeerError, AccessError, CorruptedPeerError, ChainsDifferError
     └─ EngineError
         └─ BusyError, QueryLimitError, JavaNotFoundError

A class is for what a caller does about it; the message says what happened.
Errors carry what happened, where, what was expected and what to do next. `str(error)` is one line in
which no character acts (`odfchain.text`), whatever it quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from odfchain.text import excerpt, printable

Place = tuple[int | None, int | None]
"""Line and column in a text, from 1; None where they are not known."""


class OdfchainError(Exception):
    """The root of the tree; `exit_code` is what the command line ends with (RFC-008), mostly the class's."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = self.exit_code if exit_code is None else exit_code
        if hint:  # for tracebacks, as in a notebook
            self.add_note(printable(f"hint: {hint}".replace("\n", " ")))

    def __str__(self) -> str:
        return printable(self._described().replace("\n", " "))

    def _described(self) -> str:
        return self.message


class UsageError(OdfchainError):
    """The command or call cannot be understood."""

    exit_code = 2


class KeyReusedError(UsageError):
    """The key of a request came before, with something else."""


class InvalidIdError(OdfchainError):
    """A hash, DID, name or reference breaks its grammar."""

    exit_code = 2


class ManifestError(OdfchainError):
    """A document is wrong at `path` (like `metadata[2].merge.primaryKey`), on `line` when known."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        line: int | None = None,
        source: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.line = line
        self.source = source

    def _described(self) -> str:
        if self.source:
            where = f"{self.source}:{self.line}: " if self.line else f"{self.source}: "
        else:
            where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"

    def located(
        self, *, source: str | None = None, line: int | None = None, path: str | None = None
    ) -> ManifestError:
        """The same fault with the file or line filled in where they were unknown, and at `path` if given."""
        path = self.path if path is None else path
        line = self.line if self.line is not None else line
        return ManifestError(self.message, path=path, line=line, source=self.source or source, hint=self.hint)


def line_of(lines: Mapping[str, int], path: str) -> int | None:
    """The line of the node at `path`, or of the nearest enclosing one that has a line."""
    while path:
        if path in lines:
            return lines[path]
        path = re.sub(r"(^|\.)[^.\[]*$|\[\d+\]$", "", path)
    return lines.get("")


def child_path(path: str, key: str | int) -> str:
    """The path of a member of the node at `path`, as `ManifestError` has it."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


class CodecError(OdfchainError):
    """Bytes are not what they claim to be."""

    exit_code = 3


class UnsupportedVersionError(CodecError):
    """A manifest version or an event that this build does not know."""


class SchemaError(OdfchainError):
    """A data schema cannot be expressed, or rows do not fit it."""

    exit_code = 3


class AssetError(OdfchainError):
    """A lock is not there or damaged, or cannot be: a name is no asset's, or that of two."""

    exit_code = 3


class ChainError(OdfchainError):
    """A metadata chain cannot be read or extended."""

    exit_code = 6


class AppendError(ChainError):
    """A block was refused: `kind` is the error kind, `rule` the id of the broken append rule (RFC-004)."""

    exit_code = 3

    def __init__(self, kind: str, rule: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{kind}: {message}", hint=hint)
        self.kind = kind
        self.rule = rule


class StoreError(OdfchainError):
    """An object or a reference cannot be read or written, or not now: another process is at work on it."""

    exit_code = 7


class ObjectNotFoundError(StoreError):
    """No object has this name."""

    exit_code = 6


class SliceNotFoundError(ObjectNotFoundError):
    """The copy of a dataset that is here lacks this slice; no damage to what a snapshot needs (RFC-039)."""

    exit_code = 7

    @classmethod
    def of(cls, alias: object, path: object) -> SliceNotFoundError:
        """The error for a missing slice of a dataset, expected at `path`."""
        hint = f"a partial copy lacks slices: `odfchain fetch {alias}` brings them"
        hint += f"; in a whole one, `odfchain fsck {alias}` repairs the damage"
        return cls(f"{alias}: the slice {str(path).rpartition('/')[2]} is not here", hint=hint)


class ObjectCorruptedError(StoreError):
    """Bytes do not hash to their name."""

    exit_code = 6


class FaultyDatasetError(ObjectCorruptedError):
    """A dataset is faulty, so no verdict was signed; `report` has the faults."""

    def __init__(self, message: str, report: Any) -> None:
        super().__init__(message, hint="--faulty signs the verdict")
        self.report = report


class RefConflictError(StoreError):
    """Compare-and-swap lost against another writer."""

    exit_code = 5

    def __init__(self, message: str, *, expected: str | None, actual: str | None) -> None:
        super().__init__(message, hint="another writer was faster: run the command again")
        self.expected = expected
        self.actual = actual


class SetBackError(StoreError):
    """The history in a store does not continue what this machine has seen; `head` is the one there."""

    def __init__(self, message: str, *, head: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.head = head


class StorageFullError(StoreError):
    """No space, quota, file handles, memory, threads or processes left."""


class WorkspaceError(OdfchainError):
    """Something is wrong with the workspace itself."""

    exit_code = 4


class NotAWorkspaceError(WorkspaceError):
    """There is no workspace in this folder or above it."""


class DatasetNotFoundError(WorkspaceError, KeyError):
    """The workspace has no such dataset, or not what was asked of it; near names are in the hint."""


class PointNotFoundError(WorkspaceError):
    """A dataset has no such branch, or no block that a point means."""


class MergeConflictError(WorkspaceError):
    """Two branches changed the same values differently; nothing was committed.

    `conflicts` is a table with a line for each (`odfchain.branches.conflict_file.lines_schema`).
    """

    exit_code = 5

    def __init__(self, message: str, conflicts: Any = None, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.conflicts = conflicts


class NameCollisionError(WorkspaceError):
    """The name is taken."""

    exit_code = 5


class IngestError(OdfchainError):
    """A run that cannot be committed; `excerpt` shows the rows or the part of the query that are meant.

    With a `flag`, a guard stopped what looks like an accident, and the option allows it. `violations` lists
    rows that refer to records that are not there (`odfchain.branches.foreign_keys`).
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        flag: str | None = None,
        setting: str = "",
        excerpt: tuple[str, ...] = (),
        violations: Any = None,
    ) -> None:
        if flag is not None:
            other = f"; {hint}" if hint else ""
            hint = f"if this is intended, run again with {flag}{f', or {setting}' if setting else ''}{other}"
        super().__init__(message, hint=hint)
        self.flag = flag
        self.excerpt = excerpt
        self.violations = violations


class BadInputError(IngestError):
    """An input file is wrong: `file` and, where it is known, the 1-based data `row`."""

    def __init__(
        self, message: str, *, file: str | None = None, row: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.row = row

    def _described(self) -> str:
        where = f"{self.file}: " if self.file else ""
        at = f"row {self.row:,}: " if self.row is not None else ""
        return f"{where}{at}{self.message}"


class OversizedInputError(BadInputError):
    """A file that would become more than may be decoded; says which column, and what the limit is."""


class NothingToCommitError(IngestError):
    """No new rows, watermark or source state, though the input had `input_rows` rows."""

    exit_code = 0

    def __init__(self, message: str, *, input_rows: int = 0, notes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.input_rows = input_rows
        self.notes = tuple(notes)
        """Notes on the rows all the same."""


class FetchError(IngestError):
    """The source cannot be fetched now: unreachable, cut short, too slow, refused."""

    exit_code = 8


class SourceNotFoundError(FetchError):
    """The source is not there (any more)."""


class QueryError(IngestError):
    """A query is malformed, or its result cannot be recorded; says which step and where in it.

    `excerpt` is a line of the SQL, and a caret under the character that is meant. What a query may not do
    here is `refused`: another version may allow it, or have allowed it.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, excerpt: tuple[str, ...] = (), refused: bool = False
    ) -> None:
        super().__init__(message, hint=hint, excerpt=excerpt)
        self.refused = refused

    @classmethod
    def at(cls, label: str, sql: str | None, place: Place | None, what: str, **more: Any) -> Self:
        """The error of what `label` names, at a (line, column) of its SQL; `more` as in the constructor."""
        line, column = place or (None, None)
        where = f", line {line}, column {column}" if line is not None and column is not None else ""
        return cls(f"{label}{where}: {what}", excerpt=excerpt(sql, line, column), **more)


class TransformError(OdfchainError):
    """A transformation that cannot be planned or executed."""

    exit_code = 3


class DivergedInputError(TransformError):
    """An input was rewritten: the block that it was last read up to is not in its chain any more."""

    exit_code = 5


class TransferError(OdfchainError):
    """A dataset cannot be carried from or to a peer now: unreachable, too slow, too large, cut short."""

    exit_code = 8


class UnsupportedPeerError(TransferError):
    """Nothing here speaks the protocol of a URL, or not in that direction."""

    exit_code = 2


class AccessError(TransferError):
    """A peer refuses: not known, not allowed, or only to be read."""


class CorruptedPeerError(TransferError):
    """A peer sent something invalid: other content, a broken chain, a block against the rules."""

    exit_code = 6


class ChainsDifferError(TransferError):
    """The chains of source and destination are not one line, or a peer's is not the one seen before.

    `common` is their newest common block; `source_blocks` and `destination_blocks` are how many blocks each
    has after it. Without a block of its own, the source is behind; else the two have diverged.
    """

    exit_code = 5

    def __init__(
        self,
        message: str,
        *,
        source_head: str,
        destination_head: str,
        source_blocks: int,
        destination_blocks: int,
        common: str | None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.source_head = source_head
        self.destination_head = destination_head
        self.source_blocks = source_blocks
        self.destination_blocks = destination_blocks
        self.common = common


class SignatureError(OdfchainError):
    """A signed statement is not what it claims to be; `problem` says in a word what is wrong with it."""

    exit_code = 6

    def __init__(self, problem: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problem = problem


class EngineError(OdfchainError):
    """Java or Spark failed."""

    exit_code = 7


class QueryLimitError(EngineError):
    """A query needs more time or memory than it is given."""


class BusyError(EngineError):
    """Too much is asked of a node at the moment; the same may be asked again a little later."""


class JavaNotFoundError(EngineError):
    """No Java that Spark can run on; the hint is the command that installs one."""


def was_interrupted(error: BaseException) -> bool:
    """True if Ctrl-C caused an error, which then only arose during clean-up."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
