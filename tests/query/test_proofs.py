"""Signed answers: what is never signed, what a check finds, and files that come from somebody else."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import datafusion
import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.cli.main import main
from odfchain.odf.identity import DidKey
from odfchain.query import proofs
from odfchain.query.answers import FILE_BYTES, Answer, canonical, output_of, read_answer, written
from odfchain.query.embedded import _Planner
from odfchain.query.proofs import VOLATILE, ProofVerdict
from odfchain.query.sql_text import Query
from odfchain.storage.store import as_transfer_errors
from tests.kit import curve
from tests.kit.loopback import Handler, WebServer
from tests.kit.node_types import RECORDED, recorded_answer, workspace_with_types
from tests.kit.root_rows import add_root, schema_with
from tests.kit.support import IMPORTABLE, Result, configure, fixture, unchanged

ORDERED = 'select k, f, s from types order by "offset"'
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    with workspace_with_types(tmp_path_factory.mktemp("proofs")) as workspace:
        yield workspace


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], workspace: odf.Workspace) -> Run:
    def run(*args: object) -> Result:
        capsys.readouterr()
        code = main(["-w", str(workspace.path.parent), *map(str, args)])
        return Result(code, *capsys.readouterr())

    return run


def changed(answer: Answer, **parts: Any) -> Answer:
    """The same file with members that somebody changed."""
    document = json.loads(answer.to_json())
    for path, value in parts.items():
        *above, last = path.split("__")
        at = document
        for step in above:
            at = at[step]
        if value is None:
            del at[last]
        else:
            at[last] = value
    return read_answer(json.dumps(document).encode(), "changed")


# --- case 33: what is never signed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [f"select {name}() as v from types" for name in sorted(VOLATILE)]
    + [f"select {name} as v" for name in ("current_date", "CURRENT_TIMESTAMP", "Current_Time")]
    + ['select "now"()', "select NOW() - interval '1 day'", "select extract(year from now())"]
    + ["select 'now'::timestamp", "select timestamp 'now'", "select cast('today' as date)"]
    + ["select k from types order by random()", "select k from types where k < (select random())"]
    + ["select to_timestamp('now')", "select arrow_cast('now', 'Timestamp(ns)')", "select @@version"]
    + ["select * from information_schema.tables", "explain select 1", "show tables"],
)
def test_case_33_what_changes_each_time_is_refused(query: str, workspace: odf.Workspace) -> None:
    with pytest.raises(odf.errors.QueryError) as caught:
        workspace.prove(query)
    assert caught.value.exit_code == 3


def test_case_33_no_function_of_the_engine_that_changes_can_be_named(workspace: odf.Workspace) -> None:
    """By the engine's own word, under every name that it knows."""
    config = datafusion.SessionConfig().with_information_schema(True)
    context = datafusion.SessionContext(config)
    asked = "select distinct routine_name from information_schema.routines where not is_deterministic"
    named = {row["routine_name"] for row in context.sql(asked).to_pylist()} - {"range", "generate_series"}
    assert named <= VOLATILE
    assert set(context.udfs()) >= VOLATILE, "a name that the engine does not have keeps nothing out"
    known = set(context.udfs())
    looks_like = ("now", "rand", "uuid", "today", "current", "local_time", "version", "file", "user")
    suspicious = {name for name in known if any(part in name for part in looks_like)}
    assert suspicious - VOLATILE == {"to_local_time"}, "a new function: is it the same each time?"
    closed, _ = _Planner(proofs.repeatable(), Query("select 1", None))._context(inexact=False)
    assert not VOLATILE & set(closed.udfs())
    assert workspace.prove("select to_local_time(timestamp '2020-01-01') t").output is not None


def test_what_is_refused_says_why(workspace: odf.Workspace) -> None:
    with pytest.raises(odf.errors.QueryError, match="now gives another value each time") as caught:
        workspace.prove("select now() from types")
    assert caught.value.hint == "write the value into the query, or ask without a proof"
    with pytest.raises(odf.errors.QueryError, match="current_date gives another value"):
        workspace.prove("select current_date")
    with pytest.raises(odf.errors.UsageError, match="computed by datafusion"):
        workspace.prove("select 1", engine="spark")
    with pytest.raises(odf.errors.UsageError, match="no parameters"):
        workspace.prove("select $a", params={"a": 1})
    with pytest.raises(odf.errors.UsageError, match="unknown format 'Csv'"):
        workspace.prove("select 1", data_format="Csv")
    with pytest.raises(odf.errors.UsageError, match="unknown schema format"):
        workspace.prove("select 1", schema_format="OdfJson")
    with pytest.raises(odf.errors.UsageError, match="numbers of rows"):
        workspace.prove("select 1", limit=-1)
    with pytest.raises(odf.errors.QueryError, match="two columns are called k"):
        workspace.prove("select a.k, b.k from types a join types b on a.k = b.k")
    with pytest.raises(odf.errors.QueryError, match="at most 65,536 are signed"):
        workspace.prove("select 1 --" + "x" * 70_000)
    with pytest.raises(odf.errors.QueryError, match="at most 15,728,640 are signed"):
        workspace.prove("select repeat('x', 16000000) as v")


# --- case 34: one answer -------------------------------------------------------------------------------

SUMS = (
    "select b, sum(f / 3) s, sum(g * 0.1) t, avg(k) a, array_agg(distinct s) l, string_agg(s, ',') j, "
    "stddev(f) d from types group by b"
)


def test_case_34_one_answer_in_any_number_of_runs(workspace: odf.Workspace) -> None:
    first = workspace.prove(SUMS)
    again = {workspace.prove(SUMS).commitment["outputHash"] for _ in range(30)}
    assert again == {first.commitment["outputHash"]}
    program = (
        "import sys, odfchain as odf; ws = odf.open(sys.argv[1]);"
        "print(ws.prove(sys.argv[2]).commitment['outputHash'])"
    )
    for cores in ("1", "8"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(workspace.path.parent), SUMS],
            env=IMPORTABLE | {"TOKIO_WORKER_THREADS": cores, "PYTHONHASHSEED": cores},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == first.commitment["outputHash"]


@pytest.mark.soak
def test_case_34_one_answer_in_a_hundred_runs(workspace: odf.Workspace) -> None:
    assert len({workspace.prove(SUMS).commitment["outputHash"] for _ in range(100)}) == 1


def test_notes_say_what_may_differ(workspace: odf.Workspace) -> None:
    assert workspace.prove(ORDERED).notes == ()
    (note,) = workspace.prove("select k from (select k from types order by k)").notes
    assert "no ORDER BY" in note
    assert workspace.prove("select count(*) as n from types").notes == ()
    (note,) = workspace.prove("select k from types order by k", limit=3).notes
    assert "limit of 3 rows" in note
    answer = workspace.prove("select k from types order by k", limit=3, skip=7)
    assert answer.result.to_arrow().num_rows == 2


# --- what is pinned ------------------------------------------------------------------------------------


def test_every_name_in_the_query_is_pinned(workspace: odf.Workspace, tmp_path: Path) -> None:
    ds = workspace["types"]
    sql = f"""select count(*) n from types, "types@3" x, state('types') s, "{ds.id}" d, to_table("types") t
              where x.k = types.k and s.k = types.k and d.k = types.k and t.k = types.k"""
    answer = workspace.prove(sql)
    assert [item["alias"] for item in answer.input["datasets"]] == [str(ds.id), "types", "types@3"]
    assert {item["blockHash"] for item in answer.input["datasets"]} == {str(ds.head)}
    assert {item["id"] for item in answer.input["datasets"]} == {str(ds.id)}
    with odf.init(tmp_path / "other") as other:
        other.pull(ds.path.as_uri(), name="another.name")
        assert odf.verify_proof(answer, other).datasets == ("another.name @ 3",) * 3
        assert odf.verify_proof(answer, other).ok
    left_out = json.loads(answer.to_json())["input"] | {"datasets": answer.input["datasets"][1:]}
    forged = signed_anew(changed(answer, input=left_out), workspace)
    verdict = odf.verify_proof(forged, workspace)
    assert (verdict.exit_code, verdict.kind) == (7, None)
    assert "not among the datasets" in verdict.message


def test_a_dataset_that_is_called_like_a_function_is_not_read_by_it(tmp_path: Path) -> None:
    """Neither signed nor opened; and what was signed with it before stays true."""
    with odf.init(tmp_path / "here") as here, odf.init(tmp_path / "empty") as elsewhere:
        ds = add_root(here, "range", schema_with(pa.field("city", pa.string())))
        answer = here.prove("select count(*) n from range(3)")
        assert answer.input["datasets"] == []
        assert odf.verify_proof(answer, elsewhere).ok
        assert here.prove("select count(*) n from range(3), state(range)").datasets.keys() == {"range"}
        listed = [{"id": str(ds.id), "alias": "range", "blockHash": str(here["range"].head)}]
        before = signed_anew(changed(answer, input__datasets=listed), here)
        assert odf.verify_proof(before, here).ok
        (block,) = (ds.folder / "blocks").rglob(str(here["range"].head))
        block.write_bytes(b"")
        assert here.prove("select count(*) n from range(3)").output == answer.output


def signed_anew(answer: Answer, workspace: odf.Workspace, output: Any = None) -> Answer:
    """What anybody who has a key can make of an answer, with another output or its own."""
    key = proofs.node_key(workspace._files)
    return Answer.signed(answer.input, output or answer.output, key, engine=answer.engine)


# --- case 35: what was changed -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"input__query": "select 1"}, "InvalidRequest::InputHash"),
        ({"input__limit": 7}, "InvalidRequest::InputHash"),
        ({"commitment__inputHash": "f1620" + "0" * 64}, "InvalidRequest::InputHash"),
        ({"subQueries": [{}]}, "InvalidRequest::SubQueriesHash"),
        ({"commitment__subQueriesHash": "f1620" + "0" * 64}, "InvalidRequest::SubQueriesHash"),
        ({"commitment__outputHash": "f1620" + "0" * 64}, "InvalidRequest::BadSignature"),
        ({"proof__proofValue": "u" + "A" * 86}, "InvalidRequest::BadSignature"),
        ({"proof__verificationMethod": str(DidKey(b"\1" + bytes(31)))}, "InvalidRequest::BadSignature"),
        ({"output__data": []}, "VerificationFailed::OutputMismatch"),
        ({"output__more": 1}, "VerificationFailed::OutputMismatch"),
    ],
)
def test_case_35_what_was_changed(
    parts: dict[str, Any], kind: str, workspace: odf.Workspace, run: Run
) -> None:
    answer = changed(workspace.prove(ORDERED), **parts)
    verdict = odf.verify_proof(answer, workspace)
    assert (verdict.ok, verdict.kind, verdict.exit_code) == (False, kind, 6)
    assert verdict.to_json()["error"]["kind"] == kind
    assert answer.problem() is not None


def test_case_35_no_key_of_small_order_signs_anything(workspace: odf.Workspace) -> None:
    answer = workspace.prove(ORDERED)
    neutral = base64.urlsafe_b64encode((1).to_bytes(32, "little") + bytes(32)).rstrip(b"=").decode()
    for point in curve.small_order():
        for encoding in curve.encodings(point):
            signer = str(DidKey(encoding))
            forged = changed(answer, proof__verificationMethod=signer, proof__proofValue=f"u{neutral}")
            verdict = odf.verify_proof(forged, workspace)
            assert verdict.kind == "InvalidRequest::BadSignature"
            assert "small order" in verdict.message or "canonical form" in verdict.message


def test_case_35_rows_that_were_signed_and_are_not_there(
    workspace: odf.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = workspace.prove(ORDERED)
    lie = signed_anew(answer, workspace, answer.output | {"data": []})
    verdict = odf.verify_proof(lie, workspace)
    assert (verdict.kind, verdict.exit_code) == ("VerificationFailed::OutputMismatch", 6)
    assert verdict.details["expected_hash"] == lie.commitment["outputHash"]
    assert verdict.details["actual_hash"] == answer.commitment["outputHash"]
    # case 36: what another version computed may differ
    for engine in ("datafusion 54.0.0", None):
        other = changed(lie, engine=engine)
        verdict = odf.verify_proof(other, workspace)
        assert (verdict.kind, verdict.exit_code) == ("VerificationFailed::OutputMismatch", 7)
        assert "datafusion 55.0.0" in verdict.message
    monkeypatch.setattr(proofs, "engine_version", lambda: "datafusion 56.0.0")
    assert odf.verify_proof(lie, workspace).exit_code == 7
    assert odf.verify_proof(answer, workspace).exit_code == 0


# --- case 36: what is not here -------------------------------------------------------------------------


def test_case_36_a_dataset_that_is_not_here(workspace: odf.Workspace, tmp_path: Path) -> None:
    answer = workspace.prove(ORDERED)
    with odf.init(tmp_path) as empty:
        verdict = odf.verify_proof(answer, empty)
        assert (verdict.kind, verdict.exit_code) == ("VerificationFailed::DatasetNotFound", 7)
        assert verdict.to_json()["error"]["dataset_id"] == str(workspace["types"].id)


def test_case_36_a_block_that_was_reset_away(workspace: odf.Workspace, tmp_path: Path) -> None:
    answer = workspace.prove(ORDERED)
    head = workspace["types"].head
    with workspace_with_types(tmp_path) as other:
        dataset = other["types"]
        blocks = [block.hash for block in dataset.log()]
        (dataset.path / "refs" / "head").write_text(str(blocks[1]))
        verdict = odf.verify_proof(answer, other)
        assert (verdict.kind, verdict.exit_code) == ("VerificationFailed::DatasetBlockNotFound", 7)
        error = verdict.to_json()["error"]
        assert (error["dataset_id"], error["block_hash"]) == (str(dataset.id), str(head))


def test_a_slice_that_is_not_here_and_one_that_is_damaged(tmp_path: Path) -> None:
    with workspace_with_types(tmp_path) as other:
        answer = other.prove(ORDERED)
        (data,) = (other["types"].path / "data").iterdir()
        data.chmod(0o644)
        whole = data.read_bytes()
        # as it was when it was hashed, by everything that a quick look sees
        stamp = data.stat()
        data.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
        os.utime(data, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        with pytest.raises(odf.errors.ObjectCorruptedError):
            odf.verify_proof(answer, other)
        with pytest.raises(odf.errors.ObjectCorruptedError):
            other.prove(ORDERED)
        data.unlink()
        verdict = odf.verify_proof(answer, other)
        assert (verdict.ok, verdict.exit_code) == (False, 7)
        assert "is not here" in verdict.message


def test_answers_of_other_forms_are_not_called_false(workspace: odf.Workspace) -> None:
    answer = workspace.prove(ORDERED)
    for parts in (
        {"queryDialect": "SqlSpark"},
        {"dataFormat": "Csv"},
        {"include": ["Input", "Proof", "Schema"], "schemaFormat": "Parquet"},
        {"query": "select 1 +"},
        {"query": "select " + "(" * 200 + "1" + ")" * 200},
    ):
        forged = signed_anew(changed(answer, input=json.loads(written(answer.input)) | parts), workspace)
        verdict = odf.verify_proof(forged, workspace)
        assert (verdict.ok, verdict.kind) == (False, None) or verdict.kind is not None
        assert verdict.exit_code == 7 or parts.get("query", "").startswith("select (")


# --- the key -------------------------------------------------------------------------------------------


def test_the_key_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    with workspace_with_types(tmp_path) as workspace:
        file = workspace.path / "node.pem"
        workspace.sql("select 1")
        assert not file.exists()
        first = workspace.prove("select 1 as a")
        assert file.stat().st_mode & 0o777 == 0o600
        assert workspace.prove("select 1 as a") == first
        assert first.input["datasets"] == []
        file.chmod(0o644)
        with pytest.raises(odf.errors.WorkspaceError, match="lets others read"):
            workspace.prove("select 1 as a")
        other = tmp_path / "other.pem"
        shutil.copy(file, other)
        other.chmod(0o600)
        file.unlink()
        configure(workspace.path, query={"signingKey": str(other)})
        assert workspace.prove("select 1 as a") == first
        assert not file.exists()
        configure(workspace.path, query={"signingKey": "absent.pem"})
        with pytest.raises(odf.errors.UsageError, match="no such file"):
            workspace.prove("select 1 as a")


# --- values --------------------------------------------------------------------------------------------

NS = pa.timestamp("ns")


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (pa.uint64(), 2**63 + 5, b"9223372036854775813"),
        (pa.float32(), 0.1, b"0.1"),
        (pa.float16(), 0.5, b"0.5"),
        (pa.float64(), math.nan, b"null"),
        (pa.decimal128(38, 10), decimal.Decimal("1E-10"), b'"0.0000000001"'),
        (pa.decimal256(60, 2), decimal.Decimal("-" + "9" * 58 + ".10"), b'"-' + b"9" * 58 + b'.10"'),
        (pa.decimal128(5, -2), decimal.Decimal(1200), b'"1200"'),
        (pa.binary(), b"\0\xff", b'"00ff"'),
        (pa.binary(2), b"\1\2", b'"0102"'),
        (pa.date32(), dt.date(1, 1, 1), b'"0001-01-01"'),
        (pa.date64(), dt.date(2020, 2, 29), b'"2020-02-29T00:00:00"'),
        (pa.time32("s"), dt.time(1, 2, 3), b'"01:02:03"'),
        (pa.time32("ms"), dt.time(1, 2, 3, 4000), b'"01:02:03.004"'),
        (pa.time64("ns"), 86_399_999_999_999, b'"23:59:59.999999999"'),
        (pa.timestamp("s"), 0, b'"1970-01-01T00:00:00"'),
        (pa.timestamp("ms", "UTC"), -1, b'"1969-12-31T23:59:59.999Z"'),
        (pa.timestamp("us"), 1, b'"1970-01-01T00:00:00.000001"'),
        (NS, 1_000_000, b'"1970-01-01T00:00:00.001"'),
        (NS, 1, b'"1970-01-01T00:00:00.000000001"'),
        (pa.duration("ms"), -1500, b'"-PT1.5S"'),
        (pa.duration("s"), 0, b'"P0D"'),
        (pa.duration("s"), 2**53, b'"PT9007199254740992S"'),
        (pa.duration("s"), 2**63 // 1_000, b'"PT9223372036854775S"'),
        (pa.duration("s"), 2**63 // 1_000 + 1, b'"<invalid>"'),
        (pa.month_day_nano_interval(), (0, 1, 0), b'"1 days"'),
        (pa.month_day_nano_interval(), (0, 0, 0), b'"0 secs"'),
        (
            pa.month_day_nano_interval(),
            (-14, 3, -3_600_500_000_000),
            b'"-14 mons 3 days -1 hours -0.500000000 secs"',
        ),
        (pa.list_(pa.month_day_nano_interval()), [(1, 0, 1), None], b'["1 mons 0.000000001 secs",null]'),
        (pa.list_view(pa.int8()), [1, None], b"[1,null]"),
        (pa.large_list_view(pa.string()), [], b"[]"),
        (pa.string_view(), "a", b'"a"'),
        (pa.binary_view(), b"a", b'"61"'),
        (pa.decimal32(5, 2), decimal.Decimal("1.5"), b'"1.50"'),
        (pa.decimal256(60, 2), decimal.Decimal("-1.5"), b'"-1.50"'),
        (pa.map_(pa.string(), pa.list_view(pa.int8())), [("a", [1])], b'[{"key":"a","value":[1]}]'),
        (pa.list_(pa.int8()), [1, None], b"[1,null]"),
        (pa.list_(pa.int8(), 2), [1, 2], b"[1,2]"),
        (pa.large_list(pa.string()), [], b"[]"),
        (pa.map_(pa.string(), pa.float32()), [("a", 0.5)], b'[{"key":"a","value":0.5}]'),
        (pa.struct([("b", pa.bool_()), ("a", NS)]), {"b": True, "a": None}, b'{"a":null,"b":true}'),
        (pa.dictionary(pa.int8(), pa.string()), "x", b'"x"'),
        (pa.null(), None, b"null"),
    ],
    ids=str,
)
def test_values_of_every_type(kind: pa.DataType, value: Any, wanted: bytes) -> None:
    column = pa.array([None, value, None], kind)
    for array in (column, pa.concat_arrays([column, column]).slice(3)):
        table = pa.table({"v": array})
        rows = output_of(table, "JsonAoS", schema=False)["data"]
        assert [canonical(row["v"]) for row in rows] == [b"null", wanted, b"null"]
        assert output_of(table, "JsonSoA", schema=False)["data"] == {"v": [row["v"] for row in rows]}
        assert canonical(output_of(table, "JsonAoA", schema=False)["data"])
    assert output_of(table.slice(0, 0), "JsonAoS", schema=False)["data"] == []
    assert canonical(output_of(table, "JsonAoS", schema=True)["schema"])


INTERVALS = fixture("query/intervals.json")["intervals"]


@pytest.mark.parametrize("kind", INTERVALS)
def test_intervals_are_the_text_that_the_library_of_the_node_shows(kind: str) -> None:
    """The engine's own cast to text is that of the node's library, so the table is held against it, too."""
    context = datafusion.SessionContext()
    for text, wanted in INTERVALS[kind].items():
        value = f"arrow_cast('{text}', 'Interval({kind})')"
        parts = f"{value} as v, cast({value} as varchar) as t, [{value}, null] as l, {{s: {value}}} as s"
        table = context.sql(f"select {parts}").to_arrow_table()
        assert output_of(table, "JsonAoS", schema=False)["data"] == [
            {"v": wanted, "t": wanted, "l": [wanted, None], "s": {"s": wanted}}
        ]
        types = [field["data_type"] for field in output_of(table, "JsonAoS", schema=True)["schema"]["fields"]]
        assert types[0] == {"Interval": kind} == types[2]["List"]["data_type"]


@pytest.mark.parametrize(
    ("kind", "data_format"), list(zip(INTERVALS, ["JsonAoS", "JsonSoA", "JsonAoA"], strict=True))
)
def test_answers_with_intervals_are_made_and_checked(
    workspace: odf.Workspace, kind: str, data_format: str
) -> None:
    text, wanted = next(iter(INTERVALS[kind].items()))
    query = f"select arrow_cast('{text}', 'Interval({kind})') as v, k from types order by k limit 2"
    answer = workspace.prove(query, data_format=data_format, schema_format="ArrowJson")
    assert canonical(wanted) in canonical(answer.output)
    # as the reference signs it: the same bytes, by its own key
    read = read_answer(answer.to_json().encode(), "answer")
    assert odf.verify_proof(read, workspace).ok
    false = json.loads(canonical(answer.output).replace(canonical(wanted), b'"2 days"'))
    verdict = odf.verify_proof(signed_anew(answer, workspace, false), workspace)
    assert (verdict.ok, verdict.kind) == (False, "VerificationFailed::OutputMismatch")


def test_structs_in_rows_as_lists_are_lists() -> None:
    table = pa.table({"v": pa.array([{"b": 1, "a": [{"c": 2}]}])})
    assert output_of(table, "JsonAoA", schema=False)["data"] == [[[1, [[2]]]]]


def test_values_that_have_no_form_are_named() -> None:
    for array, said in (
        (pa.array([1], pa.timestamp("s", "Europe/Brussels")), "zone Europe/Brussels"),
        (pa.array([2**40], pa.timestamp("s")), "year 1 or after 9999"),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "which JSON does not have"),
    ):
        with pytest.raises(odf.errors.QueryError, match=said):
            output_of(pa.table({"v": array}), "JsonAoS", schema=False)["data"]


# --- files that come from somebody else ----------------------------------------------------------------

GOOD = RECORDED["empty"]["response_text"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a signed answer"),
        ("[]", "it is not an object"),
        ("{}", "it has no commitment"),
        (GOOD[:-1] + ',"more":1}', "a member 'more'"),
        (GOOD[:-1] + ',"input":{}}', "a name comes twice in an object"),
        (GOOD.replace('"limit":100', '"limit":1e2'), "limit of input is not a number of rows"),
        (GOOD.replace('"limit":100', '"limit":-1'), "limit of input is not a number of rows"),
        (GOOD.replace('"skip":0', '"skip":NaN'), "NaN is not a JSON number"),
        (GOOD.replace("did:odf:f", "did:odf:F"), "another spelling"),
        (GOOD.replace("did:key:", "did:web:"), "does not start with"),
        (GOOD.replace("Ed25519Signature2020", "None"), "not of type Ed25519Signature2020"),
        (GOOD.replace('"subQueries":[]', '"subQueries":{}'), "subQueries is not a list"),
        (GOOD.replace('"dataFormat":"JsonAoS"},"sub', '"dataFormat":1e5},"sub'), None),
        (GOOD.replace("select k", "select " + "k" * 70_000), "is not a short text"),
        (GOOD.replace("select k", "select " + "ä" * 40_000), "longer than 65,536 bytes"),
        (GOOD.replace("k from types", "k \\ud800 from types"), "half a character"),
        (GOOD.replace('"data":[]', '"data":' + "[" * 100 + "]" * 100), "levels deep"),
        (GOOD.replace('"data":[]', '"data":' + "[" * 100_000), "levels deep"),
        (GOOD.replace('"data":[]', '"data":[' + "[]," * 3_000_000 + "1]"), "more than 5,000,000 values"),
        (GOOD + " " * FILE_BYTES, "longer than 16,777,216 bytes"),
        (GOOD[:-1] + ',"engine":"' + "x" * 200 + '"}', "engine is not a short text"),
    ],
    ids=range(21),
)
def test_hostile_files_are_refused(text: str, said: str | None, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    for command in ("show", "verify"):
        result = run("proof", command, file)
        if said is None:
            assert result.code in (0, 6)
            continue
        assert result.code == 6
        assert said in result.err
        assert "Traceback" not in result.err


def test_nothing_in_a_file_acts_on_a_terminal(workspace: odf.Workspace, tmp_path: Path, run: Run) -> None:
    asked = json.loads(written(workspace.prove("select 1 as a").input))
    asked["query"] = "select '\x1b[31m\u202e' as \"\x1b]0;x\x07\""
    lie = changed(workspace.prove("select 1 as a"), input=asked, engine="\x1b[2J")
    signed_anew(lie, workspace, {"data": ["\x1b[2J\n\u202e"]}).save(tmp_path / "a.json")
    for command in (["show"], ["verify"], ["verify", "-o", "json"]):
        result = run("proof", *command, tmp_path / "a.json")
        assert "\x1b" not in result.out + result.err
        assert "\u202e" not in result.out + result.err


# --- the command ---------------------------------------------------------------------------------------


def test_the_command_says_in_a_line_what_was_found(
    workspace: odf.Workspace, tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "a.json"
    answer = workspace.prove("select k, s from types order by k", limit=2)
    answer.save(file)
    signer = f"{answer.signer[:13]}…{answer.signer[-4:]}"
    result = run("proof", "verify", file)
    assert result == (0, f"{file}: signed by {signer}; types @ 3 is here; recomputed: the same 2 rows\n", "")
    found = json.loads(run("proof", "verify", "-o", "json", file).out)
    assert (found["ok"], found["rows"], found["datasets"]) == (True, 2, ["types @ 3"])
    shown = run("proof", "show", file)
    assert shown.code == 0
    for line in ("query    select k, s from types order by k", f"signed   {answer.signer}\n"):
        assert line in shown.out
    assert "row      k -9223372036854775808, s <&>'" in shown.out
    described = json.loads(run("proof", "show", "-o", "json", file).out)
    assert (described["problem"], described["output"]) == (None, json.loads(written(answer.output)))
    file.write_text(file.read_text().replace("plain", "plaim"))
    bad = run("proof", "verify", file)
    assert (bad.code, bad.out) == (6, "")
    assert "the rows were changed" in bad.err
    assert "but what is here does not hash to the outputHash" in run("proof", "show", file).out
    assert run("proof", "verify", tmp_path / "absent.json").code == 2
    error = json.loads(run("proof", "verify", "-o", "json", file).out)["error"]
    assert error["kind"].endswith("OutputMismatch")


def test_a_query_on_the_command_line_is_signed(workspace: odf.Workspace, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "a.json"
    asked = ["sql", "-c", "select k from types", "-o", "csv", "--proof", file]
    plain = run(*asked[:5])
    result = run(*asked)
    assert (result.code, result.out) == (0, plain.out)
    assert "note: the query has no ORDER BY" in result.err
    assert read_answer(file.read_bytes(), "a").proof == workspace.prove("select k from types").proof
    assert run(*asked, "--limit", 2).out == "\n".join(plain.out.split("\n")[:3]) + "\n"
    assert len(json.loads(file.read_bytes())["output"]["data"]) == 2
    file.unlink()
    for more, code in ((["--engine", "spark"], 2), (["--param", "a=1"], 2)):
        assert run(*asked, *more).code == code
    assert run("sql", "-c", "select now()", "--proof", file).code == 3
    assert not file.exists()


def test_checking_writes_nothing(workspace: odf.Workspace) -> None:
    answer = workspace.prove(ORDERED)
    with unchanged(workspace["types"].path):
        assert odf.verify_proof(answer, workspace).ok


# --- what another node says ----------------------------------------------------------------------------


class Node(Handler):
    """Answers `POST /verify` as was recorded, and others with what a test says."""

    recorded: ClassVar[dict[str, tuple[int, bytes]]]
    seen: ClassVar[list[tuple[str, bytes, str | None]]]
    instead: ClassVar[tuple[int, bytes] | None]

    def do_POST(self) -> None:
        body = self.content()
        self.seen.append((self.path, body, self.headers["Authorization"]))
        commitment = json.loads(body)["commitment"]["outputHash"]
        self.reply(*(self.instead or self.recorded[commitment]))


@pytest.fixture
def node() -> Iterator[str]:
    Node.recorded, Node.seen, Node.instead = {}, [], None
    for name in ("verify_ok", "verify_bad_commitment"):
        case = RECORDED[name]
        said = case["status"], case["response_text"].encode()
        Node.recorded[case["body"]["commitment"]["outputHash"]] = said
    with WebServer(Node) as server:
        yield f"{server.origin}/base"


def test_another_node_is_asked_as_the_reference_node_is(
    node: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = dataclasses.replace(recorded_answer("all_types"), engine="datafusion 54.0.0")
    assert ProofVerdict.of_node(answer, node).ok
    ((path, body, authorization),) = Node.seen
    assert (path, authorization) == ("/base/verify", None)
    assert json.loads(body).keys() == {"input", "output", "subQueries", "commitment", "proof"}
    assert b"1e-7" in body
    answer.save(tmp_path / "a.json")
    monkeypatch.setenv("ODFCHAIN_TOKEN", "ka_secret")
    result = run("proof", "verify", tmp_path / "a.json", "--remote", node)
    assert result.code == 0
    assert "says that it is true" in result.out
    assert Node.seen[-1][2] == "Bearer ka_secret"
    bad = read_answer(json.dumps(RECORDED["verify_bad_commitment"]["body"]).encode(), "bad")
    verdict = ProofVerdict.of_node(bad, node)
    assert (verdict.kind, verdict.exit_code) == ("InvalidRequest::BadSignature", 6)
    said = b'{"ok":false,"error":{"kind":"VerificationFailed::DatasetNotFound","message":"\\u001b"}}'
    Node.instead = (400, said)
    verdict = ProofVerdict.of_node(answer, node)
    assert (verdict.exit_code, verdict.kind) == (7, "VerificationFailed::DatasetNotFound")
    assert "\x1b" not in verdict.message


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, b"{}"),
        (200, b"<html>"),
        (200, b'{"ok":1}'),
        (404, b"no"),
        (401, b'{"message":"who?"}'),
        (302, b""),
    ],
)
def test_a_node_that_is_none(status: int, said: bytes, node: str) -> None:
    Node.instead = (status, said)
    with pytest.raises(odf.errors.TransferError), as_transfer_errors():
        ProofVerdict.of_node(recorded_answer("all_types"), node)
