"""Append rules of transforms: normalised form, resolved inputs, and how executions continue each other.

Source: specification "SetTransform", "ExecuteTransform", "ExecuteTransformInput".
"""

from __future__ import annotations

from odfchain.chain.earlier_blocks import History
from odfchain.errors import AppendError
from odfchain.ids.multihash import Multihash
from odfchain.ids.refs import RemoteDatasetId
from odfchain.model import events as ev
from odfchain.model.sources import Transform


def check_normalized(transform: Transform | None, where: str) -> None:
    """A stored transform has `queries`, the last without and all others with an alias.

    Raises:
        AppendError: InvalidEvent.
    """
    if transform is None:
        return
    if transform.query is not None:
        raise AppendError(
            "InvalidEvent", "transform-no-short-query", f"{where}: 'query' must be rewritten into 'queries'"
        )
    if not transform.queries:
        raise AppendError("InvalidEvent", "transform-has-queries", f"{where}: there is no query")
    if transform.queries[-1].alias is not None:
        raise AppendError(
            "InvalidEvent",
            "transform-last-unaliased",
            f"{where}: the last query is the output and has no alias, not {transform.queries[-1].alias!r}",
        )
    for index, query in enumerate(transform.queries[:-1]):
        if query.alias is None:
            raise AppendError(
                "InvalidEvent",
                "transform-others-aliased",
                f"{where}: query {index} before the last has no alias",
            )


def check_set_transform(event: ev.SetTransform) -> None:
    """Inputs exist, are distinct ids, and have aliases; the transform is normalised.

    Raises:
        AppendError: InvalidEvent.
    """
    if not event.inputs:
        raise AppendError("InvalidEvent", "set-transform-has-inputs", "a transform needs at least one input")
    ids = [ref.id if isinstance(ref := i.dataset_ref, RemoteDatasetId) else None for i in event.inputs]
    if len(set(ids)) != len(ids):
        raise AppendError("InvalidEvent", "set-transform-unique-inputs", "an input dataset is listed twice")
    for item in event.inputs:
        ref = item.dataset_ref
        if not isinstance(ref, RemoteDatasetId) or ref.repo is not None or item.alias is None:
            raise AppendError(
                "InvalidEvent",
                "set-transform-resolved",
                f"input {str(ref)!r} must be given by id and have an alias",
            )
    check_normalized(event.transform, "transform")


def check_execute_transform(event: ev.ExecuteTransform, history: History) -> None:
    """An execution has a transform before it and continues the previous execution.

    Raises:
        AppendError: InvalidEvent or NoOpEvent.
    """
    transform = history.nearest("SetTransform")
    last = history.nearest("ExecuteTransform")
    earlier = last.event if last is not None else None
    assert earlier is None or isinstance(earlier, ev.ExecuteTransform)  # noqa: S101 - asked for this kind
    _check_input_order(event, transform.event if transform else None, earlier)
    if earlier is not None:
        for new, old in zip(event.query_inputs, earlier.query_inputs, strict=False):
            _check_input(new, old)
    last_checkpoint = earlier.new_checkpoint.physical_hash if earlier and earlier.new_checkpoint else None
    if event.prev_checkpoint != last_checkpoint:
        raise AppendError(
            "InvalidEvent",
            "execute-transform-checkpoint-continues",
            f"prevCheckpoint is {event.prev_checkpoint}, the chain's last checkpoint {last_checkpoint}",
        )
    if event.new_data is None and not _advances(event, earlier):
        raise AppendError(
            "NoOpEvent",
            "execute-transform-advances",
            "ExecuteTransform changes neither data, checkpoint nor watermark, and takes in no new input",
        )


def _advances(event: ev.ExecuteTransform, earlier: ev.ExecuteTransform | None) -> bool:
    new_checkpoint: Multihash | None = event.new_checkpoint.physical_hash if event.new_checkpoint else None
    return (
        new_checkpoint != event.prev_checkpoint
        or event.new_watermark != (earlier.new_watermark if earlier else None)
        or any(i.new_block_hash is not None for i in event.query_inputs)
    )


def _check_input_order(
    event: ev.ExecuteTransform,
    transform: ev.MetadataEvent | None,
    earlier: ev.ExecuteTransform | None,
) -> None:
    actual = [i.dataset_id for i in event.query_inputs]
    if isinstance(transform, ev.SetTransform):
        expected = [r.id for i in transform.inputs if isinstance(r := i.dataset_ref, RemoteDatasetId)]
    elif earlier is not None:
        expected = [i.dataset_id for i in earlier.query_inputs]
    else:
        raise AppendError(
            "InvalidEvent", "execute-transform-needs-transform", "there is no SetTransform before this event"
        )
    if actual != expected:
        raise AppendError(
            "InvalidEvent",
            "execute-transform-inputs-order",
            "queryInputs do not name the transform's inputs in their order",
        )


def _check_input(new: ev.ExecuteTransformInput, old: ev.ExecuteTransformInput) -> None:
    where = f"input {new.dataset_id}"
    if new.new_block_hash is not None and new.new_block_hash == new.prev_block_hash:
        raise AppendError(
            "InvalidEvent", "input-block-interval", f"{where}: newBlockHash equals prevBlockHash"
        )
    if new.new_offset is not None and new.new_offset == new.prev_offset:
        raise AppendError("InvalidEvent", "input-offset-interval", f"{where}: newOffset equals prevOffset")
    if new.prev_block_hash != old.last_block_hash:
        raise AppendError(
            "InvalidEvent",
            "input-prev-block-continues",
            f"{where}: prevBlockHash is {new.prev_block_hash}, the last block taken in {old.last_block_hash}",
        )
    if new.prev_offset != old.last_offset:
        raise AppendError(
            "InvalidEvent",
            "input-prev-offset-continues",
            f"{where}: prevOffset is {new.prev_offset}, the last record taken in {old.last_offset}",
        )
    if new.new_offset is not None and new.new_block_hash is None:
        raise AppendError(
            "InvalidEvent", "input-offset-needs-block", f"{where}: new records without new blocks"
        )
