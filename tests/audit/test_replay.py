"""Replaying derivative datasets: what is honest passes; a forgery with right hashes is found and named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.report import Report
from odfchain.odf import events as ev
from odfchain.odf.times import Timestamp
from odfchain.spark.session import SparkEngine
from odfchain.transform.engines import engine_version
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.derived_dataset import (
    FIRST,
    QUERIES,
    add_rows,
    block_at,
    copy_of,
    executions,
    forge,
    make_template,
    with_level,
)
from tests.kit.root_rows import MADE
from tests.kit.support import Run, hash_of, unchanged

OTHER_VERSION = "odfchain_0-spark_4.3.0"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine) -> Path:
    """A root with two transactions, and three derivatives with two each."""
    workspace = Workspace.init(tmp_path_factory.mktemp("template") / "workspace")
    workspace._engines.spark = engine
    make_template(workspace)
    return workspace.path.parent


@pytest.fixture
def workspace(template: Path, tmp_path: Path, engine: SparkEngine) -> Workspace:
    """The template's datasets, on the session of the run."""
    found = copy_of(template, tmp_path / "workspace")
    found._engines.spark = engine
    return found


@pytest.fixture
def idle(template: Path, tmp_path: Path) -> Workspace:
    """The template's datasets, and no engine."""
    return copy_of(template, tmp_path / "workspace")


def last(dataset: DatasetFiles) -> int:
    return executions(dataset)[-1]


def replay_last(workspace: Workspace, name: str) -> Report:
    """Replay of the last transaction only; the chain and the files are found to be as recorded."""
    dataset = workspace[name]
    before = dataset._files.chain.get(block_at(dataset._files, last(dataset._files))).prev_block_hash
    report = dataset.verify(replay=True, after=before)
    assert [f for f in report.faults if f.check != 15] == []
    return report


def the_fault(workspace: Workspace, name: str) -> str:
    """What the only fault says of the last transaction; that nothing else can tell is asserted, too."""
    dataset = workspace[name]
    assert dataset.verify().ok, "only a replay can tell"
    (fault,) = replay_last(workspace, name).faults
    number = last(dataset._files)
    assert (fault.check, fault.sequence_number) == (15, number)
    assert Path(fault.file) == dataset.path / "blocks" / str(block_at(dataset._files, number))
    assert "\n" not in fault.message
    return fault.message.removeprefix("DataNotReproducible: ")


def test_what_was_computed_here_is_replayed(workspace: Workspace) -> None:
    datasets = [workspace[name] for name in QUERIES]
    with unchanged(datasets[0].path), unchanged(datasets[1].path), unchanged(datasets[2].path):
        reports = workspace.verify(datasets, recursive=True, replay=True)
    assert [r.alias for r in reports] == ["readings", *QUERIES]
    assert [(r.faults, r.unchecked, r.notes) for r in reports] == [([], [], [])] * 4
    assert [r.state(15) for r in reports] == ["notApplicable", "passed", "passed", "passed"]
    assert {report.state(13) for report in reports[1:]} <= {"passed", "notApplicable"}
    assert "passed" in {report.state(13) for report in reports[1:]}, "the same checkpoints came out"
    assert reports[0].replay is None, "a root has no transactions to replay"
    for report in reports[1:]:
        assert (report.replay.transactions, report.replay.engines) == (2, [engine_version()])


def test_the_query_of_the_time_is_replayed(workspace: Workspace) -> None:
    dataset = workspace["doubled"]
    files, root = dataset._files, workspace["readings"]._files
    before = dataset.head
    event = transform_of(files, "SELECT event_time, sensor, level * 5 AS level, 'new' AS kind FROM readings")
    commit(files, DatasetState.read(files.chain), [event], [], system_time=MADE)
    add_rows(root, [(day + 4, sensor, level) for day, sensor, level in FIRST])
    dataset.pull(system_time=MADE)
    first = executions(files)[1]
    report = dataset.verify(replay=True, after=block_at(files, first - 1))
    assert report.ok, report
    assert report.replay.transactions == 2, "one by each query"
    assert before == block_at(files, first)


def transform_of(dataset: DatasetFiles, query: str | None = None, **changes: Any) -> ev.SetTransform:
    """The transform in force, changed."""
    now = DatasetState.read(dataset.chain).transform
    (step,) = now.transform.queries
    queries = (dataclasses.replace(step, query=query or step.query),)
    return dataclasses.replace(
        now, transform=dataclasses.replace(now.transform, query=None, queries=queries, **changes)
    )


FEWER, MORE = (
    f"SELECT event_time, sensor{more} FROM readings" for more in ("", ", level * 2 AS level, 1 AS more")
)
LESS = "; 2 records recorded, 3 replayed (offsets 3 to 4, 3 to 5)"
FORGED: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "value": ({"rows": with_level(1, 99)}, "offset 4, column `level`: recorded 99, replayed 10", None),
    "order": (
        {"rows": lambda t: t.take([0, 2, 1])},
        "offset 4, column `event_time`: recorded 2024-01-04T00:00:00+00:00, replayed 2024-01-03T00:00:00+00:00", None,
    ),
    "watermark": (
        {"new_watermark": Timestamp.parse("2024-01-05T00:00:00Z")},
        "watermark 2024-01-05T00:00:00Z recorded, 2024-01-04T00:00:00Z replayed", None,
    ),
    "no last row": (
        {"rows": lambda t: t.slice(0, 2)}, "offset 5, record: recorded nothing, replayed offset=5, op=0, ", LESS,
    ),
    "no first row": (
        {"rows": lambda t: t.slice(1)}, "offset 3, column `event_time`: recorded 2024-01-03T", LESS,
    ),
    "no data": ({"new_data": None}, "nothing recorded, 3 records replayed", None),
    "a column less": ({"query": MORE}, "column `more`: recorded nothing, replayed int32", None),
    "a column more": (
        {"query": FEWER}, "{engine} refuses the query: the result has no column `level` any more", "",
    ),
}  # fmt: skip
"""What is forged, and what is said of it: all of it, or its beginning and its end."""


@pytest.mark.parametrize("what", FORGED)
def test_what_was_forged_is_named(workspace: Workspace, what: str) -> None:
    changes, begin, end = FORGED[what]
    files = workspace["doubled"]._files
    if query := changes.get("query"):
        changes = {"before": (transform_of(files, query=query),)}
    forge(files, last(files), **changes)
    message, begin = the_fault(workspace, "doubled"), begin.format(engine=engine_version())
    if end is None:
        assert message == begin
    else:
        assert (message[: len(begin)], message.endswith(end)) == (begin, True)


def test_a_forged_checkpoint_shows_in_the_step_after_it(workspace: Workspace) -> None:
    files = workspace["totals"]._files
    first, second = executions(files)
    later = files.chain.get(block_at(files, second)).event
    forge(files, first, new_checkpoint=later.new_checkpoint)
    dataset = workspace["totals"]
    assert dataset.verify().ok
    report = dataset.verify(replay=True)
    assert report.state(13) == "notChecked", "another one came out than is recorded"
    (fault,) = report.faults
    assert fault.sequence_number == second
    assert fault.message == (  # what is remembered has counted the new rows already, and counts them again
        "DataNotReproducible: offset 2, column `event_time`: "
        "recorded 2024-01-01T00:00:00+00:00, replayed 2024-01-03T00:00:00+00:00"
    )
    (note,) = report.notes
    assert note.startswith(
        f"block {first}: the checkpoint differs: {later.new_checkpoint.physical_hash} recorded, "
    )


def test_the_report_does_not_depend_on_the_number_of_jobs(workspace: Workspace) -> None:
    files = workspace["doubled"]._files
    for number in executions(files):
        forge(files, number, with_level(0, number))
    reports = [workspace["doubled"].verify(replay=True, jobs=jobs) for jobs in (1, 3)]
    assert reports[0] == reports[1]
    assert [f.sequence_number for f in reports[0].faults] == executions(files)


def forged_input(dataset: DatasetFiles, **changes: Any) -> None:
    event = dataset.chain.get(block_at(dataset, last(dataset))).event
    (item,) = event.query_inputs
    forge(dataset, last(dataset), query_inputs=(dataclasses.replace(item, **changes),))


def test_offsets_that_the_named_block_does_not_bring(idle: Workspace) -> None:
    files = idle["doubled"]._files
    forged_input(files, new_offset=4)
    before = block_at(files, last(files) - 1)
    for report in (idle["doubled"].verify(), idle["doubled"].verify(replay=True, after=before)):
        (fault,) = report.faults
        assert (fault.check, fault.sequence_number) == (14, last(files))
        assert fault.message == (
            f"input readings ({idle['readings'].id}): it was read up to offset 4, and at block "
            f"{idle['readings'].head} the input ends at 5"
        )
    assert report.state(15) == "notChecked", "what contradicts its inputs is not computed again"
    assert idle._engines.spark is None


def left_out(report: Report) -> tuple[str, tuple[int, ...]]:
    """The reason, and the blocks."""
    assert not report.ok
    assert report.faults == []
    (item,) = report.unchecked
    assert "\n" not in item.message
    return item.message, item.blocks


def test_an_input_that_was_rewritten(idle: Workspace) -> None:
    files = idle["doubled"]._files
    forged_input(files, new_block_hash=hash_of("another history"))
    message, blocks = left_out(replay_last(idle, "doubled"))
    assert blocks == (last(files),)
    assert f"its input readings ({idle['readings'].id}) was rewritten" in message


def test_a_query_that_this_engine_refuses_accuses_nobody(workspace: Workspace) -> None:
    """An older engine may have allowed it: what it recorded is neither right nor wrong for that."""
    files = workspace["doubled"]._files
    query = "SELECT event_time, sensor, level * 2 AS level FROM readings WHERE sensor NOT RLIKE '\\\\bx'"
    forge(files, last(files), before=(transform_of(files, query=query),))
    message, blocks = left_out(replay_last(workspace, "doubled"))
    assert f"it cannot be replayed: {engine_version()} refuses the query: " in message
    assert blocks == (last(files),)


def test_another_version_of_the_engine(idle: Workspace, engine: SparkEngine) -> None:
    files = idle["doubled"]._files
    forge(files, last(files), before=(transform_of(files, version=OTHER_VERSION),))
    message, blocks = left_out(replay_last(idle, "doubled"))
    assert message == f"the transform asks for engine version {OTHER_VERSION}, and this is {engine_version()}"
    assert blocks == (last(files),)
    assert idle._engines.spark is None, "no engine was started"

    config = idle.path / "config.yaml"
    text = config.read_text()
    assert "compatibleVersions: []" in text
    config.write_text(text.replace("compatibleVersions: []", f"compatibleVersions: [{OTHER_VERSION}]"))
    declared = Workspace.open(idle.path.parent)
    declared._engines.spark = engine
    report = replay_last(declared, "doubled")
    assert report.ok
    assert report.replay.engines == [engine_version()]


def test_an_input_that_is_not_here(idle: Workspace) -> None:
    root = idle["readings"]
    said = f"its input readings ({root.id}) is not in this workspace"
    idle.delete("readings", force=True)
    for recursive in (False, True):
        (report,) = idle.verify([idle["daily"]], replay=True, recursive=recursive)
        message, blocks = left_out(report)
        assert message == said
        assert blocks == tuple(executions(idle["daily"]._files))
    assert idle._engines.spark is None, "no engine was started"


def test_an_input_slice_that_is_gone(workspace: Workspace) -> None:
    root, dataset = workspace["readings"], workspace["doubled"]
    path = root.path / "data" / str(root.summary.slices()[1].slice.physical_hash)
    path.unlink()
    report = dataset.verify(replay=True)
    message, blocks = left_out(report)
    assert message == f"it cannot be replayed: {path}: no such object"
    assert blocks == (last(dataset._files),)
    assert report.replay.transactions == 1, "the other one needs only what is there"


def test_the_previous_checkpoint_is_gone(idle: Workspace, engine: SparkEngine) -> None:
    idle._engines.spark = engine
    files = idle["totals"]._files
    first = files.chain.get(block_at(files, executions(files)[0])).event
    path = Path(files.checkpoints.locate(first.new_checkpoint.physical_hash))
    path.unlink()
    report = idle["totals"].verify(replay=True, after=block_at(files, last(files) - 1))
    (item,) = report.unchecked
    assert item.message == f"it cannot be replayed: {path}: no such object"
    assert report.faults == [], "the block that names it is before the range"
    assert [f.check for f in idle["totals"].verify().faults] == [5]


def test_a_chain_that_cannot_be_followed(idle: Workspace) -> None:
    files = idle["doubled"]._files
    (files.folder / "blocks" / str(block_at(files, 1))).unlink()
    report = idle["doubled"].verify(replay=True)
    assert [f.check for f in report.faults] == [2]
    assert [u.message for u in report.unchecked] == [
        "no transaction was replayed: the chain cannot be followed"
    ]


def test_a_range_without_a_transaction_replays_none(idle: Workspace) -> None:
    dataset = idle["doubled"]
    files = dataset._files
    first, second = (block_at(files, n) for n in executions(files))
    for after, upto in ((second, None), (first, first), (None, block_at(files, 1))):
        report = dataset.verify(replay=True, after=after, upto=upto)
        assert report.ok
        assert report.replay.transactions == 0
    assert idle._engines.spark is None


def test_the_command(workspace: Workspace, run_cli: Run) -> None:
    dataset = workspace["doubled"]
    files = dataset._files
    first, second = executions(files)
    call = ["-w", workspace.path.parent, "verify", "doubled", "--replay", "--jobs", "1"]
    result = run_cli(*call, "--from", block_at(files, second - 1))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("ok    doubled: 5 blocks, 1 slice, 3 records, ")
    assert result.out.splitlines()[0].endswith(f", replayed 1 transaction with {engine_version()}")
    forge(files, first, with_level(0, 77))
    result = run_cli(*call, "--to", block_at(files, first))
    assert result.code == 6
    lines = result.out.splitlines()
    assert lines[0].startswith("FAULT doubled: ")
    assert lines[1] == f"  check 15 (replayed transformations), block {first}"
    assert lines[3] == "    DataNotReproducible: offset 0, column `level`: recorded 77, replayed 2"
    workspace.delete("readings", force=True)
    result = run_cli(*call)
    assert result.code == 7
    assert result.out.splitlines()[1].startswith(
        f"  not checked, blocks {first}, {second}: its input readings ("
    )
    result = run_cli(*call, "-o", "json")
    assert result.code == 7
    (report,) = result.rows
    assert (report["verdict"], report["counts"]["replayed"], report["engines"]) == ("incomplete", 0, [])
    check = report["checks"][14]
    assert (check["number"], check["name"], check["state"]) == (15, "replayed transformations", "notChecked")
    assert report["unchecked"][0]["blocks"] == [first, second]
