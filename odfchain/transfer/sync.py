"""One sync for everybody: a reference and all that it leads to go from a source to a target, in one order.

    1. plan         heads are compared, blocks that the target lacks are read, rules and signatures asked
    2. objects      slices and checkpoints, side by side; of a push also manifests and profiles
    3. blocks       those of merges first, each chain oldest first
    4. reference    by one compare-and-swap
    5. statements   what is signed; of a pull also the manifests and profiles that signed lines name

Readers of the target see what it had until 4, and all of the new chain from then on. What arrived before an
interruption is used by the next sync. A pull (`odfchain.transfer.pulling`) has a store as its source and a
workspace as its target, a push (`pushing`) the other way round; a workspace in a store is pulled from on
opening and pushed to by each commit (`store_commit`); a node takes a push as a pull of what it was sent.
Source: specification "Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar, final

from odfchain import errors
from odfchain.chain.compare import Behind, Diverged
from odfchain.odf.events import Seed
from odfchain.odf.identity import Multihash
from odfchain.text import counted


class Plan(Protocol):
    """What a sync is going to do."""

    @property
    def up_to_date(self) -> bool:
        """True if the target has the source's chain."""


PlanT = TypeVar("PlanT", bound=Plan)
OutcomeT = TypeVar("OutcomeT")


class Sync(ABC, Generic[PlanT, OutcomeT]):
    """One sync; its source, target, reference and policy are the instance's own."""

    @abstractmethod
    def plan(self) -> PlanT:
        """Compare and judge; nothing of the target is changed."""

    @abstractmethod
    def carry_objects(self, plan: PlanT) -> None:
        """The target has the objects of the plan's blocks."""

    @abstractmethod
    def carry_blocks(self, plan: PlanT) -> None:
        """The target has the plan's blocks; no reference leads to them."""

    @abstractmethod
    def move(self, plan: PlanT) -> None:
        """The reference points at the source's head, if it is where it was planned from."""

    @abstractmethod
    def finish(self, plan: PlanT) -> OutcomeT:
        """What is signed is kept or sent; the outcome."""

    @final
    def run(self) -> OutcomeT:
        """The target has all of the source's chain, or its readers see what it had."""
        plan = self.plan()
        if not plan.up_to_date:
            self.carry_objects(plan)
            self.carry_blocks(plan)
            self.move(plan)
        return self.finish(plan)


# Chains that are not one line (RFC-021).

_Differ = TypeVar("_Differ", bound=errors.ChainsDifferError)


def shortened(name: Multihash) -> str:
    """The first digits of a hash, for messages; the errors carry all of them."""
    return f"{str(name)[:17]}…"


def differ(
    kind: type[_Differ], chains: tuple[Multihash, Multihash, Behind | Diverged], message: str, hint: str
) -> _Differ:
    """The error for chains that are not one line: heads of source and target, and their comparison."""
    source, target, found = chains
    if isinstance(found, Behind):
        found = Diverged(0, len(found.blocks), source)
    return kind(
        message,
        source_head=str(source),
        destination_head=str(target),
        source_blocks=found.source_blocks,
        destination_blocks=found.destination_blocks,
        common=str(found.common) if found.common else None,
        hint=hint,
    )


def not_ahead(
    chains: tuple[Multihash, Multihash, Behind | Diverged], source: str, target: str, *, pull: bool, hint: str
) -> errors.ChainsDifferError:
    """The error for a source that is not ahead of its target; of a pull the target is here."""
    source_head, target_head, found = chains
    there, here = (source_head, target_head) if pull else (target_head, source_head)
    heads = f"the head is {shortened(there)} there, {shortened(here)} here"
    if isinstance(found, Behind):
        more = counted(len(found.blocks), "block")
        message = f"{target} has {more} that {source} has not: {heads}"
        return differ(errors.DestinationAheadError, chains, message, hint)
    common = f"after block {shortened(found.common)}" if found.common else "and have no block in common"
    theirs, ours = counted(found.source_blocks, "block"), counted(found.destination_blocks, "block")
    ours, theirs = (ours, theirs) if pull else (theirs, ours)
    message = f"{target if pull else source} and {source if pull else target} diverged {common}: "
    return differ(
        errors.DatasetsDivergedError, chains, f"{message}{ours} only here, {theirs} only there; {heads}", hint
    )


def refuse_another(
    chains: tuple[Multihash, Multihash, Behind | Diverged],
    where: str,
    theirs: Seed,
    name: str,
    ours: Seed,
    *,
    force: bool,
    hint: str,
) -> None:
    """The place holds the dataset of that name, on another history; not even `force` replaces another one."""
    if (theirs.dataset_id, theirs.dataset_kind) == (ours.dataset_id, ours.dataset_kind):
        return
    raise differ(
        errors.DatasetsDivergedError,
        chains,
        f"{'OverwriteSeedBlock: ' if force else ''}{where} holds the dataset {theirs.dataset_id} "
        f"({theirs.dataset_kind.value}), not {name} ({ours.dataset_id}, {ours.dataset_kind.value}); "
        "nothing was overwritten",
        hint,
    )
