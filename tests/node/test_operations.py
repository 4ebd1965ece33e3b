"""What guards and counts every request of a node: hosts, other sites, figures, health, proxies with TLS."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import ssl
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.nginx import nginx
from tests.kit.node_cases import case
from tests.kit.queried_workspace import add_numbers
from tests.kit.running_node import RunningNode, running_node
from tests.kit.served_workspace import make_dataset, raw
from tests.kit.stand_ins import write_certificate
from tests.kit.support import ROOT, code_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node")
    add_numbers(odf.init(path), "stations", [3, 2])
    return path


def requests(node: RunningNode, number: int) -> list[tuple[dict[str, Any], int]]:
    found = []
    for each in case(number)["requests"]:
        headers = {"Host": each["host"]} if "host" in each else {}
        headers |= each.get("headers", {})
        body = each["body"].encode() if "body" in each else None
        reply = node.ask(each["target"], each.get("method", "GET"), body, **headers)
        found.append((each, reply.status))
    return found


def test_only_the_names_of_the_node_are_answered(folder: Path) -> None:
    with running_node(folder) as node:
        assert [status for _, status in requests(node, 42)] == [
            each["status"] for each, _ in requests(node, 42)
        ]


def test_case_13_a_name_that_leads_here_is_not_one_of_the_node(troubled: Path) -> None:
    wanted = case(13)
    with running_node(troubled, sql=True) as node:
        for target in wanted["targets"]:
            port = urlsplit(node.url).port
            for host in (wanted["host"], f"{wanted['host']}:{port}"):
                reply = node.ask(target, Host=host, Origin=f"http://{host}", Sec_Fetch_Site="same-origin")
                assert f"{reply.status}" == wanted["expected"] == f"{wanted['status']}", target
                assert wanted["says"] in reply.text
                assert wanted["never"] not in reply.text
        assert wanted["never"] in node.ask("/cities/").text


@pytest.mark.parametrize("said", case(7)["requests"], ids=str)
def test_case_7_files_are_as_they_were_before_there_were_pages(tmp_path: Path, said: dict[str, Any]) -> None:
    wanted = case(7)
    folder = make_dataset(WorkspaceFiles.init(tmp_path), wanted["dataset"], 100, 200).folder
    lines = [f"{name}: {text}" for name, text in said["headers"].items()]
    with running_node(tmp_path, sql=True) as node, RepositoryServer(WorkspaceFiles.find(tmp_path)) as before:
        for kind, headers in wanted["files"].items():
            for path in (folder / kind).iterdir():
                target = f"/{wanted['dataset']}/{path.relative_to(folder)}"
                asked = [f"{said['method']} {target} HTTP/1.1", "Host: localhost", "Connection: close"]
                request = "\r\n".join([*asked, *lines, "", ""]).encode()
                found, other = (
                    re.sub(rb"\r\ndate: [^\r]+", b"", raw(u, request)) for u in (node.url, before.url)
                )
                assert found == other, target
                head, _, body = found.partition(b"\r\n\r\n")
                assert body == (path.read_bytes() if said["method"] == "GET" else b"")
                first, *fields = head.decode().split("\r\n")
                assert f" {said['status']} " in first
                assert {f"{name}: {text}" for name, text in headers.items()} <= set(fields)
                assert not any(field.startswith(name) for field in fields for name in wanted["never"])


@pytest.mark.parametrize("start", case(42)["starts"], ids=lambda start: start["options"][1])
def test_every_address_needs_a_name(folder: Path, start: dict[str, Any]) -> None:
    command = [sys.executable, "-c", "from odfchain.cli.main import run; run()", "-w", str(folder), "serve"]
    ended = subprocess.run(
        [*command, "--port", "0", *start["options"]], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, start["says"] in ended.stderr) == (start["exit"], True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_other_sites_cannot_have_work_done(folder: Path) -> None:
    with running_node(folder, sql=True) as node:
        assert [(each, status) for each, status in requests(node, 43) if status != each["status"]] == []


def samples(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *sorted(f"{k}={v}" for k, v in sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.parametrize("by_dataset", [False, True])
def test_the_figures_are_those_of_the_traffic(folder: Path, by_dataset: bool) -> None:
    known = case(53)
    with running_node(folder, metrics_by_dataset=by_dataset) as node:
        sizes = sum(
            len(node.ask(each["target"]).body) for each in known["traffic"] for _ in range(each["times"])
        )
        assert sizes
        found = samples(node.ask("/-/metrics").text)
    counts = {key[1:]: value for key, value in found.items() if key[0] == "odfchain_requests_total"}
    for each in known["by_dataset" if by_dataset else "counts"]:
        labels = tuple(sorted(f"{name}={value}" for name, value in each.items() if name != "count"))
        assert counts.pop(labels) == each["count"], labels
    if not by_dataset:
        assert counts == {}
        assert not any("stations" in part for key in found for part in key)
    assert found["odfchain_request_seconds_count", "kind=file"] == 5
    assert found["odfchain_open_sockets",] >= 0


def test_health_follows_what_can_be_read(tmp_path: Path) -> None:
    dataset = make_dataset(WorkspaceFiles.init(tmp_path), "stations", 700)
    with running_node(tmp_path) as node:
        assert json.loads(node.ask("/-/health").body) == {"status": "ok"}
        (dataset.folder / "refs" / "head").rename(tmp_path / "head")
        failing = node.ask("/-/health")
        assert (failing.status, json.loads(failing.body)["status"]) == (503, "failing")
        assert node.problems
        assert str(tmp_path) not in failing.text


def test_a_line_of_json_for_each_request(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running_node(folder, log_json=True) as node:
        asked = node.ask("/-/about?secret=swordfish", Authorization="Bearer ka_secret")
    (line,) = [json.loads(each) for each in capfd.readouterr().err.splitlines()]
    assert line["request"] == asked.headers["odf-request"]
    assert (line["path"], line["status"], line["sent"]) == ("/-/about", 200, len(asked.body))
    assert not {"swordfish", "ka_secret"} & set(re.findall(r"\w+", json.dumps(line)))


# --- behind a proxy -----------------------------------------------------------------------------------


def configuration(document: str, port: int, node: str, folder: Path) -> str:
    """The manual's configuration at these places, with TLS as it says."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    (block,) = re.findall(r"```nginx\n(.*?)```", text, re.DOTALL)
    for old, new in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "127.0.0.1:8080": urlsplit(node).netloc,
        "/etc/ssl/node.example.pem": str(folder / "node.pem"),
        "/etc/ssl/node.example.key": str(folder / "node.pem"),
        "server_name node.example": "server_name localhost",
    }.items():
        assert old in block, old
        block = block.replace(old, new)
    return block


@contextlib.contextmanager
def behind_tls(folder: Path, place: Path, document: str) -> Iterator[tuple[str, ssl.SSLContext]]:
    trusted = ssl.create_default_context(cafile=str(write_certificate(place / "node.pem", "localhost")))
    with (
        running_node(folder, behind_proxy=True, allow_hosts=["localhost"], sql=True) as node,
        nginx(place / "run", lambda port: configuration(document, port, node.url, place)) as url,
    ):
        yield url.replace("http://127.0.0.1", "https://localhost"), trusted


@pytest.mark.parametrize("document", ["nodes.md", "operate.md"])
def test_links_lead_through_the_proxy(folder: Path, tmp_path: Path, document: str) -> None:
    known = case(60)
    with behind_tls(folder, tmp_path, document) as (url, trusted):
        prefix = known["prefix"]
        for each in known["begins"]:
            page = _page(f"{url.rstrip('/')}{prefix}{each['page']}", trusted)
            links = re.findall(r'(?:href|src|action)="([^"#?][^"]*)"', page)
            inner = [link for link in links if "://" not in link and not link.startswith("mailto:")]
            assert inner, each
            assert [
                link for link in inner if link.startswith("/") and not link.startswith(each["links"])
            ] == [], each
        for each in known["redirects"]:
            with urlopen(f"{url.rstrip('/')}{prefix}{each['target']}", context=trusted) as reply:  # noqa: S310 - on loopback
                assert urlsplit(reply.url).path == each["to"]


def _page(url: str, trusted: ssl.SSLContext) -> str:
    from urllib.error import HTTPError

    try:
        with urlopen(url, context=trusted) as reply:  # noqa: S310 - on loopback
            return str(reply.read().decode())
    except HTTPError as error:
        return error.read().decode()


def test_forwarded_fields_are_ignored_without_a_proxy(folder: Path) -> None:
    with running_node(Workspace.open(folder)) as node:
        for fields in case(60)["ignored"]:
            page = node.ask("/", **fields).text
            assert not any(value in page for value in fields.values())
            assert node.ask("/stations", **fields).headers["location"] == "/stations/"


# --- the operator's page -------------------------------------------------------------------------------


def test_the_unit_of_the_manual_starts_a_node_that_ends_when_told_to(tmp_path: Path) -> None:
    unit = ConfigParser(strict=True)
    unit.optionxform = str
    (text,) = code_of("docs/operate.md", "ini")
    unit.read_string(text)
    service = unit["Service"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    program, *words = shlex.split(service["ExecStart"])
    assert (program, words[0]) == ("/opt/odfchain/bin/odfchain", "serve")
    words[words.index("--port") + 1] = "0"
    make_dataset(WorkspaceFiles.init(tmp_path), "stations", 700)
    command = [sys.executable, "-c", "from odfchain.cli.main import run; run()", *words, "--print-address"]
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log)
    try:
        url = node.stdout.readline().decode().strip()
        with urlopen(f"{url}-/health") as reply:  # noqa: S310 - on loopback
            assert json.load(reply) == {"status": "ok"}
        node.terminate()
        assert node.wait(int(service["TimeoutStopSec"])) == 0
    finally:
        node.kill()
        node.wait()
        node.stdout.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_figures_of_the_manual_are_there(folder: Path) -> None:
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    (scrape,) = code_of("docs/operate.md", "yml")
    (job,) = yaml.safe_load(scrape)["scrape_configs"]
    with running_node(folder) as node:
        node.ask("/stations/refs/head")
        text = node.ask(job["metrics_path"]).text
    families = {family.name for family in text_string_to_metric_families(text)}
    named = set(re.findall(r"`(odfchain_\w+)`", page))
    assert {name.removesuffix("_total") for name in named} == families
