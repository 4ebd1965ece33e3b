"""The system calls that a sandboxed process is refused, as a filter that the kernel runs (seccomp).

Namespaces and the loss of all capabilities already take what these calls would give; the filter takes away
the code of the kernel that stands behind them, and sockets of families that no network namespace holds (a
virtual machine's own host answers on AF_VSOCK). The list is that of Flatpak and Docker, as far as Python and
Java never ask for it. The program is assembled here because what binds libseccomp on PyPI is one file of
2021 over ctypes: classic BPF has four instructions to know. Source: seccomp(2), linux/filter.h, asm/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Final

# name: (number on x86-64, number on 64-bit ARM)
REFUSED: Final = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip
_CLONE, _CLONE3, _IOCTL, _SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)
_LAST_KNOWN = 462
"""Calls that came later (Linux 6.10) are not there, and neither are those of the x32 way to call."""

_MACHINES: Final = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7), "arm64": (1, 0xC000_00B7)}
"""The column of the table, and what the kernel calls the machine (AUDIT_ARCH_…)."""

_NEW_NAMESPACES = 0x7E02_0000
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_INTO_A_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

_LOAD, _IF_EQUAL, _IF_GREATER, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST, _SECOND = 0, 4, 16, 24  # where struct seccomp_data has what is loaded
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000


def has_filter() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return platform.machine() in _MACHINES


def filter_program() -> bytes:
    """The filter for this machine, as `bwrap --seccomp` reads it: array of `struct sock_filter`."""
    column, machine = _MACHINES[platform.machine()]
    allow, kill = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _KILL)
    refuse, missing, family = (
        (_RETURN, 0, 0, _ERROR | code) for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)
    )

    def when(number: int, *then: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
        return [(_IF_EQUAL, 0, len(then), number), *then]

    program = [(_LOAD, 0, 0, _MACHINE), (_IF_EQUAL, 1, 0, machine), kill, (_LOAD, 0, 0, _NUMBER)]
    program += [(_IF_GREATER, 0, 1, _LAST_KNOWN), missing]
    for numbers in REFUSED.values():
        program += when(numbers[column], refuse)
    program += when(_CLONE3[column], missing)  # its flags lie in memory; the C library goes on with clone
    flags = [(_LOAD, 0, 0, _FIRST), (_IF_ANY_BIT, 0, 1, _NEW_NAMESPACES), refuse, allow]
    program += when(_CLONE[column], *flags)
    families = [step for number in _FAMILIES for step in when(number, allow)]
    program += when(_SOCKET[column], (_LOAD, 0, 0, _FIRST), *families, family)
    commands = [step for number in _INTO_A_TERMINAL for step in when(number, refuse)]
    program += when(_IOCTL[column], (_LOAD, 0, 0, _SECOND), *commands, allow)
    return b"".join(struct.pack("=HBBI", *step) for step in [*program, allow])
