"""What no run could ever do is refused when it is added; what runs can do is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.manifests import read_snapshots
from tests.kit.branch_cases import run_here
from tests.kit.root_rows import add_root, schema_event, schema_with
from tests.kit.support import FIXTURES

CASES = json.loads((FIXTURES / "manifests" / "unusable.json").read_bytes())
REFUSED = {case["id"]: case for case in CASES["refused"]}
ACCEPTED = {case["id"]: case for case in CASES["accepted"]}


def manifest(case: dict[str, Any], name: str = "d") -> str:
    content = {"name": name, "kind": "Root", "metadata": case["metadata"]}
    return json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})


def has_query(case: dict[str, Any]) -> bool:
    return "preprocess" in json.dumps(case)


@pytest.fixture
def ws(tmp_path: Path) -> odf.Workspace:
    return odf.init(tmp_path / "workspace")


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_never_work_is_refused_by_add(ws: odf.Workspace, name: str) -> None:
    case = REFUSED[name]
    good = manifest({"metadata": []}, "before")
    both = f"{good}\n---\n{manifest(case)}"
    for check in (False,) if has_query(case) else (True, False):
        with pytest.raises(odf.errors.ManifestError) as caught:
            ws.add(both if check else manifest(case), check=check)
        assert (caught.value.path, case["says"] in caught.value.message) == (case["path"], True), caught.value
        assert len(ws) == 0  # nor what is defined beside it


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_never_work_is_refused_by_an_update(ws: odf.Workspace, name: str) -> None:
    case = REFUSED[name]
    (dataset,) = ws.add(manifest({"metadata": []}))
    head = dataset.head
    with pytest.raises(odf.errors.ManifestError) as caught:
        ws.update(read_snapshots(manifest(case))[0], check=False)
    assert caught.value.path == case["path"]
    assert dataset.head == head


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_runs_can_do_is_added(ws: odf.Workspace, name: str) -> None:
    case = ACCEPTED[name]
    (dataset,) = ws.add(manifest(case), check=not has_query(case))
    assert ws.update(read_snapshots(manifest(case))[0], check=False)[1] == []  # also as it is in the chain
    assert dataset.verify().faults == []


def test_the_command_names_file_and_path(ws: odf.Workspace, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(manifest(REFUSED["license no url"]))
    result = run_here(ws)("add", str(path))
    assert result.code == 3
    assert "metadata[0].websiteUrl: 'nonsense' is not an http or https URL" in result.err


def test_events_that_python_gives_are_judged_too(ws: odf.Workspace) -> None:
    events = ev.SetVocab(offset_column=""), ev.SetInfo(keywords=("",))
    for event in events:
        snapshot = DatasetSnapshot(name=odf.DatasetAlias.parse("d"), kind=DatasetKind.ROOT, metadata=(event,))
        for make in (ws.check, ws.create):
            with pytest.raises(odf.errors.ManifestError, match="is expected"):
                make(snapshot)
    assert len(ws) == 0


def test_a_decimal_whose_scale_is_over_its_precision_is_refused_in_every_form(ws: odf.Workspace) -> None:
    import pyarrow as pa

    for kind in ("Csv", "Parquet"):
        source = {"kind": "AddPushSource", "sourceName": "s", "merge": {"kind": "Append"}}
        source["read"] = {"kind": kind, "schema": ["a DECIMAL(6,19)"]}
        with pytest.raises(odf.errors.ManifestError, match=r"DECIMAL\(6,19\): precision is 1 to 38"):
            ws.add(manifest({"metadata": [source]}))
    declared = schema_event(schema_with(pa.field("a", pa.decimal128(6, 19))))
    name = odf.DatasetAlias.parse("d")
    with pytest.raises(odf.errors.ManifestError, match=r"`a`: DECIMAL\(6,19\) cannot be recorded") as caught:
        ws.create(DatasetSnapshot(name=name, kind=DatasetKind.ROOT, metadata=(declared,)))
    assert caught.value.path == "metadata[0].rawArrowSchema"
    assert len(ws) == 0


def test_columns_that_are_recorded_decide_what_a_later_source_can_declare(ws: odf.Workspace) -> None:
    import pyarrow as pa

    add_root(ws, "d", schema_with(pa.field("k", pa.int32())))
    read = {"kind": "Csv", "header": True, "schema": ["k STRING"]}
    source = {"kind": "AddPushSource", "sourceName": "s", "read": read}
    source["merge"] = {"kind": "Ledger", "primaryKey": ["k"]}
    bad = read_snapshots(manifest({"metadata": [source]}))[0]
    with pytest.raises(odf.errors.ManifestError, match="column k is INT, the input has STRING") as caught:
        ws.update(bad)
    assert caught.value.path == "metadata[0].read.schema"
    read["schema"] = ["k INT"]
    assert len(ws.update(read_snapshots(manifest({"metadata": [source]}))[0])[1]) == 1


@pytest.mark.parametrize(
    "name", ["key empty", "license no url", "attach dotdot", "source offset", "schema map"]
)
def test_chains_of_others_may_hold_it(
    ws: odf.Workspace, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specification's rules are those of append; what is merely of no use is pulled, and is no fault."""
    other = odf.init(tmp_path / "other")
    (snapshot,) = read_snapshots(manifest(REFUSED[name]))
    with monkeypatch.context() as patched:  # others do not ask which types can be recorded here
        patched.setattr("odfchain.workspace.creation.check_recordable", lambda _: None)
        made = other._files.create(snapshot)
    pulled = ws.pull(made.folder.as_uri(), name="theirs").dataset
    assert pulled.head == made.chain.head()
    assert pulled.verify().faults == []


def test_messages_are_short_lines(ws: odf.Workspace) -> None:
    long = "\u202e\x1b" + "x" * 100_000
    for event in (
        {"kind": "SetLicense", "shortName": "a", "name": "b", "websiteUrl": long},
        {
            "kind": "SetAttachments",
            "attachments": {"kind": "Embedded", "items": [{"path": long, "content": ""}]},
        },
        {"kind": "SetVocab", "offsetColumn": long, "eventTimeColumn": long},
    ):
        with pytest.raises(odf.errors.ManifestError) as caught:
            ws.add(manifest({"metadata": [event]}))
        assert len(str(caught.value)) < 700
        assert "\u202e" not in str(caught.value)
