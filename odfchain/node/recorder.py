"""The process that records what is sent to a node: `python -m odfchain.node.recorder FOLDER`.

A line of JSON asks for a run, and one is the outcome. A Spark session is kept, so that a run costs no start;
memory and crashes are its own. It ends with the node, after the commit that is going on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from odfchain.errors import EngineError, OdfchainError
from odfchain.ingest.request_keys import RequestKey

NAME = "the body"
"""What messages call an input."""
_RETRIES = 10


def recorded(workspace: Any, asked: dict[str, Any]) -> str:
    """Ingest the files of one run; the head after it. Errors as of `Dataset.ingest`, and `KeyReusedError`."""
    from odfchain.api.branching import check_head_is_ours
    from odfchain.workspace.options import FileOptions

    dataset, paths = workspace[asked["dataset"]], [Path(path) for path in asked["files"]]
    check_head_is_ours(workspace, dataset._files, "ingest")  # noqa: SLF001 - it is the ingestion of files
    keys = {index: RequestKey(*key) for index, key in enumerate(asked["keys"]) if key}
    options = FileOptions(files=paths, **asked["options"])
    made = dataset._ingest_options(options)  # noqa: SLF001
    chosen = dataclasses.replace(made, input_name=NAME, keys=keys, retries=_RETRIES)
    start = workspace._engines.session  # noqa: SLF001
    return str(dataset._ingest_files(start, chosen, options, paths).head)  # noqa: SLF001


def outcome(workspace: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The `head` after a run; else `status`, `message` and `hint` of the answer, `dead` without a session."""
    try:
        return {"head": recorded(workspace, asked)}
    except OdfchainError as error:
        from odfchain.node.visit import status_of

        flag = getattr(error, "flag", None)
        hint = f"only the operator can allow it: odfchain ingest {flag}" if flag else error.hint
        status, dead = status_of(error), isinstance(error, EngineError)
        return {"status": status, "message": str(error), "hint": hint, "dead": dead}
    except Exception as error:  # noqa: BLE001 - every end is an answer
        return {"status": 500, "message": f"{type(error).__name__}: {error}", "hint": None, "dead": True}


def main() -> None:
    """Record for the node that has started this, until it says nothing more."""
    from odfchain.api.workspace import Workspace

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w") as answers, Workspace.open(sys.argv[1]) as workspace:
        os.dup2(2, 1)
        workspace._engines.may_stay = True  # noqa: SLF001 - as that of a command
        for line in sys.stdin:
            print(json.dumps(outcome(workspace, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
