"""The manifests in `fixtures/manifests/published`: like published ones, here over small files of the same form."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from tests.kit.support import ROOT

FOLDER = ROOT / "fixtures" / "manifests" / "published"

CASES = """\
Reported_Date,HA,Sex,Age_Group,Classification_Reported
2020-01-29,Out of Canada,M,40-49,Lab-diagnosed
2020-01-29,Interior,F,30-39,Lab-diagnosed
2020-02-06,Fraser,F,50-59,Lab-diagnosed
"""
RATES = (
    "Date,USD,JPY,GBP,CHF\n2024-03-01,1.0813,162.66,0.85538,N/A\n2024-02-29,1.0826,162.15,0.85588,0.9534\n"
)


def covid(folder: Path) -> Path:
    path = folder / "cases.csv"
    path.write_text(CASES)
    return path


def rates(folder: Path) -> Path:
    path = folder / "rates.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("eurofxref-hist.csv", RATES)
    return path


def quakes(folder: Path) -> Path:
    def feature(code: str, mag: float) -> dict[str, object]:
        properties = {
            "mag": mag,
            "place": "8 km W of X",
            "time": 1_700_000_000_123,
            "updated": 1,
            "code": code,
        }
        return {
            "type": "Feature",
            "properties": properties | {"type": "earthquake"},
            "geometry": {"type": "Point", "coordinates": [-116.5, 33.1, 4.2]},
        }

    path = folder / "day.geojson"
    collection = {"type": "FeatureCollection", "features": [feature("a1", 2.5), feature("b2", 0.9)]}
    path.write_text(json.dumps(collection))
    return path


@pytest.mark.parametrize(
    ("name", "source", "columns", "expected"),
    [
        ("covid-cases", covid, ["number", "health_authority"],
         [[1, "Interior"], [2, "Out of Canada"], [1, "Fraser"]]),
        ("exchange-rates", rates, ["currency", "rate"],
         [["CHF", "0.953400"], ["GBP", "0.855880"], ["JPY", "162.150000"], ["USD", "1.082600"],
          ["GBP", "0.855380"], ["JPY", "162.660000"], ["USD", "1.081300"]]),
        ("earthquakes", quakes, ["code", "mag"], [["a1", "2.5"], ["b2", "0.9"]]),
    ],
)  # fmt: skip
def test_they_do_what_they_say(
    workspace: Workspace,
    tmp_path: Path,
    name: str,
    source: Callable[[Path], Path],
    columns: list[str],
    expected: list[list[object]],
) -> None:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    local, count = re.subn(r"url: http\S+", f"url: {source(tmp_path).as_uri()}", text, count=1)
    assert count == 1
    (dataset,) = workspace.add(local)
    assert dataset.pull().blocks == 2
    rows = dataset.scan(columns).to_arrow().to_pylist()
    shown = [[v if isinstance(v, int) else str(v) for v in row.values()] for row in rows]
    if name == "exchange-rates":  # the order of currencies within a day is the query's
        shown = sorted(shown[:4]) + sorted(shown[4:])
    assert shown == expected
    assert dataset.pull().blocks == 0
    assert dataset.verify().ok
