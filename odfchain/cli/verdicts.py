"""Reports of verifications as people read them: the verdict, faults, what was not checked, the signature.

In a terminal these are tables, and what is clean takes few lines. Elsewhere they are plain lines, one fact to
a line and the same with every version, which scripts may look for.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odfchain.cli.output import human_size
from odfchain.cli.screen import echo, echo_table

if TYPE_CHECKING:
    from odfchain.results import Report


_STATES = {"notChecked": "not checked", "notApplicable": "nothing"}


def print_report(report: Report, *, verbose: bool = False) -> None:
    """One report; with `verbose` all checks are listed also where the dataset is clean."""
    _print_verdict(report)
    if sys.stdout.isatty():
        _print_tables(report, verbose=verbose)
        return
    _print_lines(report)
    if verbose:
        _print_checks(report)


def _print_verdict(report: Report) -> None:
    word, colour = {"faulty": ("FAULT ", "red"), "clean": ("ok    ", "green")}.get(
        report.verdict, ("PART  ", "yellow")
    )
    echo(word, fg=colour, bold=True, nl=False)
    echo(
        f"{report.alias}: {report.blocks:,} blocks, {report.slices:,} slices, {report.records:,} records, "
        f"{human_size(report.data_bytes)}{_replayed(report)}"
    )


def _replayed(report: Report) -> str:
    if report.replay is None:
        return ""
    count, engines = report.replay.transactions, report.replay.engines
    said = f", replayed {count:,} transaction{'' if count == 1 else 's'}"
    return f"{said} with {' and '.join(engines)}" if engines else said


def _print_lines(report: Report) -> None:
    for fault in report.faults:
        block = f", block {fault.sequence_number}" if fault.sequence_number is not None else ""
        echo(f"  {_named([fault.check])}{block}")
        echo(f"    {fault.file}")
        echo(f"    {fault.message}")
    for item in report.unchecked:
        echo(f"  not checked{', ' + item.where if item.where else ''}: {item.message}")
    for numbers, reason in report.not_run():
        echo(f"  not run, or not everywhere: {_named(numbers)}: {reason}")
    for note in report.remarks:
        echo(f"  note: {note}")


def _named(numbers: list[int]) -> str:
    from odfchain.audit.report import CHECKS

    if len(numbers) > 3:
        return "checks " + ", ".join(map(str, numbers))
    return ", ".join(f"check {n} ({CHECKS[n].name})" for n in numbers)


def _print_tables(report: Report, *, verbose: bool) -> None:
    long = verbose or report.verdict != "clean"
    if report.faults:
        echo()
        rows = [
            {
                "check": _numbered(fault.check),
                "block": fault.sequence_number,
                "file, and what is wrong with it": (fault.file, fault.message),
            }
            for fault in report.faults
        ]
        _print_rows(rows, right=["block"])
    if long:
        echo()
        _print_checks(report)
    # the signature has a line of its own
    left = [(n, reason) for n, reason in report.not_run() if reason != report.signature.message]
    if long and (report.unchecked or left):
        echo()
        asked = [(item.where or "the dataset", item.message) for item in report.unchecked]
        others = [(_numbers(numbers), reason) for numbers, reason in left]
        _print_rows([{"not checked": what, "because": why} for what, why in asked + others], keep=[])
    if long:
        echo()
    _say(report.signature_text)
    if not long:
        for numbers, reason in left:
            _say(f"not checked: {_named(numbers)}: {reason}")
    for note in report.remarks:
        if note != report.signature.message:
            _say(f"note: {note}")
    if long:
        echo()


def _print_checks(report: Report) -> None:
    from odfchain.audit.report import CHECKS

    rows = [
        {
            "check": _numbered(number),
            "state": _STATES.get(report.state(number), report.state(number)),
            "checked": report.done.get(number, 0),
            "faults": sum(fault.check == number for fault in report.faults),
            "section": check.section,
        }
        for number, check in CHECKS.items()
    ]
    _print_rows(rows, right=["checked", "faults"])


def _print_rows(
    rows: list[dict[str, Any]], *, right: Sequence[str] = (), keep: Sequence[str] = ("check",)
) -> None:
    names = list(rows[0])
    echo_table(
        names,
        [[_cell(cell) for cell in row.values()] for row in rows],
        right={names.index(name) for name in right},
        no_wrap={names.index(name) for name in (*keep, *right)},
    )


def _cell(value: Any) -> str | tuple[str, ...]:
    return value if isinstance(value, tuple) else "" if value is None else str(value)


def _say(text: str) -> None:
    for line in textwrap.wrap(
        text,
        max(40, shutil.get_terminal_size().columns),
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    ):
        echo(line)


def _numbered(number: int) -> str:
    from odfchain.audit.report import CHECKS

    return f"{number:>2} {CHECKS[number].name}"


def _numbers(numbers: list[int]) -> str:
    return f"check{'s' if len(numbers) > 1 else ''} " + ", ".join(map(str, numbers))
