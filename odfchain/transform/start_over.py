"""Starting a derivative dataset over: its definition stays, what was computed goes.

The chain is built again on the same Seed from the events that people wrote. Two kinds of events are results
of executing the query and are left out: executions, and schemas. A reset often makes room for a query with
another schema, but a schema in a chain may only gain optional columns; the next run declares it anew.

The events get new blocks, also those before the first execution, which could stay: a head that merely went
back would look to a mirror like a dataset that lags behind. A chain that parts right after the Seed is seen
to be another history. Source: specification "Metadata Chain".
"""

from __future__ import annotations

from odfchain.chain.chain import link_blocks
from odfchain.chain.earlier_blocks import DATA_EVENTS
from odfchain.errors import TransformError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import DatasetKind
from odfchain.model.events import MetadataEvent, Seed
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState

_COMPUTED = (*DATA_EVENTS, "SetDataSchema")


def reset_to_metadata(dataset: DatasetFiles, *, system_time: Timestamp | None = None) -> Multihash:
    """The head of the rebuilt chain: all events but executions and schemas, in their order; or all as it was.

    Blocks, data and checkpoints of the old chain stay in the stores. A dataset without anything computed is
    left as it is. System times are not before the old head's.

    Raises:
        TransformError: the dataset is not derivative: its data could not be computed again.
    """
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is not DatasetKind.DERIVATIVE:
        raise TransformError(
            f"{dataset.alias}: a root dataset cannot be reset to its metadata: nothing brings its data back"
        )
    kept: list[MetadataEvent] = []
    seed, computed = state.head, False
    for name, block in dataset.chain.walk(state.head):
        if isinstance(block.event, Seed):
            seed = name
        elif block.event.KIND in _COMPUTED:
            computed = True
        else:
            kept.append(block.event)
    if not computed:
        return state.head
    if not kept:
        dataset.set_head(seed, expected=state.head)
        return seed
    rebuilt = link_blocks(
        kept[::-1], prev=seed, next_sequence_number=1, system_time=state.next_system_time(system_time)
    )
    dataset.chain.check_all(rebuilt, expected_head=seed)
    dataset.chain.publish(rebuilt, expected_head=state.head)
    return rebuilt[-1].hash
