"""Datasets that are read where they are, without a workspace."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from odfchain.api.dataset import Dataset
from odfchain.api.known_errors import OwnErrors, with_own_errors
from odfchain.errors import PointNotFoundError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.points import is_referenced
from odfchain.repo.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from odfchain.api.scan import At, Scan
    from odfchain.model.data_schema import DataSchema
    from odfchain.query.checked_slices import CheckedSlices
    from odfchain.repo.dataset_files import DatasetFiles
    from odfchain.transfer.reading import Origin

T = TypeVar("T")


class OpenedDataset(OwnErrors):
    """A dataset elsewhere as of one block: its chain was walked and checked, its slices come when needed.

    What was brought is gone with this object, and with what was made of it, unless it has a cache.
    """

    def __init__(
        self,
        origin: Origin,
        files: DatasetFiles,
        head: Multihash | None,
        private: _PrivateFolder,
        verify: bool,
    ) -> None:
        self._origin, self._private, self._verify = origin, private, verify
        self._files = files
        self._state = DatasetState.read(files.chain, head)

    @property
    def id(self) -> DatasetId:
        """The unique identity, `did:odf:…`."""
        return self._state.seed.dataset_id

    @property
    def block_hash(self) -> Multihash:
        """The block whose records these are."""
        return self._state.head

    @property
    def summary(self) -> DatasetState:
        """What the chain says as of the block: schema, sources, offsets, watermark."""
        return self._state

    @property
    def schema(self) -> DataSchema | None:
        """The declared schema, system columns included; None before the first data."""
        return self._state.schema

    def dataset(self, *, progress: Progress = SILENT) -> Any:
        """All records as a `pyarrow.dataset.Dataset`, with the declared schema; slices are brought now.

        Raises:
            TransferError: they cannot be brought.
            SliceNotFoundError, ObjectCorruptedError: a slice of a folder is missing or damaged.
        """
        self._bring(progress)
        found = dataset_as_of(self._files, self._state, verify=self._verify)
        return _keeping(found, self._private)

    def scan(self, columns: Sequence[str] | None = None, *, progress: Progress = SILENT) -> Scan:
        """The records, as `Dataset.scan`; slices are brought now. Errors as `dataset`, and `Dataset.scan`."""
        return self._local(progress).scan(columns, at=self.block_hash)

    def state(
        self,
        columns: Sequence[str] | None = None,
        *,
        key: Sequence[str] | None = None,
        progress: Progress = SILENT,
    ) -> Scan:
        """The records in force, as `Dataset.state`; errors as there, and as `dataset`."""
        return self._local(progress).state(columns, at=self.block_hash, key=key)

    def to_arrow(self) -> pa.Table:
        """All records with the declared types; held in memory. Errors as `dataset`."""
        return self.scan().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """As `to_arrow`, with columns of Arrow types."""
        return self.scan().to_pandas()

    def close(self) -> None:
        """What was brought is gone; what was made of it cannot be read any more."""
        self._private.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        block = self._state.head_block
        return (
            f"<{self._files.alias}: {self._state.record_count:,} records up to block "
            f"{block.sequence_number} ({block.system_time})>"
        )

    def _bring(self, progress: Progress) -> None:
        from odfchain.transfer.reading import slice_objects

        self._origin.bring(self._files, slice_objects(self._state), verify=self._verify, progress=progress)

    def _local(self, progress: Progress) -> Dataset:
        from odfchain.api.workspace import Workspace

        self._bring(progress)
        workspace = Workspace(WorkspaceFiles.init(self._private.path, exists_ok=True))
        return _keeping(Dataset(workspace, self._files), self._private)


@with_own_errors
def open_dataset(
    url: str,
    dataset: str | None = None,
    *,
    at: At = None,
    verify: bool = True,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    require_signature: bool = False,
) -> OpenedDataset:
    """A dataset to be read without a workspace: every block checked now, every slice hashed when it is read.

    `url` is of a folder, server or bucket (`file http https s3 gs az`), or a path: of a dataset's folder, or
    of a workspace that has `dataset`. `at` is as in `Dataset.scan`. With `cache_dir` slices that were brought
    stay there, by name; `verify=False` believes those, and the slices of a folder, without hashing them.

    Raises:
        UsageError, UnsupportedPeerError, NotAWorkspaceError, DatasetNotFoundError: nothing is there.
        InvalidIdError, ObjectNotFoundError, PointNotFoundError: `at` is no block of it, and no time.
        SignatureError: the head is not signed by the owner.
        TransferError, ChainError: it cannot be had, or not believed.
    """
    from odfchain.api.scan import head_at
    from odfchain.transfer.reading import Origin

    cache = None if cache_dir is None else str(Path(cache_dir).expanduser().absolute())
    origin = Origin.of(str(url), dataset, token=token, cache=cache)
    private = _PrivateFolder()
    try:
        files = origin.chain(private.path, require_signature=require_signature)
        return OpenedDataset(origin, files, _part_of_chain(files, head_at(files, at)), private, verify)
    except BaseException:
        private.remove()
        raise


def _part_of_chain(files: DatasetFiles, block: Multihash | None) -> Multihash:
    newest = DatasetState.read(files.chain).head
    if block is not None and not is_referenced(files, block, head=newest):
        raise PointNotFoundError(f"{files.alias}: block {block} is no part of its chain")
    return block or newest


def arrow_dataset_of(dataset: Dataset, at: At) -> Any:
    """The records of a workspace's dataset up to a moment; what `Dataset.dataset` gives, and its errors."""
    from odfchain.api.questions import checked_slices
    from odfchain.api.scan import head_at

    files = dataset._files
    state = DatasetState.read(files.chain, head_at(files, at))
    return dataset_as_of(files, state, checked=checked_slices(dataset._workspace))


def dataset_as_of(
    files: DatasetFiles, state: DatasetState, *, verify: bool = True, checked: CheckedSlices | None = None
) -> Any:
    """The records up to a block as a `pyarrow.dataset.Dataset`, over slices that are here.

    Raises:
        SliceNotFoundError, ObjectCorruptedError, BadInputError, OversizedInputError: naming the file.
    """
    from odfchain.query.arrow_dataset import arrow_dataset
    from odfchain.query.checked_slices import CheckedSlices
    from odfchain.repo.read_slices import columns_of

    checked = checked or CheckedSlices()
    names = [ref.slice.physical_hash for ref in state.slices()]
    paths = [checked.path(files, name, verify=verify) for name in names]
    checked.keep()
    return arrow_dataset(paths, columns_of(state, None))


class _PrivateFolder:
    """A temporary folder that is gone when nobody refers to this object any more."""

    def __init__(self) -> None:
        from odfchain.transfer.reading import private_folder

        opened = contextlib.ExitStack()
        self.path = opened.enter_context(private_folder())
        self._gone = weakref.finalize(self, opened.close)

    def remove(self) -> None:
        """Now."""
        self._gone()


def _keeping(made: T, private: _PrivateFolder) -> T:
    """What was made of files in the folder keeps it, as long as it is there itself."""
    weakref.finalize(made, id, private).atexit = False
    return made
