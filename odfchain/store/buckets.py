"""How object stores are opened and what their failures are called, for sources and for peers alike.

Addresses and credentials come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), as with other tools.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from odfchain.limits import FetchLimits
from odfchain.net.template import redact
from odfchain.store.locations import ENVIRONMENT_HINT, Location
from odfchain.text import one_line
from odfchain.versions import __version__

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_RETRY_TIMEOUT = 180.0
"""Longest time in which a request is repeated [s]; signatures do not live much longer."""

_AZURE_VERSION = "2023-11-03"
"""The oldest protocol of Azure writes entity tags otherwise; it is spoken to whoever names none."""
_OF_AZURE = (".blob.core.windows.net", ".blob.fabric.microsoft.com")
_PREFIXES = {"s3": "AWS", "gs": "GOOGLE"}
_SWITCHES = ("allow_http", "allow_invalid_certificates")
_TEXTS = ("proxy_url", "proxy_ca_certificate", "proxy_excludes")
_PREAMBLE = re.compile(r"^.*? in [0-9.]+[^\s,]*s(?:, after .*?)? +- ")
_SHOWN = 300
_CLOCK = "RequestTimeTooSkewed|RequestExpired|Request date header too old|check your iat and exp"
_CLOCK_HINT = (
    "set the clock of this machine: it differs from the store's by more than that takes (S3: 15 minutes)"
)
_BUSY_HINT = "the store has too much to do: run the command again later"
_LOST_HINT = f"run the command again when the store can be reached; {ENVIRONMENT_HINT}"
_ACCESS_HINT = (
    "grant reading and listing (without it a store does not say what is absent), and look at the clock"
)
_HINTS = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (_CLOCK, _CLOCK_HINT),
        (" (?:429|503) |SlowDown", _BUSY_HINT),
        (
            "error sending request|body error|timed out|header not present in partial| 5[0-9][0-9] ",
            _LOST_HINT,
        ),
        (" 40[13] ", _ACCESS_HINT),
    )
)
"""What to do about failures, by what the library says of them."""


def open_store(
    place: Location,
    limits: FetchLimits,
    seconds: float,
    *,
    signed: bool = True,
    through: str | None = None,
) -> ObjectStore:
    """The bucket, container or web server of a place; `seconds` is the longest time for one request.

    A server that speaks like S3 has its buckets as the first segment of its paths. Requests that are not
    `signed` carry none of the environment's credentials; those to web servers never do. They go `through` a
    proxy, if one is given.
    """
    from obstore.store import AzureStore, HTTPStore, S3Store, from_url  # noqa: PLC0415 - a heavy library

    options = {
        **_client_options(place.store),
        "user_agent": f"odfchain/{__version__}",
        "connect_timeout": dt.timedelta(seconds=limits.connect_timeout),
        "read_timeout": dt.timedelta(seconds=limits.idle_timeout),
        "timeout": dt.timedelta(seconds=max(1e-3, seconds)),
    }
    if through is not None:
        options["proxy_url"] = through
    retry: RetryConfig = {
        "max_retries": limits.retries,
        "backoff": {"init_backoff": dt.timedelta(seconds=limits.first_wait)},
        "retry_timeout": dt.timedelta(seconds=max(1e-3, min(_RETRY_TIMEOUT, seconds))),
    }
    config = cast("ClientConfig", options)
    if place.endpoint is not None and not place.endpoint.endswith(_OF_AZURE):  # whoever writes http means it
        options["allow_http"] = place.endpoint.startswith("http://")
    if place.store in ("http", "https"):  # `from_url` would take a host of Amazon's for a bucket
        options["allow_http"] = place.store == "http"
        return HTTPStore.from_url(place.container or "", client_options=config, retry_config=retry)
    unsigned: dict[str, Any] = {} if signed else {"skip_signature": True}
    if place.store == "az" and place.endpoint is not None and not signed:
        # a store of Azure's would send the environment's encryption key
        headers: dict[str, Any] = {"default_headers": {"x-ms-version": _AZURE_VERSION}}
        root = f"{place.endpoint}/{place.container}"
        return HTTPStore.from_url(
            root, client_options=cast("ClientConfig", options | headers), retry_config=retry
        )
    if place.endpoint is None or place.endpoint.endswith(_OF_AZURE):
        root = f"{place.store}://{place.container}"
        if place.endpoint is not None:  # the environment may say where the account is
            host = urlsplit(place.endpoint).netloc.replace(".blob.", ".dfs.", 1)
            root = f"abfss://{place.container}@{host}"
        return from_url(root, client_options=config, retry_config=retry, **unsigned)
    if place.store == "az":  # another server that speaks like Azure's
        return AzureStore(
            place.container,
            endpoint=place.endpoint,
            account_name=_account(place.endpoint),
            client_options=config,
            retry_config=retry,
        )
    # a customer's key of encryption in the environment is sent with unsigned requests, too: AES256 has none
    unsigned |= {} if signed else {"server_side_encryption": "AES256"}
    return S3Store(
        place.container or "",
        endpoint=place.endpoint,
        virtual_hosted_style_request=False,
        client_options=config,
        retry_config=retry,
        **unsigned,
    )


def _account(endpoint: str) -> str:
    """The account of Azure's that an endpoint is of: its host says it, or for other servers its path."""
    parts = urlsplit(endpoint)
    return parts.path.strip("/").partition("/")[0] or (parts.hostname or "").partition(".")[0]


def _client_options(scheme: str) -> dict[str, Any]:
    """What the environment says of the connection: the library reads it only when nothing is given."""
    prefix = _PREFIXES.get(scheme, "AZURE")
    found = {option: os.environ.get(f"{prefix}_{option.upper()}") for option in (*_SWITCHES, *_TEXTS)}
    options: dict[str, Any] = {option: value for option, value in found.items() if value}
    for option in _SWITCHES:
        if option in options:
            options[option] = options[option].lower() in ("1", "true", "yes", "on", "y")
    return options


def store_hint(error: BaseException) -> str:
    """What to do about a failure of the library's."""
    line = (str(error).splitlines() or [""])[0]
    return next((hint for pattern, hint in _HINTS if pattern.search(line)), ENVIRONMENT_HINT)


def store_refuses(error: BaseException) -> bool:
    """Whether a store refuses a request as not allowed; of listings the library does not say so by itself."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError  # noqa: PLC0415 - as above

    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    return bool(re.search(r"status code: 40[13] ", (str(error).splitlines() or [""])[0]))


def store_message(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What the library says of a failure, as one printable line without the values in `secrets`."""
    line = (str(error).splitlines() or [""])[0]
    return one_line(redact(_PREAMBLE.sub("", line), secrets), _SHOWN)
