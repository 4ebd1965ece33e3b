"""Fixtures of several files of assets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.small_s3 import SmallS3
from tests.kit.support import Run


@pytest.fixture
def assets(run: Run) -> Run:
    """`odfchain assets`."""
    return lambda *words: run("assets", *words)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallS3]:
    """A server of buckets, for which there are credentials."""
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "SESSION_TOKEN": "t0k3n"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with SmallS3() as found:
        yield found
