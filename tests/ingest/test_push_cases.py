"""`polling_cases.json`, the cases of pushing and of the chain that it needs; differences stand in RFC-014."""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import AppendError, BadInputError, UsageError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.sources import MergeStrategyLedger, ReadStepNdJson
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from tests.kit.support import conformance, derivative, unchanged

CASES = {c["id"]: c for c in conformance("polling_cases")["cases"]}
MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
SOURCE = """\
kind: DatasetSnapshot
version: 1
content:
  name: d
  kind: Root
  metadata:
    - {{kind: SetVocab, eventTimeColumn: date}}
    - kind: AddPushSource
      {name}read: {read}
      {preprocess}merge: {merge}
"""
LEDGER = "{kind: Ledger, primaryKey: [date, city]}"
COLUMNS = '["date TIMESTAMP", "city STRING", "population BIGINT"]'


def pushed(
    workspace: Workspace,
    read: str,
    *,
    merge: str = LEDGER,
    name: str = "sourceName: default\n      ",
    preprocess: str = "",
) -> Dataset:
    text = SOURCE.format(
        name=name,
        read=read,
        merge=merge,
        preprocess=f"preprocess: {preprocess}\n      " if preprocess else "",
    )
    (dataset,) = workspace.add(text)
    return dataset


def put(folder: Path, content: str, name: str = "in") -> Path:
    (folder / name).write_text(content)
    return folder / name


def rows(dataset: Dataset, *columns: str) -> list[list[Any]]:
    return [list(row.values()) for row in dataset.scan(list(columns)).to_arrow().to_pylist()]


def day(year: int) -> dt.datetime:
    return dt.datetime(year, 1, 1, tzinfo=dt.UTC)


def test_url_then_stream(workspace: Workspace, tmp_path: Path) -> None:
    """push.url_then_stream and push.repeat_same_data"""
    dataset = pushed(workspace, f"{{kind: Csv, schema: {COLUMNS}}}")
    first = put(tmp_path, "2020-01-01,A,1000\n2020-01-01,B,2000\n2020-01-01,C,3000\n")
    dataset.ingest([first])
    assert str(dataset.summary.watermark) == "2020-01-01T00:00:00Z"
    lines = "".join(
        ",".join(map(str, row)) + "\n" for row in CASES["push.url_then_stream"]["expect"]["2 input"]
    )
    outcome = dataset.ingest(io.BytesIO(lines.encode()))
    assert [item.offsets for item in outcome.inputs] == [(3, 3)]
    assert str(dataset.summary.watermark) == "2021-01-01T00:00:00Z"
    with unchanged(dataset.path):
        assert dataset.ingest([first]).up_to_date


def test_media_type_override(workspace: Workspace, tmp_path: Path) -> None:
    """push.media_type_override"""
    dataset = pushed(workspace, f"{{kind: NdJson, schema: {COLUMNS}}}")
    for number, (name, content) in enumerate(
        {
            "csv": "2020-01-01,A,1000\n",
            "ndjson": '{"date": "2020-01-01", "city": "B", "population": 2000}\n',
            "json": '[{"date": "2020-01-01", "city": "C", "population": 3000}]',
        }.items()
    ):
        outcome = dataset.ingest([put(tmp_path, content)], input_format=name)
        assert outcome.inputs[0].offsets == (number, number)
    assert rows(dataset, "date", "city", "population") == [
        [day(2020), "A", 1000],
        [day(2020), "B", 2000],
        [day(2020), "C", 3000],
    ]


def test_without_a_source(workspace: Workspace, tmp_path: Path) -> None:
    """push.upload_no_source and push.no_source: files are taken as they are, and no source is defined."""
    (dataset,) = workspace.add(
        "kind: DatasetSnapshot\nversion: 1\ncontent: {name: d, kind: Root, metadata: []}"
    )
    at = Timestamp.parse("2050-01-01T12:00:00Z")
    path = put(tmp_path, json.dumps([{"city": "A", "population": 1000}]), "in.json")
    dataset.ingest([path], system_time=at)
    assert rows(dataset, "event_time", "city", "population") == [
        [dt.datetime(2050, 1, 1, 12, tzinfo=dt.UTC), "A", 1000]
    ]
    assert dataset.schema is not None
    assert all(f.optional for f in dataset.schema.fields[4:])
    assert dataset.summary.push_sources == {}


def test_source_name_default(workspace: Workspace) -> None:
    """push.source_name_default"""
    assert list(pushed(workspace, "{kind: NdJson}", name="").summary.push_sources) == ["default"]


def test_multi(workspace: Workspace, tmp_path: Path) -> None:
    """push.multi"""
    dataset = pushed(workspace, f"{{kind: Csv, schema: {COLUMNS}}}")
    files = [put(tmp_path, f"2020-01-0{n},A,1\n", f"{n}.csv") for n in (1, 2)]
    outcome = dataset.ingest(files)
    assert (outcome.blocks, [i.offsets for i in outcome.inputs]) == (3, [(0, 0), (1, 1)])


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


def test_predefined_schema(workspace: Workspace, tmp_path: Path) -> None:
    """push.predefined_schema"""
    dataset = pushed(workspace, "{kind: NdJson}")
    declare(dataset, CITY, POPULATION)
    dataset.ingest([put(tmp_path, '{"date": "2020-01-01", "city": "A", "population": 1000}\n')])
    assert rows(dataset, "date", "city", "population") == [[day(2020), "A", 1000]]
    with (
        unchanged(dataset.path),
        pytest.raises(BadInputError, match="`population` contains 1 null values while none were expected"),
    ):
        dataset.ingest(
            [
                put(
                    tmp_path,
                    '{"date": "2020-01-01", "city": "B", "population": null}\n{"date": "2020-01-01", "city": "C", "population": 1}\n',
                )
            ]
        )


def test_source_evolution(workspace: Workspace, tmp_path: Path) -> None:
    """push.source_evolution"""
    dataset = pushed(workspace, f"{{kind: NdJson, schema: {COLUMNS}}}")
    declare(dataset, CITY, POPULATION)
    lines = [json.dumps({"date": "2020-01-01", "city": c, "population": 1000}) for c in "ABC"]
    dataset.ingest([put(tmp_path, "\n".join(lines))])
    declare(dataset, CITY, POPULATION, URL)
    read = ReadStepNdJson(
        ddl_schema=("date TIMESTAMP", "city STRING", "population BIGINT", "census_url STRING")
    )
    again = ev.AddPushSource(
        source_name="default", read=read, merge=MergeStrategyLedger(primary_key=("date", "city"))
    )
    commit(dataset._files, dataset.summary, [again], [], system_time=Timestamp.now())
    with pytest.raises(AppendError, match="already defined"):
        commit(dataset._files, dataset.summary, [again], [], system_time=Timestamp.now())
    lines = [json.dumps({"date": "2020-01-02", "city": c, "population": 1000}) for c in "AB"]
    lines.append(
        json.dumps({"date": "2020-01-02", "city": "C", "population": 1000, "census_url": "https://x"})
    )
    dataset.ingest([put(tmp_path, "\n".join(lines))])
    assert rows(dataset, "offset", "census_url")[3:] == [[3, None], [4, None], [5, "https://x"]]
    assert dataset.verify().ok


def test_case_sensitive_sql(workspace: Workspace, tmp_path: Path) -> None:
    """push.case_sensitive_sql"""
    query = "{kind: Sql, engine: datafusion, query: 'select date, lower, MIXed, mixED, mixED as mixed, UPPER from input'}"
    dataset = pushed(
        workspace,
        '{kind: NdJson, schema: ["date TIMESTAMP", "lower STRING", "MIXed STRING", "mixED STRING", "UPPER STRING"]}',
        merge="{kind: Append}",
        preprocess=query,
    )
    dataset.ingest(
        [put(tmp_path, '{"date": "2020-01-01", "lower": "a", "MIXed": "b", "mixED": "c", "UPPER": "d"}')]
    )
    assert rows(dataset, "lower", "MIXed", "mixED", "mixed", "UPPER") == [["a", "b", "c", "c", "d"]]


def test_targets(workspace: Workspace, tmp_path: Path) -> None:
    """push.targets"""
    pushed(workspace, "{kind: NdJson}")
    (derived,) = workspace.add(derivative("select * from d", inputs="[{datasetRef: d}]"))
    with unchanged(derived.path), pytest.raises(UsageError, match="derivative dataset"):
        derived.ingest([put(tmp_path, "{}", "in.ndjson")])
