"""`pull` of a dataset, from its polling source, its inputs, or its peer; targets of pulls and pushes."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from odfchain.api.branching import check_branch, commit_checks, matching_at, on_branch
from odfchain.errors import ManifestError, OdfchainError, UsageError
from odfchain.limits import LIMITS, FetchLimits
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetName, RepoName, check_branch_name
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.workspace import options
from odfchain.workspace.merge_record import FetchedBranches
from odfchain.workspace.private_notes import ASKED, Reminder, keep

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.chain.checkpoints import WitnessPolicy
    from odfchain.ingest.ingesting import InputOutcome, PullOutcome
    from odfchain.ingest.polling import FetchAhead, FetchOptions
    from odfchain.storage.locations import PeerUrl
    from odfchain.transfer.pulling import SyncOutcome
    from odfchain.transfer.sharing import Sharing
    from odfchain.transfer.signed_statements import SignaturePolicy
    from odfchain.transform.catch_up import StepOutcome, TransformOutcome


class Way(Enum):
    """Kinds of pull."""

    SOURCE = "source"
    INPUTS = "inputs"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class PullTarget:
    """One dataset of a pull: of this workspace, or elsewhere (`url`) and perhaps not here yet."""

    ref: str
    way: Way
    dataset: Dataset | None = None
    url: PeerUrl | None = None
    source: str | None = None
    """The source of a branch; None is where it came from before."""

    def __str__(self) -> str:
        return str(self.url) if self.url is not None and ":" in self.ref else self.ref


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """Result of a pull of a dataset; `head` is `old_head` when there was nothing new."""

    dataset: Dataset
    way: Way
    status: str
    """`created`, `updated`, `overwritten`, `up to date`, or why nothing was done."""
    old_head: Multihash | None
    head: Multihash
    blocks: int
    """Blocks that are new here [count]."""
    rows: int
    """Rows read of the source or the inputs [count]; 0 for copies."""
    operations: Mapping[str, int]
    """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""
    watermark: Timestamp | None
    details: PullOutcome | TransformOutcome | SyncOutcome
    """Details of this kind of pull."""
    where: str | None = None
    """The URL of the peer."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user."""
        return getattr(self.details, "warnings", ())

    def __repr__(self) -> str:
        written = ", ".join(f"{n:,} {op}" for op, n in self.operations.items() if n)
        found = [f"{self.dataset.label}: {self.status}", f"{self.blocks:,} blocks", written]
        return f"<pull of {', '.join(part for part in found if part)}>"


def targets_of(workspace: Workspace, names: Iterable[str] | None, *, recursive: bool) -> list[PullTarget]:
    """Targets of a pull of these names, in order; None is everything."""
    sharing = workspace.sharing
    remotes: dict[str, PullTarget] = {}
    named: list[Dataset] = []
    for name in names or ():
        if sharing.is_remote(name):
            remotes[name] = PullTarget(name, Way.PEER, url=sharing.url_of(name))
        else:
            if "%" not in name:
                sharing.named(name.partition("@")[0])  # says what `a/b` may have meant
            check_branch(name)
            named += matching_at(workspace, name)
    if names is None:
        named = [dataset for dataset in workspace if _is_pullable(dataset)]
    ordered = list(dict.fromkeys(named))
    if recursive or (names is None and any(d.kind is DatasetKind.DERIVATIVE for d in ordered)):
        # what was not asked for by name may have no source to pull from: its data are pushed
        ordered = [d for d in with_inputs(workspace, ordered) if d in named or _is_pullable(d)]
    # what comes from elsewhere may be an input of the others
    return [*remotes.values(), *map(target_of, ordered)]


def target_of(dataset: Dataset) -> PullTarget:
    """How a dataset of the workspace is brought up to date."""
    files = dataset._files
    branch, is_copy = dataset.ref != HEAD, dataset._workspace._files.is_copy
    if FetchedBranches(files).find(dataset.ref) if branch else is_copy(files):
        way = Way.PEER
    else:
        way = Way.INPUTS if dataset.kind is DatasetKind.DERIVATIVE else Way.SOURCE
    return PullTarget(dataset.label, way, dataset)


def branch_target(workspace: Workspace, text: str, source: str | None) -> PullTarget:
    """The branch `DATASET@BRANCH`, which may not be here yet, as it is at another place.

    Raises:
        UsageError, InvalidIdError: no branch is named, or the source is none.
    """
    from odfchain.api.dataset import Dataset

    name, _, branch = text.partition("@")
    if not branch:
        raise UsageError(
            f"{name}: --from says where a branch comes from",
            hint=f"name it: odfchain pull {name}@BRANCH --from URL; a dataset is pulled by its URL alone",
        )
    files = workspace[name]._files.on(check_branch_name(branch))
    sharing = workspace.sharing
    if source is not None and not sharing.is_remote(source):
        raise UsageError(f"{source}: not a URL, and not repository/dataset of a repository that is known")
    url = sharing.url_of(source) if source is not None else None
    return PullTarget(text, Way.PEER, Dataset(workspace, files), url, source)


_FOR_BRANCHES = frozenset({"force", "parallel", "require_signature", "max_age"})


def check_branch_options(labels: Mapping[str, Any]) -> None:
    """Check that the options apply to a branch that is pulled.

    Raises:
        UsageError: it does not; the message names it.
    """
    for name, label in labels.items():
        if name not in _FOR_BRANCHES:
            shown = label if str(label).startswith("--") else name
            raise UsageError(f"{shown} does not apply to a branch that is pulled from another place")


def _is_pullable(dataset: Dataset) -> bool:
    return (
        dataset.kind is DatasetKind.DERIVATIVE
        or dataset.summary.polling_source is not None
        or dataset._workspace._files.is_copy(dataset._files)
    )


def with_inputs(workspace: Workspace, datasets: Iterable[Dataset]) -> list[Dataset]:
    """The datasets and what they come from, inputs first; of copies the inputs do not matter."""
    from odfchain.api.dataset import Dataset

    upstream = workspace._files.with_upstream([d._files for d in datasets], workspace._files.is_copy)
    return [Dataset(workspace, found) for found in upstream]


def pull(
    workspace: Workspace,
    target: PullTarget,
    asked: options.PullOptions,
    *,
    name: str | None = None,
    token: str | None = None,
    ahead: FetchAhead | None = None,
) -> PullResult:
    """Bring one target up to date, whose source may be fetched `ahead`."""
    if target.way is Way.PEER:
        found = _from_peer(workspace, target, asked, name, token)
    else:
        assert target.dataset is not None  # noqa: S101 - only what a peer has is elsewhere
        if target.way is Way.INPUTS:
            return _from_inputs(target.dataset, asked)
        found = _from_source(target.dataset, asked, ahead)
    if found.dataset.ref == HEAD:
        keep(found.dataset._files, ASKED, Reminder(Timestamp.now()))
    return found


def check_alone(target: PullTarget, name: str | None, asked: options.PullOptions) -> None:
    """Check that the options apply to this target."""
    copies = int(target.way is Way.PEER)
    named = options.given_options(asked, options.PullOptions) + ["name"] * (name is not None)
    check_pull_options(dict(zip(named, named, strict=True)), copies=copies, others=1 - copies)


_FOR_COPIES = frozenset(options.CopyOptions.__annotations__) | {"name"}
_FOR_OTHERS = frozenset(
    each.name for kind in (options.SourceOptions, options.InputsOptions) for each in fields(kind)
)


def check_pull_options(given: Mapping[str, str], *, copies: int, others: int) -> None:
    """Every option applies to at least one dataset of a pull; `given` says what the caller calls each.

    Raises:
        UsageError: one does not; the message names it.
    """
    for name, label in given.items():
        if name in _FOR_COPIES and not copies:
            raise UsageError(
                f"{label} applies only to datasets pulled from a URL", hint="name a URL or repository/dataset"
            )
        if name in _FOR_OTHERS and not others:
            raise UsageError(f"{label} applies only to datasets with a source or a query, not to copies")


def signature_policy(*, require: bool | None, max_age: float | None) -> SignaturePolicy | None:
    """The required signatures; None without an option.

    Raises:
        UsageError: the two contradict each other.
    """
    if require is None and max_age is None:
        return None
    if require is False and max_age is not None:
        raise UsageError("--max-age needs a signature, which --no-require-signature does without")
    from odfchain.transfer.signed_statements import SignaturePolicy

    return SignaturePolicy(require=require is not False, max_age=None if max_age is None else round(max_age))


def _witness_policy(path: str) -> WitnessPolicy:
    from odfchain.chain.checkpoints import WitnessPolicy
    from odfchain.odf.tree import from_tree
    from odfchain.odf.yaml import read_document

    data = fsio.read_named(path, LIMITS.manifest_bytes)
    try:
        return from_tree(WitnessPolicy, read_document(data, source=path).value)
    except ManifestError as error:
        raise error.located(source=path) from None


def _fetch_options(dataset: Dataset, asked: options.PullOptions) -> FetchOptions:
    from odfchain.ingest.polling import FetchOptions

    files = dataset._workspace._files
    config, own = files.config, files.has_key(dataset._files.id)
    return FetchOptions(
        system_time=options.maybe_time(asked.system_time),
        fetch_uncacheable=asked.fetch_uncacheable,
        # what the source of a dataset that was made here runs is trusted
        allow_commands=asked.allow_commands or config.ingest.allow_commands or own,
        variables=config.ingest.values | dict(asked.variables or {}),
        bindings=config.ingest.bindings,
        limits=FetchLimits(
            deadline=config.fetch.deadline_seconds,
            retries=config.fetch.retries,
            max_bytes=config.fetch.max_bytes,
            allow_private=config.fetch.allow_private_redirects,
        ),
    )


def _from_source(dataset: Dataset, asked: options.PullOptions, ahead: FetchAhead | None) -> PullResult:
    from odfchain.ingest.ingesting import Ingestion

    known, files = dataset._workspace._engines, dataset._files
    start = functools.partial(known.session, asked.progress)
    merge, fetch = dataset._ingest_options(asked), _fetch_options(dataset, asked)
    with known.of(files, asked.progress) as engines, commit_checks(dataset._workspace, asked) as check:
        run = Ingestion(files, start, engines, merge, asked.progress, check)
        outcome = run.pull(fetch, expect_rows=known.begin, ahead=ahead)
    return _result(dataset, Way.SOURCE, outcome.status.value, outcome, outcome.inputs)


def _from_inputs(dataset: Dataset, asked: options.PullOptions) -> PullResult:
    from odfchain.transform.catch_up import run_transform

    files, workspace = dataset._files, dataset._workspace
    inputs = workspace._files.inputs_of(files)
    config = workspace._files.config
    with (
        workspace._engines.of(files, asked.progress, timeout=asked.timeout) as engines,
        commit_checks(workspace, asked) as check,
    ):
        outcome = run_transform(files, inputs, engines, asked, config, check=check)
    status = "updated" if outcome.blocks else outcome.reason or "up to date"
    return _result(dataset, Way.INPUTS, status, outcome, outcome.steps)


def _from_peer(
    workspace: Workspace, target: PullTarget, asked: options.PullOptions, name: str | None, token: str | None
) -> PullResult:
    from odfchain.transfer import pulling as transfer
    from odfchain.transfer.pulling import SyncOptions

    sharing = workspace.sharing
    chosen = SyncOptions(
        force=asked.force,
        metadata_only=asked.metadata_only,
        since=options.maybe_time(asked.since),
        last=asked.last,
        parallel=asked.parallel or sharing.config.parallel,
        accept_successor=asked.accept_successor,
        signature=signature_policy(require=asked.require_signature, max_age=asked.max_age),
        witnesses=() if asked.witnesses is None else (_witness_policy(asked.witnesses),),
        progress=asked.progress,
    )
    if target.dataset is not None and target.dataset.ref != HEAD:
        dataset = target.dataset
        pulled = transfer.pull_branch(sharing, dataset._files, target.source, chosen, token=token)
    else:
        pulled = transfer.pull(sharing, target.ref, name, chosen, token=token)
        dataset = workspace[pulled.alias]
    outcome = pulled.outcome
    return PullResult(
        dataset=dataset,
        way=Way.PEER,
        status=outcome.status.value.replace("-", " "),
        old_head=outcome.old,
        head=outcome.new,
        blocks=outcome.blocks,
        rows=0,
        operations={},
        watermark=dataset.summary.watermark,
        details=outcome,
        where=pulled.where,
    )


def _result(
    dataset: Dataset,
    way: Way,
    status: str,
    outcome: PullOutcome | TransformOutcome,
    parts: Sequence[InputOutcome] | Sequence[StepOutcome],
) -> PullResult:
    written: Counter[str] = Counter()
    for part in parts:
        written.update(part.operations)
    return PullResult(
        dataset=dataset,
        way=way,
        status=status,
        old_head=outcome.old_head,
        head=outcome.head,
        blocks=outcome.blocks,
        rows=sum(part.input_rows for part in parts),
        operations={op: written[op] for op in ("+A", "-R", "-C", "+C")},
        watermark=outcome.watermark,
        details=outcome,
    )


# Sources of several datasets are fetched side by side; what is new is recorded one after the other.

# Sources that are fetched, or wait for their turn with what was fetched: so much is on the disk at most.
_AT_ONCE = 4


class Pulls:
    """Pulls of several targets in their order, as `Workspace.pull`; `close` ends what is fetched ahead."""

    def __init__(
        self,
        workspace: Workspace,
        targets: list[PullTarget],
        asked: options.PullOptions,
        *,
        name: str | None = None,
        token: str | None = None,
    ) -> None:
        self._workspace, self._asked = workspace, asked
        self._elsewhere = {"name": name, "token": token}
        sources = [target for target in targets if target.way is Way.SOURCE]
        self._waiting = deque(sources if len(sources) > 1 else ())
        self._begun: dict[Dataset, FetchAhead] = {}
        self._taken: FetchAhead | None = None

    def pull(self, target: PullTarget, progress: Progress) -> PullResult:
        """Pull one of them."""
        asked = replace(self._asked, progress=progress)
        return pull(self._workspace, target, asked, ahead=self._of(target), **self._elsewhere)

    def _of(self, target: PullTarget) -> FetchAhead | None:
        from odfchain.ingest.polling import FetchAhead

        # the next ones are fetched meanwhile
        while self._waiting and len(self._begun) < _AT_ONCE:
            dataset = self._waiting.popleft().dataset
            assert dataset is not None  # noqa: S101 - sources are of datasets that are here
            chosen = functools.partial(_fetch_options, dataset, self._asked)
            begin = self._workspace._engines.begin
            self._begun[dataset] = FetchAhead(dataset._files, chosen, begin)
        self._end()
        self._taken = None if target.dataset is None else self._begun.pop(target.dataset, None)
        return self._taken

    def _end(self) -> None:
        if self._taken is not None:
            self._taken.close()
            self._taken = None

    def close(self) -> None:
        """Stop the fetches, and wait for them."""
        self._end()
        # all are stopped before the first is waited for
        for ahead in self._begun.values():
            ahead.stop()
        for ahead in self._begun.values():
            ahead.close()


# `push` of several datasets: their order and destinations.


@dataclass(frozen=True, slots=True)
class PushTarget:
    """One dataset of a push; `target.dataset.push(target.to)` sends it."""

    dataset: Dataset
    to: str | None
    """A URL or `repo/name`; None is where it was pushed to before."""

    def __str__(self) -> str:
        return self.dataset.label


def push_targets(
    workspace: Workspace, names: Sequence[str] | None, to: str | None, *, recursive: bool
) -> list[PushTarget]:
    """Targets of a push of these names, inputs before what is made of them; None is everything.

    One dataset by its name goes to `to` itself, or below it where that is a repository's name; several go to
    a repository, each by its own name there.
    """
    sharing = workspace.sharing
    found = _named(workspace, names, to)
    if recursive:
        found = [
            dataset
            for dataset in with_inputs(workspace, found[::-1])  # so what is independent keeps its order
            # what came from elsewhere is there already
            if to is not None or dataset in found or not workspace._files.is_copy(dataset._files)
        ]
    elif names is None:
        found = _inputs_first(workspace, found)
    if to is not None and (recursive or names is None or len(names) != 1 or "%" in names[0]):
        targets = [PushTarget(dataset, _below(sharing, to, dataset.alias.name)) for dataset in found]
    else:
        targets = [PushTarget(dataset, to) for dataset in found]
    _refuse_collisions(sharing, targets)
    return targets


def _named(workspace: Workspace, names: Iterable[str] | None, to: str | None) -> list[Dataset]:
    if names is None:
        from odfchain.transfer.sharing import AliasKind

        return [each for each in workspace if to is not None or each.aliases(AliasKind.PUSH.value)]
    found: list[Dataset] = []
    for name in names:
        check_branch(name)
        found += matching_at(workspace, name) if "%" in name else [_one(workspace, name)]
    return list(dict.fromkeys(found))


def _one(workspace: Workspace, name: str) -> Dataset:
    workspace.sharing.named(name.partition("@")[0])  # says what `a/b` may have meant
    return on_branch(workspace, name)


def _inputs_first(workspace: Workspace, datasets: list[Dataset]) -> list[Dataset]:
    try:
        return [dataset for dataset in with_inputs(workspace, datasets[::-1]) if dataset in datasets]
    # the order is best effort: every dataset that can be pushed is pushed
    except OdfchainError:
        return datasets


def _below(sharing: Sharing, to: str, name: DatasetName) -> str:
    if "://" in to or to.lower().startswith("file:"):
        from odfchain.storage.locations import PeerUrl

        return PeerUrl.parse(to).dataset(str(name)).text
    if "/" in to:
        sharing.url_of(to)  # says what else is wrong with it
        raise UsageError(
            f"{to} is one dataset, and several are to be pushed",
            hint=f"name the repository, and they keep their names: --to {to.partition('/')[0]}",
        )
    # fails for an unknown repository
    sharing.repositories.get(RepoName(to))
    return f"{to}/{name}"


def _refuse_collisions(sharing: Sharing, targets: Iterable[PushTarget]) -> None:
    from odfchain.transfer.sharing import AliasKind, aliases

    taken: dict[tuple[object, ...], PushTarget] = {}
    for target in targets:
        files = target.dataset._files
        text = target.to or next(iter(aliases(files, AliasKind.PUSH)), None)
        if text is None:
            continue  # which is said when its turn comes
        try:
            url = sharing.destination(files, text)[0]
        except OdfchainError:
            if target.to is not None:
                raise
            continue  # as above
        protocol, server, path = url.normal()
        key = (protocol, server, *(each.lower() for each in path), files.ref)
        # the second push would find the first one's blocks there
        if (other := taken.setdefault(key, target)) is not target:
            first, second = sorted(map(str, (other, target)))
            raise UsageError(
                f"{first} and {second} would both be pushed to {url}; nothing was sent",
                hint="push them one by one, each with a name of its own there: --to REPOSITORY/NAME",
            )
