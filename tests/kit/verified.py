"""Verifying a dataset by itself, as tests ask for it."""

from __future__ import annotations

from odfchain.audit.dataset_checks import examine
from odfchain.audit.report import Report
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import VerifyOptions


def verify_dataset(dataset: DatasetFiles, *, jobs: int = 2) -> Report:
    """All checks but the replay."""
    return examine(dataset, VerifyOptions(jobs=jobs)).report
