"""Corrections: some columns of some rows, by their key, as a block of changes.

Any root dataset whose rows have a primary key can be corrected, also one that is polled or takes full lists
only. What is not named stays as it is, the event time too. Nothing is recorded for values that are there
already. Only the rows that are named are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.branch.cell_text import tree_of
from odfchain.branch.correction_files import GivenRows, Wanted, check_distinct, place, read_given
from odfchain.branch.looked_up_rows import rows_of_keys
from odfchain.branch.recording import ChangeOutcome, stage_changes
from odfchain.branch.row_diff import RowDiff, changed, either, key_columns, key_text
from odfchain.branch.written_rows import rows_of_changes
from odfchain.codec.arrow import nullable, slice_schema
from odfchain.digest.row_hash import Numbers
from odfchain.errors import BadInputError, GuardError, NothingToCommitError, UsageError
from odfchain.model.enums import DatasetKind
from odfchain.model.timestamp import Timestamp
from odfchain.repo.commit import CommitCheck
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.watermark import ALLOW_FUTURE
from odfchain.slices.reader import fitted
from odfchain.text import one_line

ALLOW_NEW = "--allow-new"
_SHOWN = 5
"""Keys that a message names [count]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """What is asked for."""

    files: tuple[Path, ...] = ()
    """Keys, and the columns to change."""
    remove: tuple[Path, ...] = ()
    """Keys whose rows are taken back; other columns are not looked at."""
    allow_new: bool = False
    """Whether keys that are not recorded are added."""
    form: str | None = None
    """One of `correction_files.FORMS`; by default the names of the files say it."""
    system_time: Timestamp | None = None


def correct(
    dataset: DatasetFiles,
    corrections: Corrections,
    *,
    bound: Callable[[Timestamp], Timestamp | None] = lambda _: None,
    check: CommitCheck | None = None,
) -> ChangeOutcome:
    """Commit corrections on the reference that the dataset is opened on, if anything differs.

    The watermark stays within `bound`, given the system time.

    Raises:
        UsageError: it is derivative, has no rows or no primary key, or no file is given.
    """
    state = DatasetState.read(dataset.chain)
    wanted = _wanted(dataset, state)
    files = [read_given(path, wanted, corrections.form) for path in corrections.files]
    gone = [_keys_only(read_given(path, wanted, corrections.form), wanted) for path in corrections.remove]
    if not files and not gone:
        raise UsageError("name the files of corrections, or --remove a file of keys")
    check_distinct([*files, *gone], wanted)
    system_time = state.next_system_time(corrections.system_time)
    _check_future(files, wanted.event_time, bound(system_time))
    diff = _diff(dataset, state, wanted, files, gone, system_time, allow_new=corrections.allow_new)
    with dataset.staging() as staging:
        try:
            recorded = stage_changes(
                dataset, state, rows_of_changes(diff, state.vocabulary), staging=staging,
                system_time=system_time, bound=bound(system_time),
            )  # fmt: skip
        except NothingToCommitError:
            return ChangeOutcome.nothing(state)
        return recorded.committed(dataset, state, system_time, check)


def _wanted(dataset: DatasetFiles, state: DatasetState) -> Wanted:
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(
            f"{dataset.alias} is a derivative dataset: its data are computed",
            hint="correct the inputs that it is computed from",
        )
    schema = state.schema
    if schema is None:
        raise UsageError(f"{dataset.alias} has no rows yet, so there is nothing to correct")
    if not state.primary_key:
        raise UsageError(
            f"{dataset.alias} has no primary key, so nothing says which row a correction is of",
            hint="a merge strategy with a key, or `primaryKey` in CONSTRAINTS.yaml, gives it one",
        )
    *system, time = state.vocabulary.columns
    columns = pa.schema([field for field in slice_schema(schema) if field.name not in system])
    return Wanted(columns, state.primary_key, time)


def _keys_only(given: GivenRows, wanted: Wanted) -> GivenRows:
    return GivenRows(given.file, given.rows.select(list(wanted.key)), {})


def _diff(
    dataset: DatasetFiles,
    state: DatasetState,
    wanted: Wanted,
    files: Sequence[GivenRows],
    gone: Sequence[GivenRows],
    system_time: Timestamp,
    *,
    allow_new: bool,
) -> RowDiff:
    """From the recorded rows to the corrected ones."""
    every = [*files, *gone]
    columns = nullable(wanted.data)
    values = pa.concat_tables([fitted(each.rows, columns) for each in every])
    before, had = rows_of_keys(dataset, state, values, wanted.key, columns)
    stays = np.arange(values.num_rows) < sum(map(len, files))
    _check_known(dataset, every, had, stays, wanted, allow_new=allow_new)
    new = stays & ~had
    after = before
    for index, column in enumerate(columns):
        said = values.column(column.name)
        given = np.concatenate([each.given.get(column.name, np.zeros(len(each), bool)) for each in every])
        if column.name == wanted.event_time:
            now = pa.scalar(system_time.epoch_ms, pa.int64()).cast(pa.timestamp("ms", "UTC"))
            given &= said.is_valid().to_numpy()  # a missing event time is never a change
            said = said.fill_null(now.cast(column.type))
        if column.name in wanted.key:
            given = np.zeros(len(had), bool)  # 0.0 and -0.0 are one key: what is recorded stays
        chosen = either(given | new, pa.table([said], [column.name]), before.select([column.name]))
        after = after.set_column(index, column, chosen.column(0))
    _check_whole(after, every, new, wanted)
    diff = RowDiff(wanted.key, before, had, after, stays, key_columns(values, wanted.key))
    return diff.only(changed(diff))


def _check_future(files: Sequence[GivenRows], name: str, bound: Timestamp | None) -> None:
    """No event time that a file gives lies later than is believed."""
    if bound is None:
        return
    for each in files:
        if name not in each.rows.column_names:
            continue
        times = each.rows.column(name).cast(pa.timestamp("ms", "UTC"), safe=False)
        late = pc.fill_null(pc.greater(times.cast(pa.int64()), bound.epoch_ms), False).to_numpy()
        if late.any():
            row = int(late.argmax())
            time = tree_of(each.rows.column(name)[row])
            raise GuardError(
                f"{each.file}: row {row + 1:,}: the event time {time} is later than {bound}, the latest that "
                "is taken without asking",
                flag=ALLOW_FUTURE,
            )


def _check_known(
    dataset: DatasetFiles,
    files: Sequence[GivenRows],
    had: Numbers,
    stays: Numbers,
    wanted: Wanted,
    *,
    allow_new: bool,
) -> None:
    """What is removed is recorded, and so is what is corrected, unless new rows are allowed."""
    for unknown, removing in ((~had & ~stays, True), (~had & stays, False)):
        if not unknown.any() or (not removing and allow_new):
            continue
        at = np.flatnonzero(unknown)
        places = [place(files, number) for number in at[:_SHOWN]]
        named = [key_text(each.rows.select(wanted.key), row) for each, row in places]
        keys = "1 key is" if len(at) == 1 else f"{len(at):,} keys are"
        more = ", …" if len(at) > _SHOWN else ""
        problem = f"{keys} not recorded in {dataset.alias}: {'; '.join(named)}{more}"
        first = place(files, int(at[0]))[0].file
        if removing:
            raise BadInputError(f"{problem}; only what is there can be removed", file=first)
        raise GuardError(f"{first}: {problem}", flag=ALLOW_NEW)


def _check_whole(after: pa.Table, files: Sequence[GivenRows], new: Numbers, wanted: Wanted) -> None:
    """New rows have a value in each required column."""
    for column in wanted.data:
        missing = new & after.column(column.name).is_null().to_numpy()
        if not column.nullable and column.name not in wanted.key and missing.any():
            given, row = place(files, int(missing.argmax()))
            raise BadInputError(
                f"column `{one_line(column.name)}`: a new row needs a value", file=given.file, row=row + 1
            )
