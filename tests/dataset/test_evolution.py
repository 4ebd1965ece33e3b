"""`add --update` and schemas: what a manifest drops is refused, what runs have added stays (RFC-015)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import AppendError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from odfchain.workspace.creation import changes
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import snapshot

T = [Timestamp.parse(f"2020-01-0{day}T12:00:00Z") for day in range(1, 10)]
CITY, MAYOR, AREA = (
    ds.DataField(name=name, type=ds.optional(ds.DataTypeString())) for name in ("city", "mayor", "area")
)


def odf(*fields: ds.DataField) -> ev.SetDataSchema:
    return ev.SetDataSchema(schema=ds.DataSchema(fields=fields))


def raw(*fields: ds.DataField) -> ev.SetDataSchema:
    return ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(ds.DataSchema(fields=fields)))


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    return WorkspaceFiles.init(tmp_path).create(read_snapshots(snapshot("d"))[0])


def record(dataset: DatasetFiles, *events: ev.MetadataEvent) -> None:
    state = DatasetState.read(dataset.chain)
    later = Timestamp(state.head_block.system_time.epoch_ns + 1_000_000_000)
    commit(dataset, state, events, [], system_time=later)


def update(dataset: DatasetFiles, event: ev.MetadataEvent) -> bool:
    """Whether an update of the manifest with this event records anything."""
    found = changes([event], DatasetState.read(dataset.chain))
    if found:
        record(dataset, *found)
    return bool(found)


@pytest.mark.parametrize("declare", [odf, raw])
@pytest.mark.parametrize("now", [odf, raw])
def test_a_manifest_that_drops_a_column_is_refused(
    dataset: DatasetFiles, declare: Callable[..., Any], now: Callable[..., Any]
) -> None:
    record(dataset, declare(CITY, MAYOR))
    assert not update(dataset, declare(CITY, MAYOR))
    for fields in ((CITY,), (MAYOR,)):
        with pytest.raises(AppendError, match="was removed or renamed"):
            update(dataset, now(*fields))
    assert update(dataset, now(CITY, MAYOR, AREA))


def test_what_a_run_has_added_stays(dataset: DatasetFiles) -> None:
    record(dataset, odf(CITY))
    record(dataset, odf(CITY, MAYOR), ev.AddData(new_watermark=T[1]))
    assert not update(dataset, odf(CITY)), "the manifest says what it always said"
    assert not update(dataset, odf(CITY, MAYOR))
    with pytest.raises(AppendError, match="column 'mayor' was removed or renamed") as found:
        update(dataset, odf(CITY, AREA))
    assert "that runs have added" in str(found.value.hint)
    assert update(dataset, odf(CITY, MAYOR, AREA))
    with pytest.raises(AppendError, match="column 'mayor' was removed or renamed"):
        update(dataset, odf(CITY))


def test_the_vocabulary_of_a_dataset_with_records_stays(dataset: DatasetFiles) -> None:
    assert update(dataset, ev.SetVocab(event_time_column="date"))
    record(dataset, odf(CITY), ev.AddData(prev_offset=3, new_watermark=T[1]))
    assert not update(dataset, ev.SetVocab(event_time_column="date"))
    with pytest.raises(AppendError, match="the system columns cannot get other names"):
        update(dataset, ev.SetVocab())
