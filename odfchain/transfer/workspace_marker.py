"""Whether a place in a store is a workspace, and making it one.

    workspace.json          {"version": 1, "id": "…"}; made only if it is not there

A workspace lives by conditional writes, and some stores take them and ignore the condition. So whoever makes
or joins one puts both conditions to the test on this object: its own bytes are written over it, which must be
refused, and does no harm where it is not.
"""

from __future__ import annotations

import json
import secrets

from odfchain.errors import ObjectNotFoundError, StoreError, UnsupportedPeerError
from odfchain.limits import FetchLimits
from odfchain.transfer.object_peer import NO_VERSION
from odfchain.transfer.object_space import (
    STORE_LIMITS,
    ConditionsUnknownError,
    ObjectSpace,
    Version,
    WriteRefusedError,
)
from odfchain.transfer.public_layout import PeerUrl

_KEY = "workspace.json"
_BYTES = 4_096
_VERSION = 1


def make_workspace_at(url: PeerUrl, limits: FetchLimits = STORE_LIMITS) -> bool:
    """The place is a workspace, and its store keeps conditions; says whether it was none before.

    Raises:
        UnsupportedPeerError: not the URL of an object store, or one that ignores conditions.
        StoreError: something else is there, or a workspace of a later version.
        AccessError, TransferError: from the store.
    """
    space = ObjectSpace(url, limits)
    made = False
    try:
        data = check_workspace_at(space)
    except ObjectNotFoundError:
        data = json.dumps({"version": _VERSION, "id": secrets.token_hex(16)}).encode()
        try:
            space.write(_KEY, data, "create")
            made = True
        except ConditionsUnknownError:
            raise _without_conditions(space) from None
        except WriteRefusedError:  # somebody else was faster, or our own request was repeated
            data = check_workspace_at(space)
    if not (_keeps(space, data, "create") and _keeps(space, data, NO_VERSION)):
        if made:
            space.delete(_KEY)
        raise _without_conditions(space)
    return made


def check_workspace_at(space: ObjectSpace) -> bytes:
    """What says that the place is a workspace which is understood here.

    Raises:
        StoreError: it is none, or one of a later version.
    """
    data, _ = space.read(_KEY, _BYTES)
    try:
        found = json.loads(data)
        version = found["version"] if isinstance(found, dict) and isinstance(found.get("id"), str) else None
    except (ValueError, RecursionError, KeyError):
        version = None
    if not isinstance(version, int) or isinstance(version, bool):
        raise StoreError(f"{space.where}{_KEY}: not what a workspace has there", hint="choose another prefix")
    if version != _VERSION:
        raise StoreError(
            f"{space.where}: a workspace of version {version}, and {_VERSION} is understood here",
            hint="update odfchain",
        )
    return data


def _keeps(space: ObjectSpace, data: bytes, condition: Version | str) -> bool:
    try:
        space.write(_KEY, data, condition)
    except WriteRefusedError:
        return True
    except ConditionsUnknownError:
        pass
    return False


def _without_conditions(space: ObjectSpace) -> UnsupportedPeerError:
    return UnsupportedPeerError(
        f"{space.where}: the store does not keep the conditions of conditional writes, so two writers would "
        "lose each other's commits",
        hint="use another store; `odfchain push` and `pull` work with this one",
    )
