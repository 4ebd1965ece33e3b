"""Pulling datasets from peers: which options of `pull` are for that, and what is printed of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from odfchain.cli.common import TIMESTAMP, DurationParam
from odfchain.cli.output import human_size
from odfchain.cli.progress_bar import TerminalProgress, TransferProgress
from odfchain.cli.screen import echo
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain.model.timestamp import Timestamp
    from odfchain.transfer.public_layout import PeerUrl
    from odfchain.transfer.sharing import Pulled, Sharing
    from odfchain.trust.policy import SignaturePolicy

_Command = TypeVar("_Command", bound=Callable[..., Any])

TOKEN_VARIABLE = "ODFCHAIN_TOKEN"  # noqa: S105 - its name, no secret
COLUMNS = ("objects", "bytes", "signature")
"""Of copies, beside those of every pull."""

PARALLEL = click.IntRange(1, 100)


@dataclass(frozen=True, slots=True)
class Remote:
    """A dataset elsewhere, as it was named, and its URL."""

    ref: str
    url: PeerUrl

    def __str__(self) -> str:
        return str(self.url) if ":" in self.ref else self.ref


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """What the command line says of how copies are pulled."""

    name: str | None
    force: bool
    metadata_only: bool
    since: Timestamp | None
    last: int | None
    parallel: int | None
    require_signature: bool | None
    max_age: float | None


def copy_options(command: _Command) -> _Command:
    """The options of `pull` that are for copies of datasets elsewhere, as one value `copies`."""

    @functools.wraps(command)
    def collected(*args: Any, **kwargs: Any) -> Any:
        found = {name: kwargs.pop(name) for name in _FOR_COPIES - {"copy_name"}}
        return command(*args, copies=CopyOptions(name=kwargs.pop("copy_name"), **found), **kwargs)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected  # type: ignore[return-value]  # a wrapper of the same


def part_options(command: _Command) -> _Command:
    """The options that choose the newest part of a dataset: `since`, `last`."""
    for option in reversed(_PART):
        command = option(command)
    return command


_PART = (
    click.option(
        "--since", type=TIMESTAMP, help="Of the data, bring only what was recorded at this time or later."
    ),
    click.option(
        "--last", type=click.IntRange(min=1), metavar="N", help="Of the data, bring only the newest N slices."
    ),
)
PARALLEL_OPTION = click.option(
    "--parallel", type=PARALLEL, metavar="N", help="Objects transferred at the same time."
)
_OPTIONS = (
    click.option(
        "--as", "copy_name", metavar="NAME", help="What to call a dataset that is pulled from a URL."
    ),
    click.option("--force", is_flag=True, help="Replace a copy that has other blocks than its peer."),
    click.option("--metadata-only", is_flag=True, help="Bring the chain of a dataset, and none of its data."),
    *_PART,
    PARALLEL_OPTION,
    click.option(
        "--require-signature/--no-require-signature",
        default=None,
        help="Refuse a head that its owner has not signed, now and from now on.",
    ),
    click.option(
        "--max-age",
        type=DurationParam(),
        help="Refuse a head whose signature is older, such as 7d, now and from now on.",
    ),
)

_FOR_COPIES = {
    "copy_name", "force", "metadata_only", "since", "last", "parallel", "require_signature", "max_age",
}  # fmt: skip
_FOR_BOTH = {"datasets", "everything", "recursive", "watch", "output"}


def check_options(context: click.Context, *, copies: int, others: int) -> None:
    """No option was given that is for no dataset of this pull.

    Raises:
        UsageError: one was; the message names it.
    """
    for param in context.command.params:
        name = param.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if not given or name in _FOR_BOTH:
            continue
        if name in _FOR_COPIES and not copies:
            raise UsageError(
                f"{param.opts[0]} is for copies of datasets elsewhere, and none is pulled",
                hint="name a URL or repository/dataset",
            )
        if name not in _FOR_COPIES and not others:
            raise UsageError(
                f"{param.opts[0]} is for sources and queries; what is pulled is a copy of a dataset elsewhere"
            )


def token_for(urls: Iterable[PeerUrl]) -> str | None:
    """The token for the places that the command line names; None when there is none.

    Raises:
        UsageError: it would go to more than one server.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        return None
    origins = {urlsplit(str(url))[:2] for url in urls if url.scheme in ("http", "https")}
    if len(origins) > 1:
        servers = " and ".join(sorted(f"{scheme}://{host}" for scheme, host in origins))
        raise UsageError(
            f"{TOKEN_VARIABLE} is a token for one server, not for {servers}",
            hint="pull from one server at a time",
        )
    for scheme, host in origins:
        if scheme == "http" and not _is_here(host):
            said = f"warning: {TOKEN_VARIABLE} goes to {host} over plain http: anybody on the way can read it"
            echo(said, err=True)
    return token if origins else None


def _is_here(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    return name in {"localhost", "::1"} or name.startswith("127.")


def pull_copy(
    sharing: Sharing, ref: str, chosen: CopyOptions, token: str | None, progress: TerminalProgress
) -> Pulled:
    """A copy is brought up to date, or made."""
    from odfchain.transfer.sync import SyncOptions

    options = SyncOptions(
        force=chosen.force,
        metadata_only=chosen.metadata_only,
        since=chosen.since,
        last=chosen.last,
        parallel=chosen.parallel or sharing.config.parallel,
        signature=signature_policy(require=chosen.require_signature, max_age=chosen.max_age),
    )
    return sharing.pull(ref, chosen.name, options, token=token, progress=TransferProgress(progress))


def signature_policy(*, require: bool | None, max_age: float | None) -> SignaturePolicy | None:
    """What the options of a command want of signatures; None when they say nothing.

    Raises:
        UsageError: they contradict each other.
    """
    if require is None and max_age is None:
        return None
    if require is False and max_age is not None:
        raise UsageError("--max-age needs a signature, which --no-require-signature does without")
    from odfchain.trust.policy import SignaturePolicy

    return SignaturePolicy(require=require is not False, max_age=None if max_age is None else round(max_age))


def copy_row(pulled: Pulled, *, people: bool) -> dict[str, Any]:
    """What is printed of a copy."""
    outcome = pulled.outcome
    row: dict[str, Any] = {
        "dataset": str(pulled.alias),
        "status": outcome.status.value.replace("-", " "),
        "blocks": outcome.blocks,
        "objects": outcome.objects,
        "bytes": human_size(outcome.bytes) if people else outcome.bytes,
        "signature": str(outcome.signature.status) if outcome.signature else None,
    }
    if outcome.missing_slices:
        row["missing"] = outcome.missing_slices
    if not people:
        row |= {"source": pulled.where, "head": str(outcome.new), "oldHead": outcome.old and str(outcome.old)}
        row |= {
            "signatureMessage": outcome.signature.message if outcome.signature else None,
            "attestations": outcome.attestations,
            "warnings": list(outcome.warnings),
        }
    return row
