"""What a comparison of two profiles found, and its two documents: JSON and a page.

    {"format": "odfchain-drift/1",
     "from": {"datasetId", "name", "sequenceNumber", "snapshotId", "systemTime", "rows"}, "to": {the same},
     "verdict": "breach" | "ok", "breaches": 2,
     "lines": [{"metric", "column", "value", "limit", "verdict": "breach" | "ok" | "note", "text"}],
     "notCompared": [{"column", "reason"}], "notes": ["…"]}

Source: RFC-041.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from odfchain.drift.compared_profile import ComparedProfile

FORMAT = "odfchain-drift/1"


@dataclass(frozen=True, slots=True)
class DriftLine:
    """One thing that was compared."""

    metric: str
    column: str | None
    """None is the whole dataset."""
    value: float | None
    limit: float | None
    """None is none: the line is a note."""
    breach: bool
    text: str
    """What a person should look at."""

    @property
    def verdict(self) -> str:
        """`BREACH`, `ok` or `note`."""
        return "BREACH" if self.breach else "note" if self.limit is None else "ok"

    def to_document(self) -> dict[str, Any]:
        """The line as JSON has it."""
        return {
            "metric": self.metric, "column": self.column, "value": self.value, "limit": self.limit,
            "verdict": self.verdict.lower(), "text": self.text,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Something that was not compared, and why."""

    column: str | None
    """None is the whole dataset."""
    reason: str

    def __str__(self) -> str:
        return self.reason if self.column is None else f"{self.column}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Drift:
    """The comparison of two profiles."""

    before: ComparedProfile
    after: ComparedProfile
    lines: tuple[DriftLine, ...]
    """Breaches first, the furthest beyond their limit before the others; notes last."""
    not_compared: tuple[NotCompared, ...]
    notes: tuple[str, ...] = ()

    @property
    def breaches(self) -> tuple[DriftLine, ...]:
        """The lines whose limit is exceeded."""
        return tuple(line for line in self.lines if line.breach)

    def to_document(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        return {
            "format": FORMAT,
            "from": _side(self.before),
            "to": _side(self.after),
            "verdict": "breach" if self.breaches else "ok",
            "breaches": len(self.breaches),
            "lines": [line.to_document() for line in self.lines],
            "notCompared": [{"column": each.column, "reason": each.reason} for each in self.not_compared],
            "notes": list(self.notes),
        }

    def to_html(self) -> str:
        """The comparison as one page with pictures, which asks for nothing and runs nothing."""
        from odfchain.drift.drift_page import drift_page  # noqa: PLC0415 - templates are for pages only

        return drift_page(self.to_document(), self.before, self.after)


def _side(profile: ComparedProfile) -> dict[str, Any]:
    return {
        "datasetId": profile.dataset_id,
        "name": profile.name,
        "sequenceNumber": profile.sequence_number,
        "snapshotId": profile.snapshot_id,
        "systemTime": profile.created_at,
        "rows": profile.rows,
    }
