"""How object stores are opened and what their failures are called, for sources and for peers alike.

Addresses and credentials come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), as with other tools.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from odfchain.limits import FetchLimits
from odfchain.net.template import redact
from odfchain.store.locations import Location
from odfchain.text import one_line
from odfchain.versions import __version__

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_RETRY_TIMEOUT = 180.0
"""Longest time in which a request is repeated [s]; signatures do not live much longer."""

_PREFIXES = {"s3": "AWS", "gs": "GOOGLE"}
_SWITCHES = ("allow_http", "allow_invalid_certificates")
_TEXTS = ("proxy_url", "proxy_ca_certificate", "proxy_excludes")
_PREAMBLE = re.compile(r"^.*? in [0-9.]+[^\s,]*s(?:, after .*?)? +- ")
_SHOWN = 300


def open_store(place: Location, limits: FetchLimits, seconds: float, *, signed: bool = True) -> ObjectStore:
    """The bucket, container or web server of a place; `seconds` is the longest time for one request.

    A server that speaks like S3 has its buckets as the first segment of its paths. Requests that are not
    `signed` carry none of the environment's credentials; those to web servers never do.

    Raises:
        BaseError, ValueError: the library's own, when what it is told does not fit together.
    """
    from obstore.store import HTTPStore, S3Store, from_url  # noqa: PLC0415 - a heavy library

    options = {
        **_client_options(place.store),
        "user_agent": f"odfchain/{__version__}",
        "connect_timeout": dt.timedelta(seconds=limits.connect_timeout),
        "read_timeout": dt.timedelta(seconds=limits.idle_timeout),
        "timeout": dt.timedelta(seconds=max(1e-3, seconds)),
    }
    retry: RetryConfig = {
        "max_retries": limits.retries,
        "backoff": {"init_backoff": dt.timedelta(seconds=limits.first_wait)},
        "retry_timeout": dt.timedelta(seconds=max(1e-3, min(_RETRY_TIMEOUT, seconds))),
    }
    if place.store in ("http", "https"):  # `from_url` would take a host of Amazon's for a bucket
        options["allow_http"] = place.store == "http"
        return HTTPStore.from_url(
            place.container or "", client_options=cast("ClientConfig", options), retry_config=retry
        )
    unsigned = {} if signed else {"skip_signature": True}
    if place.endpoint is None or not place.speaks_s3:
        root = f"{place.store}://{place.container}"
        if place.endpoint is not None:  # an account of Azure's
            host = place.endpoint.removeprefix("https://").replace(".blob.", ".dfs.", 1)
            root = f"abfss://{place.container}@{host}"
        return from_url(
            root, client_options=cast("ClientConfig", options), retry_config=retry, **cast("Any", unsigned)
        )
    options["allow_http"] = place.endpoint.startswith("http://")  # whoever writes s3+http means it
    return S3Store(
        place.container or "",
        endpoint=place.endpoint,
        virtual_hosted_style_request=False,
        client_options=cast("ClientConfig", options),
        retry_config=retry,
        **cast("Any", unsigned),
    )


def _client_options(scheme: str) -> dict[str, Any]:
    """What the environment says of the connection: the library reads it only when nothing is given."""
    prefix = _PREFIXES.get(scheme, "AZURE")
    found = {option: os.environ.get(f"{prefix}_{option.upper()}") for option in (*_SWITCHES, *_TEXTS)}
    options: dict[str, Any] = {option: value for option, value in found.items() if value}
    for option in _SWITCHES:
        if option in options:
            options[option] = options[option].lower() in ("1", "true", "yes", "on", "y")
    return options


def store_message(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What the library says of a failure, as one printable line without the values in `secrets`."""
    line = (str(error).splitlines() or [""])[0]
    return one_line(redact(_PREAMBLE.sub("", line), secrets), _SHOWN)
