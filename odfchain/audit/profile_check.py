"""Check 21: signed profiles are what the rows give when they are profiled again, byte for byte.

The publisher's own words are taken from the document, and so are the columns that it hides. Languages rest on
a library's floats: with the same version of it, 0.005 more or less are accepted. Source: RFC-043.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from odfchain.audit.checks import PROFILES
from odfchain.audit.report import Report
from odfchain.audit.signed_snapshots import UNBELIEVED, disagree, first_difference, stored_document
from odfchain.audit.walk import StoredChain
from odfchain.chain.chain import MetadataChain
from odfchain.codec.document_bytes import canonical_bytes
from odfchain.errors import CodecError, OdfchainError, UnsupportedVersionError
from odfchain.ids.multihash import Multihash
from odfchain.profile.languages import library
from odfchain.profile.of_dataset import ProfileOptions, facts_of
from odfchain.profile.profile_document import DESCRIPTIVE, profile_document
from odfchain.profile.profile_reader import read_profile
from odfchain.profile.state_totals import state_totals
from odfchain.profile.totals import Totals
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.store.local import LocalObjectStore, LocalRefStore
from odfchain.trust.snapshot_lines import SnapshotLine

LANGUAGES_WITHIN = 0.005 + 1e-9
"""The second part is for the rounding of the difference."""
_LANGUAGES = "detected_languages"


def check_profiles(
    dataset: DatasetFiles,
    chain: StoredChain,
    lines: Sequence[SnapshotLine],
    report: Report,
    progress: Progress,
) -> None:
    """Every line about a profile; what cannot be computed again here is listed as unchecked."""
    if not chain.follows:
        report.leave_out(UNBELIEVED, check=PROFILES)
        return
    rows = _Rows(dataset, progress)
    for line in lines:
        data, here = stored_document(dataset, line, PROFILES, report)
        if data is None:
            if not here:
                report.leave_out(
                    f"the profile {line.object} is not here", line.sequence_number, check=PROFILES
                )
            continue
        try:
            document = _document(data, line)
            difference = document if isinstance(document, str) else rows.difference(document, data, line)
        except (OdfchainError, MemoryError) as error:
            said = error.message if isinstance(error, OdfchainError) else "there is not enough memory"
            reason = f"the profile {line.object} was not computed again: {said}"
            report.leave_out(reason, line.sequence_number, check=PROFILES)
            continue
        report.count(PROFILES)
        if difference is not None:
            disagree(dataset, line, PROFILES, difference, report)


def _document(data: bytes, line: SnapshotLine) -> Mapping[str, Any] | str:
    """The document, or why it is none of the line's dataset and block.

    Raises:
        UnsupportedVersionError: it is of another format, or its languages were told by something else.
    """
    try:
        document = read_profile(data)
    except UnsupportedVersionError:
        raise
    except CodecError as error:
        return error.message
    own = document["odf"]
    for told, wanted in ((document["snapshot_id"], line.block), (own["dataset_id"], line.dataset_id)):
        if told != str(wanted):
            return f"it is of {told}, not of {wanted}"
    if (told := own["languages"]) not in (None, library()):
        raise UnsupportedVersionError(f"{told} told its languages, here is {library() or 'no such library'}")
    return document


class _Rows:
    """The rows of a dataset, profiled anew: no index and nothing that is kept of slices is used."""

    def __init__(self, dataset: DatasetFiles, progress: Progress) -> None:
        folder = dataset.folder
        refs = LocalRefStore(folder / "refs", folder / "info" / "lock")
        chain = MetadataChain(LocalObjectStore(folder / "blocks"), refs, ref=dataset.ref)
        self._dataset = dataclasses.replace(dataset, chain=chain)
        self._progress = progress
        self._known: tuple[Multihash, bool, Totals] | None = None

    def difference(self, document: Mapping[str, Any], data: bytes, line: SnapshotLine) -> str | None:
        """Where a profile is not what the rows give; None where it is."""
        state = DatasetState.read(self._dataset.chain, line.block)
        own = document["odf"]
        options = ProfileOptions(hidden=tuple(own["hidden"]), languages=own["languages"] is not None)
        facts = facts_of(self._dataset, state, options)
        words = {name: document[name] for name in DESCRIPTIVE}
        totals = self._totals(state, near_duplicates=document["near_duplicate_estimate"] is not None)
        made = profile_document(totals, dataclasses.replace(facts, descriptive=words))
        _accept_languages(document, made["column_stats"])
        try:
            text = canonical_bytes(made)
        except CodecError as error:  # the publisher's words are no JSON
            return error.message
        if text == data:
            return None
        where = first_difference(document, json.loads(text))
        return where or "it is not in the one text that profiles have"

    def _totals(self, state: DatasetState, *, near_duplicates: bool) -> Totals:
        if self._known is None or self._known[:2] != (state.head, near_duplicates):
            found = state_totals(
                self._dataset, state, self._progress, keep=False, near_duplicates=near_duplicates
            )
            self._known = (state.head, near_duplicates, found)
        return self._known[2]


def _accept_languages(document: Mapping[str, Any], made: Mapping[str, dict[str, Any]]) -> None:
    """Shares of languages that are nearly those of the document become those."""
    for name, stats in made.items():
        told = document["column_stats"].get(name, {}).get(_LANGUAGES)
        found = stats.get(_LANGUAGES)
        if told is None or found is None:
            continue
        if all(abs(told.get(n, 0) - found.get(n, 0)) <= LANGUAGES_WITHIN for n in {*told, *found}):
            stats[_LANGUAGES] = dict(told)
