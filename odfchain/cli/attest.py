"""`odfchain attest`: a dataset is verified, and the verdict signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from odfchain.api.branch_points import at_point
from odfchain.cli.support.context import open_workspace, options
from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo, echo_json_text
from odfchain.cli.support.verdicts import print_report
from odfchain.cli.support.verify_options import chosen_checks, exit_code_of, verify_options


@click.command("attest")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.option(
    "--key",
    "key_file",
    required=True,
    type=click.Path(path_type=Path),
    help="The file with the auditor's private key (`odfchain key create`).",
)
@click.option("--report", "report_file", type=click.Path(path_type=Path), help="Write the report here, too.")
@click.option("--faulty", is_flag=True, help="Sign the outcome also when there are faults.")
@verify_options
@format_option("table", "json", "jws")
def attest_command(
    dataset: str, key_file: Path, report_file: Path | None, output: str, *, faulty: bool, **checks: Any
) -> int:
    """Verify a dataset and sign the outcome, for others to rely on.

    The statement names the head, the verdict, the checks that were and were not done, and the digest of the
    report. It is kept with the dataset and travels with it. Whoever is to check it against the report needs
    the file of --report. DATASET@POINT is verified and attested on a branch, or up to a block or a time. Exit
    codes are those of verify.
    """
    chosen = chosen_checks(**checks)
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        done = at_point(workspace, dataset).attest(key_file, faulty=faulty, progress=progress, **chosen)
    if report_file is not None:
        from odfchain.api.rendering import write_report

        write_report(done.document, report_file)
    if output == "jws":
        echo(done.text)
    elif output == "json":
        from odfchain.api.rendering import dump_json

        found = {"auditor": str(done.attestation.auditor), **done.attestation.to_json()}
        echo_json_text(dump_json(found))
    else:
        print_report(done.report)
        echo(f"attested as {done.report.verdict} by {done.attestation.auditor}")
    return exit_code_of([done.report])
