"""Slices that are more than they seem: nothing exhausts memory, and every refusal names the file."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError, OdfchainError, OversizedInputError
from odfchain.odf import events as ev
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import check_parquet, hash_parquet, open_parquet, rows_at_a_time
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.recorded_dataset import add, schema_event
from tests.kit.support import FIXTURES, ROOT

SLICES = FIXTURES / "hostile" / "slices"
EXPECTED: dict[str, Any] = yaml.safe_load((SLICES / "expected.yaml").read_text())
FILES: dict[str, dict[str, Any]] = EXPECTED["files"]

TIME = Timestamp.parse("2000-01-01T00:00:00Z")

# `ru_maxrss` begins with the size of the process that started this one
PROGRAM = """
import contextlib, io, json, re, sys
from pathlib import Path
from odfchain.cli.main import main
from odfchain.errors import BadInputError
from odfchain.slices.reader import open_parquet

def decode(path):
    try:
        with open_parquet(Path(path)) as file:
            print("rows", sum(batch.num_rows for batch in file.batches()))
    except BadInputError as error:
        print(error)

for line in sys.stdin:
    args = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = decode(args[1]) if args[0] == "decode" else main(args)
    peak = int(re.search("VmHWM: *\t* *([0-9]+)", Path("/proc/self/status").read_text())[1]) >> 10
    print(json.dumps([code, out.getvalue(), err.getvalue(), peak]))
"""


def run(jobs: list[list[str]]) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of command lines in one process, whose memory stays within bounds."""
    lines = "\n".join(map(json.dumps, jobs))
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for job, (*_, peak) in zip(jobs, found, strict=True):
        assert peak <= EXPECTED["memory_mb"], job
    return [tuple(item[:3]) for item in found]


def dataset_of(folder: Path, name: str) -> Path:
    """A dataset whose one slice is the file; returns the slice."""
    manifest = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: evil, kind: Root, metadata: []}\n"
    with mock.patch.object(Timestamp, "now", return_value=TIME):
        made = Workspace.init(folder).add(manifest)[0]
    dataset = DatasetFiles.open(made.path)
    add(dataset, schema_event())
    staged = folder / "staged"
    staged.write_bytes((SLICES / f"{name}.parquet").read_bytes())
    physical, size = hash_file(staged)
    rows, logical = 10, hash_parquet(SLICES / "good.parquet")[0]
    with contextlib.suppress(OdfchainError, pa.ArrowException, OSError):
        rows = pq.read_metadata(staged).num_rows
        logical = hash_parquet(staged)[0]
    dataset.data.put_file(staged, physical)
    new = ev.DataSlice(
        logical_hash=logical, physical_hash=physical, size=size,
        offset_interval=ev.OffsetInterval(start=0, end=rows - 1),
    )  # fmt: skip
    add(dataset, ev.AddData(new_data=new, new_watermark=Timestamp.parse("1970-01-01T00:00:00Z")))
    return Path(dataset.data.locate(physical))


def test_parquet_of_others_is_read_in_one_place() -> None:
    direct = re.compile(r"\bpq\.(?:ParquetFile|read_schema)\(|\.iter_batches\(")
    for path in (ROOT / "odfchain").rglob("*.py"):
        if path.parent.name != "slices":
            found = [line for line in path.read_text().splitlines() if direct.search(line)]
            assert not found, f"{path}: {found[0].strip()}: use odfchain.slices.reader"


def test_every_file_has_an_expectation() -> None:
    assert {path.stem for path in SLICES.glob("*.parquet")} == set(FILES)


def test_decoding_is_bounded() -> None:
    paths = {name: SLICES / f"{name}.parquet" for name in FILES}
    found = run([["decode", str(path)] for path in paths.values()])
    for (name, path), (_, said, _) in zip(paths.items(), found, strict=True):
        refusal = FILES[name]["refusal"]
        expected = "rows " if refusal is None else f"{re.escape(str(path))}: {refusal}"
        assert re.match(expected, said), said


def test_commands_say_which_slice_is_at_fault(tmp_path: Path) -> None:
    cases = []
    for name, expected in FILES.items():
        folder = tmp_path / name
        if "tail" in expected:
            path = dataset_of(folder, name)
            for command in ("tail", "verify"):
                cases.append((name, path, command, ["-w", str(folder), command, "evil"]))
            if name == "dictionary":
                others = (["blame", "evil", "--offset", "9"], ["digest", str(path)], ["fsck"])
                cases += [(name, path, args[0], ["-w", str(folder), *args]) for args in others]
    found = run([args for *_, args in cases])
    for (name, path, command, _), (code, out, err) in zip(cases, found, strict=True):
        said = f"{name}: {command}: {code}: {out}{err}"
        assert "fault of odfchain" not in said
        assert "Traceback" not in said
        wanted = FILES[name].get(command)
        if wanted is not None:
            assert code == wanted, said
        if wanted or command in ("blame", "digest"):
            assert path.name in said
        if command in ("blame", "digest"):
            assert "column `city`" in said


def test_only_the_row_groups_that_are_asked_for_are_examined(tmp_path: Path) -> None:
    bomb = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * (20 << 20)]))
    small = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["y"]))
    path = tmp_path / "two"
    with pq.ParquetWriter(
        path, pa.schema([("a", bomb.type)]), compression="zstd", write_statistics=False
    ) as writer:
        writer.write_table(pa.table({"a": bomb}), row_group_size=100_000)
        writer.write_table(pa.table({"a": small}))
    with open_parquet(path) as file:
        assert file.rows_between(100_001, 100_001)["a"].to_pylist() == ["y"]
        with pytest.raises(OversizedInputError, match="column `a`"):
            file.rows_between(99_999, 100_001)


def test_long_values_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "long"
    pq.write_table(pa.table({"a": [str(n) * (1 << 20) for n in range(9)] * 40}), path, compression="zstd")
    assert rows_at_a_time(path) in (64, 128)
    with open_parquet(path) as file:
        sizes = [batch.nbytes for batch in file.batches()]
    assert max(sizes) <= 130 << 20
    assert sum(sizes) >= 360 << 20


def test_ordinary_rows_are_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    table = pa.table({
        "n": range(200_000),
        "t": [f"text {n % 700}" for n in range(200_000)],
        "l": [[str(n), "x"] for n in range(200_000)],
        "m": pa.array([[("k", "v")]] * 200_000, pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    pq.write_table(table, path, compression="zstd")
    assert rows_at_a_time(path) == 65_536
    with open_parquet(path) as file:
        assert pa.Table.from_batches(file.batches()).equals(table.combine_chunks()) or file.rows_between(
            0, 199_999
        ).equals(table)


@pytest.mark.parametrize("value", ["a" * 5_000, "", None])
def test_dictionaries_whose_texts_are_long_are_measured(tmp_path: Path, value: str | None) -> None:
    path = tmp_path / "texts"
    texts = [value, "b" * 3_000, "c"] * 20_000
    pq.write_table(pa.table({"a": texts, "l": [[t] for t in texts]}), path, compression="snappy")
    check_parquet(path)
    with open_parquet(path) as file:
        assert [row for batch in file.batches(["a"]) for row in batch["a"].to_pylist()] == texts


def test_files_of_too_many_columns(tmp_path: Path) -> None:
    wide = pa.table({f"c{n}": pa.array([], pa.int8()) for n in range(10_001)})
    pq.write_table(wide, tmp_path / "wide", store_schema=False)
    with pytest.raises(OversizedInputError, match="10,001 columns, at most 10,000"):
        check_parquet(tmp_path / "wide")


def test_footers_of_many_megabytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"x": "y" * (5 << 20)}), tmp_path / "footer")
    said = r"footer has 1?[0-9],[0-9]+,[0-9]+ bytes, at most 4,194,304"
    with pytest.raises(OversizedInputError, match=said):
        check_parquet(tmp_path / "footer")


def test_page_headers_lie(tmp_path: Path) -> None:
    data = bytearray((SLICES / "good.parquet").read_bytes())
    (size,) = struct.unpack("<I", data[-8:-4])
    path = tmp_path / "lies"
    for at in range(4, len(data) - 8 - size):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            with open_parquet(path) as file:
                for batch in file.batches():
                    batch.to_pydict()
        except (BadInputError, ValueError, OverflowError):
            continue
