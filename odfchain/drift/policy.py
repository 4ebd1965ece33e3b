"""How far two profiles may be apart: limits of effect sizes, for all columns and for some.

    kind: DriftPolicy
    version: 1
    content:
      minRows: 100
      rows: {min: 0.5, max: 2}
      schema: {removed: fail, retyped: fail, added: note}
      defaults: {nullFraction: 0.05, ks: 0.1, js: 0.1, languages: 0.1}
      columns: {lon: {ks: 0.15}, iata: skip}

What a policy leaves out has the limit above; `null` is no limit. The same file gates a commit
(`snapshots.guard`). Source: RFC-041.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from odfchain.errors import ManifestError, child_path

KIND = "DriftPolicy"


class Reaction(Enum):
    """What a change of the schema means."""

    FAIL = "fail"
    NOTE = "note"
    IGNORE = "ignore"


METRICS = {
    "nullFraction": "null_fraction", "duplicateRowFraction": "duplicate_row_fraction", "ks": "ks", "w1": "w1",
    "js": "js", "linf": "linf", "psi": "psi", "languages": "languages", "jaccard": "jaccard",
}  # fmt: skip
"""Names in a policy, and those of the metrics."""
_LIMITS = {
    "null_fraction": 0.05, "duplicate_row_fraction": 0.01, "ks": 0.1, "js": 0.1, "languages": 0.1,
}  # fmt: skip
_OF_DATASET = frozenset({"duplicate_row_fraction", "jaccard"})


@dataclass(frozen=True, slots=True)
class DriftPolicy:
    """Limits; a metric without one is a note."""

    min_rows: int = 100
    """Under so many rows on a side nothing but the schema is judged."""
    rows: tuple[float | None, float | None] = (0.5, 2.0)
    """Least and largest ratio of the numbers of rows."""
    schema: Mapping[str, Reaction] = field(
        default_factory=lambda: {"removed": Reaction.FAIL, "retyped": Reaction.FAIL, "added": Reaction.NOTE}
    )
    limits: Mapping[str, float | None] = field(default_factory=lambda: dict(_LIMITS))
    columns: Mapping[str, Mapping[str, float | None] | None] = field(default_factory=dict)
    """Limits of some columns; None leaves a column out."""

    def limit(self, metric: str, column: str | None = None) -> float | None:
        """The limit of a metric; None is none."""
        own = self.columns.get(column) if column is not None else None
        return own[metric] if own and metric in own else self.limits.get(metric)

    def without_limits(self) -> DriftPolicy:
        """The same columns, and nothing that is judged but the schema."""
        columns: dict[str, Mapping[str, float | None] | None] = {
            name: {} if own is not None else None for name, own in self.columns.items()
        }
        return dataclasses.replace(self, rows=(None, None), limits={}, columns=columns)

    def skips(self, column: str) -> bool:
        """Whether a column is left out."""
        return column in self.columns and self.columns[column] is None


def read_policy(text: str | bytes, *, source: str | None = None) -> DriftPolicy:
    """The policy of a YAML or JSON document.

    Raises:
        ManifestError: naming the path of what is wrong.
    """
    from odfchain.codec.yaml_reader import read_documents  # noqa: PLC0415 - where there is a policy at all

    documents = read_documents(text, source=source)
    if len(documents) != 1:
        raise ManifestError(f"{len(documents)} documents, one policy is expected", source=source)
    try:
        return _policy(documents[0].value)
    except ManifestError as error:
        line = documents[0].line_of(error.path) if error.path else None
        raise ManifestError(
            error.message, path=error.path, line=line, source=source, hint=error.hint
        ) from None


def _policy(tree: Any) -> DriftPolicy:
    top = _members(tree, "", {"kind", "version", "content"})
    if top.get("kind") != KIND or top.get("version") != 1:
        raise ManifestError(
            f"not a {KIND} of version 1", path="kind", hint=f"begin with `kind: {KIND}`, `version: 1`"
        )
    content = _members(
        top.get("content") or {}, "content", {"minRows", "rows", "schema", "defaults", "columns"}
    )
    found = DriftPolicy()
    if "minRows" in content:
        found = dataclasses.replace(found, min_rows=int(_number(content["minRows"], "content.minRows") or 0))
    if "rows" in content:
        given = _members(content["rows"], "content.rows", {"min", "max"})
        low, high = (
            _number(given[name], f"content.rows.{name}") if name in given else usual
            for name, usual in zip(("min", "max"), found.rows, strict=True)
        )
        found = dataclasses.replace(found, rows=(low, high))
    if "schema" in content:
        given = _members(content["schema"], "content.schema", set(found.schema))
        chosen = {name: _reaction(value, f"content.schema.{name}") for name, value in given.items()}
        found = dataclasses.replace(found, schema={**found.schema, **chosen})
    if "defaults" in content:
        limits = _limits(content["defaults"], "content.defaults", set(METRICS))
        found = dataclasses.replace(found, limits={**found.limits, **limits})
    columns: dict[str, Mapping[str, float | None] | None] = {}
    for name, value in _members(content.get("columns") or {}, "content.columns", None).items():
        where = child_path("content.columns", name)
        allowed = {key for key, metric in METRICS.items() if metric not in _OF_DATASET}
        columns[name] = None if value == "skip" else _limits(value, where, allowed)
    return dataclasses.replace(found, columns=columns)


def _members(value: Any, path: str, allowed: set[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ManifestError("an object is expected", path=path)
    for name in value:
        if allowed is not None and name not in allowed:
            raise ManifestError(
                f"{name!r} is not known",
                path=child_path(path, name),
                hint=f"there are {', '.join(sorted(allowed))}",
            )
    return value


def _limits(value: Any, path: str, allowed: set[str]) -> dict[str, float | None]:
    given = _members(value, path, allowed)
    return {METRICS[name]: _number(limit, child_path(path, name)) for name, limit in given.items()}


def _number(value: Any, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ManifestError("a number that is not negative is expected, or null", path=path)
    return float(value)


def _reaction(value: Any, path: str) -> Reaction:
    try:
        return Reaction(value)
    except ValueError:
        raise ManifestError("fail, note or ignore is expected", path=path) from None
