"""The FTP fetcher against a real server: states, paths, passwords, broken transfers, limits, hostile replies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import FetchError, SourceNotFoundError, StoreError
from odfchain.ingest.fetch_url import fetch_ftp, fetch_url, parse_mdtm, parse_place
from odfchain.ingest.fetching import UP_TO_DATE, Fetched, etag_state, last_modified_state
from odfchain.odf.sources import EventTimeSourceFromSystemTime, FetchStepUrl
from odfchain.odf.times import Timestamp
from tests.kit.ftp_server import MDTM, Ftp, Sending
from tests.kit.servers import CSV37, MODIFIED_TIME, Clock, Meter, closed_port, context

BIG = bytes(range(256)) * 2_000
STATE = last_modified_state(MODIFIED_TIME)


def served(**changes: Any) -> Ftp:
    return Ftp(**({"files": {"/data.csv": CSV37}} | changes))


def get(
    folder: Path, url: str, *, clock: Clock | None = None, secrets: tuple[str, ...] = (), **changes: Any
) -> Any:
    timing = (clock or Clock()).timing
    given = context(folder, name="the source", secrets=frozenset(secrets), timing=timing, **changes)
    return fetch_ftp(url, given)


def refused(folder: Path, url: str, error: type[FetchError] = FetchError, **changes: Any) -> str:
    """Fetches what must fail; returns the one line it says, and sees to it that nothing stays."""
    with pytest.raises(error) as caught:
        get(folder, url, **changes)
    assert list(folder.iterdir()) == []
    said = str(caught.value)
    assert said.startswith("the source: ")
    assert said.isprintable()
    assert len(said) < 400
    return said


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
        step = FetchStepUrl(url=server.url())
        found = fetch_url(step, context(tmp_path))
        other = fetch_url(
            FetchStepUrl(url=step.url, event_time=EventTimeSourceFromSystemTime()), context(tmp_path)
        )
    assert isinstance(found, Fetched)
    assert isinstance(other, Fetched)
    assert (found.event_time, other.event_time) == (MODIFIED_TIME, None)


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
    assert refused(tmp_path, url, retries=0) == f"the source: {said}"


def test_a_place_does_not_show_its_password() -> None:
    place = parse_place("ftp://u:p%40ss@h:2121/a", name="x")
    assert (place.user, place.password, place.host, place.port) == ("u", "p@ss", "h", 2121)
    assert "p@ss" not in repr(place)


# --- refusals --------------------------------------------------------------------------------------


def test_what_is_not_there(tmp_path: Path) -> None:
    with served() as server:
        said = refused(tmp_path, server.url("gone.csv"), SourceNotFoundError)
        assert said == "the source: not found: FTP reply 550 /gone.csv: No such file"
        said = refused(tmp_path, server.url("gone/data.csv"), SourceNotFoundError)
        assert said == "the source: not found: FTP reply 550 /gone: No such folder"
        refused(tmp_path, server.url("gone.csv"), SourceNotFoundError, previous=STATE)
    assert server.count("USER") == 3, "one attempt each"


def test_a_wrong_password_is_not_repeated_and_not_shown(tmp_path: Path) -> None:
    with served() as server, pytest.raises(FetchError) as caught:
        get(tmp_path, server.url(user="foo:s3cr%40t@"))
    assert str(caught.value) == "the source: FTP reply 530 foo, '***' is wrong"
    assert caught.value.hint == "check the user and the password in the URL"
    assert server.count("PASS") == 1


@pytest.mark.parametrize("password", ["s3/cret", "s3?cret", "s3#cret", "1?s3cret"])
def test_a_password_that_is_not_escaped_is_not_shown(tmp_path: Path, password: str) -> None:
    url = f"ftp://u:{password}@host/x"
    with pytest.raises(FetchError) as caught:
        fetch_url(FetchStepUrl(url=url), context(tmp_path))
    assert str(caught.value).startswith("ftp://***@host/x: ")


def test_values_of_variables_stay_out_of_what_servers_say(tmp_path: Path) -> None:
    with served() as server:
        said = refused(tmp_path, server.url("s3cret.csv"), SourceNotFoundError, secrets=("s3cret",))
    assert said == "the source: not found: FTP reply 550 /***.csv: No such file"


def test_other_refusals_are_final(tmp_path: Path) -> None:
    with served(replies={"RETR": ["553-Not\r\n like\x1b[2J\r\n553 this"]}) as server:
        assert refused(tmp_path, server.url()) == "the source: FTP reply 553-Not like\\x1b[2J 553 this"
    assert server.count("RETR") == 1


# --- failures that may pass ------------------------------------------------------------------------


def test_failures_that_pass(tmp_path: Path) -> None:
    clock = Clock()
    busy = "421 Too many users"
    with served(
        replies={"HELLO": [busy, "", "120 Soon"], "MDTM": ["450 Busy"], "RETR": ["451 Trouble"]}
    ) as server:
        result = get(tmp_path, server.url(), clock=clock, retries=5, first_wait=0.5)
    assert result.path.read_bytes() == CSV37
    assert result.state == STATE, "a state that is not told for once is no missing state"
    assert clock.waits == [0.5, 1, 2, 4, 8]


def test_failures_that_do_not_pass(tmp_path: Path) -> None:
    with served(replies={"HELLO": ["421 Too many users"] * 3}) as server:
        said = refused(tmp_path, server.url(), retries=2)
    assert said == "the source: FTP reply 421 Too many users (3 attempts)"
    with closed_port() as port:
        said = refused(tmp_path, f"ftp://127.0.0.1:{port}/x", retries=1)
    assert said == "the source: cannot connect: connection refused (2 attempts)"


def test_a_server_that_is_none(tmp_path: Path) -> None:
    with served(replies={"HELLO": ["HTTP/1.1 400 Bad Request", "\x00\xff"]}) as server:
        said = refused(tmp_path, server.url(), retries=0)
        assert said == "the source: the server does not answer in FTP: HTTP/1.1 400 Bad Request (1 attempt)"
        assert "does not answer in FTP" in refused(tmp_path, server.url(), retries=0)


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
    assert said == "the source: FTP reply 426 Connection broken (3 attempts)"
    assert [line for line in server.heard if line.startswith("REST")] == ["REST 1000", "REST 2000"]


# --- limits ----------------------------------------------------------------------------------------


def slowly(clock: Clock) -> Iterator[bytes]:
    """A byte a minute."""
    while True:
        clock.now += 60
        yield b"x"


def test_a_file_that_trickles(tmp_path: Path) -> None:
    clock = Clock()
    with served(sizes=False, sendings=[Sending(pieces=slowly(clock))]) as server:
        assert refused(tmp_path, server.url(), clock=clock) == "the source: not complete after 3600 s"


def test_replies_that_trickle(tmp_path: Path) -> None:
    clock = Clock()

    def lines() -> str:
        clock.now += 4_000
        return "220-Patience\r\n 220 is"

    with served(replies={"HELLO": [lines]}) as server:
        assert refused(tmp_path, server.url(), clock=clock) == "the source: not complete after 3600 s"


def test_replies_without_end(tmp_path: Path) -> None:
    with served(replies={"HELLO": ["220-x" + "\r\n and on" * 100_000]}) as server:
        assert refused(tmp_path, server.url()) == "the source: the server talks without end"


def test_a_silent_server(tmp_path: Path) -> None:
    with served(replies={"HELLO": ["220-There is"]}) as server:
        said = refused(tmp_path, server.url(), idle_timeout=0.05, retries=0)
    assert said == "the source: no byte within 0.05 s (1 attempt)"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with served(files={"/data.csv": BIG}) as server:
        said = refused(tmp_path, server.url(), max_bytes=1_000)
        assert said == "the source: larger than the allowed 1,000 bytes"
        server.sizes = False
        assert refused(tmp_path, server.url(), max_bytes=1_000) == said
        assert get(tmp_path, server.url(), max_bytes=len(BIG)).path.read_bytes() == BIG


def test_more_than_was_announced(tmp_path: Path) -> None:
    with served(sendings=[Sending(pieces=[CSV37, b"more"], after="226 Done")]) as server:
        said = refused(tmp_path, server.url(), retries=0)
    assert said == "the source: more came than the announced 37 bytes (1 attempt)"


def test_no_room_for_the_file(tmp_path: Path) -> None:
    with served() as server, pytest.raises(StoreError):
        get(tmp_path / "missing", server.url())


# --- hostile servers -------------------------------------------------------------------------------


def test_the_data_come_from_the_host_that_was_asked(tmp_path: Path) -> None:
    """Whatever address a server names: it could be one that only this machine can reach."""
    with served(passive_host="10,1,2,3") as server:
        assert get(tmp_path, server.url()).path.read_bytes() == CSV37


@pytest.mark.parametrize(
    "reply",
    ["227 (1,2,3)", "227 (127,0,0,1,999,1)", "227 (127,0,0,1,0,0)", "200 OK", "227 (127,0,0,1,1,9999999999999)"],
)  # fmt: skip
def test_ports_that_are_none(tmp_path: Path, reply: str) -> None:
    with served(replies={"PASV": [reply]}) as server:
        assert "the server does not answer in FTP" in refused(tmp_path, server.url(), retries=0)


@pytest.mark.parametrize(
    "reply", ["229 (|||x|)", "229 (|||-1|)", "229 (|||70000|)", "229 ()", "229", "229 (||1|)"]
)
def test_ports_that_are_none_over_ipv6(tmp_path: Path, reply: str) -> None:
    with served(host="::1", replies={"EPSV": [reply]}) as server:
        assert "the server does not answer in FTP" in refused(tmp_path, server.url(), retries=0)
