"""Columns of random types, rows of few values, and the strategies that merge them."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from odfchain.ingest.merge_strategies import NewRows, State
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import nullable, slice_schema
from odfchain.odf.enums import TimeUnit
from odfchain.odf.events import DatasetVocabulary

DAY, NOON = dt.date(1969, 12, 31), dt.datetime(1969, 12, 31, 12, 0, 0, 1_000, dt.UTC)
FLOATS = [0.0, -0.0, math.nan, 1.5, -math.inf]


def optional(name: str, kind: ds.DataType) -> ds.DataField:
    return ds.DataField(name=name, type=ds.optional(kind))


PAIR = ds.DataTypeStruct(fields=(optional("x", ds.DataTypeFloat64()), optional("y", ds.DataTypeString())))
PAIRS = [{"x": 0.0, "y": "a"}, {"x": -0.0, "y": "a"}, {"x": math.nan, "y": None}, {"x": None, "y": None}]
MS, US, NS = TimeUnit.MILLISECOND, TimeUnit.MICROSECOND, TimeUnit.NANOSECOND
KINDS: list[tuple[ds.DataType, list[Any]]] = [
    (ds.DataTypeBool(), [True, False]),
    (ds.DataTypeInt8(), [-128, 0, 127]),
    (ds.DataTypeInt16(), [-1, 0]),
    (ds.DataTypeInt32(), [-(2**31), 5]),
    (ds.DataTypeInt64(), [-(2**63), 2**63 - 1, 0]),
    (ds.DataTypeUInt8(), [0, 255]),
    (ds.DataTypeUInt16(), [0, 2**16 - 1]),
    (ds.DataTypeUInt32(), [0, 2**32 - 1]),
    (ds.DataTypeUInt64(), [0, 2**64 - 1]),
    (ds.DataTypeFloat16(), [np.float16(x) for x in FLOATS]),
    (ds.DataTypeFloat32(), FLOATS),
    (ds.DataTypeFloat64(), FLOATS),
    (ds.DataTypeString(), ["", "a", "A", "ä", "\U0001f600", "a\0"]),
    (ds.DataTypeBinary(), [b"", b"\0", b"\xff"]),
    (ds.DataTypeBinary(fixed_length=16), [bytes(16), bytes(range(16))]),
    (ds.DataTypeDecimal(precision=38, scale=2), [Decimal("1.10"), Decimal("-0.01"), Decimal(10) ** 35]),
    (ds.DataTypeDate(), [DAY, dt.date(9999, 12, 31)]),
    (ds.DataTypeTimestamp(unit=MS, timezone="UTC"), [NOON, NOON + dt.timedelta(days=1)]),
    (ds.DataTypeTimestamp(unit=US, timezone="UTC"), [NOON, NOON + dt.timedelta(microseconds=1)]),
    (ds.DataTypeTime(unit=MS), [dt.time(0), dt.time(23, 59, 59, 999_000)]),
    (ds.DataTypeTime(unit=NS), [0, 1]),
    (ds.DataTypeDuration(unit=MS), [dt.timedelta(0), dt.timedelta(milliseconds=-1)]),
    (PAIR, PAIRS),
    (ds.DataTypeList(item_type=ds.optional(ds.DataTypeFloat64())), [[], [0.0], [-0.0], [math.nan, None], [None]]),
    (ds.DataTypeMap(key_type=ds.DataTypeString(), value_type=ds.optional(ds.DataTypeFloat64())),
     [[], [("a", 0.0), ("b", None)], [("b", None), ("a", -0.0)]]),
]  # fmt: skip
STRATEGIES = ("append", "ledger", "snapshot", "changelog", "upsert")
OPERATIONS = {"changelog", "upsert"}
EVENT_TIME = ds.DataTypeTimestamp(unit=MS, timezone="UTC")
NAMES = DatasetVocabulary()


class Scene:
    """Columns of random types, rows of few values, and a history that begins before its last column came."""

    def __init__(self, strategy: str, seed: int) -> None:
        self.rng = random.Random(f"{strategy} {seed}")
        flat = [kind for kind in KINDS if not isinstance(kind[0], ds.DataTypeMap)]
        self.kinds = {
            "group": (ds.DataTypeInt32(), list(range(40))),
            "k.1": self.rng.choice(flat),
            "k`2": self.rng.choice(flat),
            "event_time": (EVENT_TIME, [NOON, NOON + dt.timedelta(hours=1)]),
            **{f"v{n}": self.rng.choice(KINDS) for n in range(4)},
        }
        self.key = ("group", "k.1", "k`2", *(["event_time"] if strategy == "ledger" and seed % 2 else []))
        self.fields = [optional(name, kind) for name, (kind, _) in self.kinds.items()]
        # `nullable`, as merges see it
        self.schema = nullable(slice_schema(ds.DataSchema(fields=tuple(self.fields)))).remove_metadata()

    def column(self, name: str, rows: int, f: pa.Field) -> pa.Array:
        values = self.kinds[name][1]
        nulls = 0.0 if name == "group" else 0.2
        few = values[:2] if name in self.key else values
        drawn = [None if self.rng.random() < nulls else self.rng.choice(few) for _ in range(rows)]
        kind = pa.int64() if pa.types.is_time64(f.type) else f.type
        return pa.array(drawn, kind).cast(f.type)

    def rows(self, count: int) -> pa.Table:
        return pa.table([self.column(f.name, count, f) for f in self.schema], schema=self.schema)


def strategy_of(name: str, key: tuple[str, ...], compare: tuple[str, ...] | None) -> src.MergeStrategy:
    if name == "append":
        return src.MergeStrategyAppend()
    if name == "snapshot":
        return src.MergeStrategySnapshot(primary_key=key, compare_columns=compare)
    kinds = {"ledger": src.MergeStrategyLedger, "changelog": src.MergeStrategyChangelogStream}
    return kinds.get(name, src.MergeStrategyUpsertStream)(primary_key=key)


def operations(scene: Scene, strategy: str, rows: pa.Table) -> pa.Array:
    """Of an upsert stream any; of a changelog stream rows that stand alone or come in whole pairs."""
    some = [None, 0, 1, 2, 3] if strategy == "upsert" else [0, 1]
    return pa.array([scene.rng.choice(some) for _ in range(len(rows))], pa.int32())


def state_of(new: NewRows, strategy: src.MergeStrategy, recorded: pa.Table | None) -> State | None:
    """What an input is compared with, of recorded rows."""
    if recorded is None:
        return None
    batches = recorded.to_batches(7)
    if isinstance(strategy, src.MergeStrategyChangelogStream):
        time = new.vocabulary.event_time_column
        return State.by_values(batches, [n for n in new.rows.column_names if n != time], new.vocabulary)
    return State.of(batches, strategy, new.vocabulary, new.policies.edits)
