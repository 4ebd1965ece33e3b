"""Writes the JSON Schemas of the user-facing manifests beside this file: `python schemas/generate.py`."""

from __future__ import annotations

import json
from pathlib import Path

from odfchain.odf.manifests import DATASET_SNAPSHOT, METADATA_BLOCK, METADATA_EVENT, manifest_schema
from odfchain.transfer.repositories import REPOSITORY
from odfchain.workspace.config import DATASET_CONFIG, USER_CONFIG, WORKSPACE_CONFIG

KINDS = (
    DATASET_SNAPSHOT,
    METADATA_BLOCK,
    METADATA_EVENT,
    WORKSPACE_CONFIG,
    USER_CONFIG,
    DATASET_CONFIG,
    REPOSITORY,
)


def render() -> dict[str, str]:
    """File name to text of every schema."""
    return {
        f"{kind.name}.json": json.dumps(
            manifest_schema(kind.name, kind.content, kind.versions), indent=2, ensure_ascii=False
        )
        + "\n"
        for kind in KINDS
    }


if __name__ == "__main__":
    for name, text in render().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")
