"""Repositories by name, references to what is elsewhere, remembered aliases, and what a repository has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    InvalidIdError,
    ManifestError,
    TransferError,
    UnsupportedPeerError,
    WorkspaceError,
)
from odfchain.limits import SHARING
from odfchain.odf.enums import DatasetKind
from odfchain.odf.names import (
    DatasetAlias,
    DatasetAliasRemote,
    DatasetName,
    DatasetUrl,
    RemoteDatasetId,
    RepoName,
)
from odfchain.storage.bucket_store import place_of
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import HEAD_KEY
from odfchain.transfer import repositories as transfer_repositories
from odfchain.transfer.open_peer import open_writable
from odfchain.transfer.pushing import push_dataset
from odfchain.transfer.repositories import Repositories, list_repository
from odfchain.transfer.sharing import (
    AliasKind,
    add_alias,
    aliases,
    read_reference,
    resolve_remote,
)
from odfchain.workspace.config import read_config
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.local_folder import LocalDataset
from tests.kit.servers import Reply, Server
from tests.kit.stand_ins import simulated_s3
from tests.kit.support import conformance

CASES = conformance("protocol_cases")
PARSING = CASES["reference_parsing"]
DID = "did:odf:fed01" + "0" * 64
FOO = DatasetAlias.parse("foo")


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    return Repositories(WorkspaceFiles.init(tmp_path / "workspace").root)


@pytest.fixture
def dataset(tmp_path: Path) -> LocalDataset:
    return LocalDataset(tmp_path / "foo", ("seed", "schema", "d1"))


# --- the registry ------------------------------------------------------------------------------------------


def test_a_repository_is_added_found_listed_and_forgotten(repositories: Repositories) -> None:
    assert repositories.list() == []
    repositories.add(RepoName("Org.Example"), "https://example.com/odf")
    repositories.add(RepoName("a"), "file:///srv/repo/")
    found = {str(r.name): r.url.text for r in repositories.list()}
    assert list(found.items()) == [("a", "file:///srv/repo/"), ("Org.Example", "https://example.com/odf/")]
    assert repositories.get(RepoName("org.example")).text == "https://example.com/odf/"
    repositories.delete(RepoName("ORG.EXAMPLE"))
    assert [str(r.name) for r in repositories.list()] == ["a"]
    assert repositories.find(RepoName("org.example")) is None
    for ask in (repositories.get, repositories.delete):
        with pytest.raises(WorkspaceError, match="no repository is called") as caught:
            ask(RepoName("org.example"))
        assert caught.value.hint == "known are: a; a folder is written as a URL: file:///…"


def test_the_manifest_is_one_that_others_can_read(repositories: Repositories) -> None:
    repositories.add(RepoName("a"), "s3://bucket/prefix")
    path = repositories.root / "repos" / "a"
    assert path.read_text() == "kind: Repository\nversion: 1\ncontent:\n  url: s3://bucket/prefix/\n"
    assert path.stat().st_mode & 0o077 == 0, "a URL may have a password in it"


@pytest.mark.parametrize(
    ("url", "said", "hint"),
    [
        ("odf+ftp://me:secret@node.example/", "cannot be carried over", "odf+https"),
        ("/srv/repo", "is not a URL", "file:///"),
        ("ftp://example.com/", "cannot be carried over 'ftp'", "schemes"),
        ("https://example.com/?a=secret", "no query", None),
    ],
)
def test_what_is_no_repository_is_refused_with_a_reason(
    url: str, said: str, hint: str | None, repositories: Repositories
) -> None:
    with pytest.raises(UnsupportedPeerError, match=said) as caught:
        repositories.add(RepoName("a"), url)
    assert hint is None or hint in str(caught.value.hint)
    assert "secret" not in str(caught.value)
    assert repositories.list() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Repository\nversion: 2\ncontent: {url: 'file:///x'}", "version 2 is not supported"),
        ("kind: Repository\nversion: 1\ncontent: {}", "url"),
        ("kind: Other\nversion: 1\ncontent: {url: 'file:///x'}", "Other"),
        ("x: [", "not valid YAML"),
        ("#" * 70_000, "larger than"),
    ],
)
def test_a_damaged_manifest_is_named(text: str, said: str, repositories: Repositories) -> None:
    path = repositories.root / "repos" / "a"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ManifestError, match=said) as caught:
        repositories.list()
    assert str(path) in str(caught.value)


def test_foreign_files_are_passed_over(repositories: Repositories) -> None:
    repositories.add(RepoName("a"), "file:///x/")
    (repositories.root / "repos" / ".pending-1").write_text("x")
    assert [str(r.name) for r in repositories.list()] == ["a"]


# --- references: the shared cases --------------------------------------------------------------------------

NAMES = [
    pytest.param(parse, text, group == "valid", id=f"{rule}-{group}-{text}")
    for rule, parse in (
        ("dataset_name", DatasetName),
        ("local_alias", DatasetAlias.parse),
        ("remote_alias", DatasetAliasRemote.parse),
    )
    for group in ("valid", "invalid")
    for text in PARSING[rule][group]
]


@pytest.mark.parametrize(("parse", "text", "valid"), NAMES)
def test_names_and_aliases(parse: Any, text: str, valid: bool) -> None:
    if valid:
        assert str(parse(text)) == text
    else:
        with pytest.raises(InvalidIdError):
            parse(text)


@pytest.mark.parametrize("case", [pytest.param(c, id=c["in"]) for c in PARSING["any_ref"]])
def test_any_reference(case: dict[str, str], repositories: Repositories) -> None:
    text = case["in"].replace("did:odf:…", DID).replace("<cid>", "bafybeigexample")
    if case["is"] == "error":
        with pytest.raises(InvalidIdError):
            read_reference(text, repositories)
        return
    kinds = {"local alias": DatasetAlias, "remote alias": DatasetAliasRemote, "url": DatasetUrl}
    if case["is"].startswith("ambiguous"):
        assert read_reference(text, repositories) == DatasetAlias.parse(text)
        repositories.add(RepoName("mystery"), "file:///srv/")
        assert read_reference(text, repositories) == DatasetAliasRemote.parse(text)
        return
    found = read_reference(text, repositories)
    assert isinstance(found, kinds.get(case["is"], RemoteDatasetId))
    assert str(found) == text
    if case["is"] == "id at a repo":
        with pytest.raises(WorkspaceError, match="no repository is called 'repo'"):
            resolve_remote(text, repositories)
        repositories.add(RepoName("repo"), "file:///srv/")
        assert resolve_remote(text, repositories).text == f"file:///srv/{DID}/"


@pytest.mark.parametrize("case", [pytest.param(c, id=c["in"]) for c in PARSING["push_target"]])
def test_push_targets(case: dict[str, str], repositories: Repositories) -> None:
    repositories.add(RepoName("net.example.com"), "file:///srv/repo")
    expected = {
        "url": "http://net.example.com/",
        "remote alias": "file:///srv/repo/foo/",
        "remote alias with account": "file:///srv/repo/bar/foo/",
        "repository (dataset name is taken from the local one)": "file:///srv/repo/local.name/",
    }[case["is"]]
    local = DatasetAlias.parse("local.name")
    assert resolve_remote(case["in"], repositories, local=local).text == expected


def test_names_compare_without_regard_to_case() -> None:
    assert PARSING["equality"].startswith("names compare without regard to case")
    assert DatasetAlias.parse("A/x") == DatasetAlias.parse("a/X")
    assert DatasetAlias.parse("a/x") != DatasetAlias.parse("x")


@pytest.mark.parametrize("case", CASES["url_join"], ids=lambda case: next(iter(case.values())))
def test_urls_are_joined(case: dict[str, Any], repositories: Repositories) -> None:
    if "base" in case:
        url = PeerUrl.parse(case["base"]).text
        assert f"{url}{HEAD_KEY}" == case["ref"]
        assert case.get("block") in (None, f"{url}blocks/{{hash}}")
    elif "remote_alias" in case:
        repositories.add(RepoName("repo"), case["repo_url"])
        url = resolve_remote(case["remote_alias"], repositories)
        assert url.is_smart == case["repo_url"].startswith("odf+")
        assert url.plain.text == case["dataset_url"]
        sockets = url.plain.text.replace("http", "ws", 1)
        for name, last in (("ws_pull", "pull"), ("ws_push", "push")):
            assert case.get(name) in (None, f"{sockets}{last}")
    elif "inferred_local_name" in case:
        assert str(PeerUrl.parse(case["url"]).name()) == case["inferred_local_name"]
    else:
        found = place_of(PeerUrl.parse(case["url"]))
        assert (found.store, found.endpoint, found.container) == ("s3", case["endpoint"], case["bucket"])
        assert found.below("refs/head").key == f"{case['key_prefix']}refs/head"


def test_a_reference_to_an_unknown_repository_says_how_to_add_it(repositories: Repositories) -> None:
    for text, local in (("nobody/x", None), ("nobody", FOO)):
        with pytest.raises(WorkspaceError, match="no repository is called 'nobody'") as caught:
            resolve_remote(text, repositories, local=local)
        assert str(caught.value.hint).startswith("`odfchain repo add NAME URL` makes one known; ")
    with pytest.raises(InvalidIdError, match="names no repository"):
        resolve_remote("nobody", repositories)


# --- remembered aliases ------------------------------------------------------------------------------------


def test_the_place_that_was_used_last_comes_first(dataset: LocalDataset) -> None:
    files = dataset.files
    assert aliases(files, AliasKind.PULL) == ()
    assert add_alias(files, AliasKind.PULL, "https://example.com/foo") == "https://example.com/foo/"
    add_alias(files, AliasKind.PULL, "repo/foo")
    add_alias(files, AliasKind.PUSH, "file:///srv/foo/")
    assert aliases(files, AliasKind.PULL) == ("repo/foo", "https://example.com/foo/")
    add_alias(files, AliasKind.PULL, "https://example.com/foo/")
    assert aliases(files, AliasKind.PULL) == ("https://example.com/foo/", "repo/foo")
    assert aliases(files, AliasKind.PUSH) == ("file:///srv/foo/",)
    assert (files.folder / "info" / "config").read_text() == (
        "kind: DatasetConfig\nversion: 1\ncontent:\n  pullAliases:\n  - https://example.com/foo/\n"
        "  - repo/foo\n  pushAliases:\n  - file:///srv/foo/\n"
    )


def test_aliases_are_forgotten_one_by_one_or_all(dataset: LocalDataset) -> None:
    files = dataset.files
    for text in ("repo/foo", "repo/bar", "https://example.com/foo"):
        add_alias(files, AliasKind.PULL, text)
    assert AliasKind.PULL.forget(files, "Repo/Bar") == ("repo/bar",)
    assert AliasKind.PULL.forget(files, "https://example.com/foo") == ("https://example.com/foo/",)
    with pytest.raises(WorkspaceError, match="is not pulled from") as caught:
        AliasKind.PULL.forget(files, "nothing at all")
    assert caught.value.hint == "its pull aliases are: repo/foo"
    assert AliasKind.PULL.forget(files) == ("repo/foo",)
    assert aliases(files, AliasKind.PULL) == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [("foo", InvalidIdError), (DID, UnsupportedPeerError), ("ftp://host/x", UnsupportedPeerError)],
)
def test_what_is_no_remote_place_is_not_remembered(
    text: str, error: type[Exception], dataset: LocalDataset
) -> None:
    with pytest.raises(error):
        add_alias(dataset.files, AliasKind.PULL, text)
    assert not (dataset.files.folder / "info" / "config").exists()


def test_a_damaged_configuration_is_named(dataset: LocalDataset) -> None:
    path = dataset.files.folder / "info" / "config"
    for text in ("kind: DatasetConfig\nversion: 1\ncontent: {pullAliases: 1}", "\0", "#" * 2_000_000):
        path.write_text(text)
        with pytest.raises(ManifestError) as caught:
            read_config(dataset.files)
        assert str(path) in str(caught.value)
        with pytest.raises(ManifestError):
            add_alias(dataset.files, AliasKind.PULL, "repo/foo")
        assert path.read_text() == text


# --- what a repository has ---------------------------------------------------------------------------------


def entry(**changes: Any) -> dict[str, Any]:
    names = {"alias": "org/cities", "id": DID, "kind": "Root", "head": "f1620" + "a" * 64}
    return {**names, "blocks": 3, "records": 10, "size": 1_000} | changes


def index(*entries: Any, **changes: Any) -> Reply:
    return Reply(body=json.dumps({"version": 1, "datasets": list(entries)} | changes).encode())


def test_a_server_is_listed_by_its_index() -> None:
    with Server(index(entry(), entry(alias="a.b", kind="Derivative"))) as server:
        found = list_repository(PeerUrl.parse(server.url("/odf")))
    assert [request.target for request in server.requests] == ["/odf/datasets.json"]
    assert [str(e.alias) for e in found] == ["a.b", "org/cities"]
    assert found[0].kind is DatasetKind.DERIVATIVE
    assert (found[1].blocks, found[1].records, found[1].size) == (3, 10, 1_000)
    assert [str(e.alias) for e in found if e.matches("CITI")] == ["org/cities"]
    assert all(e.matches("fed01000") for e in found)
    assert not any(e.matches("nothing") for e in found)


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (Reply(body=b"[" * 100_000), CorruptedPeerError, "not readable JSON.*nested too deeply"),
        (Reply(body=b"<html>"), CorruptedPeerError, "not readable JSON"),
        (Reply(body=b"[]"), CorruptedPeerError, "must be an object, not a list"),
        (Reply(body=b"\xff\xfe"), CorruptedPeerError, "not readable JSON"),
        (index(version=2), CorruptedPeerError, "version: must be 1, not the number 2"),
        (index(entry(alias="../etc")), CorruptedPeerError, r"datasets\[0\].alias: .* is not a valid"),
        (index(entry(alias="a\x1b[2J")), CorruptedPeerError, r"datasets\[0\].alias"),
        (index(entry(alias=1)), CorruptedPeerError, r"datasets\[0\].alias: must be text"),
        (index(entry(), entry(head="\x1b[31m")), CorruptedPeerError, r"datasets\[1\].head"),
        *(
            (index(entry(records=count)), CorruptedPeerError, r"datasets\[0\].records: ")
            for count in (-1, 1.5, True, "1", None, 1 << 63)
        ),
        (index(7), CorruptedPeerError, r"datasets\[0\]: must be an object"),
        (index(*[entry()] * 4), TransferError, "lists more than 3 datasets"),
        (Reply(body=b" " * 2_001), TransferError, "larger than the allowed 2,000 bytes"),
        (Reply(status=404), UnsupportedPeerError, "no index"),
        (Reply(status=403), AccessError, "403"),
        (Reply(status=418), TransferError, "418"),
    ],
)
def test_an_index_is_bounded_and_checked(
    reply: Reply, error: type[TransferError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2_000 if said.startswith("larger") else SHARING.index_bytes
    monkeypatch.setattr(
        transfer_repositories, "SHARING", replace(SHARING, listed_datasets=3, index_bytes=size)
    )
    with Server(reply) as server:
        with pytest.raises(error, match=said) as caught:
            list_repository(PeerUrl.parse(server.url("/odf")))
        assert str(caught.value).startswith(server.url("/odf/datasets.json"))
    assert str(caught.value).isprintable()


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """Address of a simulated S3 with an empty bucket."""
    with simulated_s3() as address:
        yield address


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_folder_or_bucket_is_listed_by_looking(
    kind: str, moto: str, dataset: LocalDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    base = (tmp_path / "repo").as_uri() if kind == "folder" else f"s3+{moto}/bucket1/repo"
    url = PeerUrl.parse(base)
    for alias in ("foo", "org/foo", "org/bar"):
        peer = open_writable(url.dataset(alias))
        push_dataset(dataset.files, peer)
        peer.close()
    found = list_repository(url)
    assert [str(e.alias) for e in found] == ["foo", "org/bar", "org/foo"]
    assert {e.head for e in found} == {dataset.head}
    with pytest.raises(UnsupportedPeerError, match="a dataset, not a repository"):
        list_repository(url.dataset("foo"))
    monkeypatch.setattr(transfer_repositories, "SHARING", replace(SHARING, listed_datasets=1))
    with pytest.raises(TransferError, match="more than 1 folders"):
        list_repository(url)


def test_a_damaged_head_in_a_folder_is_named(dataset: LocalDataset, tmp_path: Path) -> None:
    folder = tmp_path / "repo" / "foo" / "refs"
    folder.mkdir(parents=True)
    (folder / "head").write_text("\x1b[31mnot a hash")
    with pytest.raises(CorruptedPeerError, match="refs/head") as caught:
        list_repository(PeerUrl.parse((tmp_path / "repo").as_uri()))
    assert str(caught.value).isprintable()


def test_what_cannot_be_listed() -> None:
    with pytest.raises(UnsupportedPeerError, match="cannot be listed"):
        list_repository(PeerUrl.parse("ipfs://bafybeigexample/"))
    with pytest.raises(TransferError, match="no such folder"):
        list_repository(PeerUrl.parse("file:///no/such/folder/"))
