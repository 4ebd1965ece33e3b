"""Requests of a lock that somebody else made lead to public addresses, whatever servers and names say."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.assets import objects
from odfchain.assets.hrefs import parse_href
from odfchain.assets.objects import Facts, Probe, Stores
from odfchain.errors import FetchError
from odfchain.limits import FetchLimits
from odfchain.storage import public_proxy
from odfchain.storage.locations import Location
from tests.kit.lying_objects import BYTES, LyingObjects
from tests.kit.processes import TIMEOUT
from tests.kit.servers import Reply, Server, closed_port
from tests.kit.stand_ins import write_certificate
from tests.kit.support import IMPORTABLE

PUBLIC = "127.0.0.2"
"""An address of loopback that these tests take for a public one."""
FACTS = Facts(7, '"abc"', "2015-10-21T07:28:00+00:00")


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (objects, public_proxy):
        monkeypatch.setattr(module, "is_public", lambda address: address == PUBLIC)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def public() -> Iterator[LyingObjects]:
    with LyingObjects({"/x.tif": {}}, PUBLIC) as server:
        yield server


@pytest.fixture
def private() -> Iterator[LyingObjects]:
    with LyingObjects({"/secret": {}}) as server:
        yield server


def stores(folder: Path, **allowed: Any) -> Stores:
    return Stores(folder, limits=FetchLimits(retries=1, first_wait=0.01), **allowed)


def probed(href: str, where: Stores) -> Probe:
    return where.probe(parse_href(href))


def test_an_object_at_a_public_address(public: LyingObjects, tmp_path: Path) -> None:
    where = stores(tmp_path)
    assert probed(f"{public.origin}/x.tif", where).facts == FACTS
    assert where.read_small(parse_href(f"{public.origin}/x.tif"), 7) == BYTES
    assert probed(f"{public.origin}/y.tif", where).missing
    names = {name for _, _, headers in public.requests for name in headers}
    assert not any(name.startswith("proxy-") for name in names)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "169.254.169.254", "[::1]:{}", "localhost:{}"])
def test_case_41_redirects_to_private_addresses_are_refused(
    public: LyingObjects, private: LyingObjects, tmp_path: Path, address: str
) -> None:
    host = address.format(private.origin.rpartition(":")[2])
    public.answers["/x.tif"] = {"to": f"http://{host}/secret"}
    where = stores(tmp_path)
    found = probed(f"{public.origin}/x.tif", where)
    assert found.facts is None
    assert host.rpartition(":")[0].strip("[]") in found.problem
    assert "is at a private address" in found.problem
    with pytest.raises(FetchError, match="a private address"):
        where.read_small(parse_href(f"{public.origin}/x.tif"), 7)
    assert private.requests == []


def test_redirects_to_private_addresses_by_tls_are_refused(public: LyingObjects, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        port = listening.getsockname()[1]
        public.answers["/x.tif"] = {"to": f"https://127.0.0.1:{port}/secret"}
        assert f"leads to 127.0.0.1:{port}" in probed(f"{public.origin}/x.tif", stores(tmp_path)).problem
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_an_object_behind_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_ALLOW_INVALID_CERTIFICATES", "true")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(write_certificate(tmp_path / "certificate.pem", "odf.example"))
    headers = {"ETag": '"abc"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
    with Server(lambda _: Reply(headers=headers, body=BYTES), host=PUBLIC, tls=tls) as server:
        where = stores(tmp_path)
        assert probed(server.url("/x.tif"), where).facts == FACTS
        assert where.read_small(parse_href(server.url("/x.tif")), 7) == BYTES
        assert [request.target for request in server.requests] == ["/x.tif", "/x.tif"]


def test_redirects_among_public_addresses_are_followed(public: LyingObjects, tmp_path: Path) -> None:
    public.answers["/old.tif"] = {"to": f"{public.origin}/x.tif"}
    assert probed(f"{public.origin}/old.tif", stores(tmp_path)).facts == FACTS


def test_redirects_are_followed_where_the_user_allows_private_addresses(
    public: LyingObjects, private: LyingObjects, tmp_path: Path
) -> None:
    public.answers["/x.tif"] = {"to": f"{private.origin}/secret"}
    assert probed(f"{public.origin}/x.tif", stores(tmp_path, allow_private=True)).facts == FACTS


def test_a_name_that_resolves_otherwise_a_moment_later(
    private: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that is connected to is judged, not the one that was looked up before."""
    monkeypatch.setattr(objects, "resolve", lambda *args, **named: [PUBLIC])
    port = private.origin.rpartition(":")[2]
    found = probed(f"http://localhost:{port}/secret", stores(tmp_path))
    assert f"leads to localhost:{port}, which is at a private address" in found.problem
    assert private.requests == []


def test_a_stranger_s_s3_server_redirects_nowhere(
    public: LyingObjects, private: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "SESSION_TOKEN": "t0k3n"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "sse-c")
    monkeypatch.setenv("AWS_SSE_CUSTOMER_KEY_BASE64", "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=")
    public.answers |= {"/b/x": {"to": f"{private.origin}/secret"}, "/b/y": {}}
    place = Location("s3", "b", public.origin, "x")
    assert "a private address" in stores(tmp_path).probe(place).problem
    assert stores(tmp_path).probe(Location("s3", "b", public.origin, "y")).facts == FACTS
    assert private.requests == []
    sent = {name for _, _, headers in public.requests for name in headers}
    assert sent <= {"accept", "user-agent", "host", "connection", "range"}


def test_the_proxy_survives_what_is_no_request(
    public: LyingObjects, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(public_proxy.new_pass().url.rpartition(":")[2])
    for request in (b"\r\n\r\n", b"x" * 300_000, b"GET ftp://x HTTP/1.1\r\n\r\n", b"GET"):
        with socket.create_connection(("127.0.0.1", port)) as asked:
            asked.settimeout(TIMEOUT)
            with contextlib.suppress(ConnectionError):
                asked.sendall(request)
                asked.shutdown(socket.SHUT_WR)
                while asked.recv(1_000):
                    pass
    assert probed(f"{public.origin}/x.tif", stores(tmp_path)).facts == FACTS
    assert caplog.records == []


@pytest.mark.parametrize("size", [100_000, 400_000])
def test_heads_of_servers_have_an_end(public: LyingObjects, tmp_path: Path, size: int) -> None:
    public.answers["/x.tif"] = {"headers": size}
    found = probed(f"{public.origin}/x.tif", stores(tmp_path))
    assert (found.facts is None) == (size > 1 << 18)
    assert (found.facts is None) == bool(found.problem)


def test_a_public_address_where_nobody_answers(tmp_path: Path) -> None:
    with closed_port() as port:
        found = probed(f"http://{PUBLIC}:{port}/x.tif", stores(tmp_path))
    assert "502" in found.problem


def test_a_forked_process_starts_a_proxy_of_its_own() -> None:
    code = (
        "import os, multiprocessing as mp; from odfchain.storage import public_proxy\n"
        "def child(queue): queue.put(public_proxy.new_pass().url)\n"
        "if __name__ == '__main__':\n"
        " one = public_proxy.new_pass().url; context = mp.get_context('fork'); queue = context.Queue()\n"
        " found = context.Process(target=child, args=(queue,)); found.start(); other = queue.get(); found.join()\n"
        " assert one.rpartition(':')[2] != other.rpartition(':')[2], (one, other)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=IMPORTABLE | {"PATH": os.environ["PATH"]}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
