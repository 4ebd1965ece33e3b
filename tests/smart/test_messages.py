"""Messages and batches: whatever is said comes back, and whatever comes is bounded."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import CorruptedPeerError, OdfchainError
from odfchain.limits import LIMITS, SMART
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.storage.store import RawBlock
from odfchain.transfer import smart_messages as m
from odfchain.transfer.block_batch import packed, readable, unpacked
from odfchain.transfer.node_pulls import failed
from odfchain.transfer.smart_messages import document_of, message_of, refusal_of, text_of
from tests.kit.block_batches import bomb, entry, pressed

HASH = hash_bytes(b"a")
hashes = st.binary(max_size=3).map(hash_bytes)
counts = st.integers(0, 1 << 40)
plans = st.builds(
    m.TransferPlan,
    num_blocks=counts, num_objects=counts, num_records=counts,
    bytes_in_raw_blocks=counts, bytes_in_raw_objects=counts,
)  # fmt: skip
files = st.builds(m.ObjectFile, object_type=st.sampled_from(m.ObjectType), physical_hash=hashes, size=counts)
headers = st.builds(m.Header, name=st.text(max_size=9), value=st.text(max_size=9))
urls = st.builds(
    m.TransferUrl,
    url=st.text(max_size=20),
    headers=st.lists(headers, max_size=3).map(tuple),
    expires_at=st.none() | st.just(Timestamp.parse("2026-01-01T01:00:00Z")),
)
batches = st.builds(m.BlocksBatch, num_blocks=counts, payload=st.binary(max_size=50))
reasons = st.one_of(
    st.builds(m.InvalidInterval, head=hashes, tail=hashes),
    st.builds(m.InvalidHead, actual_head=st.none() | hashes, expected_head=st.none() | hashes),
    st.just(m.SeedBlockOverwriteRestricted()),
    st.builds(m.RefCollision, dataset_id=st.text(max_size=81)),
    st.builds(m.NameCollision, dataset_alias=st.text(max_size=200)),
    st.builds(
        m.Internal,
        side=st.sampled_from(["Pull", "Push"]),
        phase=st.sampled_from(m.Phase),
        error_message=st.text(max_size=300),
    ),
)
some = st.lists(files, max_size=3).map(tuple)
everything = st.one_of(
    st.just(m.Empty()),
    st.just(m.Accepted()),
    st.builds(
        m.PullRequest, begin_after=st.none() | hashes, stop_at=st.none() | hashes,
        force_update_if_diverged=st.booleans(),
    ),
    st.builds(m.PullPlan, transfer_plan=plans),
    st.builds(m.PulledBlocks, blocks=batches),
    st.builds(m.PullObjects, object_files=some),
    st.builds(
        m.PullStrategies,
        object_transfer_strategies=st.lists(
            st.builds(
                m.PullStrategy, object_file=files, pull_strategy=st.just(m.PullMethod.HTTP_DOWNLOAD),
                download_from=urls,
            ),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(m.PushRequest, current_head=st.none() | hashes, transfer_plan=plans),
    st.builds(m.PushedBlocks, new_blocks=batches),
    st.builds(m.PushObjects, object_files=some, is_truncated=st.booleans()),
    st.builds(
        m.PushStrategies,
        object_transfer_strategies=st.lists(
            st.builds(
                m.PushStrategy, object_file=files, push_strategy=st.sampled_from(m.PushMethod),
                upload_to=st.none() | urls,
            ),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(m.UploadProgress, uploaded_objects_count=st.none() | counts),
    st.builds(m.Refusal, reasons),
)  # fmt: skip


@given(everything)
def test_a_message_comes_back(message: m.Message) -> None:
    assert message_of(type(message), text_of(message)) == message


@given(reasons)
def test_a_refusal_fits_into_the_end_of_a_connection(reason: m.Reason) -> None:
    closing = failed(m.Refusal(reason)).closing
    assert len(closing.reason.encode()) <= 123
    found = refusal_of(closing.reason)
    if found is None:  # a text that does not fit even when it is cut: hashes do not, texts of ours do
        assert isinstance(reason, (m.InvalidInterval, m.RefCollision))
    else:
        assert type(found.reason) is type(reason)


def batch(**changed: Any) -> str:
    made = document_of(m.PulledBlocks(blocks=packed([])))
    made["blocks"] |= changed
    return json.dumps(made, separators=(",", ":"))


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (m.PulledBlocks, batch(payload=[1, 256]), "blocks.payload: holds a number that is not a byte"),
        (m.PulledBlocks, batch(payload=[-1]), "not a byte"),
        (m.PulledBlocks, batch(payload=["1"]), "not a number"),
        (m.PulledBlocks, batch(payload=[True]), "not a number"),
        (m.PulledBlocks, batch(payload="AAAA"), "not a list of bytes"),
        (m.PulledBlocks, batch(payload=[1, 2]).replace("1,2", "1,,2"), "not JSON"),
        (m.PulledBlocks, batch(payload=[1, 2]).replace("1,2", "1,2,"), "not JSON"),
        (m.PulledBlocks, batch(payload=[1, 2]).replace("1,2", "1,02"), "not JSON"),
        (m.PulledBlocks, batch(payload=[1, 2]).replace("1,2", "1,256"), "not a byte"),
        (m.PulledBlocks, batch(payload=[1, 2]).replace("1,2", "1,1000"), "not a byte"),
        (m.PulledBlocks, batch(payload=[1, 2]).replace("[1,2]", "NaN"), "NaN is not a number"),
        (m.PulledBlocks, batch(payload=[1]).replace('"raw"', "NaN"), "NaN is not a number"),
        (m.PulledBlocks, batch(payload=[1]).replace("[1]", '[1], "payload": [true]'), "not a number"),
        (m.Empty, '{"payload":[1], "a": [[[[[[[[]]]]]]]]}', "8 levels"),
        (m.PulledBlocks, batch(num_blocks=-1), "blocks.num_blocks: -1 is outside"),
        (m.PulledBlocks, batch(num_blocks=True), "num_blocks: must be an integer, not true"),
        (m.PulledBlocks, "{}", "'blocks' is missing"),
        (m.PulledBlocks, "[]", "must be an object, not a list"),
        (m.PulledBlocks, "{", "not JSON"),
        (m.PulledBlocks, '{"blocks": NaN}', "NaN"),
        (m.Empty, "[" * 9 + "]" * 9, "8 levels"),
        (m.Empty, '{"a": "[[[[[[[[[[", "b": [[[[[[[[]]]]]]]]}', "8 levels"),
        (m.PullRequest, '{"begin_after": "f1620aa"}', "begin_after"),
        (m.PullPlan, '{"Err": {"Unheard": {}}}', "unknown reason 'Unheard'"),
        (m.PullPlan, '{"Err": {}}', "not one reason"),
        (m.PullPlan, '{"transfer_plan": {}}', "'Ok' is missing"),
        (m.UploadProgress, '{"details": "Completed"}', "details"),
        (m.PushRequest, '{"current_head": null, "transfer_plan": 1}', "transfer_plan: must be an object"),
    ],
)
def test_what_is_no_such_message_is_refused(kind: type[m.Message], text: str, said: str) -> None:
    with pytest.raises(CorruptedPeerError) as refused:
        message_of(kind, text)
    assert said in str(refused.value)
    assert refused.value.exit_code == 6


@pytest.mark.parametrize("size", [0, 1, 2, 300, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 600_000])
def test_lists_of_numbers_are_those_of_the_json_library(size: int) -> None:
    message = m.PulledBlocks(blocks=m.BlocksBatch(num_blocks=1, payload=random.Random(size).randbytes(size)))
    text = text_of(message)
    assert text == json.dumps(document_of(message), separators=(",", ":"))
    assert message_of(m.PulledBlocks, text) == message
    assert message_of(m.PulledBlocks, text.replace("[", "[ ")) == message


def test_what_a_text_says_is_no_list_of_numbers() -> None:
    said = m.Internal(side="Pull", phase=m.Phase.INITIAL_REQUEST, error_message='"payload":[1,2]')
    assert message_of(m.PullPlan, text_of(m.Refusal(said))) == m.Refusal(said)


def test_lists_are_bounded() -> None:
    one = m.ObjectFile(object_type=m.ObjectType.DATA_SLICE, physical_hash=HASH, size=1)
    text = text_of(m.PullObjects(object_files=(one,) * (SMART.items + 1)))
    with pytest.raises(CorruptedPeerError, match="1,001 items"):
        message_of(m.PullObjects, text)


def test_a_member_that_a_node_adds_is_passed_over() -> None:
    text = '{"begin_after": null, "stop_at": null, "force_update_if_diverged": false, "new": [1]}'
    assert message_of(m.PullRequest, text) == m.PullRequest(begin_after=None)


# --- batches -----------------------------------------------------------------------------------------

BLOCKS = [RawBlock(hash_bytes(data), data) for data in (b"one", b"", b"x" * 1000)]


def test_blocks_come_back_in_their_order() -> None:
    assert unpacked(packed(BLOCKS)) == BLOCKS
    assert packed(BLOCKS) == packed(BLOCKS)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_all_forms_are_read(form: int) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        tar.format = form
        for number, block in enumerate(BLOCKS):
            entry = tarfile.TarInfo(str(block.hash))
            entry.size, entry.mtime, entry.uname = len(block.data), 1_700_000_000, "of a node"
            entry.pax_headers = {"comment": "x"} if number == 1 else {}
            tar.addfile(entry, io.BytesIO(block.data))

    assert unpacked(replace(pressed(fill), num_blocks=len(BLOCKS))) == BLOCKS


def test_a_batch_is_what_the_library_writes() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for block in BLOCKS:
            entry = tarfile.TarInfo(str(block.hash))
            entry.size, entry.mode = len(block.data), 0
            tar.addfile(entry, io.BytesIO(block.data))
    made = gzip.decompress(packed(BLOCKS).payload)
    assert made == stream.getvalue()[: len(made)]
    assert not stream.getvalue()[len(made) :].strip(b"\0")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (entry(f"./{HASH}", b"a"), "hashes to"),
        (entry(str(HASH), kind=tarfile.LNKTYPE, link=str(HASH)), "not an ordinary file"),
        (entry(str(HASH), kind=tarfile.FIFOTYPE), "not an ordinary file"),
        (entry(str(HASH), bytes(LIMITS.block_bytes + 1)), "a block has at most"),
        (m.BlocksBatch(num_blocks=1, payload=b"no gzip"), "not a gzip-compressed tar"),
        (m.BlocksBatch(num_blocks=1, payload=gzip.compress(b"no tar" * 200)), "not a gzip-compressed tar"),
        (m.BlocksBatch(num_blocks=2, payload=packed(BLOCKS).payload), "3 blocks, though it says 2"),
        (m.BlocksBatch(num_blocks=SMART.blocks + 1, payload=b""), "are allowed"),
        (bomb("x" * 200, tarfile.GNUTYPE_LONGNAME, 1 << 20), "not a gzip-compressed tar"),
    ],
)
def test_bad_batches_are_refused(bad: m.BlocksBatch, said: str) -> None:
    with pytest.raises(CorruptedPeerError, match=said):
        unpacked(bad)


def test_what_came_before_a_fault_is_what_it_seems() -> None:
    bent = bytearray(gzip.decompress(packed(BLOCKS).payload))
    bent[-1024 - 1000] ^= 1  # in the last block
    found: list[RawBlock] = []
    with pytest.raises(CorruptedPeerError, match="hashes to"):
        found.extend(readable(m.BlocksBatch(num_blocks=3, payload=gzip.compress(bent))))
    assert found == BLOCKS[:2]


def test_unpacking_ends_where_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(SMART.unpacked_bytes // 16))
    limits = type(SMART)(unpacked_bytes=1 << 20)
    monkeypatch.setattr("odfchain.transfer.block_batch.SMART", limits)
    blocks = [RawBlock(hash_bytes(bytes(n)), bytes(n)) for n in range(1 << 19, (1 << 19) + 4)]
    with pytest.raises(CorruptedPeerError, match="unpacks to more"):
        unpacked(packed(blocks))
    with pytest.raises(OdfchainError):
        unpacked(m.BlocksBatch(num_blocks=1, payload=bomb))
