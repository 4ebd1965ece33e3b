"""Datasets of few rows whose slices differ in what their footers report, and conditions on them."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import math
import random
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datafusion
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.root_rows import MADE, START, add_root, append_all, records, schema_event, schema_with

SIGNED_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0000))[0]
moment = dt.datetime.fromisoformat
POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [-(2**63), -5, -1, 0, 1, 2, 7, 2**53, 2**53 + 1, 2**63 - 1]),
    "u": (pa.uint32(), [0, 1, 5, 2**32 - 1]),
    "f": (pa.float64(), [-math.inf, -5.5, -0.0, 0.0, 0.1, 1.5, 3.0, math.inf, math.nan, SIGNED_NAN]),
    "g": (pa.float32(), [-1.5, -0.0, 0.0, 0.1, 0.2, 16_777_217.0, math.nan, SIGNED_NAN]),
    "s": (pa.string(), ["", "a", "ab", "b%", "ä", "z" * 60, "z" * 64, "z" * 70, "y" * 4_097, "\U0001f600"]),
    "b": (pa.bool_(), [False, True]),
    "d": (pa.date32(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
    "t": (pa.timestamp("ms", "UTC"), [moment("1970-01-01"), moment("2026-01-01"), moment("2026-01-01T12:30:00.005")]),
    "n": (pa.timestamp("us"), [moment("1970-01-01"), moment("2026-01-01"), moment("2026-01-01T00:00:00.000001")]),
    "e": (pa.decimal128(10, 2), [Decimal(x) for x in ("-2.05", "0.00", "0.10", "2.50", "99999999.99")]),
    "q": (pa.struct([("x", pa.int64())]), [{"x": None}, {"x": 1}, {"x": 5}]),
    "late": (pa.int64(), [0, 3, 9]),
}  # fmt: skip
"""Values by column; the last one comes when there are slices already."""
FULL = schema_with(*(pa.field(name, kind) for name, (kind, _) in POOLS.items()))
FIRST = pa.schema(list(FULL)[:-1])


def add_mixed(workspace: Workspace, name: str, chance: random.Random, slices: int = 6) -> DatasetFiles:
    """A root whose slices hold few of the values each, written by two writers, in groups of a few rows."""
    root = add_root(workspace, name, FIRST)
    for number in range(slices):
        schema = FULL if number >= slices // 2 else FIRST
        if number == slices // 2:
            commit(root, DatasetState.read(root.chain), [schema_event(FULL)], [], system_time=MADE)
        count = chance.randint(1, 5)
        columns = [_values(chance, field.name, count) for field in list(schema)[4:]]
        _append(root, schema, columns, count, chance)
    return root


def _values(chance: random.Random, name: str, count: int) -> list[Any]:
    few = chance.sample(POOLS[name][1], k=min(chance.choice((1, 1, 2)), len(POOLS[name][1])))
    few = chance.choice(([], few, few, few, [*few, None]))
    return [chance.choice(few) if few else None for _ in range(count)]


def _append(
    root: DatasetFiles, schema: pa.Schema, columns: Sequence[Any], count: int, chance: random.Random
) -> None:
    times = [START + dt.timedelta(days=chance.randint(0, 2)) for _ in range(count)]
    table = records(schema, DatasetState.read(root.chain).record_count, [0] * count, times, *columns)
    if chance.random() < 0.4:
        write: Any = write_by_arrow_rs
    else:
        write = functools.partial(pq.write_table, row_group_size=chance.choice((1, 2, 100)))
    append_all(root, [table], MADE, at=MADE, write=write)


def write_by_arrow_rs(table: pa.Table, path: Path) -> None:
    """The same rows as kamu and delta-rs write them: bounds of texts are cut."""
    context = datafusion.SessionContext()
    options = datafusion.dataframe.DataFrameWriteOptions(single_file_output=True)
    context.from_arrow(table).write_parquet(str(path), write_options=options)


def conditions(chance: random.Random, count: int) -> list[str]:
    """Conditions that both engines can compute, whatever the rows."""
    return [_condition(chance, 2) for _ in range(count)]


def _condition(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth and kind < 0.35:
        op = chance.choice((" AND ", " OR "))
        return f"({_condition(chance, depth - 1)}{op}{_condition(chance, depth - 1)})"
    if depth and kind < 0.45:
        return f"NOT ({_condition(chance, depth - 1)})"
    return _test(chance, chance.choice(list(POOLS)))


def _test(chance: random.Random, name: str) -> str:
    column = "q.x" if name == "q" else name
    some = [_literal(chance, name) for _ in range(3)]
    forms = [f"{column} IS NULL", f"{column} IS NOT NULL"]
    if name != "b":
        op = chance.choice(("=", "<>", "<", "<=", ">", ">="))
        not_ = chance.choice(("", "NOT "))
        forms += [f"{column} {op} {some[0]}", f"{some[0]} {op} {column}"] * 3
        forms += [f"{column} {not_}IN ({', '.join(some)})", f"{column} {not_}BETWEEN {some[0]} AND {some[1]}"]
    if name == "s":
        forms += [
            f"s {chance.choice(('', 'NOT '))}LIKE '{chance.choice(('a%', 'z%z', '%', '_b', 'q%', 'ä'))}'"
        ] * 3
    if name in ("i", "late"):
        forms += [f"{column} % 2 = 1", "i < late", f"coalesce({column}, 1) = 1"]
    return chance.choice(forms)


def _literal(chance: random.Random, name: str) -> str:
    value = chance.choice(POOLS[name][1])
    match name:
        case "i":
            return str(chance.choice((-6, -1, 0, 1, 3, 8, 2**53, 2**53 + 1)))
        case "q":
            return str(chance.choice((0, 1, 2, 9)))
        case "f" | "g":
            return chance.choice(("CAST('NaN' AS DOUBLE)", "0.0", "-0.0", "0.1", "1.5", "-5.5", "2", "1e300"))
        case "s":
            return "'" + str(value)[:70] + "'"
        case "d":
            return chance.choice(("'{}'", "DATE '{}'")).format(value)
        case "t" | "n":
            text = value.isoformat(" " if name == "n" else "T", "milliseconds")
            return chance.choice(("'{}'", "TIMESTAMP '{}'", "'2025-06-01'")).format(text)
    return str(value)


@contextlib.contextmanager
def without_skipping() -> Iterator[None]:
    """Everything is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odfchain.slices.skipping.may_match", lambda *_, **__: True)
        yield
