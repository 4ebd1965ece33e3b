"""What somebody pushes here, as a peer to pull from: so pushes are judged and published as pulls are."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from odfchain.codec.blocks import decode_header
from odfchain.errors import CodecError, CorruptedPeerError
from odfchain.ids.multihash import Multihash
from odfchain.net.retry import Deadline
from odfchain.net.wire import Body
from odfchain.smart.block_batch import RawBlock
from odfchain.store.fsio import FileState
from odfchain.transfer.peer import AbsentError, Opened, Peer
from odfchain.transfer.public_layout import HEAD_KEY, ObjectKey, ObjectKind
from odfchain.trust.parties import SignedFile


@dataclass(frozen=True, slots=True)
class _Held(Body):
    stream: io.BytesIO

    def read_into(self, view: memoryview) -> int:
        return self.stream.readinto(view)


class PushedPeer(Peer):
    """Blocks that were received, hash to their names, and end in the head; objects wait where pulls look."""

    def __init__(
        self,
        where: str,
        head: Multihash,
        blocks: Sequence[RawBlock] = (),
        signature: bytes | None = None,
        has_hashed: Callable[[ObjectKey, FileState], bool] = lambda *_: False,
    ) -> None:
        """What was pushed; `has_hashed` says which files are known to hash to the names of objects."""
        super().__init__(where)
        self._has_hashed = has_hashed
        self._blocks = blocks
        self._files = {str(ObjectKey(ObjectKind.BLOCK, block.hash)): block.data for block in blocks}
        self._files[HEAD_KEY] = str(head).encode()
        if signature is not None:
            self._files[SignedFile.HEAD.value] = signature

    @contextmanager
    def open(self, key: str, start: int, cap: int, deadline: Deadline, /) -> Iterator[Opened]:  # noqa: ARG002 - as `Peer`
        """As `Peer`."""
        data = self._files.get(key)
        if data is None:
            raise AbsentError(f"{self.where}{key}: it was not sent")
        yield Opened(f"{self.where}{key}", _Held(io.BytesIO(data[start:])), len(data), start=start)

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:  # noqa: ARG002 - as `Peer`
        """All of them."""
        return iter(self._blocks)

    def has_hashed(self, key: ObjectKey, state: FileState) -> bool:
        """As `Peer`."""
        return self._has_hashed(key, state)

    def close(self) -> None:
        """Nothing is held."""


def refuse_disorder(where: str, blocks: Sequence[RawBlock]) -> None:
    """Each block follows the one before it.

    Raises:
        CorruptedPeerError: one does not, or is none.
    """
    before: Multihash | None = None
    for block in blocks:
        try:
            previous = decode_header(block.data).prev_block_hash
        except CodecError as error:
            raise CorruptedPeerError(f"{where}: {block.hash}: {error}") from None
        if before is not None and previous != before:
            raise CorruptedPeerError(f"{where}: {block.hash} does not follow the block before it")
        before = block.hash
