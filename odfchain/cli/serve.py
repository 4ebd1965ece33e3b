"""`odfchain serve`: the workspace is published over HTTP, and may be written to."""

from __future__ import annotations

import click

from odfchain.api.serving import HOST, PORT
from odfchain.cli.support.context import open_workspace, options
from odfchain.cli.support.screen import echo
from odfchain.errors import UsageError


@click.command("serve")
@click.option("--host", default=HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="TCP port to listen on; 0 takes a free one.",
)
@click.option("--read-only", is_flag=True, help="Let nobody write, which is so unless --write is given.")
@click.option("--write", is_flag=True, help="Let those push who have a token (odfchain token).")
@click.option(
    "--restrict-reading", is_flag=True, help="Show datasets to those alone whose token is for them."
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="A proxy with TLS is in front, whose X-Forwarded fields are believed.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Answer those who ask for this host, too (share.hosts); else the address and localhost.",
)
@click.option("--branches", is_flag=True, help="Publish all branches, too; else only the heads are there.")
@click.option("--branch", "names", multiple=True, metavar="NAME", help="Publish branches of this name, too.")
@click.option("--verbose", is_flag=True, help="Print a line for each request, to standard error.")
@click.option("--print-address", is_flag=True, help="Print the address once it can be connected to.")
def serve_command(
    host: str,
    port: int,
    read_only: bool,
    write: bool,
    restrict_reading: bool,
    behind_proxy: bool,
    hosts: tuple[str, ...],
    branches: bool,
    names: tuple[str, ...],
    verbose: bool,
    print_address: bool,
) -> None:  # fmt: skip
    """Publish all datasets of the workspace over HTTP, until Ctrl-C or SIGTERM.

    Datasets can be read and not be changed, at /NAME/ below the address, by `odfchain pull` and by every
    other client of Open Data Fabric's simple protocol. Whoever can connect can read all of them, unless
    --restrict-reading is given: then a dataset is there for those alone who show a token that may read it
    (odfchain token create NAME --allow read:PATTERN), or push to it. Branches are drafts, and are there only
    where --branches or --branch says so. Private keys, settings and where datasets came from are not
    published.

    With --write, `odfchain push --to odf+http://…/NAME` gives datasets to this workspace, for those who have
    a token: datasets of others, since those whose private key is here are written here. There is no
    encryption, so whatever takes tokens takes an address of this machine, or --behind-proxy.

    Requests for another host than the address or localhost are answered with 421, so that no page that a
    browser here has open can read the datasets under a name of its own: a name of yours is given by
    --allow-host.
    """
    if read_only and write:
        raise UsageError("--read-only and --write contradict each other")

    def listening(address: str) -> None:
        if not quiet:
            echo(f"the datasets of {workspace.path.parent} are at {address}; Ctrl-C ends it", err=True)
        if print_address:
            echo(address)

    quiet = options().quiet
    with open_workspace() as workspace:
        workspace.serve(
            host=host,
            port=port,
            listening=listening,
            on_request=_say if verbose else None,
            on_problem=_say,
            branches=branches or names,
            write=write,
            restrict_reading=restrict_reading,
            behind_proxy=behind_proxy,
            allow_hosts=hosts,
        )


def _say(line: str) -> None:
    echo(line, err=True)
