"""People at browsers see every page, by eye, by ear and by keyboard, and no page asks anything of others."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

import odfchain as odf
from odfchain.api.settings import DatasetConfiguration
from odfchain.node.site import PAGES
from tests.kit.node_process import Node
from tests.kit.running_node import running_node
from tests.kit.servers import Reply, Server
from tests.kit.site_browser import Visitor, browser, visitor
from tests.kit.support import fixture
from tests.kit.troubled_workspace import NAMES


def case(number: int) -> dict[str, Any]:
    return fixture(f"node/cases/{number:02}.yaml")


PATHS: dict[str, list[str]] = case(12)["pages"]
OF_USER: list[str] = case(12)["of_user"]
SHOWN = [page.path for page in PAGES if "GET" in page.methods]


@pytest.fixture(scope="module")
def site(troubled: Path) -> Iterator[str]:
    """The address of a node over the workspace."""
    node = Node(troubled, "--sql", "--branches")
    yield node.url
    node.kill()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as made:  # one for all browsers of a thread
        yield made


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    with browser(playwright, "chromium") as made:
        yield made


@pytest.fixture
def person(chromium: Browser, site: str) -> Iterator[Visitor]:
    with visitor(chromium, site) as made:
        yield made


@pytest.fixture
def user(chromium: Browser, troubled: Path, tmp_path: Path) -> Iterator[Visitor]:
    """The one who started a node for himself, at a workspace with a token and a schedule, with its cookie."""
    shutil.copytree(troubled, tmp_path / ".odfchain")
    with odf.Workspace.open(tmp_path) as workspace:
        workspace.tokens.create("reader", ["read:cities"])
        DatasetConfiguration.of(workspace["unsigned"]).set("pull.every", ["1h"])
    with running_node(tmp_path, secret="open") as node, visitor(chromium, node.url) as made:  # noqa: S106 - it is one
        made.go("?secret=open")
        yield made


def addresses(folder: Path, *names: str) -> list[str]:
    """Of every page, that of a dataset for each of these."""
    found: dict[str, None] = {}
    with odf.Workspace.open(folder) as workspace:
        for name in names:
            chain = workspace[name]._files.chain
            known = {"ds": name, "head": chain.head(), "seed": chain.hash_at(0, chain.head())}
            for path in SHOWN:
                found |= dict.fromkeys(address.format(**known) for address in PATHS[path])
    return [path for path in found if path not in case(12)["refused"] and path not in OF_USER]


def look_around(person: Visitor, pages: list[str], refused: dict[str, int]) -> None:
    """Every page is there, quiet and light; what is refused says so."""
    for path in pages:
        person.go(path)
        person.check_quiet()
        requests, size = person.weight()
        assert requests <= case(58)["requests"], path
        assert size <= case(58)["bytes"], f"{path}: {size:,} bytes"
    for path, status in refused.items():
        person.go(path, status)


def heard(person: Visitor, pages: list[str], colours: list[str], widths: list[int], *rules: str) -> list[str]:
    """What is found on pages at each width in each colour."""
    found = []
    for path in pages:
        person.go(path)
        for width in widths:
            person.page.set_viewport_size({"width": width, "height": 900})
            for colour in colours:
                person.page.emulate_media(color_scheme=colour)
                found += [f"{path} at {width}, {colour}: {fault}" for fault in person.axe(*rules)]
    return found


def test_every_page_has_an_address() -> None:
    assert set(SHOWN) == {path for path, listed in PATHS.items() if listed}
    assert set(OF_USER) <= {address for listed in PATHS.values() for address in listed}


def test_case_12_and_58_pages_are_quiet_and_light(person: Visitor, troubled: Path) -> None:
    asked = case(12)
    look_around(person, addresses(troubled, *asked["datasets"]) + asked["largest"], asked["refused"])


def test_case_12_and_58_pages_of_the_user_are_quiet_and_light(user: Visitor) -> None:
    look_around(user, OF_USER, {})


@pytest.mark.soak
def test_case_12_and_58_all_pages_of_all_datasets(person: Visitor, troubled: Path) -> None:
    look_around(person, addresses(troubled, *NAMES), {})


def test_case_15_a_page_that_frames_the_node_shows_nothing_of_it(person: Visitor, site: str) -> None:
    framing = case(15)["frame"].format(url=site).encode()
    with Server(lambda _: Reply(headers={"Content-Type": "text/html"}, body=framing)) as other:
        person.page.goto(other.url("/"))
        assert "another site" in person.text()
        assert not any(frame.url.startswith(site) for frame in person.page.frames)
    assert "frame-ancestors" in " ".join(person.noise), case(15)["expected"]


def test_case_13_a_page_of_a_name_that_leads_here_reads_nothing(chromium: Browser, site: str) -> None:
    wanted = case(13)
    elsewhere = site.replace("127.0.0.1", wanted["host"])
    asked = """async target => { const r = await fetch(target); return [r.status, await r.text()]; }"""
    with visitor(chromium, elsewhere, bypass_csp=True) as person:
        person.go("", wanted["status"])
        for target in wanted["targets"]:
            status, text = person.page.evaluate(asked, target)
            assert (f"{status}", wanted["never"] in text) == (wanted["expected"], False), target


@pytest.mark.soak
def test_case_34_nothing_is_in_the_way(person: Visitor, troubled: Path) -> None:
    asked, pages = case(34), addresses(troubled, case(12)["datasets"][0])
    found = heard(person, pages, asked["colours"][:1], asked["widths"][1:])
    found += heard(person, pages, asked["colours"][1:], asked["widths"][:1], "color-contrast", "target-size")
    assert len(found) == asked["violations"], "\n".join(found)


@pytest.mark.soak
def test_case_34_and_57_on_pages_of_the_user(user: Visitor) -> None:
    found = heard(user, OF_USER, case(34)["colours"], case(34)["widths"])
    assert len(found) == case(57)["violations"] == case(34)["violations"], "\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_case_34_and_57_on_all_pages_of(name: str, person: Visitor, troubled: Path) -> None:
    asked = case(34)
    pages = [
        path
        for path in addresses(troubled, name)
        if path.startswith(f"{name}/") or name == case(12)["datasets"][0]  # pages of no dataset go with it
    ]
    found = heard(person, pages, asked["colours"], asked["widths"])
    assert len(found) == case(57)["violations"] == asked["violations"], "\n".join(found)


def test_case_35_the_way_by_keyboard(person: Visitor) -> None:
    person.walk(case(35)["steps"], keyboard=True)
    person.check_quiet()


def test_case_36_without_javascript(chromium: Browser, site: str) -> None:
    with visitor(chromium, site, java_script_enabled=False) as person:
        person.walk(case(56)["steps"])


@pytest.mark.soak
def test_case_39_trouble_on_a_narrow_screen(
    chromium: Browser, site: str, troubled: Path, tmp_path: Path
) -> None:
    asked, wider, unsaid = case(39), {}, []
    with visitor(chromium, site, width=asked["width"]) as person:
        for path in dict.fromkeys(["", *asked["words"], *addresses(troubled, *asked["pages_of"])]):
            person.go(path)
            name = re.sub(r"\W+", "-", path)[:100]
            person.page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
            wider |= {path: found} if (found := person.wider()) else {}
            text = person.text()
            unsaid += [(path, words) for words in asked["words"].get(path, ()) if words not in text]
    assert not wider
    assert not unsaid
    assert len(list(tmp_path.glob("*.png"))) > len(asked["words"])


def test_case_56_the_way_through_all_pages(person: Visitor) -> None:
    person.walk(case(56)["steps"])
    person.check_quiet()


@pytest.mark.soak
def test_case_56_in_firefox(playwright: Playwright, site: str) -> None:
    with browser(playwright, "firefox") as firefox, visitor(firefox, site) as person:
        person.walk(case(56)["steps"])
        person.check_quiet()
