"""Where `s3://bucket/key` is: the schemes of the storage extension as endpoints, and endpoints as schemes.

A scheme is what somebody's document says. It is taken for a place and never for a permission: what is asked
there is signed only where the user has named the endpoint himself. Source: RFC-047; storage extension 2.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from odfchain.assets.hrefs import checked_location
from odfchain.errors import AssetError
from odfchain.store.locations import Location

SCHEMES, REFS = "storage:schemes", "storage:refs"
_STORES = {"aws-s3": "s3", "custom-s3": "s3", "ms-azure": "az", "custom-azure": "az"}
"""What the types of schemes are for; `custom-azure` is ours, for servers that are no account of Azure's."""
_AWS = "https://{bucket}.s3.{region}.amazonaws.com"
_AZURE = "https://{account}.blob.core.windows.net"
_ACCOUNT = re.compile(re.escape(_AZURE).replace(re.escape("{account}"), "([a-z0-9]+)"))
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_VALUE = re.compile(r"[A-Za-z0-9_-]+")


def placed(location: Location, schemes: object, refs: object) -> Location:
    """A location with the endpoint that the first of its schemes names.

    One that has an endpoint, or whose store has none, stays; so does one that no scheme is for, and Amazon's.
    """
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


def scheme_of(location: Location) -> dict[str, str]:
    """What the storage extension says of a location's endpoint."""
    endpoint = location.endpoint or ""
    if location.store == "s3":
        return {"type": "custom-s3", "platform": endpoint}
    account = _ACCOUNT.fullmatch(endpoint)
    if account is None:
        return {"type": "custom-azure", "platform": endpoint}
    return {"type": "ms-azure", "platform": _AZURE, "account": account[1]}


def named_scheme(location: Location, schemes: dict[str, Any]) -> str:
    """The name of the scheme for a location's endpoint; it is added where there is none."""
    bare = replace(location, endpoint=None)
    host = urlsplit(location.endpoint or "").netloc
    for name in schemes:
        try:
            if placed(bare, schemes, [name]) == location:
                return name
        except AssetError:
            continue
    name = next(n for n in (host, *(f"{host}-{k}" for k in range(2, len(schemes) + 3))) if n not in schemes)
    schemes[name] = scheme_of(location)
    return name


def _referred(schemes: object, refs: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schemes, Mapping) or not isinstance(refs, list):
        return
    for ref in refs:
        scheme = schemes.get(ref) if isinstance(ref, str) else None
        if isinstance(scheme, Mapping) and "://" in str(scheme.get("platform")):
            yield scheme


def _endpoint(scheme: Mapping[str, Any]) -> str:
    """The URL of a scheme, in the one way in which endpoints are written."""

    def value(found: re.Match[str]) -> str:
        given = scheme.get(found[1])
        if found[1] == "bucket" or not isinstance(given, str) or not _VALUE.fullmatch(given):
            raise AssetError(
                "its storage scheme has no one endpoint: the platform is a template",
                hint="a server is named like https://host[:port], with buckets in the path",
            )
        return given

    scheme_name, _, rest = _VARIABLE.sub(value, str(scheme["platform"])).partition("://")
    authority, slash, path = rest.partition("/")
    port = {"http": ":80", "https": ":443"}.get(scheme_name.lower(), "/")
    return f"{scheme_name}://{authority}".lower().removesuffix(port) + f"{slash}{path}".rstrip("/")
