"""The errors of ours that exceptions of libraries and of the system stand for."""

from __future__ import annotations

import os

from odfchain.errors import OdfchainError, StoreError


def known_error(error: Exception) -> OdfchainError | None:
    """The error of our tree that an exception is or stands for; None for a fault of ours."""
    if isinstance(error, OdfchainError):
        return error
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        gone = isinstance(error, FileNotFoundError)
        hint = "it was there a moment ago; run the command again" if gone else None
        return StoreError(f"{os.fsdecode(error.filename)}: {error.strerror}", hint=hint)
    from odfchain.spark.failure import explain, is_of_spark

    return explain(error) if is_of_spark(error) else None
