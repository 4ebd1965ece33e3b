"""`odfchain attestations`: the verdicts of auditors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.faults import INTEGRITY_FAULT
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import DATASET
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import ListedAttestation


@click.command("attestations")
@click.argument("dataset", type=DATASET)
@click.option(
    "--add", "file", type=click.File("r"), help="Keep the attestation in this file (- is standard input)."
)
@format_option()
def attestations_command(dataset: str, file: Any, output: str) -> int:
    """List what auditors have attested of a dataset, and check it.

    Anyone can attest anything: `trusted` are those whom the settings name (audit.trustedAuditors). Exit code
    6: a line is not a valid attestation of this dataset.
    """
    with open_workspace() as workspace:
        if file is not None:
            workspace[dataset].add_attestation(_read(file))
        found = workspace[dataset].attestations()
    rows = [_row(item) for item in found]
    columns = ["auditor", "verdict", "block", "time", "checks", "notChecked", "trusted", "status"]
    if output in ("table", "csv"):
        rows = [
            row | {name: " ".join(map(str, row[name] or ())) for name in ("checks", "notChecked")}
            for row in rows
        ]
    print_records(rows, columns, output, right=["block"])
    return INTEGRITY_FAULT if any(item.line.statement is None for item in found) else 0


def _read(file: Any) -> str:
    from odfchain.limits import ATTEST

    try:
        text: str = file.read(ATTEST.statement_bytes + 2)
    except (UnicodeDecodeError, OSError):
        raise UsageError("the file of --add is not text") from None
    return text


def _row(item: ListedAttestation) -> dict[str, Any]:
    found = item.line.statement
    if found is None:
        status = f"line {item.line.number}: {item.line.message}"
        return dict.fromkeys(
            ("auditor", "verdict", "block", "time", "checks", "notChecked", "head", "report", "tool")
        ) | {"trusted": False, "status": status}
    return {
        "auditor": str(found.auditor),
        "verdict": str(found.verdict),
        "block": found.sequence_number,
        "head": str(found.head),
        "time": str(found.time),
        "checks": list(found.checks),
        "notChecked": list(found.not_checked),
        "report": str(found.report),
        "tool": found.tool,
        "trusted": item.trusted,
        "status": "valid" if item.in_chain else "of a block that is not in this chain",
    }
