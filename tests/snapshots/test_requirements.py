"""What the two documents on snapshots ask for, sentence by sentence: each is held, or said not to apply.

The sentences stand in `requirements.json`; a test without a sentence there fails, and so does a sentence
without a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.errors import CodecError, UnsupportedVersionError
from odfchain.odf import events as ev
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.schema import ExtraAttributes
from odfchain.profiles.reader import read_profile
from odfchain.slices.footers import file_stats
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.query_datasets import make
from tests.kit.root_rows import MADE
from tests.kit.snapshot_columns import column, fixture
from tests.kit.support import write_lying

REQUIREMENTS = fixture("requirements")
MODEL = {each["id"]: each for each in REQUIREMENTS["snapshot-manifest-model.md"]}
ADR = REQUIREMENTS["semantic-snapshots-adr.md"]
TYPES = {"text": str, "integer": int, "number": int | float, "list": list, "object": dict}
EXTRA = {"com.example/run": {"id": 7, "tags": ["a", None], "share": 0.5, "large": 2**60}}


class Cities:
    """A dataset of six blocks, the last of which has attributes; and its manifest at each."""

    def __init__(self, folder: Path) -> None:
        self.files = make(odf.init(folder), "cities", fixture("manifests")["dataset"])
        self.before = [self.manifest_bytes(number) for number in range(5)]
        state = DatasetState.read(self.files.chain)
        mark = odf.Timestamp.parse("2022-02-03T00:00:00Z")
        extra = ExtraAttributes(entries=EXTRA)
        event = ev.AddData(prev_offset=state.last_offset, new_watermark=mark, extra=extra)
        commit(self.files, state, [event], [], system_time=MADE)
        self.dataset = odf.open(folder)["cities"]
        self.last = self.manifest(5)

    def manifest_bytes(self, block: int) -> bytes:
        workspace = odf.open(self.files.folder.parent.parent.parent)
        return workspace["cities"].at(block).manifest().content

    def manifest(self, block: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.manifest_bytes(block))
        return found

    def slices(self) -> Iterator[tuple[dict[str, Any], Path]]:
        for file in self.last["files"]:
            name = odf.Multihash.parse(file["path"].removeprefix("data/"))
            yield file, Path(self.files.data.locate(name))


@pytest.fixture(scope="module")
def cities(tmp_path_factory: pytest.TempPathFactory) -> Cities:
    return Cities(tmp_path_factory.mktemp("requirements") / "ws")


Held = Callable[[Cities, dict[str, Any], Path], None]
HELD: dict[str, Held] = {}


def holds(*names: str) -> Callable[[Held], Held]:
    def add(test: Held) -> Held:
        for name in names:
            assert HELD.setdefault(name, test) is test, name
        return test

    return add


@holds("self-describing")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    assert (cities.last["schema_name"], cities.last["format_version"]) == ("lode-manifest", "1.0.0")
    written = cities.dataset.write_manifest()
    stored = cities.dataset.path / "manifests" / str(written.object)
    assert json.loads(stored.read_bytes()) == cities.last


@holds("minimum-fields")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    assert set(told["fields"]) <= set(cities.last)
    assert set(told["fields"]) - set(cities.manifest(0)) == set(told["absent_before_data"])
    assert cities.last["files"]
    assert all(file["size_bytes"] and file["checksum"] for file in cities.last["files"])


@holds("statistics-persisted")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    for file, path in cities.slices():
        footer, stats = pq.read_metadata(path), file["stats"]
        assert stats["row_count"] == footer.num_rows
        group = footer.row_group(0)
        reported = {
            group.column(n).path_in_schema: group.column(n).statistics for n in range(group.num_columns)
        }
        assert {each["name"]: each["null_count"] for each in stats["columns"]} == {
            name: each.null_count for name, each in reported.items()
        }
        assert {each["name"] for each in stats["columns"] if "min" in each} == {
            name for name, each in reported.items() if each.has_min_max
        }


@holds("statistics-omitted")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    """Parquet always reports how many rows there are; of columns nothing is said."""
    pq.write_table(pa.table({"s": ["a"], "i": [1]}), folder / "slice", write_statistics=["i"])
    found = file_stats(folder / "slice").to_document()
    assert found == {"row_count": 1, "columns": [{"name": "i", "min": 1, "max": 1, "null_count": 0}]}


@holds("statistics-json")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    for case in fixture("columns")["cases"]:
        table = pa.table({name: column(*given) for name, given in case["columns"].items()})
        pq.write_table(table, folder / "slice")
        text = canonical_bytes(file_stats(folder / "slice").to_document())
        json.loads(text, parse_constant=pytest.fail)


@holds("statistics-not-inferred")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    write_lying(folder / "slice", pa.table({"i": [1, 9]}), pa.table({"i": [1, 5]}))
    (found,) = file_stats(folder / "slice").to_document()["columns"]
    assert found == {"name": "i", "min": 1, "max": 5, "null_count": 0}, "what is reported, true or not"


@holds("distinct-count")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    assert b"distinct_count" not in cities.manifest_bytes(5), "Parquet's writers here report none"


@holds("checksum-explicit", "checksum-recorded")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    assert cities.last["checksum_algorithm"] == "sha3-256"
    assert len(list(cities.slices())) == 2
    for file, path in cities.slices():
        found, size = hash_file(path)
        assert (found.digest.hex(), size) == (file["checksum"], file["size_bytes"])


@holds("manifest-immutable", "snapshots-immutable", "commits-create")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    assert [cities.manifest_bytes(number) for number in range(5)] == cities.before
    written = cities.dataset.write_manifest()
    stored = cities.dataset.path / "manifests" / str(written.object)
    assert cities.dataset.write_manifest().object == written.object == hash_file(stored)[0]


@holds("metadata-explicit", "metadata-non-nil")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    assert [cities.manifest(number)["metadata"] for number in range(5)] == [{}] * 5


@holds("metadata-empty")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    assert all(b'"metadata":{}' in content for content in cities.before)


@holds("metadata-json")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    (found,) = cities.last["metadata"].values()
    assert found == EXTRA["com.example/run"] | {"large": str(2**60)}


@holds("linear-history")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    documents = [cities.manifest(number) for number in range(6)]
    assert [each.get("parent_snapshot_id") for each in documents] == [
        None,
        *[each["snapshot_id"] for each in documents[:-1]],
    ]
    assert documents[-1]["snapshot_id"] == str(cities.dataset.head)


@holds("files-immutable")
def _(cities: Cities, told: dict[str, Any], folder: Path) -> None:
    first = json.loads(cities.before[2])["files"][0]
    assert cities.last["files"][0] == first
    for file, path in cities.slices():
        assert f"data/{hash_file(path)[0]}" == file["path"], "a file is named by its bytes"


@pytest.mark.parametrize("name", MODEL)
def test_the_model_of_manifests(name: str, cities: Cities, tmp_path: Path) -> None:
    told = MODEL[name]
    if why := told.get("does_not_apply"):
        assert name not in HELD, why
    else:
        HELD[name](cities, told, tmp_path)


def test_every_sentence_is_held() -> None:
    assert set(HELD) <= set(MODEL)
    assert sum(each["sentence"].count("MUST") for each in MODEL.values()) == 10


# --- profiles --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(cities: Cities) -> dict[str, Any]:
    """As values, for JSON has an integer beyond 2⁵³ as text."""
    return dict(cities.dataset.profile(languages=False).document)


@pytest.mark.parametrize("told", ADR["fields"], ids=lambda told: told["field"])
def test_fields_of_profiles(told: dict[str, Any], profile: dict[str, Any]) -> None:
    value: Any = profile
    for name in told["field"].split("."):
        assert name in value, told["sentence"]
        value = value[name]
    assert isinstance(value, TYPES[told["is"]]), told["sentence"]
    assert not isinstance(value, bool)


def test_descriptors_of_columns(profile: dict[str, Any]) -> None:
    names = ADR["column_descriptor"]["members"]
    assert [sorted(each) for each in profile["columns"]] == [sorted(names)] * profile["num_columns"]
    assert [each["name"] for each in profile["columns"]] == ["event_time", "city", "people"]


def test_statistics_say_of_which_shape_they_are(profile: dict[str, Any]) -> None:
    kinds = {name: stats["kind"] for name, stats in profile["column_stats"].items()}
    assert kinds == {"event_time": "datetime", "city": "string", "people": "numeric"}


def test_a_profile_without_its_format_version_is_refused(profile: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        read_profile(canonical_bytes({n: v for n, v in profile.items() if n != "format_version"}))
    with pytest.raises(UnsupportedVersionError):
        read_profile(canonical_bytes(profile | {"format_version": "2"}))


def test_sentences_that_are_no_field() -> None:
    held = {"varying-structure", "format-version"}
    assert {each["id"] for each in ADR["sentences"] if "does_not_apply" not in each} == held
