"""Manifests: documents that name their kind and version around a content.

Source: specification "Manifest", "DatasetSnapshot". A document is an object with exactly `kind`, `version`
and `content`. Kind and version are looked at before the content is read. What is wrong is a ManifestError
that names file, line and path.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from odfchain.codec.blocks import MANIFEST_VERSION, TIMESTAMP_ALIGNMENT
from odfchain.codec.json_schema import validate_tree
from odfchain.codec.source_settings import split_settings
from odfchain.codec.tree import describe, from_tree, to_tree
from odfchain.codec.yaml_reader import Document, read_document, read_documents
from odfchain.errors import ManifestError
from odfchain.model.events import MetadataEvent
from odfchain.model.metadata_block import DatasetSnapshot, MetadataBlock


@dataclass(frozen=True, slots=True)
class ManifestKind:
    """A kind of manifest: its name, the type of its content, and the versions that are read."""

    name: str
    content: Any
    versions: range


DATASET_SNAPSHOT = ManifestKind("DatasetSnapshot", DatasetSnapshot, range(1, 2))
METADATA_EVENT = ManifestKind("MetadataEvent", MetadataEvent, range(1, 2))
METADATA_BLOCK = ManifestKind(
    "MetadataBlock", MetadataBlock, range(min(TIMESTAMP_ALIGNMENT), max(TIMESTAMP_ALIGNMENT) + 1)
)


def read_snapshots(text: str | bytes, *, source: str | None = None) -> list[DatasetSnapshot]:
    """Every dataset snapshot of a YAML stream or JSON text, validated against its JSON Schema."""
    documents = read_documents(text, source=source)
    if not documents:
        raise ManifestError("the manifest is empty", source=source)
    return [_read_snapshot(document, source) for document in documents]


def _read_snapshot(document: Document, source: str | None) -> DatasetSnapshot:
    try:
        rest, rules = split_settings(document.value)
    except ManifestError as error:
        line = document.line_of(f"content.{error.path}")
        raise error.located(source=source, line=line) from None
    snapshot: DatasetSnapshot = read_manifest(Document(rest, document.lines), DATASET_SNAPSHOT, source)
    return dataclasses.replace(snapshot, watermarks=rules)


def read_block(text: str | bytes, *, source: str | None = None) -> tuple[int, MetadataBlock]:
    """(manifest version, block) of a document; a block without its manifest counts as the version written."""
    document = read_document(text, source=source)
    value = document.value
    if isinstance(value, dict) and "event" in value and "content" not in value:
        document = Document(
            {"kind": "MetadataBlock", "version": MANIFEST_VERSION, "content": value},
            {f"content.{path}" if path else "": line for path, line in document.lines.items()},
        )
    block: MetadataBlock = read_manifest(document, METADATA_BLOCK, source)
    return document.value["version"], block


def read_manifest(document: Document, kind: ManifestKind, source: str | None) -> Any:
    """The content of a document that must be a manifest of this kind, validated against its JSON Schema."""
    try:
        content = _content(document.value, kind)
        value = from_tree(kind.content, content)
        validate_tree(kind.name, document.value)
    except ManifestError as error:
        line = document.line_of(f"content.{error.path}" if error.path else "")
        raise error.located(source=source, line=line) from None
    return value


def _content(tree: Any, kind: ManifestKind) -> Any:
    if not isinstance(tree, dict):
        raise ManifestError(f"a manifest is an object with kind, version and content, not {describe(tree)}")
    if "kind" not in tree and isinstance(tree.get("$schema"), str):
        raise ManifestError(
            f"a resource of the type {tree['$schema'][:200]!r}, which ODF 0.34.1 does not have",
            path="$schema",
            hint=f"{_example(kind)}; its spec and the name in its headers belong there",
        )
    for key in ("kind", "version", "content"):
        if key not in tree:
            raise ManifestError(f"the manifest has no {key!r}", hint=_example(kind))
    for key in tree:
        if key not in ("kind", "version", "content"):
            raise ManifestError(f"a manifest has no property {key!r} (only kind, version and content)")
    if tree["kind"] != kind.name:
        raise ManifestError(f"a manifest of kind {tree['kind']!r} where {kind.name} is expected")
    version = tree["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version not in kind.versions:
        supported = " and ".join(str(v) for v in kind.versions)
        raise ManifestError(f"{kind.name} version {version} is not supported ({supported} can be read)")
    return tree["content"]


def _example(kind: ManifestKind) -> str:
    return f"a manifest starts with 'kind: {kind.name}', 'version: {kind.versions[-1]}' and 'content:'"


def block_document(block: MetadataBlock, version: int = MANIFEST_VERSION) -> dict[str, Any]:
    """The tree of a block's manifest, in the spelling of that version's era (RFC-005)."""
    return {
        "kind": "MetadataBlock",
        "version": version,
        "content": to_tree(block, spelling="0.34.1" if version == 2 else "0.39"),
    }


def snapshot_document(snapshot: DatasetSnapshot) -> dict[str, Any]:
    """The tree of a snapshot's manifest, in the spelling of 0.34.1."""
    return {"kind": "DatasetSnapshot", "version": 1, "content": to_tree(snapshot)}
