"""`odfchain digest`: the two hashes of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from odfchain.cli.support.faults import report_error
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.screen import echo
from odfchain.errors import OdfchainError, UsageError


@click.command("digest")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE.parquet…")
@format_option()
def digest_command(files: tuple[Path, ...], output: str) -> int:
    """Print the physical and the logical hash of Parquet files; no workspace is needed."""
    from odfchain.digest.physical import hash_file
    from odfchain.slices.hashes import hash_parquet

    rows, code = [], 0
    for file in files:
        try:
            physical, size = hash_file(file)
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}") from None
        row: dict[str, Any] = {
            "file": str(file),
            "physicalHash": str(physical),
            "logicalHash": None,
            "size": size,
        }
        try:
            logical, row["records"] = hash_parquet(file)
            row["logicalHash"] = str(logical)
        except OdfchainError as error:
            report_error(error)
            code = error.exit_code
        rows.append(row)
    if output == "table":
        for row in rows:
            if len(rows) > 1:
                echo(row["file"])
            echo(f"physical  {row['physicalHash']}")
            echo(f"logical   {row['logicalHash'] or '-'}")
    else:
        print_records(rows, ["file", "physicalHash", "logicalHash", "size", "records"], output)
    return code
