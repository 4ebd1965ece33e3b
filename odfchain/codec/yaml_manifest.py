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
from odfchain.codec.resources import PLACES, as_snapshot, is_dataset, is_resource, notes_of
from odfchain.codec.source_settings import split_settings
from odfchain.codec.tree import describe, from_tree, to_tree
from odfchain.codec.yaml_reader import Document, read_document, read_documents
from odfchain.errors import ManifestError
from odfchain.model.events import MetadataEvent
from odfchain.model.metadata_block import DatasetSnapshot, MetadataBlock, Origin


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
    """Every dataset that a YAML stream or JSON text defines, as a snapshot or as a resource of ODF 0.39.

    Raises:
        ManifestError: one of its documents defines something else, or is wrong.
    """
    found, others = read_definitions(text, source=source)
    if others:
        raise others[0]
    return found


def read_definitions(
    text: str | bytes, *, source: str | None = None
) -> tuple[list[DatasetSnapshot], list[ManifestError]]:
    """(every dataset that a text defines, why each of its other documents defines none).

    Documents without content are passed over.

    Raises:
        ManifestError: there is no other document, or one that is to define a dataset is wrong.
    """
    found, others = [], []
    for document in read_documents(text, source=source):
        if document.value is None:
            continue
        try:
            found.append(_read_snapshot(document, source))
        except ManifestError as error:
            if is_dataset(document.value) or _is_snapshot(document.value):
                raise
            others.append(error)
    if not found and not others:
        raise ManifestError("the manifest is empty", source=source)
    return found, others


def _is_snapshot(tree: Any) -> bool:
    return isinstance(tree, dict) and tree.get("kind") == DATASET_SNAPSHOT.name


def _read_snapshot(document: Document, source: str | None) -> DatasetSnapshot:
    places: dict[str, str] = {}
    left_out: list[str] = []
    if is_resource(document.value):
        try:
            document, left_out = as_snapshot(document)
        except ManifestError as error:
            raise error.located(source=source, line=document.line_of(error.path)) from None
        places = PLACES
    origin = Origin(source, document.lines, places)
    try:
        rest, rules = split_settings(document.value)
        snapshot: DatasetSnapshot = _content_of(rest, DATASET_SNAPSHOT)
    except ManifestError as error:
        raise origin.located(error) from None
    notes = notes_of(left_out, snapshot.metadata)
    return dataclasses.replace(snapshot, watermarks=rules, origin=dataclasses.replace(origin, notes=notes))


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
        return _content_of(document.value, kind)
    except ManifestError as error:
        raise Origin(source, document.lines).located(error) from None


def _content_of(tree: Any, kind: ManifestKind) -> Any:
    value = from_tree(kind.content, _content(tree, kind))
    validate_tree(kind.name, tree)
    return value


def _content(tree: Any, kind: ManifestKind) -> Any:
    if not isinstance(tree, dict):
        raise ManifestError(f"a manifest is an object with kind, version and content, not {describe(tree)}")
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
