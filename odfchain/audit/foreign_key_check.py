"""Check 18: what the rows in force refer to is there (RFC-037).

A reference into the same dataset that finds nothing is a fault; one into another dataset is a counted note,
because that one's history is its own. So is one that the dataset itself declares to be reported only.
"""

from __future__ import annotations

from collections.abc import Sequence

from odfchain.audit.checks import FOREIGN_KEYS
from odfchain.audit.correction_check import ReadableSlice
from odfchain.audit.input_claims import Find
from odfchain.audit.report import Report
from odfchain.audit.walk import StoredChain
from odfchain.branch.foreign_keys import ForeignKeys
from odfchain.branch.judged_rows import Rows
from odfchain.chain.earlier_blocks import sources_in_force
from odfchain.codec.raw_arrow import schema_of_event
from odfchain.errors import OdfchainError
from odfchain.model import events as ev
from odfchain.repo.constraint_rules import Columns
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import key_of_sources
from odfchain.repo.declared_constraints import attached_text, recorded_constraints

_DECLARING = tuple(
    kind.KIND
    for kind in (
        ev.SetAttachments,
        ev.SetDataSchema,
        ev.SetVocab,
        ev.SetPollingSource,
        ev.DisablePollingSource,
        ev.AddPushSource,
        ev.DisablePushSource,
    )
)


def check_foreign_keys(
    dataset: DatasetFiles,
    chain: StoredChain,
    upto: int,
    slices: Sequence[ReadableSlice],
    find: Find,
    report: Report,
    *,
    complete: bool,
) -> None:
    """The foreign keys that are declared at the block `upto`, for the rows in force there.

    `complete` says that the slices are all that there are.
    """
    events = [stored.block.event for stored in chain.blocks.of(*_DECLARING) if stored.number <= upto][::-1]
    attached = next((event for event in events if isinstance(event, ev.SetAttachments)), None)
    try:
        if attached is None or attached_text(attached) is None:
            return
        declared = recorded_constraints(attached)
        if not declared.foreign_keys:
            return
        if not complete:
            report.skip([FOREIGN_KEYS], "not all slices could be read that have the rows in force")
            return
        rows = Rows(
            dataset, _columns(dataset, events, declared.primary_key), declared, None,
            tuple(item.file for item in slices),
        )  # fmt: skip
        _check(rows, find, report)
    except MemoryError:
        report.skip([FOREIGN_KEYS], "there is not enough memory to compare keys")
    except OdfchainError as error:
        report.skip([FOREIGN_KEYS], error.message)


def _columns(
    dataset: DatasetFiles, newest_first: Sequence[ev.MetadataEvent], declared: tuple[str, ...]
) -> Columns:
    """What the events say, without the chain's index: a verification trusts nothing that is derived."""
    schema = next((e for e in newest_first if isinstance(e, ev.SetDataSchema)), None)
    vocabulary = next((e for e in newest_first if isinstance(e, ev.SetVocab)), None)
    polling = next(
        (e for e in newest_first if isinstance(e, ev.SetPollingSource | ev.DisablePollingSource)), None
    )
    key = key_of_sources(
        polling if isinstance(polling, ev.SetPollingSource) else None,
        sources_in_force(newest_first),
        next((e for e in newest_first if isinstance(e, ev.SetPollingSource | ev.AddPushSource)), None),
    )
    found = None if schema is None else schema_of_event(schema.raw_arrow_schema, schema.schema)
    names = ev.DatasetVocabulary.from_event(vocabulary)
    return Columns(str(dataset.alias), names, found, key or declared)


def _check(rows: Rows, find: Find, report: Report) -> None:
    check = ForeignKeys(find, note=lambda text: report.skip([FOREIGN_KEYS], text))
    for key in rows.constraints.foreign_keys:
        report.count(FOREIGN_KEYS)
        broken = check.holds(key, rows)
        if broken is None:
            continue
        if broken.refused and key.dataset == rows.dataset.id:
            report.fault(FOREIGN_KEYS, rows.dataset.folder, f"{broken.message}: {broken.lines[0]}")
        else:
            report.notes.append(f"{broken.message} (check {FOREIGN_KEYS}), such as {broken.lines[0]}")
