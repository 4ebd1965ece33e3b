"""The history of transforms and sources, and what each of them brought."""

from __future__ import annotations

import json

import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.lineage import Definition
from odfchain.errors import DatasetNotFoundError
from odfchain.odf import events as ev
from odfchain.odf.sources import FetchStepUrl, MergeStrategyLedger, ReadStepCsv, SqlQueryStep, TransformSql
from tests.kit.derivation import Derived, Grown, Place, Root, transform_of
from tests.kit.support import Run, polling, push, seeded_id


def facts(found: list[Definition]) -> list[tuple[object, ...]]:
    return [(d.sequence_number, d.last_block, d.in_force, d.first_offset, d.last_offset) for d in found]


@pytest.fixture
def evolved(home: Workspace, place: Place) -> Derived:
    """A transform with two transactions, one without any, and one with one."""
    a, b = Root("a", place("a")), Root("b", place("b"))
    a.schema()
    b.schema()
    made = Derived(a, b, files=place("made"))  # block 1
    for _ in range(2):
        a.data(2)
        made.run()  # schema in 2, data in 3 and 4
    made.append(transform_of(a, b, query="SELECT 2"))  # block 5
    made.append(transform_of(a, b, query="SELECT 3\nFROM in0"))  # block 6
    a.data(3)
    made.run()  # block 7
    return made


def test_each_transform_has_its_blocks_and_records(home: Workspace, evolved: Derived) -> None:
    found = home["made"].definitions()
    assert facts(found) == [(1, 4, False, 0, 3), (5, 5, False, None, None), (6, 7, True, 4, 6)]
    assert [d.records for d in found] == [4, 0, 3]
    assert [d.transform.queries[0].query for d in found if d.transform and d.transform.queries] == [
        "SELECT 1", "SELECT 2", "SELECT 3\nFROM in0",
    ]  # fmt: skip


def test_inputs_have_the_name_of_the_query_the_id_and_the_name_here(
    home: Workspace, evolved: Derived
) -> None:
    home.rename("a", "alpha")
    home.delete("b", force=True)
    (found, *_) = home["made"].definitions()
    assert [(i.alias, i.id, i.name) for i in found.inputs] == [
        ("in0", str(seeded_id("a")), "alpha"), ("in1", str(seeded_id("b")), None),
    ]  # fmt: skip


def test_sources_of_roots_have_their_merge_strategy_and_preprocessing(home: Workspace, place: Place) -> None:
    root = Root("r", place("r"))
    root.schema()  # block 1
    root.append(polling())  # block 2
    root.data(5)
    root.append(ev.SetPollingSource(
        fetch=FetchStepUrl(url="https://me:secret@example.com/${{ env.X }}"),
        read=ReadStepCsv(ddl_schema=("k STRING",)), merge=MergeStrategyLedger(primary_key=("k",)),
        preprocess=TransformSql(engine="spark", queries=(SqlQueryStep(query="SELECT k"),)),
    ))  # block 4  # fmt: skip
    root.data(1)
    root.append(ev.DisablePollingSource())  # block 6
    root.data(1)
    found = home["r"].definitions()
    assert facts(found) == [(2, 3, False, 0, 4), (4, 5, False, 5, 5)]
    document = found[1].to_document()
    assert document["source"] == {
        "kind": "polling", "name": None, "fetch": "https://example.com/${{ env.X }}", "read": "Csv",
        "merge": "Ledger by k",
    }  # fmt: skip
    assert document["steps"] == [{"alias": None, "query": "SELECT k"}]


def test_records_of_sources_side_by_side_are_said_to_be_of_all_of_them(home: Workspace, place: Place) -> None:
    root = Root("r", place("r"))
    root.schema()  # block 1
    root.append(push("one"))  # block 2
    root.data(2)
    root.append(push("two"))  # block 4
    root.data(3)
    root.append(ev.DisablePushSource(source_name="one"))  # block 6
    root.append(ev.DisablePushSource(source_name="two"))  # block 7
    root.append(push("one"))  # block 8
    root.data(4)
    found = home["r"].definitions()
    assert facts(found) == [(2, 5, False, 0, 4), (4, 6, False, 2, 4), (8, 9, True, 5, 8)]
    assert [d.shared for d in found] == [True, True, False]


def test_a_dataset_that_is_only_pushed_to_has_no_history(home: Workspace, place: Place) -> None:
    Root("r", place("r"))
    with pytest.raises(DatasetNotFoundError, match="r has no transform and no source"):
        home["r"].definitions()


def test_the_command_prints_tables_and_json(home: Workspace, evolved: Grown, run: Run) -> None:
    here = ("-w", home.path.parent, "inspect", "query", "made")
    table = run(*here)
    assert (table.code, table.out.count("SetTransform")) == (0, 3)
    for line in (
        "in force    blocks 1 to 4",
        "in force    blocks 6 to now",
        "records     4 (0 to 3)",
        "records     0",
        f"input       in0: a ({seeded_id('a')})",
        "              FROM in0",
    ):
        assert line in table.out.splitlines()
    rows = json.loads(run(*here, "-o", "json").out)
    assert [row["blocks"] for row in rows] == [
        {"from": 1, "to": 4}, {"from": 5, "to": 5}, {"from": 6, "to": 7},
    ]  # fmt: skip
    assert rows[0]["inputs"][1] == {"alias": "in1", "id": str(seeded_id("b")), "name": "b", "missing": False}
    assert rows[0]["source"] is None
    assert rows[2]["offsets"] == [4, 6]


def test_what_queries_contain_is_not_sent_to_the_terminal_as_it_is(
    home: Workspace, place: Place, run: Run
) -> None:
    a = Root("a", place("a"))
    made = Derived(a, files=place("made"))
    made.append(transform_of(a, query="SELECT '\x1b[2J'\r\n, '\x07'"))
    found = run("-w", home.path.parent, "inspect", "query", "made")
    assert (found.code, {"\x1b", "\x07"} & set(found.out)) == (0, set())
