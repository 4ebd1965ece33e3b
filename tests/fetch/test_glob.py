"""Files that match a pattern: one at a time, in order, each once, whatever comes late or changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import FetchError, IngestError, SourceNotFoundError
from odfchain.ingest.fetch_files import fetch_glob
from odfchain.ingest.fetching import UP_TO_DATE, Fetched, etag_state, last_modified_state
from odfchain.odf.enums import SourceOrdering
from odfchain.odf.events import SourceState
from odfchain.odf.sources import (
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
    FetchStepFilesGlob,
)
from odfchain.odf.times import Timestamp
from tests.kit.servers import MODIFIED_TIME, Meter, context
from tests.kit.support import conformance

CASES = {case["id"]: case for case in conformance("polling_cases")["cases"]}
FROM_NAME = EventTimeSourceFromPath(pattern=r"data-(\d+-\d+-\d+)\.csv", timestamp_format="%Y-%m-%d")
FROM_METADATA = EventTimeSourceFromMetadata()
BY_TIME = SourceOrdering.BY_EVENT_TIME
BY_CHANGE: Mapping[str, Any] = {"order": BY_TIME, "event_time": FROM_METADATA}


class Source:
    """A folder with files, and a dataset that polls it."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "data"
        self.folder.mkdir()
        self.run = tmp_path / "run"
        self.run.mkdir()
        self.state: SourceState | None = None
        self.recorded: Timestamp | None = None
        self.states: list[tuple[SourceState, Timestamp]] = []
        self.progress = Meter()

    def add(self, *names: str, content: str = "x\n", mtime: float = 1_600_000_000) -> Path:
        """Adds or changes files; returns the last one."""
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            os.utime(path, (mtime, mtime))
        return path

    def poll(
        self, pattern: str = "data-*.csv", variables: Mapping[str, str] | None = None, **step: Any
    ) -> Any:
        given = context(
            self.run,
            self.state,
            variables=variables or {},
            progress=self.progress,
            previous_time=self.recorded,
            recorded=lambda: self.states,
        )
        step = {"event_time": FROM_NAME} | step
        result = fetch_glob(FetchStepFilesGlob(path=f"{self.folder}/{pattern}", **step), given)
        assert list(self.run.iterdir()) == [], "files are not copied"
        if result is not UP_TO_DATE:
            self.state = result.state
        return result

    def drain(self, *args: Any, **step: Any) -> list[str]:
        """Every file that polling brings, each with a mark when more is promised."""
        found: list[str] = []
        while (result := self.poll(*args, **step)) is not UP_TO_DATE:
            found.append(f"{result.path.relative_to(self.folder)}{'+' if result.has_more else ''}")
            assert len(found) < 100
        return found


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_the_tested_cases_in_their_order(source: Source) -> None:
    """glob.no_match_first, first, repeat, mtime_changed, older_name_added, two_new."""
    tested = [
        name for name, case in CASES.items() if name.startswith("glob.") and case["confidence"] == "tested"
    ]
    assert len(tested) == 6
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        source.poll()
    first = source.add("data-2020-10-01.csv")
    assert source.poll() == Fetched(
        path=first,
        name=str(first),
        state=etag_state("data-2020-10-01.csv"),
        event_time=Timestamp.parse("2020-10-01T00:00:00Z"),
        has_more=False,
        advances=True,
    )
    assert source.poll() is UP_TO_DATE

    os.utime(first, (1_700_000_000, 1_700_000_000))
    assert source.poll() is UP_TO_DATE

    source.add("data-2020-01-01.csv")
    assert source.poll() is UP_TO_DATE

    source.add("data-2020-10-05.csv", "data-2020-10-10.csv")
    result = source.poll()
    assert (result.state, result.has_more) == (etag_state("data-2020-10-05.csv"), True)
    result = source.poll()
    assert (result.state, result.has_more) == (etag_state("data-2020-10-10.csv"), False)
    assert source.poll() is UP_TO_DATE


def test_names_are_compared_as_bytes(source: Source) -> None:
    source.add("data-é.csv", "data-z.csv", "data-Z.csv", "data-10.csv", "data-9.csv")
    names = ["data-10.csv+", "data-9.csv+", "data-Z.csv+", "data-z.csv+", "data-é.csv"]
    assert source.drain(event_time=None) == names


def test_only_regular_files(source: Source) -> None:
    (source.folder / "data-folder.csv").mkdir()
    os.mkfifo(source.folder / "data-fifo.csv")
    (source.folder / "data-broken.csv").symlink_to("nowhere")
    with pytest.raises(SourceNotFoundError):
        source.poll(event_time=None)
    (source.folder / "data-link.csv").symlink_to(source.add("elsewhere.txt"))
    assert source.drain(event_time=None) == ["data-link.csv"]


def test_the_last_file_may_go(source: Source) -> None:
    path = source.add("data-2020-10-01.csv")
    source.poll()
    path.unlink()
    assert source.poll() is UP_TO_DATE
    source.folder.rmdir()
    with pytest.raises(SourceNotFoundError, match=f"there is no folder {source.folder}$"):
        source.poll()
    source.add("data-2020-10-02.csv")
    assert source.drain() == ["data-2020-10-02.csv"]


# --- late and changed files --------------------------------------------------------------------------


def test_late_and_changed_files_are_told(source: Source) -> None:
    source.add("data-2020-10-01.csv", "data-2020-10-02.csv")
    source.drain()
    newest = max(path.stat().st_ctime_ns for path in source.folder.iterdir())
    source.recorded = Timestamp(newest).truncated_to_ms()
    assert source.poll() is UP_TO_DATE
    assert source.progress.notes == []

    source.recorded = Timestamp(newest - 60 * 10**9)
    assert source.poll() is UP_TO_DATE, "but nothing is read twice"
    (note,) = source.progress.notes
    assert "added or changed too late, counted as read and not read again (2)" in note
    assert "'data-2020-10-01.csv', 'data-2020-10-02.csv'; to have one read, rename it to come after " in note


def test_a_late_file_is_told_until_it_is_read(source: Source) -> None:
    def poll() -> list[str]:
        source.progress.notes.clear()
        result = source.poll()
        if result is not UP_TO_DATE:
            source.recorded = Timestamp.now()
            source.states.insert(0, (result.state, source.recorded))
        while Timestamp.now().epoch_ms <= (source.recorded or Timestamp.now()).epoch_ms + 1:
            pass
        return source.progress.notes

    for day in ("01", "03", "02", "04"):
        source.add(f"data-2020-10-{day}.csv")
        notes = poll()
    for _ in range(2):
        assert ["'data-2020-10-02.csv'; to have one read, rename it to come after 'data-2020-10-0" in n
                for n in notes] == [True]  # fmt: skip
        notes = poll()
    (source.folder / "data-2020-10-02.csv").rename(source.folder / "data-2020-10-04b.csv")
    assert source.drain(event_time=None) == ["data-2020-10-04b.csv"]


def test_a_file_that_keeps_its_old_times_is_told_too(source: Source) -> None:
    source.add("data-2020-10-02.csv")
    source.drain()
    elsewhere = source.add("elsewhere/data-2020-10-01.csv", mtime=1_000_000_000)
    source.recorded = Timestamp(elsewhere.stat().st_ctime_ns - 10**9)
    os.utime(source.folder / "data-2020-10-02.csv")
    elsewhere.rename(source.folder / "data-2020-10-01.csv")
    assert source.poll() is UP_TO_DATE
    assert "'data-2020-10-01.csv'" in source.progress.notes[0]


def test_new_files_are_not_called_late(source: Source) -> None:
    source.add("data-2020-10-01.csv")
    source.drain()
    source.recorded = Timestamp((source.folder / "data-2020-10-01.csv").stat().st_ctime_ns)
    source.add("data-2020-10-02.csv")
    assert source.poll().path.name == "data-2020-10-02.csv"
    assert source.progress.notes == []


def test_ordered_by_change_late_and_changed_files_are_read(source: Source) -> None:
    source.add("data-b.csv", mtime=1_600_000_000)
    source.add("data-a.csv", mtime=1_600_000_001)
    assert source.drain(**BY_CHANGE) == ["data-b.csv+", "data-a.csv"]
    assert source.state == etag_state("2020-09-13T12:26:41Z data-a.csv")
    assert source.drain(**BY_CHANGE) == []
    source.add("data-0.csv", mtime=1_600_000_002.5)
    source.add("data-b.csv", content="changed", mtime=1_600_000_003)
    result = source.poll(**BY_CHANGE)
    assert (result.path.name, str(result.event_time)) == ("data-0.csv", "2020-09-13T12:26:42.500Z")
    assert source.drain(**BY_CHANGE) == ["data-b.csv"]
    source.add("data-a.csv", "data-c.csv", mtime=1_600_000_003)
    assert source.drain(**BY_CHANGE) == ["data-c.csv"], "of the same time, the name decides"


# --- order by event time -----------------------------------------------------------------------------


def test_ordered_by_event_time(source: Source) -> None:
    """Beyond glob.derived_1."""
    time = EventTimeSourceFromPath(pattern=r"data-(\d+-\w+-\d+)", timestamp_format="d-MMM-yyyy")
    step: Mapping[str, Any] = {"order": BY_TIME, "event_time": time}
    days = ("2-Jan-2021", "10-Dec-2020", "1-Feb-2020", "1-Feb-2020-b")
    source.add(*(f"data-{day}.csv" for day in days))
    first = source.poll(**step)
    assert (first.path.name, str(first.event_time)) == ("data-1-Feb-2020-b.csv", "2020-02-01T00:00:00Z")
    assert source.drain(**step) == ["data-1-Feb-2020.csv+", "data-10-Dec-2020.csv+", "data-2-Jan-2021.csv"]
    assert source.state == etag_state("data-2-Jan-2021.csv"), "the name tells the time"
    (source.folder / "data-2-Jan-2021.csv").unlink()
    source.add("data-1-Jan-2021.csv", "data-3-Jan-2021.csv")
    assert source.drain(**step) == ["data-3-Jan-2021.csv"]


@pytest.mark.parametrize("event_time", [None, EventTimeSourceFromSystemTime()])
def test_order_by_event_time_needs_one(source: Source, event_time: Any) -> None:
    source.add("data-1.csv")
    with pytest.raises(FetchError, match="needs an event time for each file"):
        source.poll(order=BY_TIME, event_time=event_time)


def test_another_order_than_the_state_was_recorded_in(source: Source) -> None:
    source.add("data-2020-10-01.csv", mtime=2_000)
    source.drain()
    source.add("data-2020-10-03.csv", mtime=1_000)
    source.add("data-2020-10-02.csv", mtime=3_000)
    assert source.drain(**BY_CHANGE) == ["data-2020-10-02.csv"]
    source.state = etag_state("data-2020-10-00.csv")
    with pytest.raises(FetchError, match=r"'data-2020-10-00.csv', is gone, so its time is not known"):
        source.poll(**BY_CHANGE)


# --- several folders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["**/*.csv", "**/**/part*.csv"])
def test_files_of_the_same_name_in_several_folders(source: Source, pattern: str) -> None:
    """Beyond glob.derived_0."""
    source.add("2020/part.csv", "2021/part.csv", "part.csv", "2020/a/part.csv")
    expected = ["part.csv+", "2020/a/part.csv+", "2020/part.csv+", "2021/part.csv"]
    assert source.drain(pattern, event_time=None) == expected
    source.add("2022/part.csv")
    assert source.drain(pattern, event_time=None) == ["2022/part.csv"]
    assert source.state == etag_state("2022/part.csv")


def test_a_pattern_of_many_folders_visits_each_folder_once(source: Source) -> None:
    """The library alone would visit 24 folders in a billion ways."""
    source.add("a/" * 24 + "x.csv")
    assert source.drain("**/" * 12 + "*.csv", event_time=None) == ["a/" * 24 + "x.csv"]


def test_the_state_below_a_folder_is_never_a_bare_name(source: Source) -> None:
    source.add("part.csv")
    assert source.poll("**/*.csv", event_time=None).state == etag_state("./part.csv")


def test_a_new_folder_with_old_names(source: Source) -> None:
    source.add("2020/part-1.csv", "2020/part-2.csv")
    source.drain("20*/part-*.csv", event_time=None)
    source.add("2021/part-1.csv")
    assert source.drain("20*/part-*.csv", event_time=None) == ["2021/part-1.csv"]


def test_a_chain_that_the_reference_began(source: Source) -> None:
    source.add("b/1.csv", "a/2.csv", "a/3.csv", "b/3.csv", "c/4.csv")
    source.state = etag_state("2.csv")
    assert source.drain("**/*.csv", event_time=None) == ["a/3.csv+", "c/4.csv"]
    assert "only the first of these is read: 'a/3.csv', 'b/3.csv'" in source.progress.notes[0]
    assert source.state == etag_state("4.csv")


# --- event time, templates, mistakes -----------------------------------------------------------------


def test_event_times(source: Source) -> None:
    """Beyond glob.derived_3: metadata of a file is its time of modification."""
    source.add("data-1.csv", mtime=1_600_000_000.25)
    assert str(source.poll(event_time=FROM_METADATA).event_time) == "2020-09-13T12:26:40.250Z"
    for event_time in (None, EventTimeSourceFromSystemTime()):
        source.state = None
        assert source.poll(event_time=event_time).event_time is None


def test_the_event_time_is_looked_for_in_the_file_name_only(source: Source) -> None:
    source.add("data-2001-01-01.csv/data-2020-10-01.csv")
    assert str(source.poll("*/data-*.csv").event_time) == "2020-10-01T00:00:00Z"


def test_a_name_without_a_time(source: Source) -> None:
    source.add("data-x.csv")
    with pytest.raises(FetchError, match=r"does not match 'data-x.csv'"):
        source.poll()


def test_templates(source: Source) -> None:
    source.add("data-eu.csv", "data-us.csv")
    pattern = "data-${{ env.REGION }}.csv"
    assert source.drain(pattern, {"REGION": "us"}, event_time=None) == ["data-us.csv"]
    with pytest.raises(IngestError, match="REGION"):
        source.poll(pattern, event_time=None)


@pytest.mark.parametrize("path", ["data/*.csv", "~/data/*.csv", "", "./*.csv", "/data/\0*.csv"])
def test_paths_that_are_not_absolute(source: Source, path: str) -> None:
    with pytest.raises(FetchError, match="not an absolute path"):
        fetch_glob(FetchStepFilesGlob(path=path), context(source.run))
    by_variable = FetchStepFilesGlob(path="${{ env.INBOX }}/*.csv")
    with pytest.raises(FetchError, match="not an absolute path") as refused:
        fetch_glob(by_variable, context(source.run, variables={"INBOX": "inbox"}))
    assert '-e INBOX="$PWD/inbox"' in str(refused.value.hint)


def test_a_state_of_another_kind_means_nothing(source: Source) -> None:
    source.add("data-2020-10-01.csv")
    source.state = last_modified_state(MODIFIED_TIME)
    assert source.drain() == ["data-2020-10-01.csv"]


def test_a_name_that_cannot_be_recorded(source: Source) -> None:
    path = os.fsencode(source.folder) + b"/data-\xff.csv"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    with pytest.raises(FetchError, match="not UTF-8"):
        source.poll(event_time=None)
