"""`odfchain repo`: names for places that have datasets, and where a dataset comes from and goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import DATASET, REPOSITORY, DurationParam
from odfchain.cli.support.screen import echo
from odfchain.errors import UnsupportedPeerError, UsageError

if TYPE_CHECKING:
    from odfchain import SignaturePolicy


@click.group("repo")
def repo_command() -> None:
    """Give names to places that have datasets, and to where a dataset comes from and goes to."""


@repo_command.command("add")
@click.argument("name")
@click.argument("url")
@click.option(
    "--require-signature", is_flag=True, help="Refuse datasets from there whose head is not signed."
)
@click.option(
    "--max-age", type=DurationParam(), help="Refuse heads from there whose signature is older, such as 7d."
)
def repo_add(name: str, url: str, require_signature: bool, max_age: float | None) -> None:
    """Make a repository known: NAME/DATASET is then the dataset below its URL.

    What is asked of signatures holds for every dataset below the URL, however it is named; the owner's key
    has to have signed the newest block.
    """
    from odfchain import RepoName, SignaturePolicy
    from odfchain.api.options import signature_policy

    policy = signature_policy(require=require_signature or None, max_age=max_age) or SignaturePolicy()
    known = open_workspace().repositories.add(RepoName(name), url, policy)
    say(f"{known.name} is {known.url}")


@repo_command.command("list")
@format_option()
def repo_list(output: str) -> None:
    """List the repositories that the workspace knows."""
    rows: list[dict[str, Any]] = [
        {
            "name": str(known.name),
            "url": str(known.url),
            **_wanted(known.policy, people=output == "table"),
        }
        for known in open_workspace().repositories.list()
    ]
    if not rows and output == "table":
        say("no repositories yet; make one known with `odfchain repo add NAME URL`")
        return
    print_records(rows, list(rows[0]) if rows else ["name", "url"], output)


def _wanted(policy: SignaturePolicy, *, people: bool) -> dict[str, Any]:
    if not people:
        return {"requireSignature": policy.required, "maxSignatureAgeSeconds": policy.max_age}
    return {"signature": str(policy)}


@repo_command.command("delete")
@click.argument("name", type=REPOSITORY)
def repo_delete(name: str) -> None:
    """Forget a repository; datasets that were pulled from there stay."""
    from odfchain import RepoName

    open_workspace().repositories.delete(RepoName(name))
    say(f"forgot {name}")


@repo_command.group("alias")
def repo_alias() -> None:
    """Say where a dataset is pulled from or pushed to when nothing else is named."""


@repo_alias.command("list")
@click.argument("datasets", nargs=-1, type=DATASET)
@format_option()
def alias_list(datasets: tuple[str, ...], output: str) -> None:
    """List where datasets are pulled from and pushed to."""
    workspace = open_workspace()
    found = [d for name in datasets for d in workspace.matching(name)] if datasets else workspace
    rows = [
        {"dataset": str(dataset.alias), "kind": kind, "alias": _without_password(alias)}
        for dataset in found
        for kind in ("pull", "push")
        for alias in dataset.aliases(kind)
    ]
    print_records(rows, ["dataset", "kind", "alias"], output)


@repo_alias.command("add")
@click.argument("dataset", type=DATASET)
@click.argument("alias", metavar="URL|REPOSITORY/NAME")
@click.option("--pull", "kind", flag_value="pull", help="It is pulled from there.")
@click.option("--push", "kind", flag_value="push", help="It is pushed to there.")
def alias_add(dataset: str, alias: str, kind: str | None) -> None:
    """Remember a place for a dataset, before those that are known already."""
    workspace = open_workspace()
    found = workspace[dataset]
    known = found.add_alias(_kind(kind), alias)
    say(f"{found.alias}: {kind} {_without_password(known)}")


@repo_alias.command("delete")
@click.argument("dataset", type=DATASET)
@click.argument("alias", required=False)
@click.option("--all", "everything", is_flag=True, help="Forget all places of this kind.")
@click.option("--pull", "kind", flag_value="pull", help="Forget where it is pulled from.")
@click.option("--push", "kind", flag_value="push", help="Forget where it is pushed to.")
def alias_delete(dataset: str, alias: str | None, everything: bool, kind: str | None) -> None:
    """Forget a place of a dataset."""
    if (alias is None) != everything:
        raise UsageError("name the place to forget, or use --all")
    workspace = open_workspace()
    found = workspace[dataset]
    gone = found.delete_alias(_kind(kind), alias)
    if not options().quiet:
        for item in gone:
            echo(f"{found.alias}: forgot {kind} {_without_password(item)}", err=True)


def _kind(kind: str | None) -> str:
    if kind is None:
        raise UsageError("say which: --pull or --push")
    return kind


def _without_password(alias: str) -> str:
    from odfchain import PeerUrl

    if "://" not in alias:
        return alias
    try:
        return str(PeerUrl.parse(alias))
    except UnsupportedPeerError:
        return "?"
