"""Manifests of the datasets that the benchmarks ingest into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def csv_step(columns: Mapping[str, str], *, null: str = "") -> str:
    """A read step for CSV files with a header and these columns."""
    schema = ", ".join(f"'{n} {t}'" for n, t in columns.items())
    null_value = f"nullValue: {null}, " if null else ""
    return f"{{kind: Csv, header: true, {null_value}schema: [{schema}]}}"


def push_manifest(name: str, read: str, merge: str, *, event_time: str = "event_time") -> str:
    """A root dataset with one push source."""
    return (
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n"
        f"  name: {name}\n  kind: Root\n  metadata:\n"
        f"    - {{kind: SetVocab, eventTimeColumn: {event_time}}}\n"
        "    - kind: AddPushSource\n      sourceName: default\n"
        f"      read: {read}\n      merge: {merge}\n"
    )


def polled(name: str, pattern: Path, read: str, merge: str) -> str:
    """A root dataset whose source is files in the order of their names."""
    return push_manifest(name, read, merge).replace(
        "AddPushSource\n      sourceName: default\n",
        f"SetPollingSource\n      fetch: {{kind: FilesGlob, path: '{pattern}', order: ByName}}\n",
    )
