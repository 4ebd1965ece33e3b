"""`odfchain evidence`: proof that an owner signed two histories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import DATASET
from odfchain.cli.support.screen import echo
from odfchain.errors import SignatureError, UsageError

if TYPE_CHECKING:
    from odfchain import DatasetId, Evidence, KeptEvidence, Workspace

_COLUMNS = ["dataset", "sequenceNumber", "block", "otherBlock", "seen", "from"]
_TITLES = {"sequenceNumber": "number", "otherBlock": "other block"}


@click.command("evidence")
@click.argument("dataset", type=DATASET, required=False)
@click.option(
    "--export",
    "target",
    type=click.Path(path_type=Path),
    help="Copy the proofs: one into a new file, or all into a folder.",
)
@click.option(
    "--check",
    "file",
    type=click.Path(path_type=Path),
    help="Check a proof that somebody sent; no workspace and no network is needed.",
)
@format_option()
def evidence_command(dataset: str | None, target: Path | None, file: Path | None, output: str) -> None:
    """List proofs that owners of datasets have signed two histories.

    Whoever pulls compares the signed heads that they are offered with those that were seen before. Two
    different blocks with one sequence number, both covered by heads that are signed with the dataset's key,
    are kept as a proof, also when the pull is refused or forced. Owners who go back behind what they have
    published (`reset`, `compact`, `pull --force`) leave such a proof to everybody who saw both.
    """
    if file is not None:
        if dataset is not None or target is not None:
            raise UsageError("--check is about a file, not about what is kept here")
        from odfchain.api.evidence_files import read_evidence_file

        print_records([_row(read_evidence_file(file), None)], _COLUMNS[:4], output, titles=_TITLES)
        return
    with open_workspace() as workspace:
        kept = workspace.evidence.list(_id_of(workspace, dataset) if dataset else None)
        names = {str(d.id): str(d.alias) for d in workspace}
    sound = [item for item in kept if item.evidence is not None]
    for item in kept:
        if item.evidence is None:
            echo(f"warning: {item.problem}", err=True)
    if target is not None:
        from odfchain.api.evidence_files import export_evidence

        for path in export_evidence([item.evidence for item in sound if item.evidence], target):
            say(f"wrote {path}")
    rows = [_row(item.evidence, item, names) for item in sound if item.evidence is not None]
    if rows or output != "table":
        print_records(rows, _COLUMNS, output, titles=_TITLES, right=["sequenceNumber"])
    elif not kept and not options().quiet:
        echo("no owner is known to have signed two histories", err=True)
    if len(sound) < len(kept):
        raise SignatureError(
            "damaged",
            f"{len(kept) - len(sound)} of {len(kept)} proofs are damaged",
            hint="a later pull from a peer that shows the conflict makes them anew",
        )


def _id_of(workspace: Workspace, text: str) -> DatasetId:
    """The id that is meant; it need not be that of a dataset that is here."""
    from odfchain import DatasetId

    return DatasetId.parse(text) if text.startswith("did:") else workspace[text].id


def _row(
    evidence: Evidence, kept: KeptEvidence | None, names: dict[str, str] | None = None
) -> dict[str, Any]:
    one, other = evidence.hashes
    dataset_id = str(evidence.dataset_id)
    row: dict[str, Any] = {
        "dataset": (names or {}).get(dataset_id, dataset_id),
        "sequenceNumber": evidence.sequence_number,
        "block": str(one),
        "otherBlock": str(other),
    }
    if kept is not None:
        first = kept.sightings[0] if kept.sightings else None
        more = f" (+{len(kept.sightings) - 1})" if len(kept.sightings) > 1 else ""
        row |= {
            "seen": str(first.time) if first else None,
            "from": f"{first.where}{more}" if first else None,
        }
    row |= {
        "id": dataset_id,
        "signed": [
            {"head": str(s.head), "sequenceNumber": s.sequence_number, "time": str(s.time)}
            for s in evidence.signed
        ],
        "blocks": [len(branch.blocks) for branch in evidence.branches],
    }
    if kept is not None:
        row |= {
            "sightings": [{"time": str(s.time), "from": s.where} for s in kept.sightings],
            "file": str(kept.path),
        }
    return row
