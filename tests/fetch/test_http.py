"""The HTTP fetcher against a real server: conditions, retries, continuing, redirects, limits, secrets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import odfchain
from odfchain.errors import FetchError, SourceNotFoundError, StoreError
from odfchain.ingest.fetch_url import fetch_http
from odfchain.ingest.fetching import Fetched, etag_state, last_modified_state
from odfchain.odf.events import SourceState
from odfchain.odf.times import Timestamp
from odfchain.storage.http_rules import Headers, parse_http_date
from odfchain.storage.locations import parse_target
from odfchain.storage.routes import Route, is_public
from tests.kit.servers import (
    CSV37,
    MODIFIED,
    MODIFIED_TIME,
    Clock,
    Meter,
    Reply,
    Request,
    Server,
    closed_port,
    fetched,
    refusal,
)

BIG = bytes(range(256)) * 2_000
TAG = {"ETag": '"v1"'}


def get(
    folder: Path,
    url: str,
    previous: SourceState | None = None,
    *,
    headers: dict[str, str] | None = None,
    **changes: Any,
) -> Fetched | None:
    """New bytes, or None if there are none."""
    given = (headers or {}).items()
    return fetched(lambda url, context: fetch_http(url, given, context), folder, url, previous, **changes)


def new(folder: Path, url: str, **changes: Any) -> Fetched:
    result = get(folder, url, **changes)
    assert result is not None
    return result


refused = partial(refusal, get)


# --- the conformance cases, by id ------------------------------------------------------------------


def test_http_ok(tmp_path: Path) -> None:
    meter = Meter()
    with Server(Reply(headers={"ETag": 'W/"a,b"'}, body=CSV37)) as server:
        result = new(tmp_path, server.url(), progress=meter)
    assert result.state == etag_state('W/"a,b"')
    assert result.path.read_bytes() == CSV37
    assert result.path.parent == tmp_path
    assert (result.name, result.has_more, result.event_time) == ("the source", False, None)
    assert (meter.phases, meter.steps) == ([("Downloading the source", 37)], 37)
    (request,) = server.requests
    assert (request.method, request.target) == ("GET", "/data.csv")
    assert request.headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": f"odfchain/{odfchain.__version__}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "connection": "close",
    }


def test_http_repeat(tmp_path: Path) -> None:
    for tag in ('"v1"', 'W/"v1"', "unquoted", '"caf\xe9"'):
        with Server(Reply(status=304, headers={"ETag": tag})) as server:
            assert get(tmp_path, server.url(), etag_state(tag)) is None
        assert server.requests[0].headers["if-none-match"] == tag
        assert "if-modified-since" not in server.requests[0].headers
    assert list(tmp_path.iterdir()) == []


def test_http_touched(tmp_path: Path) -> None:
    with Server(Reply(headers={"ETag": '"v2"'}, body=CSV37)) as server:
        assert new(tmp_path, server.url(), previous=etag_state('"v1"')).state == etag_state('"v2"')


def test_http_404_and_removed(tmp_path: Path) -> None:
    for previous in (None, etag_state('"v1"')):
        for status in (404, 410):
            with Server(Reply(status=status, body=b"gone")) as server:
                said = refused(tmp_path, server.url(), SourceNotFoundError, previous=previous)
            assert f"not found: HTTP status {status}" in said
            assert len(server.requests) == 1


def test_http_unreachable(tmp_path: Path) -> None:
    clock = Clock()
    with closed_port() as port:
        said = refused(tmp_path, f"http://127.0.0.1:{port}/x", retries=3, first_wait=0.5, clock=clock)
    assert said == f"cannot connect to port {port}: connection refused (4 attempts)"
    assert clock.waits == [0.5, 1.0, 2.0]


DATED = SourceState(source_name="default", kind="odf/last-modified", value="2015-10-21T07:28:00Z")


@pytest.mark.parametrize(
    ("headers", "state", "time"),
    [
        pytest.param({"Last-Modified": MODIFIED}, DATED, MODIFIED_TIME, id="derived_1"),
        pytest.param({"Last-Modified": MODIFIED} | TAG, etag_state('"v1"'), MODIFIED_TIME, id="both"),
        pytest.param({}, None, None, id="derived_2: neither"),
        *(
            pytest.param({"Last-Modified": date}, None, None, id=f"derived_7: {date!r}")
            for date in ("yesterday", "Wed, 31 Feb 2015 07:28:00 GMT", "2015-10-21T07:28:00Z", "", "\xff")
        ),
    ],
)
def test_the_tag_is_the_state_else_the_date_which_is_the_event_time(
    tmp_path: Path, headers: dict[str, str], state: SourceState | None, time: Timestamp | None
) -> None:
    with Server(Reply(headers=headers, body=CSV37)) as server:
        result = new(tmp_path, server.url())
    assert (result.state, result.event_time) == (state, time)


def test_http_derived_3_the_condition_is_an_http_date(tmp_path: Path) -> None:
    state = last_modified_state(Timestamp.parse("2015-10-21T07:28:00.999Z"))
    with Server(Reply(status=304)) as server:
        assert get(tmp_path, server.url(), state) is None
    assert server.requests[0].headers["if-modified-since"] == MODIFIED


def test_http_derived_4_other_statuses(tmp_path: Path) -> None:
    for status, body, said in (
        (401, b"\n  who are you?\r\nmore", "HTTP status 401 (Unauthorized): who are you?"),
        (403, b"<html>no</html>", "HTTP status 403 (Forbidden)"),
        (400, b"x" * 100_000, "HTTP status 400 (Bad Request): " + "x" * 199 + "…"),
        (499, b"\x1b[31m\x00\xff", "HTTP status 499: \\x1b[31m\\x00\ufffd"),
        (204, b"", "HTTP status 204 (No Content)"),
        (300, b"", "HTTP status 300 (Multiple Choices)"),
        (302, b"", "HTTP status 302 (Found)"),
        (304, b"", "HTTP status 304 (Not Modified)"),
        (206, b"abc", "HTTP status 206 (Partial Content): abc"),
    ):
        with Server(Reply(status=status, body=body)) as server:
            assert refused(tmp_path, server.url()) == said
        assert len(server.requests) == 1, "and is not tried again"


def test_http_derived_6_a_silent_server(tmp_path: Path) -> None:
    with Server(Reply(raw=[b"HTTP/1.1 "], stall=True)) as server:
        said = refused(tmp_path, server.url(), retries=0, idle_timeout=0.05)
    assert said == "no byte within 0.05 s (1 attempt)"


# --- conditions and states -------------------------------------------------------------------------


def test_a_server_that_ignores_conditions(tmp_path: Path) -> None:
    meter = Meter()
    for headers, previous in (
        (TAG, etag_state('"v1"')),
        ({"Last-Modified": MODIFIED}, replace(DATED, value="2015-10-21T07:28:00.000Z")),
    ):
        with Server(Reply(headers=headers, pieces=itertools.repeat(b"x" * 1_000))) as server:
            assert get(tmp_path, server.url(), previous, progress=meter) is None
    assert list(tmp_path.iterdir()) == []
    assert meter.phases == [], "and nothing was downloaded"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("odf/etag", ""),
        ("odf/etag", "two\nlines"),
        ("odf/etag", "\u20ac"),
        ("odf/last-modified", "long ago"),
        ("x/other", '"v1"'),
    ],
)
def test_a_remembered_state_that_cannot_be_asked_with(tmp_path: Path, kind: str, value: str) -> None:
    previous = SourceState(source_name="default", kind=kind, value=value)
    with Server(Reply(headers=TAG, body=CSV37)) as server:
        assert new(tmp_path, server.url(), previous=previous).state == etag_state('"v1"')
    assert not [name for name in server.requests[0].headers if name.startswith("if-")]


def test_an_empty_body(tmp_path: Path) -> None:
    with Server(Reply(headers=TAG)) as server:
        assert new(tmp_path, server.url()).path.read_bytes() == b""


def test_an_encoding_that_was_not_asked_for_is_kept_and_noted(tmp_path: Path) -> None:
    meter = Meter()
    with Server(Reply(headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8bxyz")) as server:
        assert new(tmp_path, server.url(), progress=meter).path.read_bytes() == b"\x1f\x8bxyz"
    assert meter.notes == [
        "the source: the server sends it encoded as gzip though asked not to; it is taken as it is"
    ]


# --- retries ---------------------------------------------------------------------------------------


def test_failures_that_pass(tmp_path: Path) -> None:
    clock = Clock()
    script = [Reply(status=status, body=b"later") for status in (500, 503, 408, 429)]
    with Server(*script, Reply(body=CSV37)) as server:
        result = new(tmp_path, server.url(), clock=clock, first_wait=0.5)
    assert result.path.read_bytes() == CSV37
    assert clock.waits == [0.5, 1.0, 2.0, 4.0]


def test_an_answer_that_is_not_http(tmp_path: Path) -> None:
    for raw in ([b"hello\r\n\r\n"], [], [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000]):
        with Server(Reply(raw=raw)) as server:
            said = refused(tmp_path, server.url(), retries=0)
        assert said.endswith("(1 attempt)")


def test_the_server_says_when(tmp_path: Path) -> None:
    date = {"Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT", "Date": MODIFIED}
    long_past = {"Retry-After": MODIFIED}
    said = ({"Retry-After": "120"}, date, {"Retry-After": "soon"}, {"retry-after": "-5"}, long_past)
    clock = Clock()
    with Server(*(Reply(status=503, headers=headers) for headers in said), Reply(body=CSV37)) as server:
        new(tmp_path, server.url(), clock=clock, first_wait=0.5, retries=5)
    assert clock.waits == [120.0, 30.0, 2.0, 4.0, 8.0]


# --- bodies that break off -------------------------------------------------------------------------


def broken(cut: int = 100_000, headers: dict[str, str] = TAG, **changes: Any) -> Reply:
    """`BIG`, which breaks off."""
    return Reply(headers=headers, body=BIG, cut=cut, length=len(BIG), **changes)


def first_byte(request: Request) -> int:
    return int(request.headers["range"].removeprefix("bytes=").removesuffix("-"))


def ranged(request: Request, body: bytes, headers: dict[str, str]) -> Reply:
    """What a server that knows ranges answers."""
    start = first_byte(request)
    content_range = f"bytes {start}-{len(body) - 1}/{len(body)}"
    return Reply(status=206, headers={"Content-Range": content_range} | headers, body=body[start:])


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("headers", "validator"),
    [
        (TAG, '"v1"'),
        ({"Last-Modified": MODIFIED, "Date": "Wed, 21 Oct 2015 07:28:01 GMT"}, MODIFIED),
        ({"ETag": 'W/"v1"', "Last-Modified": MODIFIED, "Date": "Wed, 21 Oct 2015 07:29:00 GMT"}, MODIFIED),
    ],
)
def test_a_broken_body_is_continued(
    tmp_path: Path, headers: dict[str, str], validator: str, reset: bool
) -> None:
    meter = Meter()
    first = broken(headers=headers, reset=reset)
    with Server(first, lambda request: ranged(request, BIG, headers)) as server:
        result = new(tmp_path, server.url(), progress=meter, previous=etag_state('"v0"'))
    assert result.path.read_bytes() == BIG
    asked, again = server.requests
    assert asked.headers["if-none-match"] == '"v0"'
    assert again.headers["if-range"] == validator
    assert 0 < first_byte(again) <= 100_000
    assert "if-none-match" not in again.headers
    assert (meter.phases, meter.steps) == ([("Downloading the source", len(BIG))], len(BIG))
    assert result.state == (etag_state(headers["ETag"]) if "ETag" in headers else DATED)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"ETag": 'W/"v1"'},
        {"Last-Modified": MODIFIED},
        {"Last-Modified": MODIFIED, "Date": MODIFIED},
        TAG | {"Accept-Ranges": "none"},
    ],
)
def test_a_broken_body_without_a_strong_validator_begins_anew(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    with Server(broken(headers=headers), Reply(headers=headers, body=CSV37)) as server:
        result = new(tmp_path, server.url())
    assert result.path.read_bytes() == CSV37
    assert "range" not in server.requests[1].headers


def test_a_server_that_ignores_ranges(tmp_path: Path) -> None:
    meter = Meter()
    with Server(broken(), Reply(headers={"ETag": '"v2"'}, body=CSV37)) as server:
        result = new(tmp_path, server.url(), progress=meter)
    assert "range" in server.requests[1].headers
    assert (result.path.read_bytes(), result.state) == (CSV37, etag_state('"v2"'))
    assert (meter.phases[-1], meter.steps) == (("Downloading the source", 37), 37)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, {"Content-Range": "bytes 5-9/512000"}),
        (206, {"Content-Range": "bytes 1000-511999/600000"}),
        (206, {"Content-Range": "bytes 1000-999/512000"}),
        (206, {"Content-Range": "bytes 1000-512000/512000"}),
        (206, {"Content-Range": "items 1000-511999/512000"}),
        (206, {"Content-Range": "nonsense"}),
        (206, {}),
        (206, {"Content-Range": "bytes 1000-511999/512000", "ETag": '"v2"'}),
        (416, {"Content-Range": "bytes */10"}),
    ],
)
def test_something_else_than_the_rest(tmp_path: Path, status: int, headers: dict[str, str]) -> None:
    wrong = Reply(status=status, headers=headers, body=b"wrong")
    with Server(broken(1_000), wrong, Reply(body=CSV37)) as server:
        result = new(tmp_path, server.url())
    assert (result.path.read_bytes(), result.state) == (CSV37, None)
    assert server.requests[1].headers["range"] == "bytes=1000-"
    assert "range" not in server.requests[2].headers, "the next attempt begins anew"


def test_a_body_that_breaks_off_again_and_again(tmp_path: Path) -> None:
    def some(request: Request) -> Reply:
        if "range" not in request.headers:
            return broken(1_000)
        return replace(ranged(request, BIG, TAG), cut=1_000, length=len(BIG))

    with Server(some) as server:
        said = refused(tmp_path, server.url(), retries=3)
    assert said == "the body was cut short (4 attempts)"
    assert server.requests[-1].headers["range"] == "bytes=3000-"


def test_a_part_that_ends_before_the_body_does(tmp_path: Path) -> None:
    def part(request: Request) -> Reply:
        if "range" not in request.headers:
            return broken(1_000)
        start = first_byte(request)
        end = min(start + 200_000, len(BIG))
        headers = {"Content-Range": f"Bytes {start}-{end - 1}/*"}
        return Reply(status=206, headers=headers, body=BIG[start:end])

    with Server(part) as server:
        assert new(tmp_path, server.url()).path.read_bytes() == BIG
    asked = [request.headers["range"] for request in server.requests[1:]]
    assert asked == ["bytes=1000-", "bytes=201000-", "bytes=401000-"]


def test_a_part_without_any_total_begins_anew(tmp_path: Path) -> None:
    hello = Reply(headers=TAG | {"Transfer-Encoding": "chunked"}, body=b"5\r\nhello\r\n")
    part = Reply(status=206, headers={"Content-Range": "bytes 5-9/*"}, body=b"world")
    with Server(hello, part, Reply(body=CSV37)) as server:
        assert new(tmp_path, server.url()).path.read_bytes() == CSV37
    with Server(hello, replace(part, headers={"Content-Range": "bytes 5-9/10"})) as server:
        assert new(tmp_path, server.url()).path.read_bytes() == b"helloworld"


# --- limits ----------------------------------------------------------------------------------------

LARGE = "larger than the allowed 50,000 bytes"
REFUSED: dict[str, tuple[list[Reply], dict[str, Any], str]] = {
    "an error whose body breaks off": (
        [Reply(status=400, body=b"why", length=100)], {}, "HTTP status 400 (Bad Request): why",
    ),
    "the same failure every time": (
        [Reply(status=502)] * 3, {"retries": 2}, "HTTP status 502 (Bad Gateway) (3 attempts)",
    ),
    "a pause that is too long": (
        [Reply(status=503, headers={"Retry-After": "7200"})], {},
        "HTTP status 503 (Service Unavailable); the server asks for a pause of 7200 s, which is too long",
    ),
    "a rest that goes on too long": (
        [
            Reply(headers=TAG, body=BIG, cut=1_000, length=2_000),
            Reply(206, {"Content-Range": "bytes 1000-1999/2000"}, pieces=[b"x" * 1_001]),
        ],
        {}, "the body is longer than the announced 2,000 bytes",
    ),
    "an endless body": (
        [Reply(pieces=itertools.repeat(b"x" * 10_000))], {"max_bytes": 50_000}, LARGE,
    ),
    "announced as too large": ([Reply(length=50_001, stall=True)], {"max_bytes": 50_000}, LARGE),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_server_may_not_do(tmp_path: Path, what: str) -> None:
    script, limits, said = REFUSED[what]
    clock = Clock()
    with Server(*script) as server:
        assert refused(tmp_path, server.url(), clock=clock, **limits) == said
    assert len(server.requests) == len(script)
    assert len(clock.waits) == len(script) - 1


def test_a_body_may_be_as_large_as_is_allowed(tmp_path: Path) -> None:
    with Server(Reply(body=b"x" * 50_000)) as server:
        assert new(tmp_path, server.url(), max_bytes=50_000).path.stat().st_size == 50_000


def test_a_body_that_trickles(tmp_path: Path) -> None:
    clock = Clock()

    def a_byte_a_minute() -> Iterator[bytes]:
        while True:
            clock.now += 60
            yield b"x"

    with Server(Reply(pieces=a_byte_a_minute())) as server:
        said = refused(tmp_path, server.url(), clock=clock, deadline=3_600.0)
    assert said == "not complete after 3600 s"


def test_retries_end_at_the_deadline(tmp_path: Path) -> None:
    clock = Clock()

    def late(_: Request) -> Reply:
        clock.now += 100
        return Reply(status=500)

    with Server(late) as server:
        said = refused(tmp_path, server.url(), clock=clock, deadline=250.0, retries=1_000)
    assert said.endswith(("not complete after 250 s", "no time is left for another attempt"))
    assert len(server.requests) == 3


def test_no_room_for_the_body(tmp_path: Path) -> None:
    with Server(Reply(body=CSV37)) as server, pytest.raises(StoreError, match="No such file"):
        get(tmp_path / "gone", server.url())


# --- redirects -------------------------------------------------------------------------------------


def to(location: str, status: int = 302) -> Reply:
    return Reply(status=status, headers={"Location": location}, body=b"elsewhere")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(tmp_path: Path, status: int) -> None:
    with Server(to("../b/c.csv?d#e", status), Reply(headers=TAG, body=CSV37)) as server:
        url = server.url("/a/x").replace("//", "//me:p%20w@")
        result = new(tmp_path, url, previous=etag_state('"v0"'), headers={"X-Key": "k"})
    assert (result.path.read_bytes(), result.state) == (CSV37, etag_state('"v1"'))
    first, second = server.requests
    assert second.target == "/b/c.csv?d"
    for request in (first, second):
        assert request.headers["authorization"] == "Basic bWU6cCB3"
        assert request.headers["x-key"] == "k"
        assert request.headers["if-none-match"] == '"v0"'


def test_a_location_in_utf_8(tmp_path: Path) -> None:
    for location in ("/\xc3\xa4 b", "/\xe4 b"):
        with Server(to(location), Reply(body=CSV37)) as server:
            new(tmp_path, server.url())
        assert server.requests[1].target == "/%C3%A4%20b"


def test_cookies_are_not_kept(tmp_path: Path) -> None:
    with Server(
        replace(to("/b"), headers={"Location": "/b", "Set-Cookie": "a=b"}), Reply(body=CSV37)
    ) as server:
        new(tmp_path, server.url())
    assert "cookie" not in server.requests[1].headers


def test_headers_stay_with_their_origin(tmp_path: Path) -> None:
    """And do not come back either, when the other origin sends the request back."""
    with Server(host="127.0.0.2") as other, Server(to(other.url("/x")), Reply(body=CSV37)) as server:
        other._script.append(to(server.url("/back").replace("//", "//stranger:password@")))
        new(
            tmp_path,
            server.url().replace("//", "//me:pw@"),
            headers={"Authorization": "Bearer t", "X-Key": "k", "User-Agent": "mine"},
            allow_private=True,
        )
    assert server.requests[0].headers["authorization"] == "Bearer t"
    assert server.requests[0].headers["user-agent"] == "mine"
    for request in (*other.requests, server.requests[1]):
        assert not {"authorization", "x-key"} & set(request.headers)
        assert request.headers["user-agent"].startswith("odfchain/")
    assert len(other.requests) == 1


def test_redirects_in_a_circle(tmp_path: Path) -> None:
    with Server(to("/b"), to("/c"), to("/b")) as server:
        said = refused(tmp_path, server.url("/a"))
    assert said == f"the redirects go in a circle, back to {server.url('/b')}"


def test_too_many_redirects(tmp_path: Path) -> None:
    numbers = itertools.count(1)
    with Server(lambda _: to(f"/{next(numbers)}?secret")) as server:
        said = refused(tmp_path, server.url(), redirects=3)
    assert said == f"more than 3 redirects, the last one to {server.url('/4')}"
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    "location",
    ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x", "javascript:0", "http://127.0.0.1:99999/",
     "http://h:port/", "http://h:0/", "\x07"],
)  # fmt: skip
def test_redirects_to_what_is_not_the_web(tmp_path: Path, location: str) -> None:
    with Server(to(location)) as server:
        assert "redirected to " in refused(tmp_path, server.url(), allow_private=True)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"]  # noqa: S104
)  # fmt: skip
def test_redirects_to_private_addresses(tmp_path: Path, host: str) -> None:
    """The check is on the address that would be connected to, however it is written."""
    with Server(Reply(body=b"internal"), host="0.0.0.0") as hidden:  # noqa: S104
        location = f"http://{host}:{hidden.port}/x"
        with Server(to(location)) as server:
            said = refused(tmp_path, server.url())
        assert said == (
            f"the source (redirected to {location}): a redirect to a private network address is refused"
        )
        assert hidden.requests == []
        if "[" not in host:
            with Server(to(location)) as server:
                assert new(tmp_path, server.url(), allow_private=True).path.read_bytes() == b"internal"


def test_a_route_that_began_in_public_never_gets_private() -> None:
    """Also not by the name it began with, once that leads to another address."""
    for first, later, admitted in (("93.184.216.34", "10.0.0.1", False), ("10.0.0.7", "10.0.0.1", True)):
        route = Route(parse_target("http://h/a", name="x"), name="x", limit=5, allow_private=False)
        assert route.admits(first)
        route.connected(first)
        route.follow("/b", ())
        assert route.admits(later) is admitted
        assert route.admits("93.184.216.34")
        route.follow("https://h/b", ())
        assert route.admits(later) is admitted, "the upgrade to https counts as the same origin"
        assert route.keeps_headers
        with pytest.raises(FetchError, match="redirected from https to http, to http://h/c: refused"):
            route.follow("http://h/c", ())
        route.follow("https://h:444/b", ())
        assert not route.admits(later)
        assert not route.keeps_headers


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False), ("10.1.2.3", False), ("172.16.0.1", False), ("192.168.0.1", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False),  # noqa: S104
        ("224.0.0.1", False),
        ("255.255.255.255", False), ("::1", False), ("::", False), ("fe80::1", False), ("fc00::1", False),
        ("ff02::1", False), ("::ffff:10.0.0.1", False), ("64:ff9b::a00:1", False), ("2002:a00:1::", False),
        ("2001:0:1::1", False),
        ("64:ff9b:1::a00:1", False), ("64:ff9b:1::5db8:d822", False), ("64:ff9b::7f00:1", False),
        ("::127.0.0.1", False), ("::93.184.216.34", False), ("::ffff:0:127.0.0.1", False),
        ("::ffff:0:93.184.216.34", False), ("::ffff:93.184.216.34", True), ("::ffff:127.0.0.1", False),
        ("fec0::1", False), ("feff::1", False), ("2002:7f00:1::1", False), ("2002:5db8:d822::1", True),
        ("2001:0:5db8:d822::1", False), ("2001:db8::1", False), ("3fff::1", False), ("5f00::1", False),
        ("4000::1", False), ("100::1", False), ("2606:2800:220:1:0:5efe:10.0.0.1", False),
        ("2606:2800:220:1:200:5efe:127.0.0.1", False), ("2606:2800:220:1:0:5efe:93.184.216.34", True),
        ("fe80::1%1", False), ("2002:e000:1::1", False), ("64:ff9b::e000:1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


# --- requests that cannot be made ------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://", "http:///x", "http://h:0/", "http://h:65536/", "http://h:x/", "http://[::1/", "http://h/\udc00",
            "ftp://h/", "http://a\x00b/", "http://a b/", "http://h:+80/", "http://[zz]/", "http://\u2603\ufe0f/",
            "http:h", "http://h/" + "x" * 66_000],
)  # fmt: skip
def test_urls_that_are_none(tmp_path: Path, url: str) -> None:
    assert refused(tmp_path, url) == "not a valid URL"


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("HTTP://Data.Example.ORG", "data.example.org", 80, b"/"),
        ("https://h:8443/a/./b/../c?d=../e", "h", 8443, b"/a/c?d=../e"),
        ("http://h/../..", "h", 80, b"/"),
        ("http://h//a//../b", "h", 80, b"//a/b"),
        ("http://h/a b\u00e4{}`%2f%?q={}` \u00e4#f", "h", 80, b"/a%20b%C3%A4%7B%7D%60%2f%?q={}`%20%C3%A4"),
        ("http://h?x", "h", 80, b"/?x"),
        ("http://b\u00fccher.example/", "xn--bcher-kva.example", 80, b"/"),
        ("http://stra\u00dfe.example/", "xn--strae-oqa.example", 80, b"/"),
        ("http://me@a:p@[::1]:81/", "::1", 81, b"/"),
        ("http://2130706433/", "2130706433", 80, b"/"),
    ],
)
def test_where_a_url_leads(url: str, host: str, port: int, path: bytes) -> None:
    found = parse_target(url, name="x")
    assert (found.host, found.port, found.path) == (host, port, path)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".invalid"])
def test_hosts_that_are_none(tmp_path: Path, host: str) -> None:
    assert "host" in refused(tmp_path, f"http://{host}/x", retries=0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("a b", "x", "'a b' is not a name of a header"),
        ("", "x", "'' is not a name of a header"),
        ("X\r\nY", "x", "is not a name of a header"),
        ("X-Key", "s3cret\r\nX-Other: y", "the value of the header X-Key has characters that cannot be sent"),
        ("X-Key", "s3cret \u20ac", "the value of the header X-Key has characters that cannot be sent"),
        ("Range", "bytes=0-", "the header Range cannot be set"),
        ("if-none-match", "*", "the header if-none-match cannot be set"),
        ("Content-Length", "9", "the header Content-Length cannot be set"),
    ],
)
def test_headers_that_cannot_be_sent(tmp_path: Path, name: str, value: str, said: str) -> None:
    assert said in refused(tmp_path, "http://127.0.0.1:1/", headers={name: value})


def test_secrets_stay_out_of_what_servers_say(tmp_path: Path) -> None:
    secrets = frozenset({"s3cret/+"})
    with Server(Reply(status=400, body=b"bad key s3cret/+ (s3cret%2F%2B)")) as server:
        said = refused(tmp_path, server.url(), secrets=secrets)
    assert said.endswith(": bad key *** (***)")
    for location in ("/s3cret/+", "ftp://x/s3cret%2F%2B", "/a?k=s3cret/+"):
        with Server(lambda _, location=location: to(location)) as server:
            assert "s3cret" not in refused(tmp_path, server.url(), secrets=secrets, redirects=0)


# --- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (MODIFIED, "2015-10-21T07:28:00Z"),
        ("Wednesday, 21-Oct-15 07:28:00 GMT", "2015-10-21T07:28:00Z"),
        ("Sunday, 06-Nov-94 08:49:37 GMT", "1994-11-06T08:49:37Z"),
        ("Sun Nov  6 08:49:37 1994", "1994-11-06T08:49:37Z"),
        ("Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00Z"),
        ("Sat, 31 Dec 2016 23:59:60 GMT", "2016-12-31T23:59:59Z"),
        ("Sat, 29 Feb 2020 12:00:00 GMT", "2020-02-29T12:00:00Z"),
        ("Sun, 29 Feb 2021 12:00:00 GMT", None),
        ("Wed, 21 Oct 2015 24:00:00 GMT", None),
        ("Wed, 21 Oct 2015 07:28:00 PST", "2015-10-21T15:28:00Z"),
        ("Wed, 21 Oct 2015 07:28:00 +9999", None),
        ("wed, 21 oct 2015 07:28:00 gmt", "2015-10-21T07:28:00Z"),
        ("Wed, 21 Oct 2015", None),
        ("0", None),
    ],
)
def test_dates(text: str, time: str | None) -> None:
    found = parse_http_date(text)
    assert (None if found is None else str(found)) == time


@given(st.text(st.sampled_from("Wed, 2-1:Oct20.+GM\xb2\xa0"), max_size=40))
def test_any_text_is_a_date_or_none(text: str) -> None:
    parse_http_date(text)


def test_dates_are_written_in_the_one_form_that_all_understand(tmp_path: Path) -> None:
    for time, said in (
        ("1994-11-06T08:49:37.9Z", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("0001-01-01T00:00:00Z", "Mon, 01 Jan 0001 00:00:00 GMT"),
    ):
        with Server(Reply(status=304)) as server:
            assert get(tmp_path, server.url(), last_modified_state(Timestamp.parse(time))) is None
        assert server.requests[0].headers["if-modified-since"] == said


def test_of_two_headers_with_one_name_the_first_counts() -> None:
    headers = Headers([("ETag", ' "a" '), ("etag", '"b"'), ("X", "")])
    assert (headers.get("ETAG"), headers.get("x"), headers.length()) == ('"a"', None, None)
