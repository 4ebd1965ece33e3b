"""The conformance client: three verbs with which one suite drives any implementation of pulling.

    python -m tests.kit.conformance_client init DIR        make a workspace in DIR
    python -m tests.kit.conformance_client pull DIR URL    pull the dataset at URL; here it is called `dataset`
    python -m tests.kit.conformance_client verify DIR      check everything that is visible in the workspace

Exit status 0: done, or clean. 1: refused, failed, or not clean. Nothing else; standard error is free text.
Which program the suite drives is said by `ODFCHAIN_CONFORMANCE_CLIENT`. Source: RFC-022.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from odfchain.errors import OdfchainError, UsageError
from odfchain.odf.names import DatasetAlias
from odfchain.storage.locations import PeerUrl
from odfchain.text import printable
from odfchain.transfer.open_peer import open_peer
from odfchain.transfer.pulling import pull_dataset
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

DATASET = "dataset"
"""The name of every pulled dataset."""

USAGE = "usage: init DIR | pull DIR URL | verify DIR"


def main(args: Sequence[str]) -> int:
    """Do what the arguments say; 0 when it is done, 1 when it is not, and then standard error says why."""
    try:
        return _run(args)
    except OdfchainError as error:
        _say(str(error))
        if error.hint:
            _say(f"hint: {error.hint}")
    except KeyboardInterrupt:
        _say("interrupted")
    return 1


def _run(args: Sequence[str]) -> int:
    match args:
        case ["init", folder]:
            WorkspaceFiles.init(Path(folder))
        case ["pull", folder, url]:
            _pull(Path(folder), url)
        case ["verify", folder]:
            faults = list(_faults(WorkspaceFiles.find(Path(folder))))
            for fault in faults:
                _say(fault)
            return 1 if faults else 0
        case _:
            raise UsageError(USAGE)
    return 0


def _pull(folder: Path, url: str) -> None:
    peer = open_peer(PeerUrl.parse(url))
    try:
        pull_dataset(WorkspaceFiles.find(folder), peer, DatasetAlias.parse(DATASET))
    finally:
        peer.close()


def _faults(workspace: WorkspaceFiles) -> Iterator[str]:
    from odfchain.audit.dataset_checks import examine

    for folder in sorted((workspace.root / "datasets").iterdir()):
        try:
            report = examine(DatasetFiles.open(folder)).report
        except OdfchainError as error:
            # a foreign folder among the datasets is a fault as well
            yield f"{folder}: {error}"
            continue
        yield from (f"{fault.file}: {fault.message}" for fault in report.faults)
        yield from (f"{folder}: not checked: {left.message}" for left in report.unchecked)


def _say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
