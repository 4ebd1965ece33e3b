"""A place in a store, taken apart: what kind of store, which container, at which server, under which key.

Inside, a place is a `Location` and never the text of a URL: nothing has to be escaped, unescaped or cut apart
twice, and no credentials can hide in it. Texts become locations where they come in (`Location.parse`).

| text | store, container, endpoint, key |
|---|---|
| `s3://bucket/a%20b` (also `s3a`, `s3n`), `gs://…` (`gcs`) | `s3`, `bucket`, none, `a b` |
| `s3+http://host:9000/bucket/a`, `s3+https://…` | `s3`, `bucket`, `http://host:9000`, `a` |
| `az://container/a` (also `azure`, `adl`, `abfs`, `abfss`) | `az`, `container`, none, `a` |
| `abfss://container@account.dfs.core.windows.net/a` | `az`, `container`, `https://account.blob.core.windows.net`, `a` |
| `https://Host:443/a%20b`, `http://…` | `https`, `https://host`, none, `a b` |
| `file:///srv/a`; `./a`, `a` | `file`, none, none, `/srv/a`; `a` |
"""  # noqa: E501 - a table

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

from odfchain.errors import InvalidIdError
from odfchain.limits import FetchLimits
from odfchain.storage.template import redact
from odfchain.text import one_line
from odfchain.versions import __version__

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


ENVIRONMENT_HINT = "the store's address and credentials come from the environment (AWS_…, GOOGLE_…, AZURE_…)"

LONGEST = 4_096
"""Bytes of a key, a container or an endpoint at most."""

_TYPES = {
    "s3": "s3", "s3a": "s3", "s3n": "s3", "s3+http": "s3", "s3+https": "s3", "gs": "gs", "gcs": "gs",
    "az": "az", "azure": "az", "adl": "az", "abfs": "az", "abfss": "az",
    "http": "http", "https": "https", "file": "file",
}  # fmt: skip
PORTS = {"http": 80, "https": 443}
"""The usual ports."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ACCOUNT = re.compile(
    r"([a-z0-9]+)\.(?:dfs|blob)\.(core\.windows\.net|fabric\.microsoft\.com)", re.IGNORECASE
)
_WRITE = "write it like s3://bucket/path/to/object"
# Unescaped characters in paths of http, https and file; not the plus sign: some read it as a space.
_IN_PATH = "/-._~!$&'()*,;=:@"
_CONTAINER = re.compile(r"[^/?#@\s]+")


@dataclass(frozen=True, slots=True)
class Location:
    """An object in a store, or (with a key that is empty or begins others) everything below a place.

    What is in it is printable and at most `LONGEST` long. Nothing of it is escaped.
    """

    store: str
    """`s3`, `gs`, `az`, `http`, `https` or `file`."""
    container: str | None
    """Bucket or container; for http and https the origin (`https://host[:port]`); None for files."""
    endpoint: str | None
    """Origin of a server that speaks like S3, or of an Azure account; None where that goes without saying."""
    key: str
    """Without a slash at either end; for a file its absolute path, or one that is relative to something."""

    @classmethod
    def parse(cls, text: str, *, folder: bool = False) -> Location:
        """The place that a text names; of a `folder` the key may be empty, or end in a slash in the text.

        Raises:
            InvalidIdError: no such place. The message has neither the text nor anything secret in it.
        """
        scheme = _scheme(text)
        store = _TYPES.get(scheme)
        if store is None:
            raise InvalidIdError(f"no kind of store is called {scheme!r}")
        try:
            parts = urlsplit(text)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise InvalidIdError("not a valid URL") from None
        if set("?#") & set(text):
            raise InvalidIdError("an object has no query", hint="in a key write ? as %3F and # as %23")
        path = _decoded(parts.path)
        user, at, authority = parts.netloc.rpartition("@")
        if store == "file":
            if parts.netloc not in ("", "localhost") or text.startswith("//"):
                raise InvalidIdError("names another host", hint="write it like file:///absolute/path")
            return cls(store, None, None, _key(path.removeprefix("./"), folder=folder))
        path = path.removeprefix("/")
        if store == "az" and at and (account := _ACCOUNT.fullmatch(authority)):
            endpoint = f"https://{account[1].lower()}.blob.{account[2].lower()}"
            return cls(store, _container(user, folder=folder), endpoint, _key(path, folder=folder))
        if at:
            raise InvalidIdError(
                "the URL of a store carries no credentials",
                hint=ENVIRONMENT_HINT,
            )
        if store in PORTS:
            return cls(store, _origin(scheme, host, port), None, _key(path, folder=folder))
        if scheme.startswith("s3+"):
            bucket, _, path = path.partition("/")
            endpoint = _origin(scheme.removeprefix("s3+"), host, port)
            return cls(store, _container(bucket, folder=folder), endpoint, _key(path, folder=folder))
        return cls(store, _container(authority, folder=folder), None, _key(path, folder=folder))

    def __post_init__(self) -> None:
        for text in (self.container or "", self.endpoint or "", self.key):
            if not text.isprintable() or (len(text) > LONGEST // 4 and len(text.encode()) > LONGEST):
                raise InvalidIdError(f"control characters, or longer than {LONGEST:,} bytes")
        if self.store not in PORTS and not _CONTAINER.fullmatch(self.container or "x"):
            raise InvalidIdError("not the name of a bucket")

    @property
    def speaks_s3(self) -> bool:
        """True if the store is S3 or one of its many clones."""
        return self.store == "s3"

    def href(self) -> str:
        """The href of an object; that of a file that is relative to something begins with `./`."""
        if self.store in PORTS:
            return f"{self.container}/{quote(self.key, _IN_PATH)}"
        if self.store == "file":
            path = quote(self.key, _IN_PATH)
            return f"file://{path}" if path.startswith("/") else f"./{path}"
        # GDAL, boto and s3fs take the keys of buckets literally, so only these three are escaped
        key = re.sub("[%?#]", lambda found: f"%{ord(found[0]):02X}", self.key)
        key = f"{key[:-1]}%20" if key.endswith(" ") else key
        return f"{self.store}://{self.container}/{key}"

    def below(self, key: str) -> Location:
        """The location of a key below this one."""
        return replace(self, key=f"{self.key}/{key}" if self.key and key else self.key or key)


def _scheme(text: str) -> str:
    if not text or not text.isprintable() or text != text.strip() or len(text) > 4 * LONGEST:
        raise InvalidIdError("empty, too long, or with control characters or spaces around it")
    found = _SCHEME.match(text)
    return found[1].lower() if found else "file"


def _decoded(path: str) -> str:
    if "%2f" in path.lower():
        raise InvalidIdError(
            "an escaped slash: with a plain one it is another object", hint="where / is meant, write it so"
        )
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise InvalidIdError("a key that is not UTF-8") from None


def _container(name: str, *, folder: bool) -> str:
    if not name:
        raise InvalidIdError("names no bucket" if folder else "does not name an object", hint=_WRITE)
    return name


def _origin(scheme: str, host: str, port: int | None) -> str:
    if not host:
        raise InvalidIdError("names no host")
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" if port in (None, PORTS[scheme]) else f"{scheme}://{shown}:{port}"


def _key(path: str, *, folder: bool) -> str:
    if folder:
        path = path.removesuffix("/") if path != "/" else path
    elif not path or path.endswith("/"):
        raise InvalidIdError("does not name an object", hint=_WRITE)
    segments = path.split("/")[path.startswith("/") :] if path not in ("", "/") else []
    if "" in segments:
        raise InvalidIdError("an empty path segment in the key")
    if "." in segments or ".." in segments:
        raise InvalidIdError("an illegal character sequence in the key: a segment of dots")
    return path


# How object stores are opened and what their failures are called, for sources and for peers alike.
#
# Addresses and credentials come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), as with other tools.

# Longest time in which a request is repeated [s]; signatures do not live much longer.
_RETRY_TIMEOUT = 180.0

# The oldest protocol of Azure writes entity tags otherwise; it is the default.
_AZURE_VERSION = "2023-11-03"
_OF_AZURE = (".blob.core.windows.net", ".blob.fabric.microsoft.com")
_PREFIXES = {"s3": "AWS", "gs": "GOOGLE"}
_SWITCHES = ("allow_http", "allow_invalid_certificates")
_TEXTS = ("proxy_url", "proxy_ca_certificate", "proxy_excludes")
_PREAMBLE = re.compile(r"^.*? in [0-9.]+[^\s,]*s(?:, after .*?)? +- ")
_SHOWN = 300


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
    # plain http is allowed where it is asked for
    if place.endpoint is not None and not place.endpoint.endswith(_OF_AZURE):
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
    parts = urlsplit(endpoint)
    # Azure has the account in the host's name, other servers as the first part of the path
    return parts.path.strip("/").partition("/")[0] or (parts.hostname or "").partition(".")[0]


def _client_options(scheme: str) -> dict[str, Any]:
    prefix = _PREFIXES.get(scheme, "AZURE")
    # the library reads these variables only where no option is given
    found = {option: os.environ.get(f"{prefix}_{option.upper()}") for option in (*_SWITCHES, *_TEXTS)}
    options: dict[str, Any] = {option: value for option, value in found.items() if value}
    for option in _SWITCHES:
        if option in options:
            options[option] = options[option].lower() in ("1", "true", "yes", "on", "y")
    return options


def store_message(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """The library's message of a failure as one printable line, without the values in `secrets`."""
    line = (str(error).splitlines() or [""])[0]
    return one_line(redact(_PREAMBLE.sub("", line), secrets), _SHOWN)
