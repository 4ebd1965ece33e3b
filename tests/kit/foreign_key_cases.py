"""Cases of foreign keys as data: several datasets, rows that are committed with the check, and what it says.

datasets   name: {columns: [[name, type]…], key: [name…], constraints: the text of CONSTRAINTS.yaml}, made in
           this order; all columns are texts where `columns` is a list of names; no key is an Append.
           With `says` it is refused by `add`, exit 3, in these words
steps      `on`: DATASET or DATASET@BRANCH, and one of
    rows       one commit with these rows, [operation, values…]; `merging` says that a merge brings them
    files      one commit with several such lists
    branch     makes the branch at the head
    run        a command line, as `odfchain …`
           `{DATASET@BRANCH}` in a value is the hash of its newest block. Expected of a step: `refused`, texts
           in the error and its hint (with `run`: exit 3); `noted`, texts in the notes; `violations`, what
           `--violations` would list, without the columns that are not said; `references`, the datasets whose
               newest blocks the merge record names
check18    what verification says of the dataset of the last step: faults, notes (texts in them)
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.api.workspace import Workspace
from odfchain.branches.foreign_keys import Broken, ForeignKeys
from odfchain.errors import OdfchainError
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import merges
from odfchain.workspace.points import refs_of
from tests.kit import query_datasets
from tests.kit.branch_cases import run_here
from tests.kit.root_rows import append_all, records_after, schema_event, schema_with
from tests.kit.support import FIXTURES, push_source, snapshot

Case = dict[str, Any]
_AT = Timestamp.parse("2100-01-01T00:00:00Z")


def load() -> dict[str, Case]:
    found = json.loads((FIXTURES / "branches" / "constraints.json").read_bytes())["foreignKeys"]
    assert len({case["id"] for case in found}) == len(found)
    return {case["id"]: case for case in found}


def manifest(name: str, spec: dict[str, Any]) -> str:
    metadata: list[dict[str, Any]] = []
    if spec.get("key"):
        metadata.append(push_source({"kind": "UpsertStream", "primaryKey": spec["key"]}, header=True))
    if "constraints" in spec:
        item = {"path": "CONSTRAINTS.yaml", "content": spec["constraints"]}
        attachments = {"kind": "Embedded", "items": [item]}
        metadata.append({"kind": "SetAttachments", "attachments": attachments})
    return snapshot(name, *metadata, *spec.get("events", []))


class Scene:
    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.workspace = Workspace.init(folder / "workspace")
        self.specs = case["datasets"]

    def hold(self) -> None:
        """Everything that the case says is so.

        Raises:
            AssertionError: it is not.
        """
        for name, spec in self.specs.items():
            self.add(name, spec)
        for step in self.case.get("steps", []):
            self.take(step)
        if "check18" in self.case:
            self.verify(self.case["steps"][-1]["on"], self.case["check18"])

    def add(self, name: str, spec: dict[str, Any]) -> None:
        """Make a dataset that has its columns and no rows."""
        try:
            self.workspace.add(manifest(name, spec), check=False)
        except OdfchainError as error:
            assert "says" in spec, error
            assert error.exit_code == 3
            for text in spec["says"]:
                assert text in f"{error} {error.hint}", error
            return
        assert "says" not in spec, "it was added"
        dataset = self.at(name)
        state = DatasetState.read(dataset.chain)
        commit(dataset, state, [schema_event(self.schema(name))], [], system_time=_AT)

    def schema(self, name: str) -> pa.Schema:
        columns = self.specs[name]["columns"]
        pairs = [(c, "string") if isinstance(c, str) else c for c in columns]
        return schema_with(*(pa.field(column, query_datasets.TYPES[kind]) for column, kind in pairs))

    def at(self, place: str) -> DatasetFiles:
        name, _, branch = place.partition("@")
        return self.workspace[name]._files.on(branch or HEAD)

    def take(self, step: dict[str, Any]) -> None:
        if "branch" in step:
            dataset = self.at(step["on"])
            head = dataset.chain.head()
            assert head is not None
            refs_of(dataset).compare_and_swap(step["branch"], None, head)
        elif "run" in step:
            self.run(step)
        else:
            self.commit(step)

    def run(self, step: dict[str, Any]) -> None:
        listed = self.workspace.path.parent / "broken.csv"
        more = ["--violations", str(listed)] if "violations" in step else []
        result = run_here(self.workspace)(*step["run"].split(), *more)
        assert result.code == (3 if "refused" in step else 0), result.err
        for text in step.get("refused", []) + step.get("noted", []):
            assert text in result.err, result.err
        if "references" in step:
            dataset = self.at(step["on"])
            head = dataset.chain.head()
            assert head is not None
            found = merges(dataset.chain, head)[-1].record.references
            assert found == {self.at(name).id: self.at(name).chain.head() for name in step["references"]}
        if "violations" in step:
            with listed.open(newline="", encoding="utf-8") as stream:
                rows = [_some(row, step["violations"]) for row in csv.DictReader(stream)]
            assert rows == step["violations"]

    def commit(self, step: dict[str, Any]) -> None:
        """A transaction with some rows, which is checked."""
        notes: list[str] = []
        check = ForeignKeys.of(self.workspace._files, notes.append, merging=step.get("merging", False))
        dataset = self.at(step["on"])
        before = dataset.chain.head()
        try:
            self.append(dataset, step.get("files") or [step["rows"]], check)
        except OdfchainError as error:
            assert "refused" in step, f"{error} {error.hint}"
            assert error.exit_code == step.get("exit", 3)
            assert getattr(error, "violations", None) or "exit" in step or "violations" not in step
            for text in step["refused"]:
                assert text in f"{error} {getattr(error, 'excerpt', '')} {error.hint}"
            assert dataset.chain.head() == before
        else:
            assert "refused" not in step, f"{step} was committed"
        for text in step.get("noted", []):
            assert any(text in note for note in notes), notes
        assert step.get("noted") is not None or notes == []
        if "violations" in step:
            assert [_some(row, step["violations"]) for row in _rows(check.found)] == step["violations"]

    def append(self, dataset: DatasetFiles, files: list[list[list[Any]]], check: ForeignKeys | None) -> None:
        schema, last = self.schema(str(dataset.alias)), DatasetState.read(dataset.chain).last_offset
        tables = []
        for rows in files:
            values = [[row[0], 0, *map(self.value, row[1:])] for row in rows]
            tables.append(records_after(last, schema, values, _AT))
            last = tables[-1]["offset"][-1].as_py()
        append_all(dataset, tables, at=_AT, check=check)

    def value(self, value: Any) -> Any:
        """A value with `{DATASET@BRANCH}` replaced."""
        if not isinstance(value, str) or "{" not in value:
            return value
        place = value[value.index("{") + 1 : value.index("}")]
        return value.replace(f"{{{place}}}", str(self.at(place).chain.head()))

    def verify(self, place: str, expected: dict[str, Any]) -> None:
        """What check 18 says of a dataset."""
        from odfchain.audit.report import FOREIGN_KEYS

        report = self.workspace[place.partition("@")[0]].verify()
        faults = [fault.message for fault in report.faults]
        assert len(faults) == len(expected.get("faults", [])), faults
        for text, fault in zip(expected.get("faults", []), report.faults, strict=True):
            assert fault.check == FOREIGN_KEYS
            assert text in fault.message
        for text in expected.get("notes", []):
            assert any(text in note for note in report.notes), report.notes
        if "state" in expected:
            assert report.state(FOREIGN_KEYS) == expected["state"]


def _rows(found: list[Broken]) -> list[dict[str, Any]]:
    return [row for item in found for row in item.rows.to_pylist()]


def _some(row: dict[str, Any], expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in expected[0]} if expected else row
