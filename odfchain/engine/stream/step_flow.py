"""One step of a query over all of its operators."""

from __future__ import annotations

from odfchain.engine.stream.flow import Flow, RowChanges
from odfchain.engine.stream.joins import joined_rows
from odfchain.engine.stream.operators import IntervalJoin, SessionWindow
from odfchain.engine.stream.sessions import session_rows


class StepFlow(Flow):
    """A flow that knows sessions and joins, which are pages of their own."""

    def session_rows(self, op: SessionWindow) -> RowChanges:
        """Sessions that became complete."""
        return session_rows(self, op)

    def joined_rows(self, op: IntervalJoin) -> RowChanges:
        """Pairs that became complete."""
        return joined_rows(self, op)
