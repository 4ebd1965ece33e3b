"""Datasets of a publisher who means harm: every field that can hold text holds what would act on a terminal."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf import sources as src
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.recorded_dataset import add
from tests.kit.root_rows import records, schema_event, schema_with, slice_of
from tests.kit.support import T0, hash_of, seeded_id, snapshot

EVIL = (
    "a\x1b]0;owned\x07b\x1b[2J\x1b[5mc\x9b8md\x00e\x08\x7f\r\nFAKED row\vx\fy\x85z\u2028p\u2029q\t"
    "\u202eexe.\u202c\u2066i\u2069\u200fm\u061cn\u200bo\ufeff\U000e0041\U000e007f"
    " [bold red]m[/bold red] [/] :skull: <script>&'\"{{ x }}%s{0}$(x)`"
)


def make_root(workspace: Workspace) -> DatasetFiles:
    """A root with rows, whose names and values are hostile."""
    root = DatasetFiles.open(workspace.add(snapshot("evil"))[0].path)
    schema = schema_with(
        pa.field(f"text {EVIL}", pa.string()),
        pa.field("nested", pa.struct([(f"inner {EVIL}", pa.list_(pa.string()))])),
        pa.field("raw", pa.binary()),
    )
    text, merge = f"x {EVIL}", src.MergeStrategyLedger(primary_key=(f"text {EVIL}",))
    for event in (
        ev.SetInfo(description=text, keywords=(text, EVIL)),
        ev.SetLicense(short_name=text, name=text, spdx_id=text, website_url=f"https://x.example/{EVIL}"),
        ev.SetAttachments(
            attachments=ev.AttachmentsEmbedded(items=(ev.AttachmentEmbedded(path=text, content=text),))
        ),
        ev.AddPushSource(
            source_name=text,
            read=src.ReadStepCsv(ddl_schema=(f"`{EVIL}` STRING",), separator=text, null_value=text),
            preprocess=src.TransformSql(engine=text, query=f"SELECT '{EVIL}'\nFROM input"),
            merge=merge,
        ),
        schema_event(schema),
    ):
        add(root, event, unchecked=True)
    columns = [text, EVIL], [{f"inner {EVIL}": [text, EVIL]}] * 2, [EVIL.encode()] * 2
    times = [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * 2
    rows = records(schema, 0, [0, 0], times, *columns, at=T0)
    _append(root, rows, ev.SourceState(source_name=text, kind=text, value=text))
    add(
        root,
        ev.SetPollingSource(
            fetch=src.FetchStepUrl(url=f"https://x.example/{EVIL}"), read=src.ReadStepNdJson(), merge=merge
        ),
        unchecked=True,
    )
    return root


def _append(root: DatasetFiles, rows: pa.Table, state: ev.SourceState) -> None:
    path = root.folder / "staged"
    pq.write_table(rows, path)
    new = slice_of(path, 0)
    root.data.put_file(path, new.physical_hash)
    add(root, ev.AddData(new_data=new, new_watermark=T0, new_source_state=state), unchecked=True)


def make_derivative(workspace: Workspace, root: DatasetFiles) -> DatasetFiles:
    """What is made of a root, by a transform whose every text is hostile, and of an input that is not here."""
    files = DatasetFiles.open(workspace.add(snapshot("made", kind="Derivative"))[0].path)
    source = DatasetState.read(root.chain)
    missing = seeded_id("missing")
    inputs = (
        ev.TransformInput(dataset_ref=source.seed.dataset_id, alias=f"in {EVIL}"),
        ev.TransformInput(dataset_ref=missing, alias=f"gone {EVIL}"),
    )
    steps = (
        src.SqlQueryStep(alias=f"step {EVIL}", query=f"SELECT '{EVIL}'\nFROM `in`"),
        src.SqlQueryStep(query=f"SELECT `{EVIL}`"),
    )
    transform = src.TransformSql(engine=f"spark {EVIL}", version=f"1 {EVIL}", queries=steps)
    add(files, ev.SetTransform(inputs=inputs, transform=transform), unchecked=True)
    used = (
        ev.ExecuteTransformInput(dataset_id=source.seed.dataset_id, new_block_hash=source.head, new_offset=1),
        ev.ExecuteTransformInput(dataset_id=missing, new_block_hash=hash_of("missing")),
    )
    add(files, ev.ExecuteTransform(query_inputs=used, new_watermark=T0), unchecked=True)
    return files


def make_workspace(folder: Path) -> Workspace:
    """A workspace with both."""
    workspace = Workspace.init(folder)
    make_derivative(workspace, make_root(workspace))
    return workspace
