"""`odfchain profile`: what the rows in force look like."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.profile_output import print_profile
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo_canonical, echo_page
from odfchain.errors import UsageError


@click.command("profile")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.option("--stage", metavar="TEXT", help="Where in a pipeline it is: raw, cleaned, featurized, …")
@click.option("--describe", metavar="TEXT", help="What changed since the parent, in your words.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A label of yours; can be repeated.")
@click.option(
    "--hide", multiple=True, metavar="COLUMN", help="Say only counts of this column; can be repeated."
)
@click.option(
    "--near-duplicates", is_flag=True, help="Look for them among any number of rows, not up to 262,144 only."
)
@click.option("--no-languages", is_flag=True, help="Do not tell the languages of texts.")
@click.option(
    "--write", is_flag=True, help="Store it with the dataset, signed where the dataset's key is here."
)
@click.option(
    "--key", type=click.Path(path_type=Path), metavar="FILE", help="Store it, signed with the key in a file."
)
@format_option("table", "json", "html")
def profile_command(
    dataset: str, stage: str | None, describe: str | None, tags: tuple[str, ...], hide: tuple[str, ...],
    near_duplicates: bool, no_languages: bool, write: bool, key: Path | None, output: str,
) -> None:  # fmt: skip
    """Show what the rows in force look like: types, nulls, distributions, common values, duplicates.

    A profile is a function of the rows alone: whoever has them computes the same bytes, whatever the machine.
    JSON is its one text, html one page with pictures. No Java starts, and slices that were profiled before
    are not read again.
    """
    from odfchain.api.branch_points import at_point
    from odfchain.api.key_files import signer_in

    labels = dict(_label(tag) for tag in tags)
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        opened = at_point(workspace, dataset)
        signer = None if key is None else signer_in(key, opened.id)
        found = opened.profile(
            stage=stage, description=describe, tags=labels, hide=hide,
            near_duplicates=near_duplicates, languages=not no_languages, created_by=signer,
            progress=progress,
        )  # fmt: skip
        written = opened.write_profile(found, key=key) if write or key is not None else None
    if written is not None:
        signed = " and signed" if written.published else ", not signed: its key is not here"
        say(f"profile {written.object} is stored{signed}")
    if output == "json":
        echo_canonical(found.content)
        return
    if output == "html":
        echo_page(found.to_html())
        return
    print_profile(found, opened.label)


def _label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"--tag {text}: not KEY=VALUE")
    return name, value
