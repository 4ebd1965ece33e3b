"""NDJSON, JSON and GeoJSON read to typed columns, next to Spark's own NDJSON reader of the same records.

What is timed is the whole reading stage, in a warm session: opening the file (with the pass that cuts it into
pieces, and the inference of types where none are declared), decoding, every check and typing, as the task
that merges reads it. Spark gives each row to a writer that drops it. MB are those of the file. The first
round of each is not counted.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from figures import Figure, seconds, spread, tell

from odfchain import Workspace
from odfchain.ingest.read_formats import open_input
from odfchain.odf.sources import ReadStep, ReadStepGeoJson, ReadStepJson, ReadStepNdJson

ROWS = 500_000
FEATURES = 200_000
ROUNDS, INFERRED_ROUNDS = 5, 2
GOALS = {"NDJSON": 150.0, "JSON": 100.0, "GeoJSON": 100.0}
"""On two cores [MB/s]."""
STEPS = {"NDJSON": ReadStepNdJson, "JSON": ReadStepJson, "GeoJSON": ReadStepGeoJson}
PLAIN = ("id BIGINT NOT NULL", "event_time TIMESTAMP", "city STRING", "amount DOUBLE", "open BOOLEAN")
FEATURE = ("id BIGINT NOT NULL", "name STRING", "height DOUBLE", "geometry STRING")


def plain_records(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Records of five short values."""
    for number in range(ROWS):
        yield {
            "id": number,
            "event_time": f"2020-01-{rng.randint(1, 28):02}T10:00:{number % 60:02}Z",
            "city": f"city {rng.randrange(5_000)}",
            "amount": round(rng.random() * 1_000, 6),
            "open": rng.random() < 0.5,
        }


def features(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Features with polygons of nine points."""
    for number in range(FEATURES):
        ring = [[round(rng.uniform(-180, 180), 7), round(rng.uniform(-90, 90), 7)] for _ in range(8)]
        yield {
            "type": "Feature",
            "properties": {"id": number, "name": f"building {number}", "height": round(rng.random() * 90, 2)},
            "geometry": {"type": "Polygon", "coordinates": [[*ring, ring[0]]]},
        }


def write(path: Path, lines: Path, records: Iterator[dict[str, Any]], around: tuple[str, str]) -> None:
    """The same records as a document and as lines."""
    with path.open("w") as document, lines.open("w") as stream:
        document.write(around[0])
        for number, record in enumerate(records):
            text = json.dumps(record)
            document.write(f",\n{text}" if number else text)
            stream.write(f"{text}\n")
        document.write(around[1])


def bench_documents() -> Iterator[Figure]:
    """Rates with a schema and without."""
    with tempfile.TemporaryDirectory() as root, Workspace.init(Path(root)) as workspace:
        folder = Path(root)
        session = workspace.session()

        def ours(path: Path, step: ReadStep) -> None:
            frame = open_input(lambda: session, path, step, scratch=folder)
            if frame is None:
                raise RuntimeError("no rows")
            if frame.reader is None:
                frame.frame.write.format("noop").mode("overwrite").save()
            else:
                deque(frame.reader(), maxlen=0)

        def spark(path: Path, ddl: str | None) -> None:
            reader = session.read.schema(ddl) if ddl else session.read
            reader.json(str(path)).write.format("noop").mode("overwrite").save()

        kinds: list[tuple[str, Callable[..., Any], tuple[str, str], tuple[str, ...], str]] = [
            ("JSON", plain_records, ("[", "]"), PLAIN, ", ".join(PLAIN)),
            (
                "GeoJSON",
                features,
                ('{"type":"FeatureCollection","features":[', "]}"),
                FEATURE,
                "properties STRUCT<id: BIGINT, name: STRING, height: DOUBLE>, geometry STRING",
            ),
        ]
        for kind, records, around, columns, ddl in kinds:
            path, lines = folder / f"{kind}.json", folder / f"{kind}.ndjson"
            tell(f"writing a {kind} document")
            write(path, lines, records(random.Random(11)), around)  # noqa: S311 - no secrets
            forms = {kind: path} if kind == "GeoJSON" else {"NDJSON": lines, kind: path}
            for (name, file), declared in itertools.product(forms.items(), (True, False)):
                size = file.stat().st_size / 1e6
                run = partial(ours, file, STEPS[name](ddl_schema=columns if declared else None))
                beside = partial(spark, lines, ddl if declared else None)
                rounds = range(1 + (ROUNDS if declared else INFERRED_ROUNDS))
                pairs = [(seconds(run), seconds(beside)) for _ in rounds][1:]
                rates, theirs = (tuple(size / t for t in times) for times in zip(*pairs, strict=True))
                yield Figure(
                    f"{name} {'with a schema' if declared else 'with types inferred'}",
                    statistics.median(rates), "MB/s", GOALS[name] if declared else None, at_least=True,
                    remark=f"{spread(rates)} MB/s, Spark's NDJSON {spread(theirs)}, {size:.0f} MB",
                    samples=rates, beside=theirs,
                )  # fmt: skip
