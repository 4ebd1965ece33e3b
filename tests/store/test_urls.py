"""URLs as values: printed as they were read, and every text either read or refused without being repeated."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odfchain.errors import InvalidIdError
from odfchain.storage.locations import Location, Target, Url, redact

HOSTS = ["h", "Data.Example.org", "[::1]", "[2001:DB8::7]", "b\u00fccher.example", "127.1", "h.", ""]
SCHEMES = ["http", "HTTPS", "odf+https", "s3", "s3+http", "file", "ftp", "abfss", ""]
urls = st.builds(
    lambda scheme, user, host, port, path, query: f"{scheme}://{user}{host}{port}{path}{query}",
    st.sampled_from(SCHEMES),
    st.sampled_from(["", "me@", "me:s3cret@", "a%40b:s3cret@", "@", "x@y:s3cret@"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":", ":0", ":80", ":0443", ":8080", ":99999", ":x"]),
    st.text("/ab.%2fF?#;=+~\\\u00e4 ", max_size=12).map(lambda text: f"/{text}"),
    st.sampled_from(["", "?", "?x=s3cret", "#s3cret", "?a#s3cret"]),
)
hostile = st.one_of(
    st.text(max_size=40),
    urls,
    st.builds(
        lambda text, at, put: text[:at] + put + text[at:], urls, st.integers(0, 30), st.text(max_size=3)
    ),
)


def target(text: str) -> Target | None:
    try:
        return Target.parse(text)
    except InvalidIdError as error:
        assert error.message == "not a valid URL"
        return None


@given(hostile)
@example("http://[::1")
@example("http://h\u2100/")
@example("http://\udc00/\x00")
def test_a_url_is_kept_as_it_was_written(text: str) -> None:
    try:
        url = Url(text)
    except InvalidIdError as error:
        assert error.message == "not a valid URL"
        return
    assert (url.text, url) == (text, Url(text))
    assert (
        url.path == "/".join([""] * url.parts.path.startswith("/") + url.segments) or "//" in url.path + "/"
    )
    assert url.is_below(url) or "\0" in text


@given(urls)
def test_no_password_and_no_query_is_shown(text: str) -> None:
    try:
        url = Url(text)
    except InvalidIdError:
        return
    assert "s3cret" not in str(url) or not url.scheme
    if (found := target(text)) is not None:
        assert "s3cret" not in found.public(())
        assert redact("s3cret%20", url.secrets) in ("***%20", "s3cret%20")


@given(hostile)
@example("http://h/a b\u00e4?\u00e4#x")
@example("http://H:80/../a//./%2f?")
def test_a_target_is_normal(text: str) -> None:
    """What is printed of it leads to the same place, is ASCII, and can be sent in a line."""
    found = target(text)
    if found is None:
        return
    printed = f"{found.scheme}://{found.authority}{found.path.decode('ascii')}"
    again = target(printed)
    for field in ("scheme", "host", "port", "path"):
        assert getattr(again, field) == getattr(found, field)
    assert not set(printed) & set(map(chr, [*range(33), 127]))
    assert found.follow(found.path.decode("ascii").replace("//", "/.//", 1)).authority == found.authority


@given(urls, hostile)
def test_a_reference_leads_to_the_web_without_credentials(text: str, reference: str) -> None:
    here = target(text)
    if here is None:
        return
    try:
        there = here.follow(reference)
    except InvalidIdError as error:
        assert error.message in ("not a valid URL", "only http and https are followed")
        return
    assert there.scheme in ("http", "https")
    assert there.user is None


@given(hostile, st.booleans())
def test_a_place_is_refused_or_comes_back(text: str, folder: bool) -> None:
    try:
        found = Location.parse(text, folder=folder)
    except InvalidIdError as error:
        assert "s3cret" not in f"{error.message}{error.hint}"
        return
    assert "s3cret" not in found.text
    if (
        found.store != "file"
        and (found.store != "az" or found.endpoint is None)
        and found.key.strip("/") == found.key
    ):
        assert Location.parse(found.text, folder=folder) == found


@pytest.mark.parametrize(
    ("text", "origin", "is_in_clear"),
    [
        ("odf+http://h:80/x", "http://h", True),
        ("odf+https://h:8443/x", "https://h:8443", False),
        ("http://localhost/x", "http://localhost", False),
        ("http://0x7f000001:81/x", "http://0x7f000001:81", False),
        ("http://127.evil.example/x", "http://127.evil.example", True),
        ("s3+http://h/b", None, False),
        ("https://Host.example/a/b", "https://host.example", False),
        ("https://host.example:443/", "https://host.example", False),
        ("https://me:pw@host.example:8443/x", "https://host.example:8443", False),
        ("http://[::1]:8090/", "http://[::1]:8090", False),
        ("http://127.1:2", "http://127.1:2", False),
        ("https://host.example./", "https://host.example", False),
        ("file:///srv/x", None, False),
        ("https://host.example:x/", None, False),
    ],
)
def test_what_a_url_says_of_its_server(text: str, origin: str | None, is_in_clear: bool) -> None:
    assert (Url(text).origin, Url(text).is_in_clear) == (origin, is_in_clear)
