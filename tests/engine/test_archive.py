"""Checkpoints: the same bytes for the same state, and nothing but their own form is unpacked."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import CodecError, EngineError, OdfchainError, StoreError
from odfchain.transform import archive
from odfchain.transform.archive import InputMark, Manifest, StateTable
from tests.kit.support import hash_of, seeded_id

CONTENT = {"left": b"PAR1 left PAR1", "right-2": bytes(range(256)) * 2 + b".", "empty_": b""}
MANIFEST = Manifest(
    engine_version="0.1.0/4.3.0",
    kind="replay",
    query_hash=hash_of("select 1"),
    step=3,
    inputs=(InputMark(seeded_id("a"), 1_577_880_000_000), InputMark(seeded_id("b"), None)),
    watermark_ms=-5,
    output_watermark_ms=None,
    parts=(StateTable("right-2", 7), StateTable("left", 1), StateTable("empty_", 0)),
    late={"left": 0, "právě": 2},
    unmatched={"left": 1},
    waiting={"right": 412},
)
SMALL = dataclasses.replace(
    MANIFEST, parts=(StateTable("a", 1),), inputs=(), late={}, unmatched={}, waiting={}
)


def pack(folder: Path, manifest: Manifest = MANIFEST, content: dict[str, bytes] = CONTENT) -> Path:
    parts = {}
    for name, data in content.items():
        parts[name] = folder / f"source {name}"
        parts[name].write_bytes(data)
    path = folder / "checkpoint"
    manifest.write(path, parts)
    return path


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    (folder := tmp_path / "packing").mkdir()
    return pack(folder).read_bytes()


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    (folder := tmp_path / "small").mkdir()
    return pack(folder, SMALL, {"a": b"rows"}).read_bytes()


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Unpacks bytes; what fails must leave nothing, and nothing may ever appear elsewhere."""
    inner = tmp_path / "inner"
    folder = inner / "unpacked"
    folder.mkdir(parents=True)
    path = inner / "checkpoint"

    def run(data: bytes, **limits: int) -> tuple[Manifest, dict[str, bytes]]:
        path.write_bytes(data)
        for name, limit in limits.items():
            monkeypatch.setattr(archive, name, limit)
        try:
            manifest, parts = Manifest.unpack(path, folder)
        except OdfchainError as error:
            assert "\n" not in str(error)
            assert list(folder.iterdir()) == []
            raise
        finally:
            assert sorted(p.name for p in inner.iterdir()) == ["checkpoint", "unpacked"]
        found = {}
        for name, part in parts.items():
            assert part.parent == folder
            found[name] = part.read_bytes()
            part.unlink()
        assert list(folder.iterdir()) == []
        return manifest, found

    return run


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = pack(tmp_path)
    (folder := tmp_path / "out").mkdir()
    manifest, parts = Manifest.unpack(path, folder)
    assert manifest == MANIFEST == Manifest.read(path)
    assert {name: part.read_bytes() for name, part in parts.items()} == CONTENT
    assert parts["left"] == folder / "left.parquet"
    assert path.stat().st_mode & 0o777 & ~0o644 == 0
    assert [p.name for p in tmp_path.glob(".pending-*")] == []


def test_the_same_content_has_the_same_bytes(tmp_path: Path) -> None:
    found = set()
    for turn in (1, -1):
        (folder := tmp_path / str(turn)).mkdir()
        late = dict(list(MANIFEST.late.items())[::turn])
        manifest = dataclasses.replace(MANIFEST, parts=MANIFEST.parts[::turn], late=late)
        path = pack(folder, manifest, dict(list(CONTENT.items())[::turn]))
        os.utime(path, (turn + 1, turn + 1))
        found.add(path.read_bytes())
    assert len(found) == 1


def test_the_bytes_are_those_of_version_1(tmp_path: Path) -> None:
    data = pack(tmp_path, SMALL, {"a": b"rows"}).read_bytes()
    tree = json.loads(data[512 : data.index(b"\n}\n") + 2])
    assert list(tree) == sorted(tree)
    assert tree["format"] == 2
    header = data[-512 * 4 : -512 * 3]
    assert header[:100].rstrip(b"\0") == b"rows/a.parquet"
    assert header[100:156] == b"0000644\x000000000\x000000000\x0000000000004\x0000000000000\x00010554\0 "
    assert header[156:].rstrip(b"\0") == b"0" + bytes(100) + b"ustar\x0000"
    assert data[-512 * 3 :] == b"rows".ljust(512 * 3, b"\0")


def test_headers_are_the_same_on_every_python() -> None:
    """Written out, because derivatives are computed again by others: this form is the one that counts."""
    for size, field in (
        (0, b"0" * 11 + b"\0"),
        ((1 << 33) - 1, b"7" * 11 + b"\0"),
        (1 << 33, b"\x80" + (1 << 33).to_bytes(11, "big")),
    ):
        name = b"rows/" + b"x" * 64 + b".parquet"
        owner, time, blank = b"0000000\0" * 2, b"0" * 11 + b"\0", b" " * 8
        head = name.ljust(100, b"\0") + b"0000644\0" + owner + field + time + blank
        head = (head + b"0" + bytes(100) + b"ustar\x0000").ljust(512, b"\0")
        assert archive._header(name.decode(), size) == head[:148] + checksum(head) + head[156:]


def test_other_programs_can_read_it(packed: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        members = tar.getmembers()
        parts = [f"rows/{name}.parquet" for name in sorted(CONTENT)]
        assert [m.name for m in members] == ["manifest.json", *parts]
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.type) for m in members} == {
            (0, 0, 0, "", "", 0o644, tarfile.REGTYPE)
        }
        part = tar.extractfile("rows/right-2.parquet")
        assert part.read() == CONTENT["right-2"]


def test_sizes_beyond_octal_digits(tmp_path: Path) -> None:
    """A part of more than 8 GiB; the file is sparse, so it takes no room."""
    size = (8 << 30) + 5
    header = archive._header("rows/big.parquet", size)
    assert tarfile.TarInfo.frombuf(header, "ascii", "strict").size == size
    manifest = dataclasses.replace(MANIFEST, parts=(StateTable("big", 1),)).to_bytes()
    path = tmp_path / "checkpoint"
    with path.open("wb") as stream:
        stream.write(entry("manifest.json", manifest) + header)
        stream.truncate(stream.tell() + size + 507 + 1024)
    with archive._opened(path) as (stream, total):
        entries = archive._scan(stream, total, path)
    assert [e.size for e in entries] == [len(manifest), size]


MOMENTS = st.none() | st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
NAMES = st.from_regex(r"[a-z0-9_-]{1,64}", fullmatch=True)
BY_INPUT = st.dictionaries(TEXTS, COUNTS)
MANIFESTS = st.builds(
    Manifest,
    engine_version=TEXTS, kind=TEXTS, query_hash=st.just(hash_of("q")), step=COUNTS,
    inputs=st.lists(st.builds(InputMark, st.just(seeded_id("a")), MOMENTS)).map(tuple),
    watermark_ms=MOMENTS, output_watermark_ms=MOMENTS,
    parts=st.lists(st.builds(StateTable, NAMES, COUNTS), unique_by=lambda p: p.name).map(tuple),
    late=BY_INPUT, unmatched=BY_INPUT, waiting=BY_INPUT,
)  # fmt: skip


@given(MANIFESTS)
def test_manifests_survive(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert Manifest.parse(data, "m") == manifest
    assert data.isascii()


def test_parts_and_manifest_must_agree(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"lists the parts \[empty_, left, right-2\], given are \[left\]"):
        pack(tmp_path, content={"left": b""})
    bad = dataclasses.replace(MANIFEST, parts=(StateTable("Left", 1),))
    with pytest.raises(EngineError, match="part name 'Left'"):
        pack(tmp_path, bad, {"Left": b""})
    for broken in ({"step": -1}, {"engine_version": ""}, {"query_hash": "?"}, {"late": {"a": True}}):
        with pytest.raises(CodecError, match=r"engine_version|step|query_hash|late\.a"):
            pack(tmp_path, dataclasses.replace(MANIFEST, **broken))
    assert not (tmp_path / "checkpoint").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = pack(tmp_path)
    before = path.read_bytes()
    gone = {name: tmp_path / f"source {name}" for name in CONTENT}
    gone["right-2"].unlink()
    with pytest.raises(StoreError, match="source right-2: No such file"):
        MANIFEST.write(path, gone)
    assert path.read_bytes() == before
    assert list(tmp_path.glob(".pending-*")) == []


def test_a_part_that_changes_while_it_is_copied() -> None:
    with pytest.raises(EngineError, match="had 5 bytes and now has 4"):
        archive._write_entry(io.BytesIO(), "rows/a.parquet", [b"rows"], 5)


def test_no_room(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        dataclasses.replace(MANIFEST, parts=()).write(tmp_path / "missing" / "c", {})


def test_every_truncation_is_noticed(small: bytes, attempt: Any) -> None:
    assert attempt(small) == (SMALL, {"a": b"rows"})
    for length in range(len(small)):
        with pytest.raises(CodecError, match=r"checkpoint: "):
            attempt(small[:length])
    with pytest.raises(CodecError, match=r"does not end after its last entry 'rows/a.parquet'"):
        attempt(small + bytes(512))


def test_every_flipped_byte_outside_of_content_is_noticed(small: bytes, attempt: Any) -> None:
    with tarfile.open(fileobj=io.BytesIO(small)) as tar:
        content = [range(m.offset_data, m.offset_data + m.size) for m in tar.getmembers()]
    for position in range(len(small)):
        if any(position in span for span in content):
            continue  # the manifest is for the next test but one, the parts for the physical hash
        damaged = bytearray(small)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CodecError):
            attempt(bytes(damaged))


def checksum(block: bytes) -> bytes:
    return b"%06o\0 " % (sum(block[:148]) + 8 * 0x20 + sum(block[156:]))


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    header = archive._header("manifest.json", 77)
    assert archive._entry(header, 0, 1 << 20, Path("c")).size == 77
    for bit in range(8 * 512):
        damaged = bytearray(header)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            archive._entry(bytes(damaged), 0, 1 << 20, Path("c"))
        damaged[148:156] = checksum(bytes(damaged))  # whoever changes it can count, too
        try:
            entry = archive._entry(bytes(damaged), 0, 1 << 20, Path("c"))
        except CodecError:
            continue
        assert entry.name == "manifest.json"
        assert bit // 8 in {*range(124, 135), *range(148, 156)}


def test_flipped_bits_of_the_manifest_are_noticed_or_harmless() -> None:
    text = MANIFEST.to_bytes()
    outcomes = set()
    for bit in range(8 * len(text)):
        damaged = bytearray(text)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            manifest = Manifest.parse(bytes(damaged), "m")
        except (CodecError, EngineError):
            outcomes.add("noticed")
        else:
            outcomes.add("valid")
            assert Manifest.parse(manifest.to_bytes(), "m") == manifest
    assert outcomes == {"noticed", "valid"}


Member = tuple[tarfile.TarInfo, bytes]
Change = Callable[[list[Member]], list[Member]]


def rebuilt(data: bytes, change: Change, **options: Any) -> bytes:
    """The archive with changed members, as another program would write it, with its checksums right."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old:
        members = [(m, old.extractfile(m).read()) for m in old.getmembers()]  # type: ignore[union-attr]
    options = {"format": tarfile.USTAR_FORMAT} | options
    with tarfile.open(fileobj=out, mode="w", **options) as new:
        for member, content in change(members):
            member.size = len(content) if member.isreg() else 0
            new.addfile(member, io.BytesIO(content))
        end = new.offset
    return out.getvalue()[: end + 1024]  # without the blocks that fill a record of tape


def in_order(*indices: int) -> Change:
    """Which of the four members come, and in which order."""
    return lambda members: [members[index] for index in indices]


def with_left(**values: object) -> Change:
    """Attributes of the member of the part `left`."""

    def change(members: list[Member]) -> list[Member]:
        for name, value in values.items():
            setattr(members[2][0], name, value)
        return members

    return change


def of_type(kind: bytes, link: str = "") -> Change:
    return with_left(type=kind, linkname=link)


def named(name: str) -> Change:
    return with_left(name=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_type(tarfile.SYMTYPE, "/etc/passwd"), "'rows/left.parquet' is not a regular file"),
        (of_type(tarfile.LNKTYPE, "manifest.json"), "'rows/left.parquet' is not a regular file"),
        (of_type(tarfile.CHRTYPE), "'rows/left.parquet' is not a regular file"),
        (of_type(tarfile.BLKTYPE), "'rows/left.parquet' is not a regular file"),
        (of_type(tarfile.FIFOTYPE), "'rows/left.parquet' is not a regular file"),
        (of_type(tarfile.DIRTYPE), "is not a regular file"),
        (of_type(tarfile.GNUTYPE_SPARSE), "'rows/left.parquet' is not a regular file"),
        (of_type(tarfile.AREGTYPE), "'rows/left.parquet' is not a regular file"),
        (named("rows/../../evil.parquet"), "'rows/../../evil.parquet' has a name that is not allowed"),
        (named("../left.parquet"), "'../left.parquet' has a name"),
        (named("/rows/left.parquet"), "'/rows/left.parquet' has a name"),
        (named("rows/Left.parquet"), "'rows/Left.parquet' has a name"),
        (named("rows/left.parquet/x"), "has a name that is not allowed"),
        (named("rows/left"), "has a name that is not allowed"),
        (named("rows/.parquet"), "has a name that is not allowed"),
        (named("rows/" + "x" * 65 + ".parquet"), "has a name that is not allowed"),
        (named("rows/left.parquet\n"), "has a name that is not allowed"),
        (named("rows/lefü.parquet"), "has a name that is not allowed"),
        (named("rows/other.parquet"), "part 'left' of the manifest is missing"),
        (in_order(0, 1, 2, 2, 3), "entry 'rows/left.parquet' comes twice"),
        (in_order(0, 1, 2, 3, 0), "entry 'manifest.json' comes twice"),
        (in_order(0, 2, 1, 3), "entry 'rows/empty_.parquet' is out of order"),
        (in_order(1, 2, 3), "entry 'rows/empty_.parquet' comes first, 'manifest.json' was expected"),
        (in_order(0, 1, 2), "part 'right-2' of the manifest is missing"),
        (with_left(mtime=1), "a header that is not of the expected form"),
        (with_left(uid=1), "a header that is not of the expected form"),
        (with_left(uname="root"), "a header that is not of the expected form"),
        (with_left(mode=0o4755), "a header that is not of the expected form"),
        (with_left(linkname="x"), "a header that is not of the expected form"),
    ],
)
def test_other_archives_are_refused(
    packed: bytes, attempt: Any, change: Callable[..., None], message: str
) -> None:
    with pytest.raises(CodecError) as found:
        attempt(rebuilt(packed, change))
    assert message in str(found.value)


def test_extended_headers_are_refused(packed: bytes, attempt: Any) -> None:
    options = {"format": tarfile.PAX_FORMAT, "pax_headers": {"path": "../evil"}}
    with pytest.raises(CodecError, match="not a regular file"):
        attempt(rebuilt(packed, named("rows/left.parquet"), **options))
    with pytest.raises(CodecError, match="not of the expected form"):
        attempt(rebuilt(packed, named("rows/" + "x" * 200), format=tarfile.GNU_FORMAT))


def entry(name: str, data: bytes, size: int | None = None) -> bytes:
    return archive._header(name, len(data) if size is None else size) + data + bytes(-len(data) % 512)


def test_sizes_that_lie(attempt: Any) -> None:
    text = dataclasses.replace(MANIFEST, parts=(StateTable("a", 1),)).to_bytes()
    head = entry("manifest.json", text)
    for size in (513, 1 << 20, (1 << 33) - 1, 1 << 33, (1 << 88) - 1):
        with pytest.raises(CodecError, match=r"'rows/a.parquet' should have .* but the file ends before"):
            attempt(head + entry("rows/a.parquet", b"x", size))
    with pytest.raises(CodecError, match="should have 1,099,511,627,776 bytes"):
        attempt(entry("manifest.json", text, 1 << 40))
    # a small size in the form for large ones
    header = bytearray(archive._header("rows/a.parquet", 1))
    header[124:136] = b"\x80" + (1).to_bytes(11, "big")
    header[148:156] = checksum(bytes(header))
    with pytest.raises(CodecError, match="not of the expected form"):
        attempt(head + bytes(header) + b"x".ljust(512, b"\0") + bytes(1024))


def test_limits(packed: bytes, attempt: Any) -> None:
    size = len(MANIFEST.to_bytes())
    assert attempt(packed, MOST_PARTS=3, MANIFEST_BYTES=size)[1] == CONTENT
    with pytest.raises(CodecError, match=r"has more than 2 parts, from 'rows/right-2.parquet' on"):
        attempt(packed, MOST_PARTS=2)
    with pytest.raises(CodecError, match=rf"'manifest.json' has {size:,} bytes \(at most {size - 1:,}\)"):
        attempt(packed, MOST_PARTS=3, MANIFEST_BYTES=size - 1)


def test_a_hundred_thousand_entries_cost_no_more_than_the_limit(attempt: Any) -> None:
    head = entry("manifest.json", dataclasses.replace(MANIFEST, parts=()).to_bytes())
    parts = b"".join(archive._header(f"rows/{i:06d}.parquet", 0) for i in range(100_000))
    with pytest.raises(CodecError, match=r"has more than 1,000 parts, from 'rows/001000.parquet' on"):
        attempt(head + parts + bytes(1024))


def test_entries_and_manifest_agree(attempt: Any) -> None:
    text = dataclasses.replace(MANIFEST, parts=(StateTable("a", 1),)).to_bytes()
    data = entry("manifest.json", text) + entry("rows/a.parquet", b"") + entry("rows/b.parquet", b"")
    with pytest.raises(CodecError, match=r"entry 'rows/b.parquet' is not in the manifest"):
        attempt(data + bytes(1024))


def test_what_is_no_archive(attempt: Any, tmp_path: Path) -> None:
    for data, message in (
        (b"", "cut short"),
        (bytes(1024), "no manifest"),
        (b"PAR1" * 1_000, "not a checkpoint"),
    ):
        with pytest.raises(CodecError, match=message):
            attempt(data)
    os.mkfifo(fifo := tmp_path / "fifo")
    for path in (tmp_path, fifo):
        with pytest.raises(CodecError, match="not a plain file"):
            Manifest.read(path)
    with pytest.raises(StoreError, match="No such file"):
        Manifest.read(tmp_path / "missing")
    (full := tmp_path / "full").mkdir()
    (full / "left.parquet").write_bytes(b"kept")
    with pytest.raises(EngineError, match="is not empty"):
        Manifest.unpack(tmp_path / "missing", full)
    assert (full / "left.parquet").read_bytes() == b"kept"


def tree(**changes: object) -> bytes:
    fields = json.loads(MANIFEST.to_bytes()) | changes
    return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff", "not readable JSON"),
        (b"", "not readable JSON"),
        (b"[" * 1_000_000, "not readable JSON: nested too deeply"),
        (b'{"format": 1, "format": 1}', "not readable JSON: a name comes twice in an object"),
        (b'{"format": NaN}', "not readable JSON: NaN is not JSON"),
        (b'{"format": ' + b"9" * 5_000 + b"}", "not readable JSON"),
        (tree(kind="\ud800"), "not readable JSON"),
        (b"[]", "must be an object, not a list"),
        (b"{}", "the property 'format' is missing"),
        (tree(format=True), "format: must be an integer, not true"),
        (tree(step=...), "the property 'step' is missing"),
        (tree(step=1.0), "step: must be an integer, not the number 1.0"),
        (tree(step=1 << 63), "step: 9223372036854775808 is outside 0 to 9223372036854775807"),
        (tree(extra=1), "unknown property 'extra'"),
        (tree(kind=7), "kind: must be text, not the number 7"),
        (tree(kind=""), "kind: must be a text that is not empty"),
        (tree(query_hash="f00"), "query_hash: "),
        (tree(watermark_ms="0"), "watermark_ms: must be an integer, not the text '0'"),
        (tree(watermark_ms=False), "watermark_ms: must be an integer, not false"),
        (tree(inputs={}), "inputs: must be a list, not an object"),
        (tree(inputs=[{"dataset_id": "x", "watermark_ms": 0}]), "inputs[0].dataset_id: "),
        (tree(inputs=[{"dataset_id": str(seeded_id("a"))}]), "inputs[0]: the property 'watermark_ms' is missing"),
        (tree(parts=[{"name": "a", "rows": 1, "path": "/"}]), "parts[0]: unknown property 'path'"),
        (tree(parts=[{"name": "a", "rows": 1}] * 2), "parts: 'a' comes twice"),
        (tree(parts=["a"]), "parts[0]: must be an object, not the text 'a'"),
        (tree(late=[]), "late: must be an object, not a list"),
        (tree(late=...), "the property 'late' is missing"),
        (tree(format=1), "the property 'unmatched' is unknown"),
        (tree(late={"a": -1}), "late.a: -1 is outside 0 to 9223372036854775807"),
    ],
)  # fmt: skip
def test_malformed_manifests(data: bytes, message: str, attempt: Any) -> None:
    with pytest.raises(CodecError) as found:
        attempt(entry("manifest.json", data) + bytes(1024))
    assert str(found.value).partition("manifest.json: ")[2].startswith(message)


def test_another_format_is_the_engines_business(attempt: Any) -> None:
    with pytest.raises(EngineError, match="has format 3, this version reads formats up to 2") as found:
        attempt(entry("manifest.json", tree(format=3, other="field")) + bytes(1024))
    assert found.value.hint is not None


@given(st.binary(max_size=600))
def test_any_bytes_are_a_manifest_or_an_error(data: bytes) -> None:
    with pytest.raises((CodecError, EngineError)):
        Manifest.parse(data, "m")
