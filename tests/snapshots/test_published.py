"""Signed manifests and profiles on their way between an owner, a place and copies; readers without our code."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature

import odfchain as odf
from odfchain.chain.signed_lines import SNAPSHOTS
from odfchain.chain.statements import create_key_file
from odfchain.limits import AttestLimits
from odfchain.odf.identity import DatasetKey
from odfchain.odf.times import Timestamp
from odfchain.profiles import published
from odfchain.profiles.manifests import signed_manifest
from odfchain.profiles.published import object_of, publish
from odfchain.storage.store import Store
from odfchain.transfer import snapshot_objects
from odfchain.transfer.server import RepositoryServer
from tests.kit.query_datasets import make
from tests.kit.servers import Reply, Request, Server
from tests.kit.snapshot_columns import fixture
from tests.kit.support import IMPORTABLE, ROOT, hash_of, tree_of
from tests.kit.web_peers import by_child

CASES = fixture("manifests")
READER = ROOT / "tests" / "kit" / "plain_reader.py"
MANIFEST, PROFILE = odf.SnapshotKind.MANIFEST, odf.SnapshotKind.PROFILE
STRANGER = DatasetKey.generate()
Copy = Callable[..., odf.Dataset]


@pytest.fixture
def cities(tmp_path: Path) -> odf.Dataset:
    workspace = odf.init(tmp_path / "owner")
    make(workspace, "cities", CASES["dataset"])
    return workspace["cities"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def copy_of(tmp_path: Path, place: Path) -> Copy:
    """A new workspace with a copy of what is in the place; what it warns of must be as said."""

    def copy(name: str, *said: str, **options: Any) -> odf.Dataset:
        result = odf.init(tmp_path / name).pull(place.as_uri(), name="cities", **options)
        assert len(result.warnings) == len(said), result.warnings
        assert all(re.search(words, text) for words, text in zip(said, result.warnings, strict=True))
        return result.dataset

    return copy


def said_by(key: DatasetKey, dataset: odf.Dataset, **changes: Any) -> odf.results.SnapshotLine:
    """A line about the head, with some members changed, that a key has signed and that is in the dataset."""
    state = dataset.summary
    members = {
        "signer": key.dataset_id.as_did_key(), "dataset_id": dataset.id, "block": state.head,
        "sequence_number": state.head_block.sequence_number, "kind": MANIFEST, "object": hash_of("none"),
        "size": 10, "time": Timestamp.now(), "tool": "test",
    }  # fmt: skip
    line = odf.results.SnapshotLine(**(members | changes))
    SNAPSHOTS.add(dataset.path, line.dataset_id, line.sign(key))
    return line


def objects_in(folder: Path) -> list[str]:
    return sorted(path.name for kind in ("manifests", "profiles") for path in (folder / kind).glob("f1620*"))


def test_a_manifest_is_stored_under_its_hash_and_signed_by_the_owner(cities: odf.Dataset) -> None:
    assert cities.published() == []
    written, made = cities.write_manifest(), cities.manifest()
    assert (written.object, written.size) == (made.hash, len(made.content))
    (line,) = cities.published()
    assert line == written.line
    assert (line.by_owner(), line.kind, line.block, line.signer) == (True, MANIFEST, cities.head, cities.id)
    assert cities.published_document(line) == made.content
    before = tree_of(cities.path)
    assert cities.write_manifest().line == line
    assert tree_of(cities.path) == before


def test_a_better_profile_takes_the_place_of_the_one_before_though_clocks_stand(
    cities: odf.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Timestamp.now()
    monkeypatch.setattr(published.Timestamp, "now", lambda: now)
    first = cities.write_profile()
    second = cities.write_profile(cities.profile(stage="other"))
    assert cities.published(PROFILE) == [second.line]
    assert first.object != second.object
    with pytest.raises(odf.errors.UsageError, match="the profile is of block"):
        cities.write_profile(cities.at(2).profile())


def test_points_of_the_past_are_published_and_newer_blocks_stand_first(cities: odf.Dataset) -> None:
    for block in (2, 4, 0):
        cities.at(block).write_manifest()
    cities.write_profile()
    numbers = [(line.sequence_number, line.kind) for line in cities.published()]
    assert numbers == [(4, MANIFEST), (4, PROFILE), (2, MANIFEST), (0, MANIFEST)]
    assert [line.sequence_number for line in cities.at(2).published()] == [2, 0]
    assert len(cities.published(PROFILE)) == 1


# --- on their way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["published"], ids=lambda case: case["id"])
def test_a_manifest_has_the_same_bytes_everywhere(
    case: dict[str, Any], cities: odf.Dataset, place: Path, copy_of: Copy, tmp_path: Path
) -> None:
    block = case["block"]
    texts = {cities.at(block).manifest().content for _ in range(2)}
    cities.at(block).write_manifest()
    texts.add(cities.published_document(cities.published()[0]))
    cities.push(place.as_uri())
    copy = copy_of("copy")
    texts.add(copy.published_document(copy.published()[0]))
    texts.add(copy.at(block).manifest().content)
    copy.push((tmp_path / "mirror").as_uri())
    there = odf.init(tmp_path / "there").pull((tmp_path / "mirror").as_uri(), name="cities").dataset
    texts.add(there.published_document(there.published()[0]))
    # another machine: another process, folder, time zone, language, and order of sets
    program = (
        "import sys, odfchain; dataset = odfchain.open('.')['cities'].at(int(sys.argv[1]));"
        "sys.stdout.buffer.write(dataset.manifest().content)"
    )
    texts.add(
        subprocess.run(
            [sys.executable, "-c", program, str(block)], cwd=tmp_path / "there", check=True,
            capture_output=True,
            env=IMPORTABLE | {"TZ": "Pacific/Apia", "LC_ALL": "C", "PYTHONHASHSEED": "7"},
        ).stdout
    )  # fmt: skip
    assert len(texts) == case["different_texts"]
    document = json.loads(texts.pop())
    assert {name: document[name] for name in case["expect"]} == case["expect"]
    assert [file["odf"]["offsets"] for file in document["files"]] == case["offsets"]


def test_a_push_publishes_the_manifest_and_sends_objects_before_and_lines_after_the_head(
    cities: odf.Dataset, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("put", "swap_head", "put_signed"):
        kept = getattr(Store, name)

        def recorded(self: Store, what: Any, *rest: Any, kept: Any = kept, name: str = name) -> Any:
            order.append(
                "head" if name == "swap_head" else str(getattr(what, "value", what)).split("/f1620")[0]
            )
            return kept(self, what, *rest)

        monkeypatch.setattr(Store, name, recorded)
    cities.write_profile()
    outcome = cities.push(place.as_uri())
    assert (outcome.problem, outcome.snapshots) == (None, 2)
    described = [order.index(kind) for kind in ("manifests", "profiles")]
    assert max(described) < order.index("blocks") < order.index("head") < order.index(SNAPSHOTS.key)
    assert objects_in(place) == objects_in(cities.path)
    assert (place / SNAPSHOTS.key).read_bytes() == (cities.path / SNAPSHOTS.key).read_bytes()
    again = tree_of(place)
    assert cities.push().snapshots == 0
    assert tree_of(place) == again


def test_a_copy_takes_part_without_a_key_and_writes_no_manifest(
    cities: odf.Dataset, place: Path, copy_of: Copy, tmp_path: Path
) -> None:
    cities.push(place.as_uri())
    copy = copy_of("copy")
    shutil.rmtree(copy.path / "attestations")
    assert copy.push((tmp_path / "bare").as_uri()).problem is None
    assert not (tmp_path / "bare" / "manifests").exists()
    assert not (tmp_path / "bare" / SNAPSHOTS.key).exists()


def test_a_branch_takes_no_lines_along(cities: odf.Dataset, place: Path) -> None:
    draft = cities.create_branch("draft")
    draft.write_manifest()
    assert len(draft.published()) == 1
    cities.push(place.as_uri())
    before = tree_of(place)
    assert draft.push(place.as_uri()).snapshots == 0
    changed = {name for name, data in tree_of(place).items() if before.get(name) != data}
    assert all("refs" in str(name) for name in changed), changed


def test_lines_that_the_destination_has_alone_stay(cities: odf.Dataset, place: Path, copy_of: Copy) -> None:
    cities.push(place.as_uri())
    copy = copy_of("copy")
    (copy.path / SNAPSHOTS.key).unlink()
    create_key_file(place.parent / "key.pem")
    theirs = copy.write_profile(key=place.parent / "key.pem").line
    assert copy.push(place.as_uri()).snapshots == 1
    cities.push()
    assert copy_of("other").published() == [*cities.published(), theirs]


def test_what_is_too_large_is_not_published_and_a_push_is_done_without_it(
    cities: odf.Dataset, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "ATTEST", AttestLimits(snapshot_bytes=100))
    with pytest.raises(odf.errors.CodecError, match=r"at most 100 are published") as caught:
        cities.write_manifest()
    assert (caught.value.exit_code, "odfchain compact" in (caught.value.hint or "")) == (3, True)
    assert not (cities.path / "manifests").exists()
    outcome = cities.push(place.as_uri())
    assert "the manifest of the head was not published: a manifest of" in (outcome.problem or "")
    assert (place / "refs" / "head").read_text() == str(cities.head)


def test_a_damaged_manifest_here_is_said_and_not_sent(cities: odf.Dataset, place: Path) -> None:
    written = cities.write_manifest()
    (cities.path / "manifests" / str(written.object)).write_bytes(b"x")
    outcome = cities.push(place.as_uri())
    assert "the manifest of block 4 was not sent" in (outcome.problem or "")
    assert objects_in(place) == []
    assert cities.write_manifest().published  # repairs it
    assert cities.push(place.as_uri()).snapshots == 1


def test_a_place_that_refuses_them_gets_the_dataset_all_the_same(
    cities: odf.Dataset, place: Path, copy_of: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "refs").mkdir(parents=True)
    (place / "manifests").write_bytes(b"in its place")
    cities.write_profile()
    (place / "profiles").write_bytes(b"in its place")
    outcome = cities.push(place.as_uri(), parallel=1)
    assert "of block 4 was not sent" in (outcome.problem or "")
    assert (outcome.problem or "").count("was not sent") == 1, "after the first nothing else is tried"
    copy = copy_of("copy", "manifest of block 4", "profile of block 4")
    assert (copy.head, len(copy.published())) == (cities.head, 2)
    (copy.path / SNAPSHOTS.key).unlink()
    (copy.path / SNAPSHOTS.key).mkdir()
    assert any("lines about snapshots" in text for text in copy.pull().warnings)
    assert any("not an ordinary file" in text for text in copy.pull().warnings)
    assert "not an ordinary file" in (copy.push((place.parent / "mirror").as_uri()).problem or "")


def test_a_pull_brings_the_newest_and_others_come_on_demand(
    cities: odf.Dataset, place: Path, copy_of: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in range(5):
        cities.at(block).write_manifest()
    cities.write_profile()
    cities.push(place.as_uri())
    monkeypatch.setattr(snapshot_objects, "ATTEST", AttestLimits(snapshots_pulled=3))
    copy = copy_of("copy", metadata_only=True)
    lines = copy.published()
    assert [line.sequence_number for line in lines] == [4, 4, 3, 2, 1, 0]
    assert objects_in(copy.path) == sorted(str(line.object) for line in lines[:3])
    oldest = lines[-1]
    with pytest.raises(odf.errors.ObjectNotFoundError):
        object_of(copy._files, oldest)
    assert copy.published_document(oldest) == cities.at(0).manifest().content
    assert object_of(copy._files, oldest) == cities.at(0).manifest().content
    (place / "manifests" / str(lines[4].object)).unlink()
    with pytest.raises(odf.errors.TransferError, match="though a signed line names it"):
        copy.published_document(lines[4])
    monkeypatch.setattr(
        snapshot_objects, "ATTEST", AttestLimits(snapshots_pulled_bytes=lines[0].size + lines[1].size)
    )
    assert len(objects_in(copy_of("small").path)) == 2


def test_lines_that_come_later_are_taken_over_by_a_pull_without_new_blocks(
    cities: odf.Dataset, place: Path, copy_of: Copy
) -> None:
    cities.push(place.as_uri())
    copy = copy_of("copy")
    assert len(copy.published()) == 1
    cities.write_profile()
    cities.push()
    assert copy.pull().status == "up to date"
    assert copy.published() == cities.published()
    assert objects_in(copy.path) == objects_in(cities.path)


# --- what others may do ----------------------------------------------------------------------------------


def test_objects_that_are_not_what_the_owner_signed_are_told_and_not_kept(
    cities: odf.Dataset, place: Path, copy_of: Copy
) -> None:
    cities.push(place.as_uri())
    (name,) = objects_in(place)
    path = place / "manifests" / name
    content = path.read_bytes()
    for wrong in (content[:-1], content + b" ", content.replace(b"Oslo", b"Rome"), b"", b" " * len(content)):
        path.write_bytes(wrong)
        copy = copy_of(f"copy-{hash(wrong)}", "the manifest of block 4 that did:odf:.* signed is not here")
        assert objects_in(copy.path) == []
        with pytest.raises(odf.errors.CorruptedPeerError):
            copy.published_document(copy.published()[0])
        assert objects_in(copy.path) == []
    path.unlink()
    assert objects_in(copy_of("without").path) == []


def test_what_anybody_signed_is_no_warning_and_stops_nothing(
    cities: odf.Dataset, place: Path, copy_of: Copy
) -> None:
    written = cities.write_manifest()
    lies = said_by(STRANGER, cities, object=written.object, size=written.size + 1)
    said_by(STRANGER, cities, kind=PROFILE, object=written.object, size=written.size)
    cities.push(place.as_uri())
    (place / "profiles").mkdir(exist_ok=True)
    (place / "profiles" / str(written.object)).write_bytes(b"junk of some size")
    copy = copy_of("copy")
    assert lies in copy.published(MANIFEST)
    assert copy.published()[0] == written.line
    assert objects_in(copy.path) == [str(written.object)]
    with pytest.raises(odf.errors.ObjectCorruptedError, match="bytes, and did:key:"):
        copy.published_document(lies)


def test_an_object_without_an_end_is_read_no_further_than_its_line_says(
    cities: odf.Dataset, place: Path, tmp_path: Path
) -> None:
    cities.push(place.as_uri())
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 1 << 30:
            sent += 65_536
            yield b"x" * 65_536

    def handed_out(request: Request) -> Reply:
        path = place / request.target[1:]
        if path.is_relative_to(place / "manifests"):
            return Reply(pieces=endless())
        return Reply(body=path.read_bytes()) if path.is_file() else Reply(404)

    with Server(handed_out) as server:
        result = odf.init(tmp_path / "copy").pull(server.url("/"), name="cities")
    (warning,) = result.warnings
    assert "the manifest of block 4" in warning
    assert objects_in(result.dataset.path) == []
    assert 0 < sent < 64 << 20


def test_a_manifest_of_another_dataset_or_block_is_refused_whoever_signed(
    cities: odf.Dataset, tmp_path: Path
) -> None:
    make(odf.open(tmp_path / "owner"), "others", CASES["dataset"])
    others = odf.open(tmp_path / "owner")["others"]
    right = cities.write_manifest().line
    assert signed_manifest(cities._files, right, object_of(cities._files, right))["snapshot_id"] == str(
        cities.head
    )
    for content, said in (
        (others.manifest().content, "its dataset_id is did:odf:"),
        (cities.at(2).manifest().content, "its snapshot_id is f1620"),
        (b'{"schema_name":"lode-manifest","format_version":"1.0.0"}', "its dataset_id is None"),
        (b"[]", "not a manifest"),
    ):
        written = publish(cities._files, cities.summary, MANIFEST, content, STRANGER)
        with pytest.raises(odf.errors.CodecError, match=said):
            signed_manifest(cities._files, written.line, object_of(cities._files, written.line))


def test_lines_of_other_datasets_and_blocks_do_not_come_in(
    cities: odf.Dataset, place: Path, copy_of: Copy, tmp_path: Path
) -> None:
    others = odf.open(tmp_path / "owner")
    make(others, "others", CASES["dataset"])
    others["others"].write_manifest()
    cities.push(place.as_uri())
    unknown = said_by(STRANGER, cities, block=hash_of("unknown"))
    assert unknown not in cities.published()
    there = place / SNAPSHOTS.key
    own = (cities.path / SNAPSHOTS.key).read_bytes()
    foreign = SNAPSHOTS.content(others["others"].path)
    there.write_bytes(own + foreign + b"x" * 20_000 + b"\n")
    copy = copy_of("copy", "lines about snapshots of .* line 3: .* of another dataset.* \\(and 1 more\\)")
    assert [line.block for line in copy.published()] == [cities.head]
    assert str(unknown.block).encode() not in (copy.path / SNAPSHOTS.key).read_bytes()


def test_a_file_of_lines_that_is_too_large_is_not_read(
    cities: odf.Dataset, place: Path, copy_of: Copy
) -> None:
    cities.push(place.as_uri())
    (place / SNAPSHOTS.key).write_bytes(b"\n" * ((4 << 20) + 1))
    copy = copy_of("copy", "lines about snapshots of .* larger than the allowed 4,194,304 bytes")
    assert not (copy.path / SNAPSHOTS.key).exists()


def test_the_plain_reader_has_fifty_lines_and_nothing_of_ours() -> None:
    text = READER.read_text()
    assert len(text.splitlines()) <= 50
    tree = ast.parse(text)
    used = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    used |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in used} - sys.stdlib_module_names == {"cryptography", "pyarrow"}


def test_a_reader_without_our_code_checks_signature_manifest_and_files(
    cities: odf.Dataset, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said_by(STRANGER, cities)
    cities.write_profile()
    cities.push(place.as_uri())
    first = min((place / "data").iterdir())
    (manifest,) = (place / "manifests").iterdir()
    lines = place / SNAPSHOTS.key
    forged = re.sub(rb"(?m)[A-Za-z0-9_-]{8}$", b"AAAAAAAA", lines.read_bytes())
    with by_child(place) as web:
        url = f"http://127.0.0.1:{web.port}/"
        command = [sys.executable, "-I", READER, url, str(cities.id)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "block 4: 2 files, 3 records\n"), done.stderr
        monkeypatch.setattr(sys, "argv", command[2:])
        for path, content, error in (
            (first, first.read_bytes()[::-1], AssertionError),
            (manifest, manifest.read_bytes().replace(b"Oslo", b"Rome"), AssertionError),
            (lines, forged, InvalidSignature),
            (lines, b"", StopIteration),
        ):
            kept = path.read_bytes()
            path.write_bytes(content)
            with pytest.raises(error):
                runpy.run_path(str(READER))
            path.write_bytes(kept)


def test_served_workspaces_show_lines_and_objects(cities: odf.Dataset, tmp_path: Path) -> None:
    cities.write_manifest()
    cities.write_profile()
    with RepositoryServer(odf.open(tmp_path / "owner")._files) as server:
        copy = odf.init(tmp_path / "copy").pull(f"{server.url}cities").dataset
    assert copy.published() == cities.published()
    assert objects_in(copy.path) == objects_in(cities.path)
