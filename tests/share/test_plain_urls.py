"""A policy for a place holds however the place is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.errors import SignatureError
from odfchain.odf.names import RepoName
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.signed_statements import NO_POLICY, SignaturePolicy
from tests.kit.signed_heads import COMMON, Reader, owned, publish

CHAIN = owned(COMMON)


place = PeerUrl.parse


@pytest.mark.parametrize(
    "text",
    [
        "https://data.example/odf/cities",
        "HTTPS://DATA.Example/odf/cities/",
        "https://data.example:443/odf/cities",
        "https://data.example:/odf/cities",
        "https://data.example:0443/odf/cities",
        "https://data.example./odf/cities",
        "https://me:secret@data.example/odf/cities",
        "https://me@x:p@data.example/odf/cities",
        "https://data.example//odf///cities//",
        "https://data.example/./odf/./cities",
        "https://data.example/x/../odf/cities",
        "https://data.example/x/%2e%2E/%6fdf/cities",
        "https://data%2Eexample/odf/cities",
        "http://data.example/odf/cities",
        "http://data.example:80/odf/cities",
        "https://data.example/odf",
    ],
)
def test_every_spelling_of_a_place_is_covered(text: str) -> None:
    assert place(text).is_below(place("https://Data.example:443/odf/"))


@pytest.mark.parametrize(
    "text",
    [
        "https://data.example/odf2/cities",
        "https://data.example/ODF/cities",
        "https://data.example/odf/../cities",
        "https://data.example/",
        "https://data.example:8443/odf/cities",
        "https://data.example.org/odf/cities",
        "https://data.example@other.example/odf/cities",
        "s3://data.example/odf/cities",
        "file:///data.example/odf/cities",
    ],
)
def test_other_places_are_not(text: str) -> None:
    assert not place(text).is_below(place("https://data.example/odf/"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://127.0.0.1:8092/x", "http://localhost:8092/x"),
        ("http://127.0.0.1:8092/x", "http://[::1]:8092/x"),
        ("http://127.0.0.1:8092/x", "http://127.1:8092/x"),
        ("http://192.0.2.7/x", "http://0xc0000207/x"),
        ("http://192.0.2.7/x", "http://[::ffff:192.0.2.7]/x"),
        ("http://[2001:db8::7]/x", "http://[2001:DB8:0:0::7]:80/x"),
        ("http://b\u00fccher.example/x", "http://xn--bcher-kva.example/x"),
        ("s3+https://store.example/bucket/x", "S3+HTTP://store.example:80/bucket/x"),
        ("s3://bucket/a/x", "s3://bucket/%61//x"),
        ("file:///srv/x", "file:/srv/./x"),
        ("file:///srv/x", "FILE://localhost/srv/y/../%78"),
    ],
)
def test_two_spellings_are_one_place(one: str, other: str) -> None:
    assert place(one).normal() == place(other).normal()


@pytest.mark.parametrize(
    "host", ["a..b", "x" * 70, "127.0.0.1.", "1.2.3.4.5", "h:99999", "h:\u0661", "%00", "%5b"]
)
def test_odd_hosts_are_places_too(host: str) -> None:
    assert place(f"http://{host}/x").is_below(place(f"http://{host}/"))


def test_a_repository_cannot_be_passed_by_with_another_spelling_of_its_folder(tmp_path: Path) -> None:
    reader, folder = Reader(tmp_path / "reader"), tmp_path / "repository"
    publish(folder / "cities", CHAIN, None)
    (tmp_path / "link").symlink_to(folder)
    reader.sharing.repositories.add(RepoName("friends"), folder.as_uri(), SignaturePolicy(require=True))
    for url in (
        f"FILE://{folder}/cities/",
        f"file://localhost{folder}/cities",
        f"file://{folder.parent}/%72epository//cities",
        f"file://{folder.parent}/link/cities",
    ):
        with pytest.raises(SignatureError, match="signature is required"):
            reader.sharing.pull(url)
    assert list(reader.files.datasets()) == []
    assert reader.sharing.repositories.policy(PeerUrl.parse(f"{folder.as_uri()}2/x")) == NO_POLICY
