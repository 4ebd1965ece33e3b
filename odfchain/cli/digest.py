"""`odfchain digest`: the two hashes of Parquet files."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.faults import report_error
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.screen import echo


@click.command("digest")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE.parquet…")
@format_option()
def digest_command(files: tuple[Path, ...], output: str) -> int:
    """Print the physical and the logical hash of Parquet files; no workspace is needed."""
    from odfchain.api.digests import digest_file

    rows, code = [], 0
    for file in files:
        found = digest_file(file)
        if found.problem is not None:
            report_error(found.problem)
            code = found.problem.exit_code
        rows.append(
            {
                "file": str(file),
                "physicalHash": str(found.physical),
                "logicalHash": str(found.logical) if found.logical else None,
                "size": found.size,
                "records": found.records,
            }
        )
    if output == "table":
        for row in rows:
            if len(rows) > 1:
                echo(row["file"])
            echo(f"physical  {row['physicalHash']}")
            echo(f"logical   {row['logicalHash'] or '-'}")
    else:
        print_records(rows, ["file", "physicalHash", "logicalHash", "size", "records"], output)
    return code
