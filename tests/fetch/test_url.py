"""What a URL step brings: files without a copy, the web and object stores by their scheme, event times."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import FetchError, IngestError, SourceNotFoundError
from odfchain.ingest.fetch_url import fetch_url
from odfchain.ingest.fetching import UP_TO_DATE, FetchContext, Fetched, last_modified_state
from odfchain.odf.sources import (
    EventTimeSource,
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
    FetchStepUrl,
    RequestHeader,
)
from odfchain.odf.times import Timestamp
from tests.kit.servers import CSV37, MODIFIED, MODIFIED_TIME, Reply, Server, context

MTIME_NS = 1_445_412_480_123_456_789
MTIME = Timestamp.parse("2015-10-21T07:28:00.123Z")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    path.write_bytes(CSV37)
    os.utime(path, ns=(MTIME_NS, MTIME_NS))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where fetchers put what they bring."""
    path = tmp_path / "fetched"
    path.mkdir()
    return path


def fetch(url: str, folder: Path, event_time: EventTimeSource | None = None, **changes: Any) -> Fetched:
    headers = tuple(RequestHeader(name=k, value=v) for k, v in changes.pop("headers", {}).items())
    step = FetchStepUrl(url=url, event_time=event_time, headers=headers or None)
    result = fetch_url(step, context(folder, **changes))
    assert result is not UP_TO_DATE
    return result


def refused(url: str, folder: Path, error: type[IngestError] = IngestError, **changes: Any) -> str:
    with pytest.raises(error) as caught:
        fetch(url, folder, **changes)
    assert list(folder.iterdir()) == []
    assert str(caught.value).isprintable()
    return str(caught.value)


# --- the conformance cases, by id ------------------------------------------------------------------


def test_url_file_missing(folder: Path, data: Path) -> None:
    missing = data.with_name("none.csv")
    assert refused(missing.as_uri(), folder, SourceNotFoundError) == f"{missing}: no such file"
    assert "no such file" in refused(f"{data.as_uri()}/below", folder, SourceNotFoundError)


def test_url_file_first(folder: Path, data: Path) -> None:
    """Zero copy: the path is the user's own."""
    result = fetch(data.as_uri(), folder)
    assert result == Fetched(path=data, name=str(data), state=last_modified_state(MTIME), event_time=MTIME)
    assert result.state is not None
    assert result.state.value == "2015-10-21T07:28:00.123Z"
    assert list(folder.iterdir()) == []
    assert data.read_bytes() == CSV37


def test_url_file_unchanged(folder: Path, data: Path) -> None:
    step = FetchStepUrl(url=data.as_uri())
    state = last_modified_state(MTIME)
    assert fetch_url(step, context(folder, state)) is UP_TO_DATE
    assert fetch_url(step, context(folder, replace(state, value="2015-10-21T07:28:00.123000Z"))) is UP_TO_DATE
    for other in (MTIME_NS + 1_000_000, MTIME_NS - 10**9):
        os.utime(data, ns=(other, other))
        assert fetch_url(step, context(folder, state)) is not UP_TO_DATE, "older is a change as well"


def test_url_file_event_time(folder: Path, tmp_path: Path, data: Path) -> None:
    dated = tmp_path / "2020-03-04 x"
    dated.mkdir()
    data.rename(dated / "data.csv")
    url = (dated / "data.csv").as_uri()
    pattern = EventTimeSourceFromPath(pattern=r"(\d+-\d+-\d+) x/", timestamp_format="%Y-%m-%d")
    assert "%20" in url
    for source, time in (
        (None, MTIME),
        (EventTimeSourceFromMetadata(), MTIME),
        (EventTimeSourceFromSystemTime(), None),
        (pattern, Timestamp.parse("2020-03-04T00:00:00Z")),
    ):
        assert fetch(url, folder, source).event_time == time


def test_url_env_missing(folder: Path) -> None:
    said = refused("http://host/${{ env.KAMU_TEST }}", folder, variables={"OTHER": "s3cret"})
    assert said == (
        "http://host/${{ env.KAMU_TEST }}: the variable KAMU_TEST of ${{ env.KAMU_TEST }} has no value"
    )


def test_url_env_set_and_default(folder: Path) -> None:
    with Server(*[Reply(body=CSV37)] * 2) as server:
        fetch(server.url("/${{ env.KAMU_TEST }}"), folder, variables={"KAMU_TEST": "data.csv"})
        fetch(server.url("/${{ env.KAMU_TEST || 'data.csv' }}"), folder)
    assert [request.target for request in server.requests] == ["/data.csv"] * 2


@pytest.mark.parametrize(
    "url", ["ftps://host/x", "ipfs://x", "data:,x", "odf://x", "mailto:a@b", "FTPES://host/", "gopher:x"]
)
def test_url_other_scheme(folder: Path, url: str) -> None:
    said = refused(url, folder)
    assert (
        said
        == f"{url}: this kind of URL is not supported (file, http, https, ftp, s3, gs, az, azure and abfs are)"
    )


# --- files -----------------------------------------------------------------------------------------


def test_spellings_of_one_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "ä %41?#;x.csv"
    path.write_bytes(b"")
    assert fetch(path.as_uri(), folder).path == path
    assert fetch(f"file://localhost{path.as_uri().removeprefix('file://')}", folder).path == path
    assert fetch(f"FILE:{path.as_uri().removeprefix('file://')}", folder).path == path
    assert fetch(f"file://{tmp_path}/ä %2541%3F%23;x.csv", folder).path == path
    link = tmp_path / "link"
    link.symlink_to(path)
    assert fetch(link.as_uri(), folder).path == link


def test_a_file_named_in_bytes(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.csv")
    path.write_bytes(CSV37)
    assert fetch(f"file://{tmp_path}/%FF.csv", folder).path.read_bytes() == CSV37
    assert "no such file" in refused(f"file://{tmp_path}/%FE.csv", folder, SourceNotFoundError)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file://elsewhere/x.csv", "names another host"),
        ("file://x.csv", "names another host"),
        ("file:x.csv", "not an absolute path"),
        ("file:", "not an absolute path"),
        ("file:///x%00y", "not an absolute path"),
        ("file:///x?y", "a file has no query"),
        ("file:///x#y", "a file has no query"),
        ("file:///x%2fy", "an escaped slash"),
        ("file:///x%2Fy", "an escaped slash"),
        ("file://[x/y", "not a valid URL"),
        ("file:///x\ny", "the URL has control characters"),
        ("/data.csv", "not a URL"),
        ("data.csv", "not a URL"),
        ("", "not a URL"),
        ("file:///" + "x" * 300, "File name too long"),
    ],
)
def test_what_is_no_url_of_a_file(folder: Path, url: str, said: str) -> None:
    assert said in refused(url, folder)


def test_what_is_no_regular_file(folder: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert refused(fifo.as_uri(), folder) == f"{fifo}: is not a regular file"
    assert refused("file:///dev/null", folder) == "/dev/null: is not a regular file"
    assert refused(tmp_path.as_uri(), folder) == f"{tmp_path}: is a folder"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "symbolic links" in refused(loop.as_uri(), folder)


# --- the web ---------------------------------------------------------------------------------------


def test_event_time_of_what_a_server_sends(folder: Path) -> None:
    reply = Reply(headers={"Last-Modified": MODIFIED}, body=CSV37)
    pattern = EventTimeSourceFromPath(pattern=r"/(\d{4})\+", timestamp_format="%Y")
    with Server(*[reply] * 4) as server:
        url = server.url("/2019%2Bx?/2018+")
        assert fetch(url, folder).event_time == MODIFIED_TIME
        assert fetch(url, folder, EventTimeSourceFromMetadata()).event_time == MODIFIED_TIME
        assert fetch(url, folder, EventTimeSourceFromSystemTime()).event_time is None
        time = fetch(url, folder, pattern).event_time
    assert time == Timestamp.parse("2019-01-01T00:00:00Z")


def test_a_pattern_that_finds_nothing_costs_no_download(folder: Path) -> None:
    pattern = EventTimeSourceFromPath(pattern=r"/(\d{4})/")
    with Server() as server:
        assert r"/(\\d{4})/" in refused(server.url("/x"), folder, event_time=pattern)
        url = server.url("/${{ env.KEY }}")
        said = refused(url, folder, event_time=pattern, variables={"KEY": "s3cret"})
    assert url in said
    assert "s3cret" not in said
    assert server.requests == []


def test_secrets_go_to_the_server_and_nowhere_else(folder: Path) -> None:
    variables = {"KEY": "s3cret&${{ env.TOKEN }}", "TOKEN": "t0ken", "ME": "me"}
    with Server(
        Reply(body=CSV37), Reply(status=403, body=b"t0ken and s3cret&${{ env.TOKEN }} are wrong")
    ) as server:
        url = server.url("/x?k=${{ env.KEY }}")
        given = url.replace("//", "//${{ env.ME }}:${{ env.TOKEN }}@")
        headers = {"X-Token": "Bearer ${{ env.TOKEN }}"}
        result = fetch(given, folder, variables=variables, headers=headers)
        result.path.unlink()
        said = refused(given, folder, variables=variables, headers=headers)
    assert result.name == url
    assert server.requests[0].headers["x-token"] == "Bearer t0ken"
    assert server.requests[0].headers["authorization"] == "Basic bWU6dDBrZW4="
    assert server.requests[0].target.startswith("/x?k=s3cret&$"), "and the value was not expanded again"
    assert said == f"{url}: HTTP status 403 (Forbidden): *** and *** are wrong"


@pytest.mark.parametrize(
    ("url", "value"),
    [("${{ env.URL }}", "ftp://s3cret/"), ("${{ env.URL }}", "s3cret"), ("http://${{ env.URL }}/", "s3cret:port"),
     ("http://${{ env.URL }}/", "s3cret.invalid"), ("file:///${{ env.URL }}", "s3cret"),
     ("file://${{ env.URL }}", "s3cret"), ("http://h/${{ env.URL }}", "s3cret\n"), ("s3://${{ env.URL }}", "s3cret")],
)  # fmt: skip
def test_values_stay_out_of_messages(folder: Path, url: str, value: str) -> None:
    said = refused(url, folder, variables={"URL": value}, retries=0)
    assert said.startswith(f"{url}: ")
    assert "s3cret" not in said


def test_a_header_that_is_missing_its_value(folder: Path) -> None:
    said = refused("http://127.0.0.1:1/", folder, headers={"X-Key": "k ${{ env.KEY }}"})
    assert said == "http://127.0.0.1:1/: header X-Key: the variable KEY of ${{ env.KEY }} has no value"


# --- variables that are bound to hosts ---------------------------------------------------------------------


def keyed(url: str, header: bool = False) -> FetchStepUrl:
    if header:
        return FetchStepUrl(url=url, headers=(RequestHeader(name="X-Key", value="${{ env.K }}"),))
    return FetchStepUrl(url=f"{url}?k=${{{{ env.K }}}}")


def bound(folder: Path, *hosts: str, **changes: Any) -> FetchContext:
    variables = {"K": "SeCret7"}
    return context(folder, variables=variables, bindings={"K": hosts}, allow_private=True, **changes)


@pytest.mark.parametrize("header", [False, True])
def test_a_bound_variable_is_sent_to_its_host(tmp_path: Path, header: bool) -> None:
    with Server(Reply(body=CSV37), Reply(body=CSV37)) as server:
        for host in ("127.0.0.1", f"127.0.0.1:{server.port}"):
            assert fetch_url(keyed(server.url("/x"), header), bound(tmp_path, host)) is not UP_TO_DATE
    assert len(server.requests) == 2
    assert all("SeCret7" in request.target + request.headers.get("x-key", "") for request in server.requests)


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("hosts", [(), ("api.example.com",), ("127.0.0.1:1",), ("127.0.0",)])
def test_a_bound_variable_is_not_sent_to_another(
    tmp_path: Path, header: bool, hosts: tuple[str, ...]
) -> None:
    with Server() as server, pytest.raises(FetchError, match="the variable K may be sent to") as caught:
        fetch_url(keyed(server.url("/x"), header), bound(tmp_path, *hosts))
    assert server.requests == []
    assert "SeCret7" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://bucket/x"])
def test_nor_by_other_protocols(tmp_path: Path, url: str) -> None:
    step = FetchStepUrl(url=url + "${{ env.K }}")
    with pytest.raises(FetchError, match="the variable K may be sent to api only, not to"):
        fetch_url(step, bound(tmp_path, "api"))


def test_a_bound_variable_does_not_follow_a_redirect(tmp_path: Path) -> None:
    """The header stays with its origin; an address that repeats the value is not followed."""
    with Server(Reply(body=CSV37), host="127.0.0.2") as other:
        plain = Reply(status=302, headers={"Location": other.url("/plain")})
        with Server(plain) as server:
            fetch_url(keyed(server.url("/x"), header=True), bound(tmp_path, "127.0.0.1"))
        assert [request.headers.get("x-key") for request in other.requests] == [None]
        for text in ("/x?k=SeCret7", "/x?k=secret7", "/SeCret7/y"):
            carrying = Reply(status=302, headers={"Location": other.url(text)})
            with Server(carrying) as server, pytest.raises(FetchError) as caught:
                fetch_url(keyed(server.url("/x"), header=True), bound(tmp_path, "127.0.0.1"))
            assert "redirected with the value of the variable K, which may be sent to 127.0.0.1 only" in str(
                caught.value
            )
            assert "ecret7" not in str(caught.value)
        assert len(other.requests) == 1, "nothing was asked there"


def test_a_bound_variable_in_the_name_of_a_file_is_sent_nowhere(tmp_path: Path) -> None:
    (tmp_path / "SeCret7.csv").write_text("a\n")
    step = FetchStepUrl(url=f"file://{tmp_path}/${{{{ env.K }}}}.csv")
    assert fetch_url(step, bound(tmp_path, "api")) is not UP_TO_DATE


@pytest.mark.parametrize("scheme", ["ftp", "http", "https"])
@pytest.mark.parametrize("password", ["s3/cret", "s3?cret", "s3#cret"])
def test_a_password_that_ends_the_host_is_not_shown(scheme: str, password: str, folder: Path) -> None:
    said = refused(f"{scheme}://u:{password}@host/x", folder)
    assert said.startswith(f"{scheme}://***@host/x: not a valid URL")
