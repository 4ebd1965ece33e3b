"""Cases of branches as data: rows recorded on references, command lines, and what must come of them.

A case is a dataset `d` and steps; the first one that goes wrong fails it, and at the end every reference is
verified. Rows are texts, one character a column: `-C 1xy @2` takes back k=1, a=x, b=y with the event time of
day 2 (day 1 where none is said); `∅` is null, and without an operation a row is a `+A`. Where characters do
not do, a row is a list: `["-C", 2, "1", {"x": "a"}]`.

    columns    [[name, type]…]           default: k, a and b, texts
    key        [name…]                   default: k; none is an Append
    source     Snapshot, UpsertStream, Ledger, Append, ChangelogStream; default: UpsertStream, or Append without a key
    base       rows of the first block   default: 1xy
    ours, theirs    rows, or lists of rows, of the blocks on `head` and on the branch `theirs` after it
    run, expect     the last step
    steps      what else is to be done, in this order, before `run`; each with `on` (a reference) and `label`
               (a name for its new head) if it needs them, is one of
        rows       a block with these rows
        columns    a new schema
        event      another event, as in a manifest
        branch     a new branch of this name at `at` (a label; default: the head)
        run        a command line; `{LABEL}` is a block, `{dir}` a folder of the case. With `resolution` its
                   conflicts are written first, decided as that says, and handed back with `--resolve`
    files      texts by name, which `{dir}` has for the command of this step
    expect     exit (default 0); says: texts in what is printed; rows: those that were recorded on `on`, in
               order; state: those in force there, in order; events: the kinds of the new blocks; record:
               members of the newest merge record; conflicts: lines of `--conflicts`; unmoved: no new block
    notes      texts in the notes of the verification at the end
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.api.workspace import Workspace
from odfchain.audit.report import SIGNATURE
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD, LocalRefStore
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import merges
from tests.kit import query_datasets
from tests.kit.root_rows import OPERATIONS, append_all, records_after, schema_event, schema_with
from tests.kit.support import FIXTURES, Result, push_source, snapshot
from tests.kit.verified import verify_dataset

Case = dict[str, Any]
RunCommand = Callable[..., Result]

TYPES = query_datasets.TYPES | {
    "int32": pa.int32(), "bool": pa.bool_(), "timestamp": pa.timestamp("ms", "UTC"), "binary": pa.binary(),
    "struct": pa.struct([("x", pa.string()), ("y", pa.string())]),
}  # fmt: skip
NULL = "∅"
_MADE = "2026-01-01T00:00:00Z"


def load() -> dict[str, Case]:
    """All cases of the fixtures by id; no id is there twice."""
    found: dict[str, Case] = {}
    for path in sorted((FIXTURES / "branches").glob("*.json")):
        for case in json.loads(path.read_bytes())["cases"]:
            assert case["id"] not in found, case["id"]
            found[case["id"]] = case
    return found


def run_here(workspace: Workspace) -> RunCommand:
    """The command line in this process and in a workspace, without Spark."""
    from odfchain.cli.main import main

    def run(*args: str) -> Result:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["-w", str(workspace._files.root), *args])
        out.flush()
        return Result(code, out.buffer.getvalue().decode(), err.getvalue())

    return run


def hold(case: Case, folder: Path, run: RunCommand | None = None) -> None:
    """Everything that a case says is so.

    Raises:
        AssertionError: it is not.
    """
    scene = _made(case, folder, run)
    with scene.workspace:
        scene.verify(case.get("notes", []))


def made_scene(folder: Path, **case: Any) -> Scene:
    """The dataset of a case after all of its steps."""
    return _made(case, folder)


def _made(case: Case, folder: Path, run: RunCommand | None = None) -> Scene:
    workspace = Workspace.init(folder / "workspace")
    scene = Scene.of(case, workspace, folder, run or run_here(workspace))
    for step in steps_of(case):
        scene.take(step)
    return scene


def steps_of(case: Case) -> list[dict[str, Any]]:
    """The steps after the base, shorthands spelled out."""
    found: list[dict[str, Any]] = []
    if "theirs" in case:
        found.append({"branch": "theirs"})
    for name, reference in (("ours", HEAD), ("theirs", "theirs")):
        blocks = case.get(name, [])
        blocks = [blocks] if blocks and not _is_block(blocks[0]) else blocks
        found += ({"on": reference, "rows": rows} for rows in blocks)
    found += case.get("steps", [])
    if "run" in case:
        found.append(
            {name: case[name] for name in ("run", "on", "files", "resolution", "expect") if name in case}
        )
    return found


def _is_block(item: Any) -> bool:
    """A list of rows, and not one row that is a list."""
    return isinstance(item, list) and not (item and item[0] in OPERATIONS)


@dataclass
class Scene:
    workspace: Workspace
    folder: Path
    run: RunCommand
    columns: dict[str, list[list[str]]]
    """By reference."""
    labels: dict[str, str] = field(default_factory=dict)
    hour: int = 0

    @classmethod
    def of(cls, case: Case, workspace: Workspace, folder: Path, run: RunCommand) -> Scene:
        """The dataset with its first rows, whose block is called `base`."""
        key = case.get("key", ["k"])
        merge: dict[str, Any] = {"kind": case.get("source", "UpsertStream" if key else "Append")}
        if key:
            merge["primaryKey"] = key
        (made,) = read_snapshots(snapshot("d", push_source(merge)))
        workspace.create(made, system_time=_MADE)
        scene = cls(workspace, folder, run, {})
        columns = case.get("columns", [["k", "string"], ["a", "string"], ["b", "string"]])
        scene.take({"columns": columns})
        rows = case.get("base", ["1xy"])
        scene.take({"rows": rows, "label": "base"} if rows else {"label": "base"})
        return scene

    def on(self, reference: str) -> DatasetFiles:
        """The dataset on a reference, opened anew."""
        return self.workspace["d"]._files.on(reference)

    def take(self, step: dict[str, Any]) -> None:
        on = step.get("on", HEAD)
        for name, text in step.get("files", {}).items():
            (self.folder / name).write_text(text, encoding="utf-8")
        if "branch" in step:
            self._branch(step["branch"], step.get("at"))
        elif "run" in step:
            self._run(step, on)
        else:
            self._record(step, on)
        if "label" in step:
            self.labels[step["label"]] = str(self.on(on).chain.head())

    def _branch(self, name: str, at: str | None) -> None:
        head = self.on(HEAD).chain.head()
        block = Multihash.parse(self.labels[at]) if at else head
        folder = self.on(HEAD).folder
        assert block is not None
        LocalRefStore(folder).compare_and_swap(name, None, block)

    def _record(self, step: dict[str, Any], on: str) -> None:
        dataset = self.on(on)
        state = DatasetState.read(dataset.chain)
        self.hour += 1
        at = Timestamp.from_epoch_ms(Timestamp.parse(_MADE).epoch_ms + self.hour * 3_600_000)
        at = max(at, state.head_block.system_time)  # a command was there before
        if "rows" in step:
            self._add_rows(dataset, state, self._schema(on), step["rows"], at)
        elif "columns" in step:
            self.columns[on] = step["columns"]
            commit(dataset, state, [schema_event(self._schema(on))], [], system_time=at)
        elif "event" in step:
            (made,) = read_snapshots(snapshot("d", step["event"]))
            commit(dataset, state, made.metadata, [], system_time=at)

    def _schema(self, on: str) -> pa.Schema:
        columns = self.columns.get(on) or self.columns[HEAD]
        return schema_with(*(pa.field(name, TYPES[kind]) for name, kind in columns))

    def _add_rows(
        self, dataset: DatasetFiles, state: DatasetState, schema: pa.Schema, rows: list[Any], at: Timestamp
    ) -> None:
        parsed = [parse_row(row, schema) for row in rows]
        days = [query_datasets.moment(f"2025-01-{row['day']:02}") for row in parsed]
        values = [[row["op"], day, *row["values"]] for row, day in zip(parsed, days, strict=True)]
        latest, previous = Timestamp.from_datetime(max(days)), state.last_data
        kept: dict[str, Any] = {
            "new_source_state": previous.new_source_state if isinstance(previous, ev.AddData) else None,
            "new_checkpoint": state.checkpoint,
            "prev_checkpoint": state.checkpoint.physical_hash if state.checkpoint else None,
        }
        table = records_after(state.last_offset, schema, values, at)
        append_all(dataset, [table], max(latest, state.watermark or latest), at=at, **kept)

    # --- commands and what they bring -----------------------------------------------------------------

    def _run(self, step: dict[str, Any], on: str) -> None:
        words = shlex.split(step["run"].format(dir=self.folder, **self.labels))
        if "resolution" in step:
            words += ["--resolve", str(self._decided(words, **step["resolution"]))]
        before = self.on(on).chain.head()
        assert before is not None
        expected = step.get("expect", {})
        file = self.folder / "conflicts.ndjson"
        file.unlink(missing_ok=True)
        if "conflicts" in expected:
            words += ["--conflicts", str(file)]
        result = self.run(*words)
        printed = result.out + result.err
        assert result.code == expected.get("exit", 0), printed
        seen = {"exit": result.code, "says": expected.get("says", [])}
        missing = [text for text in seen["says"] if text.format(**self.labels) not in printed]
        assert missing == [], printed
        if "conflicts" in expected:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            pairs = zip(lines, expected["conflicts"], strict=False)
            seen["conflicts"] = [{name: line.get(name) for name in given} for line, given in pairs]
            assert len(lines) == len(expected["conflicts"]), lines
        seen |= self._outcome(on, before, expected)
        assert seen == {"exit": 0} | {"says": []} | expected, printed
        if result.code:
            assert self.on(on).chain.head() == before, "a refusal moved the head"

    def _outcome(self, on: str, before: Multihash, expected: dict[str, Any]) -> dict[str, Any]:
        """What came of a command, of that which is expected."""
        dataset = self.on(on)
        state = DatasetState.read(dataset.chain)
        found: dict[str, Any] = {}
        known = dataset.chain.get(before).sequence_number
        new = [b for b in dataset.chain.walk(state.head) if b.block.sequence_number > known][::-1]
        names = self._names(state)
        slices = [b.block.new_data for b in new if b.block.new_data is not None]
        if "rows" in expected:
            tables = [_table(dataset, item) for item in slices]
            found["rows"] = [row for table in tables for row in spelled(table, names)]
            found["rows"] = _as_given(found["rows"], expected["rows"])
        if "state" in expected:
            found["state"] = _as_given(sorted_state(dataset, state, names), expected["state"])
        if "events" in expected:
            found["events"] = [b.block.event.KIND for b in new]
        if "unmoved" in expected:
            found["unmoved"] = state.head == before
        if "record" in expected:
            newest = merges(dataset.chain, state.head)[-1].record.to_state()
            record = json.loads(newest.value)
            by_hash = {block: label for label, block in self.labels.items()}
            shown = {
                name: [by_hash.get(b, b) for b in value] if name == "base" else by_hash.get(value, value)
                if isinstance(value, str) else value
                for name, value in record.items()
            }  # fmt: skip
            found["record"] = {name: shown.get(name) for name in expected["record"]}
        return found

    def _names(self, state: DatasetState) -> list[str]:
        schema = state.schema
        return [each.name for each in schema.fields if each.name not in state.vocabulary.columns]

    def _decided(
        self,
        words: list[str],
        decide: list[dict[str, Any]],
        form: str = "csv",
        drop: int = 0,
        text: dict[str, str] | None = None,
        meanwhile: Sequence[dict[str, Any]] = (),
    ) -> Path:
        """The conflicts of a command as a file in which they are decided; steps that are done since."""
        written = self.folder / f"decided.{form}"
        asked = self.run(*words, "--conflicts", str(written))
        assert asked.code == 5, asked.out + asked.err
        lines = read_lines(written)
        for decision in decide:
            where, values = decision.get("where", {}), decision["set"]
            chosen = [line for line in lines if all(line[n] == v for n, v in where.items())]
            assert chosen, (where, lines)
            for line in chosen:
                line.update(values)
        write_lines(written, lines[: len(lines) - drop])
        content = written.read_bytes().decode()
        for old, new in (text or {}).items():
            assert old in content, content
            content = content.replace(old, new)
        written.write_bytes(content.encode())
        for step in meanwhile:
            self.take(step)
        return written

    def verify(self, notes: list[str]) -> None:
        """All references are as verification wants them."""
        folder = self.on(HEAD).folder
        for name in LocalRefStore(folder).names():
            report = verify_dataset(self.on(name))
            # the signature is the head's
            faults = [fault for fault in report.faults if name == HEAD or fault.check != SIGNATURE]
            assert (faults, report.unchecked) == ([], []), (name, faults)
            if name == HEAD:
                assert [text for text in notes if not any(text in note for note in report.notes)] == []


# --- rows ------------------------------------------------------------------------------------------------


def parse_row(row: Any, schema: pa.Schema) -> dict[str, Any]:
    """Operation, day of the event time and values of a row as a case writes it."""
    if isinstance(row, list):
        op, day, *values = row
        return {"op": op, "day": day, "values": [*values, *[None] * (len(schema) - 4 - len(values))]}
    words = row.split()
    op = words.pop(0) if words[0] in OPERATIONS else "+A"
    day = int(words.pop()[1:]) if words[-1].startswith("@") else 1
    (text,) = words
    text = text.ljust(len(schema) - 4, NULL)
    kinds = [schema.field(place + 4).type for place in range(len(text))]
    return {"op": op, "day": day, "values": [_value(c, kind) for c, kind in zip(text, kinds, strict=True)]}


def _value(text: str, kind: pa.DataType) -> Any:
    if text == NULL:
        return None
    return text if pa.types.is_string(kind) else pa.scalar(text).cast(kind).as_py()


Spelled = tuple[str, int, tuple[Any, ...]]


def _table(dataset: DatasetFiles, item: ev.DataSlice) -> pa.Table:
    return pq.read_table(dataset.data.locate(item.physical_hash))


def spelled(table: pa.Table, names: list[str]) -> list[Spelled]:
    """(operation, day, values) of each row."""
    found = []
    for row in table.to_pylist():
        day = (row["event_time"] - query_datasets.moment("2024-12-31")).days
        found.append((OPERATIONS[row["op"]], day, tuple(row.get(name) for name in names)))
    return found


def sorted_state(dataset: DatasetFiles, state: DatasetState, names: list[str]) -> list[Spelled]:
    """The rows in force by the whole log, one after the other; in order of their values."""
    key = [names.index(name) for name in state.primary_key]
    inforce: dict[Any, list[Spelled]] = {}
    for item in state.slices():
        for row in spelled(_table(dataset, item.slice), names):
            op, _, values = row
            name = repr([values[place] for place in key] if key else values)
            if op in ("-R", "-C"):
                kept = inforce.get(name, [])
                assert kept, f"{row} takes back what is not there"
                assert not key or kept[0][2] == values, f"{row} takes back {kept}"
                kept.pop()
            else:
                held = inforce.setdefault(name, [])
                assert not (key and held), f"{row} stands beside {held}"
                held.append(("+A", row[1], values))
    return sorted((row for rows in inforce.values() for row in rows), key=repr)


def _as_given(rows: list[Spelled], given: list[Any]) -> list[Any]:
    """The rows as the case spells its own, as far as that says what they are."""
    found: list[Any] = []
    for place, (op, day, values) in enumerate(rows):
        like = given[place] if place < len(given) else ""
        if isinstance(like, list):
            found.append([op, day, *(json.loads(json.dumps(value)) for value in values)])
            continue
        text = "".join(NULL if value is None else str(value) for value in values)
        operation = f"{op} " if op != "+A" or like.startswith("+A") else ""
        found.append(f"{operation}{text}" + (f" @{day}" if "@" in like or day != 1 else ""))
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of conflicts, CSV or NDJSON."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text)))
    return [json.loads(line) for line in text.splitlines()]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """The same, written."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
        else:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def commands_of(case: Case) -> set[str]:
    return {step["run"].split()[0] for step in steps_of(case) if "run" in step}


def corruptions(case: Case) -> list[tuple[str, Case]]:
    """The case with one expectation after the other made wrong, and what was; of all its steps."""
    wrong: dict[str, Callable[[Any], Any]] = {
        "exit": lambda code: code + 1,
        "says": lambda texts: [*texts, "what nobody says"],
        "rows": lambda rows: [*rows, "+A 9zz"],
        "state": lambda rows: [*rows[:-1]] if rows else ["9zz"],
        "events": lambda kinds: [*kinds, "SetInfo"],
        "record": lambda record: record | {"sourceRef": "another"},
        "conflicts": lambda lines: [line | {"conflict": "another"} for line in lines],
        "unmoved": lambda unmoved: not unmoved,
    }
    found = []
    for place, step in enumerate([case, *case.get("steps", [])]):
        for name in step.get("expect", {}):
            changed = json.loads(json.dumps(case))
            expect = [changed, *changed.get("steps", [])][place]["expect"]
            expect[name] = wrong[name](expect[name])
            found.append((f"{place}-{name}", changed))
    return found
