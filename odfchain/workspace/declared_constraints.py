"""The attachment CONSTRAINTS.yaml: what tells records apart, and what their columns refer to (RFC-037).

    primaryKey: [airline, source, destination]
    foreignKeys:
      - {columns: [source], references: {dataset: org.airports}, onViolation: refuse}    # or report
      - {columns: [reviewed], references: {changesOf: org.airports}}                     # a text BLOCK#OFFSET

People write names, chains hold ids. The text may come from an untrusted publisher: it is bounded, and read
strictly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from odfchain.errors import ManifestError
from odfchain.limits import LIMITS
from odfchain.odf.events import AttachmentEmbedded, SetAttachments
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetRefAny, RemoteDatasetId, parse_ref_any
from odfchain.odf.tree import Rule, from_tree, sized
from odfchain.text import one_line

FILE = "CONSTRAINTS.yaml"
fault = functools.partial(ManifestError, source=FILE)


class OnViolation(Enum):
    """Action on a commit that breaks a foreign key."""

    REFUSE = "refuse"
    REPORT = "report"
    """It is committed, and said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """Columns whose values are the primary key of another dataset's record, or name a change of it."""

    columns: tuple[str, ...]
    dataset: DatasetId
    changes: bool = False
    """True if a change is named, by `BLOCK#OFFSET`, and no record."""
    on_violation: OnViolation = OnViolation.REFUSE

    def __str__(self) -> str:
        return ", ".join(map(one_line, self.columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The declared constraints of a dataset."""

    primary_key: tuple[str, ...] = ()
    """The key of records where no merge strategy has one."""
    foreign_keys: tuple[ForeignKey, ...] = ()


NONE = Constraints()

Resolve = Callable[[DatasetRefAny], DatasetId | None]
"""Finds the id of a dataset that a reference names, None when it is unknown."""


def attached_text(event: SetAttachments | None) -> str | None:
    """The text of CONSTRAINTS.yaml; None where it is not attached, `ManifestError` where it is twice."""
    found = [item.content for item in event.attachments.items if item.path == FILE] if event else []
    if len(found) > 1:
        raise fault("the file is attached twice")
    return found[0] if found else None


def recorded_constraints(event: SetAttachments | None) -> Constraints:
    """The constraints that the attachments of a chain declare."""
    text = attached_text(event)
    return NONE if text is None else parse_constraints(text, _only_ids)


def _only_ids(ref: DatasetRefAny) -> DatasetId | None:
    # a name in a chain would mean another dataset in each workspace
    return ref.id if isinstance(ref, RemoteDatasetId) and ref.repo is None else None


def parse_constraints(text: str, resolve: Resolve) -> Constraints:
    """The constraints that a text declares; a `ManifestError` names line and path."""
    # loaded here: most commands read no constraints, and reading YAML is slow to load
    from odfchain.odf.yaml import read_document

    if len(text) > LIMITS.constraints_characters:
        raise fault(f"larger than {LIMITS.constraints_characters:,} characters")
    document = read_document(text, source=FILE)
    try:
        return _constraints(document.value, resolve)
    except ManifestError as error:
        raise error.located(source=FILE, line=document.line_of(error.path)) from None


_Columns = Annotated[
    tuple[Annotated[str, Rule("the name of a column", bool)], ...],
    sized(1, LIMITS.key_columns, "a list of columns,"),
    Rule("different columns", lambda columns: len({*columns}) == len(columns)),
]
_References = Annotated[
    Mapping[str, DatasetRefAny],
    Rule("either 'dataset' or 'changesOf'", lambda given: [*given] in (["dataset"], ["changesOf"])),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    columns: _Columns
    references: _References
    on_violation: OnViolation = OnViolation.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    primary_key: _Columns = ()
    foreign_keys: Annotated[tuple[_Key, ...], sized(0, LIMITS.foreign_keys, "a list")] = ()


def _constraints(tree: Any, resolve: Resolve) -> Constraints:
    file = from_tree(_File, tree)
    if not tree:
        raise ManifestError("it declares neither primaryKey nor foreignKeys")
    seen, found = set(), []
    for index, key in enumerate(file.foreign_keys):
        path = f"foreignKeys[{index}]"
        ((kind, ref),) = key.references.items()
        if (changes := kind == "changesOf") and len(key.columns) != 1:
            raise ManifestError("a change is named by one column", path=f"{path}.columns")
        if (dataset := resolve(ref)) is None:
            path = f"{path}.references.{kind}"
            message = f"unknown dataset {one_line(str(ref))!r}"
            raise ManifestError(message, path=path, hint="add or pull it first")
        # keys that differ by what happens on a violation are one key
        if (key.columns, dataset, changes) in seen:
            raise ManifestError("is declared twice", path=path)
        seen.add((key.columns, dataset, changes))
        found.append(
            ForeignKey(columns=key.columns, dataset=dataset, changes=changes, on_violation=key.on_violation)
        )
    return Constraints(primary_key=file.primary_key, foreign_keys=tuple(found))


def _with_ids(text: str, id_of: Callable[[str, str], object]) -> str:
    import yaml

    text = text.removeprefix("\ufeff")
    try:
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise fault(f"not valid YAML: {one_line(str(error))}") from None
    places: list[tuple[int, int, str]] = []
    for list_key, keys in root.value:
        for entry in keys.value if list_key.value == "foreignKeys" else ():
            for name, target in entry.value:
                if name.value == "references":
                    ((kind, node),) = target.value
                    if (found := str(id_of(kind.value, node.value))) != node.value:
                        places.append((node.start_mark.index, node.end_mark.index, found))
    # replaced in the text, from the end: comments and order stay as they are
    for start, end, name in sorted(places, reverse=True):
        text = text[:start] + name + text[end:]
    return text


@dataclass(frozen=True, slots=True)
class ConstraintsFile:
    """CONSTRAINTS.yaml among the attachments that an event sets, where it is one of them."""

    event: SetAttachments

    def resolved(self, resolve: Resolve) -> SetAttachments:
        """The attachments as a chain holds them: the file has ids where people wrote names."""
        if (text := attached_text(self.event)) is None:
            return self.event
        declared = parse_constraints(text, resolve)
        content = _with_ids(text, lambda _, name: resolve(parse_ref_any(name)))
        # names are replaced in the text, so what the text means now is compared
        if parse_constraints(content, _only_ids) != declared:
            raise fault("write the names of datasets plainly, or in quotes")
        return self._with(content)

    def referenced(self) -> list[DatasetRefAny]:
        """The datasets that the file names, as it names them; none where it is not understood."""
        found: list[DatasetRefAny] = []

        def seen(ref: DatasetRefAny) -> DatasetId:
            found.append(ref)
            # an id of its own for each: equal keys to one dataset are a fault
            return DatasetId(len(found).to_bytes(32, "big"))

        try:
            if (text := attached_text(self.event)) is not None:
                parse_constraints(text, seen)
        except ManifestError:
            return []
        return found

    def moved(self, old: DatasetId, new: DatasetId) -> SetAttachments:
        """The attachments of a dataset that goes on under another id: records refer to its own ones there.

        Changes stay those of the old one. A file that is not understood stays as it is.
        """
        own = str(old)
        try:
            text = attached_text(self.event)
            if text is None or recorded_constraints(self.event) == NONE:
                return self.event
            return self._with(
                _with_ids(text, lambda kind, name: new if (kind, name) == ("dataset", own) else name)
            )
        except ManifestError:
            return self.event

    def _with(self, content: str) -> SetAttachments:
        items = tuple(
            AttachmentEmbedded(path=FILE, content=content) if item.path == FILE else item
            for item in self.event.attachments.items
        )
        return SetAttachments(attachments=type(self.event.attachments)(items=items))
