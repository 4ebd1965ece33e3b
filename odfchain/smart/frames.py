"""Frames of WebSockets, no more than a transfer has: each is an object, however few bytes it brings."""

from __future__ import annotations

import time

from websockets.exceptions import ProtocolError
from websockets.frames import Frame
from websockets.protocol import Protocol

from odfchain.limits import SMART


class FewFrames(Protocol):
    """Either side of a connection; one whose other side sends too many small frames fails with code 1002."""

    _allowed, _since = float(SMART.small_frames), 0.0

    def recv_frame(self, frame: Frame) -> None:
        """Take a frame that has come: a message, a piece of one, a ping or the end."""
        if len(frame.data) < SMART.small_frame_bytes:
            now = time.monotonic()
            self._allowed = min(SMART.small_frames, self._allowed + now - self._since) - 1
            self._since = now
            if self._allowed < 0:
                raise ProtocolError("more small frames than a transfer has")
        super().recv_frame(frame)
