"""A real browser without a window: pages are laid out, measured from outside, and photographed."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--run-all-compositor-stages-before-draw",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"


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


def measure(pages: Mapping[str, str], script: str, folder: Path, *flags: str) -> dict[str, Any]:
    """What `script`, the body of a function of `document` and `window`, returns for each page.

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
const look = (document, window) => {{ {script} }};
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


def photograph(page: str, folder: Path, width: int, height: int, *flags: str) -> bytes:
    """The PNG file of a page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "page.html").write_text(page, encoding="utf-8")
    chromium(
        f"--screenshot={folder / 'page.png'}", f"--window-size={width},{height}", *flags,
        (folder / "page.html").as_uri(), profile=folder / "profile",
    )  # fmt: skip
    return (folder / "page.png").read_bytes()
