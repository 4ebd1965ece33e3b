"""Spark Connect: a server in a process of its own, and the command as its client in another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import shared_store
from tests.kit.connect_server import connect_server
from tests.kit.polled_sources import APPEND, CSV, LEDGER, MANIFEST, SNAPSHOT
from tests.kit.processes import TIMEOUT, environment, java_in_bubblewrap, make_workspace, odfchain
from tests.kit.small_s3 import SmallS3
from tests.kit.support import ROOT, configure, manifest, unchanged
from tests.kit.two_snapshots import CITIES, TWO, ingest_two

pytestmark = pytest.mark.soak

TIMES = ("--event-time", "2026-01-01T00:00:00Z", "--system-time", "2050-02-01T00:00:00Z")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server on loopback."""
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def test_two_snapshots(tmp_path: Path, server: str) -> None:
    dataset = make_workspace(tmp_path, CITIES, f"{{remote: '{server}'}}")
    ingest_two(tmp_path)
    (tmp_path / "bad.csv").write_text(TWO + "E,x\n")
    with unchanged(dataset):
        bad = odfchain(tmp_path, "ingest", "cities", "bad.csv")
    assert bad.code == 3
    assert bad.err == f"error: {tmp_path}/bad.csv: row 4: column `population`: 'x' is not a valid BIGINT\n"


def test_several_slices(tmp_path: Path, server: str) -> None:
    make_workspace(tmp_path, manifest(), f"{{remote: '{server}'}}\n  slice: {{maxBytes: 65536}}")
    (tmp_path / "many.csv").write_text("city,population\n" + "".join(f"c{n},{n}\n" for n in range(10_000)))
    result = odfchain(tmp_path, "ingest", "cities", "many.csv", "--event-time", "2026-01-01T00:00:00Z")
    assert result.code == 0, result.err
    (report,) = odfchain(tmp_path, "verify", "cities", "-o", "json").rows
    assert (report["verdict"], report["counts"]["records"]) == ("clean", 10_000)
    assert report["counts"]["slices"] > 3


def test_client_and_server_have_nothing_in_common_but_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks are those of a folder; the server sees none of the client's."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    client, here, server_folder = (tmp_path / name for name in ("client", "here", "server"))
    for folder in (client, here, server_folder):
        folder.mkdir()
    java = java_in_bubblewrap(tmp_path, "--tmpfs", client, "--tmpfs", here)
    with SmallS3() as store, connect_server(server_folder, JAVA_HOME=str(java)) as url:
        assert odfchain(here, "init").code == 0
        assert odfchain(client, "init", "--store", store.url(shared_store.PREFIX)).code == 0
        for folder, spark in ((here, {}), (client, {"spark": {"remote": url}})):
            configure(folder / ".odfchain", slice={"maxBytes": 1 << 18}, **spark)
            (folder / "manifest.yaml").write_text(CITIES)
            assert odfchain(folder, "add", "manifest.yaml").code == 0
            for release, rows in ((1, 100), (2, 60_000)):  # one that goes within the plan, one by the store
                lines = "".join(f"City {n},{n * release}\n" for n in range(rows))
                (folder / "cities.csv").write_text(f"city,population\n{lines}")
                done = odfchain(folder, "ingest", "cities", "cities.csv", *TIMES)
                assert done.code == 0, done.err
        found = shared_store.recorded(client, "cities")
        assert len(found) > 2
        assert found == shared_store.recorded(here, "cities")
        assert not list(client.glob(".odfchain/datasets/*/data/*")), "rows pass through the client"
        assert shared_store.objects(store, "staging/") == {}
        assert odfchain(client, "verify", "cities").out.startswith("ok ")


def manifest_of(folder: Path, query: str, merge: str) -> str:
    """A dataset that fetches `cities.csv` of a folder and preprocesses it."""
    return MANIFEST.format(
        fetch=f"{{kind: Url, url: '{(folder / 'cities.csv').as_uri()}'}}",
        prepare="[]",
        read=f'{{{CSV[:-1]}, "at STRING"]}}',
        preprocess=f"preprocess: {{kind: Sql, engine: spark, {query}}}\n      ",
        merge=merge,
    )


def polled(folder: Path, server: str, query: str, merge: str) -> Path:
    """A workspace with such a dataset; returns the dataset's folder."""
    return make_workspace(folder, manifest_of(folder, query, merge), f"{{remote: '{server}'}}")


STEPS = """queries: [
        {alias: large, query: "SELECT *, upper(city) AS big FROM input WHERE population > 1"},
        {query: "SELECT CAST(at AS TIMESTAMP) AS event_time, city, population DIV 2 AS half FROM large
                 WHERE EXISTS (SELECT 1 FROM input i WHERE i.city = large.city) ORDER BY city DESC"}]"""


@pytest.mark.parametrize("merge", [APPEND, LEDGER, SNAPSHOT])
def test_preprocessing_queries(tmp_path: Path, server: str, merge: str) -> None:
    polled(tmp_path, server, STEPS, merge)
    (tmp_path / "cities.csv").write_text(
        "city,population,at\nA,1,2026-01-01\nB,20,2026-01-02 10:00\nC,30,2026-01-03\n"
    )
    first = odfchain(tmp_path, "pull", "cities")
    assert first.code == 0, first.err
    rows = odfchain(tmp_path, "tail", "cities", "-o", "json").rows
    assert sorted((r["city"], r["half"], r["event_time"]) for r in rows) == [
        ("B", 10, "2026-01-02T10:00:00Z"),
        ("C", 15, "2026-01-03T00:00:00Z"),
    ]
    assert odfchain(tmp_path, "verify", "cities").out.startswith("ok ")


def test_what_a_preprocessing_query_cannot_compute(tmp_path: Path, server: str) -> None:
    """Nothing is recorded, and the message says what is wrong: in the query, or in the row that was read."""
    dataset = polled(tmp_path, server, STEPS, APPEND)
    for text, code, said in [
        ("B,20,10:00", 3, "(a time of day without a date) 10:00"),
        ("B,20,never", 3, "never"),
        ("B,2x,2026-01-01", 3, "row 2: column `population`: '2x' is not a valid BIGINT"),
    ]:
        (tmp_path / "cities.csv").write_text(f"city,population,at\nA,1,2026-01-01\n{text}\n")
        with unchanged(dataset):
            failed = odfchain(tmp_path, "pull", "cities")
        assert (failed.code, said in failed.err) == (code, True), failed.err
        assert "Traceback" not in failed.err


def test_a_query_that_asks_for_more_is_refused(tmp_path: Path, server: str) -> None:
    """When it is added, and when a pull meets one that was recorded before."""
    dataset = polled(tmp_path, server, STEPS, APPEND)
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "manifest.yaml").write_text(
        manifest_of(tmp_path, f'query: "SELECT * FROM text.`{tmp_path / "secret"}`"', APPEND)
    )
    with unchanged(dataset):
        refused = odfchain(tmp_path, "add", "--update", "manifest.yaml")
    assert refused.code == 3, refused.err
    assert "query, line 1, column 15: there is no table `text." in refused.err, refused.err


@pytest.mark.parametrize("corpus", ["shared", "rejected", "allowed"])
def test_queries_are_judged_as_in_a_session_of_our_own(tmp_path: Path, server: str, corpus: str) -> None:
    """The server is asked for nothing that is refused, and reads what is allowed as we do."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.connect_client", server, tmp_path, corpus],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=TIMEOUT, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found) > 20
    if corpus == "allowed":
        # a constant that no time can be made of passes the gate, and cannot be computed anywhere
        assert [each for each in found if each[1] and "'2020-01-01 10:00 UTC'" not in each[2]] == []
    else:
        kinds = {kind for _, kind, _ in found}
        assert kinds <= {"QueryError"}, [each for each in found if "Query" not in each[1]]
    assert not (tmp_path / "canary").exists()
