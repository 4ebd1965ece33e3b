"""The branches of a dataset: how each lies to the head, a drawing of all, and what a merge would meet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from odfchain.audit.drawings import BlockDrawing
from odfchain.branches.branches import Branch, Branches
from odfchain.node.dataset_head import DatasetHead, head_of
from odfchain.node.pages import DATASET, Page
from odfchain.node.visit import Refused, Visit, in_time, not_found
from odfchain.text import cut, human_size, one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_DRAWN, _CONFLICTS, _MOST_BYTES = 100, 1_000, 256 << 20
"""Blocks of the drawing, conflicts on a page [count], and slices that are merged in this process [bytes]."""


@dataclass(frozen=True, slots=True)
class BranchesPage:
    """The branches that are for everybody, and the blocks of these and of the head, newest first."""

    dataset: DatasetHead
    branches: tuple[Branch, ...] = ()
    graph: tuple[dict[str, Any], ...] = ()
    """Lines: `lanes` alone, or with a block's `number`, `block`, `time`, `text` and `references`."""
    command: str = ""


def branches(visit: Visit) -> BranchesPage:
    """The branches of a dataset."""
    files, shows, lines = visit.files, visit.node.shows_branch, list[dict[str, Any]]()
    head = head_of(visit, files)
    if head.head is None:
        return BranchesPage(head)
    for each in BlockDrawing(files, shows).blocks(_DRAWN):
        block = each.block.block
        lines += [{"lanes": text} for text in each.before]
        lines.append({
            "lanes": each.line, "number": block.sequence_number, "block": str(each.block.hash),
            "time": str(block.system_time), "references": each.references,
            "text": block.event.KIND + (f", {cut(each.note, 200)}" if each.note else ""),
        })  # fmt: skip
        lines += [{"lanes": text} for text in each.after]
    found = tuple(each for each in Branches(files).all() if shows(each.name))
    return BranchesPage(head, found, tuple(lines), f"odfchain log {files.alias} --graph")


@dataclass(frozen=True, slots=True)
class MergePage:
    """What a merge of a branch into the head would change, and the values on which both sides differ."""

    dataset: DatasetHead
    branch: str
    is_merged: bool
    changes: int
    """Rows that would change without conflict."""
    conflicts: tuple[dict[str, str | None], ...]
    """Lines of a file of conflicts: the key, and `conflict`, `column`, `base`, `ours`, `theirs` as JSON."""
    total: int
    notes: tuple[str, ...]
    command: str


def merge(visit: Visit) -> MergePage:
    """A merge that is only planned; one that is large is for the command line."""
    files, name = visit.files, visit.asked("branch") or ""
    there = next((b for b in Branches(files).all() if b.name == name and visit.node.shows_branch(name)), None)
    if there is None:
        raise not_found(f"{files.alias} has no branch {one_line(name, 80)!r}")
    command = f"odfchain merge {files.alias} {name} --dry-run"
    size = sum(_size_since(each, there.base_number) for each in (files, files.on(name)))
    if size > _MOST_BYTES:
        raise Refused(409, f"both sides have {human_size(size)} since they parted", hint=command)
    plan = in_time(visit, lambda: visit.dataset.plan_merge(name), command)
    lines = plan.conflicts.select(plan.conflicts.schema.names[:-3])  # what is decided comes last
    rows = lines.slice(0, _CONFLICTS).to_pylist()
    conflicts = tuple({each: text and cut(text, 200) for each, text in row.items()} for row in rows)
    return MergePage(
        head_of(visit, files), name, plan.is_merged, plan.changes.num_rows, conflicts, lines.num_rows,
        plan.notes, command,
    )  # fmt: skip


def _size_since(files: DatasetFiles, number: int) -> int:
    newest = DatasetState.read(files.chain).slices_newest_first()
    return sum(ref.slice.size for ref in takewhile(lambda ref: ref.sequence_number > number, newest))


PAGES = (
    Page(f"{DATASET}/-/branches", "branches", branches),
    Page(f"{DATASET}/-/merge", "merge", merge, heavy=True),
)
