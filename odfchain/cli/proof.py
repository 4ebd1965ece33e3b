"""`odfchain proof`: signed answers to queries are shown and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.output import format_option
from odfchain.cli.support.peers import token_for
from odfchain.cli.support.screen import echo, echo_json, echo_json_text

if TYPE_CHECKING:
    from odfchain import Answer, ProofVerdict

_FILE = click.argument("file", type=click.Path(path_type=Path))
_MOST_ROWS = 20


@click.group("proof")
def proof_command() -> None:
    """Show and check signed answers, which `odfchain sql --proof` saves."""


@proof_command.command("show")
@_FILE
@format_option("table", "json")
def show_command(file: Path, output: str) -> None:
    """Show what a signed answer says: the query, the blocks it reads, the rows, and who signed it.

    Its hashes and its signature are checked; whether it is true is for `odfchain proof verify`. No workspace
    is needed.
    """
    from odfchain.api.proofs import described, read_proof

    answer = read_proof(file)
    if output == "json":
        echo_json_text(described(answer))
        return
    problem = answer.problem()
    for line in answer.query.strip().split("\n"):
        echo(f"query    {line}")
    for item in answer.input["datasets"]:
        echo(f"reads    {item['alias']} at {item['blockHash']} ({item['id']})")
    rows = _rows(answer)
    for row in (rows or [])[:_MOST_ROWS]:
        echo(f"row      {row}")
    if rows is None:
        echo("rows     not in the file")
    elif len(rows) > _MOST_ROWS:
        echo(f"         {len(rows) - _MOST_ROWS:,} more")
    echo(f"signed   {answer.signer}{f'; but {problem}' if problem else ''}")
    echo(f"engine   {answer.engine or 'not named'}")


@proof_command.command("verify")
@_FILE
@click.option("--remote", metavar="URL", help="Have the node at a URL check it, instead of this workspace.")
@format_option("table", "json")
def verify_command(file: Path, remote: str | None, output: str) -> int:
    """Check a signed answer: its hashes, its signature, its blocks, and the query computed once more.

    Exit code 6 says that it is false; 7 that this cannot be said here, because a dataset or a block is not
    here, or another version of the engine computes another answer.
    """
    from odfchain import verify_proof
    from odfchain.api.proofs import ask_node, read_proof

    answer = read_proof(file)
    if remote is not None:
        from odfchain.api.tokens import parse_peer_url

        verdict = ask_node(answer, remote, token=token_for([parse_peer_url(remote)]))
    else:
        with open_workspace() as workspace:
            verdict = verify_proof(answer, workspace)
    if output == "json":
        echo_json({"file": str(file), "signer": verdict.signer, **verdict.to_json(), **_more(verdict)})
    else:
        echo(f"{file}: {_sentence(verdict)}", err=not verdict.ok)
    return verdict.exit_code


def _sentence(verdict: ProofVerdict) -> str:
    if (verdict.kind or "").startswith("InvalidRequest::"):
        return verdict.message  # nobody signed what is here
    signer = verdict.signer
    here = f"{', '.join(verdict.datasets)} {'are' if len(verdict.datasets) > 1 else 'is'} here; "
    return f"signed by {signer[:13]}…{signer[-4:]}; {here if verdict.datasets else ''}{verdict.message}"


def _more(verdict: ProofVerdict) -> dict[str, Any]:
    return {
        "incomplete": verdict.incomplete,
        "engine": verdict.engine,
        "datasets": list(verdict.datasets),
        "rows": verdict.rows,
    }


def _rows(answer: Answer) -> list[str] | None:
    """The rows of an answer in a line each, in whichever format they are."""
    data = None if answer.output is None else answer.output.get("data")
    if isinstance(data, dict):
        return [f"{name} {_line(values)}" for name, values in data.items()]
    if isinstance(data, list):
        return [_line(row) for row in data]
    return None


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_line(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(_line, value)) + "]"
    return "null" if value is None else str(value)
