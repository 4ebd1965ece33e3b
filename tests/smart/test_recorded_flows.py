"""The recorded flows, message for message: as the client, and as the node."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest
from websockets.frames import Close

from odfchain.odf.identity import Multihash
from odfchain.transfer.block_batch import packed, unpacked
from odfchain.transfer.node_pulls import FlowError, PullServing, Serving, Turn
from odfchain.transfer.node_pushes import PushServing
from odfchain.transfer.node_store import PULLED, PUSHED, RefusedError, WebSocketChannel
from odfchain.transfer.smart_messages import (
    NORMAL,
    Accepted,
    Empty,
    Message,
    ObjectFile,
    PulledBlocks,
    PullObjects,
    PullPlan,
    PullRequest,
    PullStrategies,
    PushedBlocks,
    PushObjects,
    PushRequest,
    PushStrategies,
    Refusal,
    UploadProgress,
    document_of,
    message_of,
    refusal_of,
    text_of,
)
from tests.kit.recorded_flows import FLOWS, Recorded, same


class Script(WebSocketChannel):
    """A node that says what was recorded, to a client that must say what was recorded."""

    where = "http://NODE/types/"

    def __init__(self, flow: Recorded) -> None:
        self._frames = deque(flow.frames)
        self.closed: tuple[int, str] | None = None

    def say(self, message: Message) -> None:
        frame = self._frames.popleft()
        assert frame.by_client
        same(json.loads(text_of(message)), frame.document)

    def receive(self, seconds: float) -> str | None:
        if not self._frames or self._frames[0].by_client:
            return None
        frame = self._frames.popleft()
        if frame.close is not None:
            raise self.ended(Close(*frame.close))
        return frame.text

    def close(self, code: int, reason: str) -> None:
        frame = self._frames.popleft()
        assert frame.by_client
        assert code == frame.close[0]
        assert frame.close[1] in ("", reason)
        self.closed = code, reason

    def is_done(self) -> bool:
        """Whether nothing is left but the node's echo of the end."""
        return all(not frame.by_client and frame.close is not None for frame in self._frames)


@pytest.mark.parametrize("flow", [f for f in FLOWS if not f.is_push], ids=lambda f: f.name)
def test_a_client_pulls_as_recorded(flow: Recorded) -> None:
    script, own = Script(flow), flow.of(client=True)
    begin_after = own[0].document["begin_after"]
    lacking = own[2].document["object_files"] if len(own) > 2 and own[2].document else []
    try:
        request = PullRequest(begin_after=Multihash.parse(begin_after) if begin_after else None)
        plan = script.ask(request, PullPlan).transfer_plan
        if plan.num_blocks:
            assert len(unpacked(script.ask(Empty(), PulledBlocks).blocks)) == plan.num_blocks
            if lacking:
                asked = message_of(PullObjects, json.dumps({"object_files": lacking}))
                found = script.ask(asked, PullStrategies).object_transfer_strategies
                assert [s.object_file for s in found] == list(asked.object_files)
        script.close(NORMAL, PULLED)
    except RefusedError as refused:
        assert type(refused.reason).__name__ == next(iter(flow.of(client=False)[0].document["Err"]))
        script.close(1000, "")
    assert script.is_done()


@pytest.mark.parametrize("flow", [f for f in FLOWS if f.is_push], ids=lambda f: f.name)
def test_a_client_pushes_as_recorded(flow: Recorded) -> None:
    script, own = Script(flow), flow.of(client=True)
    try:
        script.ask(message_of(PushRequest, own[0].text), Accepted)
        batch = message_of(PushedBlocks, own[1].text).new_blocks
        script.ask(PushedBlocks(new_blocks=packed(unpacked(batch))), Accepted)
        named = message_of(PushObjects, own[2].text)
        found = script.ask(named, PushStrategies).object_transfer_strategies
        assert [s.object_file for s in found] == list(named.object_files)
        if script.heard(Empty, 0) is not None:
            script.say(UploadProgress(uploaded_objects_count=0))
        script.say(UploadProgress())
        script.ask(Empty(), Empty)
        script.close(NORMAL, PUSHED)
    except RefusedError as refused:
        (last,) = flow.of(client=False)[-1:]
        said = refusal_of(last.close[1] if last.close else last.text)
        assert said == Refusal(refused.reason)
        if last.close is None:
            script.close(1000, "")
    assert script.is_done()


class Dataset(Serving):
    """What is behind the recorded node: it knows what it answered then."""

    def __init__(self, flow: Recorded) -> None:
        self.said = deque(frame for frame in flow.of(client=False) if frame.document != {})
        self.committed = False

    def next(self, kind: type[Message]) -> Any:
        frame = self.said.popleft()
        if frame.close is not None:
            refusal = refusal_of(frame.close[1])
            raise FlowError(refusal)
        return message_of(kind, frame.text)

    def plan(self, request: PullRequest) -> Any:
        return self.next(PullPlan)

    def blocks(self) -> Any:
        return packed(unpacked(self.next(PulledBlocks).blocks))

    def strategies(self, files: tuple[ObjectFile, ...]) -> Any:
        found = self.next(PullStrategies)
        assert [s.object_file for s in found.object_transfer_strategies] == list(files)
        return found

    def begin(self, request: PushRequest) -> Refusal | None:
        found = self.said.popleft().document
        return message_of(Refusal, json.dumps(found)) if "Err" in found else None

    def take_blocks(self, batch: Any) -> Refusal | None:
        assert len(unpacked(batch)) == batch.num_blocks
        assert self.said.popleft().document == {"Ok": {}}
        return None

    def take_objects(self, files: tuple[ObjectFile, ...]) -> Any:
        return self.next(PushStrategies)

    def commit(self) -> None:
        self.committed = True


class PulledDataset(Dataset, PullServing):
    """One that is pulled."""


class PushedDataset(Dataset, PushServing):
    """One that is pushed to."""


@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.name)
def test_a_node_answers_as_recorded(flow: Recorded) -> None:
    dataset = serving = PushedDataset(flow) if flow.is_push else PulledDataset(flow)
    waiting: deque[Turn] = deque()
    for frame in flow.frames:
        if frame.by_client:
            assert not waiting, "the node had something to say"
            if frame.close is None:
                turn = serving.answer(frame.text)
                waiting.extend([turn] if turn.message or turn.closing else [])
        elif frame.document == {} and not waiting:
            assert isinstance(serving, PushServing)
            assert serving.asks_for_progress, "it is asked how far it is only while it uploads"
        elif waiting:
            turn = waiting.popleft()
            if frame.close is not None:
                assert turn.closing.code == frame.close[0]
                assert json.loads(turn.closing.reason) == json.loads(frame.close[1])
            else:
                same(document_of(turn.message), frame.document)
        else:
            assert frame.close is not None, "a message that was not asked for"
    if flow.is_push and not dataset.said:
        assert dataset.committed is ({} in [f.document for f in flow.of(client=False)[-1:]])
