"""An answer that can be checked: what was asked, what came out, hashes of both, and a signature.

    {"input": {…, "datasets": [{id, alias, blockHash}]}, "output": {data, dataFormat}, "subQueries": [],
     "commitment": {inputHash, outputHash, subQueriesHash}, "proof": {type, verificationMethod, proofValue}}

It is the reference node's envelope, byte for byte. `engine` stands beside it, unsigned: it says which version
of the engine computed the answer, since another one may compute it otherwise.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.digest.physical import hash_bytes
from odfchain.errors import InvalidIdError, QueryError, SignatureError, StoreError, UsageError
from odfchain.ids.did import DatasetId, DidKey
from odfchain.ids.keys import DatasetKey
from odfchain.ids.multihash import Multihash
from odfchain.query.arrow_json import SCHEMA_FORMAT
from odfchain.query.node_json import Number, canonical, read, written
from odfchain.store import fsio
from odfchain.text import one_line
from odfchain.trust.files import read_regular
from odfchain.trust.problems import Problem
from odfchain.trust.signing_keys import check_public_key, verify_signature

if TYPE_CHECKING:
    from odfchain.query.query_result import QueryResult

FILE_BYTES = 16 << 20
"""A file with an answer [bytes]."""
QUERY_BYTES = 64 << 10
"""The query in it [bytes]; it is somebody else's."""
DATASETS = 1_000
"""Datasets that it reads [count]."""
SIGNATURE = "Ed25519Signature2020"
_OUTPUT_BYTES = FILE_BYTES - (1 << 20)
_FEWER = "ask for fewer rows"

_PARTS = {"input", "output", "subQueries", "commitment", "proof", "engine"}
_HASHES = {"inputHash": "input", "outputHash": "output", "subQueriesHash": "subQueries"}
_INPUT = {"query", "queryDialect", "dataFormat", "include", "schemaFormat", "datasets", "skip", "limit"}
_DATASET = {"id", "alias", "blockHash"}
_PROOF = {"type", "verificationMethod", "proofValue"}
_SIGNED = re.compile("u[A-Za-z0-9_-]{86}")


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """A signed answer to a query; whether it is true is for `odfchain.verify_proof` to find out."""

    input: dict[str, Any]
    """What was asked, of which blocks."""
    output: dict[str, Any] | None
    """The rows; None where somebody left them out."""
    commitment: dict[str, str]
    """The hashes of input, output and answers of others."""
    proof: dict[str, str]
    """Who signed them."""
    sub_queries: list[Any] = field(default_factory=list)
    """Answers of others that it is made of; none here."""
    engine: str | None = None
    """What computed it; not signed."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What whoever asked should know."""
    result: QueryResult | None = field(default=None, compare=False)
    """The rows with their types, where the answer was computed here."""

    @property
    def query(self) -> str:
        """The SQL."""
        return str(self.input["query"])

    @property
    def datasets(self) -> dict[str, tuple[DatasetId, Multihash]]:
        """What each name in the query means."""
        return {
            item["alias"]: (DatasetId.parse(item["id"]), Multihash.parse(item["blockHash"]))
            for item in self.input["datasets"]
        }

    @property
    def signer(self) -> str:
        """The `did:key` of who signed."""
        return self.proof["verificationMethod"]

    def __repr__(self) -> str:
        return f"<answer signed by {self.signer}: {one_line(self.query, 80)}>"

    def to_json(self, *, engine: bool = True) -> str:
        """The text of the file; without `engine` as other nodes take it."""
        parts: dict[str, Any] = {"input": self.input, "output": self.output, "subQueries": self.sub_queries}
        parts |= {
            "commitment": self.commitment,
            "proof": self.proof,
            "engine": self.engine if engine else None,
        }
        return written({name: part for name, part in parts.items() if part is not None})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        fsio.replace_file(Path(path), (self.to_json() + "\n").encode())

    def hash_of(self, name: str) -> str:
        """The hash that a member of the commitment should be, from what is here."""
        part = {"input": self.input, "output": self.output, "subQueries": self.sub_queries}[_HASHES[name]]
        return hash_of(part)

    def check_signature(self) -> None:
        """The commitment was signed with the key that the answer names."""
        key = DidKey.parse(self.signer).public_key
        check_public_key(key)
        encoded = self.proof["proofValue"][1:]
        signature = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        verify_signature(key, signature, canonical(self.commitment))

    def problem(self) -> str | None:
        """What is wrong with the file itself: a hash, or the signature; None where both fit."""
        for name in _HASHES:
            absent = name == "outputHash" and self.output is None
            if not absent and self.hash_of(name) != self.commitment[name]:
                return f"what is here does not hash to the {name} that was signed"
        try:
            self.check_signature()
        except SignatureError as error:
            return error.message
        return None

    @classmethod
    def signed(cls, asked: dict[str, Any], output: dict[str, Any], key: DatasetKey, **about: Any) -> Answer:
        """The answer over the hashes of both, signed; `about` are the members that are not.

        Raises:
            QueryError: it would be too large for a file.
        """
        parts = {"input": asked, "output": output, "subQueries": []}
        texts = {name: canonical(parts[part]) for name, part in _HASHES.items()}
        if (size := len(texts["outputHash"])) > _OUTPUT_BYTES:
            raise QueryError(
                f"the answer has {size:,} bytes; at most {_OUTPUT_BYTES:,} are signed", hint=_FEWER
            )
        commitment = {name: str(hash_bytes(text)) for name, text in texts.items()}
        signature = base64.urlsafe_b64encode(key.sign(canonical(commitment))).rstrip(b"=").decode()
        signer = str(key.dataset_id.as_did_key())
        proof = {"type": SIGNATURE, "verificationMethod": signer, "proofValue": f"u{signature}"}
        return cls(asked, output, commitment, proof, **about)


def hash_of(value: Any) -> str:
    """The sha3-256 multihash of a value's canonical JSON, as text."""
    return str(hash_bytes(canonical(value)))


def read_file(path: str | os.PathLike[str]) -> Answer:
    """The answer in a file, whose form was checked and nothing else.

    Raises:
        StoreError: it cannot be read.
    """
    found = read_regular(Path(path), FILE_BYTES, follow=True)
    if found is None:
        raise StoreError(f"{path}: there is no such file")
    return read_answer(found[0], str(path))


def read_answer(data: bytes, source: str) -> Answer:
    """The answer that a text is, whose form was checked and nothing else; `source` is for messages.

    Raises:
        SignatureError: it is no answer.
    """
    try:
        return _parsed(data)
    except (ValueError, InvalidIdError) as error:
        raise SignatureError(
            Problem.DAMAGED, f"{source}: not a signed answer: {one_line(str(error))}"
        ) from None


def _parsed(data: bytes) -> Answer:
    _check(len(data) <= FILE_BYTES, f"it is longer than {FILE_BYTES:,} bytes")
    found = read(data)
    _check_members(found, "it", _PARTS, optional=("output", "engine"))
    written(found)  # what lies too deep is said here
    asked, commitment, proof = found["input"], found["commitment"], found["proof"]
    _check_input(asked)
    _check_members(commitment, "commitment", _HASHES, texts=_HASHES)
    _check_members(proof, "proof", _PROOF, texts=_PROOF)
    _check(proof["type"] == SIGNATURE, f"its signature is not of type {SIGNATURE}")
    signer, value = proof["verificationMethod"], proof["proofValue"]
    _check(str(DidKey.parse(signer)) == signer, "its signer is in another spelling than nodes write")
    _check(bool(_SIGNED.fullmatch(value)), "its signature is not 64 bytes in base64url")
    output, engine = found.get("output", {}), found.get("engine", "")
    _check(type(output) is dict, "output is not an object")
    _check(type(found["subQueries"]) is list, "subQueries is not a list")
    _check(type(engine) is str and len(engine) <= 100, "engine is not a short text")
    return Answer(asked, found.get("output"), commitment, proof, found["subQueries"], found.get("engine"))


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(what)


def _check_members(
    value: Any,
    name: str,
    members: Collection[str],
    *,
    optional: Collection[str] = (),
    texts: Iterable[str] = (),
) -> None:
    """It is an object with these members and no others; `texts` are text."""
    _check(type(value) is dict, f"{name} is not an object")
    for strange in sorted(value.keys() - set(members)):
        raise ValueError(f"{name} has a member {strange!r}, which nothing is known of")
    for missing in sorted(set(members) - set(optional) - value.keys()):
        raise ValueError(f"{name} has no {missing}")
    for text in texts:
        found = value.get(text, "")
        _check(type(found) is str and len(found) <= QUERY_BYTES, f"{text} of {name} is not a short text")


def _check_input(asked: Any) -> None:
    texts = ("query", "queryDialect", "dataFormat", "schemaFormat")
    _check_members(asked, "input", _INPUT, optional=("schemaFormat",), texts=texts)
    _check(
        len(asked["query"].encode("utf-8", "surrogatepass")) <= QUERY_BYTES,
        f"the query is longer than {QUERY_BYTES:,} bytes",
    )
    for name in ("skip", "limit"):
        found = asked[name]
        right = type(found) is Number and found.isdecimal() and len(found) <= 18
        _check(right, f"{name} of input is not a number of rows")
    include, datasets = asked["include"], asked["datasets"]
    _check(
        type(include) is list and all(type(part) is str for part in include),
        "include of input is not a list of texts",
    )
    _check(
        ("Schema" in include) == ("schemaFormat" in asked),
        "include and schemaFormat of input contradict each other",
    )
    _check(
        type(datasets) is list and len(datasets) <= DATASETS,
        f"datasets are not a list of at most {DATASETS:,}",
    )
    for item in datasets:
        _check_members(item, "a dataset", _DATASET, texts=_DATASET)
        plain = str(DatasetId.parse(item["id"])), str(Multihash.parse(item["blockHash"]))
        _check(plain == (item["id"], item["blockHash"]), "a dataset is in another spelling than nodes write")
    _check(len({item["alias"] for item in datasets}) == len(datasets), "datasets have a name twice")


def asked_for(
    query: str,
    datasets: list[dict[str, str]],
    *,
    dialect: str,
    data_format: str,
    schema: bool,
    skip: int,
    limit: int,
) -> dict[str, Any]:
    """The member `input` of an answer.

    Raises:
        UsageError: a number of rows that is none.
    """
    if skip < 0 or limit < 0 or max(skip, limit) >= 10**18:
        raise UsageError("`skip` and `limit` are numbers of rows")
    asked: dict[str, Any] = {"query": query, "queryDialect": dialect, "dataFormat": data_format}
    asked["include"] = ["Input", "Proof", "Schema"] if schema else ["Input", "Proof"]
    if schema:
        asked["schemaFormat"] = SCHEMA_FORMAT
    return asked | {"datasets": datasets, "skip": skip, "limit": limit}
