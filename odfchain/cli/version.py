"""`odfchain version`: the versions of odfchain and its parts."""

from __future__ import annotations

import platform
from typing import Any

import click

from odfchain.cli.support.output import format_option
from odfchain.cli.support.screen import echo, echo_json


@click.command("version")
@format_option("table", "json")
def version_command(output: str) -> None:
    """Print the versions of odfchain and of what it stands on."""
    from importlib.metadata import version

    import odfchain

    found: dict[str, Any] = {
        "odfchain": odfchain.__version__,
        "specification": odfchain.SPEC_VERSION,
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
    }
    if output == "json":
        echo_json(found)
    else:
        for name, value in found.items():
            echo(f"{name:14}{value}")
