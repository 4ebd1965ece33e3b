"""Whose a workspace is: its settings run programs, so that of another user is not taken unasked (RFC-053).

What decides is who may write `.odfchain` and what lies in it directly: the user, root, or (for root, by sudo)
the user who asked. Folders above are not asked: who may write there can only put a workspace of his own in
the place, and that is seen.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from odfchain.errors import WorkspaceError
from odfchain.store import fsio

_UID_DIGITS = 10
_ACL = "system.posix_acl_access"


def check_owner(root: Path) -> None:
    """Only the user and root could have written the settings of a workspace, or the user trusts it.

    Raises:
        WorkspaceError: others could; it says which path, whose it is, and the commands that mend it.
    """
    trusted = trusted_users()
    for path in _decisive(root):
        if (why := _why_not(path, trusted)) is None:
            continue
        # loaded here: most workspaces are the user's own, and reading manifests is slow to load
        from odfchain.repo.settings import OF_USER  # noqa: PLC0415
        from odfchain.repo.user_config import is_safe, user_folder  # noqa: PLC0415

        if is_safe(root, OF_USER.load(user_folder())):
            return
        trust = f"if you trust it: odfchain config --global safe.workspace {shlex.quote(str(root.parent))}"
        mend = "" if why.startswith("belongs") else f"chmod go-w {shlex.quote(str(path))}, or "
        raise WorkspaceError(
            f"{path} {why}, and a workspace runs programs as you, {_name(os.geteuid())}", hint=mend + trust
        )


def owner_of(found: os.stat_result) -> int:
    """The user to whom a file belongs."""
    return found.st_uid


def trusted_users() -> frozenset[int]:
    """The user, root, and for root also the user who called sudo."""
    user, asked = os.geteuid(), os.environ.get("SUDO_UID", "")
    by_sudo = user == 0 and asked.isascii() and asked.isdecimal() and len(asked) <= _UID_DIGITS
    return frozenset({0, user, *([int(asked)] if by_sudo else ())})


def _decisive(root: Path) -> Iterator[Path]:
    yield root
    with fsio.storage_errors(root), os.scandir(root) as entries:
        yield from sorted(Path(entry.path) for entry in entries)


def _why_not(path: Path, trusted: frozenset[int]) -> str | None:
    """Why a path could be another user's work; None where it could not, or nothing is there."""
    try:
        named = found = path.lstat()
        if stat.S_ISLNK(named.st_mode):
            found = path.stat()
    except OSError:  # it leads nowhere; what the path is in was looked at before
        return None
    for each in (named, found):
        if owner_of(each) not in trusted:
            return f"belongs to {_name(owner_of(each))}"
    if found.st_mode & stat.S_IWOTH:
        return f"of {_name(found.st_uid)} can be written by everybody"
    if found.st_mode & stat.S_IWGRP and (others := _others_in(path, found.st_gid, trusted)):
        return f"of {_name(found.st_uid)} can be written by {others}"
    return None


def _others_in(path: Path, gid: int, trusted: frozenset[int]) -> str | None:
    """Who else a group gives the right to write, in words: none where it is a user's private group."""
    if hasattr(os, "getxattr"):
        try:
            os.getxattr(path, _ACL)
        except OSError:
            pass
        else:
            return "those whom its access list (ACL) names"
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return f"the group {gid}"
    users = pwd.getpwall()
    members = {*group.gr_mem, *(user.pw_name for user in users if user.pw_gid == gid)}
    if members and members <= {user.pw_name for user in users if user.pw_uid in trusted}:
        return None
    return f"the group {group.gr_name} ({gid})"


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
