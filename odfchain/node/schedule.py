"""When datasets are pulled by themselves: rules over frozen values, and the `Schedule` that follows them.

.odfchain/schedule.json             up to when each dataset is done, its failures, its last outcomes
.odfchain/datasets/…/info/pulling   locked while it is pulled by a schedule, in whichever process
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from odfchain.api.workspace import connect
from odfchain.errors import ManifestError, OdfchainError
from odfchain.odf.times import Recurrence, Timestamp
from odfchain.odf.tree import from_tree, to_tree
from odfchain.storage import fsio
from odfchain.text import counted, json_object, length, one_line
from odfchain.workspace.config import EngineConfig, OwnPull, config_path, read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one run ended."""

    begun: Timestamp
    seconds: float
    outcome: str
    """What `odfchain pull` calls it, or `failed`."""
    message: str | None = None
    head: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a dataset's schedule has come."""

    done: Timestamp
    """All moments up to this one have had their run."""
    failures: int = 0
    """In a row."""
    failed: Timestamp | None = None
    """When the last of them ended."""


# Rules: functions of what is known, and of the time.

_WAIT_MS, _LONGEST_WAIT_MS = 60_000, 3_600_000


def wait_after(failures: int) -> int:
    """How long nothing is asked of a source that failed so often in a row [ms]."""
    return min(_WAIT_MS << min(failures - 1, 32), _LONGEST_WAIT_MS)


def next_run(standing: Standing, every: Recurrence, key: str) -> Timestamp:
    """When a dataset is due: moments that were missed are one, and failures come before all others."""
    if standing.failed is not None:
        return standing.failed.shifted(wait_after(standing.failures))
    return every.after(standing.done, key)


def settled(standing: Standing | None, every: Recurrence, key: str, now: Timestamp) -> Standing:
    """A standing that the clock does not contradict; a new length of time is due at once, cron text is not.

    Where the clock was set back, the next moment had its run already, and no other is passed over.
    """
    if standing is None:
        return Standing(done=now.shifted(-every.length.milliseconds) if every.length else now)
    done = standing.done if standing.done <= now else min(standing.done, every.after(now, key))
    return replace(standing, done=done, failed=standing.failed and min(standing.failed, now))


def advanced(standing: Standing, outcome: Outcome, ended: Timestamp) -> Standing:
    """The standing after a run."""
    if outcome.outcome == FAILED:
        return replace(standing, failures=standing.failures + 1, failed=ended)
    return Standing(done=outcome.begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A dataset that has a schedule."""

    id: str
    dataset: str
    every: str
    next: Timestamp
    failures: int
    last: Outcome | None
    files: DatasetFiles = field(repr=False, compare=False)

    @property
    def message(self) -> str | None:
        """What went wrong last, for the owner, as it may name paths; None where the last run went well."""
        return self.last.message if self.last is not None and self.failures else None

    def when(self, now: Timestamp) -> str:
        """The next run for people: `due`, `in 5 minutes`, `retry in 4 minutes after 3 failures`."""
        seconds = (self.next.epoch_ms - now.epoch_ms) // 1_000
        text = f"in {length(seconds)}" if seconds > 0 else "now" if self.failures else "due"
        return f"retry {text} after {counted(self.failures, 'failure')}" if self.failures else text


# Runs.


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run says of itself."""

    outcome: str
    message: str | None = None


class Run(Protocol):
    """Pulls a dataset, in several threads at the same time."""

    def __call__(self, dataset_id: str, lock: int) -> Finished | None:
        """How it ended, None if it was ended; a child process inherits the lock."""

    def end(self) -> None:
        """End what runs."""


_COMMAND = "from odfchain.cli.main import run; run()"
_OUTPUT_BYTES = 65_536
_MESSAGE = 300


class PullCommand:
    """Runs `odfchain pull` in child processes, which Ctrl-C does not reach."""

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._over = threading.Event()

    def __call__(self, dataset_id: str, lock: int) -> Finished | None:
        """As `Run`."""
        command = [sys.executable, "-P", "-c", _COMMAND, "-q", "-w", str(self._files.root.parent)]
        command += ["pull", dataset_id, "-o", "ndjson"]
        env = dict(os.environ)
        if self._files.config.engine == EngineConfig():
            env["CI"] = "1"  # no session stays behind, unless somebody wrote how long
        with self._lock:
            if self._over.is_set():
                return None
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                pass_fds=(lock,), start_new_session=True,
            )  # fmt: skip
            self._processes.add(process)
        output = b""
        with process:
            assert process.stdout is not None  # noqa: S101 - a pipe
            while piece := os.read(process.stdout.fileno(), _OUTPUT_BYTES):
                output = (output + piece)[-_OUTPUT_BYTES:]
        with self._lock:
            self._processes.discard(process)
        if process.returncode < 0 and self._over.is_set():
            return None
        return _finished(process.returncode, output.decode(errors="replace").splitlines())

    def end(self) -> None:
        """SIGTERM to all of them: their commits are whole, or not there."""
        with self._lock:
            self._over.set()
            for process in self._processes:
                process.terminate()


def _finished(code: int, lines: list[str]) -> Finished:
    found = next(filter(None, map(json_object, reversed(lines))), {})
    if code == 0 and isinstance(found.get("status"), str):
        return Finished(one_line(found["status"], _MESSAGE))
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    return Finished(FAILED, one_line((errors or lines[-1:] or [f"ended with {code}"])[0], _MESSAGE))


# The schedule of a workspace.

_VERSION = 1
_STATE_BYTES = 64 << 20
_OUTCOMES, _ALL_OUTCOMES = 50, 100_000
# Settings change, other processes end, clocks are turned: after so long it looks again.
_LOOK_SECONDS = 60.0
_GRACE_SECONDS = 60.0
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Schedule:
    """Pulls the datasets of a workspace when `pull.every` of each says so; state is kept over restarts.

    A dataset is pulled once at a time, whichever processes have schedules. `only` are the names of those that
    this one pulls. `said` gets a sentence about what is damaged, `ended` every outcome.
    """

    def __init__(
        self, root: Path, *, only: Collection[str] | None = None,
        now: Callable[[], Timestamp] = Timestamp.now, run: Run | None = None, parallel: int = 2,
        said: Callable[[str], object] = lambda _: None, ended: Callable[[Planned], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._files = WorkspaceFiles.find(root, connect)
        self._path = self._files.root / "schedule.json"
        self._only, self._now, self._parallel = only, now, parallel
        self._run: Run = run or PullCommand(self._files)
        self._said, self._ended = said, ended
        self._mutex = threading.Lock()
        self._running: set[str] = set()
        self._settings: dict[Path, tuple[fsio.FileState, Recurrence | None, str]] = {}

    # --- what is known -----------------------------------------------------------------------------

    def state(self) -> list[Planned]:
        """Every dataset with a schedule, in the order of their next runs; nothing is changed."""
        return self._mine(self._planned(self._load(), self._now())[0])

    def due(self) -> list[Planned]:
        """Those whose time has come and that do not run here, the longest overdue first."""
        now = self._now()
        return [each for each in self.state() if each.next <= now and each.id not in self._running]

    def outcomes(self, dataset_id: str) -> list[Outcome]:
        """The last runs of a dataset, newest first; at most fifty, and fewer beyond 2,000 datasets."""
        with contextlib.suppress(ManifestError):
            return list(from_tree(tuple[Outcome, ...], self._load().get(dataset_id, {}).get("outcomes", [])))
        return []

    def _planned(self, kept: dict[str, Any], now: Timestamp) -> tuple[list[Planned], bool]:
        # `kept` gets what has to be kept, so that it stays the same from now on
        found, changed = [], False
        for files, every, key in self._scheduled():
            last = None
            before = self._standing(kept, key)
            standing = settled(before, every, key, now)
            if standing != before:
                kept.setdefault(key, {})["standing"], changed = to_tree(standing), True
            with contextlib.suppress(ManifestError, LookupError, TypeError):
                last = from_tree(Outcome, kept[key]["outcomes"][0])
            found.append(
                Planned(
                    id=key, dataset=str(files.alias), every=str(every), next=next_run(standing, every, key),
                    failures=standing.failures, last=last, files=files,
                )
            )  # fmt: skip
        return sorted(found, key=lambda each: each.next), changed

    def _mine(self, found: list[Planned]) -> list[Planned]:
        only = self._only
        return [each for each in found if only is None or each.dataset in only or each.id in only]

    def _scheduled(self) -> Iterator[tuple[DatasetFiles, Recurrence, str]]:
        for files in self._files.local_datasets():
            path, every, key = config_path(files), None, ""
            try:
                state = fsio.file_state(path.stat())
            except OSError:
                continue
            if path not in self._settings or self._settings[path][0] != state:
                try:
                    if (found := (read_config(files).pull or OwnPull()).every) is not None:
                        every, key = found, str(files.id)
                except OdfchainError as error:  # a damaged dataset must not stop the others
                    self._said(f"{files.alias}: {error}")
                self._settings[path] = state, every, key
            _, every, key = self._settings[path]
            if every is not None:
                yield files, every, key

    # --- the file ----------------------------------------------------------------------------------

    def _load(self) -> dict[str, Any]:
        data = fsio.read_start(self._path, _STATE_BYTES + 1)
        if data is None:
            return {}
        tree = json_object(data) if len(data) <= _STATE_BYTES else {}
        kept = tree.get("datasets")
        if tree.get("version") == _VERSION and isinstance(kept, dict):
            return {key: each for key, each in kept.items() if isinstance(each, dict)}
        self._said(f"{self._path} is damaged, or of another version: schedules begin anew")
        return {}

    def _standing(self, kept: dict[str, Any], key: str) -> Standing | None:
        try:
            return from_tree(Standing, kept[key]["standing"]) if key in kept else None
        except (ManifestError, LookupError):
            self._said(f"{self._path}: {key} is damaged: its schedule begins anew")
            return None

    def _settled(self, change: Callable[[dict[str, Any]], object] | None = None) -> list[Planned]:
        with fsio.locked(self._files.root / "schedule.lock"):
            kept = self._load()
            if change is not None:
                change(kept)
            found, changed = self._planned(kept, self._now())
            if changed or change is not None:
                kept = {each.id: kept[each.id] for each in found}
                text = json.dumps({"version": _VERSION, "datasets": kept})
                fsio.replace_file(self._path, text.encode(), mode=0o600)
        return self._mine(found)

    # --- the work ----------------------------------------------------------------------------------

    def run_until(self, stop: threading.Event) -> None:
        """Pull what is due, once, until the event is set; returns when the present commits have ended.

        What takes longer than a minute then, or a second Ctrl-C, is ended: it runs again the next time.
        """
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="schedule") as pool:
            workers = [pool.submit(self._work, stop) for _ in range(self._parallel)]
            for each in workers:
                each.add_done_callback(lambda _: stop.set())
            try:
                stop.wait()
            finally:
                stop.set()
                try:
                    wait(workers, _GRACE_SECONDS)
                finally:
                    self._run.end()
        for each in workers:
            each.result()

    def _work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                seconds = self._step()
            except OdfchainError as error:
                self._said(str(error))
                seconds = _LOOK_SECONDS
            if seconds:
                stop.wait(seconds)

    def _step(self) -> float:
        # runs one that is due, or says for how long there is none [s]
        taken = self._taken()
        if isinstance(taken, float):
            return taken
        planned, lock = taken
        try:
            self._pull(planned, lock)
        finally:
            os.close(lock)
            self._running.discard(planned.id)
        return 0

    def _taken(self) -> tuple[Planned, int] | float:
        seconds = _LOOK_SECONDS
        with self._mutex:
            found, now = self._settled(), self._now()
            for planned in found:
                if planned.id in self._running:
                    continue
                if planned.next > now:
                    return min(seconds, (planned.next.epoch_ms - now.epoch_ms) / 1_000)
                path = planned.files.folder / "info" / "pulling"
                with fsio.storage_errors(path):
                    lock = os.open(path, _LOCK, 0o600)
                # who had the lock before may have made this run
                if fsio.lock_at_once(lock) and planned in self._settled():
                    self._running.add(planned.id)
                    return planned, lock
                os.close(lock)
        return seconds

    def _pull(self, planned: Planned, lock: int) -> None:
        key, begun = planned.id, self._now()
        finished = self._run(key, lock)
        if finished is None:
            return
        ended, head = self._now(), None
        with contextlib.suppress(OdfchainError):  # which the run has said
            head = str(planned.files.chain.head())
        outcome = Outcome(
            begun=begun, seconds=max(0, ended.epoch_ms - begun.epoch_ms) / 1_000, outcome=finished.outcome,
            message=finished.message, head=head,
        )  # fmt: skip

        def record(kept: dict[str, Any]) -> None:
            standing = advanced(self._standing(kept, key) or Standing(done=begun), outcome, ended)
            before = kept.get(key, {}).get("outcomes")
            outcomes = [to_tree(outcome), *(before if isinstance(before, list) else [])]
            kept[key] = {"standing": to_tree(standing)}
            kept[key]["outcomes"] = outcomes[: max(1, min(_OUTCOMES, _ALL_OUTCOMES // len(kept)))]

        for each in self._settled(record):
            if each.id == key:
                self._ended(each)
