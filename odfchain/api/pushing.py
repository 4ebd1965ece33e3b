"""`push` of several datasets: their order and destinations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from odfchain.api.branching import check_branch, matching_at, on_branch
from odfchain.api.pulling import is_copy, with_inputs
from odfchain.errors import DatasetNotFoundError, InvalidIdError, OdfchainError, UsageError
from odfchain.odf.names import DatasetName, RepoName
from odfchain.transfer.public_layout import PeerUrl, PlainUrl
from odfchain.transfer.repositories import parse_peer_url
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

    Raises:
        InvalidIdError, DatasetNotFoundError, WorkspaceError, UnsupportedPeerError: a name means nothing here.
        UsageError: two of them would go to the same place, or `to` is one dataset for several.
    """
    sharing = workspace._sharing
    found = _named(workspace, names, to)
    if recursive:
        found = [
            dataset
            for dataset in with_inputs(workspace, found[::-1])  # so what is independent keeps its order
            # what came from elsewhere is there already
            if to is not None or dataset in found or not is_copy(dataset)
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


def split_target(
    workspace: Workspace, texts: Sequence[str], *, everything: bool
) -> tuple[list[str], str | None]:
    """Split names of datasets from the destination at the end: a URL, `repo/name`, or a repository's name.

    Raises:
        UsageError: no dataset is named, or one with `everything`; the last one may be either.
        DatasetNotFoundError: the last one is neither a dataset nor a place.
    """
    if (everything and len(texts) > 1) or not (everything or texts):
        raise UsageError("name the datasets to push (names, ids or % patterns), or use --all")
    if everything:
        return [], texts[0] if texts else None
    *names, last = texts
    if not names:
        return [last], None
    known = "/" not in last and _is_repository(workspace._sharing, last)
    if known and last in workspace:
        raise UsageError(
            f"{last} is a dataset here and a repository, too", hint=f"for the repository write --to {last}"
        )
    if known or ((":" in last or "/" in last) and workspace.is_remote(last)):
        return names, last
    if not {"/", "%", "@"} & set(last) and last not in workspace:
        raise DatasetNotFoundError(
            f"no dataset and no repository is called {last!r}",
            hint="`odfchain list` and `odfchain repo list` show those that there are",
        )
    return [*names, last], None


def _is_repository(sharing: Sharing, text: str) -> bool:
    try:
        return sharing.repositories.find(RepoName(text)) is not None
    except InvalidIdError:
        return False


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
        return parse_peer_url(to).dataset(str(name)).text
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
        place = PlainUrl.of(url)
        key = (place.protocol, place.server, *(each.lower() for each in place.path), files.ref)
        # the second push would find the first one's blocks there
        other = taken.setdefault(key, target)
        if other is not target:
            first, second = sorted(map(str, (other, target)))
            raise UsageError(
                f"{first} and {second} would both be pushed to {url}; nothing was sent",
                hint="push them one by one, each with a name of its own there: --to REPOSITORY/NAME",
            )


# Tokens for servers: those that the user keeps, and the one in the environment.

VARIABLE = "ODFCHAIN_TOKEN"


@dataclass(frozen=True, slots=True)
class TokenUse:
    """A token, and the servers to which it goes so that anybody on the way can read it."""

    token: str
    readable: tuple[str, ...]


def token_for(urls: Iterable[PeerUrl]) -> TokenUse | None:
    """The token in the environment, for the places that are named; None when there is none for them.

    Raises:
        UsageError: it would go to more than one server.
    """
    token = os.environ.get(VARIABLE)
    plain = [url.plain for url in urls] if token else []
    origins = {urlsplit(str(url))[:2] for url in plain if url.scheme in ("http", "https")}
    if not token or not origins:
        return None
    if len(origins) > 1:
        servers = " and ".join(sorted(f"{scheme}://{host}" for scheme, host in origins))
        raise UsageError(
            f"{VARIABLE} is a token for one server, not for {servers}",
            hint="pull from one server at a time",
        )
    return TokenUse(token, tuple(host for scheme, host in origins if scheme == "http" and not _is_here(host)))


def _is_here(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    return name in {"localhost", "::1"} or name.startswith("127.")
