"""Hrefs become locations and hrefs again: the cases of the fixture, and whatever locations there are."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.assets import hrefs
from odfchain.assets.hrefs import STORES, checked_location, parse_href, public_href
from odfchain.assets.objects import Stores
from odfchain.errors import AssetError, InvalidIdError
from odfchain.storage.locations import Location
from odfchain.text import printable
from tests.kit.asset_cases import Case, Hold, held
from tests.kit.servers import Reply, Server

FIXTURE = json.loads(Path("fixtures/assets/hrefs.json").read_text())


def hold(case: Case, _: Path) -> None:
    def parsed() -> Location:
        return parse_href(case["href"], case.get("base"), strip_query=case.get("strip_query", False))

    if "refused" in case:
        with pytest.raises(AssetError) as refused:
            parsed()
        shown = f"{refused.value} {refused.value.hint}"
        assert case["refused"] in shown
        assert refused.value.exit_code == 3
        assert case.get("unsaid", "\0") not in shown
        return
    found = parsed()
    assert [found.store, found.container, found.endpoint, found.key] == case["location"]
    assert found.href() == case["again"]
    assert checked_location(*case["location"]) == found


@held(FIXTURE, {"cases": (hold, ("location", "again", "refused"))})
def test_cases(hold: Hold, case: Case, tmp_path: Path) -> None:
    hold(case, tmp_path)


names = st.text("abcXYZ019._-", min_size=1, max_size=12)
segments = st.text(min_size=1, max_size=12).filter(
    lambda s: "/" not in s and s.isprintable() and s not in (".", "..")
)
keys = st.lists(segments, min_size=1, max_size=4).map("/".join)
hosts = st.builds(
    lambda s, h, p: (s, f"{s}://{h}{p}"),
    st.sampled_from(["http", "https"]),
    st.sampled_from(["h", "a.b-c.org", "[::1]"]),
    st.sampled_from(["", ":8080"]),
)
locations = st.one_of(
    st.builds(lambda s, b, k: (s, b, None, k), st.sampled_from(["s3", "gs", "az"]), names, keys),
    st.builds(lambda origin, k: (*origin, None, k), hosts, keys),
    st.builds(lambda k: ("file", None, None, f"/{k}"), keys),
    st.builds(lambda k: ("file", None, None, k), keys),
)


@given(locations)
def test_the_href_of_a_location_names_it(parts: tuple[str, str | None, None, str]) -> None:
    try:
        location = checked_location(*parts)
    except AssetError:
        return
    assert location.store in STORES
    assert parse_href(location.href()) == location


@given(st.text(max_size=40), st.sampled_from([None, "https://h/a/b.json", "/items/a.json", "s3://b/i.json"]))
def test_whatever_an_href_is_it_is_refused_or_comes_back(href: str, base: str | None) -> None:
    try:
        location = parse_href(href, base)
    except AssetError as error:
        assert printable(str(error)) == str(error)
        return
    assert parse_href(location.href()).key == location.key


@given(st.text(max_size=20), st.text("abcdef0123456789", min_size=8, max_size=20))
def test_no_message_shows_a_value(path: str, secret: str) -> None:
    for href in (f"https://u:{secret}@h/{path}", f"https://h/{path}?token={secret}", f"https://h/x#{secret}"):
        if secret not in path:
            assert secret not in public_href(href)


plain = st.text("abAZ09._=-/%:+~", max_size=16)


@given(st.sampled_from(["s3", "http", "https", "gs", "S3"]), st.text("ab0.-:A_", max_size=8), plain)
def test_plain_hrefs_are_parsed_as_all_others(scheme: str, authority: str, path: str) -> None:
    """What is let through without being taken apart is what taking apart would have made of it."""
    href = f"{scheme}://{authority}/{path}"
    try:
        expected = hrefs._parsed(href, None, strip_query=False)
    except InvalidIdError:
        with pytest.raises(AssetError):
            parse_href(href)
        return
    assert parse_href(href) == expected


def test_an_object_is_asked_for_as_its_href_spells_it(tmp_path: Path) -> None:
    """But for escapes that mean nothing: servers take them for the character."""
    stores = Stores(tmp_path, allow_private=True)
    every = [chr(code) for code in range(33, 127)]
    segments = [each for each in every if each not in "/?#%"] + [f"%{ord(each):02x}" for each in every]
    parsed, refused = dict[str, Location](), set[str]()
    with Server(lambda _: Reply(body=b"x")) as server:
        for segment in [*segments, "%252F", "%253b", "%3F%23", "%20", "%C3%A9", "é", "a//b", "x/%2e%2e/b"]:
            path = f"/a/{segment}b.tif"
            try:
                parsed[path] = parse_href(server.url(path))
            except AssetError:
                refused.add(segment)
        for path, location in parsed.items():
            assert stores.probe(location).facts is not None
            for url in (server.requests[-1].target, location.href().removeprefix(server.url(""))):
                assert unquote(url) == unquote(path), path
                assert [url.count(each) for each in "/;"] == [path.count(each) for each in "/;"], path
    assert refused == {"%2f", "%3b", "a//b", "x/%2e%2e/b"}
