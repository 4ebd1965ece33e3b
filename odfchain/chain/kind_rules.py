"""Append rules of the kind of dataset: which events belong in a root, and which in a derivative dataset.

A root has its records from its sources, a derivative from its transform, and from nowhere else: what is added
beside the query would never be replayed. One table serves append, pull, verification and the reading of
manifests. Source: specification "Root Dataset", "Derivative Dataset", "Metadata Events".
"""

from __future__ import annotations

from odfchain.chain.earlier_blocks import History
from odfchain.errors import AppendError
from odfchain.model import events as ev
from odfchain.model.enums import DatasetKind

_ONLY_IN: dict[str, DatasetKind] = {
    ev.AddData.KIND: DatasetKind.ROOT,
    ev.SetPollingSource.KIND: DatasetKind.ROOT,
    ev.DisablePollingSource.KIND: DatasetKind.ROOT,
    ev.AddPushSource.KIND: DatasetKind.ROOT,
    ev.DisablePushSource.KIND: DatasetKind.ROOT,
    ev.SetTransform.KIND: DatasetKind.DERIVATIVE,
    ev.ExecuteTransform.KIND: DatasetKind.DERIVATIVE,
}
"""Events that are not listed belong in datasets of either kind."""


def belongs_in(event: ev.MetadataEvent) -> DatasetKind | None:
    """The only kind of dataset that may have such an event; None when both may."""
    return _ONLY_IN.get(event.KIND)


def check_kind(event: ev.MetadataEvent, history: History) -> None:
    """The event belongs in a dataset of the kind that the Seed says.

    Raises:
        AppendError: InvalidEvent.
    """
    wanted = belongs_in(event)
    if wanted is None:
        return
    seed = history.nearest("Seed")
    if seed is None or not isinstance(seed.event, ev.Seed) or seed.event.dataset_kind is wanted:
        return
    raise AppendError(
        "InvalidEvent",
        "event-of-dataset-kind",
        f"{event.KIND} is no event of a {seed.event.dataset_kind.value.lower()} dataset: "
        f"it belongs in {wanted.value.lower()} datasets only",
    )
