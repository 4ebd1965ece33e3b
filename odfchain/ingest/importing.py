"""From a file of data to the definition of a dataset: its name, its merge strategy, its event time.

Nothing is read or written here: what the file holds was inferred before (`inferred_file`).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.codec.yaml_manifest import read_snapshots, snapshot_document
from odfchain.codec.yaml_writer import dump_yaml
from odfchain.errors import BadInputError, InvalidIdError, UsageError
from odfchain.ids.names import DatasetAlias
from odfchain.ingest.read.formats import extension_of
from odfchain.ingest.read.inferred_file import InferredFile
from odfchain.limits import LIMITS
from odfchain.model import data_schema as ds
from odfchain.model.enums import DatasetKind, TimeUnit
from odfchain.model.events import AddPushSource, DatasetVocabulary, MetadataEvent, SetVocab
from odfchain.model.metadata_block import DatasetSnapshot
from odfchain.model.sources import (
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
)
from odfchain.text import printable

_KEYED = {"snapshot": MergeStrategySnapshot, "ledger": MergeStrategyLedger}
MERGES = (*_KEYED, "append")
"""How the rows of a later file meet what is recorded."""

_VOCABULARY = DatasetVocabulary()
SYSTEM_COLUMNS = frozenset(_VOCABULARY.columns) - {_VOCABULARY.event_time_column}
"""Names that no column of a file can have; one called like the event time is it."""


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The dataset that an import makes, and what was inferred for it."""

    file: InferredFile
    snapshot: DatasetSnapshot
    manifest: str
    """The definition as YAML."""
    merge: str
    """Of `MERGES`."""
    key: tuple[str, ...]
    event_time: str | None
    """The column of the event time; None where that is the time of ingestion."""
    notes: tuple[str, ...]
    """What the user should know besides what stands with the columns."""

    @property
    def name(self) -> DatasetAlias:
        """The name of the dataset."""
        return self.snapshot.name


def merge_for(merge: str | None, key: Sequence[str]) -> str:
    """The merge strategy that is meant: `snapshot` where a key is given, else `append`.

    Raises:
        UsageError: no such strategy, or it and the key exclude each other.
    """
    strategy = merge or ("snapshot" if key else "append")
    if strategy not in MERGES:
        raise UsageError(
            f"no merge strategy is called {strategy!r}", hint=f"it is one of {', '.join(MERGES)}"
        )
    if strategy == "append" and key:
        raise UsageError("every row is new to append: it has no key", hint="leave the key out, or use ledger")
    if strategy != "append" and not key:
        raise UsageError(f"merge {strategy} needs the columns that name a record", hint="say them with --key")
    return strategy


def name_for(path: Path, name: str | None) -> DatasetAlias:
    """The name that is given, or one made of the file's: `Größe (2).csv` becomes `Grosse-2`.

    Raises:
        UsageError: the file's name has nothing that a name can be made of.
    """
    if name is not None:
        return DatasetAlias.parse(name)
    extension = extension_of(path)
    stem = path.name[: -len(extension)] if extension else path.stem
    ascii_only = unicodedata.normalize("NFKD", stem.replace("ß", "ss")).encode("ascii", "ignore").decode()
    words = [re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in ascii_only.split(".")]
    made = ".".join(word for word in words if word)[: LIMITS.name_bytes].rstrip(".-")
    try:
        return DatasetAlias.parse(made)
    except InvalidIdError:
        raise UsageError(
            f"no name of a dataset can be made of {printable(path.name, 60)!r}", hint="say one: --as my.sales"
        ) from None


def plan_import(
    path: Path,
    inferred: InferredFile,
    name: DatasetAlias,
    key: Sequence[str],
    event_time: str | None,
    merge: str,
) -> ImportPlan:
    """The dataset that holds the rows of a file."""
    for column in (*key, *([event_time] if event_time is not None else [])):
        _check_known(path, inferred, column)
    notes = list(inferred.notes)
    if event_time is None and inferred.column(_VOCABULARY.event_time_column) is not None:
        event_time = _VOCABULARY.event_time_column
    if event_time is not None:
        inferred = _with_event_time(path, inferred, event_time, notes)
    events: list[MetadataEvent] = []
    if event_time not in (None, _VOCABULARY.event_time_column):
        events.append(SetVocab(event_time_column=event_time))
    keyed = _KEYED.get(merge)
    strategy = keyed(primary_key=tuple(key)) if keyed is not None else MergeStrategyAppend()
    events.append(AddPushSource(read=inferred.read, merge=strategy))
    snapshot = DatasetSnapshot(name=name, kind=DatasetKind.ROOT, metadata=tuple(events))
    text = (
        f"# The columns are those of {printable(path.name)}, of which `odfchain import` inferred the types.\n"
        f"# Later files are read as this says: odfchain ingest {name} FILE\n"
    ) + dump_yaml(snapshot_document(snapshot))
    (read_back,) = read_snapshots(text)
    return ImportPlan(inferred, read_back, text, merge, tuple(key), event_time, tuple(notes))


def _check_known(path: Path, inferred: InferredFile, name: str) -> None:
    if inferred.column(name) is not None:
        return
    names = [c.name for c in inferred.columns]
    close = difflib.get_close_matches(name, names, n=1)
    listed = printable(", ".join(names), 200)
    hint = f"did you mean {printable(close[0])!r}?" if close else f"it has {listed}"
    raise UsageError(f"{path} has no column {printable(name, 60)!r}", hint=hint)


def _with_event_time(path: Path, inferred: InferredFile, name: str, notes: list[str]) -> InferredFile:
    column = inferred.column(name)
    assert column is not None  # noqa: S101 - known to be there
    data_type = column.field.value_type
    if not isinstance(data_type, ds.DataTypeDate | ds.DataTypeTimestamp):
        why = f" ({column.note})" if column.note else ""
        raise BadInputError(
            f"column {printable(name, 60)!r} cannot be the event time: it is {column.type}{why}",
            file=str(path),
            hint="event times are dates or times such as 2024-05-01 or 2024-05-01T12:00:00Z in every row; "
            "choose another column with --event-time, or rename this one",
        )
    if isinstance(data_type, ds.DataTypeDate):
        notes.append("the event times are days: each counts as its midnight in UTC")
    if column.values is not None and column.values < inferred.rows:
        notes.append(
            f"rows without an event time: {inferred.rows - column.values:,}; they get the time of ingestion"
        )
    if not (isinstance(data_type, ds.DataTypeTimestamp) and data_type.unit is TimeUnit.MICROSECOND):
        return inferred
    notes.append("event times are kept to the millisecond: what is finer is cut off")
    kept = ds.optional(dataclasses.replace(data_type, unit=TimeUnit.MILLISECOND))
    return inferred.with_column(
        dataclasses.replace(column, field=ds.DataField(name=name, type=kept), note=column.note)
    )
