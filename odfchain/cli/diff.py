"""`odfchain diff`: what differs between two points of a dataset, and how far profiles are apart."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import BRANCH, DATASET_AT
from odfchain.errors import UsageError


@click.command("diff")
@click.argument("dataset", type=DATASET_AT)
@click.argument("a", type=BRANCH, metavar="A", required=False)
@click.argument("b", type=BRANCH, metavar="[B]", required=False)
@click.option("--stat", is_flag=True, help="Show only how many records and cells differ.")
@click.option("--keys-only", is_flag=True, help="Show only which records differ, and not how.")
@click.option("--profile", is_flag=True, help="Compare what rows look like: values, nulls, schema.")
@click.option(
    "--policy", metavar="FILE", type=click.Path(path_type=Path), help="The limits for --profile, as YAML."
)
@click.option("--no-compute", is_flag=True, help="With --profile, compute no profile that is missing.")
@format_option("table", "json", "ndjson", "csv", "html")
@click.pass_context
def diff_command(
    ctx: click.Context,
    dataset: str,
    a: str | None,
    b: str | None,
    *,
    stat: bool,
    keys_only: bool,
    profile: bool,
    policy: Path | None,
    no_compute: bool,
    output: str,
) -> int:
    """Show what differs from the state at A to that at B: branches, blocks (number or hash) or times.

    With one point, show what it has changed since its merge base with the head: what a merge would bring.
    Only what was recorded after the two parted is read.

    A table and CSV have one line for each value that changed; a record is the same as long as its primary key
    is. Without a primary key, the records are shown that each side has added.

    `diff --profile X [Y]` compares two profiles by their distributions, and ends with exit code 3 where a
    limit is exceeded. X and Y are DATASET@POINT, or files of profiles: paths that end in .json, or begin
    with a dot or a slash. One DATASET alone means its last two blocks with data.
    """
    if profile:
        if stat or keys_only:
            raise UsageError("--stat and --keys-only show records, and not profiles")
        if b is not None:
            raise UsageError("--profile compares two profiles, each DATASET@POINT or a file")
        from odfchain.cli.support.drift_output import print_drift

        return print_drift(dataset, a, policy, output, compute=not no_compute)
    if policy is not None or no_compute or output == "html":
        raise UsageError("--policy, --no-compute and -o html are for --profile")
    if a is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[1])
    from odfchain.cli.support.row_diff_output import print_row_diff

    print_row_diff(dataset, a, b, output, stat=stat, keys_only=keys_only)
    return 0
