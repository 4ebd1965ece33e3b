"""The queries that must be refused: the shared ones and our own."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.kit.support import FIXTURES, conformance

SCHEMA = (
    "a string, b bigint, c int, d double, t timestamp, dt date, m map<string,int>, arr array<int>, "
    "st struct<x:int,y:string>, bo boolean, dec decimal(10,2), event_time timestamp, sensor string, level int"
)
"""Columns of every table that the queries are asked over."""

TABLES = ("input", "readings", "t")


def shared() -> list[str]:
    """The cases that every implementation runs."""
    return [case["sql"] for case in conformance("transform_cases")["must_be_rejected"]]


def own(canary: Path) -> list[tuple[str, str]]:
    """(category, SQL) of our own cases, which name `canary` where they would touch a file."""
    return queries("rejected", canary)


def queries(name: str, canary: Path | str = "") -> list[tuple[str, str]]:
    """(category, SQL) of a file of the fixtures."""
    text = (FIXTURES / "queries" / f"{name}.yaml").read_text(encoding="utf-8")
    return [
        # what stands alone has no place for a file, and may hold braces of its own
        (category, sql if name == "allowed" else sql.format(file=canary))
        for category, group in yaml.safe_load(text).items()
        for sql in group["queries"]
    ]
