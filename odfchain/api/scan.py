"""Records that are read when they are asked for, as of one block."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.view import Readable, View
from odfchain.api.workspace import Workspace
from odfchain.errors import PointNotFoundError, UsageError
from odfchain.lazy import pa
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.query.resolved_tables import CheckedSlices, Pin, Pins, StateOf
from odfchain.query.results import ArrowRows, QueryResult, SlicesRead
from odfchain.spark.known_errors import OwnErrors, with_own_errors
from odfchain.text import one_line, table_html
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.options import Time, as_time
from odfchain.workspace.points import block_at, is_referenced, opened_at
from odfchain.workspace.read_slices import KeptFooters, columns_of, read_all, read_tail
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.slices.conditions import Where
    from odfchain.transfer.reading import Origin
    from odfchain.workspace.dataset_files import DatasetFiles


At = Multihash | int | Time | None
"""A moment of a dataset: a block by its hash or sequence number, a system time, or None for now."""

_PREVIEW_ROWS = 10
_UTC = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


@dataclass(frozen=True, slots=True)
class Scan(ArrowRows, OwnErrors):
    """The records of a dataset up to one block (or those in force then), as recorded, in order of offset.

    Nothing is read before one of the `to_…` methods is called; then only the slices up to that block are.
    What is committed later does not change it.
    """

    dataset: Readable
    columns: tuple[str, ...] | None
    """None is all, system columns included."""
    summary: DatasetState
    """The dataset's state as of the block."""
    key: tuple[str, ...] | None = None
    """Only what is in force by this key; None is every record."""
    event_time: Timestamp | None = None
    """For the state at this event time, by all that is recorded up to the block."""
    where: Where | None = None
    """Only records of which it is true; slices without any are not read."""

    @property
    def slices(self) -> SlicesRead:
        """How many slices the condition leaves to be read, by what their footers report."""
        everything = self.summary.slices()
        return SlicesRead(len(self._needed(everything)), len(everything))

    def _needed(self, everything: list[SliceRef], *, signed_nan: bool = True) -> list[SliceRef]:
        if self.where is None:
            return everything
        kept = KeptFooters(self.dataset._files)
        return kept.needed(everything, self.where.condition, signed_nan=signed_nan)

    def to_arrow(self) -> pa.Table:
        """All records with the declared types; held in memory. Starts no JVM."""
        files = self.dataset._files
        if self.key is None and self.where is not None:
            return self._filtered(self.where)
        # before the first data no row is in force, whatever the key
        if self.key is None or self.summary.schema is None:
            return read_all(files, self.summary, self.columns)
        from odfchain.api.queries import checked_slices

        checked = checked_slices(self.dataset._workspace)
        table = Pin(self.dataset.label, files, self.summary, StateOf(self.event_time, self.key))
        found = table.in_force(checked, self.columns)
        checked.keep()
        return found

    def _filtered(self, where: Where) -> pa.Table:
        from odfchain.query.embedded import RowFilter

        names = columns_of(self.summary, self.columns).names
        read, files = list(dict.fromkeys([*names, *where.columns])), self.dataset._files
        chosen = RowFilter(where)
        # of no slice: says what is wrong with the condition, wherever none is needed
        cuts = [[], *([ref] for ref in self._needed(self.summary.slices()))]
        parts = [chosen.of(read_all(files, self.summary, read, cut)) for cut in cuts]
        return pa.concat_tables(parts).select(names)

    def to_spark(self) -> DataFrame:
        """The records as a Spark DataFrame; unsigned columns appear as the next larger signed type."""
        return self.on_spark(self.dataset._workspace.session())

    def on_spark(self, session: SparkSession, *, plain_offset: bool = False) -> DataFrame:
        """As `to_spark`, in a session of the caller's; with `plain_offset` offsets are `bigint`."""
        from odfchain.query.on_spark import rows_on_spark, with_plain_offset
        from odfchain.slices.conditions import parse_where
        from odfchain.spark.query_refusals import translate_spark_errors
        from odfchain.spark.types import col

        projection, where = None if self.key is None else StateOf(self.event_time, self.key), self.where
        table = Pin(str(self.dataset.alias), self.dataset._files, self.summary, projection)
        if where is not None:
            if session.conf.get("spark.sql.session.timeZone") not in _UTC:
                where = parse_where(where.text, table.schema, utc=False)
            table = dataclasses.replace(table, condition=where.condition)
        found = rows_on_spark(session, table, CheckedSlices())
        if where is not None:
            with translate_spark_errors("the condition", sql=where.text):
                found = found.where(f"({where.text}\n)")
        if plain_offset:
            found = with_plain_offset(found, table)
        return found if self.columns is None else found.select(*[col(name) for name in self.columns])

    def __repr__(self) -> str:
        if self.key is None:
            return f"<scan of {self._described()}>"
        then = f" at {self.event_time}" if self.event_time else ""
        return f"<state{then} of {self._described()}, by {', '.join(self.key) or 'all values'}>"

    def _repr_html_(self) -> str:
        if self.key is not None or self.where is not None:
            table = self.to_arrow()
            table = table.slice(max(0, len(table) - _PREVIEW_ROWS))
        else:
            table = read_tail(self.dataset._files, self.summary, _PREVIEW_ROWS)
            table = table if self.columns is None else table.select(list(self.columns))
        rows = [list(row.values()) for row in table.to_pylist()]
        return table_html(table.schema.names, rows, f"{self!r}, the newest")

    def _described(self) -> str:
        block = self.summary.head_block
        columns = "" if self.columns is None else f", columns {', '.join(self.columns)}"
        where = "" if self.where is None else f", where {one_line(self.where.text, 80)}"
        return (
            f"{self.dataset.alias}: {self.summary.record_count:,} records "
            f"up to block {block.sequence_number} ({block.system_time}){columns}{where}"
        )


def head_at(dataset: DatasetFiles, at: At) -> Multihash | None:
    """The block that was the head at a moment; None is the present one."""
    if at is None:
        return None
    if isinstance(at, str) and not at[:1].isdecimal():
        at = Multihash.parse(at)
    return block_at(dataset, at if isinstance(at, Multihash | int) else as_time(at))


# Datasets that are read in place, without a workspace.


@with_own_errors
def open_dataset(
    url: str,
    dataset: str | None = None,
    *,
    at: At = None,
    verify: bool = True,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    require_signature: bool = False,
) -> View:
    """A dataset to be read without a workspace: every block checked now, every slice hashed when it is read.

    `url` is of a folder, server or bucket (`file http https s3 gs az`), or a path: of a dataset's folder, or
    of a workspace that has `dataset`. `at` is as in `Dataset.scan`. With `cache_dir` slices that were brought
    stay there, by name; `verify=False` believes those, and the slices of a folder, without hashing them.

    Raises:
        InvalidIdError, ObjectNotFoundError, PointNotFoundError: `at` is no block of it, and no time.
    """
    from odfchain.transfer.reading import Origin

    cache = None if cache_dir is None else str(Path(cache_dir).expanduser().absolute())
    origin = Origin.of(str(url), dataset, token=token, cache=cache)
    brought = Brought(origin, verify=verify)
    try:
        files = origin.chain(brought.path, require_signature=require_signature)
        block = _part_of_chain(files, head_at(files, at))
        workspace = Workspace(WorkspaceFiles.init(brought.path, exists_ok=True))
        return View(workspace, opened_at(files, block), brought)
    except BaseException:
        brought.remove()
        raise


def _part_of_chain(files: DatasetFiles, block: Multihash | None) -> Multihash:
    newest = DatasetState.read(files.chain).head
    if block is not None and not is_referenced(files, block, head=newest):
        raise PointNotFoundError(f"{files.alias}: block {block} is not in its chain")
    return block or newest


class Brought:
    """The private folder of a view of a dataset elsewhere; removed with the last reference to this object."""

    def __init__(self, origin: Origin, *, verify: bool) -> None:
        from odfchain.transfer.reading import private_folder

        self._origin, self.verify = origin, verify
        opened = contextlib.ExitStack()
        self.path = opened.enter_context(private_folder())
        self._gone = weakref.finalize(self, opened.close)

    def bring(self, files: DatasetFiles, state: DatasetState, progress: Progress) -> None:
        """The slices of a state are here."""
        from odfchain.transfer.reading import slice_objects

        self._origin.bring(files, slice_objects(state), verify=self.verify, progress=progress)

    def remove(self) -> None:
        """Remove the folder."""
        self._gone()


# Datasets as DataFrames of a Spark session that is not the workspace's.

_ROOT = ".odfchain"
# Datasets opened without a workspace: their slices stay as long as the session may read them.
_kept: weakref.WeakKeyDictionary[SparkSession, list[Scan]] = weakref.WeakKeyDictionary()


def native_frame(
    session: SparkSession, source: Any, *, state: bool, at: At, columns: Sequence[str] | None
) -> DataFrame:
    """Implements `odfchain.spark.read`; errors as there."""
    opened = _found(source, at)
    if not isinstance(opened, View):
        found = opened.scan(columns, at=at)
    else:
        if at is not None and opened is source:
            raise UsageError("a view is of one block already", hint="give `at` to what makes the view")
        found = opened.scan(columns)
        _kept.setdefault(session, []).append(found)
    if state:
        found = dataclasses.replace(found, key=found.summary.primary_key)
    return found.on_spark(session, plain_offset=True)


def _found(source: Any, at: At) -> Readable:
    if isinstance(source, Readable):
        return source
    if not isinstance(source, str | Path):
        raise UsageError(
            f"expected a dataset or the path of one, got {type(source).__name__}",
            hint="give a dataset, a URL, or a path such as folder/of/the/workspace/NAME",
        )
    # a path below a workspace's folder names a dataset of it
    if "://" not in str(source):
        path = Path(source).absolute()
        for folder in path.parents:
            # what is within the folder of a workspace is a path of files, not of names
            if (folder / _ROOT).is_dir() and not path.exists():
                return Workspace.open(folder)[path.relative_to(folder).as_posix()]
    return open_dataset(str(source), at=at)


# `DATASET@POINT` for commands: the block, its slices, and its rows as they are exported.


def pinned(workspace: Workspace, text: str) -> Pin:
    """The dataset and block that a text names; unlike in SQL, names ignore case."""
    name, at, point = text.partition("@")
    return Pins(workspace._files).pin(f"{workspace[name].alias}{at}{point}")


def exported(workspace: Workspace, text: str, *, state: bool = False) -> tuple[QueryResult, int | None]:
    """The records at a point, or those in force, by offset, read when asked for; their number, if known."""
    from odfchain.api.queries import embedded
    from odfchain.query.sql_text import Query

    pin = pinned(workspace, text)
    # slices are read one after the other: rows come as they were recorded, and nothing has to be sorted
    engine = embedded(workspace, partitions=1)
    pins = Pins(workspace._files, given={pin.name: (pin.id, pin.block_hash)})
    table = f"state('{pin.name}')" if state else f'"{pin.name}"'  # no name and no point has a quote
    found = engine.run(Query(f"select * from {table}", pins))  # noqa: S608 - as is said above
    return found, None if state else pin.state.record_count
