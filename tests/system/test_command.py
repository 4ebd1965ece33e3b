"""The command as a shell sees it: pipes, terminals, signals, limits, the README's tour."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
import yaml

from odfchain.api.workspace import Workspace
from odfchain.odf.manifests import read_snapshots
from odfchain.profiles.drift import read_policy
from tests.kit.command_forks import commands_in_forks
from tests.kit.processes import (
    HEEDS_INTERRUPTS,
    ODFCHAIN,
    TIMEOUT,
    begun_with,
    environment,
    make_workspace,
    odfchain,
    one_session,
    still_running,
    visible,
    wait_until,
)
from tests.kit.stac_validation import check_stac
from tests.kit.stand_ins import simulated_s3
from tests.kit.support import ROOT, code_of, manifest, unchanged

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

ROWS = 600_000


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return make_workspace(tmp_path)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.csv"
    path.write_text("city,population\n" + "".join(f"{n * 7919:x}{n * 104_729:x},{n}\n" for n in range(ROWS)))
    return path


@pytest.fixture(scope="module")
def one_session_env() -> Iterator[dict[str, str]]:
    with one_session() as env:
        yield env


@pytest.fixture(scope="module")
def quick_env(one_session_env: dict[str, str]) -> Iterator[dict[str, str]]:
    """As `one_session_env`, and Python is started once: for tours in which only what commands do is new."""
    with commands_in_forks(one_session_env) as env:
        yield env


# --- output ----------------------------------------------------------------------------------------


def test_a_reader_that_goes_away(dataset: Path, tmp_path: Path) -> None:
    for args in (["log", "cities"], ["log", "cities", "-o", "json"], ["list", "-o", "csv"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [ODFCHAIN, *args], cwd=tmp_path, env=environment(), stdout=writing, stderr=subprocess.PIPE,
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
        os.close(writing)
        assert (done.returncode, done.stderr) == (0, b"")


def on_a_terminal(folder: Path, *args: str, code: int = 0, **env: str) -> str:
    """What a command prints when a terminal is attached."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        [ODFCHAIN, *args],
        cwd=folder,
        env=environment(TERM="xterm", **env),
        stdin=side,
        stdout=side,
        stderr=side,
    )
    os.close(side)
    shown = b""
    with contextlib.suppress(OSError):  # the other side was closed
        while chunk := os.read(main, 65_536):
            shown += chunk
    os.close(main)
    assert process.wait(timeout=TIMEOUT) == code
    return shown.decode()


def test_colour_on_a_terminal_only(dataset: Path, tmp_path: Path) -> None:
    assert "\x1b[" in on_a_terminal(tmp_path, "log", "cities")
    assert "\x1b[" in on_a_terminal(tmp_path, "list")
    for args in (["log", "cities"], ["list"]):
        assert "\x1b[3" not in on_a_terminal(tmp_path, *args, NO_COLOR="1")
        assert "\x1b[3" not in on_a_terminal(tmp_path, "--no-color", *args)
        assert "\x1b[" not in odfchain(tmp_path, *args).out
    # errors are reported when the command has ended
    assert "\x1b[31m" in on_a_terminal(tmp_path, "log", "none", code=4)
    assert "\x1b[" not in on_a_terminal(tmp_path, "log", "none", code=4, NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(tmp_path, "--no-color", "log", "none", code=4)


def test_progress_on_a_terminal(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("city,population\nA,1\n")
    shown = on_a_terminal(tmp_path, "ingest", "cities", "in.csv")
    assert "Starting Spark" in shown
    assert "committed 2 blocks" in shown
    assert visible(tmp_path) - visible(tmp_path / ".odfchain") >= {"in.csv", "manifest.yaml", ".odfchain"}
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"in.csv", "manifest.yaml", ".odfchain"}, "nothing is written beside the workspace"
    assert [p.name for p in (tmp_path / ".odfchain" / "run").iterdir()] == [".lock"], "nor left in it"


WATCHED = """
import sys
from odfchain.cli.main import run
try:
    run()
finally:
    print(*sorted({"pandas", "pyarrow", "pyspark"} & set(sys.modules)), file=sys.stderr)
"""


def test_pandas_is_loaded_by_nobody_who_has_no_frames(
    dataset: Path, tmp_path: Path, one_session_env: dict[str, str]
) -> None:
    """pyarrow and PySpark would load it in every command."""
    (tmp_path / "in.csv").write_text("city,population\nA,1\n")
    for args, loaded in (
        (["log", "cities"], ""),
        (["ingest", "cities", "in.csv"], "pyarrow pyspark"),
        (["tail", "cities"], "pyarrow"),
    ):
        done = subprocess.run(
            [ODFCHAIN.parent / "python", "-c", WATCHED, *args], cwd=tmp_path, env=one_session_env,
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, loaded), done.stderr


def test_pandas_comes_when_it_is_asked_for() -> None:
    code = """if True:
        import sys
        from odfchain.startup import allow_pandas, put_off_pandas
        put_off_pandas()
        import pyarrow as pa
        table = pa.table({"x": [1]})
        allow_pandas()
        assert "pandas" not in sys.modules
        assert table.to_pandas().x.sum() == 1
        import pandas
        assert pa.array(pandas.Series([1, 2])).to_pylist() == [1, 2]
    """
    subprocess.run([ODFCHAIN.parent / "python", "-c", code], env=environment(), check=True)


# --- interruptions and limits ----------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["Spark starts", "a slice is written"])
def test_control_c(dataset: Path, tmp_path: Path, large: Path, moment: str) -> None:
    run = tmp_path / ".odfchain" / "run"
    conditions = {
        "Spark starts": lambda: list(run.glob("spark-*.log")),
        "a slice is written": lambda: list((dataset / "staging").rglob("slice-*")),
    }
    with unchanged(dataset):
        process = subprocess.Popen(
            begun_with(HEEDS_INTERRUPTS, ODFCHAIN, "ingest", "cities", large), cwd=tmp_path, env=environment(),
            stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_until(conditions[moment], process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 130, said
        assert said.decode().strip().endswith("interrupted; nothing was committed")
        assert b"Traceback" not in said
    assert still_running(tmp_path) == [], "no Java is left behind"
    assert not list(run.glob("spark-*/"))


@pytest.mark.soak
def test_a_killed_run_leaves_nothing_that_the_next_one_does_not_clean(
    dataset: Path, tmp_path: Path, large: Path, engine: SparkEngine
) -> None:
    process = subprocess.Popen(
        [ODFCHAIN, "ingest", "cities", large], cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL
    )
    wait_until(lambda: list((dataset / "staging").rglob("slice-*")), process)
    process.kill()
    process.wait(timeout=TIMEOUT)
    assert odfchain(tmp_path, "verify", "cities").code == 0
    (tmp_path / "in.csv").write_text("city,population\nA,1\n")
    workspace = Workspace.open(tmp_path)
    workspace._engines.spark = engine
    assert workspace["cities"].ingest([tmp_path / "in.csv"]).blocks == 2
    assert [p.name for p in (dataset / "staging").iterdir()] == [".lock"]
    assert odfchain(tmp_path, "verify", "cities").out.startswith("ok    cities: 4 blocks, 1 slice, 1 record")


@pytest.mark.soak
def test_no_space_left(dataset: Path, tmp_path: Path, large: Path) -> None:
    """A limit on the size of files stands for a full disk; both end in a failed write."""
    with unchanged(dataset):
        result = odfchain(tmp_path, "ingest", "cities", large, limit=1_000_000)
    assert result.code == 7
    assert result.out == ""
    assert result.err.startswith("error: no space left")
    assert "Traceback" not in result.err


# --- the README ------------------------------------------------------------------------------------


def typed(script: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a page says is typed in a folder, and each command ends well."""
    # a server of a page that fails would hold the pipes, and hide the reason until the time is over
    script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"
    done = subprocess.run(
        ["bash", "-euxc", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.soak
def test_the_first_pages_of_the_manual(tmp_path: Path, quick_env: dict[str, str]) -> None:
    """Start, Bring, Keep and Output are typed one after the other, and print what the pages show."""
    pages = [f"docs/{name}.md" for name in ("start", "bring", "keep", "exit-codes")]
    done = typed("".join(code for page in pages for code in code_of(page)), tmp_path, quick_env)
    assert "  people  BIGINT\n  merge: snapshot by id; event time: the time of ingestion" in done.stderr
    assert re.search(r"^cities-2.csv +3 +1 +0 +1 +1 +2-4$", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.count("cities: 1 corrected; it is block ") == 2
    assert "cities: 1 corrected; it is block 5\n" in (ROOT / "docs" / "bring.md").read_text(encoding="utf-8")
    assert "cities: 1 corrected; it is block 5\n" in done.stdout
    assert re.search(r"^ok +cities: ", done.stdout, re.MULTILINE), "nothing is damaged"


@pytest.mark.soak
def test_the_tour_of_branches(tmp_path: Path, quick_env: dict[str, str]) -> None:
    """Poll on one branch, correct on another, merge both, decide a conflict, and somebody else verifies it."""
    tour = "".join(code_of("docs/branches.md"))
    done = typed(tour, tmp_path, quick_env)
    assert "2 records: 1 changed, 1 removed" in done.stderr
    assert "1 corrected, 1 retracted, no conflicts" in done.stdout + done.stderr
    assert "1 conflict, so nothing was changed" in done.stderr
    assert re.search(r"ZRH +Zürich +1417", done.stdout), done.stdout
    assert "Ghost" not in done.stdout.split("merged from")[0].rsplit("iata", 1)[-1]
    assert "merged from fix-names: umlauts, and no ghosts" in done.stdout
    owner, copied, fetched = re.findall(r"ok +airports: .*(?:\n +.*)*", done.stdout)
    assert "check 17" not in owner
    assert "check 17" in copied, "what was merged is not here"
    assert "check 17" not in fetched


@pytest.mark.soak
def test_the_tour_of_profiles(tmp_path: Path, quick_env: dict[str, str]) -> None:
    """A column that is filled in is found, an empty publication is the loudest of all, and the last is as before."""
    tour = "".join(code_of("docs/profiles.md"))
    (policy,) = code_of("docs/profiles.md", "yaml")
    done = typed(tour, tmp_path, quick_env)
    first, second, *rest = re.findall(r"^countries   block .*(?:\n.*BREACH.*)*", done.stdout, re.MULTILINE)
    assert first.startswith("countries   block 3 → 4   120 → 120 rows"), done.stdout
    assert re.search(r"keywords +null_fraction -0.550 +limit 0.05 +BREACH +nulls 62.5 % → 7.5 %", first)
    assert "BREACH" not in second, "the policy leaves keywords out"
    emptied, last = rest
    assert re.search(
        r"block 4 → 5   120 → 0 rows\n\(dataset\) +rows 0.000 +limit 0.5 +BREACH +120 → 0 rows$", emptied
    )
    assert last.startswith("countries   block 4 → 6   120 → 121 rows")
    assert "BREACH" not in last
    assert "it would retract all 120 recorded rows" in done.stderr
    assert "countries: no profile of block 6 is here" in done.stderr
    page = (tmp_path / ".profiles" / "drift.html").read_text(encoding="utf-8")
    assert "<title>Limits exceeded: countries" in page
    found = json.loads((tmp_path / ".profiles" / "drift.json").read_text(encoding="utf-8"))
    assert (found["verdict"], found["notCompared"][-1]["column"]) == ("ok", "keywords")
    assert read_policy(policy).columns == {"lon": {"ks": 0.15}, "iata": "skip"}


def test_files_of_this_machine_are_locked(tmp_path: Path, quick_env: dict[str, str]) -> None:
    """The first example of asset locks says what its page says."""
    script = code_of("docs/assets.md")[0]
    done = typed(script, tmp_path, quick_env)
    told = (ROOT / "docs/assets.md").read_text().partition(script)[2].split("```")[2].strip().splitlines()
    assert len(told) == 7
    assert [line for line in told if line not in (done.stdout + done.stderr).splitlines()] == []


@pytest.mark.soak
def test_the_tour_of_asset_locks(tmp_path: Path, quick_env: dict[str, str]) -> None:
    """A catalog is locked and moved to another S3 server, and who pulled the lock checks the copies."""
    tour = "".join(code_of("docs/assets.md")[1:])
    with simulated_s3("scenes") as one, simulated_s3("mirror") as two:
        keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
        done = typed(tour, tmp_path, quick_env | keys | {"ONE": one, "TWO": two})
    out, said = done.stdout, done.stderr
    assert said.count("probed 50 assets of 50 items in 1 store (s3 50)") == 2
    assert re.findall(r"^scenes\.(\w+)  ([-+].*)$", out, re.MULTILINE) == [
        ("lock", "+A 50   block 4"), ("lock", "-C 3  +C 3   block 5"), ("mirror", "+A 50   block 4"),
    ]  # fmt: skip
    # three are seen, and recorded as six rows
    changed = re.findall(r"^(s\d+) +B04 +changed +size (\d) → (\d+), etag", out, re.MULTILINE)
    assert changed == [("s1", "7", "24"), ("s2", "7", "24"), ("s3", "7", "24")]
    assert "47 same, 3 changed" in said
    rows = re.findall(
        r"^ *\d+  ([-+]C) .* (s\d+) +B04 +s3 +scenes +http://\S+ +catalog/(?:.*?) +(\d+) ", out, re.MULTILINE
    )
    assert rows == [(op, f"s{n}", size) for n in (1, 2, 3) for op, size in (("-C", "7"), ("+C", "24"))]
    assert re.findall(r"^(s\d) +B04 +changed +size_bytes +7 +24$", out, re.MULTILINE) == ["s1", "s2", "s3"]
    assert "3 records: 3 changed" in out + said
    blamed = out[out.index("of scenes.lock\n") :]
    assert re.search(r": block 5\n.*\+C .* item_id=s1, .*\n.*of the record 0 \(block 4\): \+A", blamed)
    # copied, projected, and checked by who pulled the lock
    assert "copied 50 objects" in said
    assert "ok    scenes.mirror: 5 blocks, 1 slice, 50 records" in out
    assert "\n50 same\n" in said
    item = json.loads((tmp_path / ".scenes" / "mirrored" / "s1" / "s1.json").read_text())
    check_stac(item)
    check_stac(json.loads((tmp_path / ".scenes" / "mirrored" / "catalog.json").read_text()))
    asset = item["assets"]["B04"]
    assert (asset["href"], asset["file:size"]) == ("../../catalog/s1/B04.tif", 24)
    assert asset["alternate"]["mirror"]["href"] == "s3://mirror/scenes/s1/B04.tif"
    assert [each["platform"] for each in item["properties"]["storage:schemes"].values()] == [two]


@pytest.mark.soak
def test_the_tour_of_nodes(tmp_path: Path, quick_env: dict[str, str]) -> None:
    """A dataset is pushed to a node with a token, pulled from there, and no longer pushed with a token revoked."""
    tour = "".join(code_of("docs/nodes.md"))
    done = typed(tour, tmp_path, quick_env | {"ODFCHAIN_CREDENTIALS": str(tmp_path / "credentials.json")})
    pushed = re.findall(
        r"^stations +(would be pushed|created|updated) +(\d+) +(\d) ", done.stdout, re.MULTILINE
    )
    assert pushed == [
        ("would be pushed", "4", "1"), ("created", "4", "1"), ("updated", "1", "1"), ("created", "5", "2"),
    ]  # fmt: skip
    assert re.search(r"  odf\+http://127\.0\.0\.1:\d+.*…$", done.stdout, re.MULTILINE), done.stdout
    assert "ok    stations: 5 blocks, 2 slices, 5 records" in done.stdout
    assert re.search(r"^laptop +push:stations ", done.stdout, re.MULTILINE)
    assert "HTTP status 401" in done.stderr
    token = (tmp_path / "laptop.token").read_text().strip()
    assert token not in done.stdout + done.stderr
    assert token not in (tmp_path / ".institute" / ".odfchain" / "tokens.yaml").read_text()


@pytest.mark.parametrize(
    "manual", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["alone", "and the manual"]
)
def test_the_tour_of_the_readme(
    tmp_path: Path, one_session_env: dict[str, str], quick_env: dict[str, str], *, manual: bool
) -> None:
    """What README and manual say is typed, in this order; the pages go on where the README ends."""
    first, tour, python = code_of("README.md", "sh|python")
    pages = ("look", "derivatives", "share", "check")
    looked, derived, shared, audited = ("".join(code_of(f"docs/{page}.md")) for page in pages)
    assert [len(part.splitlines()) for part in (first, tour)] == [5, 9]
    tour = first + tour
    for name in ("fixtures", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("")  # the command of this run is on the PATH already
    done = typed(tour, tmp_path, one_session_env)
    assert "merge: snapshot by icao" in done.stderr
    assert (tmp_path / ".first" / "manifests" / "airports.yaml").is_file()
    assert "kind: MetadataBlock" in done.stdout
    assert "ok    org.airportsdata.airports: 9 blocks, 4 slices, 25,272 records" in done.stdout
    assert re.search(
        r"org\.airportsdata\.airports +updated +30176 +8139 +255 +8439 +8439 +5$", done.stdout, re.MULTILINE
    )
    assert re.search(r"org\.airportsdata\.airports +up to date( +0){5}  20", done.stdout)
    said = "25,272 rows: the release of July 2025, for one, adds 43 airports, drops 48 and corrects 57"
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")
    (questions,) = code_of("README.md", "sql")
    (tmp_path / "five.sql").write_text(questions)
    answers = typed("odfchain sql < ../five.sql", tmp_path / ".tour", one_session_env).stdout.split("\n\n")
    assert [answer.split()[0] for answer in answers] == ["country", "airports", "airports", "icao", "offset"]
    shown = subprocess.run(
        [ODFCHAIN.parent / "python", "-W", "error", "-c", python], cwd=tmp_path, env=one_session_env,
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    lines = (
        "up to date",
        "clean, 9 blocks",
        "created",
        "\n6565\n",
        "[7884 rows x 3 columns]",
        "icao STRING",
        "132 +A",
    )
    assert [line for line in lines if line not in shown.stdout] == [], shown.stdout
    if not manual:
        return
    done = typed(looked, tmp_path / ".first", quick_env)
    assert re.search(r"^US +1952\nAU +521\nCA +414$", done.stdout, re.MULTILINE), done.stdout
    done = typed(derived, tmp_path / ".tour", quick_env)
    assert re.search(r"airports\.by-country +updated +25272 ", done.stdout), done.stdout
    assert "replayed 1 transaction" in done.stdout
    assert "not checked" not in done.stdout
    done = typed(shared, tmp_path / ".tour", quick_env)
    assert re.search(r"airports +created +", done.stdout), done.stdout
    assert re.search(r"airports +up to date +", done.stdout), done.stdout
    assert done.stdout.count("ok    airports: 9 blocks, 4 slices, 25,272 records") == 2
    done = typed(audited, tmp_path / ".tour", quick_env)
    assert re.search(r"airports\.by-country +created .* signed\n", done.stdout), done.stdout
    assert re.search(r"ok +airports\.by-country: .* replayed 1 transaction with odfchain_", done.stdout)
    (auditor,) = set(re.findall(r"^attested as clean by (did:key:\w+)$", done.stdout, re.MULTILINE))
    assert re.search(rf"^{auditor} +clean +4 .* true +valid$", done.stdout, re.MULTILINE)
    assert "replayed 0 transactions" in done.stdout
    assert f"not computed again: {auditor} attested block 4" in done.stdout
    report = (tmp_path / ".auditor" / "report.html").read_text(encoding="utf-8")
    assert report.startswith("<!DOCTYPE html>")
    assert "airports.by-country" in report


@pytest.mark.soak
def test_watching_a_source(tmp_path: Path) -> None:
    """One session stays warm; every change is recorded once; Ctrl-C ends it and leaves nothing behind."""
    source = tmp_path / "source.csv"
    source.write_text("city,population\nA,1\n")
    polled = manifest().replace(
        "AddPushSource\n      sourceName: default",
        f"SetPollingSource\n      fetch: {{kind: Url, url: '{source.as_uri()}'}}",
    )
    folder = make_workspace(tmp_path, polled)
    process = subprocess.Popen(
        begun_with(HEEDS_INTERRUPTS, ODFCHAIN, "pull", "cities", "--watch", "100ms", "-o", "ndjson"), cwd=tmp_path,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_until(lambda: len(list((folder / "data").iterdir())) == 1, process)
    source.write_text("city,population\nB,2\n")
    os.utime(source, (1_700_000_000, 1_700_000_000))
    wait_until(lambda: len(list((folder / "data").iterdir())) == 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert out.splitlines()[0].startswith(b'{"dataset": "cities", "status": "updated", "rows": 1')
    assert odfchain(tmp_path, "verify", "cities").code == 0
    assert still_running(tmp_path) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "fixtures" / "manifests").rglob("*.yaml")), ids=lambda p: p.name
)
def test_the_manifests_of_the_fixtures_are_valid(path: Path) -> None:
    """They parse here, and an editor that knows the JSON Schema finds nothing wrong."""
    schema = json.loads((ROOT / "schemas" / "DatasetSnapshot.json").read_text(encoding="utf-8"))
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
    assert len(read_snapshots(path.read_bytes())) == 1
