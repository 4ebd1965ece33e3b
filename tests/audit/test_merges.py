"""Check 17: merges that are what they say, and merges that only say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit import merge_check
from odfchain.audit.dataset_checks import examine
from odfchain.audit.merge_check import MergeAgain
from odfchain.audit.replay import Difference
from odfchain.audit.report import CORRECTIONS, MERGES, Report
from odfchain.audit.verification import Auditor
from odfchain.branches.intervals import Interval, MergedColumns, read_rows
from odfchain.branches.recording import stage_changes
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.schema import DataField, DataTypeOption, DataTypeString
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.text import printable
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import Granularity, MergeMode, MergeRecord, Resolution
from tests.kit.branch_cases import Case, Scene, parse_row, run_here, steps_of
from tests.kit.foreign_key_cases import Scene as ForeignScene
from tests.kit.query_datasets import moment
from tests.kit.root_rows import records_after
from tests.kit.verified import verify_dataset

DISJOINT: Case = {"ours": ["-C 1xy", "+C 1qy"], "theirs": ["-C 1xy", "+C 1xz", "2ab"]}
TORN: Case = {"ours": ["-C 1xy", "+C 1qy"], "theirs": ["-C 1xy", "+C 1pz", "2ab"]}
DELETED: Case = {"ours": ["-C 1xy", "+C 1qy"], "theirs": ["-R 1xy", "2ab"]}
GOOD = ["-C 1qy", "+C 1qz", "+A 2ab"]
"""What `DISJOINT` merges into."""
ONE: dict[str, Any] = {"conflicts": 1, "resolution": Resolution.ROWS}


class Merging:
    """A dataset whose merge block says whatever a test wants."""

    def __init__(self, workspace: Workspace, folder: Path, case: Case) -> None:
        self.scene = Scene.of(case, workspace, folder, run_here(workspace))
        for step in steps_of(case):
            self.scene.take(step)
        self.record = MergeRecord(
            base=(self.block("base"),), source=self.head("theirs"), source_ref="theirs", target=self.head()
        )

    def block(self, label: str) -> Multihash:
        return Multihash.parse(self.scene.labels[label])

    def head(self, ref: str = HEAD) -> Multihash:
        return self.scene.on(ref).chain.head()

    def write(
        self, rows: list[str], *, columns: int = 3, watermark: str | None = None, **record: Any
    ) -> None:
        """A merge block with these rows and this record."""
        dataset = self.scene.on(HEAD)
        state = DatasetState.read(dataset.chain)
        schema = self.scene._schema(HEAD)
        declared = state.schema
        if columns == 4:
            schema = schema.append(pa.field("c", pa.string()))
            field = DataField(name="c", type=DataTypeOption(inner=DataTypeString()))
            declared = dataclasses.replace(declared, fields=(*declared.fields, field))
        parsed = [parse_row(row, schema) for row in rows]
        time = state.next_system_time(Timestamp.parse("2026-02-01T00:00:00Z"))
        given = [(row["op"], moment(f"2025-01-{row['day']:02}"), *row["values"]) for row in parsed]
        table = records_after(None, schema, given, time).drop_columns(["offset", "system_time"])
        table = table.set_column(0, "op", table["op"].cast(pa.int32()))
        with dataset.staging() as staging:
            staged = stage_changes(
                dataset, state, table if rows else None, staging=staging, system_time=time, schema=declared,
                record=dataclasses.replace(self.record, **record),
            )  # fmt: skip
            events = [
                dataclasses.replace(event, new_watermark=Timestamp.parse(watermark))
                if watermark and isinstance(event, ev.AddData)
                else event
                for event in staged.events
            ]
            commit(dataset, state, events, staged.slices, system_time=time)

    def verify(self) -> Report:
        return verify_dataset(self.scene.on(HEAD))

    def verified(self, rows: list[str], **record: Any) -> Report:
        self.write(rows, **record)
        return self.verify()


Make = Callable[[Case], Merging]


@pytest.fixture
def merging(tmp_path: Path) -> Iterator[Make]:
    """Makes the dataset of a case."""
    with Workspace.init(tmp_path / "workspace") as workspace:
        yield lambda case: Merging(workspace, tmp_path, case)


KEYLESS: Case = {"theirs": ["2ab", "3cd"], "key": []}
NOT_MADE = "k=1 is not what the merge makes of it"


@pytest.mark.parametrize(
    ("case", "rows", "record", "says"),
    [
        (DISJOINT, ["-C 1qy", "+C 1qw", "+A 2ab"], {}, f"{NOT_MADE}: column `b`, recorded 'w', computed 'z'"),
        (DISJOINT, ["-C 1qy", "+C 1q∅", "+A 2ab"], {}, "column `b`, recorded null, computed 'z'"),
        (DISJOINT, ["-C 1qy", "+C 1qz @2", "+A 2ab"], {}, "column `event_time`, recorded 2025-01-02"),
        (DISJOINT, ["-C 1pz", "+C 1qz", "+A 2ab"], {}, f"{NOT_MADE}: before it, column `a`, recorded 'p', computed 'q'"),
        (DISJOINT, ["-R 1qy", "+A 2ab"], {}, f"{NOT_MADE}: after it, recorded no row, computed a row"),
        (DISJOINT, ["+A 1qz", "+A 2ab"], {}, "before it, recorded no row, computed a row"),
        (DISJOINT, [*GOOD, "+A 3cd"], {}, "k=3 is changed, which the merge does not change: after it, recorded a row, computed no row"),
        (DISJOINT, GOOD[:2], {}, "k=2 is not changed as the merge changes it: it has no rows: after it, recorded no row, computed a row"),
        (DISJOINT, GOOD[2:], {}, "k=1 is not changed as the merge changes it: it has no rows: column `b`, recorded 'y', computed 'z'"),
        (TORN, GOOD, ONE | {"resolution": Resolution.THEIRS}, "column `a`, recorded 'q', computed 'p'"),
        (TORN, ["-C 1qy", "+C 1py", "+A 2ab"], ONE, "k=1 is not as it merges in b, which is in no conflict: column `b`, recorded 'y', computed 'z'"),
        (TORN, ["-C 1qy", "+C 1wz", "+A 2ac"], ONE, "k=2 is not what the merge makes of it: column `b`, recorded 'c', computed 'b'"),
        (DISJOINT, [], {}, "(2 such keys)"),
        (DISJOINT, ["-R 1qy", "+A 1qz", "+A 2ab"], {}, "not one change of each key"),
        (DISJOINT, ["+A 2ab", "-C 1qy", "+C 1qz"], {}, "not one change of each key"),
        (DISJOINT, GOOD, {"conflicts": 1}, "it records 1 decided conflict, and the merge has 0"),
        (TORN, GOOD, {}, "it records 0 decided conflicts, and the merge has 1"),
        (TORN, ["-C 1qy", "+C 1wz", "+A 2ab", "+A 3cd"], ONE, "k=3 is changed, which the merge does not"),
        (TORN, ["+A 2ab"], ONE, "k=1 is not as it merges in b"),
        (DISJOINT, GOOD, {"granularity": Granularity.ROW}, "it records 0 decided conflicts, and the merge has 2"),
        (KEYLESS, ["+A 2ab", "+A 3cw"], {}, "row 2 of the block, column `b`, recorded 'w', computed 'd'"),
        (KEYLESS, ["+A 2ab"], {}, "row 2 of the block, recorded no row, computed a row"),
        (KEYLESS, ["+A 2ab", "+A 3cd", "+A 4ef"], {}, "row 3 of the block, recorded a row, computed no row"),
    ],
)  # fmt: skip
def test_other_rows_than_the_merge_has_are_a_fault_that_names_row_column_and_both_values(
    merging: Make, case: Case, rows: list[str], record: dict[str, Any], says: str
) -> None:
    faults = merging(case).verified(rows, **record).faults
    takes_back_wrongly = rows[:1] == ["-C 1pz"]
    assert {fault.check for fault in faults} == {MERGES, *([CORRECTIONS] if takes_back_wrongly else [])}
    assert says in " ".join(fault.message for fault in faults)


def test_what_a_forged_value_is_shown_as_is_bounded_and_does_not_act() -> None:
    value, name = "\x1b[31m" + "x" * 100_000, "\x1b]0;y\x07" + "n" * 1_000
    cell = merge_check._cell(name, pa.chunked_array([[value]]), pa.chunked_array([["\u202e"]]))
    for text in (cell, str(Difference(1, name, None, None))):
        assert text == printable(text)
        assert len(text) < 300


OURS, THEIRS = ({"conflicts": 1, "resolution": side} for side in (Resolution.OURS, Resolution.THEIRS))


@pytest.mark.parametrize(
    ("case", "rows", "record", "decided"),
    [
        (TORN, GOOD, OURS, None),
        (TORN, ["-C 1qy", "+C 1pz", "+A 2ab"], THEIRS, None),
        (DELETED, ["+A 2ab"], OURS, None),
        (DELETED, ["-R 1qy", "+A 2ab"], THEIRS, None),
        (TORN, ["-C 1qy", "+C 1wz", "+A 2ab"], ONE, "k=1, a: edited by hand: w"),
        (TORN, ["-C 1qy", "+C 1pz", "+A 2ab"], ONE, "k=1, a: theirs"),
        (TORN, GOOD, ONE, "k=1, a: ours"),
        (TORN, ["-C 1qy", "+C 1xz", "+A 2ab"], ONE, "k=1, a: base"),
        (TORN, ["-R 1qy", "+A 2ab"], ONE, "k=1: deleted"),
        (DELETED, ["+A 2ab"], ONE, "k=1: ours"),
        (DELETED, ["-R 1qy", "+A 2ab"], ONE, "k=1: theirs"),
        (DELETED, ["-C 1qy", "+C 1xy", "+A 2ab"], ONE, "k=1: base"),
        (DELETED, ["-C 1qy", "+C 1ww", "+A 2ab"], ONE, "k=1: edited by hand"),
    ],
)
def test_a_side_that_was_taken_is_followed_and_what_was_decided_one_by_one_is_said(
    merging: Make, case: Case, rows: list[str], record: dict[str, Any], decided: str | None
) -> None:
    report = merging(case).verified(rows, **record)
    assert (report.faults, report.ok) == ([], True)
    if decided:
        assert f"block 5, conflict decided: {decided}" in report.notes


def test_another_base_source_or_target_is_a_fault(merging: Make) -> None:
    made = merging(DISJOINT)
    seed = made.scene.on(HEAD).chain.hashes(made.head())[0]
    made.scene.take({"branch": "other", "at": "base"})
    made.scene.take({"on": "other", "rows": ["-C 1xy", "+C 1xw"]})
    made.write(GOOD, base=(made.block("base"), made.head("other")))
    made.write([], base=(seed,), target=made.head())
    made.write([], source=made.head("other"), target=made.head())
    made.write([], source=made.head("other"))
    report = made.verify()
    assert [fault.sequence_number for fault in report.faults] == [5, 6, 7, 8]
    base = "the base that it records is"
    for fault, text in zip(
        report.faults, [base, base, "not what its two sides merge", "target"], strict=True
    ):
        assert (fault.check, text in fault.message) == (MERGES, True), fault


@pytest.mark.parametrize(
    "theirs",
    [
        ["-C 1xw", "+C 1xz"],
        [["-C 1xy", "+C 1xw"], ["-C 1xy", "+C 1xz"]],
        [["-R 1xy"], ["-C 1xy", "+C 1xz"]],
        [["-C 3xy", "+C 3xz"], ["-C 1xy", "+C 1xz"]],
        [["-C 1xy @2", "+C 1xz"]],
    ],
    ids=["at the fork", "later", "gone", "never there", "event time"],
)
@pytest.mark.parametrize("key", [["k"], ["k", "a"]])
def test_a_source_that_is_not_sound_is_a_fault(merging: Make, theirs: list[Any], key: list[str]) -> None:
    """A forged `-C` would move the base, and override ours in silence."""
    made = merging({"ours": ["2ab"], "theirs": theirs, "key": key})
    (fault,) = made.verified(["-C 1xy", "+C 1xz"]).faults
    assert fault.check == MERGES
    assert "what it merged is not sound, by check 10" in fault.message


def test_a_source_that_is_damaged_is_a_fault(merging: Make) -> None:
    made = merging(DISJOINT)
    made.write(GOOD)
    theirs = made.scene.on("theirs")
    event = theirs.chain.get(made.record.source).event
    path = Path(theirs.data.locate(event.new_data.physical_hash))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (fault,) = made.verify().faults
    assert (fault.check, fault.file) == (MERGES, str(path))
    assert "by check 6" in fault.message


def test_a_record_that_is_carried_on_is_one_merge(merging: Make) -> None:
    made = merging(DISJOINT)
    made.write(GOOD)
    dataset = made.scene.on(HEAD)
    state = DatasetState.read(dataset.chain)
    last = state.head_block.event
    again = ev.AddData(
        prev_offset=state.last_offset, new_watermark=Timestamp.parse("2025-03-01T00:00:00Z"),
        new_source_state=last.new_source_state,
    )  # fmt: skip
    commit(dataset, state, [again], [], system_time=state.next_system_time())
    report = made.verify()
    assert (report.faults, report.done[MERGES], report.state(MERGES)) == ([], 1, "passed")


def test_a_record_that_is_not_understood_is_a_fault(merging: Make) -> None:
    made = merging(DISJOINT)
    dataset = made.scene.on(HEAD)
    state = DatasetState.read(dataset.chain)
    wrong = ev.SourceState(source_name="odfchain/merge", kind="odfchain/merge", value="{}")
    event = ev.AddData(prev_offset=state.last_offset, new_watermark=state.watermark, new_source_state=wrong)
    commit(dataset, state, [event], [], system_time=state.next_system_time())
    (fault,) = made.verify().faults
    assert (fault.check, fault.sequence_number) == (MERGES, 5)
    assert "not understood" in fault.message


def test_the_watermark_of_a_merge_is_justified_by_its_rows(merging: Make) -> None:
    """Earlier rows of the chain do not justify that it moves here."""
    case = DISJOINT | {"base": ["1xy @9"], "ours": ["-C 1xy @9", "+C 1qy @9"]}
    case["theirs"] = ["-C 1xy @9", "+C 1xz @9", "2ab @3"]
    rows = ["-C 1qy @9", "+C 1qz @9", "+A 2ab @3"]
    faults = merging(case).verified(rows, watermark="2025-01-12T00:00:00Z").faults
    assert any("watermark" in fault.message and fault.check == MERGES for fault in faults)


WIDER: Case = {
    "steps": [
        {"branch": "theirs"},
        {"on": "theirs", "columns": [[name, "string"] for name in "kabc"]},
        {"on": "theirs", "rows": ["-C 1xy", "+C 1xyn"]},
    ]
}


@pytest.mark.parametrize(("rows", "columns"), [(["-C 1xy", "+C 1xyn"], 4), ([], 3)])
def test_the_schema_after_a_merge_has_all_columns(merging: Make, rows: list[str], columns: int) -> None:
    report = merging(WIDER).verified(rows, columns=columns)
    assert report.ok == (columns == 4)
    assert any("the schema after it" in fault.message for fault in report.faults) == (columns == 3)


REVERTED: Case = {"ours": [["-C 1xy", "+C 1qy"], ["-C 1qy", "+C 1qz"]]}


@pytest.mark.parametrize(
    ("rows", "record", "says"),
    [
        (["-C 1qz", "+C 1xz"], {}, None),
        (["-C 1qz", "+C 1xy"], {}, "is not what the merge makes of it"),
        (["-C 1qz", "+C 1xz"], {"mode": MergeMode.MERGE}, "the base that it records is"),
        (["-C 1qz", "+C 1xz"], {"source": 0}, "its source is not the block before the one that it reverts"),
        (["-C 1qz", "+C 1xz"], {"base": [4, 5]}, "it reverts what is not one block before it"),
    ],
)
def test_a_revert_is_checked_as_the_merge_that_it_is(
    merging: Make, rows: list[str], record: dict[str, Any], says: str | None
) -> None:
    made = merging(REVERTED | {"theirs": []})
    blocks = made.scene.on(HEAD).chain.hashes(made.head())
    told = {"mode": MergeMode.REVERT, "base": [4], "source": 3} | record
    told |= {"base": tuple(blocks[n] for n in told["base"]), "source": blocks[told["source"]]}
    report = made.verified(rows, **told)
    if says is None:
        assert (report.faults, report.ok) == ([], True)
    else:
        assert says in report.faults[0].message


def test_a_source_without_a_key_is_appended(merging: Make) -> None:
    case: Case = {"key": [], "base": ["1xy"], "ours": ["2ab"], "theirs": [["3cd"], ["3cd", "1xy"]]}
    made = merging(case)
    assert made.verified(["3cd", "3cd", "1xy"]).ok
    (fault,) = made.verified(["4ef"], target=made.head()).faults
    assert fault.check == MERGES


def test_a_right_merge_is_known_by_its_logical_hash(merging: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are not read again; so they have the system time of their block."""
    made = merging(DISJOINT)
    assert run_here(made.scene.workspace)("merge", "d", "theirs").code == 0
    monkeypatch.setattr(MergeAgain, "_written", None)
    report = made.verify()
    assert (report.faults, report.done[MERGES]) == ([], 1)


FOREIGN: Case = {
    "datasets": {
        "parent": {"columns": ["p", "a"], "key": ["p"]},
        "child": {
            "columns": ["c", "p"],
            "key": ["c"],
            "constraints": "foreignKeys: [{columns: [p], references: {dataset: parent}}]",
        },
    },
    "steps": [
        {"on": "parent", "rows": [["+A", "p0", "x"]]},
        {"on": "child", "branch": "v"},
        {"on": "parent", "rows": [["+A", "p1", "x"]]},
        {"on": "child@v", "rows": [["+A", "c1", "p1"]]},
    ],
}


@pytest.mark.parametrize(
    ("back", "state", "says"),
    [(0, "passed", ""), (1, "failed", "break a foreign key: 1 row of child"), (None, "notChecked", "")],
)
def test_foreign_keys_hold_against_the_blocks_that_the_record_names(
    tmp_path: Path, back: int | None, state: str, says: str
) -> None:
    scene = ForeignScene(FOREIGN, tmp_path)
    scene.hold()
    dataset, theirs, parent = scene.at("child"), scene.at("child@v"), scene.at("parent")
    names = [chain.hashes(head) for chain in (theirs.chain, parent.chain) if (head := chain.head())]
    before = DatasetState.read(dataset.chain)
    record = MergeRecord(
        base=(before.head,), source=names[0][-1], source_ref="v", target=before.head,
        references={} if back is None else {parent.seed.dataset_id: names[1][-1 - back]},
    )  # fmt: skip
    rows = read_rows(Interval(theirs, before.head, record.source), MergedColumns.of(before))
    rows, time = rows.drop_columns("offset"), before.next_system_time()
    with dataset.staging() as staging:
        staged = stage_changes(dataset, before, rows, staging=staging, system_time=time, record=record)
        staged.commit(dataset, before, time)
    report = examine(dataset, find=Auditor(scene.workspace._files).find).report
    assert report.state(MERGES) == state, report.faults
    assert says in " ".join(fault.message for fault in report.faults)
