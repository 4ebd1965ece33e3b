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

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote_to_bytes, urlsplit

from odfchain.errors import InvalidIdError

ENVIRONMENT_HINT = "the store's address and credentials come from the environment (AWS_…, GOOGLE_…, AZURE_…)"

LONGEST = 4_096
"""Bytes of a key, a container or an endpoint at most."""

_TYPES = {
    "s3": "s3", "s3a": "s3", "s3n": "s3", "s3+http": "s3", "s3+https": "s3", "gs": "gs", "gcs": "gs",
    "az": "az", "azure": "az", "adl": "az", "abfs": "az", "abfss": "az",
    "http": "http", "https": "https", "file": "file",
}  # fmt: skip
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ACCOUNT = re.compile(
    r"([a-z0-9]+)\.(?:dfs|blob)\.(core\.windows\.net|fabric\.microsoft\.com)", re.IGNORECASE
)
_WRITE = "write it like s3://bucket/path/to/object"
_IN_PATH = "/-._~!$&'()*,;=:@"
"""What stays as it is in the paths of http, https and file; a plus sign does not: some read it as a space."""
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
        if store in _PORTS:
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
        if self.store not in _PORTS and not _CONTAINER.fullmatch(self.container or "x"):
            raise InvalidIdError("not the name of a bucket")

    @property
    def speaks_s3(self) -> bool:
        """Whether the store is S3 or one of its many clones."""
        return self.store == "s3"

    def href(self) -> str:
        """The href of an object; that of a file that is relative to something begins with `./`.

        GDAL, boto and s3fs take the keys of buckets literally, so there only `%`, `?` and `#` are escaped.
        """
        if self.store in _PORTS:
            return f"{self.container}/{quote(self.key, _IN_PATH)}"
        if self.store == "file":
            path = quote(self.key, _IN_PATH)
            return f"file://{path}" if path.startswith("/") else f"./{path}"
        key = re.sub("[%?#]", lambda found: f"%{ord(found[0]):02X}", self.key)
        key = f"{key[:-1]}%20" if key.endswith(" ") else key
        return f"{self.store}://{self.container}/{key}"

    def below(self, key: str) -> Location:
        """What is under this key in the folder that this location is."""
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
    return f"{scheme}://{shown}" if port in (None, _PORTS[scheme]) else f"{scheme}://{shown}:{port}"


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
