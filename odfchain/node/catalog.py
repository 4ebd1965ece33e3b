"""What the list says of each dataset; its chain is opened only where one of its files has changed.

Of a few datasets the files are looked at each time. Of many only those on the page are; the others follow a
moment later, in a thread, so that the list of ten thousand costs no more than its page.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from odfchain import errors
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.odf import events as ev
from odfchain.odf.names import DatasetAlias
from odfchain.storage import fsio
from odfchain.text import counted, one_line
from odfchain.transfer.slice_files import LocalSlices, is_partial, local_slices
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.private_notes import VERIFIED, last_verified
from odfchain.workspace.shared_store import ONLY_HERE
from odfchain.workspace.workspace_files import WorkspaceFiles

FEW = 500
"""Datasets whose files are looked at for each list [count]."""
_SECONDS, _SETTLED_NS = 5.0, 2_000_000_000
_FILES = ("info/alias", "refs/head", "refs/head.jws", "data", "info/partial", f"info/{VERIFIED}")


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """A line of the list; `fault` where the dataset cannot be read, then little else is known."""

    alias: str
    mark: str = "none"
    """How the state is marked: faulty, unchecked, ok, none."""
    state: str = ""
    kind: str | None = None
    records: int | None = None
    size: int | None = None
    """Of its slices here [bytes]."""
    slices: int | None = None
    slices_here: int | None = None
    changed: str | None = None
    description: str | None = None
    keywords: tuple[str, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    alias: DatasetAlias | None
    folder: str
    stamp: tuple[object, ...] = ()
    line: ListedDataset | None = None
    words: str = ""
    """All that a search looks at."""


class Catalog:
    """The datasets of a workspace and the lines that the list has of them; for several threads."""

    def __init__(self, workspace: WorkspaceFiles) -> None:
        self._folder = str(workspace.root / "datasets")
        self._whole = workspace.shared is ONLY_HERE  # slices of a store need not be here
        self._known: dict[str, _Known] = {}
        self._names: tuple[int, set[str]] = (-1, set())
        self._walking, self._walked, self._ended = threading.Lock(), 0.0, False

    def close(self) -> None:
        """End the thread that looks for changes."""
        self._ended = True

    def datasets(self) -> list[_Known]:
        """All folders of datasets, in no order; of many some lines may be older than the last seconds."""
        names = self._named()
        for gone in self._known.keys() - names:
            self._known.pop(gone, None)
        if len(names) <= FEW:
            return [self.line(name) for name in names]
        for name in names - self._known.keys():
            self._known[name] = _Known(_alias(f"{self._folder}/{name}"), name)
        if time.monotonic() > self._walked + _SECONDS and self._walking.acquire(blocking=False):
            threading.Thread(target=self._walk, args=(names,), daemon=True).start()
        return [known for name in names if (known := self._known.get(name)) is not None]

    def _named(self) -> set[str]:
        with fsio.storage_errors(folder := Path(self._folder)):
            changed = folder.stat().st_mtime_ns
            if changed == self._names[0]:
                return self._names[1]
            with os.scandir(folder) as entries:
                names = {each.name for each in entries if each.is_dir(follow_symlinks=False)}
        # a folder that has just changed may change again without a newer time
        if time.time_ns() - changed > _SETTLED_NS:
            self._names = changed, names
        return names

    def line(self, name: str) -> _Known:
        """A dataset as it is now, by the name of its folder."""
        folder, known = f"{self._folder}/{name}", self._known.get(name)
        # before it is read: what changes in between shows next time
        stamp = _stamp(folder, self._evidence(name))
        if known is None or known.line is None or known.stamp != stamp:
            alias, line = _alias(folder), _read(Path(folder), whole=self._whole)
            if Path(self._evidence(name)).is_dir():
                line = replace(line, mark="faulty", state="two histories")
            words = "\n".join([line.alias, line.description or "", *line.keywords]).casefold()
            self._known[name] = known = _Known(alias, name, stamp, line, words)
        return known

    def _evidence(self, name: str) -> str:
        return f"{self._folder}/../evidence/{name}"

    def _walk(self, names: set[str]) -> None:
        try:
            for name in names:
                if self._ended:
                    return
                with contextlib.suppress(errors.OdfchainError, OSError):
                    self.line(name)
        finally:
            self._walked = time.monotonic()
            self._walking.release()


def _stamp(folder: str, evidence: str) -> tuple[object, ...]:
    found: list[object] = []
    for path in (evidence, *(f"{folder}/{name}" for name in _FILES)):
        try:
            seen = os.stat(path)  # noqa: PTH116 - a Path costs more than the call
            found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _alias(folder: str) -> DatasetAlias | None:
    try:
        return DatasetAlias.parse(Path(folder, "info", "alias").read_text(encoding="utf-8").strip())
    except (OSError, ValueError, errors.OdfchainError):
        return None


def _read(folder: Path, *, whole: bool) -> ListedDataset:
    alias = folder.name
    try:
        files = DatasetFiles.open(folder)
        alias, state = str(files.alias), DatasetState.read(files.chain)
        info, slices = files.chain.nearest_event(ev.SetInfo), local_slices(files, whole=whole)
        mark, word = _state(files, state, slices)
        return ListedDataset(
            alias, mark, word, state.seed.dataset_kind.value, state.record_count, _size(folder),
            slices.total if slices else None, slices.present if slices else None,
            str(state.head_block.system_time),
            info.description if info else None, tuple(info.keywords or ()) if info else (),
        )  # fmt: skip
    except (errors.OdfchainError, UnicodeError) as error:
        return ListedDataset(alias, "faulty", "damaged", fault=one_line(str(error), 400))


def _size(folder: Path) -> int:
    with fsio.storage_errors(folder), os.scandir(folder / "data") as entries:
        return sum(each.stat().st_size for each in entries if each.is_file(follow_symlinks=False))


def _state(files: DatasetFiles, state: DatasetState, slices: LocalSlices | None) -> tuple[str, str]:
    signature = files.head_signature(verified=False)
    verified, note = last_verified(files, state.head)
    if signature.status is SignatureStatus.INVALID:
        return "faulty", "wrong signature"
    if note is not None and note.faults:
        return "faulty", counted(note.faults, "fault")
    if slices is not None and slices.present < slices.total:
        return ("unchecked", "partial copy") if is_partial(files) else ("faulty", "slices missing")
    if state.last_offset is None:
        return "none", "no data"
    if verified > state.head_block.sequence_number:
        return "ok", "verified"
    return ("unchecked", "unsigned") if signature.status is SignatureStatus.UNSIGNED else ("ok", "signed")
