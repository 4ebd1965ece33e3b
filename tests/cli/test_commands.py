"""Every command that touches no data: what it prints where, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.report import CHECKS
from odfchain.cli.main import COMMANDS, main
from odfchain.cli.parameters import DurationParam
from odfchain.errors import EngineError
from odfchain.odf.block_codec import block_hash, encode_block
from odfchain.odf.events import MetadataBlock
from odfchain.odf.tree import from_tree
from odfchain.odf.yaml import read_document
from tests.kit.block_vectors import vectors
from tests.kit.support import ROOT, Run, feed, manifest


def test_without_a_command_the_help_is_shown_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    for args in ([], ["config"], ["source"], ["repo"]):
        assert main(args) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"Example: odfchain {args[0]} " if args else "Version control for tables")
        assert ("Commands:" in said.splitlines(), said.count("Usage:")) == (bool(args), len(args))
        assert "\\n" not in said


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5_400), ("1 day", 86_400), ("0s", None), ("5300w", None)]
)
def test_lengths_of_time(text: str, seconds: float | None) -> None:
    if seconds is not None:
        assert DurationParam().convert(text, None, None) == seconds
        return
    with pytest.raises(click.BadParameter):
        DurationParam().convert(text, None, None)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    """The command line in a new folder, without Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ODFCHAIN_WORKSPACE", raising=False)
    return run


@pytest.fixture
def cities(run: Run, tmp_path: Path) -> Run:
    """A workspace with one dataset."""
    (tmp_path / "cities.yaml").write_text(manifest())
    assert run("init").code == 0
    assert run("add", "cities.yaml").code == 0
    return run


# --- help and version ------------------------------------------------------------------------------


def test_help_groups_commands_by_what_people_do(run: Run) -> None:
    lines = run("help", "--all").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines[1:] if line.endswith("...")]
    listed = [line.split()[0] for line in lines[lines.index("Start:") :] if line.startswith("  ")]
    assert listed == list(COMMANDS)
    assert [line for line in lines if line.endswith(":") and line != "Options:"] == [
        "Start:", "Bring:", "Look:", "Check:", "Share:", "Change:", "Keep:",
    ]  # fmt: skip


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert f"Usage: odfchain {command}" in result.out
    assert (ROOT / "docs" / "commands" / f"{command}.md").is_file()


def test_version(run: Run) -> None:
    import odfchain

    found = json.loads(run("version", "-o", "json").out)
    assert found["odfchain"] == odfchain.__version__
    assert found["specification"] == "0.34.1"
    assert odfchain.__version__ in run("--version").out
    assert set(run("version").out.split()) >= {"odfchain", "pyspark", "pyarrow", "python"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(run: Run, shell: str) -> None:
    result = run("completions", shell)
    assert result.code == 0
    assert "_ODFCHAIN_COMPLETE" in result.out


def test_dataset_names_are_completed(cities: Run) -> None:
    from click.shell_completion import BashComplete

    from odfchain.cli.main import cli

    found = BashComplete(cli, {}, "odfchain", "_ODFCHAIN_COMPLETE").get_completions(["log"], "CI")
    assert [item.value for item in found] == ["cities"]


# --- what was not understood -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["lst"], "error: no such command 'lst'\nhint: did you mean list?\n"),
        (["assets", "chek"], "error: no such command 'chek'\nhint: did you mean check?\n"),
        (["list", "--wid"], "error: no such option '--wid'\nhint: did you mean --wide?\n"),
        (
            ["assets", "derive", "x", "--checksum"],
            "option '--checksum' requires an argument\nhint: `odfchain assets derive --help` shows how",
        ),
        (["list", "-o", "xml"], "'xml' is not one of"),
        (["log"], "missing argument 'DATASET[@POINT]'\nhint: `odfchain log --help` shows how it is used\n"),
        (["log", "a", "-n", "0"], "is not in the range"),
        (["add"], "name manifest files or use --stdin"),
        (["ingest", "a"], "name the files to ingest, or use --stdin"),
        (["ingest", "a", "nothing.csv"], "nothing.csv: no such file"),
        (["ingest", "a", "."], ".: is a folder"),
        (["ingest", "a", "x.csv", "--event-time", "yesterday"], "yesterday"),
        (["digest", "nothing.parquet"], "nothing.parquet: no such file"),
        (["block", "decode", "nothing"], "nothing: no such file, and not a block hash"),
        (["block", "encode", "nothing"], "nothing: no such file"),
        (["completions", "csh"], "'csh' is not one of"),
    ],
)
def test_not_understood(run: Run, args: list[str], said: str) -> None:
    result = run(*args)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "Traceback" not in result.err


# --- workspaces and datasets -----------------------------------------------------------------------


def test_outside_of_a_workspace(run: Run) -> None:
    for args in (["list"], ["log", "a"], ["verify", "%"], ["tail", "a"], ["delete", "a"]):
        result = run(*args)
        assert result.code == 4
        assert "odfchain init" in result.err


def test_init(run: Run, tmp_path: Path) -> None:
    result = run("init")
    assert (result.code, result.out) == (0, "")
    assert str(tmp_path / ".odfchain") in result.err
    assert run("init").code == 5
    assert run("init", "--exists-ok").code == 0


def test_a_workspace_is_found_or_named(cities: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "down")
    assert [r["name"] for r in cities("list", "-o", "json").rows] == ["cities"]
    monkeypatch.chdir("/")
    assert cities("-w", tmp_path, "list").code == 0
    monkeypatch.setenv("ODFCHAIN_WORKSPACE", str(tmp_path))
    assert cities("list").code == 0


def test_list_in_every_format(cities: Run) -> None:
    (row,) = cities("list", "-o", "json").rows
    assert (row["name"], row["kind"], row["records"], row["blocks"]) == ("cities", "Root", 0, 2)
    assert json.loads(cities("list", "-o", "ndjson").out) == row
    (line,) = csv.DictReader(io.StringIO(cities("list", "-o", "csv").out))
    assert line["id"] == row["id"]
    table = cities("list").out.splitlines()
    assert table[0].split() == ["Name", "Kind", "Records", "Size", "Blocks", "Updated"]
    assert table[1].split()[:3] == ["cities", "Root", "0"]
    assert row["id"] in cities("list", "--wide").out


def test_an_empty_list_prints_no_data(run: Run) -> None:
    run("init")
    result = run("list")
    assert (result.code, result.out) == (0, "")
    assert "odfchain add" in result.err
    assert run("list", "-o", "json").rows == []


def test_a_damaged_dataset_does_not_hide_the_others(cities: Run, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(manifest(name="broken"))
    cities("add", "b.yaml")
    (row,) = [r for r in cities("list", "-o", "json").rows if r["name"] == "broken"]
    folder = tmp_path / ".odfchain" / "datasets" / row["id"].removeprefix("did:odf:")
    head = (folder / "refs" / "head").read_text().strip()
    (folder / "blocks" / head).write_bytes(b"nonsense")
    result = cities("list", "-o", "json")
    assert result.code == 6
    assert [r["name"] for r in result.rows] == ["cities"]
    assert result.err.startswith("error: broken: ")
    assert head in result.err


def test_rename(cities: Run) -> None:
    assert cities("rename", "Cities", "towns").code == 0
    assert [r["name"] for r in cities("list", "-o", "json").rows] == ["towns"]
    assert cities("rename", "cities", "x").code == 4
    assert cities("rename", "towns", "no such name").code == 2


def test_delete_asks_first(cities: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"")
    result = cities("delete", "cities")
    assert (result.code, result.out) == (2, "")
    assert "Delete cities with all data?" in result.err
    assert len(cities("list", "-o", "json").rows) == 1
    assert cities("-y", "delete", "cit%").code == 0
    assert cities("list", "-o", "json").rows == []
    assert cities("-y", "delete", "cities").code == 4


def test_unknown_datasets(cities: Run) -> None:
    for args in (
        ["log", "no"],
        ["tail", "no"],
        ["verify", "no"],
        ["inspect", "schema", "no"],
        ["rename", "no", "x"],
    ):
        result = cities(*args)
        assert (result.code, result.out) == (4, ""), args
        assert "'no'" in result.err or " no" in result.err


# --- chains ----------------------------------------------------------------------------------------


def test_log(cities: Run) -> None:
    rows = cities("log", "cities", "-o", "json").rows
    assert [r["event"]["kind"] for r in rows] == ["AddPushSource", "Seed"]
    assert [r["sequenceNumber"] for r in rows] == [1, 0]
    assert rows[0]["prevBlockHash"] == rows[1]["blockHash"]
    assert cities("log", "cities", "-n", "1", "-o", "json").rows == rows[:1]
    assert [json.loads(line) for line in cities("log", "cities", "-o", "ndjson").out.splitlines()] == rows
    assert read_document(cities("log", "cities", "-o", "yaml").out.encode()).value == rows
    lines = list(csv.DictReader(io.StringIO(cities("log", "cities", "-o", "csv").out)))
    assert [line["blockHash"] for line in lines] == [r["blockHash"] for r in rows]
    human = cities("log", "cities").out
    assert f"block {rows[0]['blockHash']}  #1" in human
    assert "source 'default': read Csv, merge Append" in human


def test_inspect_schema_before_the_first_data(cities: Run) -> None:
    result = cities("inspect", "schema", "cities")
    assert result.code == 4
    assert "it gets one with its first data" in result.err


def test_verify(cities: Run) -> None:
    assert cities("verify", "%").out.startswith("ok    cities: 2 blocks, 0 slices")
    (report,) = cities("verify", "cities", "cities", "-o", "json").rows
    assert (report["verdict"], report["faults"], len(report["checks"])) == ("clean", [], len(CHECKS))
    again = json.loads(cities("verify", "cities", "-o", "ndjson").out)
    assert again | {"time": report["time"]} == report


# --- blocks ----------------------------------------------------------------------------------------


def encoded(tree: dict[str, Any], version: int) -> bytes:
    return encode_block(from_tree(MetadataBlock, tree), version)


@pytest.mark.parametrize(("tree", "version", "digest", "hex_bytes"), vectors())
def test_decode_and_encode_are_inverse(
    run: Run, tmp_path: Path, tree: dict[str, Any], version: int, digest: str, hex_bytes: str | None
) -> None:
    (tmp_path / "block").write_bytes(encoded(tree, version))
    for output in ("yaml", "json"):
        decoded = run("block", "decode", "block", "-o", output)
        assert (decoded.code, decoded.err) == (0, "")
        (tmp_path / "document").write_text(decoded.out, encoding="utf-8")
        result = run("block", "encode", "document", "--manifest-version", version, "--output", "again")
        assert (result.code, result.out) == (0, f"f1620{digest}\n")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "block").read_bytes()


def test_the_default_version_is_3(run: Run, tmp_path: Path) -> None:
    tree = vectors()[0].values[0]
    (tmp_path / "block").write_bytes(encoded(tree, 2))
    (tmp_path / "document").write_text(run("block", "decode", "block").out)
    assert run("block", "encode", "document").out.strip() == str(block_hash(encoded(tree, 3)))


def test_blocks_by_hash_and_from_a_pipe(cities: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    newest, seed = cities("log", "cities", "-o", "json").rows
    by_hash = cities("block", "decode", seed["blockHash"], "-o", "json").out
    assert json.loads(by_hash)["content"]["event"] == seed["event"]
    (path,) = tmp_path.glob(f".odfchain/datasets/*/blocks/{seed['blockHash']}")
    feed(monkeypatch, path.read_bytes())
    assert cities("block", "decode", "-", "-o", "json").out == by_hash
    feed(monkeypatch, by_hash.encode())
    assert cities("block", "encode", "-").out.strip() == seed["blockHash"]
    assert cities("block", "decode", newest["blockHash"][:-1] + "x").code == 2
    assert cities("block", "decode", "f1620" + "0" * 64).code == 4


def test_bytes_that_are_not_canonical_are_said_to_be(run: Run, tmp_path: Path) -> None:
    """A block is what its bytes hash to; encoding its content again may give another one."""
    data = encoded(vectors()[0].values[0], 3)
    padded = data + bytes(8)
    (tmp_path / "block").write_bytes(padded)
    result = run("block", "decode", "block")
    assert result.code == 0
    assert str(block_hash(padded)) in result.err
    assert str(block_hash(data)) in result.err


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\0" * 100, b"kind: MetadataBlock"])
def test_what_is_no_block(run: Run, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "block").write_bytes(data)
    result = run("block", "decode", "block")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("error: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 documents"),
        ("kind: [", "document:2: not valid YAML"),
        ("kind: DatasetSnapshot\nversion: 1\ncontent: {}", "MetadataBlock"),
        ("kind: MetadataBlock\nversion: 9\ncontent: {}", "9"),
        ("kind: MetadataBlock\nversion: 3\ncontent: {systemTime: yesterday}", "systemTime"),
    ],
)
def test_what_is_no_document(run: Run, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "document").write_text(text)
    result = run("block", "encode", "document")
    assert (result.code, result.out) == (3, "")
    assert said in result.err
    assert "document" in result.err


# --- digest ----------------------------------------------------------------------------------------


def test_digest(run: Run, tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, None], "b": ["x", None, "z"]})
    pq.write_table(table, tmp_path / "one.parquet")
    pq.write_table(table, tmp_path / "two.parquet", compression="zstd", row_group_size=1)
    one, two = run("digest", "one.parquet", "two.parquet", "-o", "json").rows
    assert one["physicalHash"] == str(block_hash((tmp_path / "one.parquet").read_bytes()))
    assert one["logicalHash"] == two["logicalHash"]
    assert one["physicalHash"] != two["physicalHash"]
    assert (one["records"], one["size"]) == (3, (tmp_path / "one.parquet").stat().st_size)
    assert run("digest", "one.parquet").out.splitlines() == [
        f"physical  {one['physicalHash']}",
        f"logical   {one['logicalHash']}",
    ]


def test_digest_of_something_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    result = run("digest", "text", "-o", "json")
    assert result.code == 3
    assert result.rows[0]["logicalHash"] is None
    assert result.rows[0]["physicalHash"] == str(block_hash(b"hello"))
    assert "not a readable Parquet file" in result.err


# --- endings ---------------------------------------------------------------------------------------


class Captured(Exception):  # noqa: N818 - named as PySpark's
    """As PySpark's: what it says is asked of a JVM, which is gone with the session."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._desc = text

    def __str__(self) -> str:
        raise AssertionError


Captured.__module__ = "pyspark.errors.exceptions.captured"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ZeroDivisionError("by zero\nand more"), 1, "internal error: ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was committed"),
        (Captured("[X.Y] the reason\x1b[2J\nand more"), 7, "error: Spark failed: the reason\\x1b[2J"),
        (FileNotFoundError(2, "No such file or directory", "/x/a\nb.csv"), 7, "error: /x/a b.csv: No such file or directory"),
        (PermissionError(13, "Permission denied", b"/x/\xff"), 7, "error: /x/\\udcff: Permission denied"),
        (OSError(5, "Input/output error", "y"), 7, "error: y: Input/output error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)  # fmt: skip
def test_an_exception_is_one_line(
    cities: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("odfchain.api.workspace.Workspace.open", fail)
    result = cities("list")
    lines = result.err.strip().splitlines()
    assert (result.code, lines[0]) == (code, said)
    assert lines[1:] == [] or isinstance(error, OSError | ZeroDivisionError)
    assert code == 1 or "fault of odfchain" not in result.err
    if code == 1:
        result = cities("--debug", "list")
        assert result.code == 1
        assert "Traceback (most recent call last):" in result.err
        assert "ZeroDivisionError: by zero" in result.err


def test_a_workspace_puts_exceptions_of_spark_into_words_before_it_closes(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    with pytest.raises(EngineError, match="Spark failed: the reason"), workspace:
        raise Captured("the reason")
    with pytest.raises(ZeroDivisionError), workspace:
        raise ZeroDivisionError


def test_every_error_has_a_documented_exit_code() -> None:
    """RFC-008 and the manual list the same codes, and the errors use no other."""
    from odfchain import errors

    tree = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.OdfchainError)]
    used = {c.exit_code for c in tree} | {0, 2, 130}
    for document in ("docs/exit-codes.md", "rfcs/008-command-line.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        listed = {int(n) for n in re.findall(r"^\| *(\d+) \|", text, re.MULTILINE)}
        assert listed == used, document


def test_one_unreadable_dataset_does_not_keep_the_others_back(
    cities: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fail(_: object, target: object, *__: object, **___: object) -> None:
        asked.append(str(target))
        raise FileNotFoundError(2, "No such file or directory", f"{target}.csv")

    for name in ("first", "second"):
        Path(f"{name}.yaml").write_text(manifest(name=name))
        assert cities("add", f"{name}.yaml").code == 0
    monkeypatch.setattr("odfchain.api.pulling.pull", fail)
    result = cities("pull", "first", "second")
    assert asked == ["first", "second"], result
    assert result.code == 7
    assert "first: first.csv: No such file or directory" in result.err
    assert "second: second.csv: No such file or directory" in result.err
