"""The dataset `types`, written by the reference node, and what the same node answered about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import odfchain as odf
from odfchain.query.answers import Answer, read_answer
from tests.kit.support import FIXTURES, conformance

FOLDER = FIXTURES / "data" / "reference-node" / "types"
RECORDED: dict[str, dict[str, Any]] = {case["id"]: case for case in conformance("query_answers")["answers"]}
SIGNED = [name for name, case in RECORDED.items() if '"commitment"' in case["response_text"]]


def workspace_with_types(folder: Path) -> odf.Workspace:
    """A new workspace with a copy of the dataset."""
    workspace = odf.init(folder)
    workspace.pull(FOLDER.as_uri(), name="types")
    return workspace


def recorded_answer(name: str) -> Answer:
    """An answer of the reference node."""
    return read_answer(RECORDED[name]["response_text"].encode(), name)
