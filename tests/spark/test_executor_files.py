"""Files by keys of a store, for driver and executors that have no folder in common."""

from __future__ import annotations

import datetime as dt
import pickle
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.errors import (
    AccessError,
    BadInputError,
    EngineError,
    ManifestError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    TransferError,
)
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT
from odfchain.spark.executor_files import (
    CREDENTIALS_HINT,
    files_of,
    give_files,
    kept_copy,
    own_folder,
    session_like,
    staged,
    translate_errors,
)
from odfchain.spark.input_frames import parquet_frame, spark_path
from odfchain.spark.jobs import explain
from odfchain.spark.session import SparkEngine
from odfchain.spark.types import physical_struct
from odfchain.transfer import store_files
from odfchain.transfer.store_files import StoreFiles
from odfchain.transform.spark_engine import SparkTransformEngine
from tests.kit import shared_store
from tests.kit.shared_store import PREFIX
from tests.kit.small_s3 import RESET, SmallS3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallS3]:
    """A store on loopback, and folders of this test for what workers keep."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with SmallS3() as store:
        yield store


@pytest.fixture
def files(store: SmallS3) -> StoreFiles:
    return StoreFiles(store.url(f"{PREFIX}/"))


@pytest.fixture
def workers(engine: SparkEngine) -> Iterator[None]:
    with shared_store.credentials_of_workers(engine):
        yield


def written(folder: Path, data: bytes) -> Path:
    (path := folder / "given").write_bytes(data)
    return path


def test_what_is_put_is_there_for_whoever_has_the_url(files: StoreFiles, tmp_path: Path) -> None:
    """In one piece and in several; on a worker, which gets the pickled form."""
    on_worker: StoreFiles = pickle.loads(pickle.dumps(files))  # noqa: S301 - just made
    assert b"s3cret" not in pickle.dumps(files)
    for size in (5, (8 << 20) + 1):
        data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        with staged(files) as run:
            files.put(written(tmp_path, data), f"{run}/input")
            assert on_worker.bring(f"{run}/input").read_bytes() == data
            assert on_worker.read(f"{run}/input", 1, 4) == data[1:4]
            on_worker.copy(f"{run}/input", 2, size, tmp_path / "copied")
            assert (tmp_path / "copied").read_bytes() == data[2:]
        with pytest.raises(ObjectNotFoundError):
            files.read(f"{run}/input", 0, 1)


def test_what_has_a_hash_for_a_name_hashes_to_it(store: SmallS3, files: StoreFiles, tmp_path: Path) -> None:
    name = hash_bytes(b"whole")
    key = f"datasets/fed01/data/{name}"
    files.put(written(tmp_path, b"whole"), key)
    store.objects[f"{PREFIX}/{key}"] = b"other"
    with pytest.raises(ObjectCorruptedError, match=f"{key}: the content hashes to "):
        files.bring(key)
    store.objects[f"{PREFIX}/{key}"] = b"whole"
    assert files.bring(key).read_bytes() == b"whole"
    store.requests.clear()
    assert files.bring(key).read_bytes() == b"whole"
    assert store.requests == [], "it is kept"


def test_copies_that_nobody_asks_for_make_room(
    files: StoreFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "KEPT_BYTES", 10)
    for name in "abc":
        files.put(written(tmp_path, name.encode() * 5), name)
    first = files.bring("a")
    assert [files.bring(name).read_bytes() for name in "bc"] == [b"bbbbb", b"ccccc"]
    assert first.exists(), "a task may be about to open it"
    monkeypatch.setattr(store_files, "_IN_USE_SECONDS", -60)
    files.put(written(tmp_path, b"d"), "d")
    files.bring("d")
    assert not first.exists()
    assert sum(path.stat().st_size for path in own_folder("brought").iterdir()) <= 10


def test_a_connection_that_breaks_off_is_tried_again(
    store: SmallS3, files: StoreFiles, tmp_path: Path
) -> None:
    broken: list[str] = []

    def once(method: str, path: str) -> int | None:
        if (method, path) in broken:
            return None
        broken.append((method, path))
        return RESET

    store.after = once
    files.put(written(tmp_path, b"data"), "staging/a")
    assert files.bring("staging/a").read_bytes() == b"data"
    store.before = lambda *_: 403
    with pytest.raises(AccessError):
        files.read("staging/a", 0, 1)


@pytest.mark.parametrize(
    "error",
    [
        ObjectNotFoundError("gone"),
        ObjectCorruptedError("s3://b/x: another", hint="restore it"),
        BadInputError("not Parquet", file="datasets/x", row=3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_workers_are_raised_by_the_driver(error: OdfchainError) -> None:
    with pytest.raises(RuntimeError) as said, translate_errors():
        raise error
    found = explain(Exception(f"Job aborted: Traceback … {said.value} at org.apache.spark"))
    assert (type(found), str(found), found.hint) == (type(error), str(error), error.hint)


def test_who_has_no_credentials_is_told_whose_are_asked_for() -> None:
    for error in (AccessError("403"), TransferError("no region", hint="of the driver")):
        with pytest.raises(RuntimeError) as said, translate_errors():
            raise error
        assert explain(said.value).hint == CREDENTIALS_HINT
    with pytest.raises(RuntimeError) as said, translate_errors():
        raise EngineError("something")
    assert type(explain(said.value)) is EngineError


TYPES: dict[str, pa.DataType] = {
    "flag": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(),
    "u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(),
    "f32": pa.float32(), "f64": pa.float64(), "dec": pa.decimal128(38, 10), "day": pa.date32(),
    "ms": pa.timestamp("ms", "UTC"), "us": pa.timestamp("us", "UTC"), "a.b`c d": pa.string(),
    "raw": pa.binary(), "items": pa.list_(pa.uint64()),
    "parts": pa.struct([("n", pa.uint32()), ("when", pa.timestamp("ms", "UTC"))]),
}  # fmt: skip
LATER = "later"


def rows_of(seed: int) -> dict[str, list[Any]]:
    when = dt.datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=dt.UTC)
    some = {
        "flag": True, "i8": -seed, "i16": -seed, "i32": -seed, "i64": -(1 << 60) + seed, "u8": 255,
        "u16": 65_535, "u32": (1 << 32) - 1, "u64": (1 << 64) - seed, "f32": 0.5, "f64": float("nan"),
        "dec": Decimal("-1.0000000001"), "day": dt.date(1, 1, 1), "ms": when, "us": when, "a.b`c d": "ä\n",
        "raw": b"\0\xff", "items": [seed, None, (1 << 64) - 1], "parts": {"n": seed, "when": when},
    }  # fmt: skip
    return {name: [value, None] for name, value in some.items()}


@pytest.mark.usefixtures("workers")
def test_rows_are_those_of_sparks_own_reader(engine: SparkEngine, files: StoreFiles, tmp_path: Path) -> None:
    """In all types, where a column came later, with some of the columns, and in the order of the files."""
    later = {**TYPES, LATER: pa.string()}
    paths = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    pq.write_table(pa.table(rows_of(1), pa.schema(TYPES.items())), paths[0])
    pq.write_table(pa.table({**rows_of(2), LATER: ["new", None]}, pa.schema(later.items())), paths[1])
    for number, path in enumerate(paths):
        files.put(path, f"slices/{number}")
    fields = from_arrow(pa.schema(later.items())).fields
    struct = physical_struct(fields)
    session = engine.session
    ours = parquet_frame(session, files, struct, ["slices/0", "slices/1"])
    theirs = [session.read.schema(struct).parquet(spark_path(path)).toArrow() for path in paths]
    assert ours.schema == struct
    assert repr(ours.toArrow().to_pylist()) == repr(pa.concat_tables(theirs).to_pylist())
    of_two = physical_struct(tuple(f for f in fields if f.name in ("u64", LATER)))
    found = parquet_frame(session, files, of_two, ["slices/1"]).toArrow().to_pylist()
    assert found == [{"u64": Decimal((1 << 64) - 2), LATER: "new"}, {"u64": None, LATER: None}]
    assert parquet_frame(session, files, of_two, []).count() == 0


@pytest.mark.usefixtures("workers")
def test_a_file_that_cannot_be_read_is_an_error_with_its_key(
    engine: SparkEngine, files: StoreFiles, tmp_path: Path
) -> None:
    struct = physical_struct((ds.DataField(name="a", type=ds.DataTypeInt64()),))
    files.put(written(tmp_path, b"PAR1 no"), "slices/bad")
    for key, kind in (("slices/bad", BadInputError), ("slices/none", ObjectNotFoundError)):
        with pytest.raises(Exception, match="odfchain") as failed:
            parquet_frame(engine.session, files, struct, [key]).collect()
        found = explain(failed.value)
        assert type(found) is kind
        assert key in str(found)


def test_sessions_beside_a_session_reach_files_as_it_does(engine: SparkEngine, files: StoreFiles) -> None:
    session = engine.session.newSession()
    assert files_of(session) is None
    give_files(session, files)
    assert files_of(session_like(session)) == files
    assert files_of(engine.session) is None
    assert files_of(give_files(session, None)) is None


@pytest.mark.parametrize(
    ("setting", "by_the_store"),
    [
        ("", False), ("master: local", False), ("master: 'local[2,4]'", False),
        ("master: 'local-cluster[2,1,1024]'", True), ("master: yarn", True), ("remote: sc://host:15002", True),
        ("master: yarn, files: shared", False), ("files: store", True),
    ],
)  # fmt: skip
def test_a_store_and_a_cluster_need_no_folder_in_common(
    store: SmallS3, tmp_path: Path, setting: str, by_the_store: bool
) -> None:
    """And where the datasets are in a folder, executors see it, or the setting is refused."""
    text = f"kind: WorkspaceConfig\nversion: 1\ncontent:\n  spark: {{{setting}}}\n"
    with shared_store.machine(store, tmp_path / "one") as workspace, odf.init(tmp_path) as in_folder:
        for each in (workspace, in_folder):
            (each.path / "config.yaml").write_text(text)
        local = workspace._files.config.spark.is_local
        files = StoreFiles(store.url(f"{PREFIX}/")) if by_the_store else None
        assert workspace._engines.executor_files(local=local) == files
        if "files: store" in setting:
            with pytest.raises(ManifestError, match=r"config\.yaml.*spark\.files.*in its folder"):
                in_folder._engines.executor_files(local=local)
        else:
            assert in_folder._engines.executor_files(local=local) is None


def test_what_needs_folders_in_common_is_refused_with_what_to_do(
    engine: SparkEngine, files: StoreFiles, tmp_path: Path
) -> None:
    session = give_files(engine.session.newSession(), files)
    request: Any = SimpleNamespace(output_data_path=str(tmp_path / "out"))
    with pytest.raises(EngineError, match="executors do not see the folders of the driver") as refused:
        SparkTransformEngine(lambda: session).query(request, progress=SILENT)
    assert "local" in str(refused.value.hint)
    assert "spark.files: shared" in str(refused.value.hint)


def test_copies_of_two_kinds_are_never_the_same() -> None:
    """An input that reads like the address of a slice does not take the place of its copy."""
    (one, _), (other, _) = (kept_copy(kind, b"s3://bucket/data/f16") for kind in ("carried", "store"))
    assert one != other
