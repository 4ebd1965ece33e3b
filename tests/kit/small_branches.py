"""A dataset of three blocks with rows, recorded without Spark, to make branches of."""

from __future__ import annotations

import odfchain as odf
from odfchain.odf.events import AddData
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeRecord
from tests.kit import query_datasets

DAYS = [f"2026-01-0{day}T12:00:00Z" for day in range(1, 6)]
COLUMNS = [["k", "string"], ["v", "int64"]]
SPEC = {
    "made": DAYS[0],
    "blocks": [
        {"at": DAYS[1], "columns": COLUMNS},
        {"at": DAYS[2], "rows": [["+A", DAYS[1], "a", 1]]},
        {"at": DAYS[3], "rows": [["+A", DAYS[1], "b", 2], ["-R", DAYS[1], "a", 1]]},
    ],
}


def add(dataset: odf.Dataset, key: str, at: str = DAYS[4]) -> None:
    """One more row on the dataset's reference, recorded without Spark."""
    state = dataset.summary
    time = state.next_system_time(Timestamp.parse(at))  # of the rows and of their block
    query_datasets.add_rows(dataset._files, COLUMNS, [["+A", DAYS[1], key, 0]], time, state)


def merged(into: odf.Dataset, source: odf.Dataset, at: str | None = None) -> None:
    """A block that says that it is the merge of a branch."""
    files = into._files
    state = DatasetState.read(files.chain)
    assert source.head is not None
    record = MergeRecord(base=(state.head,), source=source.head, source_ref=source.ref, target=state.head)
    event = AddData(prev_offset=state.last_offset, new_source_state=record.to_state())
    commit(files, state, [event], [], system_time=Timestamp.parse(at) if at else state.next_system_time())
