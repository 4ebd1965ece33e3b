"""`odfchain witness`: being a witness of heads, and which ones are asked."""

from __future__ import annotations

from odfchain.cli import parameters as cli
from odfchain.cli import screen
from odfchain.cli.context import open_workspace, options, say
from odfchain.limits import HOST


@cli.group("witness")
def witness_command() -> None:
    """Cosign heads of others, and have yours cosigned."""


@cli.command("serve", witness_command)
def witness_serve(
    datasets: tuple[str, ...] = cli.option(
        "Only datasets of this id, or this name here; % is any text.", "--datasets", "PATTERN"
    ),
    name: str | None = cli.option("The name of the witness: a host and path.", "--name", "NAME"),
    host: str = cli.option("Address to listen on.", default=HOST),
    port: int = cli.option("TCP port to listen on; 0 takes a free one.", least=0, most=65_535, default=7380),
    print_address: bool = cli.option("Print address and key once it can be connected to."),
) -> None:
    """Cosign checkpoints of datasets, as C2SP's tlog-witness says.

    A witness signs one history of a dataset only, each head after the one before. The key is made when it is
    first needed, in .odfchain/witness.pem, and what was cosigned is in .odfchain/witness.db. Keep both: a
    witness that forgets can be made to sign a second history.
    """
    from odfchain.node.witness import serve_witness

    def listening(url: str, key: str) -> None:
        if not options().quiet:
            screen.echo(f"this witness cosigns at {url}; Ctrl-C ends it. Its key: {key}", err=True)
        if print_address:
            screen.echo(f"{url} {key}")

    with open_workspace() as workspace:
        serve_witness(workspace, datasets or ("%",), name=name, listening=listening, host=host, port=port)


@cli.command("add", witness_command)
def witness_add(
    url: str = cli.argument(),
    key: str = cli.argument(metavar="VKEY"),
    quorum: int | None = cli.option("Pulls want so many known witnesses from now on.", least=0),
) -> None:
    """Ask a witness to cosign, at each push and with each `sign`.

    VKEY is its key, as `witness serve` prints it: NAME+HEX+BASE64. Pulls know it, too. With
    --quorum they refuse a head that fewer of the known witnesses have cosigned.
    """
    with open_workspace() as workspace:
        name = workspace.add_witness(url, key, quorum)
    say(f"{name} is asked at {url}")


@cli.command("list", witness_command)
def witness_list(output: str = cli.formats()) -> None:
    """List the witnesses that are asked, and those that pulls want."""
    with open_workspace() as workspace:
        known = workspace.witnesses()
    rows = [{"name": w.key.name, **screen.record(w, "asked:url", "wanted", "key")} for w in known]
    if not rows and output == "table":
        say("no witnesses yet; `odfchain witness add URL VKEY` makes one known")
        return
    screen.print_records(rows, ["name", "asked", "wanted", "key"], output)
