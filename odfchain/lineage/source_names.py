"""Which source of a root dataset a transaction came from, as far as blocks say it.

A block names its source only where it records the source's state; data that were pushed have none. Then the
sources in force at the block are the candidates, and one candidate alone is the answer.
Source: specification "AddData" (`newSourceState`), "SetPollingSource", "AddPushSource".
"""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.chain.earlier_blocks import sources_in_force
from odfchain.codec.source_settings import POLLING_SOURCE
from odfchain.errors import CodecError
from odfchain.model import sources as src
from odfchain.model.events import (
    AddData,
    AddPushSource,
    DisablePollingSource,
    SetPollingSource,
    SourceState,
)
from odfchain.net.template import public_name
from odfchain.repo.merge_record import MergeMode, MergeRecord, first_record, is_merge_state
from odfchain.text import counted, one_line


@dataclass(frozen=True, slots=True)
class SourceUse:
    """Where the data of a transaction came from; `definition` is None where that is not known."""

    definition: SetPollingSource | AddPushSource | None
    state: SourceState | None
    problem: str | None = None
    merged: MergeRecord | None = None
    """Of a merge, or a revert; `definition` is then of the rows that were there before."""

    @property
    def kind(self) -> str | None:
        """Polling, push, merge or revert."""
        if self.merged is not None:
            return self.merged.mode.value
        match self.definition:
            case SetPollingSource():
                return "polling"
            case AddPushSource():
                return "push"
        return None

    @property
    def name(self) -> str | None:
        """The source's name, where one is recorded; that of the branch that was merged."""
        if self.merged is not None:
            return one_line(self.merged.source_ref)
        if isinstance(self.definition, AddPushSource):
            return one_line(self.definition.source_name)
        return one_line(self.state.source_name) if self.state else None

    @property
    def fetch(self) -> str | None:
        """What a polling source fetches, without user names, passwords and values of variables."""
        return (
            describe_fetch(self.definition.fetch) if isinstance(self.definition, SetPollingSource) else None
        )

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """The columns that tell records apart, None where the merge strategy has none."""
        return getattr(self.definition.merge, "primary_key", None) if self.definition else None


def describe_fetch(step: src.FetchStep) -> str:
    """What a fetch step fetches, in a line without secrets."""
    match step:
        case src.FetchStepUrl():
            return public_name(step.url)
        case src.FetchStepFilesGlob():
            return one_line(f"files {step.path}")
        case src.FetchStepContainer():
            return one_line(f"container {step.image}")
        case src.FetchStepMqtt():
            return one_line(f"MQTT {step.host}:{step.port}")
        case src.FetchStepEthereumLogs():
            return one_line(f"logs of Ethereum chain {step.chain_id}")


def describe_merge(merge: src.MergeStrategy) -> str:
    """A merge strategy and its key, in a few words."""
    key = getattr(merge, "primary_key", None)
    return one_line(f"{merge.KIND} by {', '.join(key)}" if key else merge.KIND)


def describe_merged(record: MergeRecord, *, drawn: bool = False) -> str:
    """Whose changes a block took over, in a line; without the source's hash where a line is drawn to it."""
    if record.mode is MergeMode.REVERT:
        text = f"reverts block {record.base[0]}"
    else:
        text = f"merged from {record.source_ref}" + ("" if drawn else f" ({record.source})")
    if record.conflicts:
        text += f", {counted(record.conflicts, 'conflict')} decided: {record.resolution.value}"
    return one_line(f"{text}: {record.message}" if record.message else text)


def source_of(chain: MetadataChain, block: HashedBlock) -> SourceUse:
    """Where the data of an AddData block came from."""
    event = block.block.event
    state = event.new_source_state if isinstance(event, AddData) else None
    polling = chain.nearest_event(SetPollingSource, DisablePollingSource, head=block.hash)
    defined = chain.nearest_all("AddPushSource", "DisablePushSource", head=block.hash)
    push = sources_in_force(item.block.event for item in defined)
    candidates = [polling] if isinstance(polling, SetPollingSource) else list(push.values())
    if is_merge_state(state):
        try:
            record = first_record(chain, block)
        except CodecError as error:
            return SourceUse(None, state, error.message)
        if record is not None:
            return SourceUse(candidates[0] if len(candidates) == 1 else None, None, merged=record)
        state = None  # carried on by a tool that knows no merges: it says nothing of this block
    if state is not None:
        if state.source_name == POLLING_SOURCE and isinstance(polling, SetPollingSource):
            return SourceUse(polling, state)
        if state.source_name in push:
            return SourceUse(push[state.source_name], state)
        return SourceUse(None, state, f"no source called {one_line(state.source_name)!r} was in force")
    match candidates:
        case []:
            return SourceUse(None, None, "none was in force, the data were added directly")
        case [only]:
            return SourceUse(only, None)
    names = ", ".join(repr(one_line(source.source_name)) for source in push.values())
    return SourceUse(None, None, f"not recorded: one of the push sources {names}")
