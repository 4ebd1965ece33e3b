"""A real browser without a window: pages are laid out, measured from outside, and photographed."""

from __future__ import annotations

import html
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--run-all-compositor-stages-before-draw",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"
HOSTILE = '<script>alert(1)</script></title></style><img src="//x" onerror=a()>{{ 7 * 7 }} &lt;b&gt; \x1b[31m\u202egnp'
"""A text that would act in a page, in a template or on a screen."""
_LOOK = """
const all = (query) => [...document.querySelectorAll(query)];
const top = (query) => document.querySelector(query).getBoundingClientRect().top;
const style = (element) => window.getComputedStyle(element);
const edge = document.documentElement.clientWidth;
const ids = all("[id]").map(e => e.id);
return {
  title: document.title,
  text: document.body.innerText,
  language: document.documentElement.lang,
  landmarks: ["header", "main", "footer"].map(name => all("body > " + name).length),
  headings: all("h2").map(h => h.innerText),
  levels: all("h1, h2, h3").map(h => +h.tagName[1]),
  wider: document.documentElement.scrollWidth - edge,
  outside: all("body *").filter(e => !e.closest(".box") && e.getBoundingClientRect().right > edge + 1).length,
  unnamed: all("section").filter(s => !document.getElementById(s.getAttribute("aria-labelledby"))).length,
  unreachable: all(".box").filter(e => e.tabIndex !== 0 || !e.getAttribute("aria-label")).length,
  unlabelled: all("svg").filter(s => !s.getAttribute("aria-hidden") && !s.getAttribute("aria-label")).length
    + all("tbody tr").filter(r => !r.querySelector("th[scope=row]")).length
    + all("table").filter(t => !t.querySelector("thead th[scope=col]")).length,
  untitled: all("thead th").filter(h => !h.innerText.trim()).length,
  twice: ids.length - new Set(ids).size,
  broken: all("a").filter(a => !document.getElementById(a.getAttribute("href").slice(1))).length,
  foreign: all("script, img, link, iframe, object, embed, [src], [style], [onload], [onerror]").length,
  requests: window.performance.getEntriesByType("resource").length,
"""
_NOTHING = (
    "wider", "outside", "unnamed", "unreachable", "unlabelled", "untitled", "twice", "broken", "foreign", "requests",
)  # fmt: skip


def chromium(*arguments: str, profile: Path) -> str:
    """Start the browser once with an empty profile; what it prints. It must be installed."""
    program = shutil.which("chromium")
    assert program, (
        "the page is looked at in Chromium, which is not installed (Debian: apt-get install chromium)"
    )
    done = subprocess.run(
        [program, *FLAGS, f"--user-data-dir={profile}", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def measure(pages: Mapping[str, str], more: str, folder: Path, *flags: str) -> dict[str, Any]:
    """What is looked at in each page, and `more`: members of an object in JavaScript.

    A key is a name and the width [px] of the frame that the page is laid out in, like `clean@400`. The pages
    are left as they are: they lie in frames, and the script works on them from outside.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frames = "".join(
        f'<iframe id="{key}" width="{key.split("@")[1]}" height="900" srcdoc="{html.escape(page)}"></iframe>'
        for key, page in pages.items()
    )
    host = f"""<!DOCTYPE html><meta charset="utf-8"><style>iframe {{ border: 0 }}</style>{frames}
<pre id="measured">nothing</pre><script>
const look = (document, window) => {{ {_LOOK}{more} }} }};
window.addEventListener("load", () => {{
  const found = {{}};
  for (const frame of document.querySelectorAll("iframe"))
    found[frame.id] = look(frame.contentDocument, frame.contentWindow);
  document.querySelectorAll("iframe").forEach(frame => frame.remove());
  document.getElementById("measured").textContent = JSON.stringify(found);
}});
</script>"""
    path = folder / "host.html"
    path.write_text(host, encoding="utf-8")
    dom = chromium("--dump-dom", *flags, path.as_uri(), profile=folder / "profile")
    text = dom.partition('<pre id="measured">')[2].partition("</pre>")[0]
    found: dict[str, Any] = json.loads(html.unescape(text))
    assert found.keys() == pages.keys()
    return found


def check_sound(page: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    """A page fits on its screen, can be read aloud, asks for nothing, and its links lead somewhere."""
    assert page["language"] == "en"
    assert page["landmarks"] == [1, 1, 1]
    assert page["levels"][0] == 1
    assert page["levels"].count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(page["levels"]))
    found = {name: page[name] for name in _NOTHING if page[name] and name not in but}
    assert not found, found


def check_harmless(page: dict[str, Any], times: int) -> None:
    """`HOSTILE` is shown so often at least, as it is; nothing of it acts."""
    assert page["text"].count("<script>alert(1)</script>") >= times
    assert not {"\x1b", "\u202e", "\ud800"} & set(page["text"])
    assert "49" not in re.findall(r"\b49\b", page["text"])


def check_painted(page: str, folder: Path) -> None:
    """A browser paints a page, in the dark with other colours."""
    blank = photograph("<!DOCTYPE html><title>nothing</title>", folder / "blank", 1100, 1600)
    light = photograph(page, folder / "light", 1100, 1600)
    dark = photograph(page, folder / "dark", 1100, 1600, DARK)
    assert struct.unpack(">8s4x4sII", light[:24]) == (b"\x89PNG\r\n\x1a\n", b"IHDR", 1100, 1600)
    assert min(len(light), len(dark)) > 5 * len(blank)
    assert light != dark


def photograph(page: str, folder: Path, width: int, height: int, *flags: str) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "page.html").write_text(page, encoding="utf-8")
    chromium(
        f"--screenshot={folder / 'page.png'}", f"--window-size={width},{height}", *flags,
        (folder / "page.html").as_uri(), profile=folder / "profile",
    )  # fmt: skip
    return (folder / "page.png").read_bytes()
