"""Diffs by Spark are those of this process: the same function, on ranges of the keys."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.branches import intervals as executor
from odfchain.branches.intervals import Engine, Interval, KeyResult, MergedColumns, _bounds, _ranges, compute
from odfchain.branches.row_diff import key_columns
from odfchain.errors import ChainError
from odfchain.slices.ordering import order_of
from odfchain.slices.writer import SliceSpec, write_slice
from odfchain.spark.executor_files import give_files
from odfchain.spark.session import SparkEngine
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.branch_histories import between, head_of, random_histories
from tests.kit.branch_rows import branch, keyed, record
from tests.kit.folder_files import FolderFiles
from tests.kit.support import no_session


def on_spark(engine: SparkEngine) -> Engine:
    return Engine(lambda: engine.session, above=0)


def test_equal_keys_are_in_one_range_and_ranges_follow_each_other() -> None:
    rng = np.random.default_rng(7)
    numbers = rng.choice([None, 0.0, -0.0, np.nan, 1.0, 2.0, 3.5], 400).tolist()
    texts = rng.choice([None, "", "a", "é", "z"], 400).tolist()
    keys = pa.table(
        {"k": pa.array(numbers, pa.float64(), from_pandas=False), "n": pa.array(texts, pa.string())}
    )
    bounds = _bounds([keys.slice(0, 100), keys.slice(100)], ["k", "n"], 9)
    ranges = _ranges(keys, bounds)
    assert len(set(ranges)) > 5
    # pairs of what is compared, as keys are
    alike = list(zip(*(column.to_pylist() for column in key_columns(keys, ["k", "n"]).columns), strict=True))
    seen = {repr(pair): number for pair, number in zip(alike, ranges, strict=True)}
    assert all(seen[repr(pair)] == number for pair, number in zip(alike, ranges, strict=True))


def added(tables: Sequence[pa.Table], key: tuple[str, ...]) -> KeyResult:
    """Rows to write, in order of key, and something to collect."""
    (rows,) = tables
    found = rows.take(pa.array(order_of(rows, key)))
    return KeyResult(found, found["k"].to_pylist())


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_what_is_written_does_not_depend_on_the_engine(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """Also where executors see no folder of the driver, and find slices in a store."""
    session = engine.session.newSession()
    monkeypatch.setattr(executor, "_RANGE_BYTES", 1_000)
    with odf.init(tmp_path / "workspace") as workspace:
        dataset = keyed(workspace)
        fork = head_of(dataset)
        for block in range(3):
            upto = record(
                dataset,
                [("+A", block, str(key * 7919 % 1000), "x", str(block)) for key in range(block, 300, 3)],
            )
        state = DatasetState.read(dataset.chain)
        view, written = MergedColumns.of(state), []
        if apart:
            files = FolderFiles(str(tmp_path / "store"))
            for ref in state.slices():
                name = ref.slice.physical_hash
                files.put(dataset.data.path(name), dataset.key("data", name))
            give_files(session, files)
        for which in (Engine(no_session), Engine(lambda: session, above=0)):
            folder = tmp_path / str(which.above)
            folder.mkdir()
            function = functools.partial(added, key=("k",))
            part = Interval(dataset, fork, upto)
            found = compute(
                [part], view, ["k"], function, engine=which, private=functools.partial(Path, folder)
            )
            facts = write_slice(found.batches(), SliceSpec.of(state.schema, state.vocabulary, 0, 0, folder))
            notes = [key for part in found.notes for key in part]
            written.append((facts.physical_hash, facts.logical_hash, facts.rows, notes))
    assert written[0] == written[1]
    assert len(found.notes) > 1
    assert not apart or not [*(tmp_path / "store" / "staging").iterdir()]


def test_what_goes_wrong_in_a_task_is_said_as_it_is_here(tmp_path: Path, engine: SparkEngine) -> None:
    with odf.init(tmp_path / "workspace") as workspace:
        dataset = keyed(workspace)
        record(dataset, [("+A", 1, "1", "x", "y")])
        fix = branch(dataset, "fix")
        record(fix, [("-C", 1, "1", "lie", "y"), ("+C", 1, "1", "x", "z")])
        record(dataset, [("-C", 1, "1", "x", "y"), ("+C", 1, "1", "q", "y")])
        with pytest.raises(ChainError, match="k=1") as caught:
            between(dataset, head_of(dataset), head_of(fix), engine=on_spark(engine))
        assert caught.value.exit_code == 6
        assert "verify" in str(caught.value.hint)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_diff_by_spark_is_what_brute_force_finds(tmp_path: Path, engine: SparkEngine, seed: int) -> None:
    random_histories(tmp_path, seed, 4, on_spark(engine))
