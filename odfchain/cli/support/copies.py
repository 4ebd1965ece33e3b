"""Pulling datasets from peers: which options of `pull` are for that, and what is printed of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.support.output import human_size
from odfchain.cli.support.parameters import PARALLEL_OPTION, PART_OPTIONS, DurationParam

if TYPE_CHECKING:
    from odfchain import PullResult

_Command = TypeVar("_Command", bound=Callable[..., Any])


COLUMNS = ("objects", "bytes", "signature")
"""Of copies, beside those of every pull."""


def copy_options(command: _Command) -> _Command:
    """The options of `pull` that are for copies of datasets elsewhere, named as in `Workspace.pull`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--as", "name", metavar="NAME", help="What to call a dataset that is pulled from a URL."),
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


def copy_row(result: PullResult, *, people: bool) -> dict[str, Any]:
    """What is printed of a copy."""
    outcome: Any = result.details
    row: dict[str, Any] = {
        "dataset": str(result.dataset.alias),
        "status": result.status,
        "blocks": outcome.blocks,
        "objects": outcome.objects,
        "bytes": human_size(outcome.bytes) if people else outcome.bytes,
        "signature": str(outcome.signature.status) if outcome.signature else None,
    }
    if outcome.missing_slices:
        row["missing"] = outcome.missing_slices
    if not people:
        row |= {"source": result.where, "head": str(outcome.new), "oldHead": outcome.old and str(outcome.old)}
        row |= {
            "signatureMessage": outcome.signature.message if outcome.signature else None,
            "attestations": outcome.attestations,
            "warnings": list(outcome.warnings),
        }
    return row
