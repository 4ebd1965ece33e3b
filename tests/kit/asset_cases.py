"""Locks of many rows, and cases of asset locks whose expectations are made wrong."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from odfchain.assets.lock_table import SCHEMA
from odfchain.assets.locks import AssetLock

Case = dict[str, Any]


Hold = Callable[[Case, Path], None]
"""Holds a case, in a folder of its own."""


def held(
    fixture: Mapping[str, Any], holders: Mapping[str, tuple[Hold, Sequence[str]]]
) -> pytest.MarkDecorator:
    """Gives a test (who holds it, a case) for each case of a fixture, and with each expectation in it made wrong.

    `holders` has for each part of the fixture who holds its cases, and which of their members are expectations.
    Who holds a case must fail for each wrong one: so every expectation is looked at.
    """
    found = []
    for part, (hold, expected) in holders.items():
        for case in fixture[part]:
            found.append(pytest.param(hold, case, id=case["id"]))
            for name, wrong in wrong_cases(case, expected):
                fails = functools.partial(_fails, hold)
                found.append(pytest.param(fails, wrong, id=f"{case['id']}: another {name}"))
    return pytest.mark.parametrize(("hold", "case"), found)


def _fails(hold: Hold, case: Case, folder: Path) -> None:
    with pytest.raises(AssertionError):
        hold(case, folder)


def wrong_cases(case: Case, expected: Sequence[str]) -> Iterator[tuple[str, Case]]:
    """(name, the case with that expectation made wrong); of one that is a map, each of its members by itself."""
    for name in (name for name in expected if name in case):
        wanted = case[name]
        if isinstance(wanted, dict) and wanted:
            for member, value in wanted.items():
                yield f"{name} {member}", {**copy.deepcopy(case), name: {**wanted, member: _wrong(value)}}
        else:
            yield name, {**copy.deepcopy(case), name: _wrong(wanted)}


def _wrong(value: Any) -> Any:
    """Another value of the same kind; of a list its last item is another."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}~"
        case [*_]:
            return [*value[:-1], _wrong(value[-1])] if value else ["~"]
        case dict():
            return {name: _wrong(each) for name, each in value.items()} or {"~": "~"}
    return "~"


def numbered_rows(count: int) -> pa.Table:
    """A lock of so many rows, in order; no two have the same facts."""
    numbers = np.arange(count)
    texts = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 9, "0")

    def around(before: str, after: str = "") -> pa.Array:
        return pc.binary_join_element_wise(before, texts, after, "")

    times = pa.array(numbers + 1_600_000_000).cast(pa.timestamp("s"))
    return pa.table(
        {
            "item_id": around("S2A_33UWP_"),
            "asset_key": pa.array(["B04"] * count, pa.string()),
            "store_type": pa.array(["s3"] * count, pa.string()),
            "store_container": pa.array(["sentinel-cogs"] * count, pa.string()),
            "store_endpoint_url": pa.nulls(count, pa.string()),
            "key": around("33/U/WP/2024/7/", "/B04.tif"),
            "size_bytes": pa.array(numbers),
            "etag": around('"0f343b0931126a20f133d67', '-26"'),
            "last_modified": pc.strftime(times, "%Y-%m-%dT%H:%M:%S+00:00"),
        },
        schema=SCHEMA,
    )


def written_rows(path: Path, count: int) -> Path:
    """A file with a lock of so many rows."""
    AssetLock(numbered_rows(count), path.parent).write(path)
    return path
