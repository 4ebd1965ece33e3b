"""The command, whose schedules follow a clock that a test turns while it runs.

python -m tests.kit.turned_node CLOCK serve …     CLOCK has the time
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from odfchain.cli.main import run
from odfchain.node import schedule
from odfchain.odf.times import Timestamp


def main() -> None:
    clock = Path(sys.argv.pop(1))

    def now() -> Timestamp:
        return Timestamp.parse(clock.read_text())

    # it waits by the machine's clock, and this one is turned meanwhile
    turned = functools.partial(schedule.Schedule, now=now)
    vars(schedule).update(Schedule=turned, _LOOK_SECONDS=0.25)
    run()


if __name__ == "__main__":
    main()
