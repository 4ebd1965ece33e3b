"""When two cells are equal: null = null, NaN = NaN, -0.0 = 0.0, and a map has no order.

A structure, a list or a map is one cell. Source: RFC-036; what keys compare by is
`odfchain.slices.rows_in_force`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.digest.row_hash import Numbers, canonical


def same_cells(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Numbers:
    """Which values of two columns of one type and length are equal."""
    one, other = _plain(one), _plain(other)
    null, other_null = (column.is_null().to_numpy(zero_copy_only=False) for column in (one, other))
    both: Numbers = ~null & ~other_null
    found: Numbers = null & other_null
    if t.is_null(one.type) or not both.any():
        return found
    if t.is_nested(one.type):
        for index in np.flatnonzero(both):
            found[index] = canonical(one[int(index)]) == canonical(other[int(index)])
        return found
    equal = pc.equal(one, other)
    if t.is_floating(one.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    found |= pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
    return found


def _plain(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # of no chunk, or of more than fit in one
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    return whole.dictionary_decode() if t.is_dictionary(whole.type) else whole
