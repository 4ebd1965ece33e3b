"""What stores say of objects, honest and lying ones; what a check makes of it; what is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.assets.checking import compared
from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.locks import AssetLock, checksum_of_etag
from odfchain.assets.objects import Facts, Method, Probe, StoreOptions, Stores
from odfchain.errors import AccessError, AssetError, SourceNotFoundError
from odfchain.limits import ASSETS, FetchLimits
from tests.kit.asset_cases import Case, Hold, held
from tests.kit.lying_objects import LyingObjects

FIXTURE = json.loads(Path("fixtures/assets/facts.json").read_text())


def stores(folder: Path, *, private: bool = True) -> Stores:
    return Stores(folder, allow_private=private, limits=FetchLimits(retries=1, first_wait=0.01))


def item(name: str, assets: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "stac_version": "1.0.0", "id": name, "assets": assets, **more}


def derived(tmp_path: Path, *items: dict[str, Any], **options: Any) -> AssetLock:
    path = tmp_path / "items.ndjson"
    path.write_text("".join(json.dumps(each) + "\n" for each in items))
    where = StoreOptions(allow_private=True)
    return AssetLock.derive(
        [str(path)], **{"folder": tmp_path, "stores": where, "keep_going": True} | options
    )


def hold_probe(case: Case, tmp_path: Path) -> None:
    answer = dict(case["answer"])
    if "bytes" in answer:
        answer["bytes"] = answer["bytes"].encode()
    with LyingObjects({"/x.tif": answer}) as server:
        found = stores(tmp_path).probe(parse_href(f"{server.origin}/x.tif"))
    assert found.missing == case.get("missing", False)
    if "facts" in case:
        assert found == Probe(Facts(*case["facts"]))
    else:
        assert found.facts is None
        assert bool(found.problem) == case.get("problem", True)


def hold_comparison(case: Case, _: Path) -> None:
    row = AssetRow("S2A", "B04", parse_href("s3://b/k"), Facts(*case["locked"]))
    found = compared(row, Probe(Facts(*case["now"])))
    assert found.status.value == case["status"]
    assert list(found.errors) == case.get("errors", [])
    assert found.is_valid == (case["status"] in ("same", "unknown"))
    if "note" in case:
        assert found.note == case["note"]


def hold_size(case: Case, tmp_path: Path) -> None:
    claim = {"file:size": case["claimed"]} if "claimed" in case else {}
    with LyingObjects({"/x.tif": {}}) as server:
        found = derived(
            tmp_path, item("a", {"B04": {"href": f"{server.origin}/x.tif", **claim}}), probe=False
        )
        assert server.requests == []
    assert [row.facts for row in found.rows] == [Facts(case["size"])]


HELD = {
    "probed": (hold_probe, ("facts", "missing", "problem")),
    "compared": (hold_comparison, ("status", "errors", "note")),
    "sizes": (hold_size, ("size",)),
}


@held(FIXTURE, HELD)
def test_cases(hold: Hold, case: Case, tmp_path: Path) -> None:
    hold(case, tmp_path)


def test_case_27_what_the_store_says_counts(tmp_path: Path) -> None:
    case = FIXTURE["F27"]
    with LyingObjects({"/x.tif": {}}) as server:
        asset = {"href": f"{server.origin}/x.tif", "file:size": case["claimed"]}
        found = derived(tmp_path, item("a", {"B04": asset}))
    assert [row.facts.size_bytes for row in found.rows] == [case["size"]]
    assert case["warning"] in found.warnings[0]


def test_case_25_what_is_missing_is_listed_and_left_out(tmp_path: Path) -> None:
    with LyingObjects({"/x.tif": {}}) as server:
        assets = {key: {"href": f"{server.origin}/{key}.tif"} for key in ("x", "y", "z")}
        found = derived(tmp_path, item("a", assets))
        with pytest.raises(SourceNotFoundError, match=r"(?s)2 assets.*a y.*a z") as refused:
            derived(tmp_path, item("a", assets), keep_going=False)
    assert [row.key for row in found.rows] == [("a", "x")]
    assert refused.value.exit_code == 8


def test_case_32_checksums(tmp_path: Path) -> None:
    case = FIXTURE["F32"]
    for name in ("use-etag", "use-etag in capitals"):
        assert checksum_of_etag(case[name]["etag"]) == case[name]["checksum"]
    assert [checksum_of_etag(each) for each in case["no MD5"]] == [None] * len(case["no MD5"])
    with LyingObjects({"/x.tif": {"bytes": case["bytes"].encode()}}) as server:
        asset = {"B04": {"href": f"{server.origin}/x.tif", "file:checksum": "1220" + "0" * 64}}
        for method in Method:
            found = derived(tmp_path, item("a", asset), checksum=method)
            calculated = method in (Method.CALCULATE_IF_NEEDED, Method.CALCULATE_ALWAYS)
            expected = case["calculate-always"] if calculated else None
            assert [row.facts.file_checksum for row in found.rows] == [expected]


def test_case_33_bytes_are_read_where_the_tag_is_no_checksum(tmp_path: Path) -> None:
    case = FIXTURE["F32"]
    answers = {"/md5.tif": {"etag": case["use-etag"]["etag"]}, "/weak.tif": {"etag": case["no MD5"][0]}}
    with LyingObjects(answers) as server:
        assets = {name[1:4]: {"href": server.origin + name} for name in answers}
        found = derived(tmp_path, item("a", assets), checksum=Method.CALCULATE_IF_NEEDED)
        assert [row.facts.file_checksum for row in found.rows] == [
            case["use-etag"]["checksum"], case["calculate-always"],
        ]  # fmt: skip
        assert [path for method, path, _ in server.requests if method == "GET"] == ["/weak.tif"]


def test_names_with_access_keys_are_faults_of_their_assets(tmp_path: Path) -> None:
    assets = {"AKIAIOSFODNN7EXAMPLE": {"href": "x.tif"}, "B04": {"href": "x.tif"}}
    found = derived(tmp_path, item("a", assets), probe=False)
    assert [row.asset_key for row in found.rows] == ["B04"]
    assert ["the asset's key contains an access key" in str(fault) for fault in found.faults] == [True]


@pytest.mark.parametrize(
    ("tag", "said"),
    [('"' + "a" * 4_095 + '"', "longer than 4,096 bytes"), ('"AKIAIOSFODNN7EXAMPLE"', "an access key")],
)
def test_a_tag_that_no_row_can_have_is_a_fault(tmp_path: Path, tag: str, said: str) -> None:
    with LyingObjects({"/x.tif": {"etag": tag}, "/y.tif": {"etag": '"' + "a" * 4_094 + '"'}}) as server:
        assets = {name: {"href": f"{server.origin}/{name}.tif"} for name in "xy"}
        found = derived(tmp_path, item("a", assets))
    assert [row.asset_key for row in found.rows] == ["y"]
    assert [said in str(fault) and fault.asset_key == "x" for fault in found.faults] == [True]


def test_more_assets_than_a_lock_has_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = {f"B{n}": {"href": f"{n}.tif"} for n in range(3)}
    monkeypatch.setattr("odfchain.assets.locks.ASSETS", type(ASSETS)(rows=3))
    assert len(derived(tmp_path, item("a", assets), probe=False).rows) == 3
    with pytest.raises(AssetError, match="more than 3 assets"):
        derived(tmp_path, item("a", assets), item("b", assets), probe=False)


def test_case_41_private_addresses_are_refused(tmp_path: Path) -> None:
    with LyingObjects({"/x.tif": {}}) as server:
        location = parse_href(f"{server.origin}/x.tif")
        closed = stores(tmp_path, private=False)
        assert "private address" in closed.probe(location).problem
        with pytest.raises(AccessError):
            closed.store_of(parse_href("http://169.254.169.254/latest"))
        named = Stores(tmp_path, trusted=frozenset({server.origin}))
        assert named.probe(location).facts is not None
        assert [method for method, _, _ in server.requests] == ["HEAD"]


def test_links_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock" / "x.tif").symlink_to(tmp_path / "secret")
    found = stores(tmp_path / "lock").probe(parse_href("x.tif"))
    assert found.facts is None
    assert "a link" in found.problem
    foreign = Stores(tmp_path, foreign=True)
    assert "absolute" in foreign.probe(parse_href("/etc/passwd")).problem


def test_the_same_pair_from_two_collections_is_refused(tmp_path: Path) -> None:
    asset = {"B04": {"href": "x.tif"}}
    with pytest.raises(AssetError, match="in two collections, s1 and s2"):
        derived(tmp_path, item("a", asset, collection="s1"), item("a", asset, collection="s2"), probe=False)
    twice = derived(tmp_path, item("a", asset), item("a", asset), probe=False)
    assert [row.key for row in twice.rows] == [("a", "B04")]


def test_what_is_left_out(tmp_path: Path) -> None:
    assets: dict[str, dict[str, Any]] = {key: {"href": f"{key}.tif"} for key in ("B04", "metadata", "B08")}
    assets["B04"] |= {"alternate": {"s3": {"href": "s3://b/B04.tif"}}}

    def keys(**selection: Any) -> list[str]:
        return [row.asset_key for row in derived(tmp_path, item("a", assets), probe=False, **selection).rows]

    assert keys() == ["B04", "B08"]
    assert keys(include_metadata=True) == ["B04", "B08", "metadata"]
    assert keys(assets={"metadata"}) == ["metadata"]
    with pytest.raises(AssetError, match="B99"):
        keys(assets={"B99"})
    other = derived(tmp_path, item("a", assets), probe=False, alternate="s3")
    assert [row.location.store for row in other.rows] == ["s3"]
    assert [fault.asset_key for fault in other.faults] == ["B08"]
