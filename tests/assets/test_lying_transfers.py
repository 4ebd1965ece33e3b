"""Copies from servers that lie, break off, stall or are busy: nothing but what the lock describes arrives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.objects import Facts, Stores
from odfchain.assets.relocating import Arrivals, Relocated, Relocation
from odfchain.limits import FetchLimits
from odfchain.storage.locations import Location
from tests.kit.lying_objects import BYTES, LyingObjects

LOCKED = Facts(7, '"abc"', "2015-10-21T07:28:00+00:00")


@pytest.fixture
def server() -> Iterator[LyingObjects]:
    with LyingObjects({"/x.tif": {}}) as found:
        yield found


def moved(
    server: LyingObjects,
    folder: Path,
    facts: Facts = LOCKED,
    limits: FetchLimits | None = None,
    **options: Any,
) -> Relocated:
    """One object, copied to `folder/a/S2A/B04.tif`."""
    row = AssetRow("S2A", "B04", parse_href(f"{server.origin}/x.tif"), facts)
    chosen = Relocation(**options)
    here = Stores(folder, allow_private=True, limits=limits or FetchLimits(retries=1, first_wait=0.01))
    planned = chosen.plan([row], Location.parse(f"file://{folder}/a", folder=True))
    return chosen.run(planned, here, here, Arrivals(None))


REFUSED = [
    ("head says more than comes", {"head length": 8}, LOCKED, 6, "size 7 → 8"),
    ("what comes is said to be more", {"length": 9, "head": 405}, LOCKED, 8, "got 7..7"),
    ("what comes is cut", {"cut": 3}, LOCKED, 8, "http"),
    ("less comes than was locked", {"bytes": b"123"}, replace(LOCKED, etag=None), 6, "size 7 → 3"),
    ("no length is said", {"length": False}, LOCKED, 8, "content-length"),
    ("other bytes come", {"bytes": b"7654321"}, replace(LOCKED, file_checksum="1220" + "0" * 64), 6, "checksum"),
    ("it has another tag", {"etag": '"new"'}, LOCKED, 6, "etag"),
    ("it is busy for ever", {"busy": 100}, LOCKED, 8, "503"),
    ("it is gone", {"head": 404, "get": 404}, LOCKED, 8, "no such object"),
    ("it is forbidden", {"head": 403, "get": 403}, LOCKED, 8, "403"),
    ("its head is endless", {"headers": 2_000_000}, LOCKED, 8, "error"),
    ("it redirects in a circle", {"to": "/x.tif"}, LOCKED, 8, "redirect"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "facts", "code", "said"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_is_not_copied(
    server: LyingObjects, tmp_path: Path, answer: dict[str, Any], facts: Facts, code: int, said: str
) -> None:
    server.answers["/x.tif"] = answer
    found = moved(server, tmp_path, facts)
    assert (found.rows, found.copied) == ((), 0)
    assert found.faults[0].error.exit_code == code
    assert said in str(found.faults[0]).lower()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "answer",
    [{"busy": 1}, {"headers": 100_000}, {"head": 405}, {"head": 501, "ranges": False}],
    ids=["busy once", "a large head", "no HEAD", "no ranges"],
)
def test_what_is_copied_all_the_same(server: LyingObjects, tmp_path: Path, answer: dict[str, Any]) -> None:
    server.answers["/x.tif"] = answer
    found = moved(server, tmp_path)
    assert [row.facts for row in found.rows] == [Facts(7)]
    assert (tmp_path / "a/S2A/B04.tif").read_bytes() == BYTES


def test_case_36_its_server_refuses_what_changes_before_it_is_read(
    server: LyingObjects, tmp_path: Path
) -> None:
    def changed(method: str, path: str) -> None:
        if method == "GET":
            server.answers["/x.tif"] = {"etag": '"new"'}

    server.before = changed
    found = moved(server, tmp_path)
    assert [(fault.error.exit_code, fault.error.message) for fault in found.faults] == [
        (6, f"{server.origin}/x.tif: changed since it was locked")
    ]
    assert server.requests[-1][2]["if-match"] == '"abc"'


def test_a_connection_that_breaks_is_continued(server: LyingObjects, tmp_path: Path) -> None:
    """What is missing is asked for, of the same object only."""
    server.answers["/x.tif"] = answer = {"cut": 3}
    server.before = lambda method, path: answer.clear() if "range" in server.requests[-1][2] else None
    assert moved(server, tmp_path).copied == 1
    assert (tmp_path / "a/S2A/B04.tif").read_bytes() == BYTES
    ranges = [headers["range"] for method, _, headers in server.requests if "range" in headers]
    assert ranges == ["bytes=3-6"]


def test_what_changes_while_it_is_read_is_not_pieced_together(server: LyingObjects, tmp_path: Path) -> None:
    server.answers["/x.tif"] = {"cut": 3}

    def changed(method: str, path: str) -> None:
        if "range" in server.requests[-1][2]:
            server.answers["/x.tif"] = {"bytes": b"abcdefg", "etag": '"new"'}

    server.before = changed
    found = moved(server, tmp_path)
    assert found.rows == ()
    assert not (tmp_path / "a/S2A/B04.tif").exists()


def test_a_server_that_never_answers_is_not_waited_for(server: LyingObjects, tmp_path: Path) -> None:
    server.held.append(over := threading.Event())
    server.before = lambda method, path: over.wait() if method == "GET" else None
    found = moved(server, tmp_path, limits=FetchLimits(retries=0, idle_timeout=0.2))
    assert [fault.error.exit_code for fault in found.faults] == [8]


def test_a_body_that_trickles_has_its_time_and_no_more(server: LyingObjects, tmp_path: Path) -> None:
    server.answers["/x.tif"] = {"trickle": threading.Event()}
    found = moved(server, tmp_path, limits=FetchLimits(retries=0, idle_timeout=30.0, deadline=0.2))
    assert [fault.error.exit_code for fault in found.faults] == [8]
