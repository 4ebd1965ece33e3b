"""A plugin of pytest for `bench/golden.py --errors`: writes down every error that tests provoke."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

_FOLDER = Path(os.environ["GOLDEN_ERRORS"])
_VARIABLE = (
    (re.compile(re.escape(tempfile.gettempdir()) + r"\S*|/\S*pytest-\S*"), "<path>"),
    (re.compile(r"127\.0\.0\.1:\d+|localhost:\d+|\[::1\]:\d+"), "<server>"),
    (re.compile(r"\bf1620[0-9a-f]{8,}|did:\w+:\w+|[0-9a-f]{32,}"), "<hash>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)?"), "<moment>"),
    (re.compile(r"\d+"), "<n>"),
)


def pytest_configure() -> None:
    """Look at errors as they are made, in this process and its workers."""
    from odfchain.errors import OdfchainError  # noqa: PLC0415

    made = OdfchainError.__init__
    seen: set[str] = set()

    def noted(self: OdfchainError, message: str, *args: Any, **more: Any) -> None:
        made(self, message, *args, **more)
        texts = [str(message), str(more.get("hint"))]
        for pattern, sign in _VARIABLE:
            texts = [pattern.sub(sign, text) for text in texts]
        line = json.dumps([type(self).__name__, *texts])
        if line not in seen:
            seen.add(line)
            with (_FOLDER / str(os.getpid())).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    OdfchainError.__init__ = noted  # type: ignore[method-assign]
