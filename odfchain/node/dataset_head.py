"""What the top of every page of a dataset says: what it is, three lines of trust, its figures, its tabs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from odfchain import errors
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.node.visit import Visit
from odfchain.odf import events as ev
from odfchain.odf.times import Timestamp
from odfchain.profiles.pages import Render, within
from odfchain.storage.locations import escape
from odfchain.text import counted, human_age, human_size, one_line
from odfchain.workspace.config import read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.private_notes import last_verified

TABS = (("Overview", ""), ("Data", "-/data"), ("Schema", "-/schema"), ("History", "-/history"),
        ("Lineage", "-/lineage"), ("Audit", "-/audit"))  # fmt: skip
"""The pages of every dataset: a word, and the address below the dataset's."""


@dataclass(frozen=True, slots=True)
class DatasetHead:
    """The top of a page. Where the chain cannot be read, `alarm` says why, and little else is known."""

    name: str
    id: str
    kind: str = "Dataset"
    license: str | None = None
    keywords: tuple[str, ...] = ()
    description: str | None = None
    states: tuple[tuple[str, ...], ...] = ()
    """Signature, verdict, attestations: of each how it is marked, the words, and a command or nothing."""
    figures: tuple[tuple[str, ...], ...] = ()
    """Pairs of a label and a figure."""
    head: str | None = None
    blocks: int = 0
    origin: str | None = None
    """Where it is pulled from."""
    tabs: tuple[tuple[str, ...], ...] = ()
    alarm: str | None = None


def head_of(visit: Visit, files: DatasetFiles) -> DatasetHead:
    """The top of this dataset's pages, whatever is wrong with it."""
    name, folder = str(files.alias), files.folder.name
    tabs = tuple((word, f"{name}/{path}") for word, path in TABS)
    if visit.node.queries is not None:
        query = f'select * from "{name}" limit 100'  # noqa: S608 - shown, and no name has a quote
        tabs += (("SQL", f"-/sql?q={escape(query)}"),)
    try:
        state = DatasetState.read(files.chain)
        seed, info = state.seed, files.chain.nearest_event(ev.SetInfo)
        terms = files.chain.nearest_event(ev.SetLicense)
        origins = read_config(files).pull_aliases
        number = state.head_block.sequence_number
        forked = (visit.node.files.root / "evidence" / folder).is_dir()
        return DatasetHead(
            name, str(seed.dataset_id), seed.dataset_kind.value, getattr(terms, "name", None),
            tuple(info.keywords or ()) if info else (), getattr(info, "description", None),
            (_signature(files, forked=forked), _verdict(files, state), _attestations(visit, files)),
            _figures(visit, files, state), str(state.head), number + 1,
            shown_origin(origins[0]) if origins else None, tabs,
            f"The owner of this dataset has signed two histories of it: odfchain evidence {name}"
            if forked else None,
        )  # fmt: skip
    except errors.OdfchainError as error:
        reason = visit.node.public(one_line(str(error), 400))
        return DatasetHead(name, folder, tabs=tabs, alarm=f"This dataset is damaged: {reason}")


def shown_origin(url: str) -> str:
    """A place that data came from, without paths of this machine."""
    return "another folder of the node's machine" if url.startswith(("file:", "/")) else url


def _figures(visit: Visit, files: DatasetFiles, state: DatasetState) -> tuple[tuple[str, ...], ...]:
    known = visit.node.catalog.line(files.folder.name).line
    found = [("records", f"{state.record_count:,}")]
    if (rows := _in_force(files, state)) is not None:
        found.append(("in force", f"{rows:,}"))
    if known and known.slices is not None:
        part = "" if known.slices == known.slices_here else f"{known.slices_here:,} of "
        found.append(("slices", f"{part}{known.slices:,}, {human_size(known.size or 0)}"))
    found.append(("blocks", f"{state.head_block.sequence_number + 1:,}"))
    found += [("watermark", str(state.watermark))] if state.watermark else []
    return (*found, ("last change", _age(state.head_block.system_time)))


def _in_force(files: DatasetFiles, state: DatasetState) -> int | None:
    """How many rows are in force, where a checkpoint of this very state counts them."""
    from odfchain.workspace.read_slices import read_description

    if state.checkpoint is None:
        return None
    path = files.checkpoints.path(state.checkpoint.physical_hash)
    try:
        found = read_description(path) if path.is_file() else None
    except errors.OdfchainError:
        return None
    return found.rows if found is not None and found.last_offset == state.last_offset else None


def _age(when: Timestamp) -> str:
    return human_age(when.epoch_ns, time.time_ns())


def _signature(files: DatasetFiles, *, forked: bool) -> tuple[str, ...]:
    found = files.head_signature()
    if forked:
        return "faulty", "two histories: the owner signed both", f"odfchain evidence {files.alias}"
    if found.status is SignatureStatus.INVALID:
        return "faulty", f"wrong signature: {one_line(str(found.message), 300)}", ""
    if found.signed is None:
        return "unchecked", "unsigned", ""
    signed = found.signed
    if found.status is SignatureStatus.SIGNED:
        return "ok", f"signed by its owner, block {signed.sequence_number:,}, {_age(signed.time)}", ""
    return "unchecked", f"signed an earlier head, block {signed.sequence_number:,}, {_age(signed.time)}", ""


def _verdict(files: DatasetFiles, state: DatasetState) -> tuple[str, ...]:
    verified, note = last_verified(files, state.head)
    command, blocks = f"odfchain verify {files.alias}", state.head_block.sequence_number + 1
    if note is None:
        return "none", "never verified here", command
    if note.faults:
        return "faulty", f"faulty: {counted(note.faults, 'fault')}, {_age(note.time)}", command
    if verified == blocks:
        return "ok", f"verified here at its head, {_age(note.time)}: clean", ""
    newer = counted(blocks - verified, "newer block")
    words = f"verified here up to block {verified - 1:,}, {_age(note.time)}: clean; {newer} not checked"
    return "unchecked", words, command


def _attestations(visit: Visit, files: DatasetFiles) -> tuple[str, ...]:
    from odfchain.api.dataset import Dataset

    found = [each for each in Dataset(visit.node.workspace, files).attestations() if each.in_chain]
    trusted = sum(each.trusted for each in found)
    numbers = (trusted, "by auditors you trust"), (len(found) - trusted, "by others")
    words = "attestations: " + ", ".join(f"{n:,} {who}" for n, who in numbers if n)
    return "ok" if trusted else "none", words if found else "no attestations", ""


def render_below(visit: Visit, head: DatasetHead, tab: str, template: str, **values: Any) -> Render:
    """Makes a page below the head of a dataset, by a template of the node that extends one of `-o html`."""
    made = within(root=visit.root, site=visit.node.about, dataset=head, tab=tab, **values)
    return lambda _room, _template, **more: made("node/templates", f"{template}.html.j2", **more)
