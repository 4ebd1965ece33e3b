"""Whom a diff or a merge believes: what was made here, and what of others was verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odfchain.errors import ObjectCorruptedError, StoreError
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.audit.report import Report
    from odfchain.ids.multihash import Multihash
    from odfchain.repo.dataset_files import DatasetFiles
    from odfchain.repo.fetched_branches import Unverified

Trust = Callable[["DatasetFiles", "Multihash", "Multihash"], bool]
"""Whether the blocks after one, up to another, were made or verified here."""

_FIRST, _LAST = 2, 11
"""Of the checks of a verification: bytes, links, rules, files and rows."""


def trust_of(workspace: Workspace) -> Trust:
    """What is believed of the workspace's datasets; errors are those of `is_known_here`."""
    from odfchain.repo.fetched_branches import is_known_here

    def trusted(dataset: DatasetFiles, after: Multihash, upto: Multihash) -> bool:
        return is_known_here(dataset, after, upto, owner=workspace._files.has_key(dataset.id))

    return trusted


def ensure_verified(dataset: DatasetFiles, upto: Multihash, progress: Progress = SILENT) -> None:
    """What the chain up to a block has of fetched branches is verified, and noted as such.

    Where there are more rows that take others back than can be compared, and nothing else is left open, it is
    not noted: then a merge looks up what was there before, and believes none of them.

    Raises:
        ObjectCorruptedError: it is faulty; the message has the first fault.
        StoreError: something that has to be checked cannot be.
        BrokenChainError, CodecError: the chains cannot be read.
    """
    from odfchain.repo.fetched_branches import mark_verified, unverified

    for part in unverified(dataset, upto):
        if _is_sound(dataset, part, _verified(dataset, part, progress)):
            mark_verified(dataset, part.entry, part.upto)


def _verified(dataset: DatasetFiles, part: Unverified, progress: Progress) -> Report:
    """The report on the blocks; on the whole chain where they take rows back that others recorded."""
    from odfchain.audit.checks import CORRECTIONS
    from odfchain.audit.dataset_checks import Scope, examine
    from odfchain.audit.walk import Range
    from odfchain.repo.points import opened_at

    there = opened_at(dataset, part.upto)
    report = examine(there, Scope(span=Range(after=part.after)), progress=progress).report
    if CORRECTIONS in report.reasons:
        report = examine(there, progress=progress).report
    return report


def _is_sound(dataset: DatasetFiles, part: Unverified, report: Report) -> bool:
    from odfchain.audit.checks import CORRECTIONS

    name = part.entry.branch or "a branch that is gone"
    about = f"{dataset.alias}: {name}, which came from {part.entry.where}"
    faults = [fault for fault in report.faults if _FIRST <= fault.check <= _LAST]
    if faults:
        first = faults[0]
        block = "" if first.sequence_number is None else f"block {first.sequence_number}: "
        raise ObjectCorruptedError(
            f"{about}, is faulty: {block}{first.file}: {first.message}"
            f"{f' (and {len(faults) - 1:,} more)' if len(faults) > 1 else ''}; nothing was merged",
            hint=f"`odfchain verify {dataset.alias}@{part.entry.branch or part.upto}` lists all faults",
        )
    left_open = {number: text for number, text in report.reasons.items() if _FIRST <= number <= _LAST}
    lacking = [item.message for item in report.unchecked if item.check is None or item.check <= _LAST]
    lacking += left_open.values()
    if lacking == [left_open.get(CORRECTIONS)]:
        return False
    if lacking:
        raise StoreError(
            f"{about}, could not be verified: {lacking[0]}; nothing was merged",
            hint=f"bring what is missing: `odfchain fetch {dataset.alias}`",
        )
    return True
