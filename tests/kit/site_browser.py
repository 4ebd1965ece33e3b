"""People at browsers: Debian's Chromium and Firefox without a window, kept from every address but loopback."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright, Response

from tests.kit.support import ROOT

NOWHERE = "127.0.0.1:9"
"""A proxy that is not there: the way to all hosts but 127.0.0.1."""
REBOUND = "evil.test"
"""A name of somebody else's that leads to this machine."""
CHROMIUM = (
    "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", f"--proxy-server=http://{NOWHERE}",
    f"--proxy-bypass-list=<-loopback>;127.0.0.1;{REBOUND}", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
)  # fmt: skip
FIREFOX = {
    "network.proxy.type": 1, "network.proxy.http": "127.0.0.1", "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1", "network.proxy.ssl_port": 9, "network.proxy.no_proxies_on": "127.0.0.1",
    "network.proxy.allow_hijacking_localhost": True, "network.captive-portal-service.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False, "app.normandy.enabled": False,
}  # fmt: skip
WRAPPER = """#!/bin/sh
cd '{root}' && exec '{python}' -m tests.kit.firefox_relay '{program}' "$@"
"""
_VIOLATIONS = """addEventListener("securitypolicyviolation",
    e => console.error("policy: " + e.violatedDirective + " " + e.blockedURI + " " + e.sourceFile))"""
_WIDER = """() => {
  const edge = document.documentElement.clientWidth, bad = [];
  if (document.documentElement.scrollWidth > edge) bad.push("the page");
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || box.right <= edge + 1 && box.left >= -1 || box.right < 1) continue;
    let up = e.parentElement, held = false;
    for (; up && up !== document.body; up = up.parentElement)
      held ||= getComputedStyle(up).overflowX !== "visible" || up.tagName === "svg";
    if (!held) bad.push(e.tagName + "." + e.className + ": " + (e.textContent || "").trim().slice(0, 40));
  }
  return bad.slice(0, 5);
}"""
_FOCUS = """async () => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const label = e.labels && e.labels.length ? e.labels[0].textContent : "";
  const text = (e.getAttribute("aria-label") || label || e.textContent || e.value || "").trim();
  for (let frame = 0; frame < 60; frame++) {  // it is scrolled there
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none";
    const near = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
    const inside = box.top > -1 && box.bottom < innerHeight + 1 || box.height > innerHeight / 2;
    if (ring && box.width > 0 && near && inside) return {text, tag: e.tagName, seen: true};
    await new Promise(requestAnimationFrame);
  }
  return {text, tag: e.tagName, seen: false};
}"""


@contextmanager
def browser(playwright: Playwright, name: str) -> Iterator[Browser]:
    """Debian's browser of this name, which must be installed."""
    program = shutil.which("firefox-esr" if name == "firefox" else name)
    assert program, f"{name} is not installed (Debian: apt-get install {name}, or firefox-esr)"
    with tempfile.TemporaryDirectory() as folder:
        if name == "firefox":
            wrapper = Path(folder) / "firefox"
            wrapper.write_text(WRAPPER.format(root=ROOT, python=sys.executable, program=program))
            wrapper.chmod(0o755)
            made = playwright.firefox.launch(
                channel="moz-firefox", executable_path=wrapper, firefox_user_prefs=FIREFOX
            )
        else:
            made = playwright.chromium.launch(executable_path=program, args=CHROMIUM)
        try:
            yield made
        finally:
            made.close()


@dataclass
class Visitor:
    """One person with a window on one site; what goes wrong unseen is remembered."""

    page: Page
    url: str
    noise: list[str] = field(default_factory=list)
    """What the console says, and requests to anywhere else."""
    answers: list[Response] = field(default_factory=list)
    """Of the page that is shown now, and of what it asked for."""
    saved: str = ""
    """The newest file that was downloaded."""

    def __post_init__(self) -> None:
        self.page.on("console", lambda said: self.noise.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.noise.append(f"error: {error}"))
        self.page.on("request", self._asked)
        self.page.on("response", lambda answer: self.answers.append(answer))  # noqa: PLW0108 - it wants attributes

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.noise.append(f"outside: {request.url}")

    def go(self, path: str, status: int = 200) -> None:
        """Open a page of the site, which is answered so."""
        self.answers.clear()
        answer = self.page.goto(urljoin(self.url, path))
        assert answer is not None
        assert answer.status == status, f"{path}: {answer.status}"

    def text(self) -> str:
        return self.page.inner_text("body")

    def check_quiet(self) -> None:
        """The console is empty, and nothing was asked of anybody else."""
        assert self.noise == [], (self.page.url, self.noise)

    def wider(self) -> list[str]:
        """What stands out of the window, but what scrolls in a region of its own."""
        found: list[str] = self.page.evaluate(_WIDER)
        return found

    def weight(self) -> tuple[int, int]:
        """(requests, bytes of their bodies over the wire) of the page that is shown, the tab's mark aside."""
        sizes = [a.request.sizes() for a in self.answers if not a.url.endswith("/icon.svg")]
        return len(sizes), sum(max(size["responseBodySize"], 0) for size in sizes)

    def axe(self, *rules: str) -> list[str]:
        """What stands in the way of people with disabilities; of these rules only, if there are any."""
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = list(rules)
        found = Axe().run(self.page, options=options).response["violations"]
        return [
            f"{fault['id']}: {node['html'][:160]} ({'; '.join(c['message'] for c in [*node['any'], *node['all'], *node['none']])[:200]})"
            for fault in found
            for node in fault["nodes"][:3]
        ]

    # --- steps ---------------------------------------------------------------------------------------

    def walk(self, steps: Sequence[Mapping[str, Any]], *, keyboard: bool = False) -> None:
        """Do what a case lists: `follow` a link, `press` a button, `choose` one, `write`, `see`, `save`."""
        for step in steps:
            ((kind, what),) = step.items()
            try:
                getattr(self, f"_{kind}")(what, keyboard)
            except Exception as error:
                error.add_note(f"at {step} on {self.page.url}: {self.text()[:1_500]}")
                raise

    def _reach(self, role: str, name: str, keyboard: bool) -> Any:
        """The first control with a role and an accessible name; by keyboard, it has the focus then."""
        wanted = self.page.get_by_role(role, name=name, exact=True).first  # type: ignore[arg-type]
        wanted.wait_for(timeout=5_000)
        if keyboard:
            for _ in range(400):
                if wanted.evaluate("e => e === document.activeElement"):
                    return wanted
                self.page.keyboard.press("Tab")
                focus = self.page.evaluate(_FOCUS)
                assert focus is None or focus["seen"], f"the focus is not seen on {focus}"
            raise AssertionError(f"no way by Tab to the {role} {name!r}")
        return wanted

    def _go(self, path: str, _: bool) -> None:
        self.go(path)

    def _see(self, text: str, _: bool) -> None:
        assert text in self.text(), f"{text!r} is not on the page"

    def _act(self, role: str, name: str, keyboard: bool) -> None:
        found = self._reach(role, name, keyboard)
        with self.page.expect_navigation():
            found.press("Enter") if keyboard else found.click()
        self.page.wait_for_load_state()

    def _follow(self, name: str, keyboard: bool) -> None:
        self._act("link", name, keyboard)

    def _press(self, name: str, keyboard: bool) -> None:
        self._act("button", name, keyboard)

    def _choose(self, name: str, keyboard: bool) -> None:
        found = self._reach("radio", name, False)
        found.focus() if keyboard else None
        found.press("Space") if keyboard else found.check()

    def _write(self, said: Sequence[str], keyboard: bool) -> None:
        label, text = said[0], self.saved if said[1] == "{saved}" else said[1]
        found = self._reach("textbox", label, keyboard)
        if keyboard:
            self.page.keyboard.press("Control+a")
            self.page.keyboard.type(text)
        else:
            found.fill(text)

    def _save(self, said: Sequence[str], keyboard: bool) -> None:
        role, name, *texts = said
        found = self._reach(role, name, keyboard)
        with self.page.expect_download() as saving:
            found.press("Enter") if keyboard else found.click()
        self.saved = Path(saving.value.path()).read_text(encoding="utf-8")
        assert all(text in self.saved for text in texts), self.saved[:500]


@contextmanager
def visitor(made: Browser, url: str, *, width: int = 1280, **context: Any) -> Iterator[Visitor]:
    """Somebody who opens a window on a site with an empty profile."""
    opened = made.new_context(viewport={"width": width, "height": 900}, **context)
    try:
        if context.get("java_script_enabled", True):
            opened.add_init_script(_VIOLATIONS)
        yield Visitor(opened.new_page(), url)
    finally:
        opened.close()
