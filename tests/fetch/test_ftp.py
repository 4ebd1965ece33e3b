"""The FTP fetcher against a real server: states, paths, passwords, broken transfers, limits, hostile replies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import FetchError, SourceNotFoundError, StoreError
from odfchain.ingest.fetch_url import fetch_ftp, fetch_url, parse_mdtm, parse_place
from odfchain.ingest.fetching import UP_TO_DATE, Fetched, etag_state, last_modified_state
from odfchain.odf.sources import EventTimeSourceFromSystemTime, FetchStepUrl
from odfchain.odf.times import Timestamp
from tests.kit.ftp_server import MDTM, Ftp, Sending
from tests.kit.servers import CSV37, MODIFIED_TIME, Clock, Meter, closed_port, context, fetched, refusal

BIG = bytes(range(256)) * 2_000
STATE = last_modified_state(MODIFIED_TIME)


def served(**changes: Any) -> Ftp:
    return Ftp(**({"files": {"/data.csv": CSV37}} | changes))


get = partial(fetched, fetch_ftp)
refused = partial(refusal, get)


# --- what is brought, and what is remembered -------------------------------------------------------


def test_case_ftp_ok(tmp_path: Path) -> None:
    """ftp.ok, on a server that tells no times: no state, and the event time is that of the system."""
    with served(modified=None) as server:
        result = fetch_url(FetchStepUrl(url=server.url(user="foo:bar@")), context(tmp_path))
    assert isinstance(result, Fetched)
    assert result.path.read_bytes() == CSV37
    assert result.path.parent == tmp_path
    assert (result.state, result.event_time, result.has_more) == (None, None, False)
    assert result.name == server.url(), "without the password"
    assert server.heard[:3] == ["USER foo", "PASS bar", "TYPE I"]


def test_a_file_is_brought_once_for_each_time_of_its_modification(tmp_path: Path) -> None:
    meter = Meter()
    with served() as server:
        result = get(tmp_path, server.url(), progress=meter)
        assert (result.state, result.event_time) == (STATE, MODIFIED_TIME)
        assert (meter.phases, meter.steps) == ([("Downloading the source", 37)], 37)
        assert get(tmp_path, server.url(), previous=STATE) is UP_TO_DATE
        assert server.count("RETR") == 1
        server.modified = "20151021072759"
        assert get(tmp_path, server.url(), previous=STATE) is not UP_TO_DATE, "older is a change as well"
        assert get(tmp_path, server.url(), previous=etag_state("x")) is not UP_TO_DATE
    assert [line for line in server.heard[:3] if "anonymous" in line] == ["USER anonymous", "PASS anonymous@"]
    assert server.heard[-1] == "QUIT"


def test_the_step_says_what_the_event_time_is(tmp_path: Path) -> None:
    with served() as server:
        for event_time, time in ((None, MODIFIED_TIME), (EventTimeSourceFromSystemTime(), None)):
            found = fetch_url(FetchStepUrl(url=server.url(), event_time=event_time), context(tmp_path))
            assert isinstance(found, Fetched)
            assert found.event_time == time


@pytest.mark.parametrize("content", [b"", BIG])
@pytest.mark.parametrize("sizes", [True, False])
def test_an_empty_and_a_large_file(tmp_path: Path, content: bytes, sizes: bool) -> None:
    with served(files={"/data.csv": content}, sizes=sizes) as server:
        assert get(tmp_path, server.url()).path.read_bytes() == content


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """The state must be that of the bytes."""
    with served(replies={"MDTM": [f"213 {MDTM}", "213 20151021072900"]}) as server:
        server.modified = "20151021072900"
        result = get(tmp_path, server.url())
        assert (server.count("RETR"), str(result.state.value)) == (2, "2015-10-21T07:29:00Z")
        assert result.path.read_bytes() == CSV37


def test_over_ipv6(tmp_path: Path) -> None:
    with served(host="::1") as server:
        assert get(tmp_path, server.url()).path.read_bytes() == CSV37
    assert server.count("EPSV") == 1


@pytest.mark.parametrize(
    ("reply", "time"),
    [
        ("213 20151021072800", "2015-10-21T07:28:00Z"),
        ("213 20151021072800.5", "2015-10-21T07:28:00.500Z"),
        ("213 20151021072800.123456789", "2015-10-21T07:28:00.123Z"),
        ("213 20161231235960", "2016-12-31T23:59:59Z"),
        ("213 20150230000000", None),
        ("213 191151021072800", None),
        ("213 00000101000000", None),
        ("213 yesterday", None),
        ("250 20151021072800", None),
        ("", None),
    ],
)
def test_times(reply: str, time: str | None) -> None:
    assert parse_mdtm(reply) == (Timestamp.parse(time) if time else None)


# --- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "commands"),
    [
        ("a/b/x.csv", ["CWD a", "CWD b", "RETR x.csv"]),
        ("a/b/x.csv;type=i", ["CWD a", "CWD b", "RETR x.csv"]),
        ("a//b/x.csv", ["CWD a", "CWD b", "RETR x.csv"]),
        ("/a/b/x.csv", ["CWD /", "CWD a", "CWD b", "RETR x.csv"]),
        ("%2Fa/b/x.csv", ["CWD /a", "CWD b", "RETR x.csv"]),
        ("%C3%A4%20%3F%23", ["RETR ä ?#"]),
        ("ä %3F%23", ["RETR ä ?#"]),
    ],
)
def test_paths(tmp_path: Path, path: str, commands: list[str]) -> None:
    with served(files={"/a/b/x.csv": CSV37, "/ä ?#": CSV37}) as server:
        assert get(tmp_path, server.url(path)).path.read_bytes() == CSV37
    assert [line for line in server.heard if line.split(" ")[0] in ("CWD", "RETR")] == commands


def test_a_path_begins_where_the_user_does(tmp_path: Path) -> None:
    with served(files={"/home/foo/x": b"own", "/x": b"root"}, home="/home/foo") as server:
        assert get(tmp_path, server.url("x")).path.read_bytes() == b"own"
        assert get(tmp_path, server.url("/x")).path.read_bytes() == b"root"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp:", "not a valid URL"),
        ("ftp:///x", "not a valid URL"),
        ("ftp://h:0/x", "not a valid URL"),
        ("ftp://h:65536/x", "not a valid URL"),
        ("ftp://h:s3cret/x", "not a valid URL"),
        ("ftp://[::1/x", "not a valid URL"),
        ("ftp://u:s3cret@h", "does not name a file"),
        ("ftp://h/folder/", "does not name a file"),
        ("ftp://h/x?y", "an ftp URL has no query"),
        ("ftp://h/x#y", "an ftp URL has no query"),
        ("ftp://h/x;type=a", "files are transferred as they are: only ;type=i is supported"),
        ("ftp://h/x%0D%0ADELE%20y", "the URL has line breaks, which cannot be sent"),
        ("ftp://h/a%0Ab/x", "the URL has line breaks, which cannot be sent"),
        ("ftp://u:s3cret%0D%0A@h/x", "the URL has line breaks, which cannot be sent"),
        ("ftp://u%00:p@h/x", "the URL has line breaks, which cannot be sent"),
        ("ftp://nowhere.invalid/x", "no such host"),
        (f"ftp://{'a' * 64}.example/x", "not a valid host name"),
    ],
)
def test_what_is_no_url_of_a_file(tmp_path: Path, url: str, said: str) -> None:
    assert refused(tmp_path, url, retries=0) == said


def test_a_place_does_not_show_its_password() -> None:
    place = parse_place("ftp://u:p%40ss@h:2121/a", name="x")
    assert (place.user, place.password, place.host, place.port) == ("u", "p@ss", "h", 2121)
    assert "p@ss" not in repr(place)


# --- refusals --------------------------------------------------------------------------------------


def test_what_is_not_there(tmp_path: Path) -> None:
    with served() as server:
        said = refused(tmp_path, server.url("gone.csv"), SourceNotFoundError)
        assert said == "not found: FTP reply 550 /gone.csv: No such file"
        said = refused(tmp_path, server.url("gone/data.csv"), SourceNotFoundError)
        assert said == "not found: FTP reply 550 /gone: No such folder"
        refused(tmp_path, server.url("gone.csv"), SourceNotFoundError, previous=STATE)
    assert server.count("USER") == 3, "one attempt each"


def test_a_wrong_password_is_not_repeated_and_not_shown(tmp_path: Path) -> None:
    with served() as server, pytest.raises(FetchError) as caught:
        get(tmp_path, server.url(user="foo:s3cr%40t@"))
    assert str(caught.value) == "the source: FTP reply 530 foo, '***' is wrong"
    assert caught.value.hint == "check the user and the password in the URL"
    assert server.count("PASS") == 1


def test_a_password_that_is_not_escaped_is_not_shown(tmp_path: Path) -> None:
    """The others that end a host are those of `test_url.py`."""
    with pytest.raises(FetchError) as caught:
        fetch_url(FetchStepUrl(url="ftp://u:1?s3cret@host/x"), context(tmp_path))
    assert str(caught.value).startswith("ftp://***@host/x: ")


def test_values_of_variables_stay_out_of_what_servers_say(tmp_path: Path) -> None:
    with served() as server:
        said = refused(tmp_path, server.url("s3cret.csv"), SourceNotFoundError, secrets=("s3cret",))
    assert said == "not found: FTP reply 550 /***.csv: No such file"


def test_other_refusals_are_final(tmp_path: Path) -> None:
    with served(replies={"RETR": ["553-Not\r\n like\x1b[2J\r\n553 this"]}) as server:
        assert refused(tmp_path, server.url()) == "FTP reply 553-Not like\\x1b[2J 553 this"
    assert server.count("RETR") == 1


# --- failures that may pass ------------------------------------------------------------------------


def test_failures_that_pass(tmp_path: Path) -> None:
    clock = Clock()
    busy = "421 Too many users"
    replies = {"HELLO": [busy, "", "120 Soon"], "MDTM": ["450 Busy"], "RETR": ["451 Trouble"]}
    with served(replies=replies) as server:
        result = get(tmp_path, server.url(), clock=clock, retries=5, first_wait=0.5)
    assert result.path.read_bytes() == CSV37
    assert result.state == STATE, "a state that is not told for once is no missing state"
    assert clock.waits == [0.5, 1, 2, 4, 8]


def hello(*replies: str) -> dict[str, Any]:
    return {"replies": {"HELLO": [*replies]}}


NO_FTP = "the server does not answer in FTP"
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "busy": (hello(*["421 Too many users"] * 3), {"retries": 2}, "FTP reply 421 Too many users (3 attempts)"),
    "no FTP": (hello("HTTP/1.1 400 Bad Request"), {}, f"{NO_FTP}: HTTP/1.1 400 Bad Request (1 attempt)"),
    "no text": (hello("\x00\xff"), {}, f"{NO_FTP}: \\x00ÿ (1 attempt)"),
    "a reply without end": (hello("220-x" + "\r\n and on" * 100_000), {}, "the server talks without end"),
    "silence": (hello("220-There is"), {"idle_timeout": 0.05}, "no byte within 0.05 s (1 attempt)"),
    "more than announced": (
        {"sendings": [Sending(pieces=[CSV37, b"more"], after="226 Done")]},
        {},
        "more came than the announced 37 bytes (1 attempt)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_server_may_not_do(tmp_path: Path, what: str) -> None:
    script, limits, said = REFUSED[what]
    with served(**script) as server:
        assert refused(tmp_path, server.url(), **{"retries": 0} | limits) == said


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with closed_port() as port:
        said = refused(tmp_path, f"ftp://127.0.0.1:{port}/x", retries=1)
    assert said == f"cannot connect to port {port}: connection refused (2 attempts)"


@pytest.mark.parametrize(
    "sending",
    [
        Sending(cut=100_000),
        Sending(cut=100_000, after="451 Disk trouble"),
        Sending(cut=100_000, after="226 Done, it says"),
        Sending(cut=100_000, after=""),
        Sending(reset=True, after=""),
    ],
    ids=["426", "451", "226", "gone", "reset"],
)
def test_a_broken_transfer_is_continued(tmp_path: Path, sending: Sending) -> None:
    with served(files={"/data.csv": BIG}, sendings=[sending]) as server:
        result = get(tmp_path, server.url())
    assert result.path.read_bytes() == BIG
    assert result.state == STATE
    assert server.count("RETR") <= 2
    if sending.cut:
        assert "REST 100000" in server.heard


def test_all_bytes_but_not_the_servers_word(tmp_path: Path) -> None:
    with served(sendings=[Sending(after="")]) as server:
        assert get(tmp_path, server.url()).path.read_bytes() == CSV37
    assert server.count("RETR") == 1


@pytest.mark.parametrize(
    ("changes", "restarts"),
    [
        ({"modified": None}, 0),
        ({"sizes": False}, 0),
        ({"restarts": "502 What?"}, 1),
        ({"ignores_rest": True}, 1),
        ({"replies": {"MDTM": ["213 20151021072700"]}}, 0),
    ],
    ids=["no time", "no size", "no REST", "REST ignored", "changed"],
)
def test_or_begun_anew(tmp_path: Path, changes: dict[str, Any], restarts: int) -> None:
    with served(files={"/data.csv": BIG}, sendings=[Sending(cut=300_000)], **changes) as server:
        result = get(tmp_path, server.url())
    assert result.path.read_bytes() == BIG
    assert server.count("REST") == restarts


def test_a_transfer_that_breaks_again_and_again(tmp_path: Path) -> None:
    with served(files={"/data.csv": BIG}, sendings=[Sending(cut=1_000) for _ in range(3)]) as server:
        said = refused(tmp_path, server.url(), retries=2)
    assert said == "FTP reply 426 Connection broken (3 attempts)"
    assert [line for line in server.heard if line.startswith("REST")] == ["REST 1000", "REST 2000"]


# --- limits ----------------------------------------------------------------------------------------


def test_a_file_that_trickles(tmp_path: Path) -> None:
    clock = Clock()

    def a_byte_a_minute() -> Iterator[bytes]:
        while True:
            clock.now += 60
            yield b"x"

    with served(sizes=False, sendings=[Sending(pieces=a_byte_a_minute())]) as server:
        assert refused(tmp_path, server.url(), clock=clock) == "not complete after 3600 s"


def test_replies_that_trickle(tmp_path: Path) -> None:
    clock = Clock()

    def lines() -> str:
        clock.now += 4_000
        return "220-Patience\r\n 220 is"

    with served(replies={"HELLO": [lines]}) as server:
        assert refused(tmp_path, server.url(), clock=clock) == "not complete after 3600 s"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with served(files={"/data.csv": BIG}) as server:
        said = refused(tmp_path, server.url(), max_bytes=1_000)
        assert said == "larger than the allowed 1,000 bytes"
        server.sizes = False
        assert refused(tmp_path, server.url(), max_bytes=1_000) == said
        assert get(tmp_path, server.url(), max_bytes=len(BIG)).path.read_bytes() == BIG


def test_no_room_for_the_file(tmp_path: Path) -> None:
    with served() as server, pytest.raises(StoreError):
        get(tmp_path / "missing", server.url())


# --- hostile servers -------------------------------------------------------------------------------


def test_the_data_come_from_the_host_that_was_asked(tmp_path: Path) -> None:
    """Whatever address a server names: it could be one that only this machine can reach."""
    with served(passive_host="10,1,2,3") as server:
        assert get(tmp_path, server.url()).path.read_bytes() == CSV37


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("PASV", "227 (1,2,3)"), ("PASV", "227 (127,0,0,1,999,1)"), ("PASV", "227 (127,0,0,1,0,0)"),
        ("PASV", "200 OK"), ("PASV", "227 (127,0,0,1,1,9999999999999)"),
        ("EPSV", "229 (|||x|)"), ("EPSV", "229 (|||-1|)"), ("EPSV", "229 (|||70000|)"), ("EPSV", "229 ()"),
        ("EPSV", "229"), ("EPSV", "229 (||1|)"),
    ],
)  # fmt: skip
def test_ports_that_are_none(tmp_path: Path, command: str, reply: str) -> None:
    host = "::1" if command == "EPSV" else "127.0.0.1"
    with served(host=host, replies={command: [reply]}) as server:
        assert NO_FTP in refused(tmp_path, server.url(), retries=0)
