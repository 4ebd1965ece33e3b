"""Which dataset, at which block, a name in a query means: read once, before anything else is.

    NAME[@POINT]      an alias or a `did:odf` id, exactly as it is written; POINT as in `odfchain.repo.points`

A block is one of the chain, or of a branch: answers about others could not be computed again elsewhere.
What is committed while a query runs does not change its answer: the head of each dataset is read at the
first name, and every name without a point gets the block that was found then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odfchain.errors import (
    BranchNotFoundError,
    DatasetNotFoundError,
    InvalidIdError,
    ObjectNotFoundError,
    PointNotFoundError,
    QueryError,
)
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.ids.refs import parse_ref
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.points import (
    OnBranch,
    block_at,
    is_referenced,
    on_branch,
    opened_at,
    parse_point,
)
from odfchain.repo.references import branch_names
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class Pin:
    """A dataset as of one block."""

    name: str
    """As the query writes it, with its point."""
    dataset: DatasetFiles
    state: DatasetState
    """What the chain says as of the block."""

    @property
    def alias(self) -> DatasetAlias:
        """The local name."""
        return self.dataset.alias

    @property
    def id(self) -> DatasetId:
        """The dataset's identity."""
        return self.dataset.id

    @property
    def block_hash(self) -> Multihash:
        """The block."""
        return self.state.head

    @property
    def sequence_number(self) -> int:
        """The block's number."""
        return self.state.head_block.sequence_number

    def __str__(self) -> str:
        text = str(self.block_hash)
        return f"{self.alias} @ {self.sequence_number} ({text[:8]}…{text[-4:]})"


class Pins:
    """The datasets of one query, each pinned when it is first named."""

    def __init__(
        self,
        workspace: WorkspaceFiles,
        *,
        as_at: Timestamp | None = None,
        given: Mapping[str, tuple[DatasetId, Multihash]] | None = None,
    ) -> None:
        """`as_at` is the system time of every name without a point.

        `given` says what names mean, whatever they are called here: then no other name is known.
        """
        if as_at is not None:
            _check_past(as_at)
        self._workspace = workspace
        self._as_at = as_at
        self._given = given
        self._datasets: dict[str, DatasetFiles] = {}
        self._heads: dict[DatasetId, Multihash] = {}
        self._pins: dict[str, Pin] = {}
        self.named: tuple[Pin, ...] = ()
        """One for each name that the query reads, as it writes it; known once it is planned."""

    @property
    def workspace(self) -> WorkspaceFiles:
        """Where the datasets are."""
        return self._workspace

    @property
    def as_at(self) -> Timestamp | None:
        """The system time of every name without a point."""
        return self._as_at

    @property
    def given(self) -> Mapping[str, tuple[DatasetId, Multihash]] | None:
        """What names mean, where that was said; then there are no others."""
        return self._given

    def pin(self, text: str) -> Pin:
        """The dataset and block that `NAME[@POINT]` means."""
        if text not in self._pins:
            self._pins[text] = self._pin(text)
        return self._pins[text]

    def used(self, texts: Iterable[str]) -> tuple[Pin, ...]:
        """The pins of these names, each block of a dataset once, in order of name and number."""
        self.named = tuple(self.pin(text) for text in sorted(set(texts)))
        found = {(str(p.alias), p.sequence_number, str(p.block_hash)): p for p in self.named}
        return tuple(found[key] for key in sorted(found))

    def _pin(self, text: str) -> Pin:
        name, at, after = text.partition("@")
        if self._given is not None:
            return self._pin_given(text)
        dataset = self._dataset(name)
        head = self._head(dataset)
        if not at:
            block = head if self._as_at is None else block_at(dataset, self._as_at, head=head)
        else:
            try:
                point = parse_point(after)
            except InvalidIdError as error:
                raise QueryError(f"`{one_line(text)}`: {error.message}", hint=error.hint) from None
            time = point.at if isinstance(point, OnBranch) else point
            if isinstance(time, Timestamp):
                _check_past(time, text)
            try:
                block = block_at(dataset, point, head=head)
            except BranchNotFoundError as error:
                raise QueryError(f"`{one_line(text)}`: {error.message}", hint=error.hint) from None
            except ObjectNotFoundError as error:
                raise PointNotFoundError(error.message, hint=error.hint) from None
            if isinstance(point, OnBranch):
                dataset = on_branch(dataset, point.branch)
            elif isinstance(point, Multihash):
                if not _is_on_a_chain(dataset, block, head):
                    raise PointNotFoundError(
                        f"{dataset.alias}: block {block} is stored but no part of the chain any more, "
                        "nor of a branch",
                        hint=f"`odfchain state {dataset.alias}@{block}` shows the rows in force there",
                    )
                dataset = opened_at(dataset, block)
        return Pin(text, dataset, DatasetState.read(dataset.chain, block))

    def _pin_given(self, text: str) -> Pin:
        assert self._given is not None  # noqa: S101 - asked by the caller
        if text not in self._given:
            raise QueryError(
                f"`{one_line(text)}` is not among the datasets that the query says it reads",
                hint=f"it names {', '.join(map(one_line, self._given)) or 'none'}",
            )
        dataset_id, block = self._given[text]
        dataset = self._workspace.dataset(dataset_id)
        head = self._head(dataset)
        if not dataset.chain.contains(block) or not _is_on_a_chain(dataset, block, head):
            raise PointNotFoundError(f"{dataset.alias}: block {block} is no part of its chain here")
        if not is_referenced(dataset, block, head=head):
            dataset = opened_at(dataset, block)
        return Pin(text, dataset, DatasetState.read(dataset.chain, block))

    def _dataset(self, name: str) -> DatasetFiles:
        if name not in self._datasets:
            try:
                reference = parse_ref(name)
            except InvalidIdError as error:
                raise QueryError(
                    f"`{one_line(name)}` is not the name of a dataset: {error.message}", hint=error.hint
                ) from None
            dataset = self._workspace.dataset(reference)
            # in SQL, names are exact: what is not quoted becomes lower case
            if isinstance(reference, DatasetAlias) and str(dataset.alias) != name:
                raise DatasetNotFoundError(
                    f"no dataset is called {name!r}",
                    hint=f'`{dataset.alias}` is here; names are exact: write "{dataset.alias}"',
                )
            self._datasets[name] = dataset
        return self._datasets[name]

    def _head(self, dataset: DatasetFiles) -> Multihash:
        if dataset.id not in self._heads:
            self._heads[dataset.id] = DatasetState.read(dataset.chain).head
        return self._heads[dataset.id]


def _is_on_a_chain(dataset: DatasetFiles, block: Multihash, head: Multihash) -> bool:
    """Whether the head or a branch is made of a stored block; heads that were given up do not count."""
    if is_referenced(dataset, block, head=head):
        return True
    heads = ((on, on.chain.head()) for on in map(dataset.on, branch_names(dataset)))
    return any(is_referenced(on, block, head=there) for on, there in heads if there is not None)


def _check_past(time: Timestamp, name: str = "") -> None:
    if time > Timestamp.now():
        where = f"`{one_line(name)}`: " if name else ""
        raise QueryError(
            f"{where}{time} lies in the future, so the answer could still change",
            hint="leave the time out to ask for the present",
        )
