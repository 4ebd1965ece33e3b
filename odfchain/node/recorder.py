"""The process that records what is sent to a node: `python -m odfchain.node.recorder FOLDER`.

It reads a line of JSON for each run, and writes one when the run has ended. A Spark session is kept, so that
a run costs no start; memory and crashes are its own. When the node has ended it ends, too, after the commits
that are going on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from odfchain.errors import EngineError, OdfchainError
from odfchain.ingest.request_keys import RequestKey

RUNS = 2
"""Runs at the same time [count], each of another dataset."""
NAME = "the body"
"""What messages call an input."""
_RETRIES = 10


def recorded(workspace: Any, asked: dict[str, Any]) -> str:
    """Ingest the files of one run; the head after it. Errors as of `Dataset.ingest`, and `KeyReusedError`."""
    from odfchain.api.branching import check_head_is_ours
    from odfchain.workspace.options import FileOptions

    dataset, paths = workspace[asked["dataset"]], [Path(each["path"]) for each in asked["files"]]
    check_head_is_ours(workspace, dataset._files, "ingest")  # noqa: SLF001 - it is the ingestion of files
    given = {name: asked[name] for name in ("source_name", "input_format", "event_time")}
    options = FileOptions(files=paths, **given)
    keys = {n: RequestKey(*each["key"]) for n, each in enumerate(asked["files"]) if each["key"]}
    chosen = dataclasses.replace(
        dataset._ingest_options(options),  # noqa: SLF001
        input_name=NAME,
        keys=keys,
        retries=_RETRIES,
    )
    start = workspace._engines.session  # noqa: SLF001
    return str(dataset._ingest_files(start, chosen, options, paths).head)  # noqa: SLF001


def _outcome(workspace: Any, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"head": recorded(workspace, asked)}
    except OdfchainError as error:
        from odfchain.node.visit import status_of

        flag = getattr(error, "flag", None)
        hint = f"only the operator can allow it: odfchain ingest {flag}" if flag else error.hint
        dead = isinstance(error, EngineError)
        return {"status": status_of(error), "message": str(error), "hint": hint, "dead": dead}
    except Exception as error:  # noqa: BLE001 - every end is an answer
        return {"status": 500, "message": f"{type(error).__name__}: {error}", "hint": None}


def serve(folder: Path, asked: TextIO, answers: TextIO) -> None:
    """Record what is asked for until there is nothing more to come."""
    from odfchain.api.workspace import Workspace

    saying = threading.Lock()
    with Workspace.open(folder) as workspace, ThreadPoolExecutor(RUNS) as runs:
        workspace._engines.may_stay = True  # noqa: SLF001 - as a command

        def run(line: str) -> None:
            request = json.loads(line)
            answer = _outcome(workspace, request) | {"run": request["run"]}
            # a node that was killed does not hear it
            with saying, contextlib.suppress(BrokenPipeError):
                print(json.dumps(answer), file=answers, flush=True)

        for line in asked:
            runs.submit(run, line)


def main() -> None:
    """Record for the node that has started this."""
    from odfchain.startup import start_lean

    # the node says when it is to end
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    start_lean()
    serve(Path(sys.argv[1]), sys.stdin, answers)


if __name__ == "__main__":
    main()
