"""Every error odfchain raises on purpose.

    OdfchainError
     ├─ UsageError                  the command or call cannot be understood
     ├─ InvalidIdError              a hash, DID, name or reference breaks its grammar
     ├─ ManifestError               a YAML/JSON document is wrong (carries path and line)
     ├─ CodecError                  bytes are not what they claim to be
     │   ├─ DecodeError             malformed FlatBuffers or Arrow schema
     │   └─ UnsupportedVersionError a manifest version or event this build does not know
     ├─ SchemaError                 a data schema cannot be expressed or does not fit
     ├─ ChainError                  a metadata chain cannot be read or extended
     │   ├─ AppendError             a block breaks an append rule (carries the rule)
     │   └─ BrokenChainError        stored blocks do not form a chain
     ├─ StoreError                  objects and references
     │   ├─ ObjectNotFoundError
     │   ├─ ObjectCorruptedError    bytes do not hash to their name
     │   ├─ RefConflictError        compare-and-swap lost against another writer
     │   └─ StorageFullError        no space, quota or file handles left
     ├─ WorkspaceError              the workspace itself
     │   ├─ NotAWorkspaceError
     │   ├─ DatasetNotFoundError
     │   └─ NameCollisionError
     ├─ IngestError                 a run that cannot be committed
     │   ├─ BadInputError           the file breaks the declared form (carries file and row)
     │   ├─ IncompatibleSchemaError the rows do not fit the dataset's schema
     │   ├─ GuardError              a safety guard stopped the run (carries the flag that allows it)
     │   └─ NothingToCommitError    no new rows, watermark or source state
     ├─ EngineError                 Java or Spark
     │   └─ JavaNotFoundError
     └─ VerificationError           a verification found faults

Errors carry what happened, where, what was expected and what to do next; `str(error)` is one line.
"""

from __future__ import annotations

from typing import ClassVar


class OdfchainError(Exception):
    """The root of the tree; `exit_code` is what the command line ends with (RFC-008)."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(OdfchainError):
    exit_code = 2


class InvalidIdError(OdfchainError):
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

    def __str__(self) -> str:
        if self.source:
            where = f"{self.source}:{self.line}: " if self.line else f"{self.source}: "
        else:
            where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"

    def located(self, *, source: str | None = None, line: int | None = None) -> ManifestError:
        """The same fault with the file or line filled in where they were unknown."""
        return ManifestError(
            self.message,
            path=self.path,
            line=self.line if self.line is not None else line,
            source=self.source or source,
            hint=self.hint,
        )


class CodecError(OdfchainError):
    exit_code = 3


class DecodeError(CodecError):
    pass


class UnsupportedVersionError(CodecError):
    pass


class SchemaError(OdfchainError):
    exit_code = 3


class ChainError(OdfchainError):
    exit_code = 6


class AppendError(ChainError):
    """A block was refused: `kind` is the error kind, `rule` the id of the broken append rule (RFC-004)."""

    exit_code = 3

    def __init__(self, kind: str, rule: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{kind}: {message}", hint=hint)
        self.kind = kind
        self.rule = rule


class BrokenChainError(ChainError):
    pass


class StoreError(OdfchainError):
    exit_code = 7


class ObjectNotFoundError(StoreError):
    exit_code = 6


class ObjectCorruptedError(StoreError):
    exit_code = 6


class RefConflictError(StoreError):
    exit_code = 5

    def __init__(self, message: str, *, expected: str | None, actual: str | None) -> None:
        super().__init__(message, hint="another writer was faster: run the command again")
        self.expected = expected
        self.actual = actual


class StorageFullError(StoreError):
    pass


class WorkspaceError(OdfchainError):
    exit_code = 4


class NotAWorkspaceError(WorkspaceError):
    pass


class DatasetNotFoundError(WorkspaceError):
    pass


class NameCollisionError(WorkspaceError):
    exit_code = 5


class IngestError(OdfchainError):
    exit_code = 3


class BadInputError(IngestError):
    """An input file is wrong: `file` and, where it is known, the 1-based data `row`."""

    def __init__(
        self, message: str, *, file: str | None = None, row: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.row = row

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        at = f"row {self.row:,}: " if self.row is not None else ""
        return f"{where}{at}{self.message}"


class IncompatibleSchemaError(IngestError):
    pass


class GuardError(IngestError):
    """A guard stopped a run that looks like an accident; `flag` is the option that allows it."""

    def __init__(self, message: str, *, flag: str) -> None:
        super().__init__(message, hint=f"if this is intended, run again with {flag}")
        self.flag = flag


class NothingToCommitError(IngestError):
    exit_code = 0


class EngineError(OdfchainError):
    exit_code = 7


class JavaNotFoundError(EngineError):
    pass


class VerificationError(OdfchainError):
    exit_code = 6
