"""Checks 20 and 21: what is signed of a snapshot is what the dataset gives, or whose word it is not is said."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.audit.dataset_checks import examine
from odfchain.audit.page import render_page
from odfchain.audit.report import MANIFESTS, PROFILES, SIGNATURE, Report
from odfchain.audit.signature_checks import _accept_languages, document_difference
from odfchain.chain.signed_heads import HEAD_SIGNATURE_KEY
from odfchain.chain.signed_lines import AUDITS, SNAPSHOTS, SnapshotKind
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.identity import DatasetKey
from odfchain.profiles.document import profile_of
from odfchain.profiles.manifests import manifest_bytes, manifest_of
from odfchain.profiles.published import WrittenSnapshot, publish
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import ProfileOptions, VerifyOptions
from tests.kit.query_datasets import make
from tests.kit.snapshot_columns import fixture
from tests.kit.support import Run

MANIFEST, PROFILE = SnapshotKind
CHECK_OF = {MANIFEST: MANIFESTS, PROFILE: PROFILES}
SPEC = fixture("manifests")["dataset"]


@pytest.fixture
def cities(tmp_path: Path) -> DatasetFiles:
    return make(odf.init(tmp_path / "ws"), "cities", SPEC)


def states(cities: DatasetFiles) -> list[DatasetState]:
    return [DatasetState.read(cities.chain, block.hash) for block in cities.chain.walk()][::-1]


def manifest_at(cities: DatasetFiles, state: DatasetState, **changes: Any) -> bytes:
    return manifest_bytes(manifest_of(cities, state) | changes)


def profile_at(cities: DatasetFiles, state: DatasetState, **changes: Any) -> bytes:
    hidden = ("people",) if state.schema is not None else ()
    options = ProfileOptions(stage="cleaned", hide=hidden, tags={"of": "people"}, languages=False)
    document = profile_of(cities, state, options)
    if isinstance(changes.get("odf"), dict):
        changes["odf"] = document["odf"] | changes["odf"]
    return canonical_bytes(document | changes)


def signed(
    cities: DatasetFiles, kind: SnapshotKind, key: DatasetKey | None = None, **changes: Any
) -> WrittenSnapshot:
    state = DatasetState.read(cities.chain)
    content = (manifest_at if kind is MANIFEST else profile_at)(cities, state, **changes)
    return publish(cities, state, kind, content, key)


def verified(cities: DatasetFiles, *, profiles: bool = True) -> Report:
    return examine(cities, VerifyOptions(profiles=profiles)).report


def lines_file(cities: DatasetFiles) -> Path:
    return cities.folder / SNAPSHOTS.key


def test_what_was_signed_comes_out_again(cities: DatasetFiles) -> None:
    for state in states(cities):
        publish(cities, state, MANIFEST, manifest_at(cities, state))
        publish(cities, state, PROFILE, profile_at(cities, state))
    stranger = DatasetKey.generate()
    signed(cities, MANIFEST, stranger)
    for path in (cities.folder / "info").iterdir():
        if path.is_file() and path.name not in ("alias", "lock"):
            path.write_bytes(b"\xff" * path.stat().st_size)  # nothing derived is trusted
    report = verified(cities)
    assert (report.faults, report.unchecked, report.verdict) == ([], [], "clean")
    assert (report.done[MANIFESTS], report.done[PROFILES]) == (6, 5)
    assert not any("signed" in note and "manifest" in note for note in report.notes)


def test_profiles_are_computed_again_where_it_is_asked(cities: DatasetFiles) -> None:
    signed(cities, PROFILE, num_rows=4)
    report = verified(cities, profiles=False)
    assert (report.verdict, report.state(PROFILES), report.state(MANIFESTS)) == (
        "clean",
        "notChecked",
        "notApplicable",
    )
    assert report.reasons[PROFILES] == "it was not asked for (--profiles)"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (MANIFEST, {"row_count": 4}, "row_count says 4, it is 3"),
        (MANIFEST, {"files": []}, "files has 0 items, there are 2"),
        (MANIFEST, {"created_at": "2026-01-01T00:00:00Z"}, "created_at says 2026-01-01T00:00:00Z, it is"),
        (MANIFEST, {"more": 1}, "more is too much"),
        (PROFILE, {"num_rows": 4}, "num_rows says 4, it is 3"),
        (PROFILE, {"row_minhash": ""}, "row_minhash says , it is "),
        (PROFILE, {"near_duplicate_estimate": None}, "near_duplicate_estimate says None, it is 0"),
        (PROFILE, {"num_rows": 3.0}, "it is not in the one text"),
        (PROFILE, {"snapshot_id": "f1620" + "00" * 32}, "it is of f162000000"),
        (PROFILE, {"odf": None}, "odf: must be an object, not null"),
        (PROFILE, {"column_stats": []}, "column_stats: must be an object, not a list"),
        (PROFILE, {"odf": {"hidden": ["nope"]}}, "odf.hidden: must be names of columns"),
    ],
)
def test_what_the_owner_signed_wrongly_is_a_fault(
    cities: DatasetFiles, kind: SnapshotKind, changes: dict[str, Any], message: str
) -> None:
    if changes.get("num_rows") == 3.0:  # the same document in another text
        state = DatasetState.read(cities.chain)
        made = publish(cities, state, kind, profile_at(cities, state).replace(b":", b": ", 1))
    else:
        made = signed(cities, kind, **changes)
    report = verified(cities)
    (fault,) = report.faults
    assert (fault.check, fault.file, fault.sequence_number) == (CHECK_OF[kind], str(lines_file(cities)), 4)
    assert message in fault.message
    assert str(made.object) in fault.message


def test_a_manifest_need_not_be_here(cities: DatasetFiles) -> None:
    right = signed(cities, MANIFEST)
    (cities.folder / "manifests" / str(right.object)).unlink()
    assert verified(cities).state(MANIFESTS) == "passed"
    wrong = signed(cities, MANIFEST, row_count=9)
    (cities.folder / "manifests" / str(wrong.object)).unlink()
    (fault,) = verified(cities).faults
    assert f"chain and footers give {right.object} ({right.size:,} bytes)" in fault.message


@pytest.mark.parametrize("kind", [MANIFEST, PROFILE])
def test_a_wrong_word_of_somebody_else_is_a_note(cities: DatasetFiles, kind: SnapshotKind) -> None:
    key = DatasetKey.generate()
    made = signed(cities, kind, key, created_at="1999-01-01T00:00:00Z")
    signed(cities, kind)
    report = verified(cities)
    assert (report.faults, report.verdict) == ([], "clean")
    (note,) = (note for note in report.notes if str(made.object) in note)
    assert str(made.line.signer) in note
    assert "created_at says 1999-01-01T00:00:00Z, it is" in note


def test_lines_that_are_none_are_faults(cities: DatasetFiles) -> None:
    signed(cities, MANIFEST)
    path = lines_file(cities)
    good = path.read_bytes()
    path.write_bytes(good + good[:-10] + b"AAAAAAAAA\n" + b"cut")
    first, second = verified(cities).faults
    assert {first.check, second.check} == {MANIFESTS}
    assert first.message.startswith("line 2: ")
    assert second.message.startswith("line 3: ")


def test_what_is_no_file_of_signed_lines_is_a_fault_of_its_own(cities: DatasetFiles) -> None:
    places = {
        cities.folder / HEAD_SIGNATURE_KEY: SIGNATURE,
        cities.folder / AUDITS.key: SIGNATURE,
        lines_file(cities): MANIFESTS,
    }
    for path in places:
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    report = verified(cities)
    assert {(Path(fault.file), fault.check) for fault in report.faults} == set(places.items())
    assert report.signature.status == "invalid"


def test_a_signed_manifest_that_is_no_manifest_is_a_fault(cities: DatasetFiles) -> None:
    publish(cities, DatasetState.read(cities.chain), MANIFEST, b"no JSON")
    (fault,) = verified(cities).faults
    assert fault.check == MANIFESTS
    assert "it is no manifest" in fault.message


def test_a_line_about_another_block_is_a_note(cities: DatasetFiles) -> None:
    line = signed(cities, MANIFEST).line
    other = dataclasses.replace(line, block=line.object, sequence_number=3)
    key = cities.signer.load_key()
    SNAPSHOTS.add(cities.folder, line.dataset_id, other.sign(key))
    report = verified(cities)
    assert (report.faults, report.done[MANIFESTS]) == ([], 1)
    assert any(str(line.object) in note and "not in this chain" in note for note in report.notes)


@pytest.mark.parametrize("kind", [MANIFEST, PROFILE])
def test_a_damaged_document_is_a_fault_of_the_copy(cities: DatasetFiles, kind: SnapshotKind) -> None:
    made = signed(cities, kind)
    path = cities.folder / kind.folder / str(made.object)
    path.chmod(0o644)
    path.write_bytes(b"{}")
    (fault,) = verified(cities).faults
    assert (fault.check, fault.file) == (CHECK_OF[kind], str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": "2"}, "a profile of format 2, 1 is read"),
        ({"odf": {"languages": "py3langid 0.0.1"}}, "languages detected by py3langid 0.0.1"),
        (None, "is not here"),
    ],
)
def test_profiles_not_computed_again(
    cities: DatasetFiles, changes: dict[str, Any] | None, message: str
) -> None:
    state = DatasetState.read(cities.chain)
    document = json.loads(profile_at(cities, state))
    for name, value in (changes or {}).items():
        document[name] = document[name] | value if isinstance(value, dict) else value
    made = publish(cities, state, PROFILE, canonical_bytes(document))
    if changes is None:
        (cities.folder / "profiles" / str(made.object)).unlink()
    report = verified(cities)
    (item,) = report.unchecked
    assert message in item.message
    assert (report.faults, report.verdict, report.state(PROFILES)) == ([], "incomplete", "notChecked")


def test_nothing_is_said_of_slices_that_are_not_here(cities: DatasetFiles) -> None:
    signed(cities, MANIFEST)
    signed(cities, PROFILE)
    first, _ = DatasetState.read(cities.chain).slices()
    Path(cities.data.locate(first.slice.physical_hash)).unlink()
    report = verified(cities)
    assert {fault.check for fault in report.faults} == {5}
    assert (report.state(MANIFESTS), report.state(PROFILES)) == ("notChecked", "notChecked")
    assert "was not computed again" in report.unchecked[-1].message


def test_shares_of_languages_may_differ_a_little() -> None:
    def made(**shares: float) -> dict[str, Any]:
        return {"text": {"detected_languages": shares}}

    for told, accepted in (
        ({"en": 0.505, "de": 0.495}, True),
        ({"en": 0.5, "de": 0.495, "fr": 0.005}, True),
        ({"en": 0.506, "de": 0.494}, False),
        ({"en": 0.5}, False),
        (None, False),
    ):
        found = made(en=0.5, de=0.5)
        _accept_languages({"column_stats": {"text": {"detected_languages": told}}}, found)
        assert (found["text"]["detected_languages"] == told) is accepted


def test_the_first_difference_is_named() -> None:
    assert document_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) is None
    assert document_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == "a[1].b says 2, it is 3"
    assert document_difference({"a": 1}, {"a": True}) == "a says 1, it is True"
    assert document_difference({}, {"a": True}) == "a is missing"


def test_reports_and_attestations_have_the_checks(
    run: Run, cities: DatasetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "ws")
    signed(cities, MANIFEST)
    made = signed(cities, PROFILE, num_rows=4)
    assert run("verify", "cities").code == 0
    done = run("verify", "cities", "--profiles", "-o", "json")
    (document,) = done.rows
    assert (done.code, len(document["checks"])) == (6, 21)
    assert [(c["number"], c["name"], c["state"]) for c in document["checks"][19:]] == [
        (20, "signed manifests", "passed"),
        (21, "signed profiles", "failed"),
    ]
    page = render_page([document])
    assert "signed profiles" in page
    assert "num_rows says 4, it is 3" in page
    (cities.folder / "profiles" / str(made.object)).unlink()
    assert run("verify", "cities", "--profiles").code == 7
    assert run("key", "create", "key.pem").code == 0
    done = run("attest", "cities", "--key", "key.pem", "-o", "json")
    statement = json.loads(done.out)
    assert (done.code, MANIFESTS in statement["checks"], PROFILES in statement["notChecked"]) == (
        0,
        True,
        True,
    )


def test_a_dataset_elsewhere_is_held_to_what_is_signed_there(cities: DatasetFiles, tmp_path: Path) -> None:
    signed(cities, PROFILE)
    wrong = signed(cities, MANIFEST, row_count=4)
    workspace, there = odf.open(tmp_path / "ws"), (tmp_path / "there").as_uri()
    workspace["cities"].push(there)
    folder = tmp_path / "there"
    for part in ("attestations", "profiles"):  # as a publisher may have put them there
        shutil.copytree(cities.folder / part, folder / part, dirs_exist_ok=True)
    report = workspace.verify_remote(there, profiles=True)
    (fault,) = report.faults
    assert (fault.check, fault.file) == (MANIFESTS, f"{there}/{SNAPSHOTS.key}")
    assert str(wrong.object) in fault.message
    assert (report.state(PROFILES), report.done[PROFILES]) == ("passed", 1)
    assert workspace.verify_remote(there).state(PROFILES) == "notChecked"
