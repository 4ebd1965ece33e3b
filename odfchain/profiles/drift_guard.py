"""Profiles at a commit: drift is refused, the new profile is written (RFC-044).

    before the commit   the rows in force as they would be, against those at the last block of data
    after it            the profile of the new head: an object, and a signed line where the key is here

Both follow from what is kept of each slice, so that of a dataset that only grows nothing but the new slices
is read. A commit that is refused leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from odfchain.chain.signed_lines import SnapshotKind
from odfchain.errors import GuardError, OdfchainError
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import schema_of_event, slice_schema
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.identity import Multihash
from odfchain.profiles.document import facts_of, nullable_columns, profile_document, profile_of
from odfchain.profiles.drift import DriftLine, DriftPolicy, compare_profiles
from odfchain.profiles.published import KeptParts, keep_profile, kept_profile, publish
from odfchain.profiles.state_totals import ProfiledSlice, state_slices, totals_of_slices, without_system
from odfchain.profiles.totals import Totals
from odfchain.progress import SILENT, Progress
from odfchain.text import one_line
from odfchain.workspace.commit import AfterCommit, StagedFile, slice_path
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import ProfileOptions

_NAMED = 3
"""Breaches that a message names."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy, and where it is from."""

    path: Path
    policy: DriftPolicy


@dataclass(frozen=True, slots=True)
class CommitProfiles:
    """The check of a commit (`workspace.commit.CommitCheck`) that profiles its rows."""

    guard: PolicyFile | None
    """The policy that rows are held to; None lets everything through."""
    writes: bool
    """True if the profile of the new head is written."""
    progress: Progress = SILENT

    def __call__(
        self,
        dataset: DatasetFiles,
        state: DatasetState,
        events: Sequence[ev.MetadataEvent],
        staged: Sequence[StagedFile],
    ) -> AfterCommit | None:
        """The action after the commit; none where no rows are committed."""
        coming = _Coming.of(dataset, state, events, staged)
        if not coming.slices:
            return None
        totals = self._judged(dataset, state, coming) if self.guard is not None else None
        return self._writer(dataset, totals) if self.writes else None

    def _judged(self, dataset: DatasetFiles, state: DatasetState, coming: _Coming) -> Totals | None:
        # None where there is nothing to compare with
        assert self.guard is not None  # noqa: S101 - asked by the caller
        last = next(state.slices_newest_first(), None)
        if last is None:
            return None
        earlier = DatasetState.read(dataset.chain, last.block_hash)
        before = kept_profile(dataset, earlier.head)
        if before is None:
            before = profile_of(dataset, earlier, progress=self.progress)
            keep_profile(dataset, before)
        slices = [*state_slices(dataset, state), *coming.slices]
        totals = totals_of_slices(dataset, coming.columns, coming.vocabulary, slices, self.progress)
        facts = facts_of(dataset, earlier, ProfileOptions())
        after = profile_document(totals, dataclasses.replace(facts, declared=coming.nullable))
        if breaches := compare_profiles(before, after, self.guard.policy).breaches:
            for item in coming.slices:
                KeptParts(dataset).drop(item.named.physical_hash)
            raise _refusal(dataset.label, breaches, self.guard.path)
        return totals

    def _writer(self, dataset: DatasetFiles, totals: Totals | None) -> AfterCommit:
        def write(head: Multihash) -> None:
            try:
                now = DatasetState.read(dataset.chain, head)
                document = profile_of(dataset, now, progress=self.progress, totals=totals)
                keep_profile(dataset, document)
                publish(dataset, now, SnapshotKind.PROFILE, canonical_bytes(document))
            except OdfchainError as error:
                self.progress.note(f"the profile was not written: {error}")

        return write


@dataclass(frozen=True, slots=True, eq=False)
class _Coming:
    """The rows that are about to be committed, and the columns that they then have."""

    columns: pa.Schema
    vocabulary: ev.DatasetVocabulary
    nullable: dict[str, bool]
    slices: tuple[ProfiledSlice, ...]

    @classmethod
    def of(
        cls,
        dataset: DatasetFiles,
        state: DatasetState,
        events: Sequence[ev.MetadataEvent],
        staged: Sequence[StagedFile],
    ) -> _Coming:
        names, schema = state.vocabulary, state.schema
        paths = {item.physical_hash: slice_path(dataset, item) for item in staged}
        slices = []
        for event in events:
            match event:
                case ev.SetVocab():
                    names = ev.DatasetVocabulary.from_event(event)
                case ev.SetDataSchema():
                    schema = schema_of_event(event.raw_arrow_schema, event.schema)
                case ev.AddData(new_data=data) | ev.ExecuteTransform(new_data=data) if data is not None:
                    slices.append(ProfiledSlice(paths[data.physical_hash], data))
        columns = pa.schema([]) if schema is None else without_system(slice_schema(schema), names)
        nullable = {} if schema is None else nullable_columns(schema)
        return cls(columns, names, nullable, tuple(slices))


def _refusal(name: str, breaches: Sequence[DriftLine], policy: Path) -> GuardError:
    shown = "; ".join(_in_words(line) for line in breaches[:_NAMED])
    more = len(breaches) - _NAMED
    rest = f"; and {more} more" if more > 0 else ""
    limits = "1 limit is" if len(breaches) == 1 else f"{len(breaches)} limits are"
    return GuardError(
        f"{name}: {limits} exceeded, nothing was committed: {shown}{rest}",
        flag="--allow-drift",
        setting=f"raise the limits in {policy}",
    )


def _in_words(line: DriftLine) -> str:
    what = f"{one_line(line.column, 60)} {line.metric}" if line.column is not None else line.metric
    value = "" if line.value is None else f" {line.value:g}, limit {line.limit:g}"
    return f"{what}{value} ({one_line(line.text, 120)})"
