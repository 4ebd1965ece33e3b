"""Places: the one module in which a URL is taken apart, judged and printed.

| value | is | equal |
|---|---|---|
| `Url` | what was written, with its escapes: of a dataset, a repository, a source | as text |
| `PeerUrl` | the `Url` of a dataset or of a repository of datasets | as text |
| `Target` | where a request goes for an http or https URL: normal, and ASCII | in host, port and path |
| `Location` | an object of a store, or all below a place; nothing is escaped, no credentials can hide in it | in its parts |

Each is made by `parse`, whose errors say what is wrong and never repeat the text; who asked puts a name before
it that may be shown, and a hint of its own. What a text becomes as a `Location`:

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

import base64
import datetime as dt
import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, unquote_to_bytes, urljoin, urlsplit

from odfchain.errors import FetchError, InvalidIdError, UnsupportedPeerError
from odfchain.lazy import obstore
from odfchain.limits import FetchLimits
from odfchain.odf.names import DatasetName
from odfchain.storage.template import blanked, shown_value
from odfchain.text import one_line
from odfchain.versions import __version__

if TYPE_CHECKING:
    from obstore.store import ObjectStore


ENVIRONMENT_HINT = "the store's address and credentials come from the environment (AWS_…, GOOGLE_…, AZURE_…)"

LONGEST = 4_096
"""Bytes of a key, a container or an endpoint at most."""

_TYPES = {
    "s3": "s3", "s3a": "s3", "s3n": "s3", "s3+http": "s3", "s3+https": "s3", "gs": "gs", "gcs": "gs",
    "az": "az", "azure": "az", "adl": "az", "abfs": "az", "abfss": "az",
    "http": "http", "https": "https", "file": "file",
}  # fmt: skip
PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ACCOUNT = re.compile(
    r"([a-z0-9]+)\.(?:dfs|blob)\.(core\.windows\.net|fabric\.microsoft\.com)", re.IGNORECASE
)
_WRITE = "write it like s3://bucket/path/to/object"
# Unescaped characters in paths of http, https and file; not the plus sign: some read it as a space.
_IN_PATH = "/-._~!$&'()*,;=:@"
_CONTAINER = re.compile(r"[^/?#@\s]+")


_INVALID = "not a valid URL"
_LONGEST_URL = 65_536
CONTROLS = re.compile(r"^ |[\x00-\x1f\x7f]")
"""Characters that no URL holds."""
_HOST = re.compile(r"[a-z0-9._~!$&'()*+,;=%-]+")
HOST_AND_PORT = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_ESCAPED_IN_PATH = re.compile(rb'[\x20"#<>?`{}\x80-\xff]')
_ESCAPED_IN_QUERY = re.compile(rb'[\x20"#<>\x80-\xff]')
# `odf+` before the URL of a node: the smart protocol is spoken there (RFC-050).
_SCHEMES = (
    "file", "http", "https", "odf+http", "odf+https", "s3", "s3+http", "s3+https", "gs", "az", "ipfs", "ipns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Url:
    """A URL as it was written; its parts have their escapes."""

    text: str

    def __post_init__(self) -> None:
        try:
            self.parts  # noqa: B018 - asks whether it can be taken apart
            self.text.encode()  # a command line may have halves of characters
        except ValueError:
            raise InvalidIdError(_INVALID) from None

    @property
    def parts(self) -> SplitResult:
        """Its parts; the last ones that were asked for are kept."""
        return urlsplit(self.text)

    @property
    def scheme(self) -> str:
        """The protocol, in lower case."""
        return self.parts.scheme

    @property
    def protocol(self) -> str:
        """The scheme without `odf+`, which only says how to speak to the place."""
        return self.scheme.removeprefix("odf+")

    @property
    def authority(self) -> str:
        """Host and port, or the bucket, as they were written, without user and password."""
        return self.parts.netloc.rpartition("@")[2]

    @property
    def host(self) -> str:
        """The host in lower case, an IPv6 address without brackets; empty where there is none."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int | None:
        """The port that is written; an error where it is no port."""
        try:
            return self.parts.port
        except ValueError:
            raise InvalidIdError(_INVALID) from None

    @property
    def path(self) -> str:
        """The path, without escapes: of a file URL that of the file."""
        return unquote(self.parts.path)

    @property
    def segments(self) -> list[str]:
        """Those of the path that are not empty, without escapes."""
        return [unquote(segment) for segment in self.parts.path.split("/") if segment]

    @property
    def origin(self) -> str | None:
        """Of a web URL `https://host`, and the port where it is not the usual one; else None (RFC 6454)."""
        try:
            host, port = self.host.rstrip("."), self.port  # `example.org.` is the same host
        except InvalidIdError:
            return None
        if self.protocol not in PORTS or not self.host:
            return None
        return f"{self.protocol}://{authority_of(host, port, self.protocol)}"

    @property
    def is_in_clear(self) -> bool:
        """True if what is sent there can be read on the way: plain http to another machine."""
        return self.protocol == "http" and not is_this_machine(self.host)

    @property
    def secrets(self) -> frozenset[str]:
        """The password, as it was written and as it is meant."""
        password = self.parts.password or ""
        return frozenset(filter(None, (password, unquote(password))))

    def normal(self) -> tuple[str, str, tuple[str, ...]]:
        """Protocol, server or bucket, and path: the same for all spellings of a place.

        Capitals, default ports, percent-encoding, users and dots do not matter; http and https are one place,
        and so are all names of this machine (RFC 3986, section 6; RFC-024).
        """
        protocol = self.protocol
        if protocol == "file":
            return protocol, "", _folders(os.path.realpath(self.path.replace("\0", "")))
        host, colon, port = unquote(self.authority).rpartition(":")
        if not colon or not (port.isdecimal() or port == ""):
            host, port = f"{host}{colon}{port}", ""
        server = host_of(host.removeprefix("[").removesuffix("]"))
        if port and not (port.isascii() and int(port) == PORTS.get(protocol.rpartition("+")[2])):
            server = f"{server}:{port.lstrip('0')}"
        return protocol.replace("https", "http"), server, _folders(self.path)

    def is_below(self, other: Url) -> bool:
        """True if this is the other place, or within it: a policy for a place covers every spelling of it."""
        (*place, path), (*above, folders) = self.normal(), other.normal()
        return place == above and path[: len(folders)] == folders

    def __str__(self) -> str:
        """The URL without user and password, query and fragment, for messages: these may give access."""
        return self.parts._replace(netloc=self.authority, query="", fragment="").geturl()


def scheme_of(text: str) -> str:
    """The scheme that a text begins with, in lower case; empty where there is none."""
    found = _SCHEME.match(text)
    return found[1].lower() if found else ""


def unescape(text: str) -> bytes:
    """The bytes that a part of a URL stands for."""
    return unquote_to_bytes(text)


def escape(path: str) -> str:
    """A path as it is written in a URL."""
    return quote(path)


def _without_dots(path: str) -> str:
    """A path without the segments `.` and `..` (RFC 3986, 5.2.4)."""
    found: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del found[max(1, len(found) - 1) :]
        elif segment != ".":
            found.append(segment)
    return "/".join(found)


def _folders(path: str) -> tuple[str, ...]:
    kept = "/".join(filter(None, path.split("/")))
    return tuple(filter(None, _without_dots(f"/{kept}").split("/")))


def authority_of(host: str, port: int | None, scheme: str) -> str:
    """Host and port as a URL has them: brackets around an IPv6 address, and no port where it is the usual."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, PORTS.get(scheme)) else f"{shown}:{port}"


def is_this_machine(host: str) -> bool:
    """True if a host name is this machine's, so that requests use no network."""
    return host_of(host) == "localhost"


def host_of(name: str) -> str:
    """The same for all spellings of a host; all names and addresses of this machine are one."""
    name = name.lower().removesuffix(".")
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(name)
    except ValueError:
        import socket  # noqa: PLC0415 - few names are written so, and every command would load it

        try:
            address = ipaddress.IPv4Address(socket.inet_aton(name))  # 127.1, 0x7f000001
        except (OSError, ValueError):
            try:
                return name.encode("idna").decode("ascii")
            except UnicodeError:
                return name
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return "localhost" if address.is_loopback else str(address)


# What may not be shown.


def spellings(value: str) -> frozenset[str]:
    """A value as it is, and percent-encoded in both usual ways."""
    return frozenset((value, quote(value), quote(value, safe="")))


def redact(text: str, values: Iterable[str]) -> str:
    """The text with every value, as it is or percent-encoded, replaced by `***`."""
    forms = {form for value in values for form in spellings(value)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def unreadable_name(name: str) -> str:
    """The name of a malformed URL in messages: all before its last `@` may be a user and password."""
    return re.sub("//.*@", "//***@", name)


# A URL that seems to have a host and port, and has a user with an unescaped password.
_UNESCAPED = re.compile(r"[^:]+://[^/?#@]*:[^/?#@]*[?#][^@]*@")
# A parameter with its value; what is alone and no short word is a value without a name.
_PARAMETER = re.compile(r"[?&;](?:[^?&;=]*=|(?![\w.@-]{0,16}(?:[&;]|$)))(?P<value>[^&;]*)", re.ASCII)


def public_name(url: str) -> str:
    """The name of a URL in messages, pages and documents: without any part that may give access.

    User and password, the fragment, and what parameters are set to are left out; templates stay, but for
    their literals in parameters. Any value may be a secret: no list of names would have them all.
    """
    masked = blanked(url)
    match = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*@)", masked)
    try:
        Url(masked).port  # noqa: B018 - asks whether the URL can be read
        is_readable = not _UNESCAPED.match(masked)
    except InvalidIdError:
        is_readable = False
    if not is_readable:
        url = unreadable_name(url)
        masked = blanked(url)
    # of Azure's file systems the part before @ is the container
    elif match and (":" in match[1] or masked[:4].lower() != "abfs"):
        url, masked = (text[: match.start(1)] + text[match.end(1) :] for text in (url, masked))
    shown, end = "", 0
    for found in _PARAMETER.finditer(masked.partition("#")[0]):
        shown += url[end : found.start("value")] + shown_value(url[found.start("value") : found.end()])
        end = found.end()
    return one_line(shown + url[end : len(masked.partition("#")[0])])


@dataclass(frozen=True, slots=True)
class PeerUrl(Url):
    """The URL of a dataset or of a repository of datasets; it ends in a slash."""

    @classmethod
    def parse(cls, text: str) -> PeerUrl:
        """The URL with a slash at its end."""
        if "://" not in text and not text.startswith("file:"):
            hint = "write a folder like file:///srv/datasets/, a server like https://host/"
            raise UnsupportedPeerError(f"{text!r} is not a URL", hint=hint)
        try:
            url = cls(text)
        except InvalidIdError:
            raise UnsupportedPeerError(f"{public_name(text)!r} is not a URL") from None
        if url.scheme not in _SCHEMES:
            message = f"{url}: datasets cannot be carried over {url.scheme or 'that'!r}"
            hint = f"the schemes are {', '.join(_SCHEMES[:-1])} and {_SCHEMES[-1]}"
            raise UnsupportedPeerError(message, hint=hint)
        if set("?#") & set(text):
            raise UnsupportedPeerError(f"{url}: the URL of a dataset has no query and no fragment")
        if not url.parts.netloc and url.scheme != "file":
            raise UnsupportedPeerError(f"{url}: the URL names no host")
        if url.scheme == "file" and "%2f" in url.parts.path.lower():
            raise UnsupportedPeerError(f"{url}: an escaped slash", hint="where / is meant, write it so")
        if url.scheme == "file" and url.parts.netloc not in ("", "localhost"):
            hint = "write it like file:///srv/datasets/name"
            raise UnsupportedPeerError(f"{url}: a file URL names no other machine", hint=hint)
        return url if text.endswith("/") else cls(f"{text}/")

    @property
    def is_smart(self) -> bool:
        """True if it is a node's URL, for the smart protocol."""
        return self.scheme != self.protocol

    @property
    def plain(self) -> PeerUrl:
        """The same place over the simple protocol: without `odf+`."""
        return PeerUrl(self.text[len("odf+") :]) if self.is_smart else self

    def dataset(self, path: str) -> PeerUrl:
        """The dataset of a repository at this URL; `path` is its alias."""
        return PeerUrl.parse(f"{self.text}{path}/")

    def name(self) -> DatasetName:
        """The default name of a pulled dataset: the end of the path, else the host."""
        try:
            return DatasetName(self.segments[-1] if self.segments else self.host)
        except InvalidIdError as error:
            raise InvalidIdError(f"{self}: {error}", hint="say what to call it: --as NAME") from None


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes; `path` carries the query, `host` is ASCII and an IPv6 address has no brackets."""

    scheme: str
    host: str
    port: int
    path: bytes
    user: str | None = None
    """The `Authorization` header for the user and password in the URL."""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Where an http or https URL leads; InvalidIdError for any other text."""
        url = Url(text)
        parts, port = url.parts, PORTS.get(url.scheme) if url.port is None else url.port
        if len(text) > _LONGEST_URL or CONTROLS.search(text) or url.scheme not in PORTS or not port:
            raise InvalidIdError(_INVALID)
        try:
            host = _ascii_host(url.host)
            path = _ESCAPED_IN_PATH.sub(_escape, _without_dots(parts.path).encode()) or b"/"
            if parts.query:
                path += b"?" + _ESCAPED_IN_QUERY.sub(_escape, parts.query.encode())
        except ValueError:
            raise InvalidIdError(_INVALID) from None
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(url.scheme, host, port, path, basic(user, password) if user or password else None)

    def below(self, key: str) -> Target:
        """Where what lies below is asked for; this one ends in a slash."""
        return replace(self, path=self.path + key.encode("ascii"))

    def follow(self, reference: str) -> Target:
        """Where a reference that is written here leads (RFC 3986, 5.2); credentials come from the user."""
        here = f"{self.scheme}://{self.authority}{self.path.decode('latin-1')}"
        try:  # `urljoin` leaves control characters out
            url = Url("" if CONTROLS.search(reference) else urljoin(here, reference))
        except (ValueError, InvalidIdError):
            url = Url("")
        if url.scheme not in PORTS:
            raise InvalidIdError("only http and https are followed")
        return replace(Target.parse(url.text), user=None)

    @property
    def authority(self) -> str:
        """Host and port as `Host` names them."""
        return authority_of(self.host, self.port, self.scheme)

    def public(self, secrets: Iterable[str]) -> str:
        """The name in messages of a target that a server named: no query, none of the secrets."""
        path = self.path.split(b"?")[0].decode("latin-1")
        return one_line(redact(f"{self.scheme}://{self.authority}{path}", secrets))


def parse_target(url: str, *, name: str) -> Target:
    """The target of an http or https URL; messages call it `name`."""
    try:
        return Target.parse(url)
    except InvalidIdError as error:
        filled_in = " once its templates are filled in" if "${{" in name else ""
        hint = "write it like https://host/path"
        raise FetchError(f"{unreadable_name(name)}: {error.message}{filled_in}", hint=hint) from None


def basic(user: str, password: str) -> str:
    """The `Authorization` header for a user and a password (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _ascii_host(name: str) -> str:
    if ":" in name:
        ipaddress.IPv6Address(name)
        return name
    if not name.isascii():
        import idna  # noqa: PLC0415 - large tables, for few hosts

        name = idna.encode(name.lower()).decode("ascii")
    if not _HOST.fullmatch(name):
        raise ValueError
    return name


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


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
        if not text or not text.isprintable() or text != text.strip() or len(text) > 4 * LONGEST:
            raise InvalidIdError("empty, too long, or with control characters or spaces around it")
        scheme = scheme_of(text) or "file"
        store = _TYPES.get(scheme)
        if store is None:
            raise InvalidIdError(f"no kind of store is called {scheme!r}")
        url = Url(text)
        host, port, parts = url.host.lower(), url.port, url.parts
        if set("?#") & set(text):
            raise InvalidIdError("an object has no query", hint="in a key write ? as %3F and # as %23")
        path, endpoint = _decoded(parts.path), None
        container, at, authority = parts.netloc.rpartition("@")
        if store == "file":
            if parts.netloc not in ("", "localhost") or text.startswith("//"):
                raise InvalidIdError("names another host", hint="write it like file:///absolute/path")
            return cls(store, None, None, _key(path.removeprefix("./"), folder=folder))
        path = path.removeprefix("/")
        if store == "az" and at and (account := _ACCOUNT.fullmatch(authority)):
            endpoint = f"https://{account[1].lower()}.blob.{account[2].lower()}"
        elif at:
            raise InvalidIdError("the URL of a store carries no credentials", hint=ENVIRONMENT_HINT)
        elif store in PORTS or scheme.startswith("s3+"):
            if not host:
                raise InvalidIdError("names no host")
            protocol = scheme.removeprefix("s3+")
            container = f"{protocol}://{authority_of(host, port, protocol)}"
            if protocol != scheme:
                endpoint, (container, _, path) = container, path.partition("/")
        else:
            container = authority
        if not container:
            raise InvalidIdError("names no bucket" if folder else "does not name an object", hint=_WRITE)
        return cls(store, container, endpoint, _key(path, folder=folder))

    def __post_init__(self) -> None:
        for text in (self.container or "", self.endpoint or "", self.key):
            if not text.isprintable() or (len(text) > LONGEST // 4 and len(text.encode()) > LONGEST):
                raise InvalidIdError(f"control characters, or longer than {LONGEST:,} bytes")
        if self.store not in PORTS and not _CONTAINER.fullmatch(self.container or "x"):
            raise InvalidIdError("not the name of a bucket")

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

    @property
    def text(self) -> str:
        """A text from which `parse` has the same place; a file is its path."""
        if self.store == "file":
            return self.key
        if self.store != "s3" or self.endpoint is None:
            return self.href()
        return f"s3+{self.endpoint}/{self.href().removeprefix('s3://')}"

    @property
    def is_relative(self) -> bool:
        """True if it is a file that is named relative to something, as in a lock to the lock's folder."""
        return self.store == "file" and not self.key.startswith("/")

    def relative_to(self, folder: Path | None) -> Location:
        """The location as the lock in a folder has it: a file below that is named relative to it."""
        if self.store != "file" or folder is None or not Path(self.key).is_relative_to(folder):
            return self
        return replace(self, key=Path(self.key).relative_to(folder).as_posix())

    def below(self, key: str) -> Location:
        """The location of a key below this one."""
        return replace(self, key=f"{self.key}/{key}" if self.key and key else self.key or key)


def _decoded(path: str) -> str:
    if "%2f" in path.lower():
        hint = "where / is meant, write it so"
        raise InvalidIdError("an escaped slash: with a plain one it is another object", hint=hint)
    try:
        return unescape(path).decode()
    except UnicodeDecodeError:
        raise InvalidIdError("a key that is not UTF-8") from None


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
    place: Location, limits: FetchLimits, seconds: float, *, signed: bool = True, through: str | None = None
) -> ObjectStore:
    """The bucket, container or web server of a place; `seconds` is the longest time for one request.

    A server that speaks like S3 has its buckets as the first segment of its paths. Requests that are not
    `signed` carry none of the environment's credentials; those to web servers never do. They go `through` a
    proxy, if one is given.
    """
    options = {
        **_client_options(place.store),
        "user_agent": f"odfchain/{__version__}",
        "connect_timeout": dt.timedelta(seconds=limits.connect_timeout),
        "read_timeout": dt.timedelta(seconds=limits.idle_timeout),
        "timeout": dt.timedelta(seconds=max(1e-3, seconds)),
    }
    if through is not None:
        options["proxy_url"] = through
    retry = {
        "max_retries": limits.retries,
        "backoff": {"init_backoff": dt.timedelta(seconds=limits.first_wait)},
        "retry_timeout": dt.timedelta(seconds=max(1e-3, min(_RETRY_TIMEOUT, seconds))),
    }
    how: dict[str, Any] = {"client_options": options, "retry_config": retry}
    container, endpoint = place.container or "", place.endpoint or ""
    has_server = endpoint != "" and not endpoint.endswith(_OF_AZURE)
    # plain http is allowed where it is asked for
    if has_server:
        options["allow_http"] = endpoint.startswith("http://")
    if place.store in PORTS:  # `from_url` would take a host of Amazon's for a bucket
        options["allow_http"] = place.store == "http"
        return obstore.store.HTTPStore.from_url(container, **how)
    if place.store == "az" and endpoint and not signed:
        # a store of Azure's would send the environment's encryption key
        options["default_headers"] = {"x-ms-version": _AZURE_VERSION}
        return obstore.store.HTTPStore.from_url(f"{endpoint}/{container}", **how)
    how |= {} if signed else {"skip_signature": True}
    if not has_server:
        root = f"{place.store}://{container}"
        if endpoint:  # the environment may say where the account is
            root = f"abfss://{container}@{Url(endpoint).authority.replace('.blob.', '.dfs.', 1)}"
        return obstore.store.from_url(root, **how)
    if place.store == "az":  # another server that speaks like Azure's
        return obstore.store.AzureStore(container, endpoint=endpoint, account_name=_account(endpoint), **how)
    # a customer's key of encryption in the environment is sent with unsigned requests, too: AES256 has none
    how |= {} if signed else {"server_side_encryption": "AES256"}
    return obstore.store.S3Store(container, endpoint=endpoint, virtual_hosted_style_request=False, **how)


def _account(endpoint: str) -> str:
    url = Url(endpoint)
    # Azure has the account in the host's name, other servers as the first part of the path
    return url.parts.path.strip("/").partition("/")[0] or url.host.partition(".")[0]


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
