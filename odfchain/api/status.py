"""The status of datasets: what is to be done for each, and by which command.

Only this machine is asked, and chains are looked at through their indexes. Source: RFC-060.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from odfchain import errors
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.odf.enums import DatasetKind
from odfchain.odf.times import Timestamp
from odfchain.text import counted, length, one_line
from odfchain.transfer.slice_files import is_partial, local_slices
from odfchain.workspace.config import read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.private_notes import ASKED, PUSHED, Reminder, kept, last_verified
from odfchain.workspace.shared_store import ONLY_HERE
from odfchain.workspace.workspace_files import WorkspaceFiles

MATTERS = ("fault", "behind", "due", "partial", "unsigned", "unverified", "new")
"""What there may be to do, the most urgent first."""
_SHOWN = 400


@dataclass(frozen=True, slots=True)
class StatusItem:
    """One thing about a dataset; `command` deals with it, where one of this machine can.

    `value` is, of each matter: `fault` the message, `behind` the blocks of inputs that are not processed,
    `due` when it was last asked for, `partial` the slices that are not here, `unsigned` the first such block,
    `unverified` and `new` blocks [count], or the text where the dataset diverged.
    """

    matter: str
    value: int | str
    text: str
    command: str | None


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """A dataset, and what is to be done for it, the most urgent first; nothing: it is up to date."""

    name: str
    items: tuple[StatusItem, ...]

    def __str__(self) -> str:
        return ", ".join(item.text for item in self.items) or "up to date"

    @property
    def commands(self) -> list[str]:
        """The commands that deal with it, in this order."""
        return [item.command for item in self.items if item.command is not None]


def status_of(workspace: WorkspaceFiles, refs: Sequence[str] = ()) -> Iterator[DatasetStatus]:
    """The status of the datasets that these references and `%` patterns name; of all where none is given."""
    here = dataclasses.replace(workspace, shared=ONLY_HERE)
    due_after = here.config.status.due_after.milliseconds
    named = {files.folder: files for ref in refs for files in here.matching(ref)}
    for files in named.values() if refs else here.local_datasets():
        try:
            found = list(_items(here, files, due_after, whole=workspace.shared is ONLY_HERE))
        except errors.OdfchainError as error:
            text = one_line(str(error), _SHOWN)
            found = [("fault", text, text, "fsck")]
        items = (
            StatusItem(matter, value, text, verb and f"odfchain {verb} {files.alias}")
            for matter, value, text, verb in found
        )
        yield DatasetStatus(str(files.alias), tuple(items))
    if not refs:
        from odfchain.upkeep.fsck import FsckReport

        for report in FsckReport.of_unopenable(here):
            text = one_line(report.findings[0].message, _SHOWN)
            yield DatasetStatus(report.dataset, (StatusItem("fault", text, text, "odfchain fsck"),))


_Item = tuple[str, int | str, str, str | None]


def _items(here: WorkspaceFiles, files: DatasetFiles, due_after: int, *, whole: bool) -> Iterator[_Item]:
    state, signature = DatasetState.read(files.chain), files.head_signature()
    if signature.status is SignatureStatus.INVALID:
        text = one_line(str(signature.message), _SHOWN)
        yield "fault", text, text, "verify"
    verified, note = last_verified(files, state.head)
    if note is not None and note.faults:
        block = "" if note.fault_block is None else f" at block {note.fault_block}"
        from odfchain.audit.report import MENDED_BY_COPIES  # loaded here: most datasets have no fault

        text = f"faulty: {counted(note.faults, 'fault')}{block}"
        command = "fsck" if MENDED_BY_COPIES.intersection(note.checks) else "verify"
        yield "fault", f"{text}, verified {note.time}", text, command
    partial, slices = is_partial(files), local_slices(files, whole=whole)
    if not partial and slices is not None and (missing := slices.total - slices.present):
        text = f"{missing:,} of {slices.total:,} slices missing"
        yield "fault", text, text, "fsck"
    if not (is_copy := here.is_copy(files)) and files.kind is DatasetKind.DERIVATIVE:
        yield from _behind(here, files, state)
    if is_copy or state.polling_source is not None:
        asked = kept(files, ASKED, Reminder)
        ago = 0 if asked is None else (Timestamp.now().epoch_ns - asked.time.epoch_ns) // 1_000_000
        if asked is None:
            yield "due", "never", "due (never asked)", "pull"
        elif ago >= due_after:
            yield "due", str(asked.time), f"due ({length(ago // 1_000)})", "pull"
    if partial and slices is not None and (missing := slices.total - slices.present):
        yield "partial", missing, f"{missing:,} of {slices.total:,} missing", "fetch"
    if (since := signature.unsigned_since) is not None:
        yield "unsigned", since, f"unsigned since {since}", "sign" if here.has_key(files.id) else None
    blocks = state.head_block.sequence_number + 1
    if (unverified := blocks - verified) and not (note and note.faults):
        yield "unverified", unverified, f"{unverified:,} unverified", "verify"
    if not read_config(files).push_aliases:
        return
    pushed = kept(files, PUSHED, Reminder)
    if pushed and state.chain.hash_at(pushed.sequence_number or 0, state.head) != pushed.head:
        text = "diverged from where it is pushed to"
        yield "new", text, text, "push"
        return
    # loaded here: most datasets were pushed nowhere
    from odfchain.transfer.signed_statements import SeenHeads

    seen = SeenHeads(here.root / "seen").get(files.id)
    if seen is not None and state.chain.hash_at(seen.sequence_number, state.head) == seen.head:
        blocks -= seen.sequence_number + 1
    if blocks:
        yield "new", blocks, f"{blocks:,} new", "push"


def _behind(here: WorkspaceFiles, files: DatasetFiles, state: DatasetState) -> Iterator[_Item]:
    from odfchain.transform.planner import PlannedStep, plan_next

    try:
        inputs = here.inputs_of(files)
        if state.last_execution is None or state.awaits_rebuild:  # all of them: they are not walked for that
            heads = [DatasetState.read(item.chain) for item in inputs]
            if all(head.last_data is not None for head in heads):
                blocks = sum(head.head_block.sequence_number + 1 for head in heads)
                yield "behind", blocks, "not computed", "pull"
            return
        plan = plan_next(files, state, inputs)
    except (errors.TransformError, errors.DatasetNotFoundError) as error:
        text = one_line(str(error), _SHOWN)
        yield "behind", text, text, "pull"
        return
    if isinstance(plan, PlannedStep):
        blocks = sum(len(item.blocks) for item in plan.inputs)
        text = f"{blocks:,}{'+' if plan.more else ''} behind"
        yield "behind", blocks, text, "pull"
