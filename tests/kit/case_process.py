"""Executes step K of the shared cases that have several in a process of its own, or all steps of all cases.

`python -m tests.kit.case_process FOLDER --master local[1] [--step K] [--every N]`: the folder holds what earlier steps
left, one folder for each case; a file `answers-K.json` with the hashes is left for each step.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa

from odfchain.odf.engine_messages import TransformRequest
from odfchain.odf.physical_hash import hash_file
from odfchain.progress import SILENT
from odfchain.slices.reader import hash_parquet
from odfchain.spark.session import SparkEngine
from odfchain.transform.engines import TransformEngine
from odfchain.transform.spark_engine import SparkTransformEngine
from tests.kit.transform_cases import SIGNED, Case, all_cases

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"


def runnable(every: int = 1) -> list[Case]:
    """The cases that bring rows, or every n-th of them: those to be refused have nothing to compare."""
    return [case for case in all_cases() if not any(case.fails(n) for n in range(case.steps))][::every]


def hashes_of_step(
    engine: TransformEngine,
    step: int,
    folder: Path,
    layout: tuple[pa.DataType, ...],
    *,
    least: int = 1,
    every: int = 1,
) -> dict[str, list[str]]:
    """Execute a step of the cases with at least so many; logical hash and checkpoint's hash by case."""
    found = {}
    for case in runnable(every):
        if step < case.steps >= least:
            own = folder / case.id
            own.mkdir(exist_ok=True)
            request = case.request(step, own, layout)
            engine.execute(request, schema=None, progress=SILENT)
            found[case.id] = hashes_of(request)
    return found


def hashes_of(request: TransformRequest) -> list[str]:
    """Logical hash of the slice that an executed request left, and the hash of the checkpoint's bytes."""
    checkpoint = Path(request.new_checkpoint_path)
    return [
        str(hash_parquet(Path(request.new_data_path))[0]),
        str(hash_file(checkpoint)[0]) if checkpoint.exists() else "no checkpoint",
    ]


def last_step() -> int:
    return max(case.steps for case in runnable()) - 1


def main(folder: Path, master: str, step: int | None, every: int) -> None:
    # a process for each step is one process where there is only one
    steps, least = (range(last_step() + 1), 1) if step is None else (range(step, step + 1), 2)
    conf = {"spark.driver.extraJavaOptions": JAVA}
    spark = SparkEngine(folder / "spark", master=master, driver_memory="512m", conf=conf)
    try:
        engine = SparkTransformEngine(lambda: spark.session)
        for number in steps:
            answers = hashes_of_step(engine, number, folder, SIGNED, least=least, every=every)
            (folder / f"answers-{number}.json").write_text(json.dumps(answers))
    finally:
        spark.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", required=True)
    parser.add_argument("--step", type=int)
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    main(given.folder, given.master, given.step, given.every)
