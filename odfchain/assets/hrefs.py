"""Hrefs of assets become locations, and locations hrefs again.

An href is parsed once, where it comes in, and never stored: it mixes store, container, key and sometimes
credentials in one text. Refusals name what is wrong and never a value that may be secret. Nothing is guessed:
`https://bucket.s3.amazonaws.com/k` stays https. Source: RFC-047; ADR-003 of the asset locks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from odfchain.errors import AssetError, InvalidIdError
from odfchain.limits import ASSETS
from odfchain.storage.locations import PORTS, Location, Url, escape, public_name, scheme_of, unescape
from odfchain.text import one_line

SCHEMES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "file"})
STORES = frozenset({"file", "s3", "gs", "az", "http", "https"})
"""Values of `store_type`: obstore's names, no aliases."""
_OF_SERVERS = frozenset({"s3+http", "s3+https"})
"""Notation for objects of an S3-compatible server; not accepted in Items."""

_SIGNATURES = frozenset(
    {
        "awsaccesskeyid", "signature", "googleaccessid",
        "sig", "se", "sp", "sv", "sr", "st", "spr", "skoid", "sktid", "ske", "sks", "skv", "skt",
        "policy", "key-pair-id", "token", "access_token", "id_token", "api_key", "apikey",
        "subscription-key", "auth", "authorization", "password",
    }
)  # fmt: skip
"""Parameters that sign a request, or let it in: AWS, Google, SAS of Azure, CloudFront, tokens."""
ACCESS_KEY = re.compile(r"AKIA[A-Z0-9]{16}")
"""The id of a key of Amazon's: not a secret by itself, and no row has one."""
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_DRIVE = re.compile(r"[A-Za-z]:([\\/]|$)|.*\\")
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
_ORIGIN = re.compile(r"(https?)://([a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_SEGMENT = "[A-Za-z0-9_=-][A-Za-z0-9._=-]*"
_PLAIN = re.compile(rf"((s3|https?)://([a-z0-9-]+(?:\.[a-z0-9-]+)*))/({_SEGMENT}(?:/{_SEGMENT})*)")
"""Hrefs as most catalogs have them, in which nothing is to be decoded, lowered, or refused."""


def parse_href(
    href: str, base: str | None = None, *, strip_query: bool = False, servers: bool = False
) -> Location:
    """The location that an href names; `base` is the URL or path that the Item was read from.

    Without a base an href without scheme stays relative: to the folder of the lock. `strip_query` drops
    queries, for catalogs whose links are signed by the server. With `servers` it may be an object of a server
    that speaks like S3, as the `text` of a location has it: a place of a document, but no href of an Item.

    Raises:
        AssetError: it cannot be recorded; the message has no user, password, query or fragment of it.
    """
    plain = _PLAIN.fullmatch(href)
    if plain is not None and len(href) <= ASSETS.key_bytes and "AKIA" not in href:
        origin, scheme, authority, key = plain.groups()
        return Location(scheme, authority if scheme == "s3" else origin, None, key)
    try:
        return _parsed(href, base, strip_query=strip_query, servers=servers)
    except InvalidIdError as error:
        raise AssetError(f"{public_href(href)}: {error.message}", hint=error.hint) from None


def checked_location(store: str, container: str | None, endpoint: str | None, key: str) -> Location:
    """The location of these parts, as a row of a lock has them."""
    try:
        return _checked(Location(store, container, endpoint, key))
    except InvalidIdError as error:
        raise AssetError(error.message, hint=error.hint) from None


def public_href(href: str) -> str:
    """An href without secrets, for messages."""
    return ACCESS_KEY.sub("AKIA…", public_name(href)) or "an empty href"


def _cut(href: str) -> tuple[str, str, str]:
    found = re.search("[?#]", href)
    return (href, "", "") if found is None else (href[: found.start()], found[0], href[found.end() :])


def _parsed(href: str, base: str | None, *, strip_query: bool, servers: bool = False) -> Location:
    if not href:
        raise InvalidIdError("names nothing")
    if not href.isprintable():
        raise InvalidIdError("control characters")
    text, sign, rest = _cut(href)
    _check_rest(sign, rest, strip_query=strip_query)
    scheme = scheme_of(text)
    # a scheme of one letter is a drive
    if _DRIVE.match(text) and len(scheme) <= 1:
        raise InvalidIdError("a path of Windows", hint="write it like file:///C:/path or ./path")
    if text.startswith("//"):
        raise InvalidIdError("names a host without a scheme", hint="write https:// before it")
    if not scheme:
        text = text if base is None else _resolved(text, base)
        # the Item may lie on such a server, though its hrefs must not name one
        scheme, servers = scheme_of(text), True
    if scheme and scheme not in SCHEMES and not (servers and scheme in _OF_SERVERS):
        raise InvalidIdError(
            f"no store is called {scheme!r}", hint=f"the schemes are {', '.join(sorted(SCHEMES))}"
        )
    found = _checked(Location.parse(text))
    if found.store in ("http", "https"):
        _check_spelling(found, text)
    return found


def _check_spelling(location: Location, text: str) -> None:
    # our requests escape neither `;` nor `+`, so such an object would be another one
    if "%3b" in text.lower():
        raise InvalidIdError("an escaped semicolon: many servers cut a path at a plain one")
    if "+" in location.key and Url(location.container or "").host.endswith(_AMAZON):
        raise InvalidIdError(
            "a plus sign, which Amazon's URLs have for a space", hint="name the object like s3://bucket/key"
        )


def _check_rest(sign: str, rest: str, *, strip_query: bool) -> None:
    if sign == "#" or "#" in rest:
        raise InvalidIdError("a fragment: it names a piece of a file", hint="in a key write # as %23")
    if sign != "?" or strip_query:
        return
    for part in re.split("[&;]", rest):
        name = unescape(part.partition("=")[0]).decode(errors="replace") if "=" in part else ""
        if name.lower() in _SIGNATURES or name.lower().startswith(("x-amz-", "x-goog-")):
            raise InvalidIdError(
                f"signed: its query has {name}",
                hint="name the plain object, or drop the queries of all hrefs with --strip-query",
            )
    raise InvalidIdError(
        "it has a query: not the URL of a plain object",
        hint="in a key write ? as %3F, or drop the queries with --strip-query",
    )


def _resolved(href: str, base: str) -> str:
    scheme = scheme_of(base)
    if not scheme:
        try:
            root, path = "", escape(base)  # a path of files is no URL: nothing in it is escaped yet
        except UnicodeEncodeError:
            raise InvalidIdError("its Item lies in a folder whose name is no text") from None
    else:
        path = _cut(base)[0]
        root, _, rest = path.partition("://")
        authority, _, rest = rest.partition("/")
        root = f"{root}://{authority}"
        if scheme in _OF_SERVERS:  # the bucket is no folder that one could go up from
            bucket, _, rest = rest.partition("/")
            root = f"{root}/{bucket}"
        path = f"/{rest}"
    if href.startswith("/"):
        return root + href
    segments = path.split("/")[:-1]
    for segment in href.split("/"):
        if segment == "..":
            if not segments or segments in ([""], ["."], [".."]):
                raise InvalidIdError("leads out of where its Item lies")
            segments.pop()
        elif segment != ".":
            segments.append(segment)
    return root + "/".join(segments)


def _checked(location: Location) -> Location:
    store, container, endpoint, key = location.store, location.container, location.endpoint, location.key
    if store not in STORES:
        raise InvalidIdError(
            f"no store is called {one_line(store)!r}", hint=f"they are {', '.join(sorted(STORES))}"
        )
    if any(ACCESS_KEY.search(each or "") for each in (container, endpoint, key)):
        raise InvalidIdError("it contains an access key", hint="credentials come from the environment")
    _check_key(store, key)
    if (container is None) != (store == "file"):
        raise InvalidIdError("a file has no container, all else has one")
    if store in ("http", "https"):
        if not _is_origin(container or "", store):
            raise InvalidIdError(
                "the container is not an origin", hint=f"like {store}://host[:port], other letters as xn--…"
            )
    elif container is not None and not _BUCKET.fullmatch(container):
        raise InvalidIdError("not the name of a bucket", hint="letters, digits, dots, dashes and underscores")
    if endpoint is not None:
        _check_endpoint(store, endpoint)
    return location


def _check_key(store: str, key: str) -> None:
    if not key or key.endswith("/"):
        raise InvalidIdError("does not name an object")
    if len(key.encode(errors="surrogatepass")) > ASSETS.key_bytes:
        raise InvalidIdError(f"a key longer than {ASSETS.key_bytes:,} bytes")
    # an absolute path begins with an empty segment
    segments = key.split("/")[1 if store == "file" and key.startswith("/") else 0 :]
    if any(each in ("", ".", "..") for each in segments):
        raise InvalidIdError("an empty path segment in the key, or a segment of dots")


def _is_origin(text: str, scheme: str | None = None) -> bool:
    if (found := _ORIGIN.fullmatch(text)) is None or (scheme is not None and found[1] != scheme):
        return False
    port = found[3]
    # an origin has one spelling, in which the usual port is left out
    return port is None or (0 < int(port) < 1 << 16 and int(port) != PORTS[found[1]])


def _check_endpoint(store: str, endpoint: str) -> None:
    if store not in ("s3", "az"):
        raise InvalidIdError(f"a place of {store} has no endpoint")
    try:
        url = Url(endpoint)
    except InvalidIdError:
        raise InvalidIdError("the endpoint is not a URL") from None
    if "@" in url.parts.netloc or "?" in endpoint or "#" in endpoint:
        raise InvalidIdError("the endpoint has a user, a query or a fragment")
    if not _is_origin(f"{url.scheme}://{url.authority}"):
        raise InvalidIdError("the endpoint is not a URL", hint="like https://host[:port]")


# Storage schemes as endpoints and back. A scheme comes from an untrusted document: it is a location, never a
# permission. Requests are signed only for endpoints that the user has named (RFC-047; storage extension 2.0).

SCHEMES_KEY, REFS = "storage:schemes", "storage:refs"
_STORES = {"aws-s3": "s3", "custom-s3": "s3", "ms-azure": "az", "custom-azure": "az"}
"""Store types by type of scheme; `custom-azure` is ours, for servers that are no account of Azure's."""
_AWS = "https://{bucket}.s3.{region}.amazonaws.com"
_AZURE = "https://{account}.blob.core.windows.net"
_ACCOUNT = re.compile(re.escape(_AZURE).replace(re.escape("{account}"), "([a-z0-9]+)"))
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_VALUE = re.compile(r"[A-Za-z0-9_-]+")


def placed(location: Location, schemes: object, refs: object) -> Location:
    """A location with the endpoint that the first of its schemes names."""
    # locations stay that have an endpoint, or no scheme, and Amazon's
    if location.store not in ("s3", "az") or location.endpoint is not None:
        return location
    for scheme in _referred(schemes, refs):
        kind, platform = scheme.get("type"), scheme["platform"]
        if _STORES.get(str(kind), location.store) != location.store:
            continue
        if kind == "aws-s3" or platform == _AWS:
            return location
        return checked_location(location.store, location.container, _endpoint(scheme), location.key)
    return location


def _scheme(location: Location) -> dict[str, str]:
    """The storage extension's scheme of a location's endpoint."""
    endpoint = location.endpoint or ""
    if location.store == "s3":
        return {"type": "custom-s3", "platform": endpoint}
    if (account := _ACCOUNT.fullmatch(endpoint)) is None:
        return {"type": "custom-azure", "platform": endpoint}
    return {"type": "ms-azure", "platform": _AZURE, "account": account[1]}


def named_scheme(location: Location, schemes: dict[str, Any]) -> str:
    """The name of the scheme for a location's endpoint; it is added where there is none."""
    bare = replace(location, endpoint=None)
    host = Url(location.endpoint or "").authority
    for name in schemes:
        try:
            if placed(bare, schemes, [name]) == location:
                return name
        except AssetError:
            continue
    name = next(n for n in (host, *(f"{host}-{k}" for k in range(2, len(schemes) + 3))) if n not in schemes)
    schemes[name] = _scheme(location)
    return name


def _referred(schemes: object, refs: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schemes, Mapping) or not isinstance(refs, list):
        return
    for ref in refs:
        scheme = schemes.get(ref) if isinstance(ref, str) else None
        if isinstance(scheme, Mapping) and "://" in str(scheme.get("platform")):
            yield scheme


def _endpoint(scheme: Mapping[str, Any]) -> str:
    def value(found: re.Match[str]) -> str:
        given = scheme.get(found[1])
        if found[1] == "bucket" or not isinstance(given, str) or not _VALUE.fullmatch(given):
            raise AssetError(
                "its storage scheme has no one endpoint: the platform is a template",
                hint="a server is named like https://host[:port], with buckets in the path",
            )
        return given

    # one spelling for each endpoint, so that equal ones compare equal
    scheme_name, _, rest = _VARIABLE.sub(value, str(scheme["platform"])).partition("://")
    authority, slash, path = rest.partition("/")
    port = PORTS.get(scheme_name.lower())
    return f"{scheme_name}://{authority}".lower().removesuffix(f":{port}") + f"{slash}{path}".rstrip("/")
