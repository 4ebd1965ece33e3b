"""Watermarks: where they may stand, what moves them, and which rows are not believed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import AppendError, IngestError
from odfchain.ingest.ingesting import PullStatus
from odfchain.odf.events import AddData
from odfchain.odf.sources import WatermarkRule
from odfchain.odf.times import Duration, Timestamp
from tests.kit.polled_sources import APPEND, LEDGER, SNAPSHOT, file_url, polled, touch
from tests.kit.pushed_files import put
from tests.kit.support import Result, Run, unchanged

DAY = Duration(86_400_000)
PLAIN, DELAYED = WatermarkRule(), WatermarkRule(max_delay=DAY)
CLOCK, LATE_CLOCK = WatermarkRule(from_system_time=True), WatermarkRule(from_system_time=True, max_delay=DAY)
NOW = "2090-03-10T12:00:00Z"
"""After the system time of the machine: the system time of a chain never goes back."""


def at(text: str) -> Timestamp:
    return Timestamp.parse(text if "T" in text else f"{text}T00:00:00Z")


def maybe(text: str | None) -> Timestamp | None:
    return None if text is None else at(text)


# --- the rules, without Spark ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "previous", "latest", "expected"),
    [
        (PLAIN, None, "2090-03-01", "2090-03-01"),
        (PLAIN, "2090-03-05", "2090-03-01", "2090-03-05"),
        (PLAIN, "2090-03-05", None, "2090-03-05"),
        (PLAIN, None, None, None),
        (DELAYED, None, "2090-03-05", "2090-03-04"),
        (DELAYED, "2090-03-05", "2090-03-05", "2090-03-05"),
        (DELAYED, None, "0001-01-01", "0001-01-01"),
        (CLOCK, None, "2090-03-05", "2090-03-05"),
        (CLOCK, None, "2090-03-11", NOW),
        (LATE_CLOCK, None, "2090-03-11", "2090-03-09T12:00:00Z"),
        (PLAIN, None, "2999-01-01", "2090-03-11T12:00:00Z"),
    ],
)
def test_the_watermark_after_rows(
    rule: WatermarkRule, previous: str | None, latest: str | None, expected: str | None
) -> None:
    time, bound = maybe(latest), at(NOW).shifted(DAY.milliseconds)
    found = rule.after_rows(maybe(previous), time and time.epoch_ms, at(NOW), bound)
    assert found == maybe(expected)


@pytest.mark.parametrize(
    ("rule", "previous", "idle", "expected"),
    [
        (PLAIN, "2020-01-01", False, None),
        (DELAYED, "2020-01-01", False, None),
        (CLOCK, None, True, NOW),
        (CLOCK, "2090-03-10", False, NOW),
        (CLOCK, "2090-03-10T11:59:59Z", False, NOW),
        (CLOCK, "2090-03-10T11:59:59Z", True, None),
        (CLOCK, "2090-03-10T11:00:00Z", True, NOW),
        (CLOCK, "2090-03-11", False, None),
        (LATE_CLOCK, "2090-03-08", True, "2090-03-09T12:00:00Z"),
    ],
)
def test_the_watermark_that_follows_the_system_time(
    rule: WatermarkRule, previous: str | None, idle: bool, expected: str | None
) -> None:
    assert rule.at_system_time(maybe(previous), at(NOW), idle=idle) == maybe(expected)


def test_the_bound_ends_where_time_does() -> None:
    assert str(at("9999-12-31").shifted(10**12)) == "9999-12-31T23:59:59.999Z"


# --- with data -------------------------------------------------------------------------------------------

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: {source}
      {fetch}read: {{kind: Csv, header: true, schema: ["event_time {type}", "city STRING", "population BIGINT"]}}
      merge: {merge}
      {rule}
"""


def manifest_of(
    *, merge: str = APPEND, rule: str = "", kind: str = "TIMESTAMP", fetch: str = "", name: str = "cities"
) -> str:
    source, fetch = ("SetPollingSource", f"fetch: {{{fetch}}}\n      ") if fetch else ("AddPushSource", "")
    return MANIFEST.format(source=source, fetch=fetch, merge=merge, rule=rule, type=kind, name=name)


def dataset_of(workspace: Workspace, **given: str) -> Dataset:
    return workspace.add(manifest_of(**given))[0]


def csv(path: Path, *rows: str) -> Path:
    return put(path.parent, "\n".join(["event_time,city,population", *rows, ""]), path.name)


def on(time: str, **changes: bool) -> dict[str, Any]:
    return {"system_time": at(time), **changes}


@pytest.mark.parametrize("kind", ["TIMESTAMP", "DATE"])
def test_a_row_from_the_far_future_is_refused(workspace: Workspace, tmp_path: Path, kind: str) -> None:
    dataset = dataset_of(workspace, kind=kind)
    clock = "" if kind == "DATE" else "T00:00:00Z"
    good = csv(tmp_path / "good.csv", f"2090-03-11{clock},A,1")
    rows = [f"2090-03-01{clock},A,1", f"2999-01-01{clock},B,2", f"2999-01-02{clock},C,3"]
    bad = csv(tmp_path / "bad.csv", *rows)
    dataset.ingest([good], **on(NOW))
    with unchanged(dataset.path), pytest.raises(IngestError) as caught:
        dataset.ingest([bad], **on(NOW))
    text = str(caught.value)
    assert (
        "bad.csv: row 2 (city='B', population='2'): its event time, 2999-01-01 00:00:00, is later than"
        in text
    )
    assert "2090-03-11T12:00:00Z (1 day after the system time 2090-03-10T12:00:00Z)" in text
    assert caught.value.flag == "--allow-future"
    dataset.ingest([bad], **on(NOW, allow_future=True))
    assert dataset.summary.record_count == 4
    assert dataset.summary.watermark == at("2090-03-11T12:00:00Z"), "it stays within the bound"
    dataset.ingest([csv(tmp_path / "next.csv", f"2090-03-15{clock},D,1")], **on("2090-03-15"))
    assert dataset.summary.watermark == at("2090-03-15"), "and moves on"
    assert dataset.verify().ok


def test_a_row_without_event_time_gets_that_of_the_source(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace)
    options = {"system_time": at(NOW), "event_time": at("2999-01-01")}
    said = r"row 1 .*: the row has no event time, and that of the source, 2999"
    with pytest.raises(IngestError, match=said):
        dataset.ingest([csv(tmp_path / "a.csv", ",A,1")], **options)


def test_taking_back_a_row_from_the_far_future_is_right(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, merge=SNAPSHOT)
    a, b, c = "2999-01-01T00:00:00Z,A,1", "2090-03-01T00:00:00Z,B,2", "2090-03-01T00:00:00Z,C,3"
    dataset.ingest([csv(tmp_path / "1.csv", a, b, c)], **on(NOW, allow_future=True))
    dataset.ingest([csv(tmp_path / "2.csv", a, b, c.replace(",3", ",4"))], **on(NOW))  # A as it was
    d = "2999-01-02T00:00:00Z,D,1"
    with pytest.raises(IngestError, match=r"row 4 \(city='D'"):  # not A, which stays as it was
        dataset.ingest([csv(tmp_path / "d.csv", a, b, c, d)], **on(NOW))
    dataset.ingest([csv(tmp_path / "3.csv", b, c)], **on(NOW))  # without A
    assert [row["op"] for row in dataset.tail(3).to_pylist()] == [1, 2, 3], "A goes, C changes"
    assert dataset.verify().ok


def test_a_source_may_allow_more_or_less(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, rule="watermark: {maxFuture: 10 days, maxDelay: 2 days}")
    dataset.ingest([csv(tmp_path / "1.csv", "2090-03-19T00:00:00Z,A,1")], **on(NOW))
    assert dataset.summary.watermark == at("2090-03-17")
    with pytest.raises(IngestError, match="10 days after the system time"):
        dataset.ingest([csv(tmp_path / "2.csv", "2090-03-21T00:00:00Z,A,1")], **on(NOW))
    config = workspace.path / "config.yaml"
    config.write_text(config.read_text().replace("allowFuture: false", "allowFuture: true"))
    dataset.ingest([csv(tmp_path / "2.csv", "2090-03-21T00:00:00Z,A,1")], **on(NOW))


def test_a_watermark_that_follows_the_system_time(workspace: Workspace, tmp_path: Path) -> None:
    """Also while there is nothing new; after the last of several files; and never so that `verify` complains."""
    fetch = f"kind: FilesGlob, path: '{tmp_path}/*.csv'"
    dataset = dataset_of(workspace, fetch=fetch, rule="watermark: fromSystemTime")

    def pull(time: str) -> tuple[str, int]:
        found = dataset.pull(system_time=at(time))
        return found.status, found.blocks

    csv(tmp_path / "1.csv", "2090-03-01T00:00:00Z,A,1")
    csv(tmp_path / "2.csv", "2090-03-02T00:00:00Z,A,1")
    assert pull(NOW) == (PullStatus.UPDATED.value, 4)
    marks = [b.block.event.new_watermark for b in dataset.log(3)]  # type: ignore[union-attr]
    assert marks == [at(NOW), at("2090-03-02"), at("2090-03-01")]
    with unchanged(dataset.path):
        assert pull("2090-03-10T12:30:00Z") == (PullStatus.UP_TO_DATE.value, 0)
    assert pull("2090-03-10T13:00:00Z") == (PullStatus.UPDATED.value, 1)
    assert dataset.summary.watermark == at("2090-03-10T13:00:00Z")
    csv(tmp_path / "3.csv", "2090-03-09T00:00:00Z,A,1")
    assert pull("2090-03-10T13:00:01Z") == (PullStatus.UPDATED.value, 2)
    assert pull("2090-03-10T13:00:02Z") == (PullStatus.UP_TO_DATE.value, 0)
    assert dataset.verify().ok


def test_the_same_for_pushed_files(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, rule="watermark: {fromSystemTime: true, maxDelay: 1 day}")
    files = [csv(tmp_path / f"{day}.csv", f"2090-03-0{day}T00:00:00Z,A,1") for day in (1, 2)]
    outcome = dataset.ingest(files, **on(NOW))
    assert (outcome.blocks, outcome.watermark) == (4, at("2090-03-09T12:00:00Z"))
    assert dataset.summary.watermark == outcome.watermark
    assert dataset.verify().ok


def test_a_watermark_set_by_hand(workspace: Workspace, run_cli: Run, tmp_path: Path) -> None:
    dataset = dataset_of(workspace)
    dataset.ingest([csv(tmp_path / "1.csv", "2090-03-01T00:00:00Z,A,1")], **on("2090-03-01"))
    with pytest.raises(IngestError, match="can never be lowered again"):
        dataset.set_watermark(at("2999-01-01"))
    future = ("--set-watermark", "2999-01-01", "--allow-future")
    assert run_cli("-w", workspace.path, "pull", "cities", *future).code == 0
    dataset.ingest([csv(tmp_path / "2.csv", "2090-03-02T00:00:00Z,A,1")], **on("2090-03-02"))
    with pytest.raises(AppendError) as caught:
        dataset.set_watermark(at("2090-03-02"))
    assert "can only be raised, not lowered to 2090-03-02T00:00:00Z" in str(caught.value)
    assert "block 4 set it" in str(caught.value.hint)
    back = run_cli("-w", workspace.path, "-y", "reset", "cities", "3", "--force")
    assert back.code == 0, back.err
    assert dataset.summary.watermark == at("2090-03-01")


def test_an_update_changes_the_rule(workspace: Workspace, run_cli: Run, tmp_path: Path) -> None:
    manifest = tmp_path / "cities.yaml"

    def add(rule: str, *more: str) -> Result:
        manifest.write_text(manifest_of(rule=rule))
        return run_cli("-w", workspace.path, "add", manifest, *more)

    assert add("watermark: {maxDelay: 1 day}").code == 0
    dataset = workspace["cities"]
    assert dataset.watermark_rules == {"default": DELAYED}
    assert (dataset.path / "info" / "config").stat().st_mode & 0o777 == 0o600
    assert "cities is up to date" in add("watermark: {maxDelay: 24 hours}", "--update").err
    head = dataset.head
    assert "updated cities (watermark)" in add("", "--update").err
    assert dataset.head == head
    assert dataset.watermark_rules == {}


def test_the_time_of_a_file_of_the_future(workspace: Workspace, tmp_path: Path) -> None:
    path = csv(tmp_path / "1.csv", ",A,1")
    os.utime(path, (7_258_118_400, 7_258_118_400))  # 2200
    dataset = dataset_of(workspace, fetch=file_url(path))
    with pytest.raises(IngestError, match=r"1\.csv: row 1 .*that of the source, 2200"):
        dataset.pull()


# --- files of a glob ---------------------------------------------------------------------------------------

DATED = "eventTime: {kind: FromPath, pattern: '(\\d+-\\d+-\\d+)', timestampFormat: 'yyyy-MM-dd'}"
AB = "city,population\nA,1\nB,2\n"


def marks(dataset: Dataset) -> list[tuple[bool, str | None]]:
    """Of each block of data, oldest first: whether it has rows, and its watermark."""
    events = [block.block.event for block in dataset.log()]
    data = [event for event in reversed(events) if isinstance(event, AddData)]
    return [(e.new_data is not None, e.new_watermark and str(e.new_watermark)[:16]) for e in data]


@pytest.mark.parametrize("merge", [SNAPSHOT, LEDGER, "{kind: UpsertStream, primaryKey: [city]}"])
def test_a_file_without_news_advances_the_watermark(workspace: Workspace, tmp_path: Path, merge: str) -> None:
    """Specification "FetchStep::FilesGlob": every file is processed individually and advances the watermark."""
    dataset = polled(workspace, f"kind: FilesGlob, path: '{tmp_path}/*.csv', {DATED}", merge=merge)
    for day in (1, 3, 5):
        (tmp_path / f"2020-01-0{day}.csv").write_text(AB)
    assert dataset.pull().blocks == 4, "a schema, and a block for each file of one pull"
    (tmp_path / "2020-01-07.csv").write_text(AB)
    assert dataset.pull().watermark == at("2020-01-07")
    assert marks(dataset) == [(day == 1, f"2020-01-0{day}T00:00") for day in (1, 3, 5, 7)]
    assert dataset.summary.source_state.value == "2020-01-07.csv"
    with unchanged(dataset.path):
        assert dataset.pull().status == PullStatus.UP_TO_DATE.value
    assert dataset.verify().ok


def test_a_file_that_only_takes_back_advances_the_watermark(workspace: Workspace, tmp_path: Path) -> None:
    """Its rows have the event times of what they take back, so a block without rows says it."""
    rule = "{kind: Snapshot, primaryKey: [city]}\n      watermark: {maxDelay: 1 day}"
    dataset = polled(workspace, f"kind: FilesGlob, path: '{tmp_path}/*.csv', {DATED}", merge=rule)
    (tmp_path / "2020-01-02.csv").write_text(AB)
    (tmp_path / "2020-01-05.csv").write_text(AB.replace("B,2\n", ""))
    (tmp_path / "2020-01-09.csv").write_text(AB.replace("B,2\n", "C,2\n"))
    dataset.pull()
    days = [(True, 1), (True, 1), (False, 4), (True, 8)]
    assert marks(dataset) == [(rows, f"2020-01-0{day}T00:00") for rows, day in days]
    assert dataset.verify().ok


def test_a_file_without_an_event_time_has_that_of_the_system(workspace: Workspace, tmp_path: Path) -> None:
    dataset = polled(workspace, f"kind: FilesGlob, path: '{tmp_path}/*.csv'", merge=SNAPSHOT)
    for name, time in (("1", "2090-03-01"), ("2", "2090-03-02")):
        (tmp_path / f"{name}.csv").write_text(AB)
        dataset.pull(system_time=at(time))
    assert marks(dataset) == [(True, "2090-03-01T00:00"), (False, "2090-03-02T00:00")]
    assert dataset.verify().ok


def test_what_a_file_does_not_advance(workspace: Workspace, tmp_path: Path) -> None:
    """Not behind what was, nor beyond the bound; and where rows have event times of their own, those count."""
    glob = f"kind: FilesGlob, path: '{tmp_path}/*.csv', {DATED.replace('(', 'x(')}"
    dataset = polled(workspace, glob, merge=SNAPSHOT)
    for name in ("ax2020-01-05", "bx2020-01-02", "cx2999-01-01"):
        (tmp_path / f"{name}.csv").write_text(AB)
    dataset.pull(system_time=at(NOW))
    expected = ["2020-01-05T00:00", "2020-01-05T00:00", "2090-03-11T12:00"]
    assert [mark for _, mark in marks(dataset)] == expected
    other = tmp_path / "own"
    other.mkdir()
    own = dataset_of(
        workspace, fetch=f"kind: FilesGlob, path: '{other}/*.csv', {DATED}", merge=LEDGER, name="own"
    )
    for day in (1, 2):
        csv(other / f"2020-02-0{day}.csv", "2020-01-01T00:00:00Z,A,1")
    own.pull()
    assert marks(own) == [(True, "2020-01-01T00:00"), (False, "2020-01-01T00:00")]
    assert dataset.verify().ok
    assert own.verify().ok


def test_other_sources_advance_by_their_rows_alone(workspace: Workspace, tmp_path: Path) -> None:
    """As `writer_cases.json` has it: of one object, that it was written again says nothing of events."""
    path = tmp_path / "in.csv"
    dataset = polled(workspace, file_url(path), merge=SNAPSHOT)
    for seconds in (1_600_000_000, 1_600_100_000):
        touch(path, AB, seconds)
        dataset.pull()
    assert marks(dataset) == [(True, "2020-09-13T12:26"), (False, "2020-09-13T12:26")]
    assert dataset.verify().ok
