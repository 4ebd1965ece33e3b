"""`push` of several datasets: their order and destinations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.api.branching import check_branch, matching_at, on_branch
from odfchain.api.pulling import with_inputs
from odfchain.errors import OdfchainError, UsageError
from odfchain.odf.names import DatasetName, RepoName
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.sharing import AliasKind, aliases

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.transfer.sharing import Sharing


@dataclass(frozen=True, slots=True)
class PushTarget:
    """One dataset of a push; `target.dataset.push(target.to)` sends it."""

    dataset: Dataset
    to: str | None
    """A URL or `repo/name`; None is where it was pushed to before."""

    def __str__(self) -> str:
        return self.dataset.label


def targets_of(
    workspace: Workspace, names: Sequence[str] | None, to: str | None, *, recursive: bool
) -> list[PushTarget]:
    """Targets of a push of these names, inputs before what is made of them; None is everything.

    One dataset by its name goes to `to` itself, or below it where that is a repository's name; several go to
    a repository, each by its own name there.
    """
    sharing = workspace._sharing
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
    if to is None:
        targets = [PushTarget(dataset, None) for dataset in found]
    elif recursive or names is None or len(names) != 1 or "%" in names[0]:
        targets = [PushTarget(dataset, _below(sharing, to, dataset.alias.name)) for dataset in found]
    else:
        targets = [PushTarget(dataset, to) for dataset in found]
    _refuse_collisions(sharing, targets)
    return targets


def _named(workspace: Workspace, names: Iterable[str] | None, to: str | None) -> list[Dataset]:
    if names is None:
        return [each for each in workspace if to is not None or each.aliases(AliasKind.PUSH.value)]
    found: list[Dataset] = []
    for name in names:
        check_branch(name)
        found += matching_at(workspace, name) if "%" in name else [_one(workspace, name)]
    return list(dict.fromkeys(found))


def _one(workspace: Workspace, name: str) -> Dataset:
    workspace._sharing.named(name.partition("@")[0])  # says what `a/b` may have meant
    return on_branch(workspace, name)


def _inputs_first(workspace: Workspace, datasets: list[Dataset]) -> list[Dataset]:
    try:
        return [dataset for dataset in with_inputs(workspace, datasets[::-1]) if dataset in datasets]
    # the order is best effort: every dataset that can be pushed is pushed
    except OdfchainError:
        return datasets


def _below(sharing: Sharing, to: str, name: DatasetName) -> str:
    if "://" in to or to.lower().startswith("file:"):
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
        other = taken.setdefault(key, target)
        if other is not target:
            first, second = sorted(map(str, (other, target)))
            raise UsageError(
                f"{first} and {second} would both be pushed to {url}; nothing was sent",
                hint="push them one by one, each with a name of its own there: --to REPOSITORY/NAME",
            )
