"""Slices and checkpoints as the smart protocol names them: what a key is there, and where we have it."""

from __future__ import annotations

from odfchain.smart.smart_messages import VERSION, Header, ObjectFile, ObjectType, TransferUrl
from odfchain.transfer.public_layout import ObjectKey, ObjectKind

_TYPES = {ObjectKind.DATA: ObjectType.DATA_SLICE, ObjectKind.CHECKPOINT: ObjectType.CHECKPOINT}
_KINDS = {name: kind for kind, name in _TYPES.items()}


def object_file(key: ObjectKey, size: int) -> ObjectFile | None:
    """What messages call an object of this size [bytes]; None for what the protocol does not carry."""
    name = _TYPES.get(key.kind)
    return None if name is None else ObjectFile(object_type=name, physical_hash=key.name, size=size)


def key_of(file: ObjectFile) -> ObjectKey:
    """The key of an object that a message names."""
    return ObjectKey(_KINDS[file.object_type], file.physical_hash)


def address_here(base: str, key: ObjectKey, authorization: str | None) -> TransferUrl:
    """Where an object of the dataset at `base` is read or put, by whoever is authorized for that."""
    headers = [Header(name=VERSION[0], value=VERSION[1])]
    if authorization is not None:
        headers.append(Header(name="authorization", value=authorization))
    return TransferUrl(url=f"{base}{key}", headers=tuple(headers), expires_at=None)
