"""The order in which datasets of a workspace are brought up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import DatasetNotFoundError, WorkspaceError
from odfchain.odf import events as ev
from odfchain.odf.names import RemoteDatasetId
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from tests.kit.support import derivative, manifest


def made_of(name: str, *inputs: str) -> str:
    listed = ", ".join(f"{{datasetRef: {i}}}" for i in inputs)
    return derivative("SELECT 1", name=name, inputs=f"[{listed}]")


@pytest.fixture
def home(tmp_path: Path) -> Workspace:
    """a ← c ← e; a, b ← d ← e"""
    home = Workspace.init(tmp_path)
    roots = manifest(name="a"), manifest(name="b")
    for text in (*roots, made_of("c", "a"), made_of("d", "b", "a"), made_of("e", "d", "c")):
        home.add(text, check=False)
    return home


def names(home: Workspace, *asked: str) -> list[str]:
    return [str(d.alias) for d in home._files.with_upstream([home[n]._files for n in asked])]


def test_inputs_come_first_and_each_once(home: Workspace) -> None:
    found = names(home, "e")
    assert sorted(found) == ["a", "b", "c", "d", "e"]
    place = found.index
    assert max(place("a"), place("b")) < place("d") < place("e")
    assert place("a") < place("c") < place("e")
    assert names(home, "a") == ["a"]
    assert sorted(names(home, "c", "a", "b")) == ["a", "b", "c"]


def test_an_input_that_is_not_here(home: Workspace) -> None:
    home.delete("b", force=True)
    with pytest.raises(
        DatasetNotFoundError, match=r"d: its input b \(did:odf:\S+\) is not in this workspace"
    ):
        names(home, "e")
    assert names(home, "c") == ["a", "c"]


def test_a_circle_is_refused(home: Workspace) -> None:
    c, e = home["c"], home["e"]
    transform = c.summary.transform
    event = ev.SetTransform(
        inputs=(ev.TransformInput(dataset_ref=RemoteDatasetId(None, e.id), alias="e"),),
        transform=transform.transform,
    )
    commit(c._files, c.summary, [event], [], system_time=Timestamp.now())
    with pytest.raises(WorkspaceError, match=r"in a circle: (c ← e ← c|e ← c ← e)"):
        names(home, "d", "c")
