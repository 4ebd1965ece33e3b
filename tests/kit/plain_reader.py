"""Checks a published dataset without any code of ours: `python plain_reader.py URL DID`, a static host will do.

The owner's newest line names a manifest; its signature is checked with the key that the DID is. The manifest
names each file with its hash, size and rows. Raises where anything does not fit; prints what was checked.
"""

import base64
import hashlib
import json
import sys
import urllib.request

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

url, did = sys.argv[1].rstrip("/"), sys.argv[2]


def fetch(path: str, most: int) -> bytes:
    with urllib.request.urlopen(f"{url}/{path}", timeout=60) as response:  # noqa: S310 - what the caller gives
        data: bytes = response.read(most + 1)
    assert len(data) <= most, f"{path} is larger than {most} bytes"
    return data


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


lines = [line.split(".") for line in fetch("attestations/snapshots.jws", 4 << 20).decode().splitlines()]
header = {"alg": "EdDSA", "kid": did, "typ": "odf-snapshot+jws"}
owners = [line for line in lines if json.loads(decoded(line[0])) == header]
line, said = next(each for o in owners if (each := (o, json.loads(decoded(o[1]))))[1]["kind"] == "manifest")
key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(did.removeprefix("did:odf:fed01")))
key.verify(decoded(line[2]), f"{line[0]}.{line[1]}".encode())
data = fetch(f"manifests/{said['object']}", said["size"])
assert f"f1620{hashlib.sha3_256(data).hexdigest()}" == said["object"], "the manifest is another one"
manifest = json.loads(data)
assert manifest["dataset_id"] == said["datasetId"] == did
assert manifest["snapshot_id"] == said["block"]
for file in manifest["files"]:
    data = fetch(file["path"], file["size_bytes"])
    assert hashlib.sha3_256(data).hexdigest() == file["checksum"], f"{file['path']} is another file"
    table = pq.read_table(pa.BufferReader(data), use_threads=False, pre_buffer=False)  # no thread at exit
    offsets = pc.min_max(table[manifest["odf"]["columns"]["offset"]]).as_py()
    assert [offsets["min"], offsets["max"]] == file["odf"]["offsets"], f"{file['path']} has other rows"
    assert table.num_rows == file["stats"]["row_count"]
print(f"block {said['sequenceNumber']}: {len(manifest['files'])} files, {manifest['row_count']} records")
