"""Conflicts written to files, and decisions read back from them, after whatever a spreadsheet did to them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.branches.conflict_file import (
    UNDECIDED,
    Decided,
    Resolution,
    Resolved,
    check_decided,
    read_resolution,
    resolve,
    write_conflicts,
)
from odfchain.branches.row_diff import RowDiff, ThreeWay, array_of, json_text, merge_rows, net_of, tree_of
from odfchain.cli.change import print_conflicts
from odfchain.errors import BadInputError, MergeConflictError, UsageError
from odfchain.workspace import merge_record
from tests.kit.branch_cases import read_lines, write_lines

MOMENT = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("k", pa.string()), ("t", MOMENT), ("n", pa.int64()), ("s", pa.string())])
DAY = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
Row = tuple[Any, ...]
BASE: dict[str, Row] = {"a": (DAY, 1, "x"), "b": (DAY, 2, "y"), "c": (DAY, 3, "z")}


def side(after: dict[str, Row], base: dict[str, Row] = BASE, schema: pa.Schema = SCHEMA) -> RowDiff:
    """From the base to these rows; a key that is not named stays."""
    log: list[tuple[int, str, Row]] = []
    for key, row in after.items():
        old = base.get(key)
        if old is None:
            log.append((0, key, row))
        elif not row:
            log.append((1, key, old))
        else:
            log += [(2, key, old), (3, key, row)]
    rows = pa.table(
        [pa.array([([k, *r])[i] for _, k, r in log], f.type) for i, f in enumerate(schema)], schema=schema
    )
    return net_of(np.array([op for op, _, _ in log], dtype=np.uint64), rows, ("k",))


OURS = {"a": (DAY, 10, "x"), "b": (DAY, 20, "y"), "d": (DAY, 4, "q")}
THEIRS: dict[str, Row] = {"a": (DAY, 11, "u"), "b": (), "d": (DAY, 5, "q"), "c": (DAY, 3, "w")}
"""a: n in conflict, s merges; b: update-delete; c: theirs alone; d: insert-insert in n."""


def merged(ours: dict[str, Row] = OURS, theirs: dict[str, Row] = THEIRS) -> ThreeWay:
    return merge_rows(side(ours), side(theirs), event_time="t")


def outcome(resolved: Resolved) -> dict[str, Row | None]:
    """The rows after the changes, by key; None is deleted."""
    diff = resolved.changes
    keys = diff.rows_of_keys().column("k").to_pylist()
    rows = [tuple(row[name] for name in SCHEMA.names[1:]) for row in diff.after.to_pylist()]
    return {key: row if has else None for key, row, has in zip(keys, rows, diff.has, strict=True)}


def written(tmp_path: Path, form: str = "csv", three_way: ThreeWay | None = None) -> Path:
    path = tmp_path / f"conflicts.{form}"
    write_conflicts(resolve(three_way or merged()).lines, path)
    return path


Decisions = dict[tuple[str, str], tuple[str, str]]
"""`take` and `value` by key and column."""
ALL: Decisions = {("a", "n"): ("theirs", ""), ("b", ""): ("base", ""), ("d", "n"): ("value", "7")}


def filled(path: Path, decisions: Decisions = ALL) -> Path:
    """The file with these decisions."""
    lines = read_lines(path)
    for line in lines:
        take, value = decisions.get((line["k"], line["column"] or ""), (line["take"], line["value"]))
        line.update(take=take, value=value)
    write_lines(path, lines)
    return path


def decided(path: Path, three_way: ThreeWay | None = None) -> tuple[Resolved, Decided]:
    """What becomes of the rows, and what is said of the decisions."""
    resolution = read_resolution(path, SCHEMA, ("k",))
    assert pickle.loads(pickle.dumps(resolution)) == resolution  # noqa: S301 - it is sent to workers
    resolved = resolve(three_way or merged(), resolution)
    return resolved, check_decided(resolved.lines, resolution, ("k",))


def test_a_line_for_each_cell_and_for_rows_that_one_side_lacks(tmp_path: Path) -> None:
    row = '{""n"":%d,""s"":""y"",""t"":""2025-01-01T00:00:00Z""}'
    assert written(tmp_path).read_text(encoding="utf-8").splitlines() == [
        "k,conflict,column,base,ours,theirs,take,value",
        "a,update-update,n,1,10,11,,",
        f'b,update-delete,,"{row % 2}","{row % 20}",,,',
        "d,insert-insert,n,,4,5,,",
    ]
    ours = {"n": 20, "s": "y", "t": "2025-01-01T00:00:00Z"}
    assert read_lines(written(tmp_path, "ndjson"))[1] == {
        "k": "b", "conflict": "update-delete", "column": None, "base": ours | {"n": 2}, "ours": ours,
        "theirs": None, "take": "", "value": "",
    }  # fmt: skip


def test_ours_and_theirs_decide_what_is_in_conflict_and_nothing_else() -> None:
    ours, theirs = (resolve(merged(), Resolution.of_side(name)) for name in ("ours", "theirs"))
    assert outcome(ours) == {"a": (DAY, 10, "u"), "c": (DAY, 3, "w")}
    assert outcome(theirs) == outcome(ours) | {"a": (DAY, 11, "u"), "b": None, "d": (DAY, 5, "q")}
    found = check_decided(theirs.lines, Resolution.of_side("theirs"), ("k",))
    assert (found.recorded, found.taken) == ((merge_record.Resolution.THEIRS, 3), {"theirs": 3})


def test_a_merge_without_conflicts_is_recorded_as_one_whatever_was_asked_for() -> None:
    side = Resolution.of_side("ours")
    found = check_decided(resolve(merged({"a": OURS["a"]}, {"c": THEIRS["c"]}), side).lines, side, ("k",))
    assert (found.recorded, found.taken) == ((merge_record.Resolution.NONE, 0), {})


@pytest.mark.parametrize("form", ["csv", "ndjson"])
@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        (ALL, {"a": (DAY, 11, "u"), "b": (DAY, 2, "y"), "d": (DAY, 7, "q")}),
        (ALL | {("a", "n"): ("base", ""), ("b", ""): ("theirs", ""), ("d", "n"): ("ours", "")},
         {"a": (DAY, 1, "u"), "b": None}),
        (ALL | {("a", "n"): ("delete", ""), ("b", ""): ("delete", ""), ("d", "n"): ("delete", "")},
         {"a": None, "b": None, "d": None}),
        (ALL | {("a", "n"): ("value", "null"), ("b", ""): ("value", '{"n":9,"s":"é","t":"2025-01-02T00:00:00Z"}')},
         {"a": (DAY, None, "u"), "b": (DAY + dt.timedelta(1), 9, "é"), "d": (DAY, 7, "q")}),
        (ALL | {("a", "n"): (" Ours ", "")}, {"a": (DAY, 10, "u"), "b": (DAY, 2, "y"), "d": (DAY, 7, "q")}),
    ],
    ids=["each", "base", "delete", "value", "words"],
)  # fmt: skip
def test_each_decision(tmp_path: Path, form: str, decisions: Decisions, expected: dict[str, Row]) -> None:
    resolved, found = decided(filled(written(tmp_path, form), decisions))
    assert found.recorded == (merge_record.Resolution.ROWS, 3)
    assert outcome(resolved) == {"c": (DAY, 3, "w")} | expected


def as_spreadsheet(separator: str) -> Callable[[str], bytes]:
    """Other separator, everything quoted, CR LF, a BOM, columns reversed, and one more."""

    def rewrite(text: str) -> bytes:
        out = io.StringIO(newline="")
        writer = csv.writer(out, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        for number, row in enumerate(csv.reader(io.StringIO(text))):
            writer.writerow([*reversed(row), "remark" if number == 0 else "was 1,416?"])
        return b"\xef\xbb\xbf" + out.getvalue().encode()

    return rewrite


@pytest.mark.parametrize(
    "rewrite",
    [
        as_spreadsheet(","),
        as_spreadsheet(";"),
        as_spreadsheet("\t"),
        lambda text: ("sep=,\r\n" + text).encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.replace(",10,11,", ",10.0,1.1E+1,").encode(),
        lambda text: (text + ",,,,,,,\r\n\r\n").encode(),
    ],
    ids=["comma", "semicolon", "tabs", "sep", "utf-16", "numbers", "empty lines"],
)
def test_what_a_spreadsheet_writes_is_understood(tmp_path: Path, rewrite: Callable[[str], bytes]) -> None:
    path = filled(written(tmp_path))
    path.write_bytes(rewrite(path.read_text(encoding="utf-8")))
    assert outcome(decided(path)[0])["d"] == (DAY, 7, "q")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (",10,11,", ',"1,0",11,', "line 2: 1,0 is not a value of type int64"),
        ("2025-01-01T00:00:00Z", "01.01.2025", "line 3: 01.01.2025 is not a value of type timestamp"),
        ("11,theirs,", "11,mine,", "line 2: `take` is 'mine', and not one of ours, theirs, base"),
        (",value,7", ",value,", "line 4: `take` is `value`, and nothing is written as `value`"),
        ("11,theirs,", "11,theirs,12", "line 2: `take` is `theirs`, and something is written"),
        ("11,theirs,", "11,,12", "line 2: `value` is filled in and `take` is not"),
        (",value,7", ",value,seven", "line 4: seven is not a value of type int64"),
        ("update-update,n", "update-update,m", "line 2: there is no column 'm' in the data"),
        ("column", "colum", "line 1: there is no column column"),
        ("take,value\r\n", "take,value\r\na,update-update,n,1,10,11,ours,\r\n", "line 3: line 2 decides"),
        ('"{""n"":20', '"{n:20', "line 3: {n:20"),
    ],
)
def test_a_line_that_cannot_be_understood_is_refused_by_number(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    path = filled(written(tmp_path))
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())
    with pytest.raises(BadInputError) as caught:
        read_resolution(path, SCHEMA, ("k",))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.csv", "k,column\nZürich".encode("latin-1"), "not UTF-8"),
        ("x.csv", b"", "there is no column"),
        ("x.ndjson", b"{", "line 1: .*not JSON"),
        ("x.ndjson", b"[]", "line 1: .*not an object"),
        ("x.ndjson", b"{}", "line 1: .*no column"),
        ("x.ndjson", b"[" * 10**5, "line 1: .*not JSON"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInputError, match=says):
        read_resolution(tmp_path / name, SCHEMA, ("k",))


def test_conflicts_are_written_as_csv_or_ndjson(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"csv or \.ndjson"):
        write_conflicts(resolve(merged()).lines, tmp_path / "x.xlsx")


def test_lines_of_other_values_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(MergeConflictError) as caught:
        decided(filled(written(tmp_path)), merged(OURS | {"a": (DAY, 12, "x"), "b": (DAY, 21, "y")}))
    error = caught.value
    assert "2 conflicts not decided, so nothing was changed" in str(error)
    assert "k=a, n has changed since line 2 was written: ours is 12 now" in str(error)
    assert "k=b has changed since line 3 was written" in str(error)
    assert "--conflicts" in (error.hint or "")
    assert len(error.conflicts.column("problem").drop_null()) == 2
    # what is decided stays, so that the rest can be filled in
    again = tmp_path / "again.csv"
    write_conflicts(error.conflicts, again)
    assert again.read_text(encoding="utf-8").splitlines()[-1] == "d,insert-insert,n,,4,5,value,7"


@pytest.mark.parametrize(
    ("sides", "decisions", "says"),
    [
        ((OURS, THEIRS), ALL | {("d", "n"): ("base", "")}, "k=d, n has no base to take (line 4)"),
        (({"a": (DAY, 10, "p")}, {"a": (DAY, 11, "u")}), {("a", "n"): ("delete", ""), ("a", "s"): ("value", "w")},
         "k=a, s is kept, and another line deletes its row"),
    ],
    ids=["no base", "deleted and kept"],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(
    tmp_path: Path, sides: Any, decisions: Decisions, says: str
) -> None:
    three_way = merged(*sides)
    with pytest.raises(MergeConflictError) as caught:
        decided(filled(written(tmp_path, three_way=three_way), decisions), three_way)
    assert says in str(caught.value)


def test_without_a_resolution_the_conflicts_are_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MergeConflictError) as caught:
        check_decided(resolve(merged()).lines, UNDECIDED, ("k",))
    assert "3 conflicts, so nothing was changed: k=a, n: update-update; k=b: update-delete" in str(
        caught.value
    )
    assert (caught.value.exit_code, caught.value.conflicts.num_rows) == (5, 3)
    assert outcome(resolve(merged())) == {"c": (DAY, 3, "w")}
    print_conflicts(caught.value.conflicts, "json")
    records = json.loads(capsys.readouterr().out)
    assert records[0] == {
        "k": "a", "conflict": "update-update", "column": "n", "base": 1, "ours": 10, "theirs": 11,
    }  # fmt: skip
    assert (records[1]["ours"]["n"], records[1]["theirs"]) == (20, None)
    print_conflicts(caught.value.conflicts, "table")
    assert "update-delete" in capsys.readouterr().out


def test_columns_of_a_key_may_be_called_like_those_of_a_line(tmp_path: Path) -> None:
    schema = pa.schema([("column", pa.string()), ("t", MOMENT), ("take", pa.string())])
    rows = pa.table([["1", "1"], [DAY, DAY], ["x", "q"]], schema=schema)
    other = rows.set_column(2, "take", pa.array(["x", "p"]))
    ours, theirs = (net_of(np.array([2, 3], dtype=np.uint64), each, ("column",)) for each in (rows, other))
    three_way = merge_rows(ours, theirs, event_time="t")
    path = tmp_path / "c.csv"
    write_conflicts(resolve(three_way).lines, path)
    assert path.read_text() == (
        "key.column,conflict,column,base,ours,theirs,take,value\n1,update-update,take,x,q,p,,\n"
    )
    path.write_text(path.read_text().replace("q,p,,", "q,p,theirs,"))
    resolved = resolve(three_way, read_resolution(path, schema, ("column",)))
    assert resolved.changes.after.column("take").to_pylist() == ["p"]


TEXTS = st.text(max_size=6) | st.sampled_from(
    ['""', '"', '"x"', "null", "NULL", "", " x", "=1+1", "-5", "-a", "1e5", "\r\n", "\u2028", "007"]
)


@given(TEXTS, TEXTS, TEXTS, st.sampled_from(["csv", "ndjson"]))
def test_texts_of_any_kind_go_to_a_file_and_back(
    tmp_path_factory: pytest.TempPathFactory, key: str, ours: str, theirs: str, form: str
) -> None:
    """As keys, as what the sides have, and as what is written in their place."""
    if ours == theirs or "\x00" in key + ours + theirs:
        return
    three_way = merge_rows(side({key: (DAY, 1, ours)}, {}), side({key: (DAY, 1, theirs)}, {}), event_time="t")
    lines = resolve(three_way).lines
    path = tmp_path_factory.mktemp("texts") / f"c.{form}"
    for value in (key, ours, None):
        filled_in = lines.set_column(lines.column_names.index("take"), "take", pa.array(["value"]))
        place = lines.column_names.index("value")
        write_conflicts(filled_in.set_column(place, "value", pa.array([json_text(value)])), path)
        resolved, _ = decided(path, three_way)
        assert outcome(resolved) == ({key: (DAY, 1, value)} if value != ours else {})


VALUES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), 2**60, str(2**60)),
    (pa.float32(), 0.1, 0.1),
    (pa.float64(), 1e300, 1e300),
    (pa.float64(), float("nan"), "NaN"),
    (pa.float16(), np.float16(1.5), 1.5),
    (pa.decimal128(20, 10), Decimal("1.5"), "1.5000000000"),
    (pa.timestamp("ns"), 5, "1970-01-01T00:00:00.000000005"),
    (pa.timestamp("us", "UTC"), 10, "1970-01-01T00:00:00.00001Z"),
    (pa.time32("ms"), 100, "00:00:00.1"),
    (pa.time64("us"), 3_600_000_000, "01:00:00"),
    (pa.date32(), 5, "1970-01-06"),
    (pa.binary(), b"ab", "6162"),
    (pa.bool_(), True, True),
    (pa.duration("ms"), 7, 7),
    (pa.list_(pa.int64()), [1, None], [1, None]),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": None}, {"x": 1, "y": None}),
    (
        pa.map_(pa.string(), pa.int64()),
        [("b", 1), ("a", 2)],
        [{"key": "a", "value": 2}, {"key": "b", "value": 1}],
    ),
]


@pytest.mark.parametrize(("kind", "value", "tree"), VALUES, ids=[str(kind) for kind, _, _ in VALUES])
def test_every_type_has_one_text_and_comes_back(kind: pa.DataType, value: Any, tree: Any) -> None:
    cell = pa.array([value], kind)[0]
    assert tree_of(cell) == tree
    assert tree_of(array_of([tree], kind)[0]) == tree
    assert tree_of(array_of([None], kind)[0]) is None


@pytest.mark.parametrize(
    ("text", "kind", "canonical"),
    [
        ("1416.0", pa.int64(), "1416"),
        ("1.416E3", pa.int64(), "1416"),
        ("-0.0", pa.float64(), "0"),
        ("1.50", pa.decimal128(10, 2), '"1.50"'),
        ("TRUE", pa.bool_(), "true"),
        ("2025-01-02", MOMENT, '"2025-01-02T00:00:00Z"'),
        ("2025-01-02 00:00:00", MOMENT, '"2025-01-02T00:00:00Z"'),
        ("2025-01-02T02:00+02:00", MOMENT, '"2025-01-02T00:00:00Z"'),
    ],
)
def test_what_is_exactly_equal_is_taken(text: str, kind: pa.DataType, canonical: str) -> None:
    assert json_text(tree_of(array_of([text], kind)[0])) == canonical


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1,416", pa.int64()), ("1416.5", pa.int64()), ("1e9999", pa.int64()), ("300", pa.int8()), (True, pa.int64()),
        ("1 416", pa.int64()), ("1,5", pa.float64()), ("1e400", pa.float64()), ("1.505", pa.decimal128(10, 2)),
        ("2025-1-2", MOMENT), ("2/1/2025", pa.date32()), ("25:00", pa.time32("s")), ("zz", pa.binary()),
        ("yes", pa.bool_()), ({"x": 1}, pa.struct([("x", pa.int64()), ("y", pa.int64())])), ("[", pa.list_(pa.int64())),
        ({}, pa.string()), ([{"key": "a"}], pa.map_(pa.string(), pa.int64())), ("\ud800", pa.string()),
    ],
)  # fmt: skip
def test_what_is_not_is_refused(text: Any, kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match="is not a value of type"):
        array_of([text], kind)


def test_17_a_map_has_no_order_and_is_one_cell() -> None:
    """Datasets of today have no maps, because no logical hash is defined for them; the rule has."""
    schema = pa.schema([("k", pa.string()), ("t", MOMENT), ("m", pa.map_(pa.string(), pa.int64()))])
    base: dict[str, Row] = {"a": (DAY, [("p", 1), ("q", 2)]), "b": (DAY, [("p", 1), ("q", 2)])}
    ours = side({"b": (DAY, [("p", 3), ("q", 2)])}, base, schema)
    theirs = side({"a": (DAY, [("q", 2), ("p", 1)]), "b": (DAY, [("p", 1), ("q", 4)])}, base, schema)
    assert len(side({"a": (DAY, [("q", 2), ("p", 1)])}, base, schema)) == 0
    merged = merge_rows(ours, theirs, event_time="t")
    assert (len(merged.changes), merged.conflicts.count) == (0, 1)
    (line,) = resolve(merged).lines.to_pylist()
    assert (line["column"], line["ours"]) == ("m", '[{"key":"p","value":3},{"key":"q","value":2}]')
