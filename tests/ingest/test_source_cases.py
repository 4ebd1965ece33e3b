"""`polling_cases.json`, what is run nowhere else, and a watch over all: no case of a source file without a test.

Where we differ stands in RFC-014 by id; so do the few cases of interfaces that do not exist here.
"""

from __future__ import annotations

import ast
import datetime as dt
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import AppendError, BadInputError, FetchError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.sources import FetchStepEthereumLogs, FetchStepMqtt, MergeStrategyLedger, ReadStepNdJson
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from tests.kit.polled_sources import file_url, polled, rows, touch
from tests.kit.pushed_files import BARE, push
from tests.kit.support import ROOT, Run, conformance, manifest, unchanged

CSV37 = conformance("polling_cases")["common_input"]["CSV37"]

MQTT = "kind: Mqtt, host: 127.0.0.1, port: 1883, topics: [{path: a, qos: AtMostOnce}]"
ETHEREUM = "kind: EthereumLogs, chainId: 1, nodeUrl: 'wss://127.0.0.1:1', signature: 'Sync()'"


@pytest.mark.parametrize(
    ("fetch", "kind"),
    [pytest.param(MQTT, FetchStepMqtt, id="mqtt"), pytest.param(ETHEREUM, FetchStepEthereumLogs, id="eth")],
)
def test_kinds_of_sources_that_are_kept_but_not_fetched(
    workspace: Workspace, run_cli: Run, fetch: str, kind: type[Any]
) -> None:
    """mqtt.empty, mqtt.one and eth.state: nobody is asked, and one line says why."""
    dataset = polled(workspace, fetch)
    assert isinstance(dataset.summary.polling_source.fetch, kind)
    said = f"fetching from {kind.KIND} is not supported (Url, FilesGlob and Container are)"
    with unchanged(dataset.path):
        with pytest.raises(FetchError) as caught:
            dataset.pull()
        assert str(caught.value) == said
        result = run_cli("-w", workspace.path, "pull", "cities")
    assert result.code == FetchError.exit_code
    assert [line for line in result.err.splitlines() if said in line] != []
    assert "Traceback" not in result.err
    assert dataset.verify().ok


def test_ddl_schema(workspace: Workspace, tmp_path: Path) -> None:
    """flow.ddl_schema"""
    dataset = polled(
        workspace, file_url(tmp_path / "in.csv"), read=f"kind: Csv, header: true, ddlSchema: {COLUMNS}",
        merge=LEDGER + "\n    - {kind: SetVocab, eventTimeColumn: date}",
    )  # fmt: skip
    header = "date,city,population\n"
    touch(tmp_path / "in.csv", header + "2020-01-01,A,1000\n2020-01-01,B,\n", 1_600_000_000)
    dataset.pull()
    touch(tmp_path / "in.csv", header + "2020-01-01,A,1000\n2021-01-01,C,4000\n", 1_600_000_100)
    dataset.pull()
    expected = [[0, day(2020), "A", 1000], [1, day(2020), "B", None], [2, day(2021), "C", 4000]]
    assert rows(dataset, "offset", "date", "city", "population") == expected
    assert str(dataset.summary.watermark) == "2021-01-01T00:00:00Z"
    optional = {field.name for field in dataset.schema.fields if field.optional}
    assert optional == {"city", "population"}
    assert dataset.schema.names == ("offset", "op", "system_time", "date", "city", "population")


def test_prepared_files_do_not_outlive_a_failure(workspace: Workspace, tmp_path: Path) -> None:
    """prep.derived_8"""
    path = tmp_path / "in.csv.gz"
    path.write_bytes(gzip.compress(b"city,population\nA,x\n"))
    dataset = polled(workspace, file_url(path), prepare="[{kind: Decompress, format: Gzip}]")
    with unchanged(dataset.path), pytest.raises(BadInputError, match="row 1: column `population`: 'x'"):
        dataset.pull()
    assert path.exists()


# --- every case has a test -------------------------------------------------------------------------

URL, HTTP, FTP, GLOB = (f"fetch/test_{name}.py" for name in ("url", "http", "ftp", "glob"))
CONTAINER, TEMPLATE = "fetch/test_container.py", "fetch/test_template.py"
PREPARE = "prepare/test_preparing.py"
PULL, HERE, INGEST, BAD = (
    f"ingest/test_{name}.py" for name in ("pull", "source_cases", "ingest", "bad_input")
)
RULES = "chain/test_rules.py"

TESTS = {
    f"{URL}::test_url_file_missing": "url_file.missing",
    f"{URL}::test_url_file_first": "url_file.first",
    f"{URL}::test_url_file_unchanged": "url_file.unchanged",
    f"{URL}::test_url_file_event_time": "url_file.event_time",
    f"{HTTP}::test_http_unreachable": "http.unreachable",
    f"{HTTP}::test_http_404_and_removed": "http.404 http.removed",
    f"{HTTP}::test_http_ok": "http.ok",
    f"{HTTP}::test_http_repeat": "http.repeat",
    f"{HTTP}::test_http_touched": "http.touched",
    f"{HTTP}::test_the_tag_is_the_state_else_the_date_which_is_the_event_time":
        "http.derived_1 http.derived_2 http.derived_7",
    f"{HTTP}::test_http_derived_3_the_condition_is_an_http_date": "http.derived_3",
    f"{HTTP}::test_http_derived_4_other_statuses": "http.derived_4",
    f"{HTTP}::test_http_derived_6_a_silent_server": "http.derived_6",
    f"{URL}::test_url_env_missing": "url.env_missing",
    f"{URL}::test_url_env_set_and_default": "url.env_set url.env_default",
    f"{FTP}::test_case_ftp_ok": "ftp.ok",
    f"{URL}::test_url_other_scheme": "url.other_scheme",
    f"{GLOB}::test_the_tested_cases_in_their_order":
        "glob.no_match_first glob.first glob.repeat glob.mtime_changed glob.older_name_added "
        "glob.two_new",
    f"{GLOB}::test_files_of_the_same_name_in_several_folders": "glob.derived_0",
    f"{GLOB}::test_ordered_by_event_time": "glob.derived_1",
    f"{GLOB}::test_event_times": "glob.derived_3",
    f"{PULL}::test_files_of_a_glob_are_one_transaction_each": "glob.derived_6",
    f"{HERE}::test_kinds_of_sources_that_are_kept_but_not_fetched": "mqtt.empty mqtt.one eth.state",
    f"{CONTAINER}::test_case_ok": "container.ok",
    f"{CONTAINER}::test_case_env": "container.env",
    f"{CONTAINER}::test_case_args_template": "container.args_template",
    f"{CONTAINER}::test_cases_batch_default_and_batch_set": "container.batch_default container.batch_set",
    f"{CONTAINER}::test_case_no_output": "container.no_output",
    f"{CONTAINER}::test_case_iter": "container.iter",
    f"{CONTAINER}::test_case_single_batch": "container.single_batch",
    f"{CONTAINER}::test_case_protocol_states": "container.protocol",
    f"{TEMPLATE}::test_defaults": "template.default template.int template.float template.str",
    f"{TEMPLATE}::test_something_else_for_a_default": "template.bad",
    f"{PULL}::test_rows_are_not_repeated_when_the_state_is_unknown": "flow.uncacheable",
    f"{PULL}::test_a_failed_pull_is_repeated_from_the_start": "flow.savepoint",
    f"{PULL}::test_the_three_rounds_of_a_snapshot": "flow.snapshot_3_rounds",
    f"{HERE}::test_ddl_schema": "flow.ddl_schema",
    f"{PREPARE}::test_case_pipe_jq": "prep.pipe_jq",
    f"{PREPARE}::test_case_zip_single": "prep.zip_single",
    f"{PREPARE}::test_case_gzip": "prep.gzip",
    f"{PREPARE}::test_beyond_derived_0_several_entries_are_refused": "prep.derived_0",
    f"{PREPARE}::test_beyond_derived_1_a_sub_path_is_a_name_or_a_glob": "prep.derived_1",
    f"{PREPARE}::test_beyond_derived_3_every_member_is_read": "prep.derived_3",
    f"{PREPARE}::test_any_stage_can_fail_and_only_its_words_are_told": "prep.derived_6",
    f"{PREPARE}::test_case_derived_7_without_steps_the_source_itself": "prep.derived_7",
    f"{HERE}::test_prepared_files_do_not_outlive_a_failure": "prep.derived_8",
    f"{HERE}::test_url_then_stream": "push.url_then_stream push.repeat_same_data",
    f"{HERE}::test_media_type_override": "push.media_type_override",
    f"{HERE}::test_without_a_source": "push.upload_no_source push.no_source",
    f"{INGEST}::test_without_a_source_the_extension_tells_the_format": "push.upload_type_from_extension",
    f"{HERE}::test_source_name_default": "push.source_name_default",
    f"{INGEST}::test_several_files_are_transactions_of_one_publication": "push.multi",
    f"{HERE}::test_predefined_schema": "push.predefined_schema",
    f"{HERE}::test_source_evolution": "push.source_evolution",
    f"{HERE}::test_case_sensitive_sql": "push.case_sensitive_sql",
    f"{INGEST}::test_standard_input": "push.stdin_or_fifo",
    f"{BAD}::test_a_derivative_dataset_cannot_be_pushed_to": "push.targets",
    f"{RULES}::test_violation": "chain.ddl_and_schema chain.preprocess_normalised",
}  # fmt: skip
"""Which cases a test runs; of those that are run by several, it is the one that says most."""

NO_SUCH_INTERFACE = {"push.upload_size_mismatch", "push.other_url"}


def functions_of(path: Path) -> Iterator[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in tree.body if isinstance(node, ast.FunctionDef))


def ids_of(name: str) -> list[str]:
    return [case["id"] for case in conformance(name)["cases"]]


def test_every_polling_case_is_run() -> None:
    ids = ids_of("polling_cases")
    assert len(ids) == len(set(ids)) == 78
    listed = " ".join(TESTS.values()).split()
    assert len(listed) == len(set(listed))
    assert set(listed) ^ set(ids) == NO_SUCH_INTERFACE
    tests = ROOT / "tests"
    known = {
        f"{file}::{function.name}"
        for file in {place.partition("::")[0] for place in TESTS}
        for function in functions_of(tests / file)
        if not any("skip" in ast.unparse(mark) for mark in function.decorator_list)
    }
    assert sorted(set(TESTS) - known) == [], "no such test, or one that may be skipped"


def test_cases_that_differ_stand_in_the_rfc() -> None:
    text = (ROOT / "rfcs" / "014-pulling.md").read_text(encoding="utf-8")
    table = text.partition("### Cases that differ\n")[2].partition("\n\n")[0]
    listed = [i for row in table.splitlines() for i in re.findall(r"`([a-z_]+\.\w+)`", row.split("|")[1])]
    assert sorted(set(listed)) == sorted(listed), "each id once"
    assert set(listed) <= set(ids_of("polling_cases"))
    assert {*NO_SUCH_INTERFACE, "mqtt.empty", "mqtt.one", "eth.state", "flow.savepoint"} <= set(listed)


def test_every_reader_case_is_run() -> None:
    """By the parameters of its test, or by a test that names it."""
    from tests.ingest import test_reader_cases

    run = set()
    for name, function in vars(test_reader_cases).items():
        if name.startswith("test_"):
            run |= set(re.findall(r"[a-z]+\.\w+", function.__doc__ or ""))
            for mark in getattr(function, "pytestmark", ()):
                assert mark.name == "parametrize"
                run |= {getattr(value, "id", value) for value in mark.args[1]}
    ids = ids_of("reader_cases")
    assert len(ids) == len(set(ids)) == 58
    assert sorted(set(ids) - run) == []


# --- `polling_cases.json`, the cases of pushing and of the chain that it needs; differences stand in RFC-014 ---


CASES = {c["id"]: c for c in conformance("polling_cases")["cases"]}
LEDGER = "{kind: Ledger, primaryKey: [date, city]}"
COLUMNS = '["date TIMESTAMP", "city STRING", "population BIGINT"]'
MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")


def pushed(
    workspace: Workspace,
    schema: str | None = None,
    *,
    kind: str = "NdJson",
    merge: str = LEDGER,
    more: str = "",
) -> Dataset:
    """A dataset with a push source, whose event times are in the column `date`."""
    text = manifest(merge, schema or "", kind=kind, name="d").replace("        header: true\n", "") + more
    text = text if schema else text.replace("        schema:", "        #")
    (dataset,) = workspace.add(f"{text}    - {{kind: SetVocab, eventTimeColumn: date}}\n")
    return dataset


def day(year: int) -> dt.datetime:
    return dt.datetime(year, 1, 1, tzinfo=dt.UTC)


def lines(date: str, *rows: dict[str, Any]) -> str:
    return "".join(json.dumps({"date": date} | row) + "\n" for row in rows)


def test_url_then_stream(workspace: Workspace) -> None:
    """push.url_then_stream and push.repeat_same_data"""
    dataset = pushed(workspace, COLUMNS, kind="Csv")
    first = "2020-01-01,A,1000\n2020-01-01,B,2000\n2020-01-01,C,3000\n"
    push(dataset, first)
    assert str(dataset.summary.watermark) == "2020-01-01T00:00:00Z"
    given = CASES["push.url_then_stream"]["expect"]["2 input"]
    outcome = dataset.ingest(io.BytesIO("".join(",".join(map(str, row)) + "\n" for row in given).encode()))
    assert [item.offsets for item in outcome.inputs] == [(3, 3)]
    assert str(dataset.summary.watermark) == "2021-01-01T00:00:00Z"
    with unchanged(dataset.path):
        assert push(dataset, first).up_to_date


def test_media_type_override(workspace: Workspace) -> None:
    """push.media_type_override"""
    dataset = pushed(workspace, COLUMNS)
    contents = {
        "csv": "2020-01-01,A,1000\n",
        "ndjson": lines("2020-01-01", {"city": "B", "population": 2000}),
        "json": '[{"date": "2020-01-01", "city": "C", "population": 3000}]',
    }
    for number, (name, content) in enumerate(contents.items()):
        assert push(dataset, content, "in", input_format=name).inputs[0].offsets == (number, number)
    expected = [[day(2020), "A", 1000], [day(2020), "B", 2000], [day(2020), "C", 3000]]
    assert rows(dataset, "date", "city", "population") == expected


def test_without_a_source(workspace: Workspace) -> None:
    """push.upload_no_source and push.no_source: files are taken as they are, and no source is defined."""
    (dataset,) = workspace.add(BARE)
    content = json.dumps([{"city": "A", "population": 1000}])
    push(dataset, content, "in.json", system_time=Timestamp.parse("2050-01-01T12:00:00Z"))
    noon = dt.datetime(2050, 1, 1, 12, tzinfo=dt.UTC)
    assert rows(dataset, "event_time", "city", "population") == [[noon, "A", 1000]]
    assert all(f.optional for f in dataset.schema.fields[4:])
    assert dataset.summary.push_sources == {}


def test_source_name_default(workspace: Workspace) -> None:
    """push.source_name_default"""
    (dataset,) = workspace.add(manifest(kind="NdJson").replace("      sourceName: default\n", ""))
    assert list(dataset.summary.push_sources) == ["default"]


def declare(dataset: Dataset, *fields: ds.DataField) -> None:
    system = (
        ds.DataField(name="offset", type=ds.DataTypeUInt64()), ds.DataField(name="op", type=ds.DataTypeUInt8()),
        ds.DataField(name="system_time", type=MS), ds.DataField(name="date", type=MS),
    )  # fmt: skip
    event = ev.SetDataSchema(schema=ds.DataSchema(fields=(*system, *fields)))
    commit(dataset._files, dataset.summary, [event], [], system_time=Timestamp.now())


CITY = ds.DataField(name="city", type=ds.DataTypeString())
POPULATION = ds.DataField(name="population", type=ds.DataTypeInt64())
URL = ds.DataField(name="census_url", type=ds.optional(ds.DataTypeString()))


def test_predefined_schema(workspace: Workspace) -> None:
    """push.predefined_schema"""
    dataset = pushed(workspace)
    declare(dataset, CITY, POPULATION)
    push(dataset, lines("2020-01-01", {"city": "A", "population": 1000}), "in")
    assert rows(dataset, "date", "city", "population") == [[day(2020), "A", 1000]]
    said = "`population` contains 1 null values while none were expected"
    bad = lines("2020-01-01", {"city": "B", "population": None}, {"city": "C", "population": 1})
    with unchanged(dataset.path), pytest.raises(BadInputError, match=said):
        push(dataset, bad, "in")


def test_source_evolution(workspace: Workspace) -> None:
    """push.source_evolution"""
    dataset = pushed(workspace, COLUMNS)
    declare(dataset, CITY, POPULATION)
    cities = [{"city": city, "population": 1000} for city in "ABC"]
    push(dataset, lines("2020-01-01", *cities), "in")
    declare(dataset, CITY, POPULATION, URL)
    read = ReadStepNdJson(ddl_schema=(*json.loads(COLUMNS), "census_url STRING"))
    merge = MergeStrategyLedger(primary_key=("date", "city"))
    again = ev.AddPushSource(source_name="default", read=read, merge=merge)
    commit(dataset._files, dataset.summary, [again], [], system_time=Timestamp.now())
    with pytest.raises(AppendError, match="already defined"):
        commit(dataset._files, dataset.summary, [again], [], system_time=Timestamp.now())
    push(dataset, lines("2020-01-02", *cities[:2], cities[2] | {"census_url": "https://x"}), "in")
    assert rows(dataset, "offset", "census_url")[3:] == [[3, None], [4, None], [5, "https://x"]]
    assert dataset.verify().ok


def test_case_sensitive_sql(workspace: Workspace) -> None:
    """push.case_sensitive_sql"""
    query = "select date, lower, MIXed, mixED, mixED as mixed, UPPER from input"
    schema = '["date TIMESTAMP", "lower STRING", "MIXed STRING", "mixED STRING", "UPPER STRING"]'
    more = f"      preprocess: {{kind: Sql, engine: datafusion, query: '{query}'}}\n"
    dataset = pushed(workspace, schema, merge="{kind: Append}", more=more)
    push(dataset, lines("2020-01-01", {"lower": "a", "MIXed": "b", "mixED": "c", "UPPER": "d"}), "in")
    assert rows(dataset, "lower", "MIXed", "mixED", "mixed", "UPPER") == [["a", "b", "c", "c", "d"]]
