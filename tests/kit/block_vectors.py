"""The vectors of `flatbuffers_blocks.json`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.support import conformance

FILE = conformance("flatbuffers_blocks")


def vectors() -> list[Any]:
    """(block as a tree, manifest version, hash, hex or None) of every vector in the file."""
    found = []
    for name in ("list_A_head", "list_B_v0_166_0"):
        for v in FILE[name]["vectors"]:
            block = {k: x for k, x in FILE["block_wrapper"].items() if k != "notes"} | {"event": v["event"]}
            version = FILE[name]["manifest_version"]
            found.append(
                (f"{name}-{v['id']}", block, version, v["block_hash_sha3_256"], v.get("manifest_hex"))
            )
    for v in FILE["list_D_block_repository"]["vectors"]:
        version = v["manifest_version"]
        found.append(
            (f"D-{v['id']}-v{version}", v["block"], version, v["block_hash_sha3_256"], v.get("manifest_hex"))
        )
    for v in FILE["derived_vectors_not_upstream"]["vectors"]:
        for version in (2, 3):
            form = v[f"v{version}"]
            found.append(
                (
                    f"{v['id']}-v{version}",
                    v["block"],
                    version,
                    form["block_hash_sha3_256"],
                    form["manifest_hex"],
                )
            )
    assert len(found) > 40
    return [pytest.param(*rest, id=name) for name, *rest in found]
