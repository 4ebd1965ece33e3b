"""The messages of the smart transfer protocol, version 1: one JSON document in each text frame.

The fields of a class are the members of its document, in this order; those that are None are `null`. Results
of a request are `{"Ok": …}` or `{"Err": {NAME: …}}`; two answers of a pull are bare, as the reference node
writes them. Source: the protocol as kamu 0.265 speaks it; RFC-050.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from odfchain.errors import UnsupportedPeerError
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.text import one_line

VERSION = ("x-odf-smtp-version", "1")
"""The header that every request for a transfer has."""

MEDIA_TYPE, ENCODING = "application/tar+gzip", "raw"


class ObjectType(Enum):
    """The kinds of files that blocks name."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"


class Visibility(Enum):
    """Visibility of a dataset that a push makes."""

    PRIVATE = "Private"
    PUBLIC = "Public"


class Phase(Enum):
    """The node's phase at a failure."""

    INITIAL_REQUEST = "InitialRequest"
    METADATA_REQUEST = "MetadataRequest"
    OBJECTS_REQUEST = "ObjectsRequest"
    ENSURING_TARGET_EXISTS = "EnsuringTargetExists"
    OBJECTS_UPLOAD_PROGRESS = "ObjectsUploadProgress"
    COMPLETE_REQUEST = "CompleteRequest"


class PullMethod(Enum):
    """How an object is to be had."""

    HTTP_DOWNLOAD = "HttpDownload"


class PushMethod(Enum):
    """Upload strategies of an object."""

    SKIP_UPLOAD = "SkipUpload"
    HTTP_UPLOAD = "HttpUpload"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """Totals of the blocks of a transfer."""

    num_blocks: int
    num_objects: int
    num_records: int
    bytes_in_raw_blocks: int
    bytes_in_raw_objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksBatch:
    """Blocks in one piece (`odfchain.transfer.block_batch`)."""

    num_blocks: int
    media_type: str = MEDIA_TYPE
    encoding: str = ENCODING
    payload: bytes

    def __post_init__(self) -> None:
        """Refuse what cannot be unpacked.

        Raises:
            UnsupportedPeerError: the batch is of another form.
        """
        if (self.media_type, self.encoding) != (MEDIA_TYPE, ENCODING):
            raise UnsupportedPeerError(
                f"blocks come as {one_line(self.media_type)!r}, encoded as {one_line(self.encoding)!r}; "
                f"only {MEDIA_TYPE!r}, encoded as {ENCODING!r}, is understood here"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFile:
    """A slice or a checkpoint that a block names; its size in bytes."""

    object_type: ObjectType
    physical_hash: Multihash
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A header field."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferUrl:
    """URL and headers for reading or writing an object."""

    url: str
    headers: tuple[Header, ...]
    expires_at: Timestamp | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStrategy:
    """How one object is to be had."""

    object_file: ObjectFile
    pull_strategy: PullMethod
    download_from: TransferUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class PushStrategy:
    """The strategy of one object."""

    object_file: ObjectFile
    push_strategy: PushMethod
    upload_to: TransferUrl | None


@dataclass(frozen=True, slots=True)
class Message:
    """One frame. `IS_RESULT` says whether its document is the value of `Ok`."""

    IS_RESULT: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Empty(Message):
    """`{}`: the client asks for blocks, or to commit; the server asks how far it is, or confirms."""


@dataclass(frozen=True, slots=True)
class Accepted(Message):
    """`{"Ok": {}}`: go on."""

    IS_RESULT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest(Message):
    """The first message of a pull: which blocks are wanted."""

    begin_after: Multihash | None
    stop_at: Multihash | None = None
    force_update_if_diverged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlan(Message):
    """Its answer."""

    IS_RESULT: ClassVar[bool] = True
    transfer_plan: TransferPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledBlocks(Message):
    """The blocks, oldest first."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PullObjects(Message):
    """The objects that the client lacks."""

    object_files: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStrategies(Message):
    """Their download URLs."""

    object_transfer_strategies: tuple[PullStrategy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest(Message):
    """The first message of a push: what is coming, on top of what."""

    current_head: Multihash | None
    transfer_plan: TransferPlan
    force_update_if_diverged: bool = False
    visibility_for_created_dataset: Visibility = Visibility.PRIVATE


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedBlocks(Message):
    """The blocks, oldest first."""

    new_blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PushObjects(Message):
    """Objects that the blocks name; more of them come where the list `is_truncated`."""

    object_files: tuple[ObjectFile, ...]
    is_truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PushStrategies(Message):
    """The strategies of the named objects."""

    IS_RESULT: ClassVar[bool] = True
    object_transfer_strategies: tuple[PushStrategy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadProgress(Message):
    """How many objects have been uploaded so far; None: all that are needed."""

    uploaded_objects_count: int | None = None


# --- refusals ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidInterval:
    """The block to begin after is not below the head."""

    head: Multihash
    tail: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidHead:
    """The head is not where the client takes it to be: `expected_head` is the server's, as nodes write it."""

    actual_head: Multihash | None
    expected_head: Multihash | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBlockOverwriteRestricted:
    """The other chain is another dataset's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefCollision:
    """The dataset is there under another name; its id, or whatever the node says."""

    dataset_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCollision:
    """The name is another dataset's."""

    dataset_alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Internal:
    """The node failed, or refuses without a name for it. Of the phase: who, and in which."""

    side: str
    phase: Phase
    error_message: str


TOO_MANY_BLOCKS = "Too many blocks."
"""The internal error where blocks do not fit into one message; the simple protocol has them."""

Reason = (
    InvalidInterval | InvalidHead | SeedBlockOverwriteRestricted | RefCollision | NameCollision | Internal
)


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """`{"Err": …}`: the transfer ends here."""

    reason: Reason
