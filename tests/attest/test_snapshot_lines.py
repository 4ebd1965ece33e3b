"""Lines about snapshots: what is signed of manifests and profiles, and a file that anyone can add to."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.chain import signed_lines
from odfchain.chain.signed_lines import (
    SNAPSHOTS,
    SignedLine,
    SnapshotKind,
    SnapshotLine,
    read_snapshot,
)
from odfchain.chain.statements import Problem, StatementType
from odfchain.errors import SignatureError, StoreError, UsageError
from odfchain.limits import ATTEST, AttestLimits
from odfchain.odf.identity import DatasetKey
from tests.kit.forge import AUDITORS, DATASET, HEAD, OWNER, SEQUENCE, STRANGER, TIME, container, later
from tests.kit.forge import attestation as attestation_of
from tests.kit.support import hash_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "info").mkdir()
    return tmp_path


def line(key: DatasetKey = OWNER, **changes: Any) -> SnapshotLine:
    """The owner's word, or that of another key, on the manifest of the head, with some members changed."""
    members: dict[str, Any] = {
        "signer": DATASET if key is OWNER else key.dataset_id.as_did_key(),
        "dataset_id": DATASET, "block": HEAD, "sequence_number": SEQUENCE, "kind": SnapshotKind.MANIFEST,
        "object": hash_of("manifest"), "size": 1_234, "time": TIME, "tool": "odfchain 0.1.0",
    }  # fmt: skip
    return SnapshotLine(**(members | changes))


def text_of(key: DatasetKey = OWNER, **changes: Any) -> str:
    return line(key, **changes).sign(key)


def file_of(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def block(number: int) -> dict[str, Any]:
    return {"block": hash_of(f"block {number}"), "sequence_number": number}


def kept(folder: Path) -> list[SnapshotLine]:
    return [
        found.statement for found in SNAPSHOTS.valid(SNAPSHOTS.content(folder), DATASET) if found.statement
    ]


def test_a_line_has_exactly_the_members_that_the_format_names() -> None:
    assert read_snapshot(text_of().encode()) == line()
    assert sorted(line().to_json()) == [
        "block", "datasetId", "kind", "object", "sequenceNumber", "size", "time", "tool",
    ]  # fmt: skip
    assert line().by_owner()
    assert line(signer=DATASET.as_did_key()).by_owner()
    assert not line(STRANGER).by_owner()


@pytest.mark.parametrize(
    "changes",
    [
        {"more": 1}, {"size": -1}, {"size": ATTEST.snapshot_bytes + 1}, {"size": "1"}, {"size": 1.0},
        {"size": True}, {"kind": "picture"}, {"kind": None}, {"kind": ""}, {"object": "f1220" + "0" * 64},
        {"block": "f1620"}, {"time": "yesterday"}, {"sequenceNumber": -1}, {"tool": "x" * 101},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_line_is_refused_though_its_signature_is_right(changes: dict[str, Any]) -> None:
    header = {"alg": "EdDSA", "kid": str(DATASET), "typ": str(StatementType.SNAPSHOT)}
    payload = json.dumps(line().to_json() | changes, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(SignatureError) as caught:
        read_snapshot(container(header, payload, OWNER.sign))
    assert caught.value.problem == Problem.DAMAGED


def test_what_nobody_could_read_is_not_signed() -> None:
    with pytest.raises(UsageError, match="unreadable line about a snapshot"):
        text_of(size=ATTEST.snapshot_bytes + 1)
    with pytest.raises(UsageError, match="the key is not that of"):
        line().sign(STRANGER)


def test_one_file_takes_no_lines_of_the_other() -> None:
    audit = attestation_of().sign(AUDITORS[0])
    (found,) = SNAPSHOTS.lines_of(file_of(audit), DATASET)
    assert found.problem == Problem.WRONG_TYPE


def test_lines_of_another_dataset_and_long_ones_are_told_and_not_kept(folder: Path) -> None:
    other = text_of(STRANGER, dataset_id=STRANGER.dataset_id)
    received = file_of(text_of(), other, "x" * (ATTEST.statement_bytes + 1), text_of()[:-1])
    merged = SNAPSHOTS.merge(folder, DATASET, received)
    assert merged.added == 1
    assert [text.split(":")[0] for text in merged.damaged] == ["line 2", "line 3", "line 4"]
    assert "a line about a snapshot of another dataset" in merged.damaged[0]
    assert f"longer than {ATTEST.statement_bytes} bytes" in merged.damaged[1]
    assert kept(folder) == [line()]
    with pytest.raises(SignatureError, match="of another dataset"):
        SNAPSHOTS.add(folder, DATASET, other)


def test_every_truncation_of_a_line_and_every_changed_byte_is_noticed() -> None:
    content = file_of(text_of())

    def noticed(found: list[SignedLine[SnapshotLine]]) -> bool:
        return bool(found) and all(each.statement is None and each.message for each in found)

    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        assert noticed(SNAPSHOTS.lines_of(bytes(changed), DATASET)), place
        assert noticed(SNAPSHOTS.lines_of(content[:place], DATASET)), place


def test_a_signer_has_one_word_on_each_kind_of_a_block_and_newer_blocks_stand_first(folder: Path) -> None:
    words = [
        line(),
        line(kind=SnapshotKind.PROFILE),
        line(**block(7)),
        line(STRANGER),
        line(time=later(1), object=hash_of("better")),
    ]
    for word in words:
        SNAPSHOTS.add(folder, DATASET, word.sign(OWNER if word.by_owner() else STRANGER))
    found = kept(folder)
    assert [word.sequence_number for word in found] == [7, 5, 5, 5]
    assert set(map(str, found)) == set(map(str, words[1:]))
    with pytest.raises(StoreError, match="already signed a newer statement"):
        SNAPSHOTS.add(folder, DATASET, text_of())


def test_a_forged_line_that_is_here_stands_against_nobody(folder: Path) -> None:
    forged = [text_of(kind=kind, time=later(9))[:-8] + "AAAAAAAA" for kind in SnapshotKind]
    (folder / "attestations").mkdir()
    (folder / SNAPSHOTS.key).write_bytes(file_of(*forged, "rubbish", text_of(**block(7))))
    assert SNAPSHOTS.about_block(SNAPSHOTS.content(folder), DATASET, HEAD) == []
    assert SNAPSHOTS.about_block(SNAPSHOTS.content(folder), DATASET, hash_of("block 7")) == [line(**block(7))]
    SNAPSHOTS.add(folder, DATASET, text_of())
    assert kept(folder) == [line(**block(7)), line()]
    problems = [found.problem for found in SNAPSHOTS.lines_of(SNAPSHOTS.content(folder), DATASET)]
    assert sorted(problems, key=str) == [None, None, Problem.NOT_VERIFIED], "no word was given on its subject"


def test_copies_that_exchanged_theirs_are_equal_in_whatever_order(tmp_path: Path) -> None:
    batches = [
        file_of(text_of(), text_of(**block(7))),
        file_of(text_of(time=later(5), object=hash_of("better"))),
        file_of(text_of(STRANGER), text_of(kind=SnapshotKind.PROFILE)),
    ]
    results = set()
    for number, order in enumerate(itertools.permutations(batches)):
        folder = tmp_path / str(number)
        (folder / "info").mkdir(parents=True)
        for received in order:
            SNAPSHOTS.merge(folder, DATASET, received)
        results.add((folder / SNAPSHOTS.key).read_bytes())
    assert len(results) == 1


def test_without_room_older_blocks_give_way_and_the_owner_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = len(file_of(text_of(**block(0)), *(text_of(STRANGER, **block(n)) for n in range(4))))
    monkeypatch.setattr(signed_lines, "ATTEST", AttestLimits(snapshot_lines_bytes=most))
    SNAPSHOTS.add(folder, DATASET, text_of(**block(0)), trusted=[DATASET])
    for number in range(1, 9):
        SNAPSHOTS.add(folder, DATASET, text_of(STRANGER, **block(number)), trusted=[DATASET])
    assert [(each.sequence_number, each.by_owner()) for each in kept(folder)] == [
        (8, False), (7, False), (6, False), (5, False), (0, True),
    ]  # fmt: skip
    with pytest.raises(StoreError, match="no room for more"):
        SNAPSHOTS.add(folder, DATASET, text_of(STRANGER, **block(1)), trusted=[DATASET])


def test_throwaway_keys_do_not_crowd_out_the_owner(folder: Path) -> None:
    for key in AUDITORS[:16]:
        SNAPSHOTS.add(folder, DATASET, text_of(key))
    with pytest.raises(StoreError, match="has 16 lines about snapshots already"):
        SNAPSHOTS.add(folder, DATASET, text_of(AUDITORS[16]))
    SNAPSHOTS.add(folder, DATASET, text_of(), trusted=[DATASET])
    assert len(kept(folder)) == 16
    assert sum(each.by_owner() for each in kept(folder)) == 1
    SNAPSHOTS.add(folder, DATASET, text_of(AUDITORS[16], kind=SnapshotKind.PROFILE))


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    content = b"\n" * (ATTEST.snapshot_lines_bytes + 1)
    (found,) = SNAPSHOTS.lines_of(content, DATASET)
    assert "more than 4194304 bytes" in (found.message or "")
    assert SNAPSHOTS.merge(folder, DATASET, content).added == 0
    assert not (folder / "attestations").exists()


def test_lines_that_are_not_wanted_any_more_are_dropped_and_an_empty_file_goes(folder: Path) -> None:
    SNAPSHOTS.drop(folder, DATASET, lambda _: False)  # there is none
    SNAPSHOTS.merge(folder, DATASET, file_of(text_of(), text_of(**block(7))))
    SNAPSHOTS.drop(folder, DATASET, lambda found: found.sequence_number == 7)
    assert kept(folder) == [line(**block(7))]
    SNAPSHOTS.drop(folder, DATASET, lambda _: False)
    assert not (folder / SNAPSHOTS.key).exists()
