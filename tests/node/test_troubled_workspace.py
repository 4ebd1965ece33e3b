"""The workspace that pages are shown of: one dataset's trouble hides nothing of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.errors import OversizedInputError
from odfchain.odf import events as ev
from tests.kit.branch_rows import add
from tests.kit.commits import make_dataset
from tests.kit.support import Run, unchanged
from tests.kit.troubled_workspace import DAMAGED, NAMES


def test_the_list_and_the_proofs_leave_out_only_what_is_damaged(troubled: Path, run: Run) -> None:
    listed = run("-w", troubled, "list", "-o", "json")
    assert sorted(row["name"] for row in listed.rows) == list(NAMES)
    assert listed.err.startswith(f"error: {DAMAGED}: ")
    (proof,) = run("-w", troubled, "evidence", "-o", "json").rows
    assert proof["dataset"] == "forked"


def test_a_block_that_nobody_would_read_is_not_written(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "d")
    with unchanged(dataset.folder), pytest.raises(OversizedInputError, match="at most 1,048,576"):
        add(dataset, ev.SetInfo(description="x" * (1 << 20)))
