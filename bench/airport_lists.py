"""Four lists in the shape of those of OurAirports: columns, rows of each release, and what differs in it.

The real files are not in this repository. Where `OURAIRPORTS` names a folder that has them
(`regions-2021-11-02.csv`), they are taken.
"""

from __future__ import annotations

import csv
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_SIDE = "ident latitude_deg longitude_deg elevation_ft heading_degT displaced_threshold_ft"
_RUNWAY = "id airport_ref airport_ident length_ft width_ft surface lighted closed"


@dataclass(frozen=True, slots=True)
class AirportList:
    """One list: `releases` are the numbers of rows that are new, corrected and gone."""

    name: str
    columns: tuple[str, ...]
    releases: tuple[tuple[int, int, int], ...]

    @property
    def ddl(self) -> dict[str, str]:
        """Columns with their types."""
        return {name: _TYPES.get(name.partition("_")[2], "STRING") for name in self.columns} | {"id": "INT"}

    def write(self, folder: Path) -> None:
        """One file for each release, in the order of their names."""
        real = sorted(Path(os.environ["OURAIRPORTS"]).glob(f"*{self.name}-*.csv")) if self.is_real else []
        for path in real:
            if path.read_bytes().count(b"\n") > 1:  # a list without a row would take all rows back
                shutil.copy(path, folder / f"{self.name}-{path.stem[-10:]}.csv")
        rows: dict[int, int] = {}
        first = place = 0
        for number, (new, corrected, gone) in enumerate(() if real else self.releases):
            for key in list(rows)[:gone]:
                del rows[key]
            keys = list(rows)
            for step in range(corrected):
                rows[keys[(place + step) % len(keys)]] = number
            place += corrected
            rows |= dict.fromkeys(range(first, first + new), number)
            first += new
            with (folder / f"{self.name}-{number}.csv").open("w", encoding="utf-8", newline="") as stream:
                writer = csv.writer(stream)
                writer.writerow(self.columns)
                writer.writerows(self._row(key, changed) for key, changed in rows.items())

    @property
    def is_real(self) -> bool:
        """Whether files are taken from the folder that is named."""
        folder = os.environ.get("OURAIRPORTS")
        return bool(folder) and any(Path(folder or "").glob(f"*{self.name}-*.csv"))

    def _row(self, key: int, changed: int) -> list[object]:
        values: list[object] = [230_000 + key]
        for place, (name, type_) in enumerate([*self.ddl.items()][1:], 1):
            mixed = (key * 7_919 + place * 104_729) % 100_003
            if mixed % 6 == 0 and place > 2:
                values.append("" if type_ == "STRING" else None)
            elif type_ == "INT":
                values.append(mixed % 12_000)
            elif type_ == "DOUBLE":
                values.append(mixed * 1_000 % 180_000_017 / 1e6)
            else:
                values.append(f"{name.replace('_', ' ')} {mixed % 9_000}")
        values[2] = f"{values[2]}, {changed}"
        return values


_TYPES = {
    "ft": "INT", "latitude_deg": "DOUBLE", "longitude_deg": "DOUBLE",
    "heading_degT": "DOUBLE", "elevation_ft": "INT", "displaced_threshold_ft": "INT", "ref": "INT",
    "mhz": "DOUBLE",
}  # fmt: skip
LISTS = (
    AirportList(
        "runways",
        (*_RUNWAY.split(), *(f"{end}_{column}" for end in ("le", "he") for column in _SIDE.split())),
        (
            (41_000, 0, 0),
            *((700, corrected, 300) for corrected in (900, 1_200, 21_687, 800, 1_000, 1_100, 1_000)),
        ),
    ),
    AirportList(
        "frequencies",
        ("id", "airport_ref", "airport_ident", "type", "description", "frequency_mhz"),
        ((29_000, 0, 0), *((100, corrected, 60) for corrected in (250, 300, 297, 300, 250, 300, 250))),
    ),
    AirportList(
        "regions",
        ("id", "code", "local_code", "name", "continent", "iso_country", "wikipedia_link", "keywords"),
        (
            (3_963, 0, 0), (32, 217, 94), (48, 3_381, 77), (64, 233, 58), (50, 61, 1), (14, 76, 2),
            (26, 40, 53), (76, 60, 1),
        ),
    ),
    AirportList(
        "countries",
        ("id", "code", "name", "continent", "wikipedia_link", "keywords"),
        ((247, 0, 0), (1, 2, 0), (0, 194, 0), (1, 3, 0)),
    ),
)  # fmt: skip
