"""The object store fetcher against a simulated S3, and against scripted servers for Google's and Azure's."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import SourceNotFoundError, StoreError
from odfchain.ingest.fetch_url import fetch_object, fetch_url
from odfchain.ingest.fetching import UP_TO_DATE, Fetched, FetchResult, etag_state, last_modified_state
from odfchain.odf.sources import FetchStepUrl
from odfchain.odf.times import Timestamp
from tests.kit.servers import (
    CSV37,
    MODIFIED,
    MODIFIED_TIME,
    Clock,
    Meter,
    Reply,
    Server,
    closed_port,
    context,
    fetched,
    refusal,
)
from tests.kit.stand_ins import BUCKET, simulated_s3

Put = Callable[[str, bytes], object]


@pytest.fixture(scope="module")
def _store() -> Iterator[str]:
    with simulated_s3() as address:
        yield address


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def put(_store: str, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Stores an object in the simulated store, which the environment names."""
    import obstore
    from obstore.store import S3Store

    monkeypatch.setenv("AWS_ENDPOINT_URL", _store)
    return partial(obstore.put, S3Store(BUCKET, endpoint=_store, client_options={"allow_http": True}))


@contextlib.contextmanager
def scripted(*, head: Reply, get: Reply) -> Iterator[None]:
    """A store that the environment names answers so."""
    with (
        Server(lambda request: head if request.method == "HEAD" else get) as server,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("AWS_ENDPOINT_URL", server.url(""))
        yield


get = partial(fetched, fetch_object)
refused = partial(refusal, get, retries=0)


def new(folder: Path, url: str, **changes: Any) -> Fetched:
    result: FetchResult = get(folder, url, **changes)
    assert result is not UP_TO_DATE
    return result


def test_an_object_is_brought_once_for_each_of_its_states(tmp_path: Path, put: Put) -> None:
    put("a/data.csv", CSV37)
    meter = Meter()
    first = new(tmp_path, f"s3://{BUCKET}/a/data.csv", progress=meter)
    assert first.path.read_bytes() == CSV37
    assert (first.path.parent, first.name, first.has_more) == (tmp_path, "the source", False)
    assert (meter.phases, meter.steps) == ([("Downloading the source", 37)], 37)
    assert first.state is not None
    assert first.state.kind == "odf/etag"
    assert first.state.value.startswith('"')
    assert first.event_time is not None
    assert abs(first.event_time.epoch_ms - Timestamp.now().epoch_ms) < 3_600_000
    assert get(tmp_path, f"s3a://{BUCKET}/a/data.csv", first.state) is UP_TO_DATE
    put("a/data.csv", CSV37 + b"D,4\n")
    second = new(tmp_path, f"s3://{BUCKET}/a/data.csv", previous=first.state)
    assert second.path.read_bytes() == CSV37 + b"D,4\n"
    assert second.state != first.state


def test_through_the_step(tmp_path: Path, put: Put) -> None:
    put("k/data.csv", CSV37)
    url = "s3://${{ env.BUCKET }}/k/data.csv"
    result = fetch_url(FetchStepUrl(url=url), context(tmp_path, variables={"BUCKET": BUCKET}))
    assert result is not UP_TO_DATE
    assert (result.name, result.path.read_bytes()) == (url, CSV37)


def test_keys_are_percent_decoded(tmp_path: Path, put: Put) -> None:
    put("ä %41.csv", CSV37)
    assert new(tmp_path, f"s3://{BUCKET}/ä %2541.csv").path.read_bytes() == CSV37


def test_a_large_and_an_empty_object(tmp_path: Path, put: Put) -> None:
    large = bytes(range(256)) * 20_000
    for body in (b"", large):
        put("x", body)
        meter = Meter()
        assert new(tmp_path, f"s3://{BUCKET}/x", progress=meter).path.read_bytes() == body
        assert (meter.phases, meter.steps) == ([("Downloading the source", len(body))], len(body))


def test_what_is_not_there(tmp_path: Path, put: Put) -> None:
    for url in (f"s3://{BUCKET}/none.csv", "s3://no-such-bucket/x.csv"):
        assert refused(tmp_path, url, SourceNotFoundError) == "no such object or bucket"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "does not name an object"),
        ("s3://bucket1", "does not name an object"),
        ("s3://bucket1/", "does not name an object"),
        ("s3://bucket1/folder/", "does not name an object"),
        ("s3:///key", "does not name an object"),
        ("s3://bucket1/a?versionId=1", "an object has no query"),
        ("s3://bucket1/a#b", "an object has no query"),
        ("s3://[x/y", "not a valid URL"),
        ("s3://KEY:secret@bucket1/x", "carries no credentials"),
        ("s3://bucket1/a//b", "empty path segment"),
        ("s3://bucket1/a/../b", "illegal character sequence"),
    ],
)
def test_what_is_no_object(tmp_path: Path, put: Put, url: str, said: str) -> None:
    assert said in refused(tmp_path, url)


def test_larger_than_allowed(tmp_path: Path, put: Put) -> None:
    put("x", b"x" * 101)
    assert "larger than the allowed 100 bytes" in refused(tmp_path, f"s3://{BUCKET}/x", max_bytes=100)


def test_no_room(tmp_path: Path, put: Put) -> None:
    put("x", CSV37)
    with pytest.raises(StoreError, match="No such file"):
        get(tmp_path / "gone", f"s3://{BUCKET}/x")


def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        said = refused(tmp_path, f"s3://{BUCKET}/x", retries=1)
        assert said == "HTTP error: error sending request"
        monkeypatch.delenv("AWS_ALLOW_HTTP")
        assert "HTTP error" in refused(tmp_path, f"s3://{BUCKET}/x"), "http only if the environment says so"


def test_a_refusal_is_told_in_one_line_without_values(tmp_path: Path) -> None:
    body = b"<Error>\n<Code>AccessDenied</Code>\n</Error>"
    with scripted(head=Reply(status=403), get=Reply(status=403, body=body)):
        said = refused(tmp_path, f"s3://{BUCKET}/my-value.csv", secrets={"my-value"})
    assert "403" in said
    assert "my-value" not in said


# --- a store that is scripted ----------------------------------------------------------------------


def described(tag: str | None, body: bytes = CSV37, **changes: Any) -> Reply:
    headers = {"Last-Modified": MODIFIED} | ({"ETag": tag} if tag else {})
    return Reply(headers=headers, body=body, **changes)


def test_an_object_that_changes_meanwhile(tmp_path: Path) -> None:
    """The state is that of the bytes that were brought, not of the bytes that were asked about."""
    with scripted(head=described('"old"', length=10), get=described('"new"')):
        result = new(tmp_path, f"s3://{BUCKET}/x", previous=etag_state('"older"'))
    assert (result.state, result.path.read_bytes()) == (etag_state('"new"'), CSV37)
    assert result.event_time == MODIFIED_TIME


def test_a_body_that_breaks_off(tmp_path: Path) -> None:
    broken = described('"v"', b"x" * 1_000, cut=500)
    with scripted(head=broken, get=broken):
        refused(tmp_path, f"s3://{BUCKET}/x", first_wait=0.001)


def test_a_silent_store(tmp_path: Path) -> None:
    silent = Reply(raw=[b"HTTP/1.1 "], stall=True)
    with scripted(head=silent, get=silent):
        refused(tmp_path, f"s3://{BUCKET}/x", idle_timeout=0.05)


def test_a_body_that_trickles(tmp_path: Path) -> None:
    clock = Clock()

    def slowly() -> Iterator[bytes]:
        yield b'HTTP/1.1 200 OK\r\nETag: "v"\r\nLast-Modified: ' + MODIFIED.encode()
        yield b"\r\nContent-Length: 100000000\r\n\r\n"
        for _ in itertools.count():
            clock.now += 60
            yield b"x" * 100_000

    with scripted(head=described('"v"', length=100_000_000), get=Reply(raw=slowly())):
        said = refused(tmp_path, f"s3://{BUCKET}/x", clock=clock, deadline=600.0)
    assert said == "not complete after 600 s"


@pytest.mark.parametrize(
    ("url", "target", "environment"),
    [
        ("gs://bucket1/a/b.csv", "/bucket1/a%2Fb%2Ecsv", {
            "GOOGLE_BASE_URL": "{}", "GOOGLE_SKIP_SIGNATURE": "true", "GOOGLE_ALLOW_HTTP": "true",
        }),
        ("az://box/a/b.csv", "/box/a/b.csv", {
            "AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ENDPOINT": "{}", "AZURE_SKIP_SIGNATURE": "true",
            "AZURE_ALLOW_HTTP": "true",
        }),
        ("abfs://box@me.dfs.core.windows.net/a/b.csv", "/box/a/b.csv", {
            "AZURE_STORAGE_ENDPOINT": "{}", "AZURE_SKIP_SIGNATURE": "true", "AZURE_ALLOW_HTTP": "1",
        }),
    ],
)  # fmt: skip
def test_the_stores_of_google_and_azure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, target: str, environment: dict[str, str]
) -> None:
    with Server(lambda _: described('"v1"')) as server:
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(server.url("")))
        result = new(tmp_path, url)
        assert (result.state, result.event_time) == (etag_state('"v1"'), MODIFIED_TIME)
        assert result.path.read_bytes() == CSV37
        assert get(tmp_path, url, etag_state('"v1"')) is UP_TO_DATE
    assert {request.target for request in server.requests} == {target}
    assert {r.headers["user-agent"].split("/")[0] for r in server.requests} == {"odfchain"}


def test_a_store_that_is_not_configured(tmp_path: Path) -> None:
    assert "Account must be specified" in refused(tmp_path, "az://box/a.csv")


def test_an_object_without_a_tag(tmp_path: Path) -> None:
    with scripted(head=described(None), get=described(None)):
        result = new(tmp_path, f"s3://{BUCKET}/x")
        assert get(tmp_path, f"s3://{BUCKET}/x", result.state) is UP_TO_DATE
    assert result.state == last_modified_state(MODIFIED_TIME)
