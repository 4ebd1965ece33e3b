"""What the top of every page of a dataset says: what it is, three lines of trust, its figures, its tabs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from odfchain import errors
from odfchain.api.dataset import Dataset
from odfchain.audit.report import kept_report
from odfchain.node.trust import attestations_line, signature_line, verdict_line
from odfchain.node.visit import Visit
from odfchain.odf import events as ev
from odfchain.profiles.pages import Render, within
from odfchain.storage.locations import escape
from odfchain.text import human_age, human_size, one_line
from odfchain.workspace.config import read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import branch_names

TABS = (("Overview", ""), ("Data", "-/data"), ("Schema", "-/schema"), ("History", "-/history"),
        ("Lineage", "-/lineage"), ("Audit", "-/audit"))  # fmt: skip
"""The pages of every dataset: a word, and the address below the dataset's."""
_DESCRIPTIONS = ("manifests", "profiles", "info/profiles")


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
    tabs += tuple((word, f"{name}/-/{word.lower()}") for word in _more(visit, files))
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
            _trust(visit, files, state, int(forked)),
            _figures(visit, files, state), str(state.head), number + 1,
            shown_origin(origins[0]) if origins else None, tabs,
            f"The owner of this dataset has signed two histories of it: odfchain evidence {name}"
            if forked else None,
        )  # fmt: skip
    except errors.OdfchainError as error:
        reason = visit.node.public(one_line(str(error), 400))
        return DatasetHead(name, folder, tabs=tabs, alarm=f"This dataset is damaged: {reason}")


def _more(visit: Visit, files: DatasetFiles) -> Iterator[str]:
    # pages that not every dataset has
    if any(map(visit.node.shows_branch, branch_names(files))):
        yield "Branches"
    manifests, *profiles = (any((files.folder / each).glob("f*")) for each in _DESCRIPTIONS)
    if any(profiles) or visit.node.queries is not None:
        yield "Profile"
    if manifests:
        yield "Manifests"
    with suppress(errors.OdfchainError):
        schema = DatasetState.read(files.chain).schema
        if schema is not None and {"item_id", "asset_key", "store_type"} <= {c.name for c in schema.fields}:
            yield "Assets"


def shown_origin(url: str) -> str:
    """A place that data came from, without paths of this machine."""
    return "another folder of the node's machine" if url.startswith(("file:", "/")) else url


def _figures(visit: Visit, files: DatasetFiles, state: DatasetState) -> tuple[tuple[str, ...], ...]:
    known, rows = visit.node.catalog.line(files.folder.name).line, _in_force(files, state)
    found = [("records", f"{state.record_count:,}")]
    found += [] if rows is None else [("in force", f"{rows:,}")]
    if known and known.slices is not None:
        part = "" if known.slices == known.slices_here else f"{known.slices_here:,} of "
        found.append(("slices", f"{part}{known.slices:,}, {human_size(known.size or 0)}"))
    found.append(("blocks", f"{state.head_block.sequence_number + 1:,}"))
    found += [("watermark", str(state.watermark))] if state.watermark else []
    return (*found, ("last change", human_age(state.head_block.system_time.epoch_ns, time.time_ns())))


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


def _trust(
    visit: Visit, files: DatasetFiles, state: DatasetState, proofs: int
) -> tuple[tuple[str, ...], ...]:
    name, has_key = str(files.alias), visit.node.files.has_key(state.seed.dataset_id)
    report, at = kept_report(files, visit.node.problem), files.chain.by_number(state.head)
    lines = (
        signature_line(name, files.head_signature(), proofs, has_key=has_key),
        verdict_line(name, report, state.head_block.sequence_number, at),
        attestations_line(name, Dataset(visit.node.workspace, files).attestations()),
    )
    named = {"unsigned": "unsigned: ", "wrong": "wrong signature: "}
    return tuple((line.icon, named.get(line.word, "") + line.text, line.command or "") for line in lines)


def render_below(visit: Visit, view: Any, tab: str, template: str) -> Render:
    """Makes a page below the head of a dataset, by a template of the node that extends one of `-o html`."""
    frame = {"dataset": view.dataset, "tab": tab, "view": view, "on_command_line": view.command}
    made = within(root=visit.root, site=visit.node.about, **frame)
    return lambda _room, _template, **more: made("node/templates", f"{template}.html.j2", **more)
