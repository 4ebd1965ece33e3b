"""Rows on their way out of a process that is not trusted: cut into streams of Arrow there, checked here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odfchain.errors import CodecError, EngineError
from odfchain.lazy import pa
from odfchain.limits import AskedLimits
from odfchain.odf.flatbuffers import FlatBuffer, TableView
from odfchain.text import one_line


def parts_of(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most so many bytes, or of one row."""
    if batch.nbytes <= most or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from parts_of(batch.slice(0, half), most)
    yield from parts_of(batch.slice(half), most)


def stream_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """These batches as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def checked_rows(
    body: bytes, limits: AskedLimits, *, every: bool = False
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The rows of a stream of untrusted bytes, whose values are what their types say.

    `every` allows any number of rows.
    """
    from odfchain.slices.footers import leaves

    try:
        # a compressed buffer can grow far beyond the bytes that were read
        for message in pa.ipc.MessageReader.open_stream(body):
            _check_uncompressed(message)
        with pa.ipc.open_stream(body) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            if not every and sum(batch.num_rows for batch in batches) > limits.rows:
                raise EngineError("the process that answers queries sent more rows than it may")
            list(leaves(stream.schema))  # names, too, may be no text
            return stream.schema, batches
    except (pa.ArrowException, CodecError, OSError, ValueError) as error:
        raise EngineError(f"the query process sent an unreadable answer: {one_line(str(error))}") from None


def _check_uncompressed(message: pa.Message) -> None:
    buffer = FlatBuffer(bytes(message.metadata))
    header = _member(buffer, buffer.table(buffer.root_position(), 0), 2)
    if header is not None and message.type == "dictionary":
        header = _member(buffer, header, 1)
    # `BodyCompression` of RecordBatch (Arrow format, `Message.fbs`)
    if header is not None and message.type != "schema" and header.field(3, 4):
        raise ValueError("it is compressed")


def _member(buffer: FlatBuffer, table: TableView, slot: int) -> TableView | None:
    position = table.field(slot, 4)
    return buffer.table(buffer.follow(position), 1) if position else None
