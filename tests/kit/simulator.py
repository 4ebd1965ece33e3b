"""A small engine that is real enough: it copies the records of its inputs and counts them.

Runs in the process of a test, or in one of its own: `python -m tests.kit.simulator --socket PATH`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.cli.context import ended_by_sigterm
from odfchain.cli.engine import serve_until_ended
from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest, TransformRequestInput
from odfchain.odf.events import OffsetInterval
from odfchain.odf.schema import DataSchema
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.transform.engine_protocol import EngineServer
from odfchain.transform.engines import Executed

PATIENCE = 30


class SimulatedEngine:
    """Copies records; fails with `failure` if that is given, and not before `gate` is open.

    While it waits it reports its progress, unless it is `stubborn`.
    """

    def __init__(
        self,
        *,
        failure: BaseException | None = None,
        gate: threading.Event | None = None,
        stubborn: bool = False,
    ) -> None:
        self._failure = failure
        self._gate = gate
        self._stubborn = stubborn
        self.started = threading.Event()
        self.ended = threading.Event()
        self.requests: list[Any] = []
        self.raised: list[BaseException] = []

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        with self._running(request, progress):
            return self._execute(request)

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        with self._running(request, progress):
            table = pa.concat_tables([pq.read_table(path) for path in request.input_data_paths])
            pq.write_table(table, request.output_data_path)
            return table.num_rows

    @contextlib.contextmanager
    def _running(self, request: Any, progress: Progress) -> Iterator[None]:
        self.requests.append(request)
        self.started.set()
        try:
            self._wait(progress)
            yield
        except BaseException as error:
            self.raised.append(error)
            raise
        finally:
            self.ended.set()

    def _wait(self, progress: Progress) -> None:
        if self._gate is not None and self._stubborn:
            assert self._gate.wait(PATIENCE)
        elif self._gate is not None:
            while not self._gate.wait(0.005):
                progress.advance(0)
        if self._failure is not None:
            raise self._failure

    def _execute(self, request: TransformRequest) -> Executed:
        table = pa.concat_tables([_records(item) for item in request.query_inputs])
        rows, vocab = table.num_rows, request.vocab
        system_time = pa.scalar(request.system_time.epoch_ns // 1_000_000, pa.timestamp("ms", "UTC"))
        offsets = pa.array(range(request.next_offset, request.next_offset + rows), pa.uint64())
        columns = {
            vocab.offset_column: offsets,
            vocab.operation_type_column: pa.array([0] * rows, pa.uint8()),
            vocab.system_time_column: pa.repeat(system_time, rows),
        } | {name: table[name] for name in table.column_names}
        pq.write_table(pa.table(columns), request.new_data_path)
        before = {"count": 0, "watermark": None}
        if request.prev_checkpoint_path is not None:
            before = json.loads(Path(request.prev_checkpoint_path).read_text())
        watermark = max(
            [before["watermark"] or 0]
            + [w.event_time.epoch_ns for item in request.query_inputs for w in item.explicit_watermarks]
        )
        state = {"count": before["count"] + rows, "watermark": watermark or None}
        Path(request.new_checkpoint_path).write_text(json.dumps(state))
        last = request.next_offset + rows - 1
        return Executed(
            offset_interval=OffsetInterval(start=request.next_offset, end=last) if rows else None,
            watermark=Timestamp(watermark) if watermark else None,
        )


class CancellableEngine(SimulatedEngine):
    """Reports nothing while it waits, but can be told to stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        super().__init__(gate=self._stop, stubborn=True, failure=RuntimeError("told to stop"))
        self.cancelled: list[Any] = []

    def cancel(self, request: Any) -> None:
        self.cancelled.append(request)
        self._stop.set()


def _records(item: TransformRequestInput) -> pa.Table:
    """Records of an input's interval without its system columns."""
    system = item.vocab.columns[:3]
    if not item.data_paths:
        table = pq.read_schema(item.schema_file).empty_table()
    else:
        table = pa.concat_tables([pq.read_table(path) for path in item.data_paths])
    if item.offset_interval is not None:
        offsets = table[system[0]].to_pylist()
        inside = [item.offset_interval.start <= o <= item.offset_interval.end for o in offsets]
        table = table.filter(pa.array(inside, pa.bool_()))
    else:
        table = table.slice(0, 0)
    return table.drop_columns(list(system))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path)
    parser.add_argument("--block", action="store_true", help="never finish a call")
    args = parser.parse_args()
    engine = SimulatedEngine(gate=threading.Event() if args.block else None)
    try:
        with (
            ended_by_sigterm(),
            EngineServer(engine, port=0, socket=args.socket, progress_interval=0.01) as server,
        ):
            serve_until_ended(server, print_address=True, quiet=False)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
