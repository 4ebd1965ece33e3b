"""Foreign keys at a commit: what the new rows refer to is there, and nobody refers to what they take back.

    rows that come       their values against the keys of the dataset that they refer to
    rows that go         their keys against the datasets of this workspace that refer here
    changesOf            a text BLOCK#OFFSET: the block is stored, and a change ends at the offset

A dataset on a branch is checked against others on their branch of the same name, or on their head. Only keys
are read, and only as many slices as it takes. Source: RFC-037.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from odfchain.branch.broken_rows import Search
from odfchain.branch.judged_rows import Rows
from odfchain.branch.named_changes import are_changes
from odfchain.branch.violations import Broken, notes_on, refusal
from odfchain.branch.wanted_keys import (
    TAKEN_BACK,
    WantedKeys,
    in_force_of,
    key_rows,
    key_schema,
    newest_of,
    takes_any_back,
)
from odfchain.digest.row_hash import Numbers
from odfchain.errors import (
    BadInputError,
    DatasetNotFoundError,
    ObjectCorruptedError,
    OdfchainError,
    SchemaError,
)
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model import events as ev
from odfchain.model.enums import DatasetKind
from odfchain.repo.commit import StagedFile
from odfchain.repo.constraint_rules import misfit
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.declared_constraints import ForeignKey, OnViolation
from odfchain.repo.references import branch_names
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.slices.rows_in_force import SliceFile
from odfchain.store.interfaces import HEAD
from odfchain.text import first_line

Find = Callable[[DatasetId], DatasetFiles | None]
"""Finds a dataset; None where it is not here."""


@dataclass(slots=True)
class ForeignKeys:
    """The check of a commit (`repo.commit.CommitCheck`); `found` is what it has found so far."""

    find: Find
    everyone: Callable[[], Iterable[DatasetFiles]] = tuple
    """The datasets that may refer to the one that is judged."""
    note: Callable[[str], None] = lambda _: None
    references: Mapping[DatasetId, Multihash] = field(default_factory=dict)
    """Blocks that are checked against; the others are the newest."""
    merging: bool = False
    """Whether new rows are somebody else's, so that it matters whose rows break a key."""
    found: list[Broken] = field(default_factory=list)
    pending: Mapping[DatasetId, Rows] = field(default_factory=dict)
    """Datasets that are about to have other rows: they are judged as they will be."""

    @classmethod
    def of(
        cls,
        workspace: WorkspaceFiles,
        note: Callable[[str], None] = lambda _: None,
        *,
        references: Mapping[DatasetId, Multihash] | None = None,
        merging: bool = False,
    ) -> ForeignKeys:
        """The check against the datasets of a workspace."""
        return cls(finder(workspace), workspace.datasets, note, references or {}, merging)

    def __call__(
        self,
        dataset: DatasetFiles,
        state: DatasetState,
        events: Sequence[ev.MetadataEvent],
        staged: Sequence[StagedFile],
    ) -> None:
        """Nothing, where the events may be committed on top of a state; what is only reported is noted."""
        self.settle(Rows.committed(dataset, state, events, staged))

    def settle(self, rows: Rows) -> None:
        """As when it is called, for rows that are there; errors as there."""
        found = self.judge(rows)
        self.found += found
        if any(item.refused for item in found):
            raise refusal(found)
        for text in notes_on(found):
            self.note(text)

    def settle_together(self) -> None:
        """Nothing, where all that is pending may be committed; errors as when it is called."""
        found = [broken for rows in self.pending.values() for broken in self.judge(rows)]
        if any(item.refused for item in found):
            self.found += found
            raise refusal(found)

    def judge(self, rows: Rows) -> list[Broken]:
        """What the new rows would break; errors as when it is called."""
        if not rows.new:
            return []
        with _readable(rows):
            keys = rows.constraints.foreign_keys
            own = (self._holds(key, rows, strict=_is_strict(key, rows)) for key in keys)
            return [*(broken for broken in own if broken is not None), *self._referred_to(rows)]

    def holds(self, key: ForeignKey, rows: Rows) -> Broken | None:
        """The new rows that break a key; that it cannot be checked is noted."""
        with _readable(rows):
            return self._holds(key, rows, strict=False)

    # --- rows that come ----------------------------------------------------------------------------

    def _holds(self, key: ForeignKey, rows: Rows, *, strict: bool) -> Broken | None:
        target = self._target(key, rows)
        problem: OdfchainError | None = None
        if target is None:
            problem = DatasetNotFoundError(
                f"{rows.name}: its foreign key {key} refers to {key.dataset}, which is not here",
                hint="pull it, or add it again",
            )
        elif (why := cannot_refer(key, rows, target)) is not None:
            problem = SchemaError(f"{rows.name}: its foreign key {key} does not hold: {why}")
        if problem is not None and strict:
            raise problem
        if problem is not None:
            self.note(f"{problem.message}; it was not checked")
        if problem is not None or target is None:
            return None
        return self._changes(key, rows, target) if key.changes else self._missing(key, rows, target)

    def _target(self, key: ForeignKey, rows: Rows) -> Rows | None:
        if key.dataset == rows.dataset.id:
            return rows
        if (pending := self.pending.get(key.dataset)) is not None:
            return pending
        dataset = self.find(key.dataset)
        if dataset is None:
            return None
        dataset = same_version(dataset, rows.dataset.ref)
        return Rows.up_to(dataset, DatasetState.read(dataset.chain, self.references.get(key.dataset)))

    def _missing(self, key: ForeignKey, rows: Rows, target: Rows) -> Broken | None:
        wanted = said_by(rows, key.columns)
        if not wanted.count:
            return None
        there = in_force_of(wanted, target.files(), target.columns.key)
        if there.all():
            return None
        of_key = ", ".join(target.columns.key)
        missing_in = f"{target.name} does not have as {of_key}"
        return self._broken(
            key, rows, wanted, ~there, missing_in, lambda: _where_it_is(wanted, ~there, target)
        )

    def _changes(self, key: ForeignKey, rows: Rows, target: Rows) -> Broken | None:
        wanted = said_by(rows, key.columns)
        good = are_changes(target.dataset, wanted.texts)
        if good.all():
            return None
        alias = target.dataset.alias
        hint = f"it is BLOCK#OFFSET, of the last row of a change; `odfchain log {alias}` lists the blocks"
        return self._broken(key, rows, wanted, ~good, f"is no change of {alias}", lambda: hint)

    def _broken(
        self,
        key: ForeignKey,
        rows: Rows,
        wanted: WantedKeys,
        bad: Numbers,
        missing_in: str,
        hint: Callable[[], str],
    ) -> Broken | None:
        origin = "theirs" if self.merging else ""
        search = Search(
            rows.columns, key.columns, wanted, bad, missing_in,
            lambda _: origin, changed_only=rows.state is not None,
        )  # fmt: skip
        count, listed = search.run(rows.new)
        if not count:
            return None
        return Broken(rows.name, key.columns, missing_in, count, listed, _is_strict(key, rows), hint())

    # --- rows that go ------------------------------------------------------------------------------

    def _referred_to(self, rows: Rows) -> Iterator[Broken]:
        if not rows.columns.key:
            return
        # slices that executors put into the store are brought only where somebody refers to the dataset
        if all(item.is_here for item in rows.new) and not any(map(takes_any_back, rows.new)):
            return
        referring = list(self._children(rows))
        if not referring or not any(map(takes_any_back, rows.new)):
            return
        schema = key_schema(rows.schema, rows.columns.key)
        back = (
            batch.keys.filter(pa.array(batch.back))
            for item in rows.new
            for batch in key_rows(item, rows.columns.key, schema)
        )
        wanted = WantedKeys.of(schema, back)
        gone = newest_of(wanted, rows.new, rows.columns.key) == TAKEN_BACK
        if not gone.any():
            return
        for child, key in referring:
            if cannot_refer(key, child, rows) is not None:
                continue  # said where its own rows come
            new = {item.path for item in (*rows.new, *child.new)}
            missing_in = f"{rows.name} would not have any more as {', '.join(rows.columns.key)}"
            search = Search(
                child.columns, key.columns, wanted, gone, missing_in,
                functools.partial(_origin, new) if self.merging else lambda _: "",
            )  # fmt: skip
            count, listed = search.run(child.files())
            if count:
                strict = _is_strict(key, child) and rows.dataset.kind is DatasetKind.ROOT
                hint = f"correct or retract these rows of {child.name} first"
                yield Broken(child.name, key.columns, missing_in, count, listed, strict, hint)

    def _children(self, rows: Rows) -> Iterator[tuple[Rows, ForeignKey]]:
        """The datasets of this version that refer to one, itself included, each with its key that does."""
        own, ref = rows.dataset.id, rows.dataset.ref
        for key in rows.constraints.foreign_keys:
            if key.dataset == own and not key.changes:
                yield rows, key
        for dataset in self.everyone():
            try:
                on = same_version(dataset, ref)
                if on.ref != ref or on.chain.head() is None or dataset.id == own:
                    continue
                child = self.pending.get(dataset.id) or Rows.up_to(on, DatasetState.read(on.chain))
            except OdfchainError:
                continue  # it cannot be read, or what it declares is not understood: it refuses its own rows
            for key in child.constraints.foreign_keys:
                if key.dataset == own and not key.changes:
                    yield child, key


@contextlib.contextmanager
def _readable(rows: Rows) -> Iterator[None]:
    try:
        yield
    except BadInputError as error:
        raise ObjectCorruptedError(
            f"{error.file or rows.dataset.folder}: the slice cannot be read: {error.message}",
            hint="`odfchain verify` says what else is wrong with it",
        ) from None
    except (pa.ArrowException, ValueError) as error:
        raise ObjectCorruptedError(f"{rows.name}: keys cannot be compared: {first_line(error)}") from None


def finder(workspace: WorkspaceFiles) -> Find:
    """Finds the datasets of a workspace."""

    def find(name: DatasetId) -> DatasetFiles | None:
        try:
            return workspace.dataset(name)
        except DatasetNotFoundError:
            return None

    return find


def same_version(dataset: DatasetFiles, ref: str) -> DatasetFiles:
    """The dataset on its branch of this name, or else on its head."""
    if ref != HEAD:
        dataset.shared.branch(dataset.folder, ref)
    found = dataset.on(ref)
    return found if found.chain.head() is not None else dataset.on(HEAD)


def references_of(find: Find, dataset: DatasetFiles, state: DatasetState) -> dict[DatasetId, Multihash]:
    """The newest blocks of the datasets that the rows of one refer to, in its version; itself aside."""
    found = {}
    for key in state.constraints.foreign_keys:
        target = find(key.dataset) if not key.changes and key.dataset != dataset.id else None
        head = same_version(target, dataset.ref).chain.head() if target is not None else None
        if head is not None:
            found[key.dataset] = head
    return found


def referenced_first(datasets: Sequence[DatasetFiles]) -> list[DatasetFiles]:
    """The datasets so that those that others refer to come first; otherwise the order stays."""
    refers = {}
    for dataset in datasets:
        constraints = DatasetState.read(dataset.chain).constraints
        refers[dataset.id] = {key.dataset for key in constraints.foreign_keys} - {dataset.id}
    waiting, ordered = list(datasets), list[DatasetFiles]()
    while waiting:
        names = {dataset.id for dataset in waiting}
        ready = [dataset for dataset in waiting if not refers[dataset.id] & names] or waiting
        ordered += ready
        waiting = [dataset for dataset in waiting if dataset not in ready]
    return ordered


def _origin(new: Collection[Path], item: SliceFile) -> str:
    return "theirs" if item.path in new else "ours"


def _is_strict(key: ForeignKey, rows: Rows) -> bool:
    return key.on_violation is OnViolation.REFUSE and rows.dataset.kind is DatasetKind.ROOT


def cannot_refer(key: ForeignKey, rows: Rows, target: Rows) -> str | None:
    """Why no row can refer to a dataset by a key; None where some may."""
    present = rows.schema.names
    absent = next((name for name in key.columns if name not in present), None)
    if absent is not None:
        return f"there is no column `{absent}`"
    return misfit(key, rows.columns, target.columns)


def said_by(rows: Rows, columns: Sequence[str]) -> WantedKeys:
    """The distinct values of columns in rows that are put in force."""
    schema = key_schema(rows.schema, columns)
    return WantedKeys.of(schema, (b.said for item in rows.new for b in key_rows(item, columns, schema)))


def _where_it_is(wanted: WantedKeys, missing: Numbers, target: Rows) -> str:
    """What to do, with the branch that has most of what is missing."""
    alias, checked, most, best = target.dataset.alias, target.dataset.ref, 0, ""
    for branch in [HEAD, *branch_names(target.dataset)]:
        if branch == checked:
            continue
        try:
            on = target.dataset.on(branch)
            there = in_force_of(
                wanted, Rows.up_to(on, DatasetState.read(on.chain)).files(), target.columns.key
            )
        except (OdfchainError, pa.ArrowException, ValueError):
            continue
        if (count := int((there & missing).sum())) > most:
            most, best = count, branch
    if not best:
        return f"record them in {target.name} first"
    some = "them" if most == int(missing.sum()) else f"{most:,} of them"
    into = "" if checked == HEAD else f" --into {checked}"
    return f"the branch {best} of {alias} has {some}: `odfchain merge {alias} {best}{into}` first"
