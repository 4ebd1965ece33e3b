"""Changes and merges of rows in plain Python, by the rule's own words: what kernels are held against."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from odfchain.branches.row_diff import RowDiff

Row = tuple[Any, ...]
"""The event time, and the cells."""
State = dict[Any, Row]
NAMES = ("t", "a", "b")


def plain(row: Row | None) -> Row | None:
    """Equal where two rows are."""
    if row is None:
        return None
    return tuple("NaN" if isinstance(v, float) and v != v else v for v in row)  # noqa: PLR0124


def changelog(before: State, after: State) -> list[tuple[int, Any, Row]]:
    """(operation, key, row): how a Snapshot writes the way from one state to another."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            found.append((0, key, new))
        elif new is None and old is not None:
            found.append((1, key, old))
        elif plain(old) != plain(new):
            found += [(2, key, old), (3, key, new)]
    return found


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row[name] for name in NAMES) for row in table.to_pylist()]


def applied(state: State, diff: RowDiff) -> State:
    """A state after changes, which say rightly what was there before."""
    found = dict(state)
    keys = diff.rows_of_keys().column("k").to_pylist()
    before, after = rows_of(diff.before), rows_of(diff.after)
    for key, had, old, has, new in zip(keys, diff.had, before, diff.has, after, strict=True):
        assert plain(found.get(key)) == (plain(old) if had else None)
        found.pop(key, None)
        if has:
            found[key] = new
    return found


def merged_row(base: Row | None, ours: Row | None, theirs: Row | None, *, by_row: bool) -> Row | str | None:
    """The result, or what kind of conflict it is and in which cells."""
    b, o, t = plain(base), plain(ours), plain(theirs)
    if t in (o, b):
        return ours
    if b == o:
        return theirs
    if o is None or t is None:
        return "delete-update" if o is None else "update-delete"
    if o[1:] == t[1:] and (b is None or by_row):
        return ours
    if by_row:
        cells = [name for name, x, y in zip(NAMES, o, t, strict=True) if x != y and name != "t"]
        return f"{'update-update' if b else 'insert-insert'} {','.join(cells)}"
    result, torn = [], []
    for index, name in enumerate(NAMES):
        x, y = o[index], t[index]
        mine, other = (b is None or side[index] != b[index] for side in (o, t))
        value = theirs[index] if other and not mine else ours[index]
        if mine and other and x != y:
            if index > 0 or (b is not None and b[1:] in (o[1:], t[1:])):
                torn.append(name)
            elif o[1:] != t[1:]:
                value = max((v for v in (x, y) if v is not None), default=None)
        result.append(value)
    if torn:
        return f"{'update-update' if b else 'insert-insert'} {','.join(torn)}"
    return tuple(result)
