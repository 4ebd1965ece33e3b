"""Pushing to nodes: what is said and sent, and what is made of answers; the node's head alone decides."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    NameCollisionError,
    OdfchainError,
    RefConflictError,
    TransferError,
)
from odfchain.limits import SMART
from odfchain.odf.names import DatasetAlias
from odfchain.storage.local import HEAD
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import SignedFile
from odfchain.storage.store import RawBlock
from odfchain.transfer.block_batch import packed, unpacked
from odfchain.transfer.node_store import WebSocketChannel
from odfchain.transfer.open_peer import PeerOptions, open_writable
from odfchain.transfer.pushing import PushOutcome, plan_dataset_push, push_dataset
from odfchain.transfer.smart_messages import PushedBlocks, message_of, text_of
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import PushOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.node_stand_in import Answer, Node, node, uploads
from tests.kit.scenario import chain_of, install
from tests.kit.servers import Clock, Meter
from tests.kit.smart_cases import rows

OK = {"Ok": {}}
LABELS = ["seed", "schema", "d1", "x", "d2"]


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    workspace = WorkspaceFiles.init(tmp_path)
    install(workspace, "cities", chain_of(LABELS))
    return workspace.dataset(DatasetAlias.parse("cities"))


def names_of(dataset: DatasetFiles) -> set[str]:
    return {str(name) for store in (dataset.data, dataset.checkpoints) for name in store.names()}


class Target:
    """A node as it should be, until it is told otherwise; `files` is what GET shows."""

    def __init__(self, head: str | None = None) -> None:
        self.files: dict[str, bytes] = {} if head is None else {"/cities/refs/head": head.encode()}
        self.node: Node | None = None
        self.uploads = ""
        self.newest = ""
        self.skipped: set[str] = set()
        self.commits = True
        self.busy: list[dict[str, str]] = []
        self.date: str | None = None
        self.storage_date: str | None = None

    @property
    def head(self) -> str:
        return self.files["/cities/refs/head"].decode()

    def begin(self, asked: Any) -> Any:
        return OK

    def blocks(self, asked: Any) -> Any:
        batch = message_of(PushedBlocks, json.dumps(asked)).new_blocks
        for block in unpacked(batch):
            self.files[f"/cities/blocks/{block.hash}"] = block.data
            self.newest = str(block.hash)
        return OK

    def objects(self, asked: Any) -> Any:
        return {"Ok": {"object_transfer_strategies": [self.strategy(f) for f in asked["object_files"]]}}

    def forbidden(self, asked: Any, expires_at: str | None) -> Any:
        """Addresses that are refused."""
        answer = self.objects(asked)
        for each in answer["Ok"]["object_transfer_strategies"]:
            given = each["upload_to"]
            given |= {"url": given["url"].replace("/cities/", "/forbidden/"), "expires_at": expires_at}
        return answer

    def strategy(self, file: Any) -> Any:
        if file["physical_hash"] in self.skipped:
            return {"object_file": file, "push_strategy": "SkipUpload", "upload_to": None}
        part = "data" if file["object_type"] == "DataSlice" else "checkpoints"
        url = f"{self.uploads}cities/{part}/{file['physical_hash']}"
        given = {"url": url, "headers": [{"name": "X-Given", "value": "1"}], "expires_at": None}
        return {"object_file": file, "push_strategy": "HttpUpload", "upload_to": given}

    def complete(self, asked: Any) -> Any:
        return None

    def commit(self, asked: Any) -> Any:
        if self.commits:
            self.files["/cities/refs/head"] = self.newest.encode()
        return {}

    def answers(self) -> list[Answer]:
        return [self.begin, self.blocks, self.objects, self.complete, self.commit]


def push(
    dataset: DatasetFiles,
    target: Target,
    *answers: Answer,
    bearer: str | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> tuple[Node, PushOutcome]:
    with (
        node(target.files, *(answers or target.answers())) as found,
        uploads(target.files, found.asked, target.storage_date) as at,
    ):
        found.date, found.busy = target.date, target.busy
        target.node, target.uploads = found, at
        url = PeerUrl.parse(f"odf+{found.url}cities")
        chosen = PeerOptions(token=bearer, allow_private_redirects=True)
        with contextlib.closing(open_writable(url, chosen)) as peer:
            peer.transport.timing = clock.timing if clock else peer.transport.timing
            outcome = push_dataset(dataset, peer, PushOptions(**options))
    return found, outcome


@pytest.mark.parametrize(
    ("busy", "waits"), [([{}], [2]), ([{"Retry-After": "5"}, {}], [5, 4]), ([{}] * 3, [2, 4, 8])]
)
def test_a_busy_node_is_left_alone_as_long_as_it_says(
    busy: list[dict[str, str]], waits: list[float], dataset: DatasetFiles
) -> None:
    target, clock, meter = Target(), Clock(), Meter()
    target.busy = list(busy)
    push(dataset, target, clock=clock, progress=meter)
    assert target.head == str(dataset.chain.head())
    assert all(least <= w <= 1.5 * least for w, least in zip(clock.waits, waits, strict=True))
    assert [note.partition(": the node is busy; it is asked again in ")[1] != "" for note in meter.notes] == [
        True
    ] * len(waits)


@pytest.mark.parametrize(("busy", "waits"), [({}, 3), ({"Retry-After": "86400"}, 0)])
def test_a_node_that_stays_busy_is_given_up(busy: dict[str, str], waits: int, dataset: DatasetFiles) -> None:
    target, clock = Target(), Clock()
    target.busy = [busy] * 9
    with pytest.raises(TransferError, match="status 503") as refused:
        push(dataset, target, clock=clock)
    assert "again" in refused.value.hint
    assert len(clock.waits) == waits


def test_a_node_that_is_gone_when_the_signature_is_offered_is_no_error() -> None:
    with contextlib.closing(open_writable(PeerUrl.parse("odf+http://127.0.0.1:9/cities"))) as peer:
        peer.put_signed(SignedFile.HEAD, b"a.b.c")


def test_a_node_with_all_its_turns_taken_is_busy(dataset: DatasetFiles) -> None:
    target, clock, turns = Target(), Clock(), iter([(1011, "Busy.")])

    def begin(asked: Any) -> Any:
        return next(turns, OK)

    push(dataset, target, begin, *target.answers()[1:], clock=clock)
    assert (target.head, len(clock.waits)) == (str(dataset.chain.head()), 1)


def test_a_new_dataset_is_there_with_all_its_files(dataset: DatasetFiles) -> None:
    target = Target()
    found, outcome = push(dataset, target, bearer="TOKEN")
    head = str(dataset.chain.head())
    assert outcome.num_blocks == len(LABELS)
    assert target.head == head
    for folder, store in (("data", dataset.data), ("checkpoints", dataset.checkpoints)):
        for name in store.names():
            assert target.files[f"/cities/{folder}/{name}"] == store.verified_path(name).read_bytes()
    first, counts = found.said[0], found.said[0]["transfer_plan"]
    assert (first["current_head"], first["visibility_for_created_dataset"]) == (None, "Private")
    assert (counts["num_objects"], counts["num_records"]) == (4, 20)
    assert found.said[-2:] == [{"details": "Complete"}, {}]
    assert found.ended == [(1000, "Client push flow succeeded")]
    upgrade = next(fields for path, fields in found.asked if path == "/cities/push")
    assert (upgrade["x-odf-smtp-version"], upgrade["authorization"]) == ("1", "Bearer TOKEN")
    for path, fields in found.asked:
        if path.startswith(("/cities/data", "/cities/checkpoints")):
            assert "authorization" not in fields, "the node says which headers its addresses want"
            assert (fields["x-given"], fields["content-type"]) == ("1", "application/octet-stream")


def test_nothing_new_needs_no_connection(dataset: DatasetFiles) -> None:
    target = Target(str(dataset.chain.head()))
    found, outcome = push(dataset, target)
    assert outcome.up_to_date
    assert [path for path, _ in found.asked] == ["/cities/refs/head"]


def test_what_the_node_has_is_not_sent_and_no_objects_are_complete_too(dataset: DatasetFiles) -> None:
    target = Target()
    target.skipped = names_of(dataset)
    found, _ = push(dataset, target, public=True)
    assert not any(path.startswith("/cities/data") for path, _ in found.asked)
    assert {"details": "Complete"} in found.said
    assert found.said[0]["visibility_for_created_dataset"] == "Public"


def test_a_ping_while_objects_are_sent_is_answered_and_a_late_one_is_no_commit(dataset: DatasetFiles) -> None:
    target = Target()
    objects_and_ping: Answer = lambda asked: [target.objects(asked), {}]  # noqa: E731 - a table of answers
    commit_after_ping: Answer = lambda asked: [{}, target.commit(asked)]  # noqa: E731 - as above
    answers = [target.begin, target.blocks, objects_and_ping, target.complete, target.complete]
    found, _ = push(dataset, target, *answers, commit_after_ping)
    assert "Running" in found.said[3]["details"]
    assert target.head == str(dataset.chain.head())


def test_a_node_that_confirms_and_does_not_commit_is_asked_once_more(dataset: DatasetFiles) -> None:
    target = Target()
    target.commits = False
    with pytest.raises(TransferError, match="reported success") as refused:
        push(dataset, target)
    (expected,) = rows(20)
    assert refused.value.exit_code == expected["exit"]
    assert [path for path, _ in target.node.asked].count("/cities/push") == expected["conversations"]


def test_a_connection_that_dies_after_the_commit_is_a_success(dataset: DatasetFiles) -> None:
    target = Target()

    def commit_and_die(asked: Any) -> Any:
        target.commit(asked)
        return "no JSON"

    _, outcome = push(dataset, target, *target.answers()[:-1], commit_and_die)
    assert outcome.num_blocks == len(LABELS)


@pytest.mark.parametrize(
    ("at", "reason", "error"),
    [
        (0, {"InvalidHead": {"actual_head": None, "expected_head": None}}, RefConflictError),
        (2, {"RefCollision": {"dataset_id": "did:odf:fed01"}}, NameCollisionError),
        (2, {"NameCollision": {"dataset_alias": "towns"}}, NameCollisionError),
        (1, {"SeedBlockOverwriteRestricted": {}}, TransferError),
        (0, {"Internal": {"phase": {"Push": "InitialRequest"}, "error_message": "full"}}, TransferError),
    ],
)
@pytest.mark.parametrize("closes", [False, True])
def test_a_refusal_is_told_by_its_reason(
    at: int, reason: Any, error: type[OdfchainError], closes: bool, dataset: DatasetFiles
) -> None:
    target, said = Target(), {"Err": reason}
    last = (1011, json.dumps(said, separators=(",", ":"))) if closes else said
    with pytest.raises(error):
        push(dataset, target, *target.answers()[:at], lambda _: last)
    assert "/cities/refs/head" not in target.files


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("token", [None, "revoked"])
def test_a_node_that_wants_a_token_says_so(status: int, token: str | None, dataset: DatasetFiles) -> None:
    with node({}, status=status) as found:
        peer = open_writable(PeerUrl.parse(f"odf+{found.url}cities"), PeerOptions(token=token))
        with contextlib.closing(peer), pytest.raises(AccessError, match=str(status)) as refused:
            push_dataset(dataset, peer)
    assert ("the token given is not valid" in str(refused.value)) == (token is not None and status == 401)


def test_an_object_that_was_not_named_is_not_sent(dataset: DatasetFiles) -> None:
    target = Target()

    def other(asked: Any) -> Any:
        files = [{**f, "physical_hash": "f1620" + "00" * 32} for f in asked["object_files"][:1]]
        return {"Ok": {"object_transfer_strategies": [target.strategy(f) for f in files]}}

    with pytest.raises(CorruptedPeerError, match="not named"):
        push(dataset, target, target.begin, target.blocks, other)


@pytest.mark.parametrize(("expires_at", "conversations"), [("2999-01-01T00:00:00Z", 2), (None, 1)])
def test_an_address_that_is_refused_is_asked_for_again_if_it_was_for_a_time(
    expires_at: str | None, conversations: int, dataset: DatasetFiles
) -> None:
    target, turns = Target(), list[Any]()

    def refused_at_first(asked: Any) -> Any:
        turns.append(asked)
        return target.forbidden(asked, expires_at) if len(turns) == 1 else target.objects(asked)

    answers = [target.begin, target.blocks, refused_at_first, target.complete, target.commit]
    if conversations == 2:
        push(dataset, target, *answers)
        assert target.head == str(dataset.chain.head())
    else:
        with pytest.raises(AccessError, match="403"):
            push(dataset, target, *answers)
    assert len(turns) == conversations


@pytest.mark.parametrize(
    ("storage", "hint"),
    [
        ("Wed, 21 Oct 2015 08:28:10 GMT", "the clocks of the node and of the storage are 60 minutes apart"),
        ("Wed, 21 Oct 2015 06:27:50 GMT", "the clocks of the node and of the storage are 60 minutes apart"),
        ("Wed, 21 Oct 2015 07:28:10 GMT", None),
    ],
)
@pytest.mark.parametrize("expires_at", ["2015-10-21T08:28:00Z", None])
def test_a_storage_whose_clock_is_another_one_is_named(
    storage: str, hint: str | None, expires_at: str | None, dataset: DatasetFiles
) -> None:
    target = Target()
    target.date, target.storage_date = "Wed, 21 Oct 2015 07:28:00 GMT", storage
    answers = [target.begin, target.blocks, lambda asked: target.forbidden(asked, expires_at)]
    with pytest.raises(AccessError, match="HTTP status 403") as found:
        push(dataset, target, *answers)
    assert (found.value.hint or "").startswith(hint or "")
    assert bool(found.value.hint) == bool(hint)


def test_objects_go_where_a_redirect_might_lead(dataset: DatasetFiles) -> None:
    target = Target()
    target.uploads = "http://169.254.169.254/"
    with node(target.files, *target.answers()) as found:
        peer = open_writable(PeerUrl.parse(f"odf+{found.url}cities"))
        with contextlib.closing(peer), pytest.raises(TransferError, match="private network address"):
            push_dataset(dataset, peer)


def test_long_chains_go_in_several_pushes_and_many_objects_in_pages(
    dataset: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odfchain.transfer.node_store.SMART", replace(SMART, blocks=3, items=1))
    target = Target()
    one = [target.begin, target.blocks, target.objects, target.complete, target.objects, target.complete]
    found, _ = push(dataset, target, *one, target.commit)
    heads = [said["current_head"] for said in found.said if "current_head" in said]
    assert heads == [None, str(dataset.chain.hashes(dataset.chain.head())[2])]
    assert [said["is_truncated"] for said in found.said if "is_truncated" in said] == [True, False] * 2
    assert target.head == str(dataset.chain.head())


@pytest.mark.parametrize("bound", ["_MESSAGE_BYTES", "_BLOCK_BYTES"])
def test_large_blocks_go_in_several_pushes(
    bound: str, dataset: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [RawBlock(name, dataset.chain.get_bytes(name)) for name, _ in dataset.chain.walk()]
    whole = {
        "_BLOCK_BYTES": sum(len(block.data) for block in blocks),
        "_MESSAGE_BYTES": len(text_of(PushedBlocks(new_blocks=packed(blocks)))) + 300,
    }
    monkeypatch.setattr(f"odfchain.transfer.node_store.{bound}", whole[bound] - 1)
    target = Target()
    found, _ = push(dataset, target, *target.answers())
    counts = [said["transfer_plan"]["num_blocks"] for said in found.said if "transfer_plan" in said]
    assert sum(counts) == len(LABELS)
    assert len(counts) > 1
    heads = [said["current_head"] for said in found.said if "current_head" in said]
    hashes = dataset.chain.hashes(dataset.chain.head())
    assert heads == [None, *(str(hashes[sum(counts[:n]) - 1]) for n in range(1, len(counts)))]
    assert target.head == str(dataset.chain.head())


def test_a_node_has_time_for_its_work(dataset: DatasetFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks and bytes; for words it has half a minute."""
    waited, receive = list[float](), WebSocketChannel.receive

    def noted(channel: WebSocketChannel, seconds: float) -> str | None:
        waited.append(seconds)
        return receive(channel, seconds)

    monkeypatch.setattr(WebSocketChannel, "receive", noted)
    monkeypatch.setattr("odfchain.transfer.node_store._BLOCKS_PER_SECOND", 0.5)
    target = Target()
    target.skipped = names_of(dataset)
    push(dataset, target)
    assert [round(seconds) for seconds in waited] == [30, 40, 40, 40]


def test_a_plan_is_made_without_a_connection(dataset: DatasetFiles) -> None:
    with node({}) as found:
        peer = open_writable(PeerUrl.parse(f"odf+{found.url}cities"))
        with contextlib.closing(peer):
            assert len(plan_dataset_push(dataset, peer).blocks) == len(LABELS)
    assert [path for path, _ in found.asked] == [f"/cities/refs/{HEAD}"]
