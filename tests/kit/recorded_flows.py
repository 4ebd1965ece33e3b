"""The recorded flows of the smart protocol, and how what is said now is compared with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odfchain.transfer.block_batch import unpacked
from odfchain.transfer.smart_messages import PulledBlocks, message_of

ROOT = Path("fixtures/conformance")


@dataclass(frozen=True)
class Frame:
    """One message of a flow, or its end."""

    by_client: bool
    document: Any = None
    close: tuple[int, str] | None = None

    @property
    def text(self) -> str:
        return json.dumps(self.document)


@dataclass(frozen=True)
class Recorded:
    name: str
    frames: list[Frame] = field(repr=False)

    @property
    def is_push(self) -> bool:
        return "push" in self.name

    def of(self, *, client: bool) -> list[Frame]:
        return [frame for frame in self.frames if frame.by_client is client]


def flows() -> Iterator[Recorded]:
    sequences = json.loads((ROOT / "smart_sequences.json").read_text())
    for name, steps in sequences.items():
        if name.startswith(("pull", "push")):
            frames = []
            for step in steps:
                if step["kind"] == "ws":
                    frames.append(Frame(step["who"] == "C", step["json"]))
                elif step["kind"] == "close":
                    frames.append(Frame(step["who"] == "C", close=(step["code"], step.get("reason", ""))))
            yield Recorded(name, frames)
    for flow in json.loads((ROOT / "smart_live.json").read_text())["flows"]:
        frames = [
            Frame(m["from"] == "client", m.get("json"), tuple(m["close"]) if "close" in m else None)
            for m in flow.get("messages", ())
        ]
        if frames:
            yield Recorded(f"live {flow['id']}", frames)


FLOWS = list(flows())


def same(document: Any, recorded: Any) -> None:
    """Equal, whatever the order of members; of batches the blocks are compared, not how they are pressed."""

    def without_bytes(tree: Any) -> Any:
        if isinstance(tree, dict) and "payload" in tree:
            batch = message_of(PulledBlocks, json.dumps({"blocks": tree})).blocks
            return {**tree, "payload": unpacked(batch)}
        if isinstance(tree, dict):
            return {name: without_bytes(value) for name, value in tree.items()}
        return [without_bytes(item) for item in tree] if isinstance(tree, list) else tree

    assert without_bytes(document) == without_bytes(recorded)
