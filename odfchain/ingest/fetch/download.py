"""A body on its way into a file; what has arrived survives a broken connection, if the server lets it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from odfchain.errors import FetchError
from odfchain.ingest.fetch.fetcher import FetchContext
from odfchain.net.headers import ContentRange, Headers, range_validator
from odfchain.net.retry import SIZE_HINT, Deadline, TransientError
from odfchain.store.fsio import remove_quietly, storage_errors
from odfchain.text import one_line


class Download:
    """One body and its file; leaving the block without `finish` removes the file.

    Raises:
        StorageFullError: no space for the body.
        StoreError: the file cannot be written.
    """

    def __init__(self, context: FetchContext, deadline: Deadline, *, name: str) -> None:
        self.received = 0
        """Bytes in the file."""
        self.headers: Headers | None = None
        """The headers of the answer that the bytes in the file are from."""
        self._context = context
        self._deadline = deadline
        self._name = name
        self._path: Path | None = None
        self._stream: BinaryIO | None = None
        self._total: int | None = None
        self._finished = False

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # another error is on its way, or the file is complete
                self._stream.close()
        if self._path is not None and not self._finished:
            remove_quietly(self._path)

    @property
    def resumable(self) -> str | None:
        """What `If-Range` is to carry; None if the body must be asked for from its beginning."""
        if self.headers is None or self.received == 0:
            return None
        return range_validator(self.headers)

    def begin(self, headers: Headers) -> None:
        """A whole body follows; whatever arrived before is dropped."""
        self.headers = headers
        self.received = 0
        self._total = headers.length()
        self._check_size(self._total or 0)
        with storage_errors(self._context.folder):
            if self._stream is None:
                fd, path = tempfile.mkstemp(prefix="fetched-", dir=self._context.folder)
                self._path = Path(path)
                self._stream = os.fdopen(fd, "wb")
            self._stream.seek(0)
            self._stream.truncate()
        self._context.progress.phase(f"Downloading {self._name}", self._total)
        encoding = (headers.get("content-encoding") or "identity").lower()
        if encoding != "identity":
            self._context.progress.note(
                f"{self._name}: the server sends it encoded as {one_line(encoding)} though asked not to; "
                "it is taken as it is"
            )

    def resume(self, headers: Headers) -> None:
        """The rest of the body follows.

        Raises:
            TransientError: it is not the rest of the same body; the next attempt begins anew.
        """
        part = ContentRange.parse(headers.get("content-range"))
        tag = headers.get("etag")
        known = self.headers
        if (
            known is None
            or part is None
            or part.first != self.received
            or (self._total is None and part.total is None)  # nothing would tell where the body ends
            or (self._total is not None and part.total not in (None, self._total))
            or (tag is not None and tag != known.get("etag"))
        ):
            self.forget()
            raise TransientError("the server continued with something else than the rest of the body")
        self._total = self._total if part.total is None else part.total
        self._check_size(self._total or part.last + 1)

    def forget(self) -> None:
        """The next attempt begins anew."""
        self.headers = None
        self.received = 0

    def append(self, chunk: bytes | memoryview) -> None:
        """Some bytes of the body.

        Raises:
            FetchError: larger than allowed or announced, or time is up.
        """
        assert self._stream is not None  # noqa: S101 - begin comes first
        self._deadline.check()
        self._check_size(self.received + len(chunk))
        if self._total is not None and self.received + len(chunk) > self._total:
            raise FetchError(f"{self._name}: the body is longer than the announced {self._total:,} bytes")
        with storage_errors(self._context.folder):
            self._stream.write(chunk)
        self.received += len(chunk)
        self._context.progress.advance(len(chunk))

    def finish(self) -> Path:
        """The file with the whole body.

        Raises:
            TransientError: the body ended early.
        """
        assert self._stream is not None  # noqa: S101 - begin comes first
        assert self._path is not None  # noqa: S101
        if self._total is not None and self.received < self._total:
            raise TransientError(f"the body ended after {self.received:,} of {self._total:,} bytes")
        with storage_errors(self._context.folder):
            self._stream.close()
        self._finished = True
        return self._path

    def _check_size(self, size: int) -> None:
        allowed = self._context.limits.max_bytes
        if size > allowed:
            raise FetchError(f"{self._name}: larger than the allowed {allowed:,} bytes", hint=SIZE_HINT)
