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
from odfchain.errors import IngestError, OdfchainError
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.identity import Multihash
from odfchain.profiles.document import facts_of, nullable_columns, profile_document, profile_of
from odfchain.profiles.drift import DriftLine, DriftPolicy, compare_profiles
from odfchain.profiles.published import KeptParts, keep_profile, kept_profile, publish
from odfchain.profiles.state_totals import ProfiledSlice, state_slices, totals_of_slices, without_system
from odfchain.profiles.totals import Totals
from odfchain.progress import SILENT, Progress
from odfchain.text import one_line
from odfchain.workspace.commit import AfterCommit, Proposed, slice_path
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

    def __call__(self, proposed: Proposed) -> AfterCommit | None:
        """The action after the commit; none where no rows are committed."""
        if not proposed.added:
            return None
        totals = self._judged(proposed) if self.guard is not None else None
        return self._writer(proposed.dataset, totals) if self.writes else None

    def _judged(self, proposed: Proposed) -> Totals | None:
        # None where there is nothing to compare with
        assert self.guard is not None  # noqa: S101 - asked by the caller
        dataset, state, schema, names = (
            proposed.dataset, proposed.state, proposed.schema, proposed.vocabulary,
        )  # fmt: skip
        if (last := next(state.slices_newest_first(), None)) is None:
            return None
        earlier = DatasetState.read(dataset.chain, last.block_hash)
        if (before := kept_profile(dataset, earlier.head)) is None:
            before = profile_of(dataset, earlier, progress=self.progress)
            keep_profile(dataset, before)
        paths = {each.physical_hash: slice_path(dataset, each) for each in proposed.staged}
        coming = [ProfiledSlice(paths[data.physical_hash], data) for data in proposed.added]
        columns = pa.schema([]) if schema is None else without_system(slice_schema(schema), names)
        slices = [*state_slices(dataset, state), *coming]
        totals = totals_of_slices(dataset, columns, names, slices, self.progress)
        facts = facts_of(dataset, earlier, ProfileOptions())
        after = profile_document(totals, dataclasses.replace(facts, declared=nullable_columns(schema)))
        drift = compare_profiles(before, after, self.guard.policy)
        for note in drift.notes:
            self.progress.note(f"{dataset.label}: {note}")
        if drift.breaches:
            for item in coming:
                KeptParts(dataset).drop(item.named.physical_hash)
            raise _refusal(dataset.label, drift.breaches, self.guard.path)
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


def _refusal(name: str, breaches: Sequence[DriftLine], policy: Path) -> IngestError:
    shown = "; ".join(_in_words(line) for line in breaches[:_NAMED])
    more = len(breaches) - _NAMED
    rest = f"; and {more} more" if more > 0 else ""
    limits = "1 limit is" if len(breaches) == 1 else f"{len(breaches)} limits are"
    return IngestError(
        f"{name}: {limits} exceeded, nothing was committed: {shown}{rest}",
        flag="--allow-drift",
        setting=f"raise the limits in {policy}",
    )


def _in_words(line: DriftLine) -> str:
    what = f"{one_line(line.column, 60)} {line.metric}" if line.column is not None else line.metric
    value = "" if line.value is None else f" {line.value:g}, limit {line.limit:g}"
    return f"{what}{value} ({one_line(line.text, 120)})"
