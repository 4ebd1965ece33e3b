"""The commands of sharing: what they print, and what they say when they are given what they cannot take."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.support import Result, Run, derivative, manifest, unchanged


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in the workspace of somebody else."""
    home = tmp_path / "mine"
    home.mkdir()
    monkeypatch.chdir(home)
    assert run("-q", "init").code == 0
    return run


@pytest.fixture
def theirs(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path / "theirs")


@pytest.fixture
def cities(theirs: WorkspaceFiles) -> DatasetFiles:
    return make_dataset(theirs, "cities", 1_000, 2_000, 3_000)


@pytest.fixture
def requests() -> list[str]:
    return []


@pytest.fixture
def url(theirs: WorkspaceFiles, cities: DatasetFiles, requests: list[str]) -> Iterator[str]:
    """The repository of a server."""
    with RepositoryServer(theirs, on_request=requests.append) as server:
        yield server.url


@pytest.fixture
def own(run: Run) -> None:
    """Here is a dataset of this name."""
    Path("own.yaml").write_text(manifest(name="own"))
    assert run("add", "own.yaml").code == 0


def records(result: Result) -> list[dict[str, object]]:
    assert (result.code, result.err) == (0, ""), result.err
    found: list[dict[str, object]] = json.loads(result.out)
    return found


def the_dataset() -> Path:
    """The folder of the only dataset that is here."""
    (folder,) = Path(".odfchain/datasets").iterdir()
    return folder


def refused(result: Result, code: int, *said: str) -> None:
    """One line of error, perhaps one of hint, and nothing on standard output."""
    assert (result.code, result.out) == (code, "")
    lines = result.err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    for text in said:
        assert text in result.err


# --- pull ----------------------------------------------------------------------------------------------


def test_a_url_becomes_a_dataset_and_its_name_asks_the_same_place_again(
    run: Run, url: str, cities: DatasetFiles
) -> None:
    (row,) = records(run("pull", f"{url}cities", "--as", "towns", "-o", "json"))
    size = sum(path.stat().st_size for path in (cities.folder / "blocks").iterdir() if path.is_file())
    expected = {"dataset": "towns", "status": "created", "blocks": 5, "objects": 6, "oldHead": None}
    assert row.items() >= expected.items()
    assert row["bytes"] == size + 6_000 + 3 * len(b"checkpoint 2")
    assert row["source"] == f"{url}cities/"
    assert row["head"] == str(cities.chain.head())
    add_slice(cities, 500)
    (row,) = records(run("pull", "towns", "-o", "json"))
    assert row.items() >= {"dataset": "towns", "status": "updated", "blocks": 1, "objects": 2}.items()
    assert row["head"] == str(cities.chain.head())
    (row,) = records(run("pull", "--all", "-o", "json"))
    assert row.items() >= {"status": "up to date", "blocks": 0, "objects": 0}.items()
    (row,) = records(run("pull", f"{url}cities", "-o", "json"))
    assert row["dataset"] == "towns", "the URL is known under this name"


def test_the_table_says_what_was_done(run: Run, url: str) -> None:
    result = run("pull", f"{url}cities")
    assert result.code == 0
    titles, row = result.out.splitlines()
    assert titles.split() == ["dataset", "status", "blocks", "objects", "bytes", "signature"]
    assert re.fullmatch(r"cities +created +5 +6 +\d\.\d KiB +signed", row)


def test_several_at_once_and_one_that_fails(run: Run, url: str, theirs: WorkspaceFiles) -> None:
    make_dataset(theirs, "org/lakes", 10)
    result = run("pull", f"{url}cities", f"{url}nothing", f"{url}org/lakes", "-o", "json")
    assert result.code == 4
    assert [row["dataset"] for row in json.loads(result.out)] == ["cities", "lakes"]
    assert f"error: {url}nothing/: {url}nothing/: there is no dataset (no refs/head)" in result.err


def test_a_registered_repository(run: Run, url: str, theirs: WorkspaceFiles) -> None:
    make_dataset(theirs, "org/lakes", 10)
    assert run("repo", "add", "friends", url).err == f"friends is {url}\n"
    assert records(run("repo", "list", "-o", "json")) == [
        {"name": "friends", "url": url, "requireSignature": False, "maxSignatureAgeSeconds": None}
    ]
    found = records(run("search", "--repo", "friends", "-o", "json"))
    assert [row["dataset"] for row in found] == ["friends/cities", "friends/org/lakes"]
    assert found[0].items() >= {"kind": "Root", "records": 30, "size": 6_000, "blocks": 5}.items()
    (row,) = records(run("search", "LAK", "-o", "json"))
    (row,) = records(run("pull", str(row["dataset"]), "-o", "json"))
    assert row["dataset"] == "lakes"
    (row,) = records(run("repo", "alias", "list", "-o", "json"))
    assert row == {"dataset": "lakes", "kind": "pull", "alias": "friends/org/lakes"}
    assert run("repo", "delete", "friends").err == "forgot friends\n"
    refused(run("pull", "lakes"), 4, "no repository is called 'friends'")
    assert run("search", "--repo", url, "cit").out.splitlines()[1].startswith(f"{url}cities ")


def test_a_copy_that_went_another_way_is_replaced_by_force_only(
    run: Run, url: str, theirs: WorkspaceFiles
) -> None:
    assert run("pull", f"{url}cities").code == 0
    refused(run("pull", "cities", "--set-watermark", "2024-01-01"), 2, "its head moves by `pull` only")
    add_slice(WorkspaceFiles.find(Path()).dataset("cities"), 10)  # another program wrote on
    with unchanged(the_dataset()):
        refused(run("pull", "cities"), 5, "cities has 1 block that", "--force")
    forked = (the_dataset() / "refs" / "head").read_text()
    (row,) = records(run("pull", "cities", "--force", "-o", "json"))
    head = str(theirs.dataset("cities").chain.head())
    assert row.items() >= {"status": "overwritten", "head": head, "oldHead": forked}.items()
    assert forked in {path.read_text() for path in (the_dataset() / "refs").glob("overwritten-*")}
    (row,) = records(run("pull", "cities", "-o", "json"))
    assert row["status"] == "up to date"
    add_slice(theirs.dataset("cities"), 10)
    add_slice(WorkspaceFiles.find(Path()).dataset("cities"), 11)
    heads = (head, (the_dataset() / "refs" / "head").read_text(), str(theirs.dataset("cities").chain.head()))
    said = ("diverged after block", "1 block only here, 1 block only there", *(text[:17] for text in heads))
    refused(run("pull", "cities"), 5, *said, url, "--force")


def test_recursive_pulls_ask_nothing_of_what_a_copy_is_made_of(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    Path("derived.yaml").write_text(manifest() + "---\n" + derivative("SELECT * FROM cities"))
    at = ("-w", str(other))
    assert run(*at, "init").code == 0
    assert run(*at, "add", "--no-check", "derived.yaml").code == 0, "both are made"
    (name,) = (d.alias for d in Workspace.open(other) if str(d.alias) != "cities")
    with RepositoryServer(WorkspaceFiles.find(other)) as server:
        assert run("pull", f"{server.url}{name}").code == 0
        for args in (["--all"], [str(name), "--recursive"]):
            (row,) = records(run("pull", *args, "-o", "json"))
            assert row.items() >= {"dataset": str(name), "status": "up to date"}.items()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["ftp://example.com/cities"], 2, "datasets cannot be carried over 'ftp'"),
        (["odf+ftp://example.com/cities"], 2, "datasets cannot be carried over 'odf+ftp'"),
        (["https://example.com/cities?token=1"], 2, "has no query and no fragment"),
        (["https://example.com/cities?"], 2, "has no query and no fragment"),
        (["s3://bucket/cities#"], 2, "has no query and no fragment"),
        (["file:///a%2Fx"], 2, "an escaped slash"),
        (["s3://bucket/a%2fb/cities"], 2, "an escaped slash"),
        (["https://example.com/%20"], 2, "say what to call it: --as NAME"),
        (["nobody/cities"], 4, "no dataset is called 'nobody/cities', and no repository 'nobody'"),
        (["nobody/org/cities"], 4, "no repository is called 'nobody'"),
        (["file:///a/x", "file:///a/y", "--as", "z"], 2, "--as names one dataset"),
        (["own", "--as", "z"], 2, "--as applies only to datasets pulled from a URL"),
        (["own", "--metadata-only"], 2, "--metadata-only applies only to datasets pulled from a URL"),
        (["--all", "--force"], 2, "--force applies only to datasets pulled from a URL"),
        (["file:///a/x", "--allow-empty"], 2, "--allow-empty applies only to datasets with a source"),
        (["file:///a/x", "-e", "A=1"], 2, "-e applies only to datasets with a source"),
        (
            ["file:///a/x", "--set-watermark", "now"],
            2,
            "--set-watermark is for one dataset of this workspace",
        ),
        (
            ["own", "--set-watermark=now", "--last", "3"],
            2,
            "--last applies only to datasets pulled from a URL",
        ),
        (["file:///a/x", "--metadata-only", "--last", "3"], 2, "has no slices to choose from"),
        (["file:///a/x", "--as", "a b"], 2, "'a b'"),
        (["file:///a/x"], 4, "there is no dataset (no refs/head)"),
        (["127.0.0.1:8090/cities"], 2, "write the URL: http://127.0.0.1:8090/cities"),
        (["/srv/public/cities"], 2, "written as a URL: file:///srv/public/cities"),
    ],
)
def test_pulls_that_cannot_be_meant(run: Run, args: list[str], code: int, said: str) -> None:
    with unchanged(the_dataset()):
        refused(run("pull", *args), code, said)


def test_options_that_click_refuses(run: Run) -> None:
    for args in (["--last", "0"], ["--parallel", "0"], ["--parallel", "1000"], ["--since", "yesterday"]):
        result = run("pull", "file:///a/x", *args)
        assert (result.code, result.out) == (2, "")
        assert args[0] in result.err


def test_a_name_that_is_taken(run: Run, url: str) -> None:
    Path("own.yaml").write_text(manifest())
    assert run("add", "own.yaml").code == 0
    with unchanged(the_dataset()):
        refused(run("pull", f"{url}cities"), 5, "holds the dataset did:odf:", "--as")
    assert run("pull", f"{url}cities", "--as", "towns").code == 0
    refused(run("pull", f"{url}cities", "--as", "villages"), 5, "is here already, as 'towns'")


def test_the_token_goes_to_the_server_that_is_named(
    run: Run, url: str, cities: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODFCHAIN_TOKEN", "not a token")
    refused(run("pull", f"{url}cities"), 8, "the token has characters that cannot be sent")
    refused(run("fetch", "cities"), 4, "no dataset is called 'cities'")
    refused(run("search", "--repo", url), 8, "the token has characters that cannot be sent")
    monkeypatch.delenv("ODFCHAIN_TOKEN")
    assert run("pull", f"{url}cities").code == 0
    monkeypatch.setenv("ODFCHAIN_TOKEN", "not a token")
    assert run("pull", "cities").code == 0, "a place that is only remembered gets none"
    two = [f"{url}cities", "http://127.0.0.2:9/cities"]
    refused(run("pull", *two), 2, "ODFCHAIN_TOKEN is a token for one server", "http://127.0.0.2:9")


def test_a_token_that_others_can_read_on_the_way_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from odfchain.cli.parameters import token_for

    monkeypatch.setenv("ODFCHAIN_TOKEN", "secret")
    assert token_for([PeerUrl.parse("http://example.com/cities")]) == "secret"
    said = capsys.readouterr().err
    assert "goes to example.com over plain http" in said
    assert "secret" not in said
    for quiet in ("https://example.com/cities", "http://127.0.0.1:8090/cities", "http://[::1]/cities"):
        token_for([PeerUrl.parse(quiet)])
    assert capsys.readouterr().err == ""


def test_no_message_shows_a_password(run: Run, url: str) -> None:
    secret = url.replace("://", "://me:hunter2@")
    for args in (
        ["pull", f"{secret}nothing"],
        ["pull", f"{secret}nothing", f"{secret}cities"],
        ["repo", "add", "friends", secret],
        ["repo", "list"],
        ["repo", "alias", "list"],
        ["search", "--repo", "friends", "-o", "json"],
        ["search", "--repo", secret],
        ["pull", "cities", "-o", "json"],
    ):
        result = run(*args)
        assert "hunter2" not in result.out + result.err, args
    assert "cities" in result.out


# --- partial copies ------------------------------------------------------------------------------------


def test_a_partial_copy_says_so_and_is_completed_from_any_mirror(
    run: Run, url: str, cities: DatasetFiles, requests: list[str], tmp_path: Path
) -> None:
    (row,) = records(run("pull", f"{url}cities", "--metadata-only", "-o", "json"))
    assert row.items() >= {"objects": 0, "missing": 3}.items()
    assert not [line for line in requests if "/data/" in line or "/checkpoints/" in line]
    (row,) = records(run("list", "-o", "json"))
    assert row.items() >= {"slicesLocal": 0, "slices": 3, "records": 30}.items()
    titles, line = run("list").out.splitlines()
    assert titles.split()[4] == "Slices"
    assert "0 of 3" in line
    result = run("verify", "cities")
    assert result.code == 7
    missing = "is not in this partial copy; `odfchain fetch cities` brings it"
    assert result.out.splitlines()[:3] == [
        "PART  cities: 5 blocks, 0 slices, 0 records, 0 B",
        *(f"  not checked, blocks 2, 3, 4: the {what} {missing}" for what in ("slice", "checkpoint")),
    ]
    refused(run("tail", "cities"), 7, "error: cities: the slice f1620", "`odfchain fetch cities` brings them")
    mirror = tmp_path / "mirror"
    assert run("-w", tmp_path / "theirs", "push", "cities", "--to", mirror.as_uri()).code == 0
    requests.clear()
    (row,) = records(run("fetch", "cities", "--from", mirror.as_uri(), "--last", "1", "-o", "json"))
    assert row == {"dataset": "cities", "objects": 2, "bytes": 3_000 + 12, "missing": 2}
    assert "1 of 3" in run("list").out
    assert run("verify", "cities").code == 6, "the slice of this dataset is noise"
    (row,) = records(run("fetch", "cities", "--from", mirror.as_uri(), "-o", "json"))
    assert row["missing"] == 0
    assert requests == [], "where the copy came from was not asked"
    assert "slices" not in records(run("list", "-o", "json"))[0]
    (row,) = records(run("fetch", "cities", "-o", "json"))
    assert row["objects"] == 0


def test_a_partial_copy_keeps_its_choice(run: Run, url: str, cities: DatasetFiles) -> None:
    assert run("pull", f"{url}cities", "--last", "2").code == 0
    add_slice(cities, 10)
    (row,) = records(run("pull", "cities", "-o", "json"))
    assert row.items() >= {"objects": 2, "missing": 1}.items()


def test_what_is_missing_from_a_whole_copy_is_a_fault(run: Run, url: str) -> None:
    assert run("pull", f"{url}cities").code == 0
    (folder,) = Path(".odfchain/datasets").iterdir()
    for path in [*(folder / "data").glob("f*"), *(folder / "checkpoints").glob("f*")]:
        path.unlink()
    result = run("verify", "cities", "-o", "json")
    (report,) = json.loads(result.out)
    assert (result.code, len(report["faults"]), report["unchecked"]) == (6, 6, [])
    assert "is missing" in report["faults"][0]["message"]


def test_a_damaged_slice_of_a_partial_copy_is_a_fault(run: Run, url: str) -> None:
    assert run("pull", f"{url}cities", "--last", "1").code == 0
    (slice_,) = next(Path(".odfchain/datasets").iterdir()).glob("data/f*")
    slice_.write_bytes(b"short")
    result = run("verify", "cities", "-o", "json")
    (report,) = json.loads(result.out)
    assert result.code == 6
    assert "SizeMismatch" in report["faults"][0]["message"]
    assert [item["blocks"] for item in report["unchecked"]] == [[2, 3], [2, 3]]


@pytest.mark.usefixtures("own")
def test_fetches_that_cannot_be_meant(run: Run, url: str) -> None:
    refused(run("fetch", "own"), 2, "it is not known where own comes from", "--from URL")
    refused(run("fetch", "own", "--from", "elsewhere"), 2, "names no repository")
    refused(run("fetch", "nothing", "--from", url), 4, "no dataset is called 'nothing'")


# --- push ----------------------------------------------------------------------------------------------


def test_push_prints_the_plan_and_then_does_it(
    run: Run, url: str, tmp_path: Path, cities: DatasetFiles
) -> None:
    assert run("pull", f"{url}cities").code == 0
    target = tmp_path / "public" / "cities"
    (plan,) = records(run("push", "cities", "--to", target.as_uri(), "--dry-run", "-o", "json"))
    expected = {"dataset": "cities", "blocks": 5, "objects": 6, "bytes": 6_036, "oldHead": None, "present": 0}
    assert plan.items() >= {**expected, "status": "would be pushed"}.items()
    assert not target.exists()
    refused(run("push", "cities"), 2, "it is not known where cities is to be pushed to")
    refused(run("push", "cities", "--to", target.as_uri(), "--no-create"), 4, "no such dataset")
    (row,) = records(run("push", "cities", "--to", target.as_uri(), "-o", "json"))
    assert row.items() >= {**expected, "status": "created", "head": str(cities.chain.head())}.items()
    (row,) = records(run("push", "cities", "-o", "json"))
    assert row["status"] == "up to date", "where it went is remembered"
    add_slice(WorkspaceFiles.find(Path()).dataset("cities"), 10)
    assert re.search(r"cities +updated +1 +2 +\d+ B +file://", run("push", "cities", "--wide").out)
    assert run("pull", "cities", "--force").code == 0
    refused(run("push", "cities"), 5, "has 1 block that cities has not")
    (row,) = records(run("push", "cities", "--force", "-o", "json"))
    assert row.items() >= {"status": "overwritten", "overwrites": True}.items()


def test_push_to_a_repository_keeps_the_name(run: Run, url: str, tmp_path: Path) -> None:
    assert run("pull", f"{url}cities", "--as", "org/towns").code == 0
    assert run("repo", "add", "shelf", (tmp_path / "shelf").as_uri()).code == 0
    assert run("push", "org/towns", "shelf").code == 0
    assert (tmp_path / "shelf" / "towns" / "refs" / "head").is_file()
    found = Workspace.open()
    assert found["org/towns"].aliases("push") == ("shelf/towns",)
    assert run("push", "org/towns", "shelf/other/name").code == 0
    (row,) = records(run("search", "oth", "--repo", "shelf", "-o", "json"))
    assert row["dataset"] == "shelf/other/name"
    assert row["records"] is None


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["own", "file:///y", "--to", "file:///x"], 2, "the destination is given twice"),
        (["own", "shelf"], 4, "no dataset and no repository is called 'shelf'"),
        (["own", "--to", "shelf"], 4, "no repository is called 'shelf'"),
        ([], 2, "name the datasets to push"),
        (["own", "own", "--all"], 2, "name the datasets to push"),
        (["own", "--all"], 4, "no repository is called 'own'"),
        (["own", "own", "--to", "shelf/x"], 4, "no repository is called 'shelf'"),
        (["own%", "--to", "/srv/x"], 2, "written as a URL"),
        (["own", "--to", "published/own"], 4, "; a folder is written as a URL: file:///"),
        (["own", "--to", "https://example.com/own"], 8, "can only be read over https"),
        (["own", "--to", "ipfs://bafy/own"], 2, "cannot be written through a gateway"),
        (["own", "--to", "gopher://x/own"], 2, "cannot be carried over 'gopher'"),
        (["other", "--to", "file:///x"], 4, "no dataset is called 'other'"),
        (["own", "--to", "/srv/my data/own"], 2, "written as a URL: file:///srv/my%20data/own"),
        (["own", "--to", "example.com:80/own"], 2, "write the URL: http://example.com:80/own"),
    ],
)
def test_pushes_that_cannot_be_meant(run: Run, args: list[str], code: int, said: str) -> None:
    refused(run("push", *args), code, said)


# --- repositories and their aliases --------------------------------------------------------------------


@pytest.mark.usefixtures("own")
def test_aliases_are_set_and_forgotten(run: Run) -> None:
    assert run("repo", "alias", "add", "own", "file:///a/own", "--push").err == "own: push file:///a/own/\n"
    assert run("repo", "alias", "add", "own", "file:///b/own", "--push").code == 0
    assert run("repo", "alias", "list", "own").out.split()[3:] == [
        *("own", "push", "file:///b/own/"),
        *("own", "push", "file:///a/own/"),
    ]
    forgotten = run("repo", "alias", "delete", "own", "file:///a/own", "--push")
    assert "own: forgot push file:///a/own/" in forgotten.err
    assert run("repo", "alias", "delete", "own", "--all", "--push").code == 0
    refused(run("repo", "alias", "delete", "own", "file:///a/own", "--push"), 4, "is not pushed to")
    refused(run("repo", "alias", "delete", "own", "--push"), 2, "name the place to forget, or use --all")
    refused(run("repo", "alias", "add", "own", "file:///a/own"), 2, "--pull or --push")
    refused(run("repo", "alias", "add", "own", "nobody/own", "--pull"), 4, "no repository is called 'nobody'")


def test_repositories_that_cannot_be_meant(run: Run, url: str) -> None:
    refused(run("repo", "add", "a b", url), 2, "'a b'")
    refused(run("repo", "add", "friends", "/srv/datasets"), 2, "is not a URL", "file:///")
    assert run("repo", "add", "friends", url).code == 0
    refused(run("repo", "add", "Friends", url), 5, "a repository called 'friends' already exists")
    refused(run("repo", "delete", "others"), 4, "no repository is called 'others'", "known are: friends")
    refused(run("search", "--repo", "others"), 4, "no repository is called 'others'")
    refused(run("search", "--repo", f"{url}cities/"), 2, "the server has no index of its datasets")
    refused(run("search", "--repo", f"odf+{url}cities"), 2, "cities/datasets.json", "name the dataset")


def test_a_search_needs_a_repository(run: Run) -> None:
    refused(run("search", "x"), 2, "no repository is known")
    assert "no repositories yet" in run("repo", "list").err


def test_names_of_repositories_are_completed(run: Run, url: str) -> None:
    from click.shell_completion import BashComplete

    from odfchain.cli.main import cli

    assert run("repo", "add", "friends", url).code == 0
    complete = BashComplete(cli, {}, "odfchain", "_ODFCHAIN_COMPLETE").get_completions
    assert [item.value for item in complete(["search", "--repo"], "FR")] == ["friends"]
    assert [item.value for item in complete(["repo", "delete"], "")] == ["friends"]


# --- serve, and the settings ---------------------------------------------------------------------------


def test_a_port_that_is_in_use(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"cannot listen on '127.0.0.1', port {port}"
        refused(run("serve", "--port", port), 8, said, "port 0 is any")


def test_settings_that_cannot_be_meant(run: Run, url: str) -> None:
    config = Path(".odfchain/config.yaml")
    text = config.read_text()
    for line, said in (
        ("parallel: 0", "share.parallel: 0 is outside 1 to 100"),
        ("retries: -1", "share.retries: -1 is outside 0"),
        ("token: secret", "share"),
    ):
        config.write_text(f"kind: WorkspaceConfig\nversion: 1\ncontent:\n  share:\n    {line}\n")
        refused(run("pull", f"{url}cities"), 3, str(config), said)
    config.write_text(text)
    assert run("pull", f"{url}cities").code == 0


def test_the_gateway_of_the_settings_is_asked_for_ipfs(run: Run, theirs: WorkspaceFiles) -> None:
    requests: list[str] = []
    with RepositoryServer(theirs, on_request=requests.append) as server:
        share = f"{{ipfsGateway: '{server.url}', retries: 0}}"
        text = f"kind: WorkspaceConfig\nversion: 1\ncontent:\n  share: {share}\n"
        Path(".odfchain/config.yaml").write_text(text)
        refused(run("pull", "ipfs://bafyx/cities"), 4, "there is no dataset")
    assert requests == ["127.0.0.1 GET /ipfs/bafyx/cities/refs/head 404"]


def test_progress_counts_blocks_and_bytes() -> None:
    from rich.console import Console

    from odfchain.cli.progress_bar import TerminalProgress

    progress = TerminalProgress()
    progress._shown = True
    with progress:
        seen = []
        for name, total in (
            ("Receiving blocks", 12_000),
            ("Receiving 3 objects", 1 << 20),
            ("Receiving 4 objects", None),
        ):
            progress.phase(name, total)
            progress.advance(1_000)
            bar = progress._bar
            console = Console(width=120)
            with console.capture() as captured:
                console.print(bar.get_renderable())
            seen.append(captured.get())
    assert "1,000 blocks of 12,000 blocks" in seen[0]
    assert "1000 B of 1.0 MiB" in seen[1]
    assert "1000 B" in seen[2]
    assert " of " not in seen[2]
