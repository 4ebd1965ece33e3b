"""Resources of ODF 0.39: one of the kind Dataset as the manifest of a snapshot, which 0.34.1 has (RFC-054).

The mapping is the tables of this page. What a resource says beyond a snapshot is named: as left out where it
is about the resource at one node, as a fault where the dataset would be another one without it. The events
are left to the reader of snapshots.
"""

from __future__ import annotations

import re
from typing import Any

from odfchain.codec.tree import describe, suggest
from odfchain.codec.yaml_reader import Document
from odfchain.errors import ManifestError
from odfchain.model import sources as src
from odfchain.model.events import MetadataEvent, SetPollingSource

SCHEMA = "$schema"
_SCHEMAS = "https://opendatafabric.org/schemas/"
_DATASET = "dataset/v1alpha1/Dataset"

PLACES = {"": "spec", "name": "headers.name", "kind": "spec.kind", "metadata": "spec.metadata"}
"""Where the members of a snapshot are in a resource; its account stands before the name, as in an alias."""

_LEFT_OUT = {
    "": ("status",),
    "headers": ("id", "labels", "annotations", "generation", "createdAt", "updatedAt", "deletedAt"),
    "spec": (),
}
"""What nodes keep about a resource; nothing of the dataset depends on it."""

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
"""What the dataset would be another one without, and what to do about it."""

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
"""What does the same here, by the kind of resource."""

_NEWER = {
    src.FetchStepMqtt: "0.35",
    src.FetchStepEthereumLogs: "0.36",
}
"""Steps that 0.34.1 does not have and nothing here polls, and the version that brought them."""

_SHOWN, _LONGEST = 8, 100
"""Members of what is left out that are named, and characters of each."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_resource(tree: Any) -> bool:
    """Whether a document says that it is a resource, of whatever kind."""
    return isinstance(tree, dict) and SCHEMA in tree and "kind" not in tree


def is_dataset(tree: Any) -> bool:
    """Whether a document says that it is a resource of the kind Dataset, of whatever version."""
    return (
        is_resource(tree) and re.fullmatch(rf"{_SCHEMAS}.*/Dataset(\.json)?", str(tree[SCHEMA])) is not None
    )


def as_snapshot(document: Document) -> tuple[Document, list[str]]:
    """The snapshot's manifest that a resource stands for, with its lines, and the paths that were left out.

    Raises:
        ManifestError: another kind of resource, or more than a snapshot can say. Paths are the document's.
    """
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
    return ManifestError(
        f"a resource of the kind {kind} ({group}), not a dataset: ODF 0.34.1 has no such resources",
        path=SCHEMA,
        hint=_INSTEAD.get(kind),
    )


def _member(tree: dict[str, Any], key: str) -> dict[str, Any]:
    if key not in tree:
        raise ManifestError(f"the resource has no {key!r}")
    if not isinstance(tree[key], dict):
        raise ManifestError(f"must be an object, not {describe(tree[key])}", path=key)
    return tree[key]  # type: ignore[no-any-return]


def _beyond(tree: dict[str, Any], path: str, carried: tuple[str, ...]) -> list[str]:
    """What is left out of a part of a resource, as paths.

    Raises:
        ManifestError: what is neither carried nor left out.
    """
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
        members = f" ({', '.join(names)})" if names else ""
        found.append(where + members)
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
        raise ManifestError(
            "an account without its name: in ODF 0.34.1 an alias has the name of its account",
            path=path,
            hint="write `account: NAME`, or leave it out",
        )
    return value, more


def notes_of(left_out: list[str], events: tuple[MetadataEvent, ...]) -> tuple[str, ...]:
    """What to say of a definition whose dataset does not keep all of it, or is not polled as it is."""
    notes = [f"not kept, because ODF 0.34.1 has no place for it: {', '.join(left_out)}"] if left_out else []
    for fetch in (event.fetch for event in events if isinstance(event, SetPollingSource)):
        if type(fetch) in _NEWER:
            notes.append(
                f"{fetch.KIND} came with ODF {_NEWER[type(fetch)]}: it is recorded and not polled here, and "
                "implementations of 0.34.1 cannot read the dataset"
            )
        if isinstance(fetch, src.FetchStepFilesGlob) and not fetch.path.startswith(("/", "${{")):
            notes.append(f"{fetch.path[:_LONGEST]!r} is recorded, and `pull` takes absolute paths only")
    return tuple(notes)
