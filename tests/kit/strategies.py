"""Random metadata: any event that the schema can express."""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from odfchain.odf import events, schema
from odfchain.odf.block_codec import field_types
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import DatasetId, Multicodec, Multihash
from odfchain.odf.names import DatasetAlias, DatasetRefAny, parse_ref_any
from odfchain.odf.schema import ExtraAttributes
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import properties_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
HASH = st.binary(min_size=32, max_size=32).map(lambda d: Multihash(Multicodec.SHA3_256, d))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
REFS = st.sampled_from(
    ["cities", "me/cities", "repo/me/cities", "https://example.com/x", f"did:odf:fed01{'ab' * 32}"]
).map(parse_ref_any)
_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    Multihash: HASH,
    DatasetId: st.binary(min_size=32, max_size=32).map(DatasetId),
    DatasetAlias: st.sampled_from(["a.b", "x/y"]).map(DatasetAlias.parse),
    DatasetRefAny: REFS,
    Timestamp: st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9).map(Timestamp),
    ExtraAttributes: st.dictionaries(TEXT, JSON, max_size=3).map(ExtraAttributes),
}
_SIMPLE_TYPES = [
    cls() for cls in typing.get_args(schema.DataType) if not field_types(cls) or cls is schema.DataTypeTime
]


def values(hint: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if isinstance(hint, range):
        return st.integers(hint.start, hint.stop - 1)
    if hint in _LEAVES:
        return _LEAVES[hint]
    if hint == schema.DataType and depth > 3:
        return st.sampled_from(_SIMPLE_TYPES)
    if typing.get_origin(hint) is tuple:
        return st.lists(st.deferred(lambda: values(typing.get_args(hint)[0], depth + 1)), max_size=3).map(
            tuple
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    members = typing.get_args(hint)
    if members:
        return st.one_of([st.deferred(lambda m=m: dataclass(m, depth + 1)) for m in members])
    return dataclass(hint, depth + 1)


def dataclass(cls: type[Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Instances of a metadata dataclass, optional fields present or not."""
    fields = {}
    for name, hint, optional in properties_of(cls).values():
        value = values(hint, depth)
        fields[name] = st.none() | value if optional else value
    return st.fixed_dictionaries(fields).map(lambda kwargs: cls(**kwargs)) if fields else st.just(cls())


EVENTS = st.one_of([dataclass(cls) for cls in typing.get_args(events.MetadataEvent)])


def _block(event: Any, time: Timestamp, prev: Multihash | None, sequence: int) -> MetadataBlock:
    return MetadataBlock(system_time=time, prev_block_hash=prev, sequence_number=sequence, event=event)


BLOCKS = st.builds(_block, EVENTS, _LEAVES[Timestamp], st.none() | HASH, st.integers(0, 2**64 - 1))
assert dataclasses.is_dataclass(MetadataBlock)
