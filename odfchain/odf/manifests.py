"""Manifests: documents that name their kind and version around a content.

Source: specification "Manifest", "DatasetSnapshot". A document is an object with exactly `kind`, `version`
and `content`. Kind and version are looked at before the content is read. What is wrong is a ManifestError
that names file, line and path.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from odfchain.errors import ManifestError
from odfchain.odf import events as ev
from odfchain.odf import sources as src
from odfchain.odf.block_codec import MANIFEST_VERSION, TIMESTAMP_ALIGNMENT
from odfchain.odf.sources import WatermarkRule
from odfchain.odf.tree import POLLING_SOURCE, describe, from_tree, spellings, suggest, to_tree
from odfchain.odf.yaml import Document, read_document, read_documents

# Resources of ODF 0.39: one of the kind Dataset as the manifest of a snapshot, which 0.34.1 has (RFC-054).
#
# The mapping is the tables of this page. What a resource says beyond a snapshot is named: as left out where
# it is about the resource at one node, as a fault where the dataset would be another one without it. The
# events are left to the reader of snapshots.

SCHEMA = "$schema"
_SCHEMAS = "https://opendatafabric.org/schemas/"
_DATASET = "dataset/v1alpha1/Dataset"

PLACES = {"": "spec", "name": "headers.name", "kind": "spec.kind", "metadata": "spec.metadata"}
"""Where the members of a snapshot are in a resource; its account precedes the name, as in an alias."""

# Properties that nodes keep about a resource; nothing of the dataset depends on them.
_LEFT_OUT = {
    "": ("status",),
    "headers": ("id", "labels", "annotations", "generation", "createdAt", "updatedAt", "deletedAt"),
    "spec": (),
}

# Properties without which it would be another dataset, and what to do about them.
_REFUSED = {
    "spec.did": (
        "a new dataset gets an id of its own, not the one given here",
        "`odfchain pull` brings the dataset that has this id; to make another one, leave it out",
    ),
    "spec.volume": (
        "ODF 0.34.1 has no volumes: the data are kept where the workspace is",
        "leave it out; `odfchain init --store URL` makes a workspace that keeps its data in a store",
    ),
}

# The command that does the same here, by the kind of resource.
_INSTEAD = {
    "Source": "write `read` and `merge` as a SetPollingSource or AddPushSource of the Dataset",
    "Flow": "let a scheduler run `odfchain pull`, or use `odfchain pull --watch`",
    "SecretSet": "the configuration has ingest.variables",
    "VariableSet": "the configuration has ingest.variables",
    "Projection": "`odfchain sql` and `odfchain state` answer the same from the dataset",
    "PersistentVolume": "`odfchain init --store URL` makes a workspace that keeps its data in a store",
    "Account": "`odfchain token create` says who may read and push at a node",
    "Relations": "`odfchain token create` says who may read and push at a node",
}

# Steps that 0.34.1 does not have and nothing here polls, and the version that brought them.
_NEWER = {src.FetchStepMqtt: "0.35", src.FetchStepEthereumLogs: "0.36"}

# Members of what is left out that are named, and characters of each.
_SHOWN, _LONGEST = 8, 100

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_resource(tree: Any) -> bool:
    """True if a document says that it is a resource, of any kind."""
    return isinstance(tree, dict) and SCHEMA in tree and "kind" not in tree


def is_dataset(tree: Any) -> bool:
    """True if a document says that it is a resource of the kind Dataset, of any version."""
    return (
        is_resource(tree) and re.fullmatch(rf"{_SCHEMAS}.*/Dataset(\.json)?", str(tree[SCHEMA])) is not None
    )


def as_snapshot(document: Document) -> tuple[Document, list[str]]:
    """A resource as a snapshot's manifest with its lines, and the paths that were left out."""
    tree = document.value
    if tree[SCHEMA] not in (_SCHEMAS + _DATASET, f"{_SCHEMAS}{_DATASET}.json"):
        raise _other_kind(tree[SCHEMA])
    headers, spec = _member(tree, "headers"), _member(tree, "spec")
    left_out = [
        *_beyond(headers, "headers", ("name", "account")),
        *_beyond(spec, "spec", ("kind", "metadata")),
        *_beyond(tree, "", (SCHEMA, "headers", "spec")),
    ]
    if "name" not in headers:
        raise ManifestError("the property 'name' is missing", path="headers")
    content = {"name": headers["name"]} | {key: spec[key] for key in ("kind", "metadata") if key in spec}
    if headers.get("account") is not None:
        account, more = _account(headers["account"])
        left_out += more
        content["name"] = f"{account}/{headers['name']}"
    lines = {"": document.line_of(""), "content": document.lines.get("spec")}
    for path, line in document.lines.items():
        for member, place in PLACES.items():
            if member and re.match(rf"{re.escape(place)}(?![^.\[])", path):
                lines[f"content.{member}{path[len(place) :]}"] = line
    known = {path: line for path, line in lines.items() if line is not None}
    return Document({"kind": "DatasetSnapshot", "version": 1, "content": content}, known), left_out


def _other_kind(schema: Any) -> ManifestError:
    if not isinstance(schema, str):
        return ManifestError(f"must be text, not {describe(schema)}", path=SCHEMA)
    if not schema.startswith(_SCHEMAS):
        return ManifestError(f"a document of the type {schema[:200]!r}, not a dataset", path=SCHEMA)
    group, _, kind = schema.removeprefix(_SCHEMAS)[:200].removesuffix(".json").rpartition("/")
    if kind == "Dataset":
        return ManifestError(f"a Dataset of {group!r}; {_SCHEMAS}{_DATASET} can be read", path=SCHEMA)
    message = f"a resource of the kind {kind} ({group}), not a dataset: ODF 0.34.1 has no such resources"
    return ManifestError(message, path=SCHEMA, hint=_INSTEAD.get(kind))


def _member(tree: dict[str, Any], key: str) -> dict[str, Any]:
    if key not in tree:
        raise ManifestError(f"the resource has no {key!r}")
    if not isinstance(tree[key], dict):
        raise ManifestError(f"must be an object, not {describe(tree[key])}", path=key)
    return tree[key]  # type: ignore[no-any-return]


def _beyond(tree: dict[str, Any], path: str, carried: tuple[str, ...]) -> list[str]:
    """Paths of the parts of a resource that a snapshot leaves out."""
    found = []
    for key, value in tree.items():
        where = f"{path}.{key}" if path else key
        if key in carried or value in (None, {}):
            continue
        if where in _REFUSED:
            message, hint = _REFUSED[where]
            raise ManifestError(message, path=where, hint=hint)
        if key not in _LEFT_OUT[path]:
            known = [*carried, *_LEFT_OUT[path]]
            raise ManifestError(f"unknown property {key!r} ({suggest(key, known)})", path=path)
        names = [name[:_LONGEST] for name in list(value)[:_SHOWN]] if isinstance(value, dict) else []
        found.append(where + (f" ({', '.join(names)})" if names else ""))
    return found


def _account(value: Any) -> tuple[str, list[str]]:
    """(the name of an account, what else is said of it)."""
    path, more = "headers.account", []
    if isinstance(value, dict):
        more = [f"{path}.{key}" for key in value if key != "name"]
        for key in value:
            if key not in ("name", "id", "did"):
                raise ManifestError(f"unknown property {key!r} ({suggest(key, ['name'])})", path=path)
        value = value.get("name")
    if not isinstance(value, str) or _UUID.fullmatch(value) or value.startswith("did:"):
        message = "an account without its name: in ODF 0.34.1 an alias has the name of its account"
        raise ManifestError(message, path=path, hint="write `account: NAME`, or leave it out")
    return value, more


def notes_of(left_out: list[str], events: tuple[ev.MetadataEvent, ...]) -> tuple[str, ...]:
    """Notes on a definition whose dataset does not keep all of it, or is not polled as it says."""
    notes = [f"not kept, because ODF 0.34.1 has no place for it: {', '.join(left_out)}"] if left_out else []
    for fetch in (event.fetch for event in events if isinstance(event, ev.SetPollingSource)):
        if type(fetch) in _NEWER:
            notes.append(
                f"{fetch.KIND} came with ODF {_NEWER[type(fetch)]}: it is recorded and not polled here, and "
                "implementations of 0.34.1 cannot read the dataset"
            )
        if isinstance(fetch, src.FetchStepFilesGlob) and not fetch.path.startswith(("/", "${{")):
            notes.append(f"{fetch.path[:_LONGEST]!r} is recorded, and `pull` takes absolute paths only")
    return tuple(notes)


# What a manifest says of a source beyond its event: how its watermark moves.
#
# The tables of a block have no place for it (specification "Metadata Reference"), and only ingestion needs
# it: the watermarks that come of it are recorded. So it is taken out of the manifest before the event is
# read, and kept in the dataset's private settings (RFC-014).

PROPERTY = "watermark"
FROM_SYSTEM_TIME = "FromSystemTime"
_SOURCES = {text: cls for cls in (ev.SetPollingSource, ev.AddPushSource) for text in spellings(cls.KIND)}


def _split_settings(tree: Any) -> tuple[Any, dict[str, WatermarkRule]]:
    """(the manifest without what is not for blocks, the rules by source); other faults stay for later."""
    content = tree.get("content") if isinstance(tree, dict) else None
    events = content.get("metadata") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(events, list):
        return tree, {}
    rules: dict[str, WatermarkRule] = {}
    rest = []
    for index, event in enumerate(events):
        kind = event.get("kind") if isinstance(event, dict) else None
        cls = _SOURCES.get(kind) if isinstance(kind, str) else None
        if cls is None or PROPERTY not in event:
            rest.append(event)
            continue
        name = POLLING_SOURCE if cls is ev.SetPollingSource else event.get("sourceName", POLLING_SOURCE)
        rule = _rule(event[PROPERTY], f"metadata[{index}].{PROPERTY}")
        if rule is not None and isinstance(name, str):
            rules[name] = rule
        rest.append({key: value for key, value in event.items() if key != PROPERTY})
    return tree | {"content": content | {"metadata": rest}}, rules


def _rule(value: Any, path: str) -> WatermarkRule | None:
    if value is None:
        return None
    if value in spellings(FROM_SYSTEM_TIME):
        return WatermarkRule(from_system_time=True)
    if not isinstance(value, dict):
        message = f"must be an object or {FROM_SYSTEM_TIME}, not {describe(value)}"
        hint = "write `watermark: {maxDelay: 1 day}` or `watermark: fromSystemTime`"
        raise ManifestError(message, path=path, hint=hint)
    return from_tree(WatermarkRule, value, path)


@dataclass(frozen=True, slots=True)
class ManifestKind:
    """A kind of manifest: its name, the type of its content, and the versions that are read."""

    name: str
    content: Any
    versions: range


DATASET_SNAPSHOT = ManifestKind("DatasetSnapshot", ev.DatasetSnapshot, range(1, 2))
METADATA_BLOCK = ManifestKind(
    "MetadataBlock", ev.MetadataBlock, range(min(TIMESTAMP_ALIGNMENT), max(TIMESTAMP_ALIGNMENT) + 1)
)


def read_snapshots(text: str | bytes, *, source: str | None = None) -> list[ev.DatasetSnapshot]:
    """Every dataset that a YAML stream or JSON text defines, as a snapshot or as a resource of ODF 0.39."""
    found, others = read_definitions(text, source=source)
    if others:
        raise others[0]
    return found


def read_definitions(
    text: str | bytes, *, source: str | None = None
) -> tuple[list[ev.DatasetSnapshot], list[ManifestError]]:
    """(every dataset that a text defines, why its other documents, if they have content, define none)."""
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


def _read_snapshot(document: Document, source: str | None) -> ev.DatasetSnapshot:
    places: dict[str, str] = {}
    left_out: list[str] = []
    if is_resource(document.value):
        try:
            document, left_out = as_snapshot(document)
        except ManifestError as error:
            raise error.located(source=source, line=document.line_of(error.path)) from None
        places = PLACES
    origin = ev.Origin(source, document.lines, places)
    try:
        rest, rules = _split_settings(document.value)
        snapshot: ev.DatasetSnapshot = _content_of(rest, DATASET_SNAPSHOT)
    except ManifestError as error:
        raise origin.located(error) from None
    notes = notes_of(left_out, snapshot.metadata)
    return dataclasses.replace(snapshot, watermarks=rules, origin=dataclasses.replace(origin, notes=notes))


def read_block(text: str | bytes, *, source: str | None = None) -> tuple[int, ev.MetadataBlock]:
    """(manifest version, block) of a document; a block without its manifest counts as the version written."""
    document = read_document(text, source=source)
    value = document.value
    if isinstance(value, dict) and "event" in value and "content" not in value:
        document = Document(
            {"kind": "MetadataBlock", "version": MANIFEST_VERSION, "content": value},
            {f"content.{path}" if path else "": line for path, line in document.lines.items()},
        )
    block: ev.MetadataBlock = read_manifest(document, METADATA_BLOCK, source)
    return document.value["version"], block


def read_manifest(document: Document, kind: ManifestKind, source: str | None) -> Any:
    """The content of a document that must be a manifest of this kind."""
    try:
        return _content_of(document.value, kind)
    except ManifestError as error:
        raise ev.Origin(source, document.lines).located(error) from None


def _content_of(tree: Any, kind: ManifestKind) -> Any:
    if not isinstance(tree, dict):
        message = f"a manifest is an object with kind, version and content, not {describe(tree)}"
        raise ManifestError(message, hint="a file of data becomes a dataset by `odfchain import FILE`")
    for key in ("kind", "version", "content"):
        if key not in tree:
            start = f"'kind: {kind.name}', 'version: {kind.versions[-1]}' and 'content:'"
            raise ManifestError(f"the manifest has no {key!r}", hint=f"a manifest starts with {start}")
    for key in tree:
        if key not in ("kind", "version", "content"):
            raise ManifestError(f"a manifest has no property {key!r} (only kind, version and content)")
    if tree["kind"] != kind.name:
        raise ManifestError(f"a manifest of kind {tree['kind']!r} where {kind.name} is expected")
    version = tree["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version not in kind.versions:
        supported = " and ".join(str(v) for v in kind.versions)
        raise ManifestError(f"{kind.name} version {version} is not supported ({supported} can be read)")
    return from_tree(kind.content, tree["content"])


def block_document(block: ev.MetadataBlock, version: int = MANIFEST_VERSION) -> dict[str, Any]:
    """The tree of a block's manifest, in the spelling of that version's era (RFC-005)."""
    return {
        "kind": "MetadataBlock",
        "version": version,
        "content": to_tree(block, spelling="0.34.1" if version == 2 else "0.39"),
    }


def snapshot_document(snapshot: ev.DatasetSnapshot) -> dict[str, Any]:
    """The tree of a snapshot's manifest, in the spelling of 0.34.1."""
    return {"kind": "DatasetSnapshot", "version": 1, "content": to_tree(snapshot)}
