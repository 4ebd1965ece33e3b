"""The part of the reference node's command line that the benchmarks type, over CSV files and without a chain.

`python reference_stand_in.py COMMAND …`; what is not known ends with 2, as there.
"""

from __future__ import annotations

import csv
import glob
import json
import sys
from pathlib import Path
from typing import Any

import yaml

STATE = Path(".kamu") / "state.json"


def main(args: list[str]) -> int:
    match args:
        case ["init"]:
            STATE.parent.mkdir()
            _write({})
        case ["add", path]:
            for manifest in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")):
                content = manifest["content"]
                (source,) = (
                    e for e in content["metadata"] if e["kind"] in ("AddPushSource", "SetPollingSource")
                )
                _write(_read() | {content["name"]: {"source": source, "rows": {}, "records": 0}})
        case ["ingest", name, *paths]:
            _merge(name, "AddPushSource", paths)
        case ["pull", name]:
            fetch = _read()[name]["source"]["fetch"]
            assert (fetch["kind"], fetch["order"]) == ("FilesGlob", "ByName")
            _merge(name, "SetPollingSource", sorted(glob.glob(fetch["path"])))  # noqa: PTH207 - as a user wrote it
        case ["list", "-o", "json"]:
            rows = [{"Name": n, "Kind": "Root", "Records": d["records"]} for n, d in _read().items()]
            print(json.dumps(rows))
        case ["list"] | ["verify" | "log" | "tail", _]:
            print(*[_read()[name]["records"] for name in args[1:]])
        case _:
            print(f"error: unexpected argument in {args}", file=sys.stderr)
            return 2
    return 0


def _read() -> dict[str, Any]:
    return json.loads(STATE.read_text(encoding="utf-8"))


def _write(datasets: dict[str, Any]) -> None:
    STATE.write_text(json.dumps(datasets), encoding="utf-8")


def _merge(name: str, kind: str, paths: list[str]) -> None:
    datasets = _read()
    dataset = datasets[name]
    assert dataset["source"]["kind"] == kind
    for path in paths:
        with Path(path).open(encoding="utf-8", newline="") as stream:
            _, *rows = csv.reader(stream)
        new, old = {row[0]: row for row in rows}, dataset["rows"]
        if dataset["source"]["merge"]["kind"] == "Append":
            dataset["records"] += len(rows)
            continue
        both = new.keys() & old.keys()
        changed = sum(new[key] != old[key] for key in both)
        dataset["records"] += len(new) + len(old) - 2 * len(both) + 2 * changed
        dataset["rows"] = new
    _write(datasets)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
