"""Signed statements: heads by a dataset's own key, attestations by an auditor's.

A signed head says "this block is the newest of this dataset at this time"; only the owner can say so, because
the dataset's id is the public key. An attestation says "I examined the chain up to this block, with this
result"; anyone can say so, and whom to believe is the reader's choice.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import os
import re
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from odfchain import errors
from odfchain.limits import ATTEST
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.identity import (
    DID_KEY_PREFIX,
    DID_ODF_PREFIX,
    ED25519_KEY_BYTES,
    DatasetId,
    DatasetKey,
    DidKey,
    Multihash,
)
from odfchain.odf.names import is_branch_name
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import Rule, from_tree, to_tree
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, is_object_name
from odfchain.text import printable

# Reading the small files that keys and signed statements are kept in.


def read_bounded(path: Path, limit: int) -> bytes | None:
    """At most `limit + 1` bytes of a file, None when it is not there; links are not followed."""
    found = read_regular(path, limit)
    return found[0] if found is not None else None


def read_regular(path: Path, limit: int, *, follow: bool = False) -> tuple[bytes, int] | None:
    """At most `limit + 1` bytes of an ordinary file (a link with `follow`), and its permissions; or None."""
    # Not blocking: a pipe without a writer would be waited for.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not follow and path.is_symlink():
            raise errors.StoreError(f"{path}: a link is not followed (expected a file)") from None
        raise fsio.storage_error(error, path) from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise errors.StoreError(f"{path}: not an ordinary file")
        with os.fdopen(fd, "rb", closefd=False) as stream:
            return stream.read(min(limit, info.st_size) + 1), stat.S_IMODE(info.st_mode)
    except OSError as error:
        raise fsio.storage_error(error, path) from error
    finally:
        os.close(fd)


# Faults of a signature, in a word each for programs; messages explain them.


class Problem(StrEnum):
    """Why a signature does not count."""

    MISSING = "missing"
    """There is none: it was never made, or stripped."""

    DAMAGED = "damaged"
    """Not the text of a signed statement: cut, changed, or written in another way than it is signed."""

    WRONG_TYPE = "wrong-type"
    """A statement of another kind."""

    WRONG_ALGORITHM = "wrong-algorithm"
    """Another algorithm than EdDSA, or none."""

    FOREIGN_HEADER = "foreign-header"
    """Members in the header that may redirect the check: a key, a URL, an extension."""

    WEAK_KEY = "weak-key"
    """A public key that anyone can sign for."""

    NOT_VERIFIED = "not-verified"
    """It was not made with the key that it names, or for other text."""

    OTHER_KEY = "other-key"
    """It was made by someone else than the dataset's owner."""

    OTHER_DATASET = "other-dataset"

    OTHER_HEAD = "other-head"
    """It is of another block with the same sequence number: two histories exist."""

    OTHER_REF = "other-ref"
    """It is of another branch."""

    STALE = "stale"
    """The branch has moved since."""

    OLDER_HEAD = "older-head"
    """It is of an earlier block."""

    NEWER_HEAD = "newer-head"
    """It is of a later block, which is not here."""

    TOO_OLD = "too-old"
    """It was made longer ago than the reader accepts: newer blocks may be withheld."""

    IN_FUTURE = "in-future"
    """It says that it was made at a time which has not come."""

    UNWITNESSED = "unwitnessed"
    """Too few of the witnesses that the reader wants have cosigned it."""

    # of keys statements (RFC-065): who signed may not, or no longer
    REVOKED = "revoked"
    EXPIRED = "expired"
    NOT_YET = "not-yet"
    OUT_OF_SCOPE = "out-of-scope"
    SUPERSEDED = "superseded"

    SUCCESSION = "succession"
    """Another key says that it took over, and the commitment to it was not seen before."""

    HIDDEN_KEYS = "hidden-keys"
    """It names a newer keys statement than there is."""


# The members of a signed payload: exactly those of its dataclass, each read as what it has to be.

Hash = Annotated[Multihash, Rule("a sha3-256 hash", is_object_name)]
Word = Annotated[
    str,
    Rule("a text of 1 to as many characters as allowed", lambda text: 0 < len(text) <= ATTEST.statement_text),
    Rule("text that can be printed", str.isprintable),
]
_FEW = Rule("a list of no more than is allowed", lambda items: len(items) <= ATTEST.statement_items)
_Checks = Annotated[
    tuple[Annotated[int, range(1, 1_000)], ...],
    _FEW,
    Rule("numbers in ascending order", lambda numbers: list(numbers) == sorted(set(numbers))),
]


class Signed:
    """A statement, all of whose fields but the signer are the members of its payload."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The members that are signed; the header names the signer."""
        members = to_tree(self).items()
        return {n: v for n, v in members if n not in ("signer", "auditor") and (n, v) != ("ref", HEAD)}

    def signed(
        self, key: DatasetKey, signer: Did, kind: StatementType, read: Callable[[bytes], object], what: str
    ) -> str:
        """The signed text, without its end; `UsageError` where it could not be read again."""
        text = sign_statement(key, signer, kind, self.to_json())
        try:
            read(text.encode())
        except errors.SignatureError as error:
            raise errors.UsageError(f"unreadable {what}: {error}") from None
        return text


_S = TypeVar("_S", bound=Signed)


def read_members(cls: type[_S], payload: dict[str, Any], **given: Any) -> _S:
    """The statement that a payload is; `given` are those of its fields that are not in the payload."""
    try:
        found = from_tree(cls, payload, **given)
    except errors.ManifestError as error:
        raise malformed(str(error)) from None
    # one spelling each: what can be written in two ways would have two signed texts
    members = found.to_json()
    for name in sorted(members.keys() | payload.keys()):
        if members.get(name) != payload.get(name):
            raise malformed(f"{name!r} is not written as it is signed")
    return found


def malformed(why: str) -> errors.SignatureError:
    """The error of a statement whose payload is not what it has to be."""
    return errors.SignatureError(Problem.DAMAGED, f"a malformed statement: {why}")


# Signers: identifiers that are ed25519 public keys, and files with the private keys.
#
# Some 32 bytes are no one's key. Under a point of small order a signature can be found that fits many
# messages, without any private key; and a point that is written in two ways is two signers in one. Such
# keys are refused before anything is checked with them (RFC 8032, section 5.1.3; Chalkias, Garillot and
# Nikolaenko, "Taming the Many EdDSAs", 2020).

Did = DatasetId | DidKey
"""The public key of a signer, as it is written: a dataset's, or a person's or program's."""

# The prime of the field (RFC 8032, section 5.1).
_P = 2**255 - 19

_Y_OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
# The y of the eight points whose eightfold is the neutral element; with both signs of x.
_SMALL_ORDER_Y = frozenset({0, 1, _P - 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8})


def check_public_key(key: bytes) -> None:
    """The bytes are a public key by their form: 32, in the one canonical encoding, and not of small order."""
    if len(key) != ED25519_KEY_BYTES:
        raise errors.SignatureError(Problem.WEAK_KEY, f"an ed25519 public key of {len(key)} bytes")
    y = int.from_bytes(key, "little") & ~(1 << 255)
    if y >= _P:
        raise errors.SignatureError(Problem.WEAK_KEY, "the signer's public key is not in canonical form")
    if y in _SMALL_ORDER_Y:
        message = "the signer's public key is a point of small order: anyone can sign for it"
        raise errors.SignatureError(Problem.WEAK_KEY, message)


def verify_signature(key: bytes, signature: bytes, signed: bytes) -> None:
    """The signature of a text was made with the private half of a key that `check_public_key` has passed."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - only who signs or verifies loads it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        message = "the signature was not made by the signer that it names, or for another text"
        raise errors.SignatureError(Problem.NOT_VERIFIED, message) from None


@functools.lru_cache(maxsize=256)
def parse_did(text: str) -> Did:
    """The signer that a DID names, `did:odf:…` or `did:key:…`, in the spelling that is printed."""
    did: Did
    if text.startswith(DID_ODF_PREFIX):
        did = DatasetId.parse(text)
    elif text.startswith(DID_KEY_PREFIX):
        did = DidKey.parse(text)
    else:
        raise errors.InvalidIdError(f"{text[:80]!r} is neither a did:odf nor a did:key")
    if str(did) != text:
        raise errors.InvalidIdError(f"{text!r} is another spelling of {did}")
    return did


def create_key_file(path: Path) -> DatasetKey:
    """A new key pair, whose private half is in a new file that only its owner may read; none is replaced."""
    key = DatasetKey.generate()
    if not fsio.create_file(path, key.to_pem(), mode=0o600):
        message = f"{path}: the file already exists"
        raise errors.NameCollisionError(message, hint="choose another name; keys are not replaced")
    return key


def read_key_file(path: Path) -> DatasetKey:
    """The ed25519 private key, an unencrypted PKCS#8 PEM, in a file that only its owner may read."""
    found = read_regular(path, ATTEST.key_file_bytes, follow=True)
    if found is None:
        raise fsio.no_file(path, "make a key with `odfchain key create`")
    pem, mode = found
    if len(pem) > ATTEST.key_file_bytes:
        raise errors.InvalidIdError(f"{path}: more than {ATTEST.key_file_bytes} bytes are not a private key")
    try:
        key = DatasetKey.from_pem(pem)
    except errors.InvalidIdError as error:
        raise errors.InvalidIdError(f"{path}: {error}") from None
    if mode & 0o077:
        message = f"{path}: mode {mode:04o} lets others read a private key"
        raise errors.WorkspaceError(message, hint=f"chmod 600 {path}")
    return key


# Signed statements as JSON Web Signatures, in one strict form (RFC 7515, RFC 8037).
#
#     BASE64URL({"alg":"EdDSA","kid":"did:…","typ":"odf-…"}) . BASE64URL(payload) . BASE64URL(signature)
#
# There is nothing to choose. The header has exactly these three members, the key is what `kid` names and
# nothing else, and header and payload are canonical JSON in canonical base64url: a statement has one text,
# so any changed bit of a file is noticed. `typ` separates the kinds: a signature of one is none of another.

ALGORITHM = "EdDSA"

_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{86})")
_HEADER = {"alg", "kid", "typ"}
_SHOWN = 40


class StatementType(StrEnum):
    """The kinds of statements, as `typ` names them."""

    HEAD = "odf-head+jws"
    REF = "odf-ref+jws"
    """A branch's newest block: branches may be set back, so this proves nothing against anybody."""
    ATTESTATION = "odf-attestation+jws"
    SNAPSHOT = "odf-snapshot+jws"
    KEYS = "odf-keys+jws"


def sign_statement(key: DatasetKey, signer: Did, kind: StatementType, payload: dict[str, Any]) -> str:
    """The signed form of a statement, one line without its end; `UsageError` where it can have none."""
    if signer.public_key != key.dataset_id.public_key:
        raise errors.UsageError(f"the key is not that of {signer}")
    header = {"alg": ALGORITHM, "kid": str(signer), "typ": str(kind)}
    signed = b".".join(_encode(canonical_json(part)) for part in (header, payload))
    text = b".".join((signed, _encode(key.sign(signed)))).decode("ascii")
    if len(text) > ATTEST.statement_bytes:
        raise errors.UsageError(f"a statement of {len(text)} bytes (at most {ATTEST.statement_bytes})")
    return text


def read_statement(text: bytes, kind: StatementType, *, verified: bool = True) -> tuple[Did, dict[str, Any]]:
    """(signer, payload) of a statement in its one signed form; not `verified`, it must not be trusted."""
    if len(text) > ATTEST.statement_bytes:
        raise _damaged(f"it is longer than {ATTEST.statement_bytes} bytes")
    match = _COMPACT.fullmatch(text)
    if match is None:
        raise _damaged("empty, cut, or with characters that do not belong there")
    header, payload, signature = (_decode(part) for part in match.groups())
    signer = _signer(_object(header, "header"), kind)
    if verified:
        verify_signature(signer.public_key, signature, text[: match.end(2)])
    return signer, _object(payload, "payload")


def _signer(header: dict[str, Any], kind: StatementType) -> Did:
    algorithm, kid, typ = (header.get(name) for name in ("alg", "kid", "typ"))
    if algorithm != ALGORITHM:
        message = f"the signature's algorithm is {_shown(algorithm)} (only {ALGORITHM} counts)"
        raise errors.SignatureError(Problem.WRONG_ALGORITHM, message)
    if foreign := sorted(header.keys() - _HEADER):
        message = f"the signature's header has {_shown(foreign[0])}, which may not decide how it is checked"
        raise errors.SignatureError(Problem.FOREIGN_HEADER, message)
    if typ != kind:
        message = f"a signed statement of type {_shown(typ)}, not {kind}"
        raise errors.SignatureError(Problem.WRONG_TYPE, message)
    try:
        signer = parse_did(kid if isinstance(kid, str) else "")
    except errors.InvalidIdError:
        raise _damaged(f"its signer {_shown(kid)} is not a did:odf or did:key") from None
    check_public_key(signer.public_key)
    return signer


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decode(part: bytes) -> bytes:
    try:
        data = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise _damaged("it is cut") from None
    if _encode(data) != part:
        raise _damaged("its base64 has bits that mean nothing")
    return data


def _object(data: bytes, part: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
        if isinstance(found, dict) and canonical_json(found) == data:
            return found
    except (ValueError, RecursionError, errors.UsageError):
        pass
    raise _damaged(f"its {part} is not canonical JSON")


def _damaged(why: str) -> errors.SignatureError:
    return errors.SignatureError(Problem.DAMAGED, f"not a signed statement: {why}")


def _shown(value: Any) -> str:
    # what an untrusted publisher wrote: one short printable word
    return repr(printable(value, _SHOWN)) if isinstance(value, str) else type(value).__name__


class Verdict(StrEnum):
    """The result of an examination."""

    CLEAN = "clean"
    FAULTY = "faulty"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class SignedHead(Signed):
    """The owner's word that a block is the newest of a dataset at a time."""

    dataset_id: DatasetId
    head: Hash
    sequence_number: int
    time: Timestamp
    ref: str = HEAD
    """`head`, or a branch: then it is a statement of another type, with this as one more member."""
    keys: Hash | None = None
    """The newest keys statement, where there is one: then nobody can hide it (RFC-065)."""

    def sign(self, key: DatasetKey, signer: Did | None = None) -> str:
        """The signed text, one line without its end; of a delegate, `signer`."""
        kind = StatementType.HEAD if self.ref == HEAD else StatementType.REF
        return sign_statement(key, signer or self.dataset_id, kind, self.to_json())


@dataclass(frozen=True, slots=True)
class EngineUsed:
    """An engine that transformations were computed again with."""

    name: Word
    version: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation(Signed):
    """An auditor's word on a dataset up to a block; `report` is the digest of the report it sums up."""

    auditor: Did
    checks: _Checks
    dataset_id: DatasetId
    engines: Annotated[tuple[EngineUsed, ...], _FEW] = ()
    head: Hash
    not_checked: _Checks = ()
    report: Hash
    sequence_number: int
    time: Timestamp
    tool: Word
    verdict: Verdict

    def sign(self, key: DatasetKey) -> str:
        """The signed text, without its end; `UsageError` where it could not be read again."""
        return self.signed(key, self.auditor, StatementType.ATTESTATION, read_attestation, "attestation")

    def is_by(self, auditors: Collection[str]) -> bool:
        """True if one of these DIDs is the auditor's: the key counts, not the method of a DID."""
        return any(parse_did(text).public_key == self.auditor.public_key for text in auditors)


def read_head(text: bytes, *, verified: bool = True) -> tuple[Did, SignedHead]:
    """Who signed which head, owner or not (see `check_head`); not `verified`, only what the text says."""
    signer, payload = read_statement(text, StatementType.HEAD, verified=verified)
    return signer, read_members(SignedHead, payload, ref=HEAD)


def read_branch(text: bytes) -> tuple[Did, SignedHead]:
    """Who signed which newest block of a branch."""
    signer, payload = read_statement(text, StatementType.REF)
    head = read_members(SignedHead, payload)
    if not is_branch_name(head.ref):
        raise malformed("'ref' cannot name a branch")
    return signer, head


def read_attestation(text: bytes, *, verified: bool = True) -> Attestation:
    """The attestation that was signed; without `verified`, what has the form of one."""
    signer, payload = read_statement(text, StatementType.ATTESTATION, verified=verified)
    attestation = read_members(Attestation, payload, auditor=signer)
    if set(attestation.checks) & set(attestation.not_checked):
        raise malformed("a check is both done and not done")
    return attestation
