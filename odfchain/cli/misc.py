"""Commands about odfchain itself."""

from __future__ import annotations

import platform
from typing import Any

import click

from odfchain.cli.output import format_option
from odfchain.cli.screen import echo, echo_document, echo_json_text


@click.command("version")
@format_option("table", "json")
def version_command(output: str) -> None:
    """Print the versions of odfchain and of what it stands on."""
    from importlib.metadata import version

    import odfchain
    from odfchain.codec.yaml_writer import dump_json

    found: dict[str, Any] = {
        "odfchain": odfchain.__version__,
        "specification": odfchain.SPEC_VERSION,
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
    }
    if output == "json":
        echo_json_text(dump_json(found))
    else:
        for name, value in found.items():
            echo(f"{name:14}{value}")


@click.command("completions")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completions_command(shell: str) -> None:
    """Print a completion script.

    For bash: eval "$(odfchain completions bash)" in ~/.bashrc.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    from odfchain.cli.main import cli

    cls = get_completion_class(shell)
    assert cls is not None  # noqa: S101 - one of click's own
    echo_document(ShellComplete.source(cls(cli, {}, "odfchain", "_ODFCHAIN_COMPLETE")))
