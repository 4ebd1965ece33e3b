"""Writes the JSON Schemas of the user-facing manifests beside this file: `python schemas/generate.py`."""

from __future__ import annotations

import json
from pathlib import Path

from odfchain.codec.json_schema import manifest_schema
from odfchain.codec.yaml_manifest import DATASET_SNAPSHOT, METADATA_BLOCK, METADATA_EVENT
from odfchain.repo.dataset_config import DATASET_CONFIG
from odfchain.repo.user_config import USER_CONFIG
from odfchain.repo.workspace_config import WORKSPACE_CONFIG
from odfchain.transfer.repositories import REPOSITORY

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
