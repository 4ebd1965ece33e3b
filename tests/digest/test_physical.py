from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from Crypto.Hash import SHA3_256
from hypothesis import given
from hypothesis import strategies as st

from odfchain.odf import physical_hash
from odfchain.odf.physical_hash import CHUNK_BYTES, hash_bytes, hash_file, hash_stream
from tests.kit.support import conformance


@given(st.binary(max_size=300))
def test_agrees_with_an_independent_implementation(data: bytes) -> None:
    assert hash_bytes(data).digest == SHA3_256.new(data).digest()


def test_known_hashes() -> None:
    import re

    found = 0
    for known in conformance("writer_cases")["known_hashes"]:
        if match := re.search(
            r"'(census_.|multihash)'$|\"(It's.*)\"$", known["what"].replace(" (used as dangling)", "")
        ):
            assert str(hash_bytes((match.group(1) or match.group(2)).encode())) == known["value"]
            found += 1
    assert found == 6


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_streaming(tmp_path: Path, size: int) -> None:
    data = bytes(i % 251 for i in range(1_000)) * (size // 1_000 + 1)
    data = data[:size]
    (tmp_path / "f").write_bytes(data)
    name, length = hash_file(tmp_path / "f")
    assert name.digest == hashlib.sha3_256(data).digest()
    assert length == size
    assert hash_stream(io.BytesIO(data)) == (name, size)


def test_the_fallback_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert physical_hash.openssl_sha3(), "this Python's SHA3 is the slow one"
    fast = physical_hash.sha3_256(b"abc").digest()
    monkeypatch.setattr(physical_hash, "openssl_sha3", lambda: False)
    slow = physical_hash.sha3_256(b"a")
    copy = slow.copy()
    slow.update(memoryview(b"bc"))
    assert slow.digest() == fast
    copy.update(b"bc")
    assert copy.digest() == fast
    slow.update(b"d")
    assert slow.digest() == hashlib.sha3_256(b"abcd").digest()
