"""Commented manifests to start from; each is valid as it is."""

from __future__ import annotations

from odfchain.ids.names import DatasetAlias

_ROOT = """\
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

_DERIVATIVE = """\
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


_ASSETS = """\
# A lock of assets as a dataset: `odfchain assets derive … --into {name}` records what has changed.
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: Parquet
        schema:
          - item_id STRING NOT NULL
          - asset_key STRING NOT NULL
          - store_type STRING
          - store_container STRING
          - store_endpoint_url STRING
          - key STRING
          - size_bytes BIGINT
          - etag STRING
          - last_modified STRING
      # Snapshot: the catalog is the whole present state. Ledger: objects never change, and none is withdrawn.
      merge:
        kind: {merge}
        primaryKey: [item_id, asset_key]
    - kind: SetInfo
      description: Where the files of a catalog are, and what they were
      keywords: [asset-lock]
"""

_TEMPLATES = {"root": _ROOT, "derivative": _DERIVATIVE, "assets": _ASSETS}


def manifest_template(alias: DatasetAlias, kind: str, *, first: str = "", merge: str = "Snapshot") -> str:
    """The manifest of a dataset that is a root, a derivative, or a lock of assets.

    `first` is a comment above it; `merge` how a lock meets what is recorded.
    """
    text = _TEMPLATES[kind].format(name=alias, merge=merge)
    return f"# {first}\n{text}" if first else text
