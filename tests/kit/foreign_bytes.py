"""Every reader of bytes that somebody else made: a function of bytes, some texts to begin with, what it may raise.

Readers that expect a file get one in memory. Where a checksum or a signature keeps what is changed away from the
reader, the function adds it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import io
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.message import DecodeError
from starlette.requests import Request

from odfchain.chain.statements import (
    StatementType,
    parse_did,
    read_attestation,
    read_branch,
    read_head,
    read_statement,
)  # fmt: skip
from odfchain.errors import OdfchainError
from odfchain.odf.canonical_json import canonical_json, strict_json
from odfchain.odf.identity import DatasetId, DatasetKey, DidKey, Multihash
from odfchain.odf.times import Timestamp
from tests.kit.support import FIXTURES, conformance

HASH = str(Multihash.sha3_256(bytes(32)))
DID = "did:odf:fed01" + "ab" * 32
SCHEMA = pa.schema([
    ("offset", pa.int64()), ("op", pa.int32()), ("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("ms", "UTC")),
    ("day", pa.date32()), ("price", pa.decimal128(10, 2)), ("ok", pa.bool_()), ("share", pa.float64()),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForeignReader:
    """`read` is given any bytes; whatever it raises besides `allowed` is a fault of the project."""

    name: str
    read: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    allowed: tuple[type[BaseException], ...] = ()

    @property
    def expected(self) -> tuple[type[BaseException], ...]:
        """All that it may raise."""
        return (OdfchainError, *self.allowed)


READERS: dict[str, ForeignReader] = {}
_Read = Callable[[bytes], object]


def _reader(
    name: str, *seeds: bytes | str, more: Callable[[], Iterable[bytes]] = tuple,
    allowed: tuple[type[BaseException], ...] = (),
) -> Callable[[_Read], _Read]:  # fmt: skip
    def add(read: _Read) -> _Read:
        plain = tuple(each.encode() if isinstance(each, str) else each for each in seeds)
        READERS[name] = ForeignReader(name, read, lambda: (*plain, *more()), allowed)
        return read

    return add


def _texts(name: str, *seeds: str, allowed: tuple[type[BaseException], ...] = ()) -> Callable[..., Any]:
    """A reader of a text from a command line or out of JSON: also with halves of surrogate pairs."""

    def add(read: Callable[[str], object]) -> Callable[[str], object]:
        _reader(name, *seeds, allowed=allowed)(lambda data: read(data.decode("utf-8", "surrogateescape")))
        return read

    return add


@functools.cache
def _folder() -> Path:
    """A folder in memory of this process."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    kept = tempfile.TemporaryDirectory(prefix="odf-fuzz-", dir=root)
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _file(data: bytes, name: str) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- blocks, references, checkpoints, indexes -----------------------------------------------------------


def _blocks() -> Iterator[bytes]:
    file = conformance("flatbuffers_blocks")
    for name in ("list_A_head", "list_B_v0_166_0"):
        yield from (bytes.fromhex(each["manifest_hex"]) for each in file[name]["vectors"])
    for each in file["derived_vectors_not_upstream"]["vectors"]:
        yield from (bytes.fromhex(each[version]["manifest_hex"]) for version in ("v2", "v3"))


@_reader("block", more=_blocks)
def _block(data: bytes) -> None:
    from odfchain.odf.block_codec import decode_block, decode_header, encode_block, open_manifest
    from odfchain.workspace.merge_record import record_of

    with contextlib.suppress(OdfchainError):
        open_manifest(data)
    decode_header(data)
    found = decode_block(data)
    encode_block(found)
    repr(found.event)
    record_of(found.event)


@_reader(
    "arrow schema of a block",
    more=lambda: [bytes.fromhex(conformance("writer_cases")["legacy_arrow_schema_blob"]["hex"])],
)
def _arrow_schema(data: bytes) -> None:
    from odfchain.odf.arrow_schema import decode_raw_arrow

    decode_raw_arrow(data)


@_reader("reference", HASH, HASH + "\n", "zW1" * 20)
def _reference(data: bytes) -> None:
    from odfchain.storage.local import parse_ref

    parse_ref(data, "refs/head")


@_reader("list of hashes", f"{HASH}\n{HASH}\n")
def _hint(data: bytes) -> None:
    from odfchain.storage.public_layout import parse_hint

    parse_hint(data, 10_000)


def _index_rows() -> Iterator[bytes]:
    from odfchain.chain import index

    row = index.IndexRow(Multihash.parse(HASH), "Seed", (0, *[None] * 13))
    yield index._pack(row)


@_reader("index row", more=_index_rows)
def _index(data: bytes) -> None:
    from odfchain.chain import index

    index._unpack(data)
    body = data[: index._BODY.size]
    if len(body) == index._BODY.size:
        index._unpack(body + index._CRC.pack(zlib.crc32(body)))


@_reader("attributes of an event", '{"a": {"$schema": "x", "b": [1, 2.5, null, "ü"]}}')
def _attributes(data: bytes) -> None:
    from odfchain.odf.block_codec import load_attributes

    load_attributes(data.decode("utf-8", "surrogateescape"))


# --- manifests and settings -----------------------------------------------------------------------------


def _manifests() -> Iterator[bytes]:
    folders = [
        FIXTURES / "manifests",
        *(FIXTURES / "manifests").iterdir(),
        FIXTURES / "hostile" / "manifests",
    ]
    for folder in folders:
        yield from (
            path.read_bytes() for path in sorted(folder.glob("*.yaml")) if path.stat().st_size < 4_000
        )


@_reader("manifest", more=_manifests, allowed=(UnicodeDecodeError,))
def _manifest(data: bytes) -> None:
    from odfchain.odf.manifests import read_definitions
    from odfchain.odf.tree import to_tree
    from odfchain.odf.yaml import dump_yaml

    for found in read_definitions(data, source="x.yaml")[0]:
        dump_yaml(to_tree(found))


@_reader(
    "block as YAML",
    f"kind: MetadataBlock\nversion: 2\ncontent:\n  systemTime: 2026-01-01T00:00:00Z\n  sequenceNumber: 0\n"
    f"  event:\n    kind: Seed\n    datasetId: {DID}\n    datasetKind: Root\n",
    f"systemTime: 2026-01-01T00:00:00Z\nprevBlockHash: {HASH}\nsequenceNumber: 1\nevent: {{kind: SetInfo, keywords: [a, b]}}\n",
)  # fmt: skip
def _block_text(data: bytes) -> None:
    from odfchain.odf.manifests import read_block

    read_block(data, source="x.yaml")


@_reader(
    "settings",
    "kind: WorkspaceConfig\nversion: 1\ncontent:\n  fetch: {maxBytes: 1000}\n  query: {}\n  slice: {}\n",
    "kind: DatasetConfig\nversion: 1\ncontent:\n  pullAliases: [a/b]\n  requireSignature: true\n"
    "  watermarks: {a: {}}\n  pull: {every: '0 * * * *'}\n",
)  # fmt: skip
def _settings(data: bytes) -> None:
    from odfchain.odf.manifests import read_manifest
    from odfchain.odf.yaml import read_document
    from odfchain.workspace.config import DATASET_CONFIG, OF_WORKSPACE

    with contextlib.suppress(OdfchainError):
        OF_WORKSPACE.parse(data, "config.yaml")
    read_manifest(read_document(data, source="config"), DATASET_CONFIG, "config")


@_reader(
    "constraints",
    f"primaryKey: [id]\nforeignKeys:\n- columns: [id]\n  references: {{dataset: 'did:odf:fed01{'ab' * 32}'}}\n  onViolation: refuse\n",
)
def _constraints(data: bytes) -> None:
    from odfchain.workspace.declared_constraints import _only_ids, parse_constraints

    parse_constraints(data.decode("utf-8", "surrogateescape"), _only_ids)


@_reader(
    "drift policy", "kind: DriftPolicy\nversion: 1\ncontent:\n  minRows: 10\n  columns: {a: skip, b: {}}\n"
)
def _policy(data: bytes) -> None:
    from odfchain.profiles.drift import read_policy

    read_policy(data)


@_texts(
    "columns as DDL",
    "id BIGINT NOT NULL",
    "a STRUCT<b: ARRAY<INT>, c: MAP<STRING, DECIMAL(10,2)>>",
    "t TIMESTAMP(3)",
    "x OPTION<INT>",
)
def _ddl(text: str) -> None:
    from odfchain.odf.schema import parse_ddl

    parse_ddl(text.split("\n"))


# --- signed statements ----------------------------------------------------------------------------------


@functools.cache
def _signer() -> str:
    return str(DatasetKey.generate().dataset_id)


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _stated(data: bytes, kind: StatementType) -> bytes:
    """A statement with these bytes for its payload, canonical where they are JSON, under a signature of zeros."""
    with contextlib.suppress(OdfchainError, ValueError):
        data = canonical_json(strict_json(data))
    header = canonical_json({"alg": "EdDSA", "kid": _signer(), "typ": str(kind)})
    return b".".join((_b64(header), _b64(data), _b64(bytes(64))))


def _payload_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.split(".")[1] + "==")


def _statements() -> list[bytes]:
    from tests.kit import forge

    return [forge.signed().sign(forge.OWNER).encode(), forge.attestation().sign(forge.AUDITORS[0]).encode()]


@_reader("statement", more=_statements)
def _statement(data: bytes) -> None:
    for read in (read_head, read_branch, read_attestation):
        with contextlib.suppress(OdfchainError):
            read(data)
    for kind in StatementType:
        with contextlib.suppress(OdfchainError):
            read_statement(data, kind, verified=False)


def _payloads() -> list[bytes]:
    snapshot = {
        "block": HASH, "datasetId": _signer(), "kind": "manifest", "object": HASH, "sequenceNumber": 3, "size": 100,
        "time": "2026-01-01T00:00:00Z", "tool": "odfchain 0.1.0",
    }  # fmt: skip
    return [*(_payload_of(each.decode()) for each in _statements()), canonical_json(snapshot)]


@_reader("payload of a statement", more=_payloads)
def _payload(data: bytes) -> None:
    from odfchain.chain.signed_lines import read_snapshot

    for kind, read in (
        (StatementType.HEAD, read_head), (StatementType.ATTESTATION, read_attestation), (StatementType.SNAPSHOT, read_snapshot),
    ):  # fmt: skip
        with contextlib.suppress(OdfchainError):
            repr(read(_stated(data, kind), verified=False))


@_reader("signed lines", more=lambda: [b"\n".join(_statements()) + b"\n"])
def _lines(data: bytes) -> None:
    from odfchain.chain.signed_heads import check_branch, check_head
    from odfchain.chain.signed_lines import AUDITS, SNAPSHOTS

    dataset, head = DatasetId.parse(_signer()), Multihash.parse(HASH)
    for lines in (AUDITS, SNAPSHOTS):
        with contextlib.suppress(OdfchainError):
            lines.lines_of(data, dataset)
    check_head(data, dataset, head, 3)
    check_branch(data, dataset, "a", head)


def _proofs() -> list[bytes]:
    from odfchain.chain.equivocation import FORMAT

    heads = [
        {"statement": each.decode(), "blocks": [base64.b64encode(next(_blocks())).decode()]}
        for each in _statements()[:1] * 2
    ]
    return [
        _json(
            {
                "format": FORMAT,
                "dataset": _signer(),
                "sequenceNumber": 1,
                "blocks": [HASH, HASH],
                "heads": heads,
            }
        )
    ]


@_reader("evidence", more=_proofs)
def _evidence(data: bytes) -> None:
    from odfchain.chain.equivocation import read_evidence

    read_evidence(data, "x.json")


# --- documents about snapshots --------------------------------------------------------------------------


def _described() -> bytes:
    from odfchain.profiles.manifests import FORMAT_VERSION, SCHEMA_NAME

    file = {
        "path": f"data/{HASH}",
        "checksum": "00" * 32,
        "size_bytes": 3,
        "statistics": {"row_count": 1, "columns": []},
    }
    return _json(
        {"schema_name": SCHEMA_NAME, "format_version": FORMAT_VERSION, "files": [file], "metadata": {}}
    )


@_reader("manifest of a snapshot", more=lambda: [_described()])
def _snapshot_manifest(data: bytes) -> None:
    from odfchain.profiles.manifests import files_of, read_manifest

    files_of(read_manifest(data))


def _made_profiles() -> Iterator[bytes]:
    from tests.kit.made_profiles import profile_of_table

    table = pa.table(
        {"n": [1, 2, None], "t": ["a", "b", "bb"], "x": [0.5, 1.5, None], "b": [True, False, None]}
    )
    yield _json(profile_of_table(table))
    yield _json(profile_of_table(table, hidden=("t",)))


@_reader("profile", more=_made_profiles)
def _profile(data: bytes) -> None:
    from odfchain.profiles.drift import compare_profiles
    from odfchain.profiles.reader import ComparedProfile, read_profile

    found = read_profile(data)
    ComparedProfile(found)
    compare_profiles(found, found)


def _totals() -> Iterator[bytes]:
    import numpy as np

    from odfchain.profiles.state_totals import to_bytes
    from odfchain.profiles.totals import Totals

    totals = Totals(_TOTALS_SCHEMA)
    for batch in pa.table({"n": [1, 2], "t": ["a", "b"]}, schema=_TOTALS_SCHEMA).to_batches():
        totals.update(batch, np.arange(2, dtype=np.uint64))
    yield to_bytes(totals)


_TOTALS_SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.string())])


@_reader("totals of a slice", more=_totals)
def _slice_totals(data: bytes) -> None:
    from odfchain.profiles.state_totals import from_bytes

    from_bytes(data, _TOTALS_SCHEMA)


# --- transfers ------------------------------------------------------------------------------------------


def _smart() -> Iterator[bytes]:
    def walk(value: Any) -> Iterator[bytes]:
        if isinstance(value, dict):
            yield _json(value)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from walk(each)

    for name in ("smart_sequences", "protocol_cases"):
        for each in walk(conformance(name)):
            if len(each) < 1_500 and re.search(
                rb'"(Ok|Err|payload|currentHead|objectFile\w*|details)"', each
            ):
                yield each
    yield b'{"Ok":{"numBlocks":1,"payload":[1,2,3]}}'


@_reader("smart message", more=_smart)
def _message(data: bytes) -> None:
    from odfchain.transfer import smart_messages as msg

    text = data.decode("utf-8", "replace")
    msg.refusal_of(text)
    for kind in _kinds():
        with contextlib.suppress(OdfchainError):
            msg.text_of(msg.message_of(kind, text))


@functools.cache
def _kinds() -> list[Any]:
    from odfchain.transfer import smart_messages as msg

    def below(kind: Any) -> Iterator[Any]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    return [each for each in below(msg.Message) if each.__module__ == msg.__name__]


@_reader("batch of blocks", more=lambda: [_batch(), gzip.compress(b"", mtime=0)])
def _packed(data: bytes) -> None:
    from odfchain.transfer.block_batch import unpacked
    from odfchain.transfer.smart_messages import BlocksBatch

    unpacked(BlocksBatch(num_blocks=2, payload=data))


def _batch() -> bytes:
    from odfchain.odf.physical_hash import hash_bytes
    from odfchain.storage.store import RawBlock
    from odfchain.transfer.block_batch import packed

    return packed(RawBlock(hash_bytes(each), each) for each in (b"abc", b"")).payload


@_reader("tar of blocks", more=lambda: [gzip.decompress(_batch())[:2_560]])
def _tar(data: bytes) -> None:
    _packed(gzip.compress(data, 0, mtime=0))


@_reader(
    "index of a repository",
    _json(
        {
            "version": 1,
            "datasets": [
                {"id": DID, "alias": "a", "head": HASH, "kind": "Root", "blocks": 3, "records": 4, "size": 5}
            ],
        }
    ),
)
def _repository(data: bytes) -> None:
    from odfchain.transfer.repositories import parse_index

    parse_index(data, "http://x/")


@_reader("name in a store", f"{DID} a/b", f"{DID} b", more=lambda: [f"{_signer()} b".encode()])
def _name(data: bytes) -> None:
    from odfchain.transfer.object_workspace import Name

    Name.parse("b", data)


@_reader("answer of a node", _json({"isMultiTenant": True, "message": "no", "access_token": "x"}))
def _node_answer(data: bytes) -> None:
    from odfchain.text import json_object

    json_object(data)


@_reader(
    "tokens",
    "version: 1\ntokens:\n- name: a\n  sha3: '"
    + "0" * 64
    + "'\n  allow: ['push:org.%', 'read:%/%']\n  created: 2026-01-01T00:00:00Z\n",
)
def _tokens(data: bytes) -> None:
    from odfchain.transfer import access_tokens

    access_tokens._tokens(data, "tokens.yaml")


@_texts("credentials", "Bearer ka_abc", "push:org.%", "read:a/%", "ka_xyz=")
def _credentials(text: str) -> None:
    from odfchain.transfer.access_tokens import Grant, checked_name, holder
    from odfchain.transfer.credentials import checked_token

    holder(text, ())
    for read in (Grant.parse, checked_name, checked_token):
        with contextlib.suppress(OdfchainError):
            read(text)


@_reader("credentials of a user", _json({"version": 1, "tokens": {"https://x.example": "ka_abc"}}))
def _credentials_file(data: bytes) -> None:
    from odfchain.transfer.credentials import Credentials

    path = _file(data, "credentials.json")
    path.chmod(0o600)
    Credentials(path).origins()


@_reader("selection of a copy", '{"last": 3, "since": "2026-01-01T00:00:00Z", "metadataOnly": false}')
def _selection(data: bytes) -> None:
    from odfchain.odf.tree import read_json
    from odfchain.transfer.slice_files import Selection

    read_json(Selection, data, 4_096)


@_reader("fetched branches", _json([{"branch": "a", "from": "http://x/", "block": HASH, "verified": HASH}]))
def _fetched(data: bytes) -> None:
    from odfchain.odf.tree import read_json
    from odfchain.workspace.merge_record import FetchedBranch

    read_json(tuple[FetchedBranch, ...], data, 1 << 20)


@_reader("private note", _json({"time": "2026-01-01T00:00:00Z", "head": HASH, "sequenceNumber": 3}))
def _note(data: bytes) -> None:
    from odfchain.odf.tree import read_json
    from odfchain.workspace.private_notes import Reminder

    read_json(Reminder, data, 1 << 16)


# --- slices, locks, archives, caches --------------------------------------------------------------------


def _parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _slices() -> Iterator[bytes]:
    rows = {"offset": [0], "id": [1], "name": ["a"], "ok": [True]}
    yield _parquet_bytes(pa.table(rows))
    yield _parquet_bytes(pa.table({"l": [[1, 2]], "s": [{"a": 1}]}), use_dictionary=False, compression="none")


@_reader("Parquet file", more=_slices)
def _parquet(data: bytes) -> None:
    from odfchain.slices.footers import FileStats, file_stats
    from odfchain.slices.reader import data_batches
    from odfchain.workspace.read_slices import read_description

    path = _file(data, "x.parquet")
    with contextlib.suppress(OdfchainError):
        stats = file_stats(path)
        stats.to_document()
        if (text := stats.to_text()) is not None:
            FileStats.of_text(text)
    read_description(path)
    for _ in data_batches(path):
        pass


def _page_bytes() -> Iterator[bytes]:
    yield from (each[4:-8] for each in _slices())


@_reader("pages of a Parquet file", more=_page_bytes, allowed=(ValueError,))
def _pages(data: bytes) -> None:
    from odfchain.slices.reader import read_pages

    for _ in read_pages(io.BytesIO(data), 0, len(data)):
        pass


def _kept_lines() -> Iterator[bytes]:
    from odfchain.slices.footers import file_stats

    text = file_stats(_file(next(_slices()), "seed.parquet")).to_text()
    assert text is not None
    yield text.encode()


@_reader("kept footer", more=_kept_lines, allowed=(ValueError,))
def _footer(data: bytes) -> None:
    from odfchain.slices.footers import FileStats

    FileStats.of_text(data)


@_reader(
    "kept footers",
    more=lambda: [
        b"%08x %b\n" % (zlib.crc32(HASH.encode() + b" " + each), HASH.encode() + b" " + each)
        for each in _kept_lines()
    ],
)
def _footers(data: bytes) -> None:
    from odfchain.workspace.read_slices import _Lines

    lines = _Lines(_file(data, "file-stats")).grown()
    lines.get(Multihash.parse(HASH))


@_reader("description of a state", _json({"version": 1, "primaryKey": ["id"], "lastOffset": 3}))
def _description(data: bytes) -> None:
    from odfchain.workspace.read_slices import METADATA_KEY, read_description

    table = pa.table({"id": [1]}).replace_schema_metadata({METADATA_KEY: data})
    read_description(_file(_parquet_bytes(table), "state.parquet"))


def _locks() -> Iterator[bytes]:
    from tests.kit.asset_cases import written_rows

    path = written_rows(_folder() / "seed.lock.parquet", 2)
    yield path.read_bytes()


@_reader("asset lock", more=_locks)
def _lock(data: bytes) -> None:
    from odfchain.assets.locks import AssetLock

    _ = AssetLock.read(_file(data, "x.lock.parquet")).rows


@_reader("row of an asset lock", more=lambda: [_json(each) for each in _lock_rows()])
def _lock_row(data: bytes) -> None:
    from odfchain.assets.lock_table import SCHEMA as COLUMNS
    from odfchain.assets.lock_table import row_fault

    found = strict_json(data)
    if isinstance(found, dict):
        row = {name: found.get(name) for name in COLUMNS.names}
        if all(value is None or isinstance(value, str) for value in row.values()):
            row_fault(row)


def _lock_rows() -> Iterator[dict[str, Any]]:
    for each in next(iter(_lock_tables())).to_pylist():
        yield {name: value if isinstance(value, str | None) else str(value) for name, value in each.items()}


def _lock_tables() -> Iterator[pa.Table]:
    from tests.kit.asset_cases import numbered_rows

    yield numbered_rows(2)


_ITEM = {
    "type": "Feature", "stac_version": "1.0.0", "id": "a", "geometry": None, "properties": {"datetime": "2026-01-01T00:00:00Z"},
    "links": [{"rel": "self", "href": "https://x.example/a.json"}], "stac_extensions": [],
    "assets": {"data": {"href": "./a.tif", "file:size": 3, "alternate": {"s3": {"href": "s3://b/a.tif", "storage:refs": ["x"]}}}},
}  # fmt: skip


@_reader(
    "STAC",
    _json(_ITEM),
    _json({"type": "FeatureCollection", "features": [_ITEM]}),
    _json({"type": "Catalog", "id": "c", "links": [{"rel": "item", "href": "./a.json"}]}),
)
def _stac(data: bytes) -> None:
    from odfchain.assets.objects import DeriveOptions
    from odfchain.assets.stac import StacReader

    path = _file(data, "item.json")
    options = DeriveOptions((str(path),), folder=str(path.parent), probe=False)
    for _ in StacReader(_closed_stores(), options, [].append).assets(str(path)):
        pass


@functools.cache
def _closed_stores() -> Any:
    from odfchain.assets.objects import Stores
    from odfchain.errors import AssetError

    class Closed(Stores):
        """Nothing but files: what a document leads to is not asked for."""

        def _opened(self, location: Any, name: Any) -> Any:
            raise AssetError("no requests are made here")

    return Closed(_folder())


@_texts(
    "href of an asset",
    "https://x.example/a/b.tif?q=1#f",
    "s3://bucket/a%20b",
    "../a.tif",
    "https://u:p@x.example/a",
)
def _href(text: str) -> None:
    from odfchain.assets.hrefs import parse_href, public_href

    public_href(text)
    for base in (None, "https://x.example/c/d.json", "/tmp/c"):
        with contextlib.suppress(OdfchainError):
            parse_href(text, base, strip_query=True, servers=True)


def _archive_bytes() -> tuple[bytes, bytes]:
    from odfchain.transform import archive

    manifest = archive.Manifest(
        engine_version="4.2.0", kind="join", query_hash=Multihash.parse(HASH), step=1, watermark_ms=None, output_watermark_ms=5,
        inputs=(archive.InputMark(DatasetId.parse(_signer()), 5),), parts=(archive.StateTable("a", 3),), late={"a": 1},
    )  # fmt: skip
    path = _folder() / "seed.tar"
    manifest.write(path, {"a": _file(bytes(700), "a.parquet")})
    return manifest.to_bytes(), path.read_bytes()


@_reader("manifest of a checkpoint", more=lambda: [_archive_bytes()[0]])
def _checkpoint_manifest(data: bytes) -> None:
    from odfchain.transform.archive import Manifest

    Manifest.parse(data, "x")


@_reader("checkpoint", more=lambda: [_archive_bytes()[1]])
def _checkpoint(data: bytes) -> None:
    from odfchain.transform.archive import Manifest

    path, folder = _file(data, "x.tar"), _folder() / "unpacked"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OdfchainError):
        Manifest.read(path)
    try:
        Manifest.unpack(path, folder)
    finally:
        for each in folder.iterdir():
            each.unlink()


# --- merges and answers ---------------------------------------------------------------------------------


@_reader(
    "merge record",
    _json(
        {
            "version": 1,
            "base": [HASH],
            "source": HASH,
            "sourceRef": "a",
            "target": HASH,
            "mode": "merge",
            "resolution": "none",
            "granularity": "cell",
            "conflicts": 0,
            "message": "",
            "references": {"did:odf:fed01" + "ab" * 32: HASH},
        }
    ),
)
def _record(data: bytes) -> None:
    from odfchain.odf.tree import read_json, to_tree
    from odfchain.workspace.merge_record import MOST_BYTES, MergeRecord

    to_tree(read_json(MergeRecord, data, MOST_BYTES))


def _decisions(name: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        from odfchain.branches.conflict_file import read_resolution

        columns = pa.schema([each for each in SCHEMA if each.name not in ("offset", "op")])
        read_resolution(_file(data, name), columns, ("id",))

    return read


_reader(
    "decisions as CSV", "id,column,base,ours,theirs,take,value,problem\n1,name,a,b,c,ours,,\n2,price,1.00,2.00,,value,3.00,\n"
)(_decisions("x.csv"))  # fmt: skip
_reader(
    "decisions as lines", '{"id": 1, "column": "name", "base": "a", "ours": "b", "theirs": "c", "take": "value", "value": "x"}\n'
)(_decisions("x.ndjson"))  # fmt: skip


@_reader("given rows", "id,name,price,at\n1,a,1.00,\n")
def _given(data: bytes) -> None:
    from odfchain.branches.corrections import Wanted, read_given

    names = [each for each in SCHEMA if each.name not in ("offset", "op")]
    read_given(_file(data, "rows.csv"), Wanted(pa.schema(names), ("id",), "at"))


@_texts("name of a change", f"{HASH}#12")
def _change(text: str) -> None:
    from odfchain.branches.foreign_keys import ChangeName

    ChangeName.parse(text)


def _answers() -> Iterator[bytes]:
    yield from (
        each["response_text"].encode()
        for each in conformance("query_answers")["answers"]
        if '"proof"' in each["response_text"]
    )


@_reader("signed answer", more=_answers)
def _answer(data: bytes) -> None:
    from odfchain.query.answers import read_answer

    found = read_answer(data, "x.json")
    found.to_json()
    found.check_signature()


# --- engines and nodes ----------------------------------------------------------------------------------


def _engine_messages() -> Iterator[bytes]:
    from odfchain.odf.engine_messages import RawQueryRequest
    from odfchain.odf.sources import SqlQueryStep, TransformSql
    from odfchain.transform import engine_protocol as wire

    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query="SELECT 1"),))
    yield wire.EXECUTE_RAW_QUERY.pack_request(
        RawQueryRequest(input_data_paths=("a",), transform=transform, output_data_path="b")
    )
    yield wire.EXECUTE_TRANSFORM.pack_response("Success")
    yield wire.EXECUTE_TRANSFORM.pack_response("InternalError", message="a", backtrace="b")
    yield wire.EXECUTE_RAW_QUERY.pack_response("InvalidQuery", message="a")


@_reader("message of an engine", more=_engine_messages)
def _engine(data: bytes) -> None:
    from odfchain.transform import engine_protocol as wire

    for call in (wire.EXECUTE_TRANSFORM, wire.EXECUTE_RAW_QUERY):
        for unpack in (call.unpack_request, call.unpack_response):
            for message in (data, wire.wrap(data)):
                with contextlib.suppress(OdfchainError):
                    unpack(message)


def _flight_messages() -> Iterator[bytes]:
    from odfchain.node import flight_messages as wire

    yield wire.packed("CommandStatementQuery", query="SELECT 1")
    yield wire.packed("CommandGetTables", table_name_filter_pattern="a%", include_schema=True)
    yield wire.written("FlightDescriptor", cmd=wire.packed("CommandGetSqlInfo"))


# what the server says of these two is a refusal (`odfchain.node.flight`)
@_reader("message of Flight SQL", more=_flight_messages, allowed=(DecodeError, UnicodeDecodeError))
def _flight(data: bytes) -> None:
    from odfchain.node import flight_messages as wire

    for kind in ("FlightDescriptor", "Ticket", "Action", "FlightData"):
        with contextlib.suppress(DecodeError):
            wire.parsed(kind, data)
    name, command = wire.unpacked(data)
    wire.columns_of(name, command)
    wire.fits(str(getattr(command, "table_name_filter_pattern", "")), "table")


def _arrow_rows() -> Iterator[bytes]:
    from odfchain.query.row_streams import stream_of

    table = pa.table(
        {"n": [1, None], "t": ["a", "b"], "l": [[1], []], "d": pa.array(["x", "x"]).dictionary_encode()}
    )
    yield stream_of(table.schema, table.to_batches())


@_reader("rows of Arrow", more=_arrow_rows)
def _rows_of_arrow(data: bytes) -> None:
    from odfchain.limits import ASKED
    from odfchain.query.row_streams import checked_rows

    for batch in checked_rows(data, ASKED)[1]:
        batch.to_pylist()


@_reader(
    "body of a REST request",
    _json({"query": "SELECT 1", "include": ["Proof"], "limit": 3, "datasets": [{"id": DID, "alias": "a"}]}),
    _json({"subject": "x"}),
)
def _rest(data: bytes) -> None:
    from odfchain.node.rest import OPERATIONS, _in_body
    from odfchain.node.visit import Refused

    for operation in OPERATIONS:
        if operation.body:
            with contextlib.suppress(Refused):
                _in_body(operation, data)


@_reader(
    "address of a REST request", "limit=3&skip=1&include=refs,seed&schemaFormat=odf-json", "limit=%FF&limit=2"
)
def _address(data: bytes) -> None:
    from odfchain.node.rest import OPERATIONS, _in_address, _values
    from odfchain.node.visit import Refused

    for operation in OPERATIONS:
        with contextlib.suppress(Refused):
            request = Request({"type": "http", "query_string": data, "headers": []})
            _values(operation.parameters, _in_address(request, operation.parameters))


@_texts("README", "# A\n\n[b](c.md) ![d](e.png) `f` <b>g</b>\n\n|a|b|\n|-|-|\n|1|2|\n")
def _readme(text: str) -> None:
    from odfchain.node.readme import _html

    _html(text[:2_000].encode(errors="replace").decode(), "-/attachments/")


# --- texts: SQL, names, times, URLs, headers ------------------------------------------------------------


def _queries() -> Iterator[bytes]:
    for name in ("allowed", "dialects", "rejected", "gate"):
        text = (FIXTURES / "queries" / f"{name}.yaml").read_text(encoding="utf-8")
        yield from (
            each.encode()
            for each in re.findall(r"(?:select|with|from) [^\n]{5,200}", text, re.IGNORECASE)[:40]
        )
    yield b"SELECT * FROM a VERSION AS OF '3' JOIN \"b.c\" TIMESTAMP AS OF '2026-01-01' USING (id) WHERE x = $n AND y = ?"


@_reader("SQL", more=_queries)
def _sql(data: bytes) -> None:
    from odfchain.query import sql_text
    from odfchain.transform.closed_sql import check_text

    text = data.decode("utf-8", "surrogateescape")
    for read in (check_text, sql_text.checked_text, sql_text.numbered_values, sql_text.value_names):
        with contextlib.suppress(OdfchainError):
            read(text)
    with contextlib.suppress(OdfchainError):
        sql_text.pinned_text(text, {"a": HASH})


@_texts(
    "condition", "id = 3 AND name LIKE 'a%'", "at >= '2026-01-01T00:00:00Z' or day in (date '2026-01-01')", "`offset` BETWEEN 1 AND 2 OR ok IS NULL",
    "price < 1.5 AND NOT share > 1e300", "name IN ('a', 'b') AND (id + 1) * 2 > 3",
)  # fmt: skip
def _where(text: str) -> None:
    from odfchain.slices.conditions import parse_where

    parse_where(text, SCHEMA)


@_texts("point", "head", "9", "2026-01-10T10:30:00Z", "fix:9", HASH, "2024-02")
def _point(text: str) -> None:
    from odfchain.workspace.points import parse_point, parse_time

    with contextlib.suppress(OdfchainError):
        parse_time(text)
    parse_point(text)


@_texts("hash or DID", HASH, DID, "zQmc", "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK")
def _identity(text: str) -> None:
    for read in (Multihash.parse, DatasetId.parse, DidKey.parse, parse_did):
        with contextlib.suppress(OdfchainError):
            read(text)


@_reader("bytes of a hash or a key", b"\x16\x20" + bytes(32), b"\xed\x01" + bytes(32))
def _identity_bytes(data: bytes) -> None:
    for read in (Multihash.from_bytes, DatasetId.from_bytes, DatasetKey.from_pem):
        with contextlib.suppress(OdfchainError):
            read(data)


@_texts(
    "name of a dataset", "a.b-c", "org/a.b", "repo/org/a", f"repo/{DID}", "http://x.example/a", "a%", "%/a.%"
)
def _dataset_name(text: str) -> None:
    from odfchain.odf import names

    names.is_branch_name(text)
    for read in (
        names.DatasetAlias.parse, names.DatasetAliasRemote.parse, names.parse_ref, names.parse_ref_remote,
        names.parse_ref_any, names.DatasetPattern.parse, names.check_branch_name,
    ):  # fmt: skip
        with contextlib.suppress(OdfchainError):
            str(read(text))


@_texts(
    "time",
    "2026-01-01T00:00:00.123456789+02:00",
    "2016-12-31T23:59:60Z",
    "P1DT2H",
    "PT0.5S",
    "0 */2 * * 1-5",
    "PT1H",
    "yyyy-MM-dd'T'HH:mm",
    "%Y-%m-%d",
)
def _time(text: str) -> None:
    from odfchain.odf import times

    for read in (
        Timestamp.parse,
        times.Duration.parse,
        times.check_timestamp_format,
        times.check_date_format,
        times.java_format,
    ):
        with contextlib.suppress(OdfchainError):
            read(text)


@_texts("schedule", "0 */2 * * 1-5", "PT1H", "30 4 1 1 *", "@daily", "0 0 29 2 *", "0 0 L * *")
def _schedule(text: str) -> None:
    from odfchain.node.schedule import settled
    from odfchain.odf.times import Recurrence

    settled(None, Recurrence.parse(text), "key", Timestamp(1_700_000_000_000_000_000))


@_texts(
    "URL", "https://user:pw@x.example:8080/a/%2e%2e/b?q#f", "http://[::1]/a", "s3://bucket/key", "odf+http://127.0.0.1/", "ftp://x/a;type=i",
    "file:///tmp/a", "gs://b/c", "az://account/container/a", "http://münchen.example/",
)  # fmt: skip
def _url(text: str) -> None:
    from odfchain.ingest.fetch_url import check_url, parse_place
    from odfchain.storage.locations import Location, PeerUrl, parse_target, public_name, scheme_of

    scheme_of(text)
    public_name(text)
    for read in (
        PeerUrl.parse,
        Location.parse,
        check_url,
        functools.partial(parse_target, name="x"),
        functools.partial(parse_place, name="x"),
    ):
        with contextlib.suppress(OdfchainError):
            str(read(text))


@_texts("template", "a ${{ env.A || 'b' }} c", "${{ env.X }}")
def _template(text: str) -> None:
    from odfchain.storage import template

    template.names_in([text])
    template.blanked(text)
    template.shown_value(text)
    for read in (template.mask_templates, functools.partial(template.expand, variables={"A": "1"})):
        with contextlib.suppress(OdfchainError):
            read(text)


class _Socket:
    """What the standard library asks of a socket for one response."""

    def __init__(self, data: bytes) -> None:
        self.stream = io.BytesIO(data)

    def makefile(self, *_: object, **__: object) -> io.BytesIO:
        return self.stream

    def setsockopt(self, *_: object) -> None:
        pass


class _Connection:
    name = "x"

    limits = SimpleNamespace(bytes_per_second=1)

    def set_timeout(self, _: object) -> None:
        pass


@_reader(
    "response of HTTP",
    'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: "a"\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nRetry-After: 3\r\n\r\nabc',
    "HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-2/3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 302 F\r\nLocation: /b\r\nLast-Modified: Sunday, 06-Nov-94 08:49:37 GMT\r\n\r\n",
)  # fmt: skip
def _http(data: bytes) -> None:
    from odfchain.storage import http_connection as http
    from odfchain.storage.http_rules import ContentRange, TransientError

    with contextlib.suppress(TransientError):
        answer = http._Answer(_Connection(), _Socket(data), method="GET")  # type: ignore[arg-type]
        answer.begin()
        headers = answer.parsed()
        headers.location(), headers.length(), headers.retry_after(), headers.range_validator()
        ContentRange.parse(headers.get("content-range"))
        body, view = http.Response(answer, headers), memoryview(bytearray(4_096))
        while body.read_into(view):
            pass


@_reader(
    "head of a request", "host: x.example:80\nx-forwarded-proto: https\nx-forwarded-prefix: /a\nauthorization: Bearer ka_a", 'range: bytes=0-3\nif-none-match: "a"'
)  # fmt: skip
def _request(data: bytes) -> None:
    from odfchain.transfer.access_tokens import holder
    from odfchain.transfer.node_pulls import base_of, fields_of

    pairs = [line.partition(b":")[::2] for line in data.split(b"\n")]
    scope = {
        "headers": [(name.lower(), value.strip()) for name, value in pairs],
        "scheme": "ws",
        "path": "/a/pull",
    }
    for proxy in (True, False):
        base_of(scope, fields_of(scope), "/pull", behind_proxy=proxy)
    holder(fields_of(scope).get("authorization"), ())


# --- rows of strangers ----------------------------------------------------------------------------------


def _csv(name: str, **dialect: str) -> None:
    def read(data: bytes) -> None:
        from odfchain.ingest.read_csv import CsvDialect, CsvRecords

        for _ in CsvRecords(_file(data, "rows.csv"), CsvDialect(**dialect), "rows.csv"):
            pass

    # `RecordSource` says so of bytes that are not in the encoding
    _reader(name, 'a,b\n1,"x ""y"" z"\n\n2,"two\nlines"\r\n3,\n', allowed=(UnicodeDecodeError,))(read)


_csv("CSV")
_csv("CSV with escapes", escape="\\", encoding="latin-1")


@_reader(
    "JSON line",
    '{"a": 1.5e3, "b": [null, true, {"c": "ü"}], "d": "\\u00e4"}',
    '{"type": "Feature", "properties": {"a": 1}, "geometry": {"type": "Point", "coordinates": [1, 2]}}',
)
def _json_line(data: bytes) -> None:
    from odfchain.spark import json_values as values

    text = data.decode("utf-8", "replace")
    for read in (values.parse_object, lambda text: values.feature_record(values.parse_feature(text))):
        with contextlib.suppress(values.RecordError):
            values.json_text(read(text))
