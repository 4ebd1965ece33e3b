"""Pushing: a dataset of this workspace goes to a store that can be written to, by the order of `sync`.

What the destination has already is not sent again, so an interrupted push is continued by running the same
again. A branch is sent in the same way as the head. Source: specification "Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from odfchain import errors
from odfchain.chain.compare import Ahead, Behind, Comparison, Diverged, compare
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.chain.statements import Did, parse_did
from odfchain.limits import SHARING
from odfchain.odf.identity import HashList, Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress, on_a_thread
from odfchain.storage.local import HEAD
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.branch_fetch import merged_into
from odfchain.transfer.open_peer import open_writable
from odfchain.transfer.sharing import AliasKind, Sharing, add_alias, check_shareable
from odfchain.transfer.signed_statements import Seen, SeenHeads, push_statements, push_to_node
from odfchain.transfer.slice_files import DataObject, absent, objects_of, store_of
from odfchain.transfer.snapshot_objects import send_objects
from odfchain.transfer.sync import PeerLinks, Sync, in_parallel, not_ahead, refuse_another, with_answers
from odfchain.transfer.witnesses import Witnesses
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import PushOptions
from odfchain.workspace.private_notes import PUSHED, Reminder, keep

_T = TypeVar("_T")


_OPTIONS = PushOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan:
    """The plan of a push; nothing is written yet."""

    where: str
    old_head: Multihash | None
    """The destination's head; None when there is no dataset."""
    new_head: Multihash
    blocks: Sequence[Multihash]
    """The blocks to be sent, oldest first."""
    objects: tuple[DataObject, ...]
    """The slices and checkpoints to be sent; what the destination has is left out."""
    merged: Sequence[Multihash]
    """The blocks to be sent of what was merged, in their order; they go before the others."""
    present: int
    """Slices and checkpoints of these blocks that the destination has already [count]."""
    overwrites: bool
    """True if blocks of the destination are given up."""

    @property
    def up_to_date(self) -> bool:
        """True if there is nothing to do."""
        return self.old_head == self.new_head and not self.merged

    @property
    def bytes(self) -> int:
        """Size of the slices and checkpoints to be sent [bytes]."""
        return sum(item.size for item in self.objects)

    def __repr__(self) -> str:
        what = f"{len(self.blocks):,} blocks, {len(self.objects):,} objects of {self.bytes:,} bytes"
        return f"<push to {self.where}: {'up to date' if self.up_to_date else what}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOutcome:
    """The result of a push."""

    plan: PushPlan
    caveat: str | None
    """The caveat of how the head was swapped."""
    signature: SignatureStatus = SignatureStatus.UNSIGNED
    """The state of the destination's signature."""
    problem: str | None = None
    """Files that could not be written after the head, or why there is no manifest."""
    snapshots: int = 0
    """Manifests and profiles sent, not counting the objects of the chain [count]."""
    conflict: errors.SignatureError | None = None
    """A witness has cosigned another history."""

    @property
    def up_to_date(self) -> bool:
        """True if there was nothing to do."""
        return self.plan.up_to_date

    @property
    def num_blocks(self) -> int:
        """Blocks written to the destination [count]; with `force` over other blocks, the whole chain."""
        return len(self.plan.blocks)

    def __repr__(self) -> str:
        return f"{repr(self.plan).removesuffix('>')}, {self.problem or self.signature}>"


def plan_dataset_push(dataset: DatasetFiles, peer: Store, options: PushOptions = _OPTIONS) -> PushPlan:
    """Plan `push_dataset`; the destination is only read, and no further than needed."""
    return _Push(dataset, peer, options).plan()


def push_dataset(
    dataset: DatasetFiles,
    peer: Store,
    options: PushOptions = _OPTIONS,
    trusted: Sequence[Did] = (),
    witnesses: Witnesses | None = None,
) -> PushOutcome:
    """Make the destination's chain the same as the local one; readers there see all of it or nothing.

    Every file is hashed before it is sent. What the destination has already is not sent again. Attestations
    of `trusted` auditors come first where there is no room for all. `witnesses` are asked to cosign.
    """
    kind = _Push if peer.transport.takes_files else _PushToNode
    return kind(dataset, peer, options, trusted, witnesses).run()


@dataclass
class _Push(Sync[PushPlan, PushOutcome]):
    dataset: DatasetFiles
    peer: Store
    options: PushOptions
    trusted: Sequence[Did] = ()
    witnesses: Witnesses | None = None
    described: tuple[int, list[str]] | None = field(default=None, init=False)
    """Manifests and profiles that were sent [count], and which could not be."""

    def __post_init__(self) -> None:
        self.progress = self.options.progress

    def plan(self) -> PushPlan:
        dataset, peer, options = self.dataset, self.peer, self.options
        if (head := dataset.chain.head()) is None:
            raise errors.ChainError(f"{dataset.alias}: the dataset has no head")
        if (old := peer.head()) is None and not options.create:
            raise errors.DatasetNotFoundError(f"{peer.where}: no such dataset", hint="allow to create it")
        found = self._compared(head, old)
        overwrites = isinstance(found, Behind | Diverged)
        newer = reversed(found.blocks) if isinstance(found, Ahead) else ()
        blocks = HashList(dataset.chain.hashes(head) if overwrites else newer)
        merged = self._merged_blocks(head)
        objects, present = self._missing_there([*merged, *blocks] if merged else blocks)
        return PushPlan(
            where=peer.where, old_head=old, new_head=head, blocks=blocks,
            objects=objects, merged=merged, present=present, overwrites=overwrites,
        )  # fmt: skip

    def _compared(self, head: Multihash, old: Multihash | None) -> Comparison:
        dataset, peer = self.dataset, self.peer
        chain, begins = dataset.chain, old is None and dataset.ref != HEAD
        # a branch begins at the destination: its blocks are those that the head there does not have
        there = peer.head(HEAD) if begins else old
        links = PeerLinks(peer, None, dataset.blocks)
        found = compare(chain, head, there, links)
        if not isinstance(found, Behind | Diverged):
            return found
        assert there is not None  # noqa: S101 - what is not there is not ahead
        if not begins and not self.options.force:
            raise not_ahead(
                (head, there, found),
                str(dataset.alias),
                peer.where,
                pull=False,
                hint="pull them first, or give them up with --force"
                if isinstance(found, Behind)
                else "pull the other one under a new name (--as) to compare them, push to another place, "
                "or overwrite the destination with --force",
            )
        if isinstance(found, Diverged) and found.common is None:
            # chains without a common block are different datasets, or a forged history
            refuse_another(
                (head, there, found),
                peer.where,
                links.seed(),
                str(dataset.alias),
                dataset.seed,
                force=self.options.force,
                hint="push to another place, or remove what is there first",
            )
        if not begins:
            return found
        tail = found.common if isinstance(found, Diverged) else head
        return Ahead(HashList(name for name, _ in chain.walk(head, tail=tail)))

    def _merged_blocks(self, head: Multihash) -> Sequence[Multihash]:
        if not self.options.merged or not self.peer.transport.takes_files:
            return ()  # nodes know one line of blocks

        def is_there(name: Multihash) -> bool:
            return self.peer.contains(ObjectKey(ObjectKind.BLOCK, name))

        return [
            name
            for merged in merged_into(self.dataset, head, until=is_there)
            if merged.whole and not absent(self.dataset, merged.objects)
            for name in merged.in_order
            if not is_there(name)
        ]

    def _missing_there(self, blocks: Iterable[Multihash]) -> tuple[tuple[DataObject, ...], int]:
        dataset = self.dataset
        wanted: dict[ObjectKey, DataObject] = {}
        for name in blocks:
            for item in objects_of(dataset.chain.get(name)):
                wanted.setdefault(item.key, item)
        looked = with_answers(self.peer.contains, wanted, self.options.at_once)
        missing = [wanted[key] for key, is_there in looked if not is_there]
        for item in missing:
            # a partial copy can be pushed on where the destination has the rest
            store = store_of(dataset, item.key.kind)
            if not store.contains(item.key.name):
                what = "slice" if item.key.kind is ObjectKind.DATA else "checkpoint"
                raise errors.ObjectNotFoundError(
                    f"{store.locate(item.key.name)}: the {what} of block {item.sequence_number} is missing; "
                    "nothing was sent",
                    hint=f"bring it from another copy first: odfchain fetch {dataset.alias} --from URL",
                )
        return tuple(missing), len(wanted) - len(missing)

    def _put(self, key: ObjectKey, progress: Progress) -> None:
        self.peer.put(key, store_of(self.dataset, key.kind).verified_path(key.name), progress)

    def carry_objects(self, plan: PushPlan) -> None:
        self.described = send_objects(self.dataset, self.peer, parallel=self.options.at_once)
        if plan.objects:
            self.progress.phase(f"Sending {self.dataset.alias}", plan.bytes)
            in_parallel(lambda item: self._put(item.key, self.progress), plan.objects, self.options.at_once)

    def carry_blocks(self, plan: PushPlan) -> None:
        self.progress.phase(f"Sending blocks of {self.dataset.alias}", len(plan.merged) + len(plan.blocks))

        def send_block(name: Multihash) -> None:
            self._put(ObjectKey(ObjectKind.BLOCK, name), SILENT)
            self.progress.advance()

        for name in plan.merged:
            send_block(name)
        in_parallel(send_block, plan.blocks, self.options.at_once)

    def move(self, plan: PushPlan) -> None:
        if plan.old_head != plan.new_head:
            self._put_hint(plan.new_head)
            self.peer.swap_head(plan.old_head, plan.new_head)

    def _put_hint(self, head: Multihash) -> None:
        dataset, peer = self.dataset, self.peer
        try:
            if dataset.ref != HEAD:
                if dataset.ref not in (known := peer.branches()):
                    peer.put_names([*known, dataset.ref])
            elif dataset.chain.get(head).sequence_number < SHARING.hinted_blocks:
                peer.put_hint(dataset.chain.hashes(head))
        except errors.TransferError as error:
            what = "list of branches" if dataset.ref != HEAD else "hint for faster clones"
            self.progress.note(f"the {what} was not written: {error}")

    def _cosigned(self) -> tuple[list[str], errors.SignatureError | None]:
        return self.witnesses.cosign(self.dataset) if self.witnesses is not None else ([], None)

    def finish(self, plan: PushPlan) -> PushOutcome:
        asked, dataset, peer, cosigned = self.witnesses, self.dataset, self.peer, self._cosigned
        if asked and asked.asked:  # the head is there: they are asked while other statements are sent
            cosigned = on_a_thread(cosigned, "odfchain-witnesses").result
        snapshots, unsent = self.described or send_objects(dataset, peer, parallel=self.options.at_once)
        signature, problem = push_statements(dataset, peer, plan.new_head, self.trusted, cosigned)
        warnings, conflict = cosigned()
        return PushOutcome(
            plan=plan,
            caveat=None if plan.up_to_date else self.peer.transport.caveat,
            signature=signature,
            problem="; ".join(filter(None, (problem, *unsent, *warnings))) or None,
            snapshots=snapshots,
            conflict=conflict,
        )


class _PushToNode(_Push):
    """A node takes a push as a whole: objects and blocks arrive with the move of its head."""

    def carry_objects(self, plan: PushPlan) -> None:
        pass

    def carry_blocks(self, plan: PushPlan) -> None:
        pass

    def move(self, plan: PushPlan) -> None:
        # loaded here: most pushes are to folders and stores
        from odfchain.transfer.node_store import NodeTransport, Shipment  # noqa: PLC0415
        from odfchain.transfer.smart_messages import Visibility  # noqa: PLC0415

        dataset, node = self.dataset, self.peer.transport
        assert isinstance(node, NodeTransport)  # noqa: S101 - the one that takes no files
        node.parallel = self.options.at_once
        self.progress.phase(f"Sending blocks of {dataset.alias}", len(plan.blocks))
        node.send(
            Shipment(
                expected=plan.old_head,
                new=plan.new_head,
                blocks=plan.blocks,
                read=dataset.chain.get_bytes,
                objects=plan.objects,
                path=lambda item: store_of(dataset, item.key.kind).verified_path(item.key.name),
                ref=self.peer.ref,
                force=plan.overwrites,
                visibility=Visibility.PUBLIC if self.options.public else Visibility.PRIVATE,
            ),
            self.progress,
        )

    def finish(self, plan: PushPlan) -> PushOutcome:
        warnings, conflict = self._cosigned()
        status = push_to_node(self.dataset, self.peer, plan.new_head, moved=not plan.up_to_date)
        problem = "; ".join(warnings) or None
        return PushOutcome(plan=plan, caveat=None, signature=status, problem=problem, conflict=conflict)


# A push as a user asks for it.


def push(sharing: Sharing, dataset: DatasetFiles, asked: PushOptions) -> PushOutcome:
    """`Dataset.push`: the destination has all that is pushed, or its readers see what it had."""
    trusted = tuple(parse_did(text) for text in sharing.workspace.config.audit.trusted_auditors)
    witnesses = sharing.witnesses if dataset.ref == HEAD else None
    # what witnesses will not cosign is not published, unless that is wanted
    rewound = witnesses.check_not_rewound(dataset) if witnesses is not None else None
    if rewound is not None and not asked.force:
        raise rewound
    run = functools.partial(push_dataset, dataset, trusted=trusted, witnesses=None if rewound else witnesses)
    outcome, remember = _at_destination(sharing, dataset, asked, run)
    if dataset.ref == HEAD:
        add_alias(dataset, AliasKind.PUSH, remember)
        _remember_head(sharing, dataset, outcome.plan.new_head)
    if (conflict := rewound or outcome.conflict) is not None:
        if not asked.force:
            raise conflict
        outcome = replace(outcome, problem="; ".join(filter(None, (outcome.problem, conflict.message))))
    return outcome


def plan_push(sharing: Sharing, dataset: DatasetFiles, asked: PushOptions) -> PushPlan:
    """Plan `push`; nothing is written or remembered."""
    return _at_destination(sharing, dataset, asked, functools.partial(plan_dataset_push, dataset))[0]


def _at_destination(
    sharing: Sharing, dataset: DatasetFiles, asked: PushOptions, run: Callable[[Store, PushOptions], _T]
) -> tuple[_T, str]:
    check_shareable(dataset)
    options = replace(asked, parallel=asked.parallel or sharing.config.parallel)
    url, remember = sharing.destination(dataset, options.target)
    chosen = sharing.peer_options(options.token if options.target else None, options.at_once)

    def at(url: PeerUrl, options: PushOptions) -> _T:
        with closing(open_writable(url, chosen, dataset.ref)) as peer:
            return run(peer, options)

    if url.is_smart and options.create and dataset.ref == HEAD:
        try:
            return at(url, replace(options, create=False)), remember
        except errors.DatasetNotFoundError:
            remember, url = sharing.at_account(remember, url, chosen)
    return at(url, options), remember


def _remember_head(sharing: Sharing, dataset: DatasetFiles, head: Multihash) -> None:
    # no later pull may go behind what was pushed, also once the dataset was deleted
    text = None
    with contextlib.suppress(errors.StoreError):  # the push is done, whatever is in the signature's place
        found = dataset.head_signature()
        if found.status is SignatureStatus.SIGNED and found.signed and found.signed.head == head:
            text = found.text
    seen = Seen(dataset.chain.get(head).sequence_number, head, text)
    keep(dataset, PUSHED, Reminder(Timestamp.now(), head, seen.sequence_number))
    SeenHeads(sharing.workspace.root / "seen").remember(dataset.id, seen)
