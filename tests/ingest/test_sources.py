"""Ending a source: the event, from the command line and from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.cli.main import main
from odfchain.errors import IngestError, UsageError
from odfchain.odf import events as ev

HEAD = "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: cities\n  kind: {kind}\n  metadata:\n"
PUSH = "    - {{kind: AddPushSource, sourceName: {name}, read: {{kind: NdJson}}, merge: {{kind: Append}}}}\n"
POLL = "    - {kind: SetPollingSource, fetch: {kind: Url, url: 'file:///x'}, read: {kind: NdJson}, merge: {kind: Append}}\n"
Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path)


@pytest.fixture
def cli(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*args: str) -> tuple[int, str]:
        code = main(["-w", str(ws.path.parent), *args])
        return code, capsys.readouterr().err

    return run


def root(ws: Workspace, *sources: str) -> Dataset:
    (dataset,) = ws.add(HEAD.format(kind="Root") + "".join(sources))
    return dataset


def pushes(*names: str) -> list[str]:
    return [PUSH.format(name=name) for name in names]


def last_event(dataset: Dataset) -> ev.MetadataEvent:
    return next(iter(dataset.log(1))).block.event


def test_the_polling_source(ws: Workspace, cli: Cli) -> None:
    dataset = root(ws, POLL)
    code, said = cli("source", "disable", "cities")
    assert code == 0
    assert "cities: recorded DisablePollingSource, head is f1620" in said
    assert last_event(dataset) == ev.DisablePollingSource()
    with pytest.raises(IngestError, match="no polling source in force"):
        dataset.pull()
    code, said = cli("source", "disable", "cities")
    assert (code, "cities has no source in force" in said) == (2, True)
    assert dataset.verify().ok


def test_one_of_several_push_sources(ws: Workspace, cli: Cli) -> None:
    dataset = root(ws, *pushes("a", "b"))
    code, said = cli("source", "disable", "cities")
    assert code == 2
    assert "cities has several sources: b, a" in said
    assert "--source" in said
    code, said = cli("source", "disable", "cities", "--source", "c")
    assert (code, "has no source called 'c' in force (it has b, a)" in said) == (2, True)
    assert cli("source", "disable", "cities", "--source", "a")[0] == 0
    assert last_event(dataset) == ev.DisablePushSource(source_name="a")
    event, _ = dataset.disable_source()
    assert event == ev.DisablePushSource(source_name="b")
    assert not dataset.summary.push_sources


def test_a_disabled_source_can_be_defined_again(ws: Workspace, tmp_path: Path, cli: Cli) -> None:
    dataset = root(ws, POLL)
    dataset.disable_source("default")
    manifest = tmp_path / "m.yaml"
    manifest.write_text(HEAD.format(kind="Root") + POLL)
    assert cli("add", "--update", str(manifest))[0] == 0
    assert dataset.summary.polling_source is not None


def test_a_derivative_has_none(ws: Workspace) -> None:
    root(ws, *pushes("a"))
    text = HEAD.format(kind="Derivative").replace("cities", "made")
    text += "    - {kind: SetTransform, inputs: [{datasetRef: cities}], transform: {kind: Sql, engine: spark, query: select 1}}\n"
    (made,) = ws.add(text, check=False)
    with pytest.raises(UsageError, match="has inputs, and no sources"):
        made.disable_source()


@pytest.mark.parametrize("kind", ["DisablePollingSource", "DisablePushSource, sourceName: a"])
@pytest.mark.parametrize("update", [[], ["--update"]])
def test_a_manifest_says_which_command_to_use(
    ws: Workspace, tmp_path: Path, cli: Cli, kind: str, update: list[str]
) -> None:
    if update:
        root(ws, *pushes("a"))
    manifest = tmp_path / "m.yaml"
    manifest.write_text(HEAD.format(kind="Root") + f"    - {{kind: {kind}}}\n")
    code, said = cli("add", *update, str(manifest))
    assert code == 3
    assert "metadata[0]: Disable" in said
    assert "hint: `odfchain source disable DATASET` records it" in said
