"""Places in stores: texts taken apart, and what is refused without being repeated."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from odfchain.errors import InvalidIdError
from odfchain.storage.locations import LONGEST, Location

PLACES = {
    "s3://sentinel-cogs/a/B04.tif": ("s3", "sentinel-cogs", None, "a/B04.tif"),
    "S3://Bucket/Key": ("s3", "Bucket", None, "Key"),
    "s3a://b/k.tif": ("s3", "b", None, "k.tif"),
    "s3+http://Host:9000/b/k": ("s3", "b", "http://host:9000", "k"),
    "gs://b/a%20b.tif": ("gs", "b", None, "a b.tif"),
    "gs://b/a b.tif": ("gs", "b", None, "a b.tif"),
    "s3://b/50%25%3F%23": ("s3", "b", None, "50%?#"),
    "https://h/a%252Fb": ("https", "https://h", None, "a%2Fb"),
    "az://cont/x/y.tif": ("az", "cont", None, "x/y.tif"),
    "abfss://cont@acct.dfs.core.windows.net/x/y.tif": (
        "az", "cont", "https://acct.blob.core.windows.net", "x/y.tif",
    ),
    "https://Example.ORG:443/data/My%20File.tif": ("https", "https://example.org", None, "data/My File.tif"),
    "https://bucket.s3.eu-central-1.amazonaws.com/k.tif": (
        "https", "https://bucket.s3.eu-central-1.amazonaws.com", None, "k.tif",
    ),
    "http://[::1]:8080/a+b": ("http", "http://[::1]:8080", None, "a+b"),
    "https://h/ä.tif": ("https", "https://h", None, "ä.tif"),
    "https://h/%C3%A4.tif": ("https", "https://h", None, "ä.tif"),
    "file:///data/a%20b.tif": ("file", None, None, "/data/a b.tif"),
    "assets/x.tif": ("file", None, None, "assets/x.tif"),
    "./assets/x.tif": ("file", None, None, "assets/x.tif"),
}  # fmt: skip


@pytest.mark.parametrize("text", PLACES)
def test_a_text_is_taken_apart(text: str) -> None:
    assert Location.parse(text) == Location(*PLACES[text])


@pytest.mark.parametrize(
    "text",
    [
        "", "../x.tif", "https://u:secret@h/x", "s3://KEY:secret@b/k", "https://h/x?X-Amz-Signature=secret",
        "https://acct.blob.core.windows.net/c/x?sv=2022&sig=secret", "https://h/x?version=2", "https://h/x#f",
        "s3://bucket", "s3://b/a//b", "https://h/dir/", "https://h/%E4.tif", "oci://r/x", "ftp://h/x",
        "C:\\x.tif", "file://server/x", "//server/x", "s3://b/a%00b", " s3://b/k", "s3://b/k\n", "https:///x",
        "s3://[x/y", "http://h:99999/x", f"s3://b/{'x' * (LONGEST + 1)}", "s3+http://h:9000/", "az://a@b/x",
        "https://h/a%2Fb", "https://h/a%2fb", "s3://b/a%2Fb", "gs://b/a%2Fb", "az://c/a%2fb", "file:///a%2Fb",
        "a%2Fb", "s3+http://h/bucket%2Fa/k", "https://h/a/..%2Fb", "https://h/a?", "s3://b/k#",
    ],
)  # fmt: skip
def test_what_is_no_place_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidIdError) as caught:
        Location.parse(text)
    assert "secret" not in f"{caught.value}{caught.value.hint}"


SEGMENT = st.text(
    st.characters(exclude_characters="/", exclude_categories=("C", "Z")), min_size=1, max_size=8
)


@given(
    place=st.sampled_from(["s3://box", "gs://box", "az://box", "http://h:1", "https://h", "file://", "."]),
    segments=st.lists(SEGMENT | st.just("a b"), min_size=1, max_size=4),
)
def test_a_key_is_what_was_escaped(place: str, segments: list[str]) -> None:
    assume(not {".", ".."} & set(segments))
    key = "/".join(segments)
    found = Location.parse(f"{place}/{quote(key)}")
    assert found.key == ("/" if place == "file://" else "") + key


def test_folders() -> None:
    for text in ("s3://b", "s3://b/"):
        assert Location.parse(text, folder=True).below("x/y") == Location("s3", "b", None, "x/y")
    found = Location.parse("file:///srv/data/", folder=True)
    assert (found.key, found.below("x").key, found.below("").key) == ("/srv/data", "/srv/data/x", "/srv/data")
    for container in ("b?x", "a/b", "k@b", ""):
        with pytest.raises(InvalidIdError):
            Location("s3", container or "\0", None, "x")
