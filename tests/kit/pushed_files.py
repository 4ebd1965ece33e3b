"""Files that are written and ingested at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from odfchain.api.dataset import Dataset
from odfchain.ingest.ingesting import IngestOutcome

BARE = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: bare, kind: Root, metadata: []}"
"""A root without a source."""


def put(folder: Path, content: str | bytes, name: str = "in.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_for(dataset: Dataset, content: str | bytes, name: str = "in.csv") -> Path:
    """A file in the folder that the workspace of the dataset is in."""
    return put(dataset._workspace.path.parent, content, name)


def push(dataset: Dataset, content: str | bytes, name: str = "in.csv", **options: Any) -> IngestOutcome:
    """Ingest a file of this content."""
    return dataset.ingest([put_for(dataset, content, name)], **options)
