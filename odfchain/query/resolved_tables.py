"""Names in a query resolved to datasets at blocks: once, before anything else is read.

    NAME[@POINT]      an alias or a `did:odf` id, exactly as it is written; POINT as in
    `odfchain.workspace.points`

A block is one of the chain, or of a branch: answers about others could not be computed again elsewhere.
What is committed while a query runs does not change its answer: the head of each dataset is read at the
first name, and every name without a point gets the block that was found then.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from odfchain import errors
from odfchain.branches.state_cache import StateCache, read_cached_state
from odfchain.lazy import pa
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias, parse_ref
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.text import json_object, one_line
from odfchain.workspace import points
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.merge_record import FetchedBranches
from odfchain.workspace.read_slices import KeptFooters, columns_of, read_state
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.branches.diff import Comparison
    from odfchain.branches.row_history import RowHistory
    from odfchain.slices.skipping import Condition


@dataclass(frozen=True, slots=True)
class StateOf:
    """The rows in force: at an event time or now, by a key or the recorded one."""

    event_time: Timestamp | None = None
    key: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A dataset as of one block, as a table of a query."""

    name: str
    """As the query writes it, with its point."""
    dataset: DatasetFiles
    state: DatasetState
    """The dataset's state as of the block."""
    projection: StateOf | None = None
    """None is every record."""
    condition: Condition | None = None
    """A condition that all requested rows fulfil, if any: slices without such rows are not read."""
    signed_nan: bool = False
    """As in `odfchain.slices.skipping.may_match`."""

    @property
    def alias(self) -> DatasetAlias:
        """The local name."""
        return self.dataset.alias

    @property
    def id(self) -> DatasetId:
        """The dataset's identity."""
        return self.dataset.id

    @property
    def block_hash(self) -> Multihash:
        """The block."""
        return self.state.head

    @property
    def sequence_number(self) -> int:
        """The block's number."""
        return self.state.head_block.sequence_number

    def __str__(self) -> str:
        text = str(self.block_hash)
        return f"{self.alias} @ {self.sequence_number} ({text[:8]}…{text[-4:]})"

    # The table: records or rows in force, from checked slices. `state(name[, event_time[, key]])` has one
    # definition for all engines (`odfchain.slices.state`): they get rows that are decided already.

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The datasets that are read, each at its block."""
        return (self,)

    @property
    def schema(self) -> pa.Schema:
        """The columns as declared at the block; none before the first data."""
        return columns_of(self.state, None)

    @property
    def has_floats(self) -> bool:
        """True if it has a floating-point number anywhere, so that statistics of files leave NaN out."""
        return any(_has_floats(column.type) for column in self.schema)

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of a state; () is all values."""
        given = self.projection.key if self.projection else None
        if given is None:
            try:
                return self.state.primary_key
            except errors.SchemaError as error:
                hint = f"name it as the third argument: state('{self.alias}', NULL, 'column, column')"
                raise errors.QueryError(f"state of {self.alias}: {error.message}", hint=hint) from None
        try:
            columns_of(self.state, given)
        except errors.SchemaError as error:
            raise errors.QueryError(f"state of {self.alias}: {error.message}") from None
        return given

    def slices(self, checked: CheckedSlices) -> list[SliceRef]:
        """The slices that have to be read, oldest first; errors as `paths`.

        Of a state only what a condition says of the key counts: another slice may have a newer row of it.
        """
        refs, condition = checked.slices(self.state), self.condition
        if condition is None:
            return refs
        from odfchain.slices.footers import quoted
        from odfchain.slices.skipping import about

        dataset = self.dataset
        if self.projection is not None:
            condition = about(condition, [quoted(name) for name in self.key])
        located = checked.located(dataset)
        return KeptFooters(dataset).needed(refs, condition, locate=located, signed_nan=self.signed_nan)

    def paths(self, checked: CheckedSlices) -> list[Path]:
        """The files of `slices`; each one hashes to its name and may be decoded by whichever reader."""
        return [checked.path(self.dataset, ref.slice.physical_hash) for ref in self.slices(checked)]

    def in_force(self, checked: CheckedSlices, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a state as recorded, in order of offset, or some columns of them; held in memory."""
        time = self.projection.event_time if self.projection else None
        dataset, state = self.dataset, self.state
        if time is None and checked.remembers:
            located = checked.located(dataset)
            return read_cached_state(
                dataset, state, self.key, columns, cache=checked.states(dataset), locate=located
            )
        slices = [
            (checked.path(dataset, ref.slice.physical_hash), ref.slice.offset_interval)
            for ref in self.slices(checked)
        ]
        return read_state(dataset, state, self.key, columns, event_time=time, slices=slices)

    def rows(self, checked: CheckedSlices, wanted: Collection[str] | None = None) -> pa.Table:
        """As `in_force`, with the columns that queries see; those that are not `wanted` are null."""
        from odfchain.slices.reader import fitted

        schema = self.schema
        names = [name for name in schema.names if wanted is None or name in wanted]
        # without any column the number of rows is unknown
        found = self.in_force(checked, names or schema.names[:1])
        return fitted(found, pa.schema([field.with_nullable(True) for field in schema]))


def _has_floats(kind: pa.DataType) -> bool:
    from pyarrow import types as t

    return t.is_floating(kind) or any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


class Pins:
    """The datasets of one query, each pinned when it is first named."""

    def __init__(
        self, workspace: WorkspaceFiles, *, as_at: Timestamp | None = None,
        given: Mapping[str, tuple[DatasetId, Multihash]] | None = None,
    ) -> None:  # fmt: skip
        """`as_at` is the system time of every name without a point.

        `given` says what names mean, also where they are other names here: then no other name is known.
        """
        if as_at is not None:
            _check_past(as_at)
        self.workspace = workspace
        self.as_at = as_at
        self.given = given
        self._datasets: dict[str, DatasetFiles] = {}
        self._heads: dict[DatasetId, Multihash] = {}
        self._pins: dict[str, Pin] = {}
        # One for each name that the query reads, as it writes it; known once it is planned.
        self.named: tuple[Pin, ...] = ()

    def pin(self, text: str) -> Pin:
        """The dataset and block that `NAME[@POINT]` means."""
        if text not in self._pins:
            self._pins[text] = self._pin(text)
        return self._pins[text]

    def used(self, texts: Iterable[str]) -> tuple[Pin, ...]:
        """The pins of these names, each block of a dataset once, in order of name and number."""
        self.named = tuple(self.pin(text) for text in sorted(set(texts)))
        found = {(str(p.alias), p.sequence_number, str(p.block_hash)): p for p in self.named}
        return tuple(found[key] for key in sorted(found))

    def _pin(self, text: str) -> Pin:
        name, at, after = text.partition("@")
        if self.given is not None:
            return self._pin_given(text)
        dataset = self._dataset(name)
        head = self._head(dataset)
        if not at:
            block = head if self.as_at is None else points.block_at(dataset, self.as_at, head=head)
        else:
            try:
                point = points.parse_point(after)
                time = point.at if isinstance(point, points.OnBranch) else point
                if isinstance(time, Timestamp):
                    _check_past(time, text)
                block = points.block_at(dataset, point, head=head)
            except (errors.InvalidIdError, errors.PointNotFoundError) as error:
                raise errors.QueryError(f"`{one_line(text)}`: {error.message}", hint=error.hint) from None
            except errors.ObjectNotFoundError as error:
                raise errors.PointNotFoundError(error.message, hint=error.hint) from None
            if isinstance(point, points.OnBranch):
                dataset = points.on_branch(dataset, point.branch)
            elif isinstance(point, Multihash):
                if not _is_on_a_chain(dataset, block, head):
                    raise errors.PointNotFoundError(
                        f"{dataset.alias}: block {block} is stored but no longer in the chain, "
                        "nor in one of a branch",
                        hint=f"`odfchain state {dataset.alias}@{block}` shows the rows in force there",
                    )
                dataset = points.opened_at(dataset, block)
        return Pin(text, dataset, DatasetState.read(dataset.chain, block))

    def _pin_given(self, text: str) -> Pin:
        assert self.given is not None  # noqa: S101 - asked by the caller
        if text not in self.given:
            raise errors.QueryError(
                f"`{one_line(text)}` is not among the datasets that the query says it reads",
                hint=f"it names {', '.join(map(one_line, self.given)) or 'none'}",
            )
        dataset_id, block = self.given[text]
        dataset = self.workspace.dataset(dataset_id)
        head = self._head(dataset)
        if not dataset.chain.contains(block) or not _is_on_a_chain(dataset, block, head):
            raise errors.PointNotFoundError(f"{dataset.alias}: block {block} is not in its chain here")
        if not points.is_referenced(dataset, block, head=head):
            dataset = points.opened_at(dataset, block)
        return Pin(text, dataset, DatasetState.read(dataset.chain, block))

    def _dataset(self, name: str) -> DatasetFiles:
        if name not in self._datasets:
            try:
                reference = parse_ref(name)
            except errors.InvalidIdError as error:
                message = f"`{one_line(name)}` is not the name of a dataset: {error.message}"
                raise errors.QueryError(message, hint=error.hint) from None
            dataset = self.workspace.dataset(reference)
            # in SQL, names are exact: what is not quoted becomes lower case
            if isinstance(reference, DatasetAlias) and str(dataset.alias) != name:
                hint = f'`{dataset.alias}` is here; names are exact: write "{dataset.alias}"'
                raise errors.DatasetNotFoundError(f"no dataset is called {name!r}", hint=hint)
            self._datasets[name] = dataset
        return self._datasets[name]

    def _head(self, dataset: DatasetFiles) -> Multihash:
        if dataset.id not in self._heads:
            self._heads[dataset.id] = DatasetState.read(dataset.chain).head
        return self._heads[dataset.id]


def _is_on_a_chain(dataset: DatasetFiles, block: Multihash, head: Multihash) -> bool:
    if points.is_referenced(dataset, block, head=head):
        return True
    # heads in `refs/overwritten-…` do not count
    heads = ((on, on.chain.head()) for on in map(dataset.on, points.branch_names(dataset)))
    return any(points.is_referenced(on, block, head=there) for on, there in heads if there is not None)


def _check_past(time: Timestamp, name: str = "") -> None:
    if time > Timestamp.now():
        where = f"`{one_line(name)}`: " if name else ""
        message = f"{where}{time} lies in the future, so the answer could still change"
        raise errors.QueryError(message, hint="leave the time out to ask for the present")


# A cache of hashed slices: hashing a gigabyte takes two seconds, and the next query reads the same files.
# A file's device, inode, size and times of change are kept in the workspace; a touched file is hashed
# again. Proofs and verification do not use the cache.

# Blocks whose slices are remembered in this process [count].
_HEADS = 256
# Slices that are remembered [count]: 40 MB; the rest is hashed each time.
_MOST = 200_000


class CheckedSlices:
    """The memory of one workspace; `file` None remembers nothing beyond this process."""

    def __init__(
        self, file: Path | None = None, *, state_bytes: int = 0, known: dict[str, list[int]] | None = None
    ) -> None:
        """`state_bytes` is what states that are kept of a dataset may take; `known` is that of another."""
        self.file = file
        self.state_bytes = state_bytes
        self._known = known
        self._changed = False
        self._slices: dict[Multihash, list[SliceRef]] = {}

    @property
    def remembers(self) -> bool:
        """True if earlier results may be reused; proofs are made without them."""
        return self.file is not None

    def states(self, dataset: DatasetFiles) -> StateCache:
        """The states that are kept of a dataset."""
        return StateCache.of(dataset, self.state_bytes)

    def located(self, dataset: DatasetFiles) -> Callable[[SliceRef], Path]:
        """The files of a dataset's slices, as `path` gives them."""
        return lambda ref: self.path(dataset, ref.slice.physical_hash)

    def slices(self, state: DatasetState) -> list[SliceRef]:
        """The slices as of a block, oldest first; a chain is walked once for each of its blocks."""
        if state.head not in self._slices:
            if len(self._slices) > _HEADS:
                self._slices.clear()
            self._slices[state.head] = state.slices()
        return self._slices[state.head]

    def path(self, dataset: DatasetFiles, name: Multihash, *, verify: bool = True) -> Path:
        """The file of a slice, which hashes to `name` (unless `verify` is off) and may be decoded."""
        path = dataset.data.path(name)
        if self.known.get(str(path)) == (seen := _stamp(path)) and seen:
            return path
        from odfchain.slices.reader import check_parquet

        try:
            if verify:
                dataset.data.verified_path(name)
            else:
                dataset.data.size(name)
        except errors.ObjectNotFoundError:
            raise errors.SliceNotFoundError.of(dataset.alias, path) from None
        check_parquet(path)
        if not verify:
            return path
        # what was seen before it was hashed: a change meanwhile shows at the next look
        if len(self.known) < _MOST:
            self.known[str(path)] = seen
            self._changed = True
        return path

    def keep(self) -> None:
        """Remember for other processes; without effect where that cannot be written."""
        if self.file is None or not self._changed:
            return
        with contextlib.suppress(errors.StoreError):
            fsio.replace_file(self.file, json.dumps(self._known).encode(), mode=0o600)
            self._changed = False

    @property
    def known(self) -> dict[str, list[int]]:
        """By path, what a slice looked like when it was checked."""
        if self._known is None:
            self._known = {}
            if self.file is not None:
                with contextlib.suppress(OSError):
                    self._known = json_object(self.file.read_bytes())
        return self._known


def _stamp(path: Path) -> list[int]:
    try:
        found = path.lstat()
    except OSError:
        return []
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


# `diff('d@A', 'd@B')` and `history('d@P')`: changes of rows, as tables with one row for each.
#
#     columns of the key, change, from, to, columns                                   diff
#     columns of the key, change, from, to, columns, block, offset, system_time       history
#
# They are computed when the query runs, by `odfchain.branches`, which is slow to load, whichever engine asks.


@dataclass(frozen=True, slots=True)
class Changes:
    """A table of changes: up to a point, or from one to another."""

    projection: ClassVar[bool] = True
    has_floats: ClassVar[bool] = False
    """Files are not pruned for it."""
    pin: Pin
    to: Pin | None = None
    """None is every change up to `pin`."""
    owner: bool = False
    """True if the blocks of the head were made here."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The datasets that are read, each at its block."""
        return (self.pin,) if self.to is None else (self.pin, self.to)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key.

        Raises:
            QueryError: the two points have different keys or columns, or a history has none; or two datasets.
        """
        if self.to is not None and self.pin.id != self.to.id:
            message = f"diff: {self.pin.alias} and {self.to.alias} are two datasets"
            raise errors.QueryError(message, hint=f"write diff('{self.pin.alias}@A', '{self.pin.alias}@B')")
        try:
            return self._history.key if self.to is None else self._comparison(self.to).key
        except (errors.SchemaError, errors.UsageError) as error:
            raise errors.QueryError(error.message, hint=error.hint) from None

    @property
    def schema(self) -> pa.Schema:
        """The columns; errors as `key`."""
        assert isinstance(self.key, tuple)  # noqa: S101 - what is wrong with it is said first
        return self._history.schema if self.to is None else self._comparison(self.to).schema

    @property
    def _history(self) -> RowHistory:
        from odfchain.branches.row_history import RowHistory

        return RowHistory(self.pin.dataset, self.pin.state)

    def _comparison(self, to: Pin) -> Comparison:
        from odfchain.branches.diff import Comparison

        return Comparison.of((self.pin.dataset, self.pin.state), (to.dataset, to.state))

    def rows(self, checked: CheckedSlices, wanted: Collection[str] | None = None) -> pa.Table:
        """The changes, all columns of them; held in memory."""
        from odfchain.branches.branches import BlockGraph

        del wanted
        if not self.schema.names:
            return self.schema.empty_table()
        if self.to is None:
            return self._history.changes(checked.located(self.pin.dataset)).cast(self.schema)

        def trusted(dataset: DatasetFiles, after: Multihash, upto: Multihash) -> bool:
            # a proof is the same wherever it is made: there nothing is believed
            return checked.remembers and FetchedBranches(dataset).is_known_here(after, upto, owner=self.owner)

        graph = BlockGraph(self.pin.dataset, tuple(pin.dataset.ref for pin in self.pins))
        return self._comparison(self.to).changes(graph, trusted).cast(self.schema)
