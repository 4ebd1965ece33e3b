"""UUID columns of Parquet: annotated in the file, 16 bytes with a mark in memory.

Arrow reads and writes Parquet's annotation as an extension type. Nothing compares, casts or hashes that, so a
column has it only on its way into a file. pyarrow is loaded on use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

UUID_MARK = {b"odfchain:type": b"uuid"}
"""Metadata of a `pyarrow.Field` of 16 bytes that is a UUID; with Arrow's own key it would be another type."""


def is_uuid(f: Any) -> bool:
    """Whether a `pyarrow.Field` is a UUID, in either form."""
    import pyarrow as pa  # noqa: PLC0415

    marked = f.metadata is not None and UUID_MARK.items() <= f.metadata.items()
    return isinstance(f.type, pa.UuidType) or (marked and f.type == pa.binary(16))


def with_extensions(schema: Any) -> Any:
    """The `pyarrow.Schema` with Arrow's extension type for UUIDs, which is what Parquet annotates."""
    return mapped(schema, _with_extension)


def without_extensions(schema: Any) -> Any:
    """The `pyarrow.Schema` in which UUIDs are 16 bytes, and marked; other extensions are their storage."""
    return mapped(schema, _without_extension)


def _with_extension(f: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return f.with_type(pa.uuid()) if is_uuid(f) else f


def _without_extension(f: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if not isinstance(f.type, pa.BaseExtensionType):
        return f
    mark = UUID_MARK if isinstance(f.type, pa.UuidType) else {}
    return f.with_type(f.type.storage_type).with_metadata({**(f.metadata or {}), **mark})


def castable(kind: Any) -> Any:
    """The `pyarrow.DataType` that numbers of 64 bits can be cast to, and structs that are null themselves.

    Arrow makes no time of day of 32 bits of them, and no struct whose required member is null under a null.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import types as t  # noqa: PLC0415

    def change(f: Any) -> Any:
        return pa.field(f.name, pa.int32() if t.is_time32(f.type) else f.type)

    return mapped(pa.schema([("", kind)]), change).field(0).type


def mapped(schema: Any, change: Callable[[Any], Any]) -> Any:
    """The `pyarrow.Schema` whose columns, members of structs and items of lists and maps are changed."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import types as t  # noqa: PLC0415

    def of(f: Any) -> Any:
        if t.is_struct(f.type):
            f = f.with_type(pa.struct([of(f.type.field(i)) for i in range(f.type.num_fields)]))
        elif t.is_list(f.type):
            f = f.with_type(pa.list_(of(f.type.value_field)))
        elif t.is_large_list(f.type):
            f = f.with_type(pa.large_list(of(f.type.value_field)))
        elif t.is_fixed_size_list(f.type):
            f = f.with_type(pa.list_(of(f.type.value_field), f.type.list_size))
        elif t.is_map(f.type):
            kind = pa.map_(
                of(f.type.key_field).with_nullable(False),
                of(f.type.item_field),
                keys_sorted=f.type.keys_sorted,
            )
            f = f.with_type(kind)
        return change(f)

    return pa.schema([of(f) for f in schema], metadata=schema.metadata)
