"""Datasets of very many blocks, as `make bench` makes them, and what commands read of them."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from odfchain.odf.identity import Multihash
from odfchain.storage.fsio import LocalScratch
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.opened_files import opened_files

_MAKER = Path(__file__).parent.parent.parent / "bench" / "long_chain.py"


def long_chain(workspace: Path, name: str, blocks: int) -> DatasetFiles:
    """A dataset of a workspace with so many blocks, of whose slices none is here."""
    return _maker().long_chain(workspace, name, blocks)


def lengthen(folder: Path, blocks: int) -> Multihash:
    """The dataset of a folder, made a moment ago, has so many blocks instead of its own; returns the head."""
    return _maker().lengthen(folder, blocks)


def _maker() -> Any:
    spec = importlib.util.spec_from_file_location("long_chain", _MAKER)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def counted_reads(dataset: DatasetFiles) -> Iterator[Counter[str]]:
    """How many block files are opened, and reads and bytes of the chain's index; full after the block."""
    found: Counter[str] = Counter()
    read = LocalScratch.read

    def counted(scratch: LocalScratch, start: int, count: int) -> bytes:
        data = read(scratch, start, count)
        if type(scratch) is LocalScratch:  # what verification reads ahead is bounded, and no look-up
            found["reads of the index"] += 1
            found["bytes of the index"] += len(data)
        return data

    with pytest.MonkeyPatch.context() as patch, opened_files(dataset.folder / "blocks") as opened:
        patch.setattr(LocalScratch, "read", counted)
        yield found
    found["blocks"] = sum(name.startswith("f1620") for name in opened)
