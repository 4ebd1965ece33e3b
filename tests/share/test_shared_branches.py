"""Branches travel where they are named, and what was merged follows its merge; the head's protocol is as ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odfchain.api.branching import ensure_verified
from odfchain.chain.chain import MetadataChain
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.errors import (
    ChainsDifferError,
    CorruptedPeerError,
    PointNotFoundError,
    RefConflictError,
    SignatureError,
    TransferError,
    UsageError,
)
from odfchain.odf.events import AddData
from odfchain.odf.identity import Multihash
from odfchain.storage.store import Store
from odfchain.transfer.pulling import SyncOptions
from odfchain.transfer.signed_statements import SeenHeads, SignaturePolicy
from odfchain.transfer.slice_files import is_partial
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import FetchedBranches
from odfchain.workspace.options import PushOptions
from odfchain.workspace.points import branch_names
from tests.kit.branched_dataset import blocks_of, delete_branch, fork, merge, write
from tests.kit.recorded_dataset import add
from tests.kit.sharing import Sharing
from tests.kit.small_s3 import SmallS3
from tests.kit.support import tree_of, unchanged
from tests.kit.upkeep_scenes import head_of, new_workspace, root

FORCE = SyncOptions(force=True)


class Scene:
    """An owner with a dataset, a place, and somebody with a copy from there."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "place"
        self.url = self.place.as_uri()
        self.owner = Sharing(new_workspace(folder / "owner"))
        self.cities = root(self.owner.workspace, slices=2)
        self.owner.push(self.cities, self.url)
        self.other = Sharing(new_workspace(folder / "other"))
        self.other.pull(self.url, "cities")

    @property
    def copy(self) -> DatasetFiles:
        return self.other.workspace.dataset("cities")

    def stored(self) -> set[str]:
        """The blocks and slices at the place."""
        return {f"{part}/{p.name}" for part in ("blocks", "data") for p in (self.place / part).iterdir()}

    def refs(self) -> set[str]:
        return {path.name for path in (self.place / "refs").iterdir()}

    def refs_of_copy(self) -> list[str]:
        return [path.name for path in (self.copy.folder / "refs").iterdir()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# --- pushing ---------------------------------------------------------------------------------------------


def test_a_branch_is_pushed_where_it_is_named_and_the_head_stays(scene: Scene) -> None:
    fix = fork(scene.cities, "fix-names")
    block = write(fix, "b")
    before = tree_of(scene.place)
    scene.owner.push(scene.cities, scene.url)
    assert tree_of(scene.place) == before
    outcome = scene.owner.push(fix, scene.url)
    assert (outcome.num_blocks, outcome.signature) == (1, SignatureStatus.SIGNED)
    after = tree_of(scene.place)
    assert before.items() <= after.items()
    assert (scene.place / "refs/fix-names").read_text() == str(block)
    assert (scene.place / "hints/refs").read_text() == "fix-names\n"
    signatures = [
        (folder / "refs/fix-names.jws").read_bytes() for folder in (scene.place, scene.cities.folder)
    ]
    assert signatures[0] == signatures[1]
    assert scene.owner.push(fix, scene.url).up_to_date
    write(fork(scene.cities, "also"), "c")
    scene.owner.push(scene.cities.on("also"), scene.url)
    assert (scene.place / "hints/refs").read_text() == "also\nfix-names\n"


def test_only_what_is_new_after_the_head_there_is_sent(scene: Scene, tmp_path: Path) -> None:
    fix = fork(scene.cities, "fix")
    write(fix, "b")
    write(scene.cities, "h")
    scene.owner.push(scene.cities, scene.url)
    assert scene.owner.plan_push(fix, scene.url).blocks == [head_of(fix)]
    empty = (tmp_path / "empty").as_uri()
    assert scene.owner.push(fix, empty).num_blocks == 5
    assert [p.name for p in (tmp_path / "empty/refs").iterdir() if p.suffix == ""] == ["fix"]


def test_a_branch_there_with_other_blocks_is_not_overwritten(scene: Scene) -> None:
    fix = fork(scene.cities, "fix")
    first, start = write(fix, "b"), head_of(scene.cities)
    scene.owner.push(fix, scene.url)
    fix.chain.set_ref("fix", start, expected=first)
    with pytest.raises(ChainsDifferError, match=r"has not|of a later"):
        scene.owner.push(fix, scene.url)
    write(fix, "c")
    with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common"):
        scene.owner.push(fix, scene.url)
    scene.owner.push(fix, scene.url, PushOptions(force=True))
    assert (scene.place / "refs/fix").read_text() == str(head_of(fix))


def test_a_branch_of_another_dataset_is_not_pushed_beside_its_head(scene: Scene) -> None:
    other = fork(root(scene.owner.workspace, "others", slices=1), "fix")
    write(other, "b")
    with pytest.raises(ChainsDifferError, match="holds the dataset"):
        scene.owner.push(other, scene.url)
    assert "fix" not in scene.refs()


def test_who_was_faster_keeps_the_branch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = fork(scene.cities, "fix")
    write(fix, "b")
    sent = Store.put_names

    def faster(self: Store, names: list[str]) -> None:
        (scene.place / "refs/fix").write_text(str(head_of(scene.cities)))
        sent(self, names)

    monkeypatch.setattr(Store, "put_names", faster)
    with pytest.raises(RefConflictError):
        scene.owner.push(fix, scene.url)


def test_buckets_take_branches_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    base, fix = head_of(scene.cities), fork(scene.cities, "fix")
    write(fix, "b")
    merge(scene.cities, fix, base)
    write(fix, "c")
    with SmallS3() as store:
        url = store.url("bucket/cities")
        scene.owner.push(scene.cities, url)
        scene.owner.push(fix, url)
        assert store.objects["bucket/cities/hints/refs"] == b"fix\n"
        scene.other.pull_branch(scene.copy.on("fix"), url)
        assert head_of(scene.copy.on("fix")) == head_of(fix)
        assert scene.copy.on("fix").head_signature().status is SignatureStatus.SIGNED


# --- what was merged -------------------------------------------------------------------------------------


def merged(scene: Scene) -> tuple[Multihash, Multihash]:
    """A merge of a branch that has merged another one; both are gone. Their newest blocks."""
    base, fix = head_of(scene.cities), fork(scene.cities, "fix")
    first = write(fix, "b")
    inner = fork(fix, "inner")
    second = write(inner, "c")
    merge(fix, inner, first)
    source = head_of(fix)
    merge(scene.cities, fix, base)
    for name in ("fix", "inner"):
        delete_branch(scene.cities, name)
    return source, second


def test_what_was_merged_is_pushed_with_the_head_unless_it_is_left_out(scene: Scene) -> None:
    source, inner = merged(scene)
    write(scene.cities, "later")
    head = head_of(scene.cities)
    plan = scene.owner.plan_push(scene.cities, scene.url)
    assert (len(plan.blocks), len(plan.merged), plan.merged[-1]) == (2, 3, source)
    scene.owner.push(scene.cities, scene.url, PushOptions(merged=False))
    assert scene.stored() == blocks_of(scene.cities, head)
    outcome = scene.owner.push(scene.cities, scene.url)
    assert (outcome.up_to_date, outcome.num_blocks) == (False, 0)
    assert scene.stored() == blocks_of(scene.cities, head, source, inner)
    assert scene.owner.push(scene.cities, scene.url).up_to_date
    assert "fix" not in scene.refs()


def test_what_of_a_merge_is_not_here_is_not_sent(scene: Scene) -> None:
    source, inner = merged(scene)
    (scene.cities.folder / "blocks" / str(inner)).unlink()
    scene.owner.push(scene.cities, scene.url)
    assert scene.stored() == blocks_of(scene.cities, head_of(scene.cities))
    assert not (scene.place / "blocks" / str(source)).exists()


def test_what_was_merged_is_fetched_by_hash_from_any_mirror(scene: Scene, tmp_path: Path) -> None:
    source, inner = merged(scene)
    scene.owner.push(scene.cities, scene.url)
    scene.other.pull("cities")
    copy, head = scene.copy, head_of(scene.cities)
    assert not copy.chain.contains(source)
    for name in ("refs", "hints"):  # a mirror needs no references
        (scene.place / name).rename(tmp_path / f"no-{name}")
    found = scene.other.fetch_merged(copy, scene.url)
    assert (found.blocks, found.objects) == (3, 3)
    assert blocks_of(copy, head, source, inner) == blocks_of(scene.cities, head, source, inner)
    assert scene.other.fetch_merged(copy, scene.url).blocks == 0
    (copy.folder / "data" / str(copy.chain.get(inner).new_data.physical_hash)).unlink()
    assert scene.other.fetch_merged(copy, scene.url).objects == 1


def test_a_mirror_without_what_was_merged_is_named_and_what_it_has_is_kept(scene: Scene) -> None:
    source, inner = merged(scene)
    fix = fork(scene.cities, "more")
    write(fix, "d")
    merge(scene.cities, fix, head_of(scene.cities))
    later = head_of(fix)
    scene.owner.push(scene.cities, scene.url)
    scene.other.pull("cities")
    (scene.place / "blocks" / str(inner)).unlink()
    with pytest.raises(TransferError, match="not there") as caught:
        scene.other.fetch_merged(scene.copy)
    assert str(inner)[:17] in str(caught.value)
    assert scene.copy.chain.contains(later)
    assert scene.copy.chain.contains(source)


def test_what_a_mirror_forged_is_refused(scene: Scene) -> None:
    source, _ = merged(scene)
    scene.owner.push(scene.cities, scene.url)
    scene.other.pull("cities")
    path = scene.place / "blocks" / str(source)
    path.write_bytes(path.read_bytes() + b"?")
    with unchanged(scene.copy.folder), pytest.raises(CorruptedPeerError, match="hashes to"):
        scene.other.fetch_merged(scene.copy)


# --- pulling ---------------------------------------------------------------------------------------------


def pull(scene: Scene, branch: str = "fix", options: SyncOptions | None = None) -> str:
    return scene.other.pull_branch(scene.copy.on(branch), scene.url, options).outcome.status.value


@pytest.fixture
def pushed(scene: Scene) -> Scene:
    fix = fork(scene.cities, "fix")
    write(fix, "b")
    scene.owner.push(fix, scene.url)
    return scene


def test_a_branch_comes_in_beside_the_head_and_is_known_to_come_from_elsewhere(pushed: Scene) -> None:
    fix, start = pushed.cities.on("fix"), head_of(pushed.cities)
    seen = SeenHeads(pushed.other.workspace.root / "seen")
    memory = seen.get(pushed.copy.id)
    assert pull(pushed) == "created"
    there = pushed.copy.on("fix")
    assert (head_of(there), head_of(pushed.copy)) == (head_of(fix), start)
    entry = FetchedBranches(pushed.copy).find("fix")
    assert (entry.where, entry.block, entry.verified) == (f"{pushed.url}/", head_of(fix), start)
    assert not FetchedBranches(pushed.copy).is_known_here(start, head_of(there), owner=True)
    assert there.head_signature().status is SignatureStatus.SIGNED
    assert seen.get(pushed.copy.id) == memory
    assert pull(pushed) == "up-to-date"
    write(fix, "c")
    pushed.owner.push(fix, pushed.url)
    ensure_verified(pushed.copy, head_of(there))
    assert pushed.other.pull_branch(there).outcome.status.value == "updated", "from where it came"
    entry = FetchedBranches(pushed.copy).find("fix")
    assert fix.chain.get(entry.block).prev_block_hash == entry.verified
    assert not (pushed.copy.folder / "info/incoming/beside-fix").exists()


def test_own_commits_are_never_moved_aside(pushed: Scene) -> None:
    pull(pushed)
    fix, there = pushed.cities.on("fix"), pushed.copy.on("fix")
    mine = write(there, "mine")
    with pytest.raises(ChainsDifferError, match="has 1 block that"):
        pull(pushed)
    write(fix, "theirs")
    pushed.owner.push(fix, pushed.url)
    with pytest.raises(ChainsDifferError, match="1 block only here") as caught:
        pull(pushed)
    assert "odfchain branch rename cities fix my-fix" in str(caught.value.hint)
    assert head_of(there) == mine
    assert pull(pushed, options=FORCE) == "overwritten"
    assert head_of(there) == head_of(fix)
    assert any(name.startswith("overwritten-") for name in pushed.refs_of_copy())


def test_a_branch_that_was_set_back_there_is_followed_where_nothing_is_ones_own(pushed: Scene) -> None:
    pull(pushed)
    fix, there, first = pushed.cities.on("fix"), pushed.copy.on("fix"), head_of(pushed.cities.on("fix"))
    fix.chain.set_ref("fix", head_of(pushed.cities), expected=first)
    write(fix, "another way")
    pushed.owner.push(fix, pushed.url, PushOptions(force=True))
    assert pull(pushed) == "overwritten"
    assert head_of(there) == head_of(fix)
    assert there.chain.contains(first)


def test_a_branch_of_ones_own_of_the_same_name_is_not_touched(pushed: Scene) -> None:
    mine = fork(pushed.copy, "fix")
    block = write(mine, "mine")
    with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common"):
        pull(pushed)
    assert head_of(mine) == block
    assert FetchedBranches(pushed.copy).find("fix") is None
    assert not pushed.copy.chain.contains(head_of(pushed.cities.on("fix")))


def test_a_branch_that_is_not_there_is_named_with_those_that_are(pushed: Scene) -> None:
    with pytest.raises(PointNotFoundError, match="no branch 'fixes'") as caught:
        pull(pushed, "fixes")
    assert caught.value.hint == "its branches: fix"
    with pytest.raises(UsageError, match="not known where cities@mine comes from"):
        pushed.other.pull_branch(pushed.copy.on("mine"))


def test_a_branch_of_another_dataset_is_refused(pushed: Scene, tmp_path: Path) -> None:
    other = fork(root(pushed.owner.workspace, "others", slices=1), "fix")
    write(other, "b")
    url = (tmp_path / "others").as_uri()
    pushed.owner.push(other, url)
    with unchanged(pushed.copy.folder), pytest.raises(ChainsDifferError, match="another dataset than cities"):
        pushed.other.pull_branch(pushed.copy.on("fix"), url)


def test_damaged_blocks_are_refused(pushed: Scene) -> None:
    block = head_of(pushed.cities.on("fix"))
    path = pushed.place / "blocks" / str(block)
    path.write_bytes(path.read_bytes()[:-1])
    with unchanged(pushed.copy.folder), pytest.raises(CorruptedPeerError, match="hashes to"):
        pull(pushed)
    assert branch_names(pushed.copy) == []


def test_blocks_that_break_a_rule_are_refused(pushed: Scene) -> None:
    bad = fork(pushed.cities, "bad")
    add(bad, AddData(prev_offset=77), unchecked=True)
    pushed.owner.push(bad, pushed.url)
    with unchanged(pushed.copy.folder), pytest.raises(CorruptedPeerError, match="breaks the rule"):
        pull(pushed, "bad")


def test_a_required_signature_is_that_of_the_branch(pushed: Scene) -> None:
    require = SyncOptions(signature=SignaturePolicy(require=True))
    assert pull(pushed, options=require) == "created"
    (pushed.place / "refs/other").write_text(str(head_of(pushed.cities.on("fix"))))
    (pushed.place / "refs/other.jws").write_bytes((pushed.place / "refs/fix.jws").read_bytes())
    with pytest.raises(SignatureError, match="of another branch, fix"):
        pull(pushed, "other", require)
    found = pushed.other.pull_branch(pushed.copy.on("other"), pushed.url)
    assert "of another branch, fix" in found.outcome.warnings[0]
    assert not (pushed.copy.folder / "refs/other.jws").exists()


def test_a_pull_that_died_before_the_branch_moved_is_done_again(
    pushed: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MetadataChain, "set_ref", dies)
        with pytest.raises(KeyboardInterrupt):
            pull(pushed)
    assert branch_names(pushed.copy) == []
    assert json.loads((pushed.copy.folder / "info/branches.json").read_text())[0]["branch"] == "fix"
    assert pull(pushed) == "created"


def test_a_partial_copy_is_whole_when_its_branches_are(pushed: Scene, tmp_path: Path) -> None:
    third = Sharing(new_workspace(tmp_path / "third"))
    third.pull(pushed.url, "cities", SyncOptions(metadata_only=True))
    copy = third.workspace.dataset("cities")
    found = third.pull_branch(copy.on("fix"), pushed.url).outcome
    assert (found.objects, found.missing_slices) == (0, 3)
    assert third.fetch(copy).missing_slices == 0
    assert is_partial(copy), "a slice of the branch is missing"
    assert third.fetch(copy.on("fix"), pushed.url).objects == 1
    assert not is_partial(copy)


# --- the head's protocol ---------------------------------------------------------------------------------


def test_a_copy_of_the_head_has_nothing_of_branches(pushed: Scene, tmp_path: Path) -> None:
    merged(Scene(tmp_path / "another"))
    pushed.owner.push(pushed.cities, pushed.url)
    third = Sharing(new_workspace(tmp_path / "third"))
    third.pull(pushed.url, "cities")
    copy = third.workspace.dataset("cities")
    assert {p.name for p in (copy.folder / "refs").iterdir()} == {"head", "head.jws", "head.checkpoint"}
    blocks = {str(found.hash) for found in pushed.cities.chain.walk()}
    assert {p.name for p in (copy.folder / "blocks").iterdir()} == blocks
