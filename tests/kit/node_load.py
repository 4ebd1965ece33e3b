"""Clients of a node in a few processes, each of many threads: pulls and pushes until each had its share.

python -m tests.kit.node_load PLAN       prints the seconds of each pull and push, and how often the node was busy
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Load:
    """What clients of one process did."""

    pull: list[float] = field(default_factory=list)
    push: list[float] = field(default_factory=list)
    busy: int = 0
    heads: dict[str, list[str]] = field(default_factory=dict)
    """What was acknowledged to pushers, by dataset."""


def _work(plan: dict[str, Any]) -> Load:
    from odfchain.api.workspace import Workspace
    from odfchain.errors import OdfchainError
    from odfchain.odf.names import DatasetAlias
    from odfchain.transfer.open_peer import open_peer
    from odfchain.transfer.pulling import SyncOptions, pull_dataset
    from tests.kit.history_writers import append
    from tests.kit.smart_site import PeerUrl, push

    done, url, token = Load(), plan["url"], plan["token"]
    ours, copies = Workspace.open(plan["ours"]), Workspace.open(plan["copies"])

    def pulls(number: int) -> None:
        name, source = f"copy-{number}", plan["sources"][number % len(plan["sources"])]
        for _ in range(plan["pulls"]):
            began = time.monotonic()
            peer = open_peer(PeerUrl.parse(f"odf+{url}{source}"))
            try:
                pull_dataset(copies._files, peer, DatasetAlias.parse(name), SyncOptions())
            finally:
                peer.close()
            done.pull.append(time.monotonic() - began)

    def pushes(name: str) -> None:
        files = ours[name]._files
        for number in range(plan["pushes"]):
            head = append(files, f"{name}.{number}")
            while True:
                began = time.monotonic()
                try:
                    push(files, f"{url}{name}", token=token, retries=0)
                    break
                except OdfchainError as error:
                    if "Busy" not in str(error):
                        raise
                    done.busy += 1
                    time.sleep(0.2)
            done.push.append(time.monotonic() - began)
            done.heads.setdefault(name, []).append(str(head))

    with ThreadPoolExecutor(plan["pullers"] + len(plan["pushers"])) as pool:
        running = [pool.submit(pushes, name) for name in plan["pushers"]]
        running += [pool.submit(pulls, number) for number in range(plan["pullers"])]
        for each in running:
            each.result()
    return done


def sizes(pid: int) -> dict[str, int]:
    """What a process has: memory [KiB], threads, descriptors, and the sockets among them."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    memory, threads = (int(re.search(rf"{key}:\s*(\d+)", status)[1]) for key in ("VmRSS", "Threads"))
    opened = list[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened.append(str(each.readlink()))
        except FileNotFoundError:
            continue  # it was closed meanwhile
    sockets = sum(each.startswith("socket:") for each in opened)
    return {"memory": memory, "threads": threads, "descriptors": len(opened), "sockets": sockets}


@contextmanager
def sampled(look: Callable[[], dict[str, int]], every: float) -> Iterator[list[dict[str, int]]]:
    """What `look` sees each so many seconds inside."""
    seen, end = [look()], threading.Event()

    def go() -> None:
        while not end.wait(every):
            seen.append(look())

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield seen
    finally:
        end.set()
        thread.join()


if __name__ == "__main__":
    print(json.dumps(vars(_work(json.loads(sys.argv[1])))), flush=True)
    os._exit(0)
