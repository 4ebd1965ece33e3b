"""The vectors of `flatbuffers_blocks.json`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.support import conformance

FILE = conformance("flatbuffers_blocks")


def vectors() -> list[Any]:
    """(block as a tree, manifest version, hash, hex or None) of every vector in the file."""
    found = []

    def add(name: str, block: Any, version: int, form: dict[str, Any]) -> None:
        made = form["block_hash_sha3_256"], form.get("manifest_hex")
        found.append(pytest.param(block, version, *made, id=name))

    for name in ("list_A_head", "list_B_v0_166_0"):
        for v in FILE[name]["vectors"]:
            block = {k: x for k, x in FILE["block_wrapper"].items() if k != "notes"} | {"event": v["event"]}
            add(f"{name}-{v['id']}", block, FILE[name]["manifest_version"], v)
    for v in FILE["list_D_block_repository"]["vectors"]:
        add(f"D-{v['id']}-v{v['manifest_version']}", v["block"], v["manifest_version"], v)
    for v in FILE["derived_vectors_not_upstream"]["vectors"]:
        for version in (2, 3):
            add(f"{v['id']}-v{version}", v["block"], version, v[f"v{version}"])
    assert len(found) > 40
    return found
