"""Verification reports as one HTML page that a person sends to a colleague.

The page is one file that asks for nothing and runs nothing (`profiles.pages`). What there is no room for is
counted, and said to be left out. The same reports always give the same page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from odfchain.errors import UsageError
from odfchain.limits import PAGE, PageLimits
from odfchain.profiles.pages import Excerpt, Render, excerpt, fitted, listed, moment, one_page
from odfchain.text import counted, one_line

# The blocks of a chain on a page: marks of a strip, and rows of a table; few of both for many blocks.
# A mark may represent several blocks, and has the worst state among them. In the table faulty blocks and
# their neighbours keep rows of their own; the others form ranges.

STATES = {"faulty": "faulty", "unchecked": "not checked", "ok": "as recorded"}
"""The states of a block, the worst first, in words."""

KINDS = {
    "data": "data added",
    "merge": "branch merged",
    "transform": "transformation executed",
    "definition": "definition changed",
    "seed": "dataset created",
}
"""Labels of event kinds."""

# What a template shows; every text in it is cut.
View = dict[str, Any]

_KIND_OF = {"AddData": "data", "ExecuteTransform": "transform", "Seed": "seed"}


def _kind(block: View) -> str:
    return "merge" if "merged" in block else _KIND_OF.get(block["event"], "definition")


def _event(block: View) -> str:
    merged = f", merged from {one_line(block['merged'], 64)}" if "merged" in block else ""
    return one_line(block["event"], 40) + merged


def strip_of(blocks: Sequence[View], limit: int) -> View | None:
    """The time line of a chain in at most `limit` marks; None for a chain of which no block is known.

    A block that nobody has verified has the state "".
    """
    if not blocks:
        return None
    each = -(-len(blocks) // limit)
    groups = [blocks[start : start + each] for start in range(0, len(blocks), each)]
    kinds, states = _tally(blocks)
    words = (_states_in_words(states), _kinds_in_words(kinds))
    return {
        "marks": tuple(_mark(group) for group in groups),
        "blocks": len(blocks),
        "each": each,
        "first": f"block {blocks[0]['sequenceNumber']:,}, {_day(blocks[0]['systemTime'])}",
        "last": f"block {blocks[-1]['sequenceNumber']:,}, {_day(blocks[-1]['systemTime'])}"
        if len(blocks) > 1
        else "",
        "kinds": kinds,
        "words": {**KINDS, **STATES},
        "states": states,
        "summary": f"{counted(len(blocks), 'block')}: {'; '.join(filter(None, words))}",
    }


def _tally(blocks: Sequence[View]) -> tuple[dict[str, int], dict[str, int]]:
    # in the order of the tables above
    kinds, states = Counter(_kind(b) for b in blocks), Counter(b["state"] for b in blocks)
    return {k: kinds[k] for k in KINDS if kinds[k]}, {s: states[s] for s in STATES if states[s]}


def _states_in_words(states: Mapping[str, int]) -> str:
    return listed([f"{number:,} {STATES[state]}" for state, number in states.items()])


def _kinds_in_words(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{KINDS[kind]}: {number:,}" for kind, number in kinds.items())


def by_month(counts: Iterable[tuple[str, int]], most: int = 120) -> list[tuple[str, int]]:
    """Sums by the months of times (RFC 3339), none left out between; by years where months are too many."""
    sums: Counter[int] = Counter()
    for time, count in counts:
        sums[int(time[:4]) * 12 + int(time[5:7]) - 1] += count
    if not sums:
        return []
    months = range(min(sums), max(sums) + 1)
    if len(months) <= most:
        return [(f"{month // 12:04}-{month % 12 + 1:02}", sums[month]) for month in months]
    years = range(months[0] // 12, months[-1] // 12 + 1)
    return [(f"{year:04}", sum(sums[12 * year + month] for month in range(12))) for year in years[-most:]]


_HEIGHT = 40
# Heights tell kinds apart, as colours do: a dataset has data or transformations, and one creation.
_HEIGHTS = {"data": 40, "merge": 40, "transform": 40, "definition": 18, "seed": 40}
# The height of a kind that few blocks of a mark have.
_SEEN = 4


def _mark(group: Sequence[View]) -> View:
    kinds, states = _tally(group)
    if len(group) == 1:
        (block,) = group
        height = _HEIGHTS[_kind(block)]
        where = f"Block {block['sequenceNumber']:,}, {_moment(block['systemTime'])}"
        title = ", ".join(filter(None, (f"{where}: {_event(block)}", STATES.get(block["state"]))))
        bars = [{"kind": _kind(block), "top": _HEIGHT - height, "height": height}]
        return {"title": title, "state": block["state"], "bars": bars}
    bars, below = [], _HEIGHT
    for kind, number in sorted(kinds.items(), key=lambda item: item[1]):
        top = max(0, below - max(_SEEN, round(_HEIGHT * number / len(group))))
        bars.append({"kind": kind, "top": top, "height": below - top})
        below = top
    title = f"Blocks {group[0]['sequenceNumber']:,} to {group[-1]['sequenceNumber']:,}, {_days(group)}: "
    title += f"{_kinds_in_words(kinds)}"
    title += f"; {_states_in_words(states)}" if states else ""
    return {"title": title, "state": next(iter(states), ""), "bars": bars}


def _days(group: Sequence[View]) -> str:
    first, last = _day(group[0]["systemTime"]), _day(group[-1]["systemTime"])
    return first if first == last else f"{first} to {last}"


def rows_of(blocks: Sequence[View], limit: int) -> list[View]:
    """The table of a chain in about `limit` rows (at most twice as many), every block in one of them."""
    if len(blocks) <= limit:
        return [_row(block) for block in blocks]
    return [
        _row(group[0]) if len(group) == 1 else _range_row(group) for group in _groups(blocks, max(4, limit))
    ]


def _groups(blocks: Sequence[View], limit: int) -> Iterator[Sequence[View]]:
    alone = {0, len(blocks) - 1}
    for index, block in enumerate(blocks):
        if len(alone) >= limit // 2:
            break
        if block["state"] == "faulty":
            alone |= {index - 1, index, index + 1} & set(range(len(blocks)))
    # ranges of a round length, so that their labels are easy to read
    piece = _round_up(-(-len(blocks) // max(1, limit // 3)))
    start = 0
    for index in [*sorted(alone), len(blocks)]:
        while start < index:
            end = min(index, start - start % piece + piece)
            yield blocks[start:end]
            start = end
        if index < len(blocks):
            yield blocks[index : index + 1]
            start = index + 1


def _round_up(number: int) -> int:
    step: int = 10 ** (len(str(number)) - 1)
    return next(step * factor for factor in (1, 2, 5, 10) if step * factor >= number)


def _row(block: View) -> View:
    return {
        "where": f"{block['sequenceNumber']:,}",
        "time": _moment(block["systemTime"]),
        "event": _event(block),
        "records": block["records"],
        "watermark": _moment(block["watermark"]) if block["watermark"] else "",
        "state": block["state"],
        "result": STATES[block["state"]],
        "hash": one_line(block["hash"], 100),
        "faults": block["faults"],
    }


def _range_row(group: Sequence[View]) -> View:
    kinds, states = _tally(group)
    watermarks = [block["watermark"] for block in group if block["watermark"]]
    worst = next(iter(states))
    return {
        "where": f"{group[0]['sequenceNumber']:,} to {group[-1]['sequenceNumber']:,}",
        "time": _days(group),
        "event": _kinds_in_words(kinds),
        "records": sum(block["records"] for block in group),
        "watermark": _moment(watermarks[-1]) if watermarks else "",
        "state": worst,
        "result": f"all {STATES[worst]}" if len(states) == 1 else _states_in_words(states),
        "hash": "",
        "faults": (),
    }


# Summary of a dataset at the top of a page: the verdict and its evidence.

MARKS = {"faulty": "faulty", "incomplete": "unchecked", "clean": "ok"}
"""The verdicts, the worst first, and how each is marked."""

OUTCOMES = {
    "failed": ("faulty", "failed"),
    "notChecked": ("unchecked", "not checked"),
    "passed": ("ok", "passed"),
    "notApplicable": ("none", "not applicable"),
}
"""The outcomes of a check, the worst first: how each is marked, and in words."""


def checked_by(node: View, limits: PageLimits) -> str:
    """The tool of a report, its time, and its engines."""
    engines = [f"{one_line(e['name'], 60)} {one_line(e['version'], 60)}" for e in node["engines"][:8]]
    using = f"; transformations computed again with {listed(engines)}" if engines else ""
    return f"Checked by {one_line(node['tool'], limits.text)} on {_moment(node['time'])}{using}."


def verdict_of(node: View) -> tuple[str, str]:
    """The verdict of a report as a title, and what it means."""
    verdict = node["verdict"]
    omitted = [check for check in node["checks"] if check["state"] == "notChecked"]
    # a clean verdict must not claim more than was checked
    missing = bool(omitted or node["unchecked"])
    if verdict == "faulty":
        found = counted(len(node["faults"]), "fault")
        rest = " Not everything was checked." if missing else ""
        return "Faulty", f"{found} found: what is stored is not what was recorded.{rest}"
    if verdict == "incomplete":
        return "Incomplete", "No fault was found, but not everything that was asked for could be checked."
    if missing:
        return "Clean", "No fault was found in what was checked; not every check was made."
    return "Clean", "No fault was found: every check that applies was made, and passed."


def brief_of(node: View, limits: PageLimits) -> list[tuple[str, str]]:
    """How the checks ended, what was read, and what was not checked."""
    checks, counts = node["checks"], node["counts"]
    states = [check["state"] for check in checks]
    words = [f"{states.count(s):,} {word}" for s, (_, word) in OUTCOMES.items() if s in states]
    left = [one_line(check["name"], limits.text) for check in checks if check["state"] == "notChecked"]
    omitted = excerpt(left, limits.lines)
    more = [f"{omitted.rest:,} more"] if omitted.rest else []
    reach = [
        counted(counts["blocks"], "block"),
        counted(counts["slices"], "slice"),
        counted(counts["records"], "record"),
        f"{size_in_words(counts['bytes'])} of data",
    ]
    replayed = counts["replayed"]
    again = f"; {counted(replayed, 'transaction')} computed again" if replayed else ""
    lines = [("Checks", f"{listed(words)}." if words else "none."), ("Read", f"{listed(reach)}{again}.")]
    partly = {block for item in node["unchecked"] for block in item["blocks"]}
    if partly:
        more.append(f"parts of {counted(len(partly), 'block')}")
    if left or more:
        lines.append(("Not checked", f"{listed([*omitted.shown, *more])}."))
    return lines


# View of each dataset: its report, what takes more than a look at it, and the limits for its texts.


def dataset_view(node: View, limits: PageLimits) -> View:
    """The view of a report."""
    return {
        "node": node,
        "limits": limits,
        "names": {check["number"]: one_line(check["name"], limits.text) for check in node["checks"]},
        "brief": brief_of(node, limits),
        "strip": strip_of(node["blocks"], limits.marks),
        "rows": tuple(rows_of(node["blocks"], limits.rows)),
        "inputs": _inputs(node["inputs"], limits, iter(range(limits.lines)), _DEEPEST),
    }


# Datasets below each other in a lineage that are shown.
_DEEPEST = 24


def _inputs(found: Sequence[View], limits: PageLimits, places: Iterator[int], deeper: int) -> Excerpt[View]:
    views: list[View] = []
    for item in found if deeper else ():
        # the number of places bounds the page
        if next(places, None) is None:
            break
        views.append(
            {
                **{name: item[name] for name in ("id", "alias", "kind", "missing")},
                "inputs": _inputs(item["inputs"], limits, places, deeper - 1),
            }
        )
    return Excerpt(tuple(views), len(found) - len(views))


def render_page(documents: Sequence[View], limits: PageLimits = PAGE, render: Render = one_page) -> str:
    """One self-contained HTML page, no larger than `limits` allow, about one report or several.

    Nothing in a document can put markup, script or a reference to another file into the page.
    """
    if not documents:
        raise UsageError("no report to make a page from")
    # faulty datasets come first
    parts = sorted(documents, key=lambda node: list(MARKS).index(node["verdict"]))
    return fitted(lambda limits: _render(parts, limits, render), limits)


def _render(parts: Sequence[View], limits: PageLimits, render: Render) -> str:
    detailed = [dataset_view(node, limits.for_each(len(parts))) for node in parts[: limits.sections]]
    state, title, lead = _overall(parts)
    return render(
        "audit",
        "page.html.j2",
        state=state,
        title=title,
        lead=lead,
        by=excerpt(sorted({checked_by(node, limits) for node in parts}), 8),
        nodes=excerpt(parts, limits.datasets),
        limits=limits,
        datasets=detailed,
        places={v["node"]["dataset"]["id"]: number for number, v in reversed(list(enumerate(detailed)))},
        blocks_in_words=blocks_in_words,
        verdict_of=verdict_of,
        MARKS=MARKS,
        OUTCOMES=OUTCOMES,
    )


def _overall(parts: Sequence[View]) -> tuple[str, str, str]:
    verdicts = [node["verdict"] for node in parts]
    if len(parts) == 1:
        return MARKS[verdicts[0]], *verdict_of(parts[0])
    tally = {verdict: verdicts.count(verdict) for verdict in MARKS if verdict in verdicts}
    # verdicts are ordered from the worst
    worst = next(iter(tally))
    words = listed([f"{number:,} {verdict}" for verdict, number in tally.items()])
    return MARKS[worst], worst.capitalize(), f"{counted(len(parts), 'dataset')}: {words}."


# Numbers, times and blocks in words.


def size_in_words(size: int) -> str:
    """A size in the unit that keeps it below 1,024: `12 bytes`, `3.4 MiB`."""
    if size < 1024:
        return counted(size, "byte")
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:,.1f} {_UNITS[power - 1]}"


_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def _moment(text: str) -> str:
    return moment(one_line(text, 40))


def _day(text: str) -> str:
    # text that is no time stays as it is
    words = _moment(text)
    return words[:10] if words.endswith(" UTC") else words


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of numbers that follow each other, as first and last; in order, each number once."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def blocks_in_words(numbers: Iterable[int], limit: int = 8) -> str:
    """Sequence numbers in a few words: `block 3`, `blocks 3 and 20`; empty for none."""
    known = sorted(set(numbers))
    if not known:
        return ""
    runs = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in spans(known)]
    if len(runs) > limit:
        runs = [*runs[:limit], f"{len(runs) - limit:,} more ranges"]
    return f"block{'s' if len(known) > 1 else ''} {listed(runs)}"
