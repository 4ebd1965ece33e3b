"""The page of a verification: what it says, that nothing gets into it, and how a browser shows it."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from odfchain.audit.page import blocks_in_words, render_page, rows_of, size_in_words, strip_of
from odfchain.errors import UsageError
from odfchain.limits import PAGE
from odfchain.profiles.pages import moment
from tests.kit import report_documents as docs
from tests.kit.browser import DARK, check_painted, check_sound, measure

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><style>body{display:none}</style>",
    '"><img src="http://192.0.2.1/x" onerror="alert(1)">',
    "</title></head><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "&lt;b&gt; --> ]]> \x00\x1b[31m\u202egnp.exe \ud800",
)


def hostile(text: str) -> docs.Document:
    """A report with this text wherever a text may stand."""
    found = docs.document(faulty={4: text}, unchecked=(6,), why=text, replayed=3)
    found["tool"] = found["dataset"]["alias"] = found["dataset"]["id"] = found["time"] = text
    found["head"] = found["range"]["from"] = found["range"]["to"] = text
    found["faults"][0]["file"] = found["faults"][0]["block"] = text
    for check in found["checks"]:
        check["name"] = check["section"] = check["reason"] = text
    for block in found["blocks"]:
        block["hash"] = block["systemTime"] = block["event"] = block["watermark"] = text
    found["signature"] = {"status": "invalid", "signer": text, "time": text, "message": text}
    found["attestations"] = [{**docs.attestation(text, auditor=text), "time": text, "verdict": text}]
    found["engines"] = [{"name": text, "version": text}]
    found["inputs"] = [docs.upstream(docs.upstream(name=text, missing=True), name=text, id_=text)]
    found["notes"] = [text]
    return found


# --- in a browser --------------------------------------------------------------------------------

LOOK = """
  headline: document.querySelector("h1").innerText,
  scrolling: all(".box").filter(e => e.scrollWidth > e.clientWidth && !e.closest("details")).length,
  styled: all("style").length,
  marks: all("svg.strip g").length,
  strip: all("svg.strip").map(s => s.getBoundingClientRect().width)[0] || 0,
  alarms: all("svg.strip rect.faulty").length,
  faultsAt: document.querySelector(".faults") ? top(".faults") : -1,
  checksAt: top("table"),
  rows: all("table.blocks tbody tr").length,
  closed: all("details").every(d => !d.open),
  ground: style(document.body).backgroundColor,
  ink: style(document.body).color,
"""
SMALL: dict[str, list[docs.Document]] = {
    "clean": [docs.clean()],
    "faulty": [docs.faulty()],
    "incomplete": [docs.incomplete()],
    "several": [docs.clean(), docs.faulty(), docs.incomplete()],
    "hostile": [hostile(text) for text in HOSTILE],
}
WIDTHS = (400, 1200)
FRAMES = [f"{name}@{width}" for name in (*SMALL, "large") for width in WIDTHS]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every report at every width, laid out by one browser; and one page into which a script was put."""
    made = {name: render_page(documents) for name, documents in (SMALL | {"large": [docs.large()]}).items()}
    pages = {f"{name}@{width}": page for name, page in made.items() for width in WIDTHS}
    intrusion = '<script>document.title = "it ran"</script><style>body { color: red }</style></body>'
    pages["intruded@400"] = made["clean"].replace("</body>", intrusion)
    assert intrusion in pages["intruded@400"]
    return measure(pages, LOOK, tmp_path_factory.mktemp("browser"))


@pytest.mark.parametrize("frame", FRAMES)
def test_a_page_can_be_read_on_every_screen_and_aloud_by_itself(seen: dict[str, Any], frame: str) -> None:
    check_sound(seen[frame], but=("unnamed", "untitled"))
    assert seen[frame]["styled"] == 1


def test_wide_tables_scroll_in_their_own_boxes(seen: dict[str, Any]) -> None:
    assert seen["faulty@400"]["scrolling"] == 1
    assert seen["faulty@1200"]["scrolling"] == 0


def test_the_policy_lets_the_style_in_and_nothing_that_was_put_in_later(seen: dict[str, Any]) -> None:
    intruded = seen["intruded@400"]
    assert intruded["foreign"] == 1, "the script is in the page"
    assert intruded["title"] == seen["clean@400"]["title"] != "it ran"
    assert intruded["ink"] == seen["clean@400"]["ink"] == "rgb(27, 31, 36)"


def test_the_verdict_is_the_first_thing_on_the_page(seen: dict[str, Any]) -> None:
    assert seen["clean@1200"]["headline"].strip() == "Clean: report.by-region"
    assert seen["faulty@1200"]["headline"].strip() == "Faulty: city-population"
    assert seen["incomplete@400"]["headline"].strip() == "Incomplete: partial-copy"
    assert seen["several@400"]["headline"].strip() == "Faulty"
    assert "3 datasets: 1 faulty, 1 incomplete and 1 clean." in seen["several@400"]["text"]


def test_faults_stand_before_checks_and_say_block_check_and_file(seen: dict[str, Any]) -> None:
    page = seen["faulty@1200"]
    assert 0 < page["faultsAt"] < page["checksAt"]
    assert re.search(r"Block 4\s+check 6 physical hashes\s+PhysicalHashMismatch", page["text"])
    assert f"/srv/odf/city-population/data/{docs.block_hash(4, 'data')}" in page["text"]


def test_what_was_not_checked_is_said_with_its_reason(seen: dict[str, Any]) -> None:
    text = seen["incomplete@400"]["text"]
    assert "No fault was found, but not everything that was asked for could be checked." in text
    assert "Check 6 physical hashes, blocks 3 to 5 and 7" in text
    assert "the slice is not in this partial copy" in text
    assert "Not checked\nphysical hashes and parts of 4 blocks." in text


def test_a_page_says_who_checked_with_what_and_when(seen: dict[str, Any]) -> None:
    assert (
        "Checked by odfchain 0.1.0 on 2026-03-02 14:05:09 UTC; "
        "transformations computed again with spark 4.2.0."
    ) in seen["clean@1200"]["text"]


def test_missing_inputs_are_shown_as_missing(seen: dict[str, Any]) -> None:
    text = seen["clean@400"]["text"]
    assert re.search(r"sensor-feed\s+missing: it is not at hand", text)
    assert re.search(r"stations\s+root dataset", text)


def test_signature_and_attestations_say_whose_they_are(seen: dict[str, Any]) -> None:
    text = seen["clean@1200"]["text"]
    assert "The head is signed with the dataset's own key, on 2026-03-01 09:00:00 UTC." in text
    assert re.search(r"yes\s+clean\s+this head, block 10", text)
    assert re.search(r"no\s+clean\s+another head, block 10", text)
    assert "The head is not signed" in seen["faulty@1200"]["text"]


def test_a_long_chain_is_a_strip_of_wide_enough_marks(seen: dict[str, Any]) -> None:
    wide, narrow, short = seen["large@1200"], seen["large@400"], seen["faulty@1200"]
    assert wide["marks"] <= PAGE.line_marks
    assert wide["alarms"] == 3, "the faults of blocks 4,200 and 4,201 are in one mark"
    assert wide["strip"] / wide["marks"] > 5
    assert narrow["strip"] / narrow["marks"] > 2
    assert (short["marks"], short["alarms"]) == (11, 2)
    assert short["strip"] / short["marks"] >= 28


def test_blocks_are_folded_away_until_someone_asks(seen: dict[str, Any]) -> None:
    assert all(seen[frame]["closed"] for frame in FRAMES)
    assert seen["faulty@400"]["rows"] == 11
    assert 20 < seen["large@400"]["rows"] < PAGE.rows


def test_hostile_texts_are_shown_as_they_are(seen: dict[str, Any]) -> None:
    text = seen["hostile@1200"]["text"]
    for name in HOSTILE[:5]:
        assert name in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "49" not in re.findall(r"\b49\b", text)


def test_the_page_is_dark_where_the_reader_prefers_that(seen: dict[str, Any], tmp_path: Path) -> None:
    (dark,) = measure({"clean@1200": render_page([docs.clean()])}, LOOK, tmp_path, DARK).values()
    light = seen["clean@1200"]
    assert luminance(light["ground"]) > 0.8
    assert luminance(light["ink"]) < 0.05
    assert luminance(dark["ground"]) < 0.05
    assert luminance(dark["ink"]) > 0.8


def test_a_browser_paints_it(tmp_path: Path) -> None:
    check_painted(render_page([docs.faulty()]), tmp_path)


# --- colours -------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2) of `rgb(1, 2, 3)` or `#010203`."""
    if colour.startswith("#"):
        values = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    else:
        values = [int(value) for value in re.findall(r"\d+", colour)[:3]]
    parts = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_all_colours_have_contrast_in_every_scheme() -> None:
    (style,) = re.findall("<style>(.*?)</style>", render_page([docs.clean()]), re.DOTALL)
    schemes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(schemes) == 3
    for scheme in schemes:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", scheme))
        for ground in ("page", "card", "ok-back", "faulty-back", "unchecked-back"):
            for text in ("ink", "quiet", "link", "ok", "faulty", "unchecked", "none"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        assert contrast(colours["outline"], colours["bars"]) >= 3  # one lies on the other
        for mark in ("data", "merge", "transform", "definition", "seed", "bars", "outline"):
            assert contrast(colours[mark], colours["card"]) >= 3, mark
        for mark in ("ok", "faulty", "unchecked", "none"):
            assert contrast(colours[mark], colours["on"]) >= 3, mark


# --- what goes in --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_from_a_report_becomes_markup(text: str) -> None:
    page = render_page([hostile(text)])
    plain = render_page([hostile("x")])
    assert page.count("<") == plain.count("<")
    assert re.findall("<[a-z]+", page) == re.findall("<[a-z]+", plain)
    assert re.findall(r'(?:href|src)="([^#][^"]*)"', page) == []
    page.encode()


def test_the_policy_names_the_one_style_sheet() -> None:
    page = render_page([docs.clean()])
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<body>")
    assert "url(" not in style
    assert "@import" not in style


def test_the_same_reports_give_the_same_page_whatever_their_order() -> None:
    reports = [docs.clean(), docs.faulty(), docs.incomplete()]
    untouched = copy.deepcopy(reports)
    page = render_page(reports)
    assert page == render_page(copy.deepcopy(reports)) == render_page([reports[1], reports[2], reports[0]])
    assert reports == untouched


def test_a_clean_report_does_not_claim_checks_that_were_not_made() -> None:
    report = docs.document(kind="derivative")
    page = render_page([report])
    assert "No fault was found in what was checked; not every check was made." in page
    assert "replayed transformations." in page
    assert "a replay was not asked for" in page
    assert "every check that applies was made" not in page
    assert "every check that applies was made, and passed" in render_page([docs.clean()])


def test_only_a_trusted_auditor_of_this_head_gives_a_green_mark() -> None:
    def mark(**changes: object) -> str:
        report = docs.clean()
        report["attestations"] = [{**docs.attestation(report["head"]), **changes}]
        cell = re.search(r"<td>(?:yes|no)</td><td><span class=\"marked (\w+)\">", render_page([report]))
        assert cell
        return cell[1]

    assert mark() == "ok"
    assert mark(trusted=False) == mark(head=docs.block_hash(3)) == "none"
    assert mark(verdict="faulty", trusted=False) == "faulty"
    assert mark(verdict="splendid") == "unchecked"


def test_a_dataset_of_which_nothing_could_be_read_has_a_page() -> None:
    report = docs.document(blocks=0)
    report["dataset"] |= {"kind": None, "id": "unknown"}
    report["faults"] = [
        {"check": 1, "file": "refs/head", "message": "the dataset has no head", "sequenceNumber": None, "block": None}
    ]  # fmt: skip
    report["checks"][0] |= {"state": "failed", "faults": 1}
    report["verdict"] = "faulty"
    page = render_page([report])
    assert "The whole dataset" in page
    assert "No block of the chain could be read." in page
    assert "dataset of unknown kind" in page


def test_a_damaged_block_may_claim_any_number() -> None:
    report = docs.faulty()
    report["blocks"][4]["sequenceNumber"] = report["faults"][0]["sequenceNumber"] = (1 << 64) - 1
    report["blocks"][4]["records"] = -(1 << 64)
    assert "Block 18,446,744,073,709,551,615" in render_page([report])


def test_no_report_makes_no_page() -> None:
    with pytest.raises(UsageError, match=r"^no report to make a page from$"):
        render_page([])


# --- how much goes in ----------------------------------------------------------------------------


def test_ten_thousand_faulty_blocks_fit_and_the_page_counts_what_it_leaves_out() -> None:
    page = render_page([docs.document(blocks=10_000, faulty=dict.fromkeys(range(3, 10_000), docs.ALTERED))])
    assert len(page.encode()) < PAGE.page_bytes
    assert "9,997 faults found" in page
    assert f"Not shown here: {9_997 - PAGE.faults:,} more faults. The JSON report has all of them." in page


def test_the_worst_texts_fit() -> None:
    worst = hostile('"' * 5_000)
    for name, number in (("faults", 900), ("blocks", 900), ("checks", 300), ("notes", 500)):
        worst[name] = (worst[name] * number)[:number]
    for block in worst["blocks"]:
        block["faults"] = [0]
    page = render_page([worst] * 4)
    assert len(page.encode()) <= PAGE.page_bytes
    assert page.endswith("</html>")


def test_of_many_datasets_the_worst_are_shown_and_the_others_are_counted() -> None:
    many = [docs.document(f"dataset-{n}", 4) for n in range(1_499)] + [docs.faulty()]
    page = render_page(many)
    assert len(page.encode()) <= PAGE.page_bytes
    assert "1,500 datasets: 1 faulty and 1,499 clean." in page
    assert page.index("Faulty: <bdi>city-population") < page.index("Clean: <bdi>dataset-0<")
    assert f"Not shown here: {1_500 - PAGE.datasets:,} more datasets." in page
    assert f"The first {PAGE.sections} datasets of this table" in page


def test_a_lineage_without_end_is_cut_and_says_so() -> None:
    deep = docs.upstream(name="spring")
    for level in range(500):
        deep = docs.upstream(deep, name=f"level-{level}")
    wide = docs.clean() | {"inputs": [docs.upstream(name=f"input-{n}") for n in range(200)]}
    assert "1 more input not shown here" in render_page([docs.clean() | {"inputs": [deep]}])
    assert "140 more inputs not shown here" in render_page([wide])


@pytest.mark.parametrize("wrong", [(), (17, 500), tuple(range(0, 5_000, 2)), tuple(range(5_000))])
@pytest.mark.parametrize("limit", [4, 30, 300])
def test_every_block_is_in_one_row_and_the_rows_are_few(wrong: tuple[int, ...], limit: int) -> None:
    report = docs.document(blocks=5_000, faulty=dict.fromkeys(wrong, "damaged"))
    blocks = report["blocks"]
    rows = rows_of(blocks, limit)
    covered: list[int] = []
    for row in rows:
        first, _, last = row["where"].replace(",", "").partition(" to ")
        covered += range(int(first), int(last or first) + 1)
    assert covered == list(range(5_000))
    assert len(rows) <= 2 * limit
    assert sum(row["records"] for row in rows) == report["counts"]["records"]
    if len(wrong) == 2 and limit > 4:
        assert [row["where"] for row in rows if row["state"] == "faulty"] == ["17", "500"]


def test_a_mark_for_many_blocks_is_as_bad_as_the_worst() -> None:
    report = docs.document(blocks=1_000, faulty={500: "damaged"}, unchecked=(1, 2, 500))
    strip = strip_of(report["blocks"], 100)
    assert (len(strip["marks"]), strip["each"]) == (100, 10)
    assert [i for i, mark in enumerate(strip["marks"]) if mark["state"] == "faulty"] == [50]
    assert [i for i, mark in enumerate(strip["marks"]) if mark["state"] == "unchecked"] == [0]
    assert strip["marks"][50]["title"].startswith("Blocks 500 to 509, ")
    assert strip["marks"][50]["title"].endswith("; 1 faulty and 9 as recorded")
    assert all(sum(bar["height"] for bar in mark["bars"]) == 40 for mark in strip["marks"])


# --- words ---------------------------------------------------------------------------------------


def test_numbers_times_and_ranges_are_in_plain_words() -> None:
    assert [size_in_words(n) for n in (0, 1, 1023, 1024, 1 << 20, 5 << 30, 1 << 70)] == [
        "0 bytes", "1 byte", "1,023 bytes", "1.0 KiB", "1.0 MiB", "5.0 GiB", "1,048,576.0 PiB",
    ]  # fmt: skip
    assert moment("2026-01-01T01:00:00+02:00") == "2025-12-31 23:00:00 UTC"
    assert moment("0001-01-01T00:00:00+14:00") == "0001-01-01T00:00:00+14:00"
    assert moment("yesterday") == "yesterday"
    assert blocks_in_words([]) == ""
    assert blocks_in_words([3]) == "block 3"
    assert blocks_in_words([20, 4, 3, 5, 5]) == "blocks 3 to 5 and 20"
    assert blocks_in_words(range(0, 100, 2), limit=2) == "blocks 0, 2 and 48 more ranges"
