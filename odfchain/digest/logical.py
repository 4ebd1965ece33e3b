"""The logical hash of records: arrow-digest version 0 with SHA3-256 (`arrow0-sha3-256`).

The hash depends on names, types, values and row order, and on nothing else: not on how rows are cut into
batches, on nullability flags, or on encodings (large, view, fixed-size and dictionary arrays hash like their
plain kin). Source: specification "Physical and Logical Hashes"; the algorithm is that of arrow-digest:

- the schema part: for every field, depth first, the length of its name (u64 LE), the name, its nesting level
  (u64 LE);
- every field that is not a struct is a leaf with a hasher of its own, started with the leaf's data type;
- a value is fed as its little-endian memory when it has a fixed size, as one byte 1 or 2 for false or true,
  as length (u64 LE) and bytes for text and binary, as length and items for a list; a null is one 0 byte;
- the hash is SHA3-256 over the schema part and then every leaf's digest, in order.

A null struct makes all its leaves null. The reference implementation combines the two validities otherwise
and loses nulls; `null_rule="reference"` reproduces that, for comparing only (RFC-006).

No loop runs over rows (`leaf_bytes`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import zip_longest
from operator import length_hint
from typing import Generic, TypeVar

import pyarrow as pa
from pyarrow import types as t

from odfchain.digest.leaf_bytes import NullRule, Numbers, leaf_bytes, walk_columns
from odfchain.digest.leaf_types import plain_type, type_header
from odfchain.digest.sha3 import Hasher, sha3_256
from odfchain.ids.multicodec import Multicodec
from odfchain.ids.multihash import Multihash

_SMALL = 1 << 16
"""Bytes of a batch that is hashed sooner than threads could be told of it."""

_u64 = struct.Struct("<Q").pack
Result = TypeVar("Result")


class LogicalDigest:
    """A running logical hash: feed batches of one schema, then `finish`.

    With an `executor`, its threads and the one that calls `update` share the leaves of a batch, and a leaf's
    next piece is made while the one before it is hashed (SHA3 and numpy release the interpreter lock).
    `update` returns only when all is done, so memory stays at one batch; it may run on the executor itself.

    Raises (at construction):
        SchemaError: a column type for which the algorithm defines no hash (maps, unions, intervals,
            durations, structs inside lists).
    """

    def __init__(
        self, schema: pa.Schema, *, null_rule: NullRule = "correct", executor: Executor | None = None
    ) -> None:
        self._null_rule = null_rule
        self._executor = executor
        self._hasher = sha3_256()
        self._leaves: list[Hasher] = []
        for name, level, data_type in _walk_fields(list(schema), 0):
            encoded = name.encode()
            self._hasher.update(_u64(len(encoded)) + encoded + _u64(level))
            if not t.is_struct(data_type):
                self._leaves.append(sha3_256(type_header(data_type, name)))

    def update(self, batch: pa.RecordBatch) -> None:
        """Feed the rows of a batch (its columns must be those of the schema, in order)."""
        leaves = walk_columns(batch.columns)
        if self._executor is None or batch.nbytes < _SMALL:
            for hasher, (array, parent_valid) in zip(self._leaves, leaves, strict=True):
                for make in leaf_bytes(array, parent_valid, self._null_rule):
                    hasher.update(make())
        else:
            self._share(list(leaves), self._executor)

    def _share(self, leaves: list[tuple[pa.Array, Numbers | None]], executor: Executor) -> None:
        # the largest first, so that no thread is left with one when the others are done
        order = sorted(range(len(leaves)), key=lambda index: -leaves[index][0].nbytes)
        untaken = iter(order)

        def work() -> None:
            for index in untaken:  # each thread takes the next
                pieces = leaf_bytes(*leaves[index], self._null_rule)
                _feed_ahead(self._leaves[index], pieces, executor, untaken)

        tasks = [_Task(work, executor) for _ in order[1:]]
        work()
        for task in tasks:
            task.result()

    def finish(self) -> Multihash:
        """The multihash (`arrow0-sha3-256`) of everything fed so far; feeding may go on."""
        final = self._hasher.copy()
        for leaf in self._leaves:
            final.update(leaf.digest())
        return Multihash(Multicodec.ARROW0_SHA3_256, final.digest())


def check_hashable(schema: pa.Schema) -> None:
    """Nothing when rows of this schema have a logical hash."""
    LogicalDigest(schema)


def hash_table(table: pa.Table, *, null_rule: NullRule = "correct") -> Multihash:
    """The logical hash of a table in memory."""
    digest = LogicalDigest(table.schema, null_rule=null_rule)
    for batch in table.to_batches():
        digest.update(batch)
    return digest.finish()


# --- schema ----------------------------------------------------------------------------------------


def _walk_fields(fields: list[pa.Field], level: int) -> Iterator[tuple[str, int, pa.DataType]]:
    for field in fields:
        data_type = plain_type(field.type)
        yield field.name, level, data_type
        if t.is_struct(data_type):
            yield from _walk_fields([data_type.field(i) for i in range(data_type.num_fields)], level + 1)


# --- threads ---------------------------------------------------------------------------------------


class _Task(Generic[Result]):
    """Work for an executor; who needs it does it himself unless it has begun, so nobody waits for a turn."""

    def __init__(self, work: Callable[[], Result], executor: Executor) -> None:
        self._work, self._future = work, executor.submit(work)

    def result(self) -> Result:
        """What the work returns; raises what it raises."""
        return self._work() if self._future.cancel() else self._future.result()


def _feed_ahead(
    hasher: Hasher, pieces: Sequence[Callable[[], memoryview]], executor: Executor, untaken: Iterator[int]
) -> None:
    """Feed the pieces; once each leaf has a thread, others may make the next piece while one is hashed."""
    ahead: _Task[memoryview] | None = None
    for make, following in zip_longest(pieces, pieces[1:]):
        piece = make() if ahead is None else ahead.result()
        ahead = _Task(following, executor) if following and not length_hint(untaken) else None
        hasher.update(piece)
