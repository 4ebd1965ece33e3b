"""Where a record comes from: slice, block, source or transform, and the records it is made of."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.blame import Blame, Locator
from odfchain.errors import ChainError, ObjectCorruptedError, SchemaError, UsageError
from odfchain.limits import LineageLimits
from odfchain.odf import events as ev
from odfchain.odf.sources import MergeStrategySnapshot, ReadStepCsv
from odfchain.transfer.slice_files import Selection
from tests.kit import derived_dataset as derived
from tests.kit.derivation import Derived, Place, Root, lines, transform_of
from tests.kit.recorded_dataset import add as add_event
from tests.kit.support import Run, data_slice, polling, push, seeded_id

SCHEMA = pa.schema([("offset", pa.uint64()), ("op", pa.uint8()), ("k", pa.string()), ("v", pa.float64())])


def parquet(start: int, *rows: tuple[int, str | None, float], group: int = 2) -> bytes:
    """A slice: op, key and value of its records."""
    columns = [range(start, start + len(rows)), *zip(*rows, strict=True)]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=group)
    return buffer.getvalue()


def add(root: Root, *rows: tuple[int, str | None, float], group: int = 2) -> None:
    start = 0 if root.last is None else root.last + 1
    root.data(len(rows), content=parquet(start, *rows, group=group))


def row_at(home: Workspace, offset: int) -> Any:
    """The record of `r` with this offset."""
    (transaction,) = home["r"].blame(offset).transactions
    (row,) = transaction.rows
    return row


def source_at(home: Workspace, offset: int) -> Any:
    return home["r"].blame(offset).transactions[0].source


@pytest.fixture
def bare(place: Place) -> Root:
    """A root with a schema, and neither a source nor records."""
    root = Root("r", place("r"))
    root.schema()
    return root


@pytest.fixture
def root(bare: Root) -> Root:
    """Records 0 to 2 in block 2, 3 and 4 in block 4, from a push source."""
    bare.append(push("default"))
    add(bare, (0, "a", 1.0), (0, "b", 2.0), (0, "c", 3.0))
    bare.info()
    add(bare, (0, "d", 4.0), (0, "e", float("nan")))
    return bare


# --- roots ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "block", "interval", "key"),
    [(0, 3, (0, 2), "a"), (2, 3, (0, 2), "c"), (3, 5, (3, 4), "d"), (4, 5, (3, 4), "e")],
)
def test_a_record_has_its_slice_and_its_block(
    home: Workspace, root: Root, offset: int, block: int, interval: tuple[int, int], key: str
) -> None:
    (found,) = home["r"].blame(offset).transactions
    assert (found.block.block.sequence_number, found.ref.block_hash) == (block, found.block.hash)
    assert found.ref.slice.offset_interval == ev.OffsetInterval(start=interval[0], end=interval[1])
    row = row_at(home, offset).row
    assert (row.offset, row.op, row.values["k"]) == (offset, "+A", key)
    assert (found.source.kind, found.source.name) == ("push", "default")


def test_several_records_are_listed_by_their_blocks(home: Workspace, root: Root) -> None:
    found = home["r"].blame(1, 3)
    assert [(t.first, t.last, len(t.rows)) for t in found.transactions] == [(1, 2, 2), (3, 3, 1)]
    assert found.origins is None


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (5, None, "r has the records 0 to 4, not 5"),
        (0, 5, "r has the records 0 to 4, not 5"),
        (3, 1, "records 3 to 1 are no interval"),
        (0, 5_000, "at most 1,000 records"),
        (2**64, None, "r has the records 0 to 4"),
    ],
)
def test_records_that_are_not_there(
    home: Workspace, root: Root, first: int, last: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        home["r"].blame(first, last)


def test_a_dataset_without_records(home: Workspace, place: Place) -> None:
    Root("empty", place("empty"))
    with pytest.raises(UsageError, match="empty has no records, not 0"):
        home["empty"].blame(0)


def test_the_state_of_a_polling_source_is_told_with_its_url(home: Workspace, bare: Root) -> None:
    bare.append(polling())
    state = ev.SourceState(source_name="default", kind="odf/etag", value='"v1"')
    bare.append(ev.AddData(new_data=data_slice(0, 0), new_source_state=state))
    bare.append(ev.AddData(prev_offset=0, new_data=data_slice(1, 1)))
    told, untold = (source_at(home, n) for n in range(2))
    assert (told.kind, told.fetch, told.state.value) == ("polling", "https://example.com", '"v1"')
    assert (untold.kind, untold.fetch, untold.state) == ("polling", "https://example.com", None)
    text = lines([home["r"].blame(0).to_tree()])
    assert '    polling source: https://example.com, odf/etag "v1"' in text


def test_of_several_push_sources_none_is_accused_unless_the_block_names_it(
    home: Workspace, bare: Root
) -> None:
    bare.append(push("one"))
    bare.append(push("two"))
    add(bare, (0, "a", 1.0))
    for offset, name in ((1, "two"), (2, "gone")):
        state = ev.SourceState(source_name=name, kind="k", value="v")
        new = data_slice(offset, offset)
        bare.append(ev.AddData(prev_offset=offset - 1, new_data=new, new_source_state=state))
    found = [source_at(home, n) for n in range(3)]
    assert [(s.kind, s.name) for s in found] == [(None, None), ("push", "two"), (None, "gone")]
    assert found[0].problem == "not recorded: one of the push sources 'two', 'one'"
    assert found[2].problem == "no source called 'gone' was in force"


def test_data_that_were_added_without_a_source_say_so(home: Workspace, bare: Root) -> None:
    add(bare, (0, "a", 1.0))
    found = source_at(home, 0)
    assert (found.kind, found.problem) == (None, "none was in force, the data were added directly")


# --- corrections ---------------------------------------------------------------------------------------


@pytest.fixture
def snapshots(bare: Root) -> Root:
    """`a` is appended, corrected, retracted, and appended again; null is a key too."""
    merge = MergeStrategySnapshot(primary_key=("k",))
    bare.append(ev.AddPushSource(read=ReadStepCsv(ddl_schema=("k STRING",)), merge=merge))
    add(bare, (0, "a", 1.0), (0, "b", 2.0), (0, None, 9.0))  # 0 to 2
    add(bare, (2, "a", 1.0), (3, "a", 5.0))  # 3, 4
    add(bare, (1, "a", 5.0), (0, "a", 7.0), (2, "a", 7.0), (3, "a", 8.0))  # 5 to 8
    add(bare, (1, None, 9.0), (1, "z", 0.0))  # 9, 10
    return bare


@pytest.mark.parametrize(
    ("offset", "corrected", "block"), [(3, 0, 3), (4, 0, 3), (5, 4, 4), (7, 6, 5), (8, 6, 5), (9, 2, 3)]
)
def test_corrections_and_retractions_show_the_record_they_are_about(
    home: Workspace, snapshots: Root, offset: int, corrected: int, block: int
) -> None:
    row = row_at(home, offset)
    assert (row.corrects.row.offset, row.corrects.sequence_number) == (corrected, block)
    assert row.corrects.row.values["k"] == row.row.values["k"]


def test_appended_records_correct_nothing(home: Workspace, snapshots: Root) -> None:
    rows = [row for t in home["r"].blame(0, 10).transactions for row in t.rows]
    assert [row.row.offset for row in rows if row.corrects is None] == [0, 1, 2, 6]


def test_a_correction_of_nothing_says_so(home: Workspace, snapshots: Root) -> None:
    assert row_at(home, 10).corrects.problem == "no earlier record has the same key"


def test_the_search_ends_where_a_slice_is_missing_or_the_limit_is_reached(
    home: Workspace, snapshots: Root
) -> None:
    files = snapshots.files

    def problem(**limits: int) -> str | None:
        found = Blame.of(home._files, files, 9, limits=LineageLimits(**limits))
        (row,) = found.transactions[0].rows
        return row.corrects.problem

    assert problem() is None
    assert problem(searched_slices=2) == "not found in the 2 slices before it; there are older ones"
    assert "slices before it" in str(problem(searched_bytes=1))
    (files.folder / "data" / str(snapshots.slices[1].physical_hash)).unlink()
    assert problem() == "not known: the slice of block 4 is not here"


def test_a_key_column_that_is_there_twice_is_told(home: Workspace, snapshots: Root) -> None:
    start = (snapshots.last or 0) + 1
    table = pq.read_table(io.BytesIO(parquet(start, (0, "y", 0.0), (1, "y", 0.0))))
    out = io.BytesIO()
    pq.write_table(table.append_column("k", table["k"]), out)
    snapshots.data(2, content=out.getvalue())
    assert row_at(home, start + 1).corrects.problem == "not known: the keys of block 7 cannot be compared"


def test_without_a_primary_key_what_is_corrected_is_not_known(home: Workspace, root: Root) -> None:
    add(root, (1, "a", 1.0))
    assert row_at(home, 5).corrects.problem == "not known: no primary key is recorded"


def test_a_missing_slice_is_said_and_the_rest_is_told(home: Workspace, root: Root) -> None:
    (root.files.folder / "data" / str(root.slices[0].physical_hash)).unlink()
    (found,) = home["r"].blame(1).transactions
    assert (found.rows, found.present, found.damaged) == ((), False, None)
    assert found.rows_problem == "the slice is not here (missing)"
    assert found.block.block.sequence_number == 3
    Selection(metadata_only=True).mark(root.files)
    (found,) = home["r"].blame(1).transactions
    assert found.rows_problem == "the slice is not here (a partial copy: `odfchain fetch r` brings it)"


def test_a_damaged_slice_is_told_and_ends_the_command_with_a_fault(
    home: Workspace, root: Root, run: Run
) -> None:
    path = root.files.folder / "data" / str(root.slices[0].physical_hash)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = run("-w", home.path.parent, "blame", "r", "--offset", 1)
    assert (found.code, len(found.err.splitlines())) == (6, 2)
    assert "the slice is damaged" in found.out
    assert path.name in found.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1 and nothing more", "the slice cannot be read"),
        (parquet(0, (0, "a", 1.0)), "promises the records 0 to 1, and 1 is not there"),
        (parquet(7, (0, "a", 1.0), (0, "b", 1.0)), "the record 1 says that its offset is 8"),
    ],
)
def test_a_slice_that_is_not_what_its_block_says_is_damaged(
    home: Workspace, content: bytes, message: str, bare: Root
) -> None:
    bare.data(2, content=content)
    found = home["r"].blame(1)
    assert isinstance(found.damage, SchemaError | ObjectCorruptedError)
    assert message in str(found.damage)


# --- derivatives ---------------------------------------------------------------------------------------


@pytest.fixture
def line(place: Place) -> tuple[Root, Derived, Derived]:
    """r → m → t; each transaction of r becomes one of m and of t; m gets another query in between."""
    r = Root("r", place("r"))
    r.schema()  # 1
    m = Derived(r, files=place("m"))
    t = Derived(m, files=place("t"))
    for number in range(4):
        r.data(2)  # 2 3 4 5
        if number == 2:
            m.append(transform_of(r, query="SELECT 2"))
        m.run()
        t.run()
    return r, m, t


def test_a_derived_record_has_its_transform_and_what_the_transaction_read(
    home: Workspace, line: tuple[Root, Derived, Derived]
) -> None:
    (found,) = home["m"].blame(5).transactions
    assert found.source is None
    assert found.transform.block.event == transform_of(line[0], query="SELECT 2")
    (reads,) = found.reads
    assert (reads.id, reads.alias, reads.name) == (str(seeded_id("r")), "in0", "r")
    assert (reads.blocks, reads.offsets) == ((4, 4), (4, 5))
    (earlier,) = home["m"].blame(0).transactions
    assert earlier.transform.block.sequence_number == 1
    assert earlier.reads[0].blocks == (0, 2), "the first transaction takes in all blocks so far"


def test_it_is_said_whether_earlier_records_may_matter(
    home: Workspace, line: tuple[Root, Derived, Derived], place: Place
) -> None:
    first, later = (home["m"].blame(n).transactions[0] for n in (0, 2))
    assert first.checkpoint is None
    assert "this is where it begins" in first.earlier
    assert later.checkpoint is not None
    assert "may also depend on records that earlier transactions read" in later.earlier
    plain = Derived(line[0], files=place("plain"))
    plain.schema()
    read = ev.ExecuteTransformInput(
        dataset_id=seeded_id("r"), new_block_hash=line[0].head, new_offset=line[0].last
    )
    plain.append(ev.ExecuteTransform(query_inputs=(read,), new_data=line[1].state.slices()[0].slice))
    (found,) = home["plain"].blame(0).transactions
    assert found.earlier == "depends on nothing earlier: the query keeps no state between transactions"


def test_recursion_goes_down_to_the_roots(home: Workspace, line: tuple[Root, Derived, Derived]) -> None:
    found = home["t"].blame(2, 5, recursive=True)
    assert len(found.transactions) == 2
    (of_m,) = found.origins
    assert (of_m.reads.name, of_m.reads.offsets) == ("m", (2, 5))
    assert [c.ref.slice.offset_interval.start for c in of_m.contributions] == [2, 4]
    (of_r,) = of_m.origins
    assert (of_r.reads.name, of_r.reads.offsets, of_r.reads.blocks) == ("r", (2, 5), (3, 4))
    assert [c.ref.sequence_number for c in of_r.contributions] == [3, 4]
    assert not any(c.present for c in of_r.contributions), "they are on paper"
    assert of_r.origins == ()
    text = lines([found.to_tree()])
    assert "    m: records 2 to 5, blocks 4 to 6" in text
    assert "      r: records 2 to 5, blocks 3 to 4" in text


def test_a_missing_input_ends_that_branch_and_is_named(
    home: Workspace, line: tuple[Root, Derived, Derived]
) -> None:
    head = line[0].head
    home.delete("r", force=True)
    (of_m,) = home["t"].blame(7, recursive=True).origins or ()
    (of_r,) = of_m.origins
    assert of_r.problem == "not in this workspace"
    assert (of_r.reads.name, of_r.reads.offsets, of_r.reads.blocks) == (None, (6, 7), None)
    text = "\n".join(lines([home["m"].blame(7).to_tree()]))
    assert f"in0: records 6 to 7, up to block {head} ({seeded_id('r')}: not in this workspace)" in text


def test_an_input_that_differs_or_is_shorter_is_told(
    home: Workspace, line: tuple[Root, Derived, Derived]
) -> None:
    r, _, _ = line
    old = r.files.chain.head()
    block = r.files.chain.get(old)
    r.files.chain.set_ref("head", block.prev_block_hash, expected=old)
    (span,) = home["m"].blame(7, recursive=True).origins or ()
    assert span.problem == "the copy here has 6 records only"
    assert "is not in the chain of the copy here" in span.reads.problem


def test_a_damaged_input_is_told(home: Workspace, line: tuple[Root, Derived, Derived]) -> None:
    r, _, _ = line
    path = r.files.folder / "blocks" / str(r.files.chain.head())
    path.write_bytes(b"damaged")
    (span,) = home["m"].blame(7, recursive=True).origins or ()
    assert span.problem.startswith("damaged: ")
    assert (span.reads.name, span.reads.missing) == ("r", False)
    assert path.name in span.problem


def test_an_interval_that_two_paths_lead_to_is_followed_once(home: Workspace, place: Place) -> None:
    bottom: Any = Root("r", place("r"))
    bottom.schema()
    bottom.data(1)
    for level in range(4):
        sides = [Derived(bottom, files=place(f"s{level}-{side}")) for side in "lr"]
        for side in sides:
            side.run()
        bottom = Derived(*sides, files=place(f"j{level}"))
        bottom.run()
    found = home["j3"].blame(0, recursive=True)
    text = lines([found.to_tree()])
    assert sum("followed above" in line for line in text) == 4
    assert json.dumps(found.to_document()).count('"origins"') == 17


def test_a_circle_ends(home: Workspace, place: Place) -> None:
    """Nobody can make one by running queries; a chain from elsewhere may claim it."""
    x = Root("x", place("x"))
    y = Derived(x, files=place("y"))
    z = Derived(y, files=place("z"))
    x.schema()
    x.data(1)
    y.run()
    z.run()
    y.append(transform_of(z))
    claimed = ev.ExecuteTransformInput(
        dataset_id=seeded_id("z"), prev_block_hash=x.head, prev_offset=0, new_block_hash=z.head, new_offset=1
    )
    before = y.state.last_data.new_checkpoint.physical_hash
    y.append(
        ev.ExecuteTransform(
            query_inputs=(claimed,), prev_checkpoint=before, prev_offset=0, new_data=data_slice(1, 1)
        )
    )
    z.run()
    (of_y,) = home["z"].blame(1, recursive=True).origins or ()
    (of_z,) = of_y.origins
    assert of_z.problem == "comes from itself: a circle"


def test_long_lists_end_and_say_so(
    home: Workspace, line: tuple[Root, Derived, Derived], place: Place
) -> None:
    m = line[1]
    made = Derived(m, files=place("late"))
    made.run()
    limits = LineageLimits(transactions=2)
    found = Blame.of(home._files, made.files, 0, 7, recursive=True, limits=limits)
    (of_m,) = found.origins or ()
    assert [c.ref.slice.offset_interval.start for c in of_m.contributions] == [4, 6]
    assert of_m.left_out[0] == 3
    few = Blame.of(home._files, made.files, 0, 7, recursive=True, limits=LineageLimits(spans=1))
    (of_m,) = few.origins or ()
    (of_r,) = of_m.origins
    assert of_r.problem == "not followed: the answer is too long; ask for this dataset"


def test_rows_of_a_real_derivative_lead_to_rows_of_its_root(home: Workspace) -> None:
    derived.on_paper(home, derived.FIRST, derived.SECOND)
    found = home["copied"].blame(4, recursive=True)
    (row,) = found.transactions[0].rows
    assert (row.row.values["sensor"], row.row.values["level"]) == ("north", 5)
    (span,) = found.origins or ()
    assert (span.reads.name, span.reads.offsets) == ("readings", (3, 5))
    assert all(c.present for c in span.contributions)


def test_a_record_of_a_long_chain_is_found_by_reading_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root("r")
    root.schema()
    for _ in range(2_000):
        root.data(3)
    locator = Locator(root.files)
    read = []
    original = root.files.chain.get
    monkeypatch.setattr(root.files.chain, "get", lambda name: read.append(name) or original(name))
    for offset in (0, 1_234, 5_999):
        read.clear()
        assert locator.block_of(offset).block.sequence_number == 2 + offset // 3
        assert len(set(read)) < 40


def test_offsets_against_the_rules_are_told(home: Workspace, bare: Root) -> None:
    bare.data(2)
    for interval in (data_slice(10, 12), data_slice(5, 30)):
        add_event(bare.files, ev.AddData(prev_offset=1, new_data=interval), unchecked=True)
    with pytest.raises(ChainError, match="no block adds the record 3, though the chain goes to 30"):
        home["r"].blame(3)


def test_the_command_prints_every_format(home: Workspace, root: Root, run: Run) -> None:
    here = ("-w", home.path.parent, "blame", "r", "--offset", "3", "--to", "4")
    tree = run(*here)
    assert tree.code == 0
    assert tree.out.startswith("records 3 to 4 of r\n")
    assert "+A offset=3, op=0, k=d, v=4.0" in tree.out
    assert f"slice {root.slices[1].physical_hash} (records 3 to 4, " in tree.out
    table = run(*here, "-o", "table")
    assert table.out.splitlines()[1] == "    0  records 3 to 4 of r"
    found = json.loads(run(*here, "-r", "-o", "json").out)
    assert found["origins"] == []
    (transaction,) = found["transactions"]
    assert [row["values"]["v"] for row in transaction["rows"]] == [4.0, "nan"], "JSON has no such number"
    assert transaction["block"]["sequenceNumber"] == 5
    assert transaction["source"]["kind"] == "push"
    assert run("-w", home.path.parent, "blame", "r", "--offset", "9").code == 2
    assert run("-w", home.path.parent, "blame", "r").code == 2


def test_the_documents_of_all_answers_are_json(home: Workspace, line: tuple[Root, Derived, Derived]) -> None:
    home.delete("r", force=True)
    found: Blame = home["t"].blame(0, 7, recursive=True)
    document = json.loads(json.dumps(found.to_document()))
    assert document["dataset"]["kind"] == "derivative"
    assert document["origins"][0]["origins"][0]["missing"] is True
