"""Sources: what is refused when they are added, their operations, how their columns change, how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.cli.main import main
from odfchain.errors import BadInputError, IngestError, ManifestError, SchemaError, UsageError
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.sources import ReadStepNdJson
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from tests.kit.branch_cases import run_here
from tests.kit.polled_sources import rows
from tests.kit.pushed_files import BARE, push, put
from tests.kit.root_rows import add_root, schema_event, schema_with
from tests.kit.support import FIXTURES, Run, copied, derivative, manifest, of_others, unchanged

HEAD = "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: cities\n  kind: Root\n  metadata:\n"
PUSH = "    - {{kind: AddPushSource, sourceName: {name}, read: {{kind: NdJson}}, merge: {{kind: Append}}}}\n"
POLL = "    - {kind: SetPollingSource, fetch: {kind: Url, url: 'file:///x'}, read: {kind: NdJson}, merge: {kind: Append}}\n"
Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path)


@pytest.fixture
def cli(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*args: str) -> tuple[int, str]:
        code = main(["-w", str(ws.path.parent), *args])
        return code, capsys.readouterr().err

    return run


def root(ws: Workspace, *sources: str) -> Dataset:
    (dataset,) = ws.add(HEAD + "".join(sources))
    return dataset


def pushes(*names: str) -> list[str]:
    return [PUSH.format(name=name) for name in names]


def last_event(dataset: Dataset) -> ev.MetadataEvent:
    return next(iter(dataset.log(1))).block.event


def test_the_polling_source(ws: Workspace, cli: Cli) -> None:
    dataset = root(ws, POLL)
    code, said = cli("source", "disable", "cities")
    assert code == 0
    assert "cities: recorded DisablePollingSource, head is f1620" in said
    assert last_event(dataset) == ev.DisablePollingSource()
    with pytest.raises(IngestError, match="no polling source in force"):
        dataset.pull()
    code, said = cli("source", "disable", "cities")
    assert (code, "cities has no source in force" in said) == (2, True)
    assert dataset.verify().ok


def test_one_of_several_push_sources(ws: Workspace, cli: Cli) -> None:
    dataset = root(ws, *pushes("a", "b"))
    code, said = cli("source", "disable", "cities")
    assert code == 2
    assert "cities has several sources: b, a" in said
    assert "--source" in said
    code, said = cli("source", "disable", "cities", "--source", "c")
    assert (code, "has no source called 'c' in force (it has b, a)" in said) == (2, True)
    assert cli("source", "disable", "cities", "--source", "a")[0] == 0
    assert last_event(dataset) == ev.DisablePushSource(source_name="a")
    event, _ = dataset.disable_source()
    assert event == ev.DisablePushSource(source_name="b")
    assert not dataset.summary.push_sources
    # without a source rows are appended, and a dataset that had one would get rows by another merge
    with pytest.raises(IngestError, match="cities: its source is disabled"):
        dataset.ingest([__file__])


def test_a_disabled_source_can_be_defined_again(ws: Workspace, tmp_path: Path, cli: Cli) -> None:
    dataset = root(ws, POLL)
    dataset.disable_source("default")
    assert cli("add", "--update", str(put(tmp_path, HEAD + POLL, "m.yaml")))[0] == 0
    assert dataset.summary.polling_source is not None


def test_a_derivative_has_none(ws: Workspace) -> None:
    root(ws, *pushes("a"))
    (made,) = ws.add(derivative(), check=False)
    with pytest.raises(UsageError, match="has inputs, and no sources"):
        made.disable_source()


@pytest.mark.parametrize("kind", ["DisablePollingSource", "DisablePushSource, sourceName: a"])
@pytest.mark.parametrize("update", [[], ["--update"]])
def test_a_manifest_says_which_command_to_use(
    ws: Workspace, tmp_path: Path, cli: Cli, kind: str, update: list[str]
) -> None:
    if update:
        root(ws, *pushes("a"))
    path = put(tmp_path, HEAD + f"    - {{kind: {kind}}}\n", "m.yaml")
    code, said = cli("add", *update, str(path))
    assert code == 3
    assert "metadata[0]: Disable" in said
    assert "hint: `odfchain source disable DATASET` records it" in said


# --- What no run could ever do is refused when it is added; what runs can do is not ----------------


CASES = json.loads((FIXTURES / "manifests" / "unusable.json").read_bytes())
REFUSED = {case["id"]: case for case in CASES["refused"]}
ACCEPTED = {case["id"]: case for case in CASES["accepted"]}


def manifest_of_case(case: dict[str, Any], name: str = "d") -> str:
    content = {"name": name, "kind": "Root", "metadata": case["metadata"]}
    return json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})


def has_query(case: dict[str, Any]) -> bool:
    return "preprocess" in json.dumps(case)


@pytest.fixture
def home(tmp_path: Path) -> odf.Workspace:
    return odf.init(tmp_path / "workspace")


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_never_work_is_refused_by_add(home: odf.Workspace, name: str) -> None:
    case = REFUSED[name]
    good = manifest_of_case({"metadata": []}, "before")
    both = f"{good}\n---\n{manifest_of_case(case)}"
    for check in (False,) if has_query(case) else (True, False):
        with pytest.raises(odf.errors.ManifestError) as caught:
            home.add(both if check else manifest_of_case(case), check=check)
        assert (caught.value.path, case["says"] in caught.value.message) == (case["path"], True), caught.value
        assert len(home) == 0  # nor what is defined beside it


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_never_work_is_refused_by_an_update(home: odf.Workspace, name: str) -> None:
    case = REFUSED[name]
    (dataset,) = home.add(manifest_of_case({"metadata": []}))
    head = dataset.head
    with pytest.raises(odf.errors.ManifestError) as caught:
        home.update(read_snapshots(manifest_of_case(case))[0], check=False)
    assert caught.value.path == case["path"]
    assert dataset.head == head


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_runs_can_do_is_added(home: odf.Workspace, name: str) -> None:
    case = ACCEPTED[name]
    (dataset,) = home.add(manifest_of_case(case), check=not has_query(case))
    again = home.update(read_snapshots(manifest_of_case(case))[0], check=False)[1]
    assert again == [], "also as it is in the chain"
    assert dataset.verify().faults == []


def test_the_command_names_file_and_path(home: odf.Workspace, tmp_path: Path) -> None:
    path = put(tmp_path, manifest_of_case(REFUSED["license no url"]), "bad.json")
    result = run_here(home)("add", str(path))
    assert result.code == 3
    assert "metadata[0].websiteUrl: 'nonsense' is not an http or https URL" in result.err


def test_events_that_python_gives_are_judged_too(home: odf.Workspace) -> None:
    events = ev.SetVocab(offset_column=""), ev.SetInfo(keywords=("",))
    for event in events:
        snapshot = DatasetSnapshot(name=odf.DatasetAlias.parse("d"), kind=DatasetKind.ROOT, metadata=(event,))
        for make in (home.check, home.create):
            with pytest.raises(odf.errors.ManifestError, match="is expected"):
                make(snapshot)
    assert len(home) == 0


def test_a_decimal_whose_scale_is_over_its_precision_is_refused_in_every_form(home: odf.Workspace) -> None:
    for kind in ("Csv", "Parquet"):
        with pytest.raises(odf.errors.ManifestError, match=r"DECIMAL\(6,19\): precision is 1 to 38"):
            home.add(manifest(schema='["a DECIMAL(6,19)"]', kind=kind))
    declared = schema_event(schema_with(pa.field("a", pa.decimal128(6, 19))))
    name = odf.DatasetAlias.parse("d")
    with pytest.raises(odf.errors.ManifestError, match=r"`a`: DECIMAL\(6,19\) cannot be recorded") as caught:
        home.create(DatasetSnapshot(name=name, kind=DatasetKind.ROOT, metadata=(declared,)))
    assert caught.value.path == "metadata[0].rawArrowSchema"
    assert len(home) == 0


def test_columns_that_are_recorded_decide_what_a_later_source_can_declare(home: odf.Workspace) -> None:
    add_root(home, "d", schema_with(pa.field("k", pa.int32())))
    bad, good = (
        manifest("{kind: Ledger, primaryKey: [k]}", f'["k {t}"]', name="d") for t in ("STRING", "INT")
    )
    with pytest.raises(odf.errors.ManifestError, match="column k is INT, the input has STRING") as caught:
        home.update(read_snapshots(bad)[0])
    assert caught.value.path == "metadata[0].read.schema"
    assert len(home.update(read_snapshots(good)[0])[1]) == 1


@pytest.mark.parametrize(
    "name", ["key empty", "license no url", "attach dotdot", "source offset", "schema map"]
)
def test_chains_of_others_may_hold_it(
    home: odf.Workspace, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specification's rules are those of append; what is merely of no use is pulled, and is no fault."""
    other = odf.init(tmp_path / "other")
    (snapshot,) = read_snapshots(manifest_of_case(REFUSED[name]))
    with monkeypatch.context() as patched:  # others do not ask which types can be recorded here
        patched.setattr("odfchain.workspace.creation.check_recordable", lambda _: None)
        made = other._files.create(snapshot)
    pulled = home.pull(made.folder.as_uri(), name="theirs").dataset
    assert pulled.head == made.chain.head()
    assert pulled.verify().faults == []


def test_messages_are_short_lines(home: odf.Workspace) -> None:
    long = "\u202e\x1b" + "x" * 100_000
    attached = {"kind": "Embedded", "items": [{"path": long, "content": ""}]}
    for event in (
        {"kind": "SetLicense", "shortName": "a", "name": "b", "websiteUrl": long},
        {"kind": "SetAttachments", "attachments": attached},
        {"kind": "SetVocab", "offsetColumn": long, "eventTimeColumn": long},
    ):
        with pytest.raises(odf.errors.ManifestError) as caught:
            home.add(manifest_of_case({"metadata": [event]}))
        assert len(str(caught.value)) < 700
        assert "\u202e" not in str(caught.value)


# --- Sources whose rows say themselves what they do: what is explained by `add`, and what by the run ---


CHANGELOG = "{kind: ChangelogStream, primaryKey: [city]}"
UPSERT = "{kind: UpsertStream, primaryKey: [city]}"
COLUMNS = '["op %s", "city STRING", "population BIGINT"]'
VOCABULARY = "    - {kind: SetVocab, operationTypeColumn: change}\n"


def test_add_explains_a_declared_schema_without_operations(workspace: Workspace) -> None:
    with pytest.raises(ManifestError) as caught:
        workspace.add(manifest(CHANGELOG))
    assert str(caught.value).startswith(
        "line 13: metadata[0].merge: merge ChangelogStream takes what each row does from the column 'op', "
        "which the declared schema does not have (it has city, population)"
    )
    assert "0 for +A, 1 for -R, 2 for -C, 3 for +C" in str(caught.value.hint)
    assert len(workspace) == 0


def test_the_column_has_the_name_that_the_vocabulary_says(workspace: Workspace) -> None:
    with pytest.raises(ManifestError, match="column 'change'"):
        workspace.add(manifest(CHANGELOG, COLUMNS % "INT") + VOCABULARY)
    changed = manifest(CHANGELOG, COLUMNS.replace("op", "change") % "INT")
    workspace.add(changed + VOCABULARY)
    (snapshot,) = read_snapshots(changed.replace("sourceName: default", "sourceName: other"))
    assert len(workspace.update(snapshot)[1]) == 1, "the vocabulary in force counts"


@pytest.mark.parametrize(
    "text",
    [
        manifest(CHANGELOG).replace("        schema:", "        #"),
        manifest(CHANGELOG)
        + "      preprocess: {kind: Sql, engine: spark, query: 'SELECT 0 AS op, * FROM input'}\n",
        manifest(UPSERT),
    ],
    ids=["no schema", "a query", "another strategy"],
)
def test_add_does_not_guess(workspace: Workspace, text: str) -> None:
    assert len(workspace.add(text, check=False)) == 1


NONE = "column `op`: %s is not an operation (0 for +A"


@pytest.mark.parametrize(
    ("kind", "merges", "lines", "row", "message"),
    [
        ("INT", [CHANGELOG, UPSERT], "0,A,1\n7,A,2\n", 2, NONE % "7"),
        ("INT", [CHANGELOG, UPSERT], "0,A,1\n-1,A,2\n", 2, NONE % "-1"),
        ("DOUBLE", [CHANGELOG, UPSERT], "0,A,1\n0.5,A,2\n", 2, NONE % "0.5"),
        ("STRING", [CHANGELOG, UPSERT], "0,A,1\n+A,A,2\n", 2, NONE % "'+A'"),
        ("INT", [CHANGELOG], "2,A,1\n", 1, "old values (-C, 2) without the new ones"),
        ("INT", [CHANGELOG], "0,A,1\n3,A,2\n", 2, "new values (+C, 3) without the old ones"),
        ("INT", [CHANGELOG], "2,A,1\n3,B,2\n", 1, "old values"),
        ("INT", [CHANGELOG], "2,A,1\n2,A,1\n3,A,2\n", 1, "old values"),
    ],
)
def test_no_operation_and_a_torn_correction(
    workspace: Workspace, kind: str, merges: list[str], lines: str, row: int, message: str
) -> None:
    """A torn correction is what `verify` would call a fault."""
    for merge in merges:
        (dataset,) = workspace.add(manifest(merge, COLUMNS % kind, name=f"cities{len(merge)}"))
        with unchanged(dataset.path), pytest.raises(BadInputError) as caught:
            push(dataset, "op,city,population\n" + lines)
        assert f"in.csv: row {row}: {message}" in str(caught.value)


def test_corrections_of_several_keys_may_be_mixed(workspace: Workspace) -> None:
    (dataset,) = workspace.add(manifest(CHANGELOG, COLUMNS % "INT"))
    push(dataset, "op,city,population\n0,A,1\n0,B,1\n2,A,1\n2,B,1\n3,B,2\n3,A,2\n1,B,2\n")
    assert rows(dataset, "op") == [[0], [2], [3], [0], [2], [3], [1]]
    assert dataset.verify().ok


def test_a_key_that_names_a_column_twice(workspace: Workspace) -> None:
    dataset = of_others(workspace, manifest("{kind: Ledger, primaryKey: [city, city]}"))
    with pytest.raises(SchemaError, match="primaryKey of the source names column 'city' twice"):
        push(dataset, "city,population\nA,1\n")


# --- Sources that gain, lose and reorder columns (RFC-015), from files to the recorded chain -------


TWO = '["city STRING", "population BIGINT"]'
LEDGER = "{kind: Ledger, primaryKey: [city]}"


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    workspace = new_workspace()
    ingest(workspace.add(manifest(LEDGER, TWO, kind="NdJson"))[0], '{"city": "A", "population": 1}')
    return workspace


@pytest.fixture
def cities(made: Workspace, workspace: Workspace) -> Dataset:
    return copied(made, workspace)["cities"]


def ingest(dataset: Dataset, *lines: str) -> None:
    push(dataset, "".join(f"{line}\n" for line in lines), "in.ndjson")


def redefine(dataset: Dataset, *columns: str) -> None:
    """The push source again, with other columns."""
    source = dataset.summary.push_sources["default"]
    read = ReadStepNdJson(ddl_schema=columns)
    event = ev.AddPushSource(source_name="default", read=read, merge=source.merge)
    commit(dataset._files, dataset.summary, [event], [], system_time=Timestamp.now())


def kinds(dataset: Dataset, count: int) -> list[str]:
    return [found.block.event.KIND for found in dataset.log(count)]


def test_a_new_optional_column(cities: Dataset, tmp_path: Path, run_cli: Run) -> None:
    redefine(cities, "city STRING", "mayor STRING", "population BIGINT")
    path = put(tmp_path, '{"city": "B", "population": 2, "mayor": "X"}\n', "b.ndjson")
    said = run_cli("-w", cities.path.parent.parent, "ingest", "cities", path).err
    assert "the dataset gets mayor STRING: null in what is recorded" in said
    assert kinds(cities, 3) == ["AddData", "SetDataSchema", "AddPushSource"]
    schema = cities.schema
    assert schema.names[-3:] == ("city", "population", "mayor"), "at the end, whatever the source's order"
    expected = [["A", 1, None], ["B", 2, "X"]]
    assert rows(cities, "city", "population", "mayor") == expected
    by_spark = cities.scan().to_spark().select("city", "population", "mayor").orderBy("city")
    assert [list(row) for row in by_spark.collect()] == expected
    assert cities.verify().ok


def test_missing_and_reordered_columns(cities: Dataset) -> None:
    redefine(cities, "population BIGINT", "city STRING")
    ingest(cities, '{"city": "B", "population": 2}')
    redefine(cities, "city STRING")
    ingest(cities, '{"city": "C"}')
    assert rows(cities, "city", "population") == [["A", 1], ["B", 2], ["C", None]]
    assert kinds(cities, 4) == ["AddData", "AddPushSource", "AddData", "AddPushSource"], "the schema stays"
    assert cities.verify().ok


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("city STRING", "population INT"), r"column population is BIGINT, the input has INT \(dataset - population BIGINT \| input \+ population INT\)"),
        (("city STRING", "inhabitants BIGINT"), r"missing population; unexpected inhabitants \(dataset - population BIGINT \| input \+ inhabitants BIGINT\)"),
        (("city STRING", "population BIGINT", "mayor STRING NOT NULL"), r"unexpected mayor \(a new column must be optional\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_shown_as_a_diff(cities: Dataset, columns: tuple[str, ...], said: str) -> None:
    redefine(cities, *columns)
    with unchanged(cities.path), pytest.raises(SchemaError, match=said):
        ingest(cities, '{"city": "B", "population": 2, "inhabitants": 2, "mayor": "X"}')


def test_a_required_column_cannot_be_left_out(workspace: Workspace) -> None:
    required = TWO.replace("BIGINT", "BIGINT NOT NULL")
    (dataset,) = workspace.add(manifest(LEDGER, required, kind="NdJson"))
    ingest(dataset, '{"city": "A", "population": 1}')
    redefine(dataset, "city STRING")
    with unchanged(dataset.path), pytest.raises(SchemaError, match="missing population"):
        ingest(dataset, '{"city": "B"}')


def test_a_column_that_comes_with_the_file(workspace: Workspace) -> None:
    """Without a source nobody said that the column is meant; with one it is taken over."""
    (bare,) = workspace.add(BARE)
    ingest(bare, '{"city": "A"}')
    with unchanged(bare.path), pytest.raises(SchemaError, match="unexpected mayor"):
        ingest(bare, '{"city": "B", "mayor": "X"}')
    (declared,) = workspace.add(manifest(kind="NdJson").replace("        schema:", "        #"))
    ingest(declared, '{"city": "A"}')
    ingest(declared, '{"city": "B", "mayor": "X"}')
    assert rows(declared, "mayor") == [[None], ["X"]]


SYSTEM = [("offset", "UInt64"), ("op", "UInt8"), ("system_time", "Timestamp"), ("event_time", "Timestamp")]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([("a", "Int32")], "begins with `a`"),
        ([("a", "Int32"), *SYSTEM], "begins with `a`, `offset`, `op`, `system_time`"),
        ([("offset", "String"), *SYSTEM[1:], ("a", "Int32")], "has STRING for `offset`"),
        ([*SYSTEM[:3], ("event_time", "Int64"), ("a", "Int32")], "for `event_time`"),
        ([*SYSTEM, ("a", "Int32"), ("a", "Int32")], "has column `a` twice"),
    ],
)
def test_a_declared_schema_that_holds_no_rows(
    workspace: Workspace, columns: list[tuple[str, str]], problem: str
) -> None:
    declared = ", ".join(f"{{name: {name}, type: {kind}}}" for name, kind in columns)
    text = manifest("{kind: Append}", '["a INT NOT NULL"]', kind="NdJson")
    schema = f"    - kind: SetDataSchema\n      schema: {{fields: [{declared}]}}\n"
    dataset = of_others(workspace, text + schema)
    head = dataset.head
    with pytest.raises(SchemaError) as caught:
        ingest(dataset, '{"a": 1}')
    assert problem in str(caught.value)
    assert dataset.head == head
