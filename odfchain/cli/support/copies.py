"""Pulling datasets from peers: which options of `pull` are for that, and what is printed of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.support.output import human_size
from odfchain.cli.support.parameters import PARALLEL_OPTION, PART_OPTIONS, DurationParam
from odfchain.cli.support.peers import signature_policy
from odfchain.cli.support.progress_bar import TerminalProgress, TransferProgress
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import PeerUrl, Timestamp
    from odfchain.transfer.sharing import Pulled, Sharing

_Command = TypeVar("_Command", bound=Callable[..., Any])


COLUMNS = ("objects", "bytes", "signature")
"""Of copies, beside those of every pull."""


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


_OPTIONS = (
    click.option(
        "--as", "copy_name", metavar="NAME", help="What to call a dataset that is pulled from a URL."
    ),
    click.option("--force", is_flag=True, help="Replace a copy that has other blocks than its peer."),
    click.option("--metadata-only", is_flag=True, help="Bring the chain of a dataset, and none of its data."),
    *PART_OPTIONS,
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
