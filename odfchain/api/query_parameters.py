"""Values of `$name` in a query, as they are typed: `country=CH`, `since:DATE=2024-02-29`."""

from __future__ import annotations

import re
from typing import Any

from odfchain.codec.arrow import to_arrow_type
from odfchain.errors import InvalidIdError, SchemaError, UsageError
from odfchain.model import data_schema as ds
from odfchain.model.ddl import parse_ddl
from odfchain.repo.points import parse_time
from odfchain.text import first_line, one_line

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def parameter(text: str) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE` (a text) or `NAME:TYPE=VALUE` (an Arrow scalar).

    Types are those of manifests; bytes are written in hex, times as everywhere.

    Raises:
        UsageError: saying what is wrong with it.
    """
    left, equals, value = text.partition("=")
    name, colon, kind = left.partition(":")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(
            f"parameter {one_line(text)!r} has no name and value",
            hint="write NAME=VALUE, or NAME:TYPE=VALUE like since:DATE=2024-02-29",
        )
    if not colon:
        return name, value
    import pyarrow as pa

    try:
        return name, _value(value, _type(name, kind))
    except (SchemaError, InvalidIdError) as error:
        raise UsageError(f"parameter {name}: {error.message}", hint=error.hint) from None
    except (pa.ArrowException, ValueError) as error:
        said = first_line(error)
        raise UsageError(f"parameter {name}: {one_line(value)!r} is no {one_line(kind)}: {said}") from None


def _type(name: str, text: str) -> Any:
    declared = parse_ddl([f"v {text}"]).fields
    inner = declared[0].type
    wanted = inner.inner if isinstance(inner, ds.DataTypeOption) else inner
    if len(declared) > 1 or isinstance(wanted, ds.DataTypeList | ds.DataTypeStruct | ds.DataTypeMap):
        raise UsageError(f"parameter {name}: {one_line(text)!r} is not a type of one value")
    return to_arrow_type(wanted)


def _value(text: str, kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types as t

    if t.is_timestamp(kind):
        count, left = divmod(parse_time(text).epoch_ns, _NS[kind.unit])
        if left:
            raise ValueError(f"it is finer than {kind.unit}")
        return pa.scalar(count, pa.int64()).cast(kind)
    if t.is_binary(kind) or t.is_fixed_size_binary(kind):
        # a UUID may be written with its hyphens
        return pa.scalar(bytes.fromhex(text.replace("-", "")), kind)
    return pa.scalar(text).cast(kind)
