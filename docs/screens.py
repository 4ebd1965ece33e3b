"""Takes the pictures of the pages for the manual, in Chromium: `python docs/screens.py .demo`.

The argument is a workspace, such as that of `make demo`; pictures go to `docs/screens`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).resolve().parent / "screens"
DATASET = "org.airportsdata.airports"
QUERY = """select o.name as was, n.name as now, n.city
from state('org.airportsdata.airports') n
join state('org.airportsdata.airports@6') o using (iata)
where n.name <> o.name
order by now limit 8"""
SCREENS = {
    "datasets": "",
    "overview": f"{DATASET}/",
    "compare": f"{DATASET}/-/compare?a=5&b=6",
    "lineage": "flights.enriched/-/lineage",
    "sql": "-/sql",
}


def main(workspace: str) -> None:
    """Serve the workspace, and take the pictures."""
    command = [sys.executable, "-c", "from odfchain.cli.main import run; run()", "-w", workspace]
    serving = [*command, "serve", "--sql", "--port", "0", "--print-address"]
    FOLDER.mkdir(exist_ok=True)
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as node, sync_playwright() as drive:
        url = node.stdout.readline().strip() if node.stdout else ""
        browser = drive.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 760})
        for name, address in SCREENS.items():
            page.goto(url + address)
            if name == "sql":
                page.fill("textarea", QUERY)
                page.click("text=Run")
                page.locator("#answer").scroll_into_view_if_needed()
            page.screenshot(path=FOLDER / f"{name}.png")
        browser.close()
        node.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
