"""Foreign keys at a commit: what the new rows refer to is there, and nobody refers to what they take back.

    rows that come       their values against the keys of the dataset that they refer to
    rows that go         their keys against the datasets of this workspace that refer here
    changesOf            a text BLOCK#OFFSET: the block is stored, and a change ends at the offset

A dataset on a branch is checked against others on their branch of the same name, or on their head. Only keys
are read, and only as many slices as it takes. Source: RFC-037.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.branch.violations import (
    MOST_LISTED,
    Broken,
    notes_on,
    refusal,
    rows_table,
    texts_of,
)
from odfchain.branch.wanted_keys import (
    TAKEN_BACK,
    WantedKeys,
    in_force_of,
    key_rows,
    key_schema,
    newest_of,
    newest_offsets,
    offsets_of,
    takes_any_back,
)
from odfchain.chain.chain import DATA_EVENTS  # noqa: F401
