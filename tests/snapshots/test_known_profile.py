"""The profile of rows where one is here already: computed before, or published; nothing is computed for it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.odf.events import SetInfo
from odfchain.profiles import document
from odfchain.profiles.published import publish
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.branch_rows import add, keyed, record
from tests.kit.support import Result


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    workspace = Workspace.init(tmp_path)
    record(keyed(workspace), [("+A", n, f"k{n}", "<b>", None) for n in range(5)])
    return workspace["d"]


def test_what_was_computed_is_known_until_other_rows_come(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dataset.known_profile() is None
    made = dataset.profile()
    monkeypatch.setattr(document, "state_totals", None)  # nothing is computed from here on
    known = dataset.known_profile()
    assert known.content == made.content
    add(dataset._files, SetInfo(description="other words"))
    again = dataset.known_profile()
    assert again is not None, "the rows are the same"
    assert again.document["snapshot_id"] != str(dataset.head)
    record(dataset._files, [("+A", 9, "k9", "x", None)])
    assert dataset.known_profile() is None


def test_what_the_owner_published_is_known(dataset: Dataset) -> None:
    made = dataset.profile()
    shutil.rmtree(dataset.path / "info" / "profiles")
    assert dataset.known_profile() is None
    publish(dataset._files, DatasetState.read(dataset._files.chain), SnapshotKind.PROFILE, made.content)
    known = dataset.known_profile()
    assert known.content == made.content


def test_the_page_of_a_dataset_shows_its_rows(dataset: Dataset, run_cli: Callable[..., Result]) -> None:
    command = ("-w", dataset._workspace.path.parent, "inspect", "lineage", "d", "-o", "html")
    assert "Distribution" not in run_cli(*command).out
    dataset.profile()
    page = run_cli(*command).out
    assert "<bdi>d: 5 rows at block 3</bdi></h2>" in page
    row = re.search(r'<tr><th scope="row"><bdi>a</bdi></th>(.*)</tr>', page)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[1])
    assert cells == ["string", "0.0 %", "1", "<bdi>&lt;b&gt; 100.0 %</bdi>", ""]
