"""The pages of a dataset, and their documents: overview, data, schema, history, block, compare, record."""

from __future__ import annotations

import html
import io
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.node import downloads
from odfchain.node.site import PAGES
from odfchain.odf import events as ev
from odfchain.transfer.slice_files import local_slices
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.branch_rows import add
from tests.kit.long_chains import counted_reads, long_chain
from tests.kit.node_cases import case
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.running_node import RunningNode, running_node
from tests.kit.support import IMPORTABLE, ROOT, code_of
from tests.kit.view_schemas import schema_of

SCHEMA = schema_with(pa.field("n", pa.int64()))


@pytest.fixture(scope="module")
def site(troubled: Path) -> Iterator[RunningNode]:
    with running_node(troubled, sql=True) as node:
        yield node


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Workspace]:
    with odf.init(tmp_path / "made") as workspace:
        yield workspace


def document(node: RunningNode, address: str) -> dict[str, Any]:
    path, _, query = address.partition("?")
    target = f"/{path}-/index.json" if path.endswith("/") or not path else f"/{path}.json"
    reply = node.ask(f"{target}?{query}")
    assert reply.status == 200, reply.text
    return reply.json


def shown(page: str) -> str:
    """The text of a page."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", page)))


def rows(workspace: Workspace, ops: list[int], name: str = "rows") -> DatasetFiles:
    root = add_root(workspace, name, SCHEMA)
    if ops:
        append(root, records(SCHEMA, 0, ops, [START] * len(ops), range(len(ops))), MADE)
    return root


@pytest.mark.parametrize("each", case(20)["previews"] + case(20)["pages"], ids=str)
def test_case_20_previews_have_fifty_rows(made: Workspace, each: dict[str, Any]) -> None:
    rows(made, [0] * each["rows"])
    with running_node(made) as node:
        found = document(node, f"rows/-/data?{each.get('query', '')}")
        page = node.ask(f"/rows/-/data?{each.get('query', '')}").text
    first = found["records"][0]["offset"] if found["records"] else None
    assert (len(found["records"]), first, found.get("older")) == (each["shown"], each["first"], each["older"])
    assert found["total"] == each["rows"]
    assert page.count('<th scope="row"') == each["shown"]
    assert found.get("newer") == each.get("newer")


def test_case_21_a_correction_stays_together(made: Workspace) -> None:
    wanted = case(21)
    rows(made, [*itertools.islice(itertools.cycle([2, 3]), wanted["rows"] - 1), 0])
    with running_node(made) as node:
        newest = document(node, "rows/-/data")
        older = document(node, f"rows/-/data?skip={newest['older']}")
        text = shown(node.ask("/rows/-/data").text)
    for found, each in ((newest, wanted["newest"]), (older, wanted["older"])):
        assert (len(found["records"]), found["records"][0]["offset"]) == (each["shown"], each["first"])
        assert found["records"][0]["operation"] == "-C"
    assert newest["older"] == wanted["newest"]["older"]
    assert all(word in text for word in wanted["words"])
    offsets = [r["offset"] for found in (older, newest) for r in found["records"]]
    assert offsets == list(range(offsets[0], wanted["rows"]))


def test_case_22_rows_in_force(site: RunningNode) -> None:
    with_key, without = case(22)["with key"], case(22)["without key"]
    found = document(site, f"{with_key['dataset']}/-/data?view=state")
    assert [record["offset"] for record in found["records"]] == with_key["offsets"]
    assert any(each.name.startswith("odfchain-asked") for each in threading.enumerate()), "pages have theirs"
    found = document(site, f"{without['dataset']}/-/data?view=state")
    assert (len(found["records"]), found["records"][0]["offset"]) == (without["shown"], without["first"])
    target = f"/{with_key['dataset']}/-/data?view=state"
    assert site.ask(target, Sec_Fetch_Site="cross-site").status == 403
    with running_node(site.node.parts.workspace) as silent:
        assert silent.ask(target).status == 404


@pytest.mark.parametrize("each", case(23)["points"], ids=str)
def test_case_23_points(site: RunningNode, each: dict[str, Any]) -> None:
    reply = site.ask(f"/{case(23)['dataset']}/-/data.json?at={quote(each['at'])}")
    assert reply.status == each["status"], reply.text
    if reply.status == 200:
        assert (reply.json["block"], reply.json["total"]) == (each["block"], each["records"])
    else:
        assert each["says"] in reply.json["message"]


def test_case_24_a_partial_copy_says_what_is_missing(site: RunningNode) -> None:
    wanted = case(24)
    for address in (f"/{wanted['dataset']}/", f"/{wanted['dataset']}/-/data"):
        page = site.ask(address).text
        assert wanted["command"] in page
    overview = site.ask(f"/{wanted['dataset']}/").text
    assert [text for text in (wanted["slices"], *wanted["missing"]) if text not in overview] == []


def test_case_26_two_points_are_compared(site: RunningNode, made: Workspace) -> None:
    for each in case(26)["compared"]:
        address = f"{each['dataset']}/-/compare?a={each['a']}&b={each['b']}"
        found = document(site, address)
        assert (found["counts"], len(found["columns"])) == (each["counts"], each["columns"])
        csv = site.ask("/" + address.replace("compare?", "compare.csv?")).text
        assert len(csv.splitlines()) > sum(each["counts"].values())
    root, wanted = rows(made, [0]), case(26)["schema"]
    wider = schema_with(pa.field("n", pa.int64()), pa.field(wanted["column"], pa.int64()))
    from tests.kit.root_rows import schema_event

    add(root, schema_event(wider))
    with running_node(made) as node:
        found = document(node, "rows/-/compare?a=2&b=3")
        assert [line["mark"] + line["text"] for line in found["columns"] if line.get("mark")] == wanted[
            "lines"
        ]
        (column,) = [c for c in document(node, "rows/-/schema")["columns"] if c["name"] == wanted["column"]]
        assert (column["since"], column["type"]) == (3, wanted["type"])
        assert node.ask("/rows/-/compare?a=1", Sec_Fetch_Site="cross-site").status == 403


@pytest.mark.parametrize("target", case(38)["targets"])
def test_case_38_what_is_known_is_not_sent_again(site: RunningNode, target: str) -> None:
    whole = site.ask(target)
    head, again = site.ask(target, "HEAD"), site.ask(target, If_None_Match=whole.headers["etag"])
    assert (head.status, head.body, head.headers["etag"]) == (200, b"", whole.headers["etag"])
    assert head.headers["content-length"] == str(len(whole.body))
    assert (again.status, again.body) == (304, b"")
    assert site.ask(target, If_None_Match='"other"').status == 200


@pytest.mark.parametrize("each", case(40)["shared"], ids=str)
def test_case_40_a_page_and_its_document_say_the_same(site: RunningNode, each: dict[str, Any]) -> None:
    page, found = site.ask(f"/{each['address']}"), document(site, each["address"])
    assert each["text"] in shown(page.text)
    assert each["text"] in json.dumps(found, ensure_ascii=False)
    path = "/" + re.sub(r"^cities", "{ds:dataset}", each["address"].partition("?")[0])
    (made,) = [p for p in PAGES if p.path == re.sub(r"record/\d+", "record/{offset}", path)]
    jsonschema.validate(found, schema_of(typing.get_type_hints(made.view)["return"]))


def test_case_10_what_strangers_wrote_is_text(site: RunningNode, made: Workspace) -> None:
    wanted = case(10)
    pages = [site.ask(f"/{address}") for address in wanted["addresses"]]
    assert [page.status for page in pages] == [200] * len(pages)
    for page, text in itertools.product(pages, wanted["never"]):
        assert text not in page.text
    assert all(any(mark in page.text for page in pages) for mark in wanted["marks"])
    schema = schema_with(pa.field("text", pa.string()))
    append(
        add_root(made, "long", schema), records(schema, 0, [0], [START], ["x" * wanted["cut"]["value"]]), MADE
    )
    with running_node(made) as node:
        (record,) = document(node, "long/-/data")["records"]
        assert [len(v) for v in record["values"] if v.startswith("x")] == [wanted["cut"]["shown"]]
        assert "x" * wanted["cut"]["value"] in node.ask("/long/-/record/0").text


@pytest.mark.parametrize("each", case(11)["licenses"], ids=str)
def test_case_11_only_addresses_of_the_web_are_links(made: Workspace, each: dict[str, Any]) -> None:
    add(rows(made, []), ev.SetLicense(short_name="x", name="x", website_url=each["url"]))
    with running_node(made) as node:
        page = node.ask("/rows/").text
    assert (f'href="{each["url"]}"' in page) == each["link"]
    assert each["url"] in page


def test_attachments_are_downloads_of_plain_text(site: RunningNode) -> None:
    reply = site.ask("/cities/-/attachments/terms.txt")
    assert (reply.status, reply.text) == (200, "Be kind.")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["content-disposition"] == 'attachment; filename="terms.txt"'
    assert site.ask("/cities/-/attachments/none.txt").status == 404


def test_a_block_as_words_yaml_and_bytes(site: RunningNode) -> None:
    line = document(site, "cities/-/history?kind=AddData")["blocks"][0]
    base = f"/cities/-/block/{line['hash']}"
    assert line["hash"] in site.ask(f"{base}.yaml").text
    assert site.ask(f"{base}.raw").body == site.ask(f"/cities/blocks/{line['hash']}").body
    assert "records 7 to 7" in shown(site.ask(base).text)
    other = line["hash"][:-1] + ("0" if line["hash"][-1] != "0" else "1")
    assert [site.ask(f"/cities/-/block/{x}").status for x in ("nix", other)] == [404, 404]
    log = site.ask("/cities/-/history.csv").text.splitlines()
    assert (len(log), log[0].split(",")[:3]) == (11, ["number", "hash", "time"])


@pytest.mark.parametrize("query", ["", "?at=4", "?view=state"])
def test_all_rows_as_files(site: RunningNode, query: str) -> None:
    wanted = {"": 8, "?at=4": 5, "?view=state": 2}[query]
    bodies = {form: site.ask(f"/cities/-/data.{form}{query}") for form in downloads.TYPES}
    assert bodies["csv"].headers["content-disposition"].startswith('attachment; filename="cities')
    assert len(bodies["csv"].text.splitlines()) == wanted + 1
    assert [len(json.loads(line)) for line in bodies["ndjson"].text.splitlines()] == [6] * wanted
    assert pa.ipc.open_stream(bodies["arrow"].body).read_all().num_rows == wanted
    assert pq.read_table(io.BytesIO(bodies["parquet"].body)).num_rows == wanted
    assert site.ask(f"/cities/-/data.csv{query}", "HEAD").body == b""


def test_a_download_ends_when_the_client_leaves(made: Workspace) -> None:
    import http.client
    from urllib.parse import urlsplit

    rows(made, [0] * 120_000)
    with running_node(made) as node:
        before = threading.active_count()
        where = urlsplit(node.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
        connection.request("GET", "/rows/-/data.ndjson")
        assert connection.getresponse().read(10)
        connection.close()
        deadline = time.monotonic() + 20
        while threading.active_count() > before + 8 and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        for _ in range(20):  # more than may go on at a time: each that was left makes room
            assert node.ask("/rows/-/data.csv", "HEAD").status == 200
        assert node.ask("/rows/-/data.csv").text.count("\n") == 120_001


@pytest.mark.parametrize("blocks", [4_000, pytest.param(case(25)["long"], marks=pytest.mark.soak)])
def test_case_25_a_long_history_costs_no_more(tmp_path: Path, blocks: int) -> None:
    for name, count in (("short", case(25)["short"]), ("long", blocks)):
        files = long_chain(tmp_path, name, count) if name == "short" else _other(tmp_path, name, count)
        local_slices(files)  # which reads a copy once, and keeps what it counted
    best = {}
    with running_node(tmp_path) as node:
        for name, query in itertools.product(("short", "long"), ("", "?from=49")):
            document(node, f"{name}/-/history{query}")
            times = []
            for _ in range(15 if blocks == case(25)["timed"] else 1):
                start = time.perf_counter()
                assert node.ask(f"/{name}/-/history{query}").status == 200
                times.append(time.perf_counter() - start)
            best[name, query] = min(times)
        with counted_reads(files) as reads:
            document(node, "long/-/history?from=49")
    print(best)
    assert reads["blocks"] < 200
    if blocks < case(25)["timed"]:  # seconds are for the soak: other tests run beside this one
        return
    for query in ("", "?from=49"):
        assert best["long", query] < case(25)["times"] * best["short", query]


def _other(folder: Path, name: str, count: int) -> DatasetFiles:
    from tests.kit.long_chains import _maker

    return _maker().long_chain(folder, name, count, identity=2)


def test_the_page_of_the_manual_is_typed(tmp_path: Path) -> None:
    schema = schema_with(pa.field("iata", pa.string()))
    with odf.init(tmp_path) as workspace:
        append(add_root(workspace, "airports", schema), records(schema, 0, [0], [START], ["ZRH"]), MADE)
    page = (ROOT / "docs" / "ui.md").read_text(encoding="utf-8")
    (script,) = code_of("docs/ui.md")
    said = page.partition(script)[2].split("```")[2].strip().splitlines()
    environment = IMPORTABLE | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "CI": "1"}
    script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr


def test_case_37_a_page_is_of_one_head(made: Workspace) -> None:
    root, ended = rows(made, [0]), threading.Event()

    def commit() -> None:
        for number in range(1, case(37)["commits"] + 1):
            append(root, records(SCHEMA, number, [0], [START], [number]), MADE)
        ended.set()

    with running_node(made) as node:
        committing = threading.Thread(target=commit)
        committing.start()
        seen = []
        while not ended.is_set() or not seen or seen[-1] != case(37)["commits"] + 1:
            found = document(node, "rows/-/data")
            assert found["total"] == len(found["records"]) == found["block"] - 1
            seen.append(found["total"])
        committing.join()
    assert seen == sorted(seen)
