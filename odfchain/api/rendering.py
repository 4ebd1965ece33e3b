"""Values as documents, texts and pages: what `-o json`, `-o yaml` and `-o html` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.known_errors import OwnErrors
from odfchain.audit.drawings import to_html
from odfchain.chain import statements
from odfchain.chain.equivocation import Evidence
from odfchain.errors import OdfchainError, StoreError, UsageError
from odfchain.odf.block_codec import block_hash, decode_block, encode_block, open_manifest
from odfchain.odf.identity import DatasetId, DidKey, Multihash, encode_base16
from odfchain.odf.manifests import block_document, read_block
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.tree import to_tree
from odfchain.storage import fsio

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.audit.lineage import Graph
    from odfchain.audit.report import Report
    from odfchain.odf.events import MetadataEvent, SetDataSchema
    from odfchain.odf.schema import DataSchema


document_of = to_tree
"""Any value of the model as JSON and YAML can hold it, spelled as in the specification."""


def schema_of(event: SetDataSchema) -> DataSchema:
    """The schema that an event declares, in whichever of the two ways.

    Raises:
        DecodeError, SchemaError: the bytes of an Arrow schema are malformed, or cannot be expressed.
    """
    from odfchain.odf.arrow_schema import schema_of_event

    return schema_of_event(event.raw_arrow_schema, event.schema)


def merged_text(event: MetadataEvent) -> str | None:
    """A merge or a revert in a line; None for every other event."""
    from odfchain.audit.lineage import describe_merged
    from odfchain.workspace.merge_record import understood_record

    record = understood_record(event)
    return None if record is None else describe_merged(record)


def report_page(reports: Sequence[Report]) -> str:
    """Reports as one HTML page that asks for nothing and runs nothing; faulty datasets come first."""
    from odfchain.audit.page import render_page

    return render_page([report.to_document() for report in reports])


def write_report(document: dict[str, Any], path: Path) -> None:
    """Durably write the document of a report, byte by byte as an attestation of it has its digest.

    Raises:
        StoreError: it cannot be written.
    """
    from odfchain.odf.canonical_json import canonical_json
    from odfchain.storage.fsio import replace_file

    replace_file(path, canonical_json(document) + b"\n")


# Where datasets are published when nothing else is said.

# Blocks of metadata as files: bytes to a document that people can read, and back.


@dataclass(frozen=True, slots=True)
class BlockFile(OwnErrors):
    """A block: its document, the hash of its bytes, and of the bytes that encode the document."""

    document: dict[str, Any]
    hash: Multihash
    canonical_hash: Multihash

    @classmethod
    def decode(cls, data: bytes) -> BlockFile:
        """The block of some bytes.

        Raises:
            DecodeError, UnsupportedVersionError: they are not a block that this version knows.
        """
        version, _ = open_manifest(data)
        block = decode_block(data)
        return cls(block_document(block, version), block_hash(data), block_hash(encode_block(block, version)))


def encode(text: bytes, *, source: str, version: int) -> tuple[Multihash, bytes]:
    """The hash and the bytes of a block that is given as YAML or JSON; `source` is named in errors.

    Raises:
        ManifestError: naming line and path.
    """
    _, block = read_block(text, source=source)
    data = encode_block(block, version)
    return block_hash(data), data


# The two hashes of a Parquet file; no workspace is needed.


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Hashes of a file; without a logical hash and a number of records where `problem` says why."""

    physical: Multihash
    size: int
    """[bytes]"""
    logical: Multihash | None = None
    records: int | None = None
    problem: OdfchainError | None = None


def digest_file(path: Path) -> FileDigest:
    """The hashes of a file, which need not be Parquet to have the physical one.

    Raises:
        UsageError: it cannot be read.
    """
    from odfchain.slices.reader import hash_parquet

    try:
        physical, size = hash_file(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        logical, records = hash_parquet(path)
    except OdfchainError as error:
        return FileDigest(physical, size, problem=error)
    return FileDigest(physical, size, logical, records)


# Lineage of datasets and records: documents, indented lines, drawings and pages.

_PROFILES = 20


def lineage_page(workspace: Workspace, graph: Graph) -> str:
    """The graph as one page, with what is known of the rows of the datasets that were asked for."""
    from odfchain.audit.lineage import NodeState

    known = {}
    for key in list(graph.roots)[:_PROFILES]:
        if graph.nodes[key].state is NodeState.PRESENT:
            found = workspace[graph.nodes[key].id].known_profile()
            if found is not None:
                known[key] = found.document
    return to_html(graph, known)


# Files with the private keys of auditors.


def create_key(file: Path) -> DatasetId:
    """Make a new ed25519 key in a file that only its owner may read; returns its public identity.

    Raises:
        StoreError: there is a file of this name, or it cannot be written.
    """
    return statements.create_key_file(file).dataset_id


def signer_in(file: Path, dataset: DatasetId) -> str:
    """How the key in a file signs what is said of a dataset: as the dataset itself, or as an auditor.

    Raises:
        SignatureError, StoreError: it is no such file, or it cannot be read.
    """
    found = identity_in(file)
    return str(found if found == dataset else DidKey(found.public_key))


def identity_in(file: Path) -> DatasetId:
    """The public identity of the key in a file.

    Raises:
        SignatureError, StoreError: it is no such file, or it cannot be read.
    """
    return statements.read_key_file(file).dataset_id


# Proofs that owners signed two histories, as files to be sent and checked.


def export_evidence(proofs: Sequence[Evidence], target: Path) -> Iterator[Path]:
    """Copy one proof into a new file, or all into a folder; yields each file when it is written.

    Raises:
        UsageError: there are none.
        StoreError: a file exists already, or cannot be written.
    """
    if not proofs:
        raise UsageError("no proof to export")
    into_folder = target.is_dir() or len(proofs) > 1
    if into_folder:
        fsio.make_folder(target)
    for proof in proofs:
        name = f"{encode_base16(proof.dataset_id.to_bytes())}-{proof.name}.json"
        path = target / name if into_folder else target
        if not fsio.create_file(path, proof.to_bytes()):
            raise StoreError(f"{path}: the file already exists", hint="choose another name")
        yield path


# Files of the user that commands write.
