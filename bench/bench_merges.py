"""Merging into a million recorded rows, beside Delta Lake's MERGE of the same files (package `deltalake`).

Both sides read the file, find what changed and commit it. They do not keep the same: a slice is appended to
the history and hashed, and corrections are recorded with the values they replace; Delta Lake rewrites the
files of its current state. Its in-process engine is compared with Spark as a user would have either.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keyed_rows
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Entry, Figure, in_turns, tell
from manifests import csv_step, push_manifest

from odfchain import Workspace

if TYPE_CHECKING:
    from odfchain.ingest.ingesting import IngestOutcome

ROWS = 1_000_000
WARM_UP_ROWS = 20_000
ROUNDS = 3
WARM_UP_ROUNDS = 2

READ = {"csv": csv_step(keyed_rows.COLUMNS), "parquet": "{kind: Parquet}"}
PRIMARY_KEY = f"primaryKey: [{', '.join(keyed_rows.KEY)}]"
SAME_KEY = " AND ".join(f"old.{n} = new.{n}" for n in keyed_rows.KEY)
DIFFERS = " OR ".join(f"(old.{n} IS DISTINCT FROM new.{n})" for n in keyed_rows.COMPARED)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to merge, as each side says it, with what must come out."""

    merge: str
    second: Callable[[int], pa.Table]
    counts: Callable[[int], dict[str, int]]
    delta: Callable[[Any], Any]
    """The clauses of the MERGE."""
    delta_counts: Callable[[int], dict[str, int]]


def _delta_snapshot(merger: Any) -> Any:
    changed = merger.when_matched_update_all(predicate=DIFFERS)
    return changed.when_not_matched_insert_all().when_not_matched_by_source_delete()


STRATEGIES = {
    "ledger": Strategy(
        merge=f"{{kind: Ledger, {PRIMARY_KEY}}}",
        second=keyed_rows.next_ledger,
        counts=keyed_rows.ledger_counts,
        delta=lambda merger: merger.when_not_matched_insert_all(),
        delta_counts=lambda rows: {"inserted": rows // 2, "updated": 0, "deleted": 0},
    ),
    "snapshot": Strategy(
        merge=f"{{kind: Snapshot, {PRIMARY_KEY}, compareColumns: [{', '.join(keyed_rows.COMPARED)}]}}",
        second=keyed_rows.next_snapshot,
        counts=keyed_rows.snapshot_counts,
        delta=_delta_snapshot,
        delta_counts=lambda rows: {"inserted": rows // 10, "updated": rows // 5, "deleted": rows // 10},
    ),
}


def write_inputs(folder: Path, strategy: Strategy, rows: int) -> None:
    """Both files of one strategy, in both formats."""
    for name, table in (("first", keyed_rows.recorded(rows)), ("second", strategy.second(rows))):
        keyed_rows.write_csv(table, str(folder / f"{name}.csv"))
        pq.write_table(table, folder / f"{name}.parquet")


def ours(workspace: Workspace, folder: Path, strategy: Strategy, rows: int, form: str) -> Entry:
    """The second file into a dataset that holds the first; the operations are checked."""

    @contextmanager
    def run() -> Iterator[Callable[[], object]]:
        (dataset,) = workspace.add(push_manifest("merged", READ[form], strategy.merge))
        dataset.ingest([folder / f"first.{form}"])
        found: list[IngestOutcome] = []
        yield lambda: found.append(dataset.ingest([folder / f"second.{form}"]))
        assert {op: n for op, n in found[0].inputs[0].operations.items() if n} == strategy.counts(rows)
        workspace.delete("merged")

    return run


def delta(folder: Path, strategy: Strategy, rows: int, form: str) -> Entry:
    """The second file into a Delta Lake table that holds the first; the counts are checked."""
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415 - may not be installed

    @contextmanager
    def run() -> Iterator[Callable[[], object]]:
        table = folder / "delta"
        write_deltalake(str(table), pq.read_table(folder / "first.parquet"))
        found: list[dict[str, Any]] = []

        def merge() -> None:
            path = str(folder / f"second.{form}")
            source = keyed_rows.read_csv(path) if form == "csv" else pq.read_table(path)
            merger = DeltaTable(str(table)).merge(source, SAME_KEY, source_alias="new", target_alias="old")
            found.append(strategy.delta(merger).execute())

        yield merge
        counts = {op: found[0][f"num_target_rows_{op}"] for op in ("inserted", "updated", "deleted")}
        assert counts == strategy.delta_counts(rows)
        shutil.rmtree(table)

    return run


def entries(workspace: Workspace, folder: Path, strategy: Strategy, rows: int) -> dict[str, Entry]:
    """Ours from both formats, and Delta Lake's where it is installed."""
    write_inputs(folder, strategy, rows)
    found = {form: ours(workspace, folder, strategy, rows, form) for form in READ}
    if importlib.util.find_spec("deltalake"):
        found |= {f"delta {form}": delta(folder, strategy, rows, form) for form in READ}
    return found


def bench_merges() -> Iterator[Figure]:
    """Ledger and snapshot merges, as multiples of Delta Lake's."""
    with tempfile.TemporaryDirectory() as root, Workspace.init(root) as workspace:
        folder = Path(root)
        for name, strategy in STRATEGIES.items():
            tell(f"{name}: warming up on a small table")
            in_turns(entries(workspace, folder, strategy, WARM_UP_ROWS), WARM_UP_ROUNDS)
            tell(f"{name}: merging into {ROWS:,} rows that are made anew each time, {ROUNDS} times")
            took = in_turns(entries(workspace, folder, strategy, ROWS), ROUNDS)
            out = f"{sum(strategy.counts(ROWS).values()):,} rows out"
            for form in READ:
                peer = took.get(f"delta {form}")
                if peer is None:
                    remark = f"{out}; nothing to compare with: deltalake is not installed"
                    yield Figure(f"{name} merge from {form}", took[form], "s", remark=remark)
                else:
                    remark = f"{took[form]:.1f} s against {peer:.1f} s, {out}"
                    yield Figure(
                        f"{name} merge from {form} ÷ Delta Lake MERGE", took[form] / peer, "×", remark=remark
                    )
