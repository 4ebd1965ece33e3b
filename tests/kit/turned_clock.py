"""A wall clock that is turned for single processes while they run; what measures lengths of time goes on."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = """\
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long none = 0, *turned = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TURNED_CLOCK");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) turned = found;
    close(fd);
}

int clock_gettime(clockid_t kind, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, kind, now);
    if (!failed && (kind == CLOCK_REALTIME || kind == CLOCK_REALTIME_COARSE)) now->tv_sec += *turned;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *kept) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (kept != NULL) *kept = found.tv_sec;
    return found.tv_sec;
}
"""


class TurnedClock:
    """`variables` let a process, and all that it starts, see the clock; `turn` changes it for all of them."""

    def __init__(self, folder: Path) -> None:
        """The library is compiled here.

        Raises:
            FileNotFoundError: there is no C compiler.
        """
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("no C compiler is here")
        source, library, self._offset = folder / "clock.c", folder / "clock.so", folder / "clock.offset"
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
        self._offset.write_bytes(struct.pack("q", 0))
        self.variables = {"LD_PRELOAD": str(library), "TURNED_CLOCK": str(self._offset)}

    def turn(self, seconds: int) -> None:
        """The clock differs by so much from that of the machine."""
        with self._offset.open("r+b") as stream:
            stream.write(struct.pack("q", seconds))
