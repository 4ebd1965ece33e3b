"""The options of commands that verify, and the exit codes of what they find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import options, silence_libraries
from odfchain.cli.support.faults import INTEGRITY_FAULT, UNCHECKED
from odfchain.cli.support.parameters import together
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Report
    from odfchain.api.options import VerifyKeywords


verify_options = together(
    click.option(
        "--replay", is_flag=True, help="Compute the transactions of derivative datasets again, and compare."
    ),
    click.option("--integrity", is_flag=True, help="Compute nothing again (the default)."),
    click.option("--recursive", is_flag=True, help="Verify what the datasets come from first."),
    click.option("--require-signature", is_flag=True, help="An unsigned head is a fault, not only a note."),
    click.option("--profiles", is_flag=True, help="Compute the signed profiles of its blocks again."),
    click.option(
        "--trusted-by",
        default=0,
        metavar="N",
        type=click.IntRange(min=0),
        help="With --replay: leave out what N auditors whom the settings trust have replayed.",
    ),
    click.option(
        "--jobs",
        default=2,
        show_default=True,
        type=click.IntRange(min=1),
        help="Slices read, or transactions replayed, side by side.",
    ),
)
"""The options of every command that verifies."""


def chosen_checks(*, replay: bool, integrity: bool, **others: Any) -> VerifyKeywords:
    """What is to be checked, as the options say.

    Raises:
        UsageError: they contradict each other.
    """
    if replay and integrity:
        raise UsageError("--integrity and --replay exclude each other")
    if replay and not options().debug:
        silence_libraries()
    return {"replay": replay, **others}  # type: ignore[typeddict-item]  # the names of the options


def exit_code_of(reports: Iterable[Report]) -> int:
    """What a program learns of the verdicts: the worst of them."""
    verdicts = {report.verdict for report in reports}
    return INTEGRITY_FAULT if "faulty" in verdicts else UNCHECKED if "incomplete" in verdicts else 0
