"""The public Python API: a case for every method, what it shows of itself, and what it refuses."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.api.settings import Configuration
from odfchain.chain.checkpoints import NoteKey
from odfchain.chain.key_statements import Delegate
from odfchain.chain.statements import create_key_file
from odfchain.odf.identity import DatasetKey
from odfchain.odf.manifests import read_snapshots
from odfchain.spark.session import SparkEngine
from odfchain.transfer.slice_files import LocalSlices
from odfchain.workspace.options import PullOptions
from tests.kit.lock_datasets import lock_dataset
from tests.kit.support import derivative, manifest

SNAPSHOT = "{kind: Snapshot, primaryKey: [city]}"
MADE = "2025-01-01T00:00:00Z"
RELEASES = {
    "2025-01-10T00:00:00Z": "A,1\nB,2\n",
    "2025-02-10T00:00:00Z": "A,1\nC,3\n",
    "2025-03-10T00:00:00Z": "A,5\nB,2\n<b>C</b>,3\n",
}
STATES = {
    "2025-02": [("A", 1), ("B", 2)],
    "2025-03-01": [("A", 1), ("C", 3)],
    "2025-03-10T00:00:00Z": [("<b>C</b>", 3), ("A", 5), ("B", 2)],
}


class Scene(NamedTuple):
    """A workspace with `cities`, three releases of a list, and `derived`, which repeats it."""

    ws: odf.Workspace
    folder: Path

    @property
    def cities(self) -> odf.Dataset:
        return self.ws["cities"]

    def file(self, text: str, name: str = "in.csv") -> Path:
        path = self.folder / name
        path.write_text("city,population\n" + text)
        return path

    def fresh(self, name: str, *, merge: str = SNAPSHOT) -> odf.Dataset:
        (dataset,) = self.ws.add(manifest(merge, name=name))
        dataset.ingest(self.file("A,1\n"))
        dataset.ingest(self.file("A,1\nB,2\n"))
        return dataset

    def published(self) -> str:
        url = (self.folder / "public" / "cities").as_uri()
        self.cities.push(url)
        return url

    def elsewhere(self, name: str) -> odf.Workspace:
        return odf.init(self.folder / name, exists_ok=True)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("api")
    ws = odf.init(folder / "ws")
    ws._engines.spark = engine
    scene = Scene(ws, folder)
    (snapshot,) = read_snapshots(manifest(SNAPSHOT))
    ws.create(snapshot, system_time=MADE)
    for time, text in RELEASES.items():
        ws["cities"].ingest(scene.file(text), system_time=time)
    ws.add(derivative("SELECT op, event_time, city, population FROM cities"))
    ws["derived"].pull()
    yield scene
    ws._engines.spark = None


def pairs(table: pa.Table) -> list[tuple[str, int]]:
    return sorted((row["city"], row["population"]) for row in table.to_pylist())


# --- a case for every public name ----------------------------------------------------------------------

Case = Callable[[Scene], object]
CASES: dict[str, Case] = {}


def case(*names: str) -> Callable[[Case], Case]:
    def add(run: Case) -> Case:
        for name in names:
            assert CASES.setdefault(name, run) is run, name
        return run

    return add


@case("Dataset.id", "Dataset.alias", "Dataset.kind", "Dataset.path", "Dataset.head", "Dataset.has_key")
def what_it_is(scene: Scene) -> None:
    ds = scene.cities
    assert (str(ds.alias), ds.kind, ds.has_key) == ("cities", odf.DatasetKind.ROOT, True)
    assert ds == scene.ws[ds.id] == scene.ws["CITIES"]
    assert ds.head == next(iter(ds.log())).hash
    assert ds.path.is_dir()


@case("Dataset.summary", "Dataset.schema", "Dataset.data_size", "Dataset.watermark_rules")
def what_it_says(scene: Scene) -> None:
    ds = scene.cities
    assert ds.schema == ds.summary.schema
    assert (ds.summary.record_count, ds.watermark_rules) == (9, {})
    assert ds.data_size > 1000


@case("Dataset.log", "Dataset.block_bytes")
def its_blocks(scene: Scene) -> None:
    log = scene.cities.log(2)
    assert [block.block.event.KIND for block in log] == ["AddData", "AddData"]
    assert len(list(log)) == 2, "it can be walked again"
    assert scene.cities.block_bytes(next(iter(log)).hash)
    assert "#5 2025-03-10T00:00:00Z AddData 5 records" in repr(log)


@case("Dataset.scan", "Dataset.tail", "Scan.to_arrow", "Scan.to_pandas", "Scan.to_polars", "Scan.to_spark")
@case("Dataset.to_spark")
def its_records(scene: Scene) -> None:
    found = scene.cities.scan(["op", "city"]).to_arrow()
    assert found.schema.names == ["op", "city"]
    assert sorted(found["op"].to_pylist()) == [0, 0, 0, 0, 0, 1, 1, 2, 3]
    assert scene.cities.tail(2).num_rows == 2
    frame = scene.cities.scan().to_pandas()
    assert [str(t) for t in frame.dtypes[:3]] == [
        "uint64[pyarrow]", "uint8[pyarrow]", "timestamp[ms, tz=UTC][pyarrow]",
    ]  # fmt: skip
    some = scene.cities.scan(["city"], where="op = 2")
    assert (some.to_arrow().num_rows, some.slices.there) == (1, 3)
    spark = scene.cities.to_spark(["city", "population"])
    assert sorted(map(tuple, spark.collect())) == pairs(scene.cities.scan().to_arrow())


@case("Dataset.dataset")
def for_other_libraries(scene: Scene) -> None:
    found = scene.cities.dataset()
    assert found.schema.names == scene.cities.scan().to_arrow().schema.names
    assert pairs(found.to_table()) == pairs(scene.cities.scan().to_arrow())
    assert scene.cities.dataset(at="2025-02").count_rows() == 2


@case("Dataset.state")
def what_is_in_force(scene: Scene) -> None:
    derived = scene.ws["derived"].state(key=[])
    asked = [(scene.cities.state(at=at), expected) for at, expected in STATES.items()]
    for found, expected in (*asked, (derived, STATES["2025-03-10T00:00:00Z"])):
        assert pairs(found.to_arrow()) == pairs(found.to_spark().toArrow()) == expected
    some = scene.cities.state(["city", "population"])
    assert pairs(some.to_arrow()) == pairs(scene.cities.state().to_arrow())


@case("Dataset.ingest", "Dataset.ingest_frame", "Dataset.set_watermark", "Dataset.disable_source")
def bringing_data(scene: Scene) -> None:
    (ds,) = scene.ws.add(manifest(name="brought"))
    outcome = ds.ingest([scene.file("A,1\n", "a.csv"), scene.file("B,1\n", "b.csv")])
    assert (outcome.blocks, len(outcome.inputs)) == (3, 2)
    assert "a.csv: 1 rows read, 1 +A" in repr(outcome)
    assert ds.ingest(io.BytesIO(b"city,population\nC,1\n")).inputs[0].rows == 1
    frame = pa.table({"city": ["D", "E"], "population": [1, 2]})
    assert repr(ds.ingest_frame(frame, batch=("stream", 0)).inputs[0]) == "the frame: 2 rows read, 2 +A"
    with pytest.raises(odf.errors.IngestError):
        ds.set_watermark("2999")
    assert ds.set_watermark("2999-01", allow_future=True) == ds.head
    assert ds.disable_source()[1] == ds.head


@case("Dataset.pull", "Workspace.pull", "Workspace.pull_targets")
def one_verb(scene: Scene) -> None:
    derived = scene.ws["derived"].pull()
    assert (derived.way.value, derived.status) == ("inputs", "up to date")
    source = manifest(name="polled").replace(
        "AddPushSource\n      sourceName: default",
        f"SetPollingSource\n      fetch: {{kind: Url, url: '{scene.file('A,1').as_uri()}'}}",
    )
    (polled,) = scene.ws.add(source)
    assert repr(polled.pull()) == "<pull of polled: updated, 2 blocks, 1 +A>"
    there = scene.elsewhere("reader")
    taken = there.pull(scene.published(), name="towns")
    assert (taken.way.value, taken.status, str(taken.dataset.alias)) == ("peer", "created", "towns")
    assert there["towns"].pull().status == there.pull("towns").status == "up to date"
    assert [str(target) for target in scene.ws.pull_targets(["derived", "polled"])] == ["derived", "polled"]


@case("Dataset.push", "Dataset.plan_push", "Dataset.fetch", "Dataset.local_slices", "Workspace.push_targets")
@case("Dataset.aliases", "Dataset.add_alias", "Dataset.delete_alias")
def other_places(scene: Scene) -> None:
    url = scene.published()
    assert scene.cities.push(url).up_to_date
    assert scene.cities.plan_push(url).up_to_date
    (target,) = scene.ws.push_targets(["cities"], url)
    assert (str(target), target.to) == ("cities", url)
    assert [str(each) for each in scene.ws.push_targets()] == ["cities"]
    there = scene.elsewhere("partial")
    there.pull(url, name="part", metadata_only=True)
    part = there["part"]
    assert part.local_slices() == LocalSlices(0, 3)
    assert part.fetch().missing_slices == 0
    assert part.local_slices() is None
    assert part.aliases("pull") == (f"{url}/",)
    part.add_alias("push", "file:///srv/x")
    assert part.delete_alias("push") == ("file:///srv/x/",)


@case("Dataset.verify", "Workspace.verify", "Workspace.verify_remote", "Report.raise_if_faulty")
def verifying(scene: Scene) -> None:
    report = scene.ws["derived"].verify(replay=True)
    assert report.raise_if_faulty() is report
    assert repr(scene.cities.verify()) == "<verification of cities: clean, 6 blocks, 9 records>"
    assert [r.alias for r in scene.ws.verify(["derived"], recursive=True)] == ["cities", "derived"]
    assert scene.ws.verify_remote(scene.published()).ok
    broken = scene.fresh("broken")
    next((broken.path / "data").iterdir()).write_bytes(b"x")
    with pytest.raises(odf.errors.ObjectCorruptedError, match=r"broken: .*SizeMismatch"):
        broken.verify().raise_if_faulty()
    assert "<table>" in broken.verify()._repr_html_()
    scene.ws.delete("broken")


@case("Dataset.sign", "Dataset.signature", "Dataset.attest", "Dataset.attestations")
@case("Dataset.add_attestation")
def signing(scene: Scene) -> None:
    ds = scene.fresh("signed")
    assert ds.sign().head == ds.head == ds.signature().require().head
    key = scene.folder / "auditor.pem"
    create_key_file(key)
    made = ds.attest(key)
    assert repr(made).startswith("<signed attested as clean by did:key:")
    assert [item.in_chain for item in ds.attestations()] == [True]
    ds.add_attestation(made.text)
    assert len(ds.attestations()) == 1


@case("Workspace.status")
def status(scene: Scene) -> None:
    ds = scene.fresh("seen")
    (found,) = scene.ws.status("seen")
    assert (found.name, [item.matter for item in found.items]) == ("seen", ["unverified"])
    assert found.commands == ["odfchain verify seen"]
    ds.verify()
    assert [str(each) for each in scene.ws.status("seen")] == ["up to date"]


@case("Dataset.lineage", "Dataset.definitions", "Dataset.blame", "Workspace.lineage")
def where_from(scene: Scene) -> None:
    assert repr(scene.ws["derived"].lineage()) == "<lineage upstream: 2 datasets, 1 edges>"
    assert len(scene.ws.lineage(["cities"], downstream=True).edges) == 1
    assert [item.records for item in scene.ws["derived"].definitions()] == [9]
    assert repr(scene.ws["derived"].blame(0)) == "<records 0 to 0 of derived: 1 transactions>"


@case("Dataset.plan_reset", "Dataset.reset", "Dataset.gc", "Workspace.gc", "Dataset.fsck", "Workspace.fsck")
@case("Dataset.plan_compact", "Dataset.compact", "Dataset.plan_soft_compact", "Dataset.soft_compact")
def upkeep(scene: Scene) -> None:
    ds = scene.fresh("kept")
    assert "2 to 1 slices" in repr(ds.plan_compact())
    assert ds.plan_soft_compact("few").slices_after == 1
    assert ds.soft_compact("few").scan().to_arrow()["city"].to_pylist() == ["A", "B"]
    last = ds.summary.head_block.sequence_number
    assert repr(ds.plan_reset(last - 1)) == f"<reset of kept to block {last - 1}: 1 blocks with 1 records go>"
    with pytest.raises(odf.errors.WorkspaceError, match=r"nowhere|neither"):
        ds.reset(last - 1)
    assert ds.reset(last - 1, force=True)
    ds.ingest(scene.file("A,1\nB,2\n"))
    assert ds.compact(force=True) == ds.head
    assert ds.gc(dry_run=True).dataset == "kept"
    assert scene.ws.gc([])[0].dataset is None
    assert ds.fsck().whole
    assert all(report.whole for report in scene.ws.fsck())


@case(
    "Workspace.open", "Workspace.init", "Workspace.path", "Workspace.store", "Workspace.matching",
    "Workspace.ingest_config",
)  # fmt: skip
def opening(scene: Scene) -> None:
    assert odf.open(scene.folder / "ws").path == scene.ws.path
    with pytest.raises(odf.errors.NotAWorkspaceError):
        odf.open("/")
    with pytest.raises(odf.errors.UsageError, match="expected a SparkSession, got str"):
        odf.open(scene.folder / "ws", spark="local[*]")  # type: ignore[arg-type]
    with pytest.raises(odf.errors.NameCollisionError):
        odf.init(scene.folder / "ws")
    assert [str(d.alias) for d in scene.ws.matching("citi%")] == ["cities"]
    assert scene.ws.ingest_config.retries == 3
    assert scene.ws.store is None
    assert "cities" in scene.ws
    assert scene.cities in scene.ws
    assert "no/such" not in scene.ws
    assert "% no name" not in scene.ws
    assert len(scene.ws) == len(list(scene.ws))
    with pytest.raises(KeyError, match="no dataset is called 'citis'") as caught:
        scene.ws["citis"]
    assert caught.value.hint == "did you mean cities?"
    assert caught.value.__notes__ == ["hint: did you mean cities?"], "a notebook shows it"


@case("Workspace.add", "Workspace.check", "Workspace.create", "Workspace.update", "Workspace.import_")
@case("Workspace.rename", "Workspace.delete", "Workspace.last_seen")
def making(scene: Scene) -> None:
    (snapshot,) = read_snapshots(manifest(name="made"))
    scene.ws.check(snapshot)
    assert scene.ws.create(snapshot).kind is odf.DatasetKind.ROOT
    assert scene.ws.update(snapshot)[1] == []
    scene.ws.rename("made", "other")
    scene.ws.delete("other")
    assert "other" not in scene.ws
    assert scene.ws.last_seen("kept").head == scene.ws["kept"].head
    made = scene.ws.import_(scene.file("A,1\n", "list.csv"), name="listed", key="city")
    assert repr(made) == "<listed: 1 rows of city STRING, population BIGINT>"


@case("Workspace.repositories", "Workspace.evidence", "Workspace.sharing")
def repositories(scene: Scene) -> None:
    scene.published()
    scene.ws.repositories.add(odf.RepoName("shelf"), (scene.folder / "public").as_uri())
    assert scene.ws.sharing.is_remote("shelf/cities")
    assert not scene.ws.sharing.is_remote("cities")
    assert str(scene.ws.sharing.url_of("shelf/cities")).endswith("public/cities/")
    assert str(scene.ws.sharing.repository_url("shelf")).endswith("public/")
    assert [str(entry.alias) for entry in scene.ws.sharing.datasets_of("shelf")] == ["cities"]
    assert scene.ws.evidence.list() == []


@case("Workspace.sql", "QueryResult.to_arrow", "QueryResult.to_pandas")
@case("QueryResult.to_polars", "QueryResult.to_spark")
def questions(scene: Scene) -> None:
    asked = """select count(*) as n from cities where "offset" >= $first"""
    result = scene.ws.sql(asked, params={"first": 0})
    assert [str(pin.alias) for pin in result.inputs] == ["cities"]
    count = scene.cities.summary.record_count
    assert result.to_pandas()["n"][0] == result.to_arrow()["n"][0].as_py() == count
    assert scene.ws.sql(asked, params={"first": 0}).batches().read_all() == result.to_arrow()
    with pytest.raises(odf.errors.UsageError, match="only Spark"):
        result.to_spark()


@case("Workspace.prove")
def signed_answers(scene: Scene) -> None:
    answer = scene.ws.prove("select city from cities order by city", limit=2)
    assert answer.datasets == {"cities": (scene.cities.id, scene.cities.head)}
    answer.save(scene.folder / "a.json")
    assert (scene.folder / "a.json").read_text() == answer.to_json() + "\n"
    verdict = odf.verify_proof(scene.folder / "a.json", scene.ws)
    assert (verdict.ok, verdict.rows, verdict.exit_code) == (True, 2, 0)
    assert repr(answer) == f"<answer signed by {answer.signer}: {answer.query}>"


@case("Workspace.session", "Workspace.close", "Workspace.serve")
def sessions(scene: Scene) -> None:
    assert scene.ws.session().version.startswith("4")
    with scene.elsewhere("idle") as idle:
        idle.close()
    with pytest.raises(odf.errors.TransferError):
        idle.serve(host="256.0.0.1", port=1)


@case("Workspace.add_witness", "Workspace.witnesses")
def known_witnesses(scene: Scene) -> None:
    key = str(NoteKey.of(DatasetKey.generate(), "w.example"))
    assert scene.ws.add_witness("http://127.0.0.1:9/", key, quorum=0) == "w.example"
    (known,) = scene.ws.witnesses()
    assert (str(known.key), known.url, known.wanted) == (key, "http://127.0.0.1:9/", True)
    Configuration(scene.ws.path).unset(f"trust.ask.{key}")  # nobody is there


@case("Dataset.keys", "Dataset.say_keys", "Dataset.new_key", "Dataset.cosigned")
def keys_that_sign(scene: Scene) -> None:
    with scene.elsewhere("keys") as other:
        (owned,) = other.add(manifest(name="owned"))
        assert (owned.keys().lines, owned.cosigned()) == ((), {})
        delegate = Delegate.of(DatasetKey.generate().dataset_id, odf.Timestamp.now(), 60.0)
        assert owned.say_keys(delegates=[delegate]).newest == owned.keys().newest
        with pytest.raises(odf.errors.StoreError, match="a key is there already"):
            owned.new_key()


@case("Workspace.tokens")
def given_tokens(scene: Scene) -> None:
    made = scene.ws.tokens.create("alice", ["push:org.%", "force:cities"])
    assert made.text.startswith("ka_")
    assert scene.ws.tokens.list() == (made.token,)
    with pytest.raises(odf.errors.NameCollisionError):
        scene.ws.tokens.create("alice", ["push:%"])
    scene.ws.tokens.revoke("alice")
    assert scene.ws.tokens.list() == ()


@case("Dataset.create_branch", "Dataset.branch", "Dataset.branches", "Dataset.branch_names", "Dataset.ref")
@case("Dataset.rename_branch", "Dataset.delete_branch", "Dataset.at", "Dataset.label", "Dataset.diff")
@case("Dataset.log_graph")
def branches(scene: Scene) -> None:
    ds = scene.fresh("drafted")
    first = ds.create_branch("first", at=2)
    assert (first.ref, first.label, ds.ref, ds.label) == ("first", "drafted@first", "head", "drafted")
    (listed,) = ds.branches()
    assert (listed.name, listed.ahead, listed.behind, listed.block) == ("first", 0, 2, first.head)
    assert ds.branch("first") == first != ds
    block = first.head
    assert ds.rename_branch("first", "draft").head == block
    found = ds.at("draft")
    assert [len(found.log()._rows()), len(found.scan().to_arrow()), len(found.tail())] == [3, 0, 0]
    assert ds.at("head").state(["city"]).to_arrow() == ds.state(["city"]).to_arrow()
    changes = ds.diff("draft", "head")
    assert changes.counts[odf.results.Change.INSERTED] == changes.changes.num_rows > 0
    assert ds.diff("draft").changes.num_rows == 0
    assert [item.references for item in ds.log_graph(3)] == [("head",), (), ("draft",)]
    assert ds.branch_names == ["draft"]
    assert ds.delete_branch("draft") is None
    assert ds.branches() == []


@case("Dataset.profile", "Dataset.known_profile", "Dataset.manifest")
def snapshots(scene: Scene) -> None:
    ds = scene.cities
    found = ds.profile(stage="raw", tags={"of": "people"}, hide=["population"])
    assert found.num_rows == ds.state().to_arrow().num_rows
    fresh = scene.fresh("unknown")
    assert fresh.known_profile() is None, "what hides a column is not kept"
    assert fresh.profile().content == fresh.known_profile().content
    assert found.column_stats["city"]["num_unique"] == found.num_rows
    assert "mean" not in found.column_stats["population"], "only counts are said"
    path = scene.folder / "profile.json"
    path.write_bytes(found.content)
    again = odf.Profile.read(path)
    assert (again.hash, again.content) == (found.hash, found.content)
    assert str(found.document["snapshot_id"]) == str(ds.head)
    before = ds.at(3).profile()
    drift = odf.compare_profiles(before, found)
    assert (drift.before.rows, drift.after.rows) == (before.num_rows, found.num_rows)
    assert drift.to_html().startswith("<!DOCTYPE html>")
    manifest = ds.manifest()
    counts = [ref.slice.offset_interval.count for ref in ds.summary.slices()]
    assert [file["stats"]["row_count"] for file in manifest.files] == counts
    assert (manifest.row_count, manifest.prune("city = 'none'"), manifest.understands("true")) == (
        9,
        [],
        False,
    )
    assert manifest.times_of(manifest.files[0]) is not None
    assert str(manifest.hash).startswith("f1620")


@case("Dataset.write_manifest", "Dataset.write_profile", "Dataset.published", "Dataset.published_document")
def published_snapshots(scene: Scene) -> None:
    ds = scene.fresh("published")
    written = ds.write_manifest()
    assert repr(written) == f"<manifest {ds.manifest().hash}: published>"
    key = scene.folder / "steward.pem"
    create_key_file(key)
    line = ds.write_profile(ds.profile(stage="checked"), key=key).line
    assert line is not None
    assert ds.published() == [written.line, line]
    url = (scene.folder / "published").as_uri()
    assert ds.push(url).snapshots == 2
    copy = scene.elsewhere("analyst").pull(url, name="published").dataset
    assert copy.published(odf.SnapshotKind.PROFILE) == [line]
    assert copy.published_document(line) == ds.profile(stage="checked").content
    assert copy.write_profile().published is False


@case("Dataset.export")
def exported(scene: Scene) -> None:
    ds = scene.cities
    for kind in ("lode", "delta", "iceberg"):
        done = ds.export(kind, scene.folder / "tables" / kind)
        assert isinstance(done, odf.results.Exported)
        assert (done.block, done.files, done.copies) == (ds.head, len(ds.summary.slices()), 0)
        assert ds.export(kind, scene.folder / "tables" / kind).versions == 0
    assert ds.export("delta", scene.folder / "tables" / "state", rows="state").versions == 1
    with pytest.raises(odf.errors.ChainsDifferError):
        ds.at(3).export("delta", scene.folder / "tables" / "state", rows="state")


@case("Dataset.lock", "Dataset.slices_lock", "Dataset.fetch_from_locks")
def locks(scene: Scene) -> None:
    ds = scene.fresh("locked")
    with pytest.raises(odf.errors.SchemaError, match="not an asset lock"):
        ds.lock()
    place = scene.folder / "lake"
    shutil.copytree(ds.path / "data", place / "data")
    lock = ds.slices_lock(str(place))
    assert [status.is_valid for status in lock.check()] == [True] * lock.table.num_rows
    lock.write(scene.folder / "slices.lock.parquet")
    url = (scene.folder / "locked").as_uri()
    ds.push(url)
    copy = scene.elsewhere("recipient").pull(url, name="locked", metadata_only=True).dataset
    read = odf.AssetLock.read(scene.folder / "slices.lock.parquet")
    outcome = copy.fetch_from_locks([read], stores=odf.StoreOptions(trust_files=True))
    assert (outcome.objects, outcome.missing_slices) == (lock.table.num_rows, 0)


@case("Dataset.record_lock")
def recorded_locks(scene: Scene) -> None:
    ds = lock_dataset(scene.elsewhere("locks"))
    blocks = ds.summary.head_block.sequence_number
    assert ds.record_lock(ds.lock()).up_to_date
    assert ds.summary.head_block.sequence_number == blocks


@case("Dataset.pull_branch", "Dataset.fetch_merged")
def shared_branches(scene: Scene) -> None:
    ds = scene.fresh("proposed")
    url = (scene.folder / "proposed").as_uri()
    ds.push(url)
    draft = ds.create_branch("draft")
    draft.push(url)
    copy = scene.elsewhere("reviewer").pull(url, name="proposed").dataset
    found = copy.pull_branch("draft", url)
    assert (found.status, found.dataset.label, found.head) == ("created", "proposed@draft", draft.head)
    assert found.dataset.signature().status.value == "unsigned"
    assert copy.branch("draft").pull().status == "up to date"
    assert copy.fetch_merged(url) == odf.results.FetchedSources(0, 0, 0)


@case("Dataset.correct", "Dataset.revert")
def corrections(scene: Scene) -> None:
    ds = scene.fresh("corrected")
    outcome = ds.correct(scene.file("A,7\n"), system_time="2100-01-01T00:00:00Z")
    assert (outcome.summary, outcome.head, outcome.up_to_date) == ("1 corrected", ds.head, False)
    assert repr(outcome) == f"<1 corrected, head is block {outcome.number}>"
    assert ds.revert(outcome.number).summary == "1 corrected"
    assert ds.correct([], remove=scene.file("B,\n")).operations == {"-R": 1}


@case("Dataset.plan_merge", "Dataset.merge")
def merges(scene: Scene) -> None:
    ds = scene.fresh("merged")
    draft = ds.create_branch("draft", at=3)
    plan = draft.plan_merge("head")
    assert (plan.is_merged, plan.bases, plan.conflicts.num_rows) == (False, (plan.target,), 0)
    assert plan.changes.column("change").to_pylist() == ["inserted"] * plan.changes.num_rows
    tried = draft.merge("head", dry_run=True, message="try")
    assert (tried.operations, tried.head) == ({"+A": plan.changes.num_rows}, plan.target)
    done = draft.merge(plan, resolve="theirs", message="all")
    found = (done.status, done.head, done.operations)
    assert found == (odf.results.MergeStatus.MERGED, draft.head, tried.operations)
    assert draft.merge("head").status is odf.results.MergeStatus.ALREADY_MERGED
    assert ds.merge("draft", fast_forward=False).operations == {}
    with pytest.raises(odf.errors.UsageError, match="cannot be merged into itself"):
        ds.merge("head")
    with pytest.raises(odf.errors.UsageError, match="the plan is of"):
        ds.merge(plan)


@case("Dataset.attachments", "Dataset.export_attachments")
def attached_files(scene: Scene) -> None:
    assert scene.cities.attachments() == {}
    assert scene.cities.export_attachments("nowhere") == []


@case("Dataset.history")
def history_of_a_row(scene: Scene) -> None:
    ds = scene.cities
    row = ds.state().to_arrow().to_pylist()[-1]
    newest = ds.history({name: row[name] for name in ds.summary.primary_key}, limit=1)[0]
    assert (newest.offset, newest.via) == (row["offset"], None)
    assert newest.after is not None


@pytest.mark.parametrize("run", dict.fromkeys(CASES.values()), ids=lambda run: run.__name__)
def test_methods(scene: Scene, run: Case) -> None:
    run(scene)


def test_every_public_method_has_a_case() -> None:
    public = {
        f"{kind.__name__}.{name}"
        for kind in (odf.Workspace, odf.Dataset, odf.Scan, odf.results.QueryResult)
        for name, _ in inspect.getmembers(kind)
        if not name.startswith("_")
        and (kind not in (odf.Scan, odf.results.QueryResult) or name.startswith("to_"))
    }
    assert set(CASES) == public | {"Report.raise_if_faulty"}


# --- moments -------------------------------------------------------------------------------------------


def test_a_moment_is_a_block_or_a_time(scene: Scene) -> None:
    ds = scene.cities
    blocks = list(ds.log())[::-1]
    for at, records in [
        (3, 2), (blocks[3].hash, 2), (str(blocks[4].hash), 4), ("2025-02-10", 4), ("2025-02-09", 2),
        (dt.datetime(2025, 2, 10, tzinfo=dt.UTC), 4), (odf.Timestamp.parse("2025-02-09T23:59:59.999Z"), 2), ("2099", 9),
        ("2025-01-02", 0), (None, 9), (dt.date(2025, 2, 10), 4), ("2025-03", 4),
    ]:  # fmt: skip
        found = ds.scan(at=at)
        assert (len(found.to_arrow()), found.summary.record_count) == (records, records), at
    late = ds.scan(at="2099")
    assert "9 records up to block 5 (2025-03-10T00:00:00Z)" in repr(late)


@pytest.mark.parametrize(
    ("at", "error", "said"),
    [
        (
            "2024",
            odf.errors.DatasetNotFoundError,
            "begins at 2025-01-01T00:00:00Z, after 2024-01-01T00:00:00Z",
        ),
        (99, odf.errors.ObjectNotFoundError, "no block 99; its newest is block 5"),
        ("2025-13", odf.errors.InvalidIdError, "'2025-13' is not a time"),
        ("2025-1", odf.errors.InvalidIdError, "'2025-1' is not a time"),
        ("2025-02-10T00:00", odf.errors.InvalidIdError, "is not an RFC 3339 time"),
        ("yesterday", odf.errors.InvalidIdError, "yesterday"),
    ],
)
def test_what_is_no_moment(scene: Scene, at: Any, error: type[odf.OdfchainError], said: str) -> None:
    with pytest.raises(error, match=said):
        scene.cities.state(at=at)


def test_later_commits_do_not_change_a_scan(scene: Scene) -> None:
    ds = scene.fresh("moving")
    scan, state = ds.scan(), ds.state()
    ds.ingest(scene.file("A,7\n"), allow_retract=True)
    assert pairs(scan.to_arrow()) == pairs(state.to_arrow()) == [("A", 1), ("B", 2)]
    assert pairs(ds.state().to_arrow()) == [("A", 7)]


def test_a_state_needs_a_key(scene: Scene) -> None:
    with pytest.raises(odf.errors.UsageError, match="derived: no primary key is recorded"):
        scene.ws["derived"].state()
    assert pairs(scene.ws["derived"].state(key=["city"]).to_arrow()) == STATES["2025-03-10T00:00:00Z"]
    with pytest.raises(odf.errors.SchemaError, match="no column 'nothing'"):
        scene.cities.state(key=["nothing"])
    with pytest.raises(odf.errors.SchemaError, match="no column 'nothing'"):
        scene.cities.scan(["nothing"])


def test_nothing_is_in_force_before_the_first_data(scene: Scene) -> None:
    (empty,) = scene.ws.add(manifest(SNAPSHOT, name="empty"))
    assert empty.state().to_arrow().num_rows == empty.scan().to_arrow().num_rows == 0
    with pytest.raises(odf.errors.SchemaError, match=r"no column 'city' \(no data is recorded yet\)"):
        empty.scan(["city"])


def test_reading_needs_no_engine_and_only_the_slices_up_to_the_moment(scene: Scene) -> None:
    scene.published()
    with scene.elsewhere("cold") as cold:
        ds = cold.pull(scene.published(), name="cold").dataset
        newest = ds.summary.slices()[-1].slice.physical_hash
        (ds.path / "data" / str(newest)).unlink()
        assert pairs(ds.state(at=4).to_arrow()) == STATES["2025-03-01"]
        assert len(ds.scan(at=4).to_pandas()) == 4
        with pytest.raises(odf.errors.ObjectNotFoundError):
            ds.scan().to_arrow()
        assert cold._engines.spark is None


def test_nothing_changes_in_silence(scene: Scene) -> None:
    (ds,) = scene.ws.add(manifest(schema='["city STRING", "x DOUBLE", "n BIGINT"]', name="odd"))
    path = scene.folder / "odd.csv"
    path.write_text("city,x,n\nA,NaN,9007199254740993\nB,,\n")
    ds.ingest(path)
    frame = ds.scan(["x", "n", "system_time"]).to_pandas()
    assert [str(t) for t in frame.dtypes[:2]] == ["double[pyarrow]", "int64[pyarrow]"]
    assert frame["n"][0] == 9007199254740993, "not by way of a float"
    assert pa.array(frame["x"].array).is_null().to_pylist() == [False, True], "NaN is no null"
    assert frame["n"].isna().tolist() == [False, True]


def test_polars_is_asked_for_by_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(odf.errors.UsageError, match="polars is not installed") as caught:
        scene.cities.scan().to_polars()
    assert caught.value.hint == "pip install polars"
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=lambda table: table.num_rows))
    assert scene.cities.scan().to_polars() == 9


# --- options -------------------------------------------------------------------------------------------


def test_options_are_for_one_kind_of_pull(scene: Scene) -> None:
    with pytest.raises(
        odf.errors.UsageError, match="metadata_only applies only to datasets pulled from a URL"
    ):
        scene.ws["derived"].pull(metadata_only=True)
    there = scene.elsewhere("options")
    with pytest.raises(
        odf.errors.UsageError, match="allow_empty applies only to datasets with a source or a query"
    ):
        there.pull(scene.published(), allow_empty=True)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'metadata' \(did you mean"):
        scene.ws["derived"].pull(metadata=True)  # type: ignore[call-arg]
    for run in (scene.cities.ingest, scene.ws.import_):
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            run(scene.file("A,1\n"), nonsense=1)
    with pytest.raises(odf.errors.UsageError, match="late_edits: 'maybe' is not one of"):
        scene.cities.ingest(scene.file("A,1\n"), late_edits="maybe")


def test_the_command_line_has_the_same_words() -> None:
    from odfchain.cli.bring import pull_command

    shown = {param.name for param in pull_command.params}
    named = {each.name for each in dataclasses.fields(PullOptions)}
    assert named - shown == {"max_retract_ratio", "retries", "progress"}


# --- what is shown -------------------------------------------------------------------------------------


def test_what_notebooks_show_is_escaped(scene: Scene) -> None:
    shown = [
        scene.ws, scene.cities, scene.cities.log(), scene.cities.scan(), scene.cities.state(["city"]),
        scene.cities.verify(),
    ]  # fmt: skip
    for value in shown:
        html = value._repr_html_()
        assert html.startswith("<table>")
        assert "<b>" not in html
        assert len(repr(value).splitlines()) == 1 or value is shown[2]
    assert "&lt;b&gt;C&lt;/b&gt;" in shown[3]._repr_html_()
    (damaged,) = scene.ws.add(manifest(name="damaged"))
    (damaged.path / "refs" / "head").write_text("nonsense")
    assert "damaged" in repr(damaged) + damaged._repr_html_() + scene.ws._repr_html_()
    scene.ws._files.delete(damaged._files)


def test_the_package_loads_nothing_before_it_is_used() -> None:
    program = (
        "import sys; before = set(sys.modules); import odfchain; loaded = set(sys.modules) - before;"
        "assert loaded <= {'__future__', 'odfchain', 'odfchain.versions', 'importlib', 'typing', 'warnings'}, loaded;"
        "odfchain.Workspace; odfchain.open;"
        "assert not {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_rarely_named_is_in_three_modules() -> None:
    assert issubclass(odf.errors.IngestError, odf.OdfchainError)
    assert odf.events.Seed.KIND == "Seed"
    assert all(getattr(odf.results, name) is not None for name in odf.results.__all__)
    assert {"open", "init"} <= set(dir(odf))
