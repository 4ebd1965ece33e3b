"""`odfchain new`: a commented manifest to start from."""

from __future__ import annotations

from pathlib import Path

import click

from odfchain.cli.support.context import say
from odfchain.cli.support.screen import echo_document
from odfchain.errors import UsageError
from odfchain.ids.names import DatasetAlias

ROOT = """\
# A root dataset: its data comes from a source. `odfchain add` makes the dataset, `odfchain pull` fills it.
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      # Where the data is: Url (https, file, s3, gs, az), FilesGlob (one file after the other) or Container.
      fetch:
        kind: Url
        url: https://example.com/cities.csv
        # eventTime: {{kind: FromMetadata}}    # time of rows that carry none: of the file, or FromSystemTime
      # Unpacking, or commands to pipe it through; in order.
      # prepare:
      #   - {{kind: Decompress, format: Zip, subPath: "*.csv"}}
      # What the columns are. Also NdJson, Json, GeoJson, NdGeoJson, EsriShapefile and Parquet.
      read:
        kind: Csv
        header: true
        schema:
          - city STRING NOT NULL
          - population BIGINT
      # SQL over the rows that were read; the table is called `input`.
      # preprocess:
      #   kind: Sql
      #   engine: odfchain-spark
      #   query: select city, population from input where population > 0
      # How rows meet what is recorded:
      #   Append    every row is new
      #   Ledger    a row is new when its key was never seen
      #   Snapshot  the input is the whole present state: additions, removals and corrections are recorded
      merge:
        kind: Snapshot
        primaryKey: [city]
      # Which event times count as complete: up to the largest so far, or less where rows come late.
      # watermark: {{maxDelay: 1 day}}    # or fromSystemTime
    - kind: SetInfo
      description: Say what this is
      keywords: [example]
"""


DERIVATIVE = """\
# A derivative dataset: a function of its inputs that anybody can recompute.
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      # The datasets to read, and what the queries call them.
      inputs:
        - datasetRef: org.example.cities
          alias: cities
      transform:
        kind: Sql
        engine: odfchain-spark
        query: select event_time, city, population * 2 as twice from cities
        # How long windows, sessions and bounded joins still take late rows and corrections (default: not):
        # allowedLateness: 1 day
    - kind: SetInfo
      description: Say what this is
      keywords: [example]
"""


@click.command("new")
@click.argument("name")
@click.option("--root", "kind", flag_value="root", help="Data comes from a source.")
@click.option("--derivative", "kind", flag_value="derivative", help="Data is computed from other datasets.")
@click.option(
    "--for",
    "node",
    type=click.Choice(["kamu"]),
    help="Say how to make it with offsets and operations as this node writes them, so that it can append.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="File to write (default: NAME.yaml; - for stdout)."
)
def new_command(name: str, kind: str | None, node: str | None, output: Path | None) -> None:
    """Write a commented manifest to start from; it is valid as it is."""
    if kind is None:
        raise UsageError("say what kind of dataset: --root or --derivative")
    alias = DatasetAlias.parse(name)
    text = (ROOT if kind == "root" else DERIVATIVE).format(name=alias)
    more = "--system-columns reference " if node is not None else ""
    if more:  # no field of a manifest says it: it is chosen when the dataset is made
        text = f"# For {node}: make it with `odfchain add {more.strip()}`.\n{text}"
    if output is not None and str(output) == "-":
        echo_document(text)
        return
    path = output or Path(f"{str(alias).rpartition('/')[2]}.yaml")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already", hint="choose another file with --output") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    say(f"wrote {path}; edit it, then: odfchain add {more}{path}")
