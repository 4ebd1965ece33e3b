"""Firefox as a distribution has it, for Playwright: what it does not know yet of its protocol is passed over.

Playwright speaks WebDriver BiDi to it, and asks for colours in a way that is newer than the long-lived
release. Started in place of Firefox with its arguments, this is the browser, and stands between the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

SPOKEN = b"WebDriver BiDi listening on "
UNKNOWN = "emulation.setMediaFeaturesOverride"


async def pass_on(here: Any, there: Any) -> None:
    """All messages of one side, but those that the other would not understand."""
    async for message in here:
        asked = json.loads(message)
        if asked.get("method") == UNKNOWN:
            await here.send(json.dumps({"type": "success", "id": asked["id"], "result": {}}))
        else:
            await there.send(message)


async def main(program: str, *arguments: str) -> int:
    """Run Firefox until it ends."""
    firefox = await asyncio.create_subprocess_exec(program, *arguments, stderr=asyncio.subprocess.PIPE)
    async for line in firefox.stderr:
        if line.startswith(SPOKEN):
            break
    address = line.removeprefix(SPOKEN).decode().strip()

    async def relay(client: Any) -> None:
        async with connect(f"{address}/session", max_size=None, compression=None) as server:
            with contextlib.suppress(Exception):
                await asyncio.gather(pass_on(client, server), pass_on(server, client))

    async with serve(relay, "127.0.0.1", 0, max_size=None, compression=None) as listening:
        port = listening.sockets[0].getsockname()[1]
        print(f"{SPOKEN.decode()}ws://127.0.0.1:{port}", file=sys.stderr, flush=True)
        async for _ in firefox.stderr:
            pass
        return await firefox.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
