"""The commit: slices, then blocks, then the head (RFC-007).

    1. every finished slice is synced and moved to its final name        data/f1620…
       and so is every checkpoint                                        checkpoints/f1620…
       (executors that see no folder of ours have put them into the store before)
    2. the blocks are checked against all append rules, stored, synced   blocks/f1620…
    3. one compare-and-swap moves the head                                refs/head
    4. the head is signed, where its owner's key is                       refs/head.jws

A crash before 3 leaves the old head and some unreferenced files; nothing half-done is ever visible. A block
that breaks a rule is refused before anything gets a final name. The commit is done with 3: what goes wrong in
4 is said, and made good by the next commit or by `odfchain sign`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from odfchain.chain.chain import link_blocks
from odfchain.errors import RefConflictError
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.identity import Multihash
from odfchain.odf.schema import DataSchema
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.storage.local import LocalObjectStore
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import KeptFooters

T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished slice or checkpoint outside the store it is for, and its physical hash."""

    path: Path | None
    """None where its writer has put it into the store, which only a commit lets others see."""
    physical_hash: Multihash
    footer: str | None = None
    """The statistics in its footer, from its writer (`odfchain.slices.footers`)."""
    since: float = 0.0
    """Where executors have put it into the store, that was after this [s, `time.monotonic`]."""
    put: bool = False
    """True if they have, of one that has a path."""


def slice_path(dataset: DatasetFiles, staged: StagedFile) -> Path:
    """The file of a slice that is about to be committed, brought from the store if that takes."""
    return dataset.data.verified_path(staged.physical_hash) if staged.path is None else staged.path


def keep_staged(store: LocalObjectStore, staged: StagedFile) -> None:
    """A finished file that is here is in the store of the folder; errors as `LocalObjectStore.put_file`."""
    if staged.path is not None:
        store.put_file(staged.path, staged.physical_hash)


@dataclass(frozen=True, slots=True)
class Proposed:
    """What is about to be committed on top of a state of a dataset."""

    dataset: DatasetFiles
    state: DatasetState
    events: Sequence[ev.MetadataEvent]
    staged: Sequence[StagedFile] = ()

    def last(self, kind: type[E]) -> E | None:
        """The last of the events of a kind."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    @property
    def vocabulary(self) -> ev.DatasetVocabulary:
        """The names of the system columns then."""
        named = self.last(ev.SetVocab)
        return self.state.vocabulary if named is None else ev.DatasetVocabulary.from_event(named)

    @property
    def schema(self) -> DataSchema | None:
        """The declared columns then."""
        event = self.last(ev.SetDataSchema)
        return self.state.schema if event is None else schema_of_event(event.raw_arrow_schema, event.schema)

    @property
    def added(self) -> list[ev.DataSlice]:
        """The new slices."""
        data = (each.new_data for each in self.events if isinstance(each, ev.AddData | ev.ExecuteTransform))
        return [each for each in data if each is not None]


AfterCommit = Callable[[Multihash], None]
"""Called with the new head. It raises nothing: the commit is done."""
CommitCheck = Callable[[Proposed], AfterCommit | None]
"""Judges what is about to be committed, and raises what stops it; what it returns is called afterwards."""


def both(first: CommitCheck, second: CommitCheck) -> CommitCheck:
    """The check that lets through what two checks let through."""

    def check(proposed: Proposed) -> AfterCommit:
        found = [judge(proposed) for judge in (first, second)]

        def after(head: Multihash) -> None:
            for then in found:
                if then is not None:
                    then(head)

        return after

    return check


def commit(
    dataset: DatasetFiles,
    state: DatasetState,
    events: Sequence[ev.MetadataEvent],
    slices: Sequence[StagedFile],
    *,
    checkpoints: Sequence[StagedFile] = (),
    system_time: Timestamp,
    check: CommitCheck | None = None,
    announce: Callable[[Sequence[Multihash]], None] = lambda _: None,
) -> list[Multihash]:
    """Append events durably on top of `state`, published by one head move; their hashes.

    `announce` is called with them before the head moves, which may still fail; it raises nothing.
    """
    number = state.head_block.sequence_number + 1
    blocks = link_blocks(events, prev=state.head, next_sequence_number=number, system_time=system_time)
    # before any file is stored: what breaks a rule leaves nothing behind
    dataset.chain.check_all(blocks, expected_head=state.head)
    after = check(Proposed(dataset, state, events, slices)) if check is not None else None
    for store, kind, files in (
        (dataset.data, "data", slices),
        (dataset.checkpoints, "checkpoints", checkpoints),
    ):
        for staged in files:
            keep_staged(store, staged)
            if staged.path is None or staged.put:
                dataset.shared.sent(dataset.folder, kind, staged.physical_hash, staged.since)
    hashes = [block.hash for block in blocks]
    announce(hashes)
    # the head moves last, when every file that its blocks name is durable
    dataset.chain.publish(blocks, expected_head=state.head)
    if after is not None:
        after(hashes[-1])
    # only a cache, so after the commit
    KeptFooters(dataset).keep((staged.physical_hash, staged.footer) for staged in slices)
    return hashes


def on_the_newest_head(run: Callable[[], T], retries: int | None, progress: Progress, what: str = "run") -> T:
    """Run `run`, and repeat it from the start when another writer has moved the head meanwhile.

    `what` it is called in the note on that.
    """
    attempts = max(0, retries or 0) + 1
    for attempt in range(1, attempts + 1):
        try:
            return run()
        except RefConflictError:
            # nothing was changed: compare-and-swap has failed
            if attempt == attempts:
                raise
            progress.note(f"another writer was faster; repeating the {what} on the new head")
    raise AssertionError("unreachable")
