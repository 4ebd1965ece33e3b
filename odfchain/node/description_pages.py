"""What describes a dataset: profiles and how far two are apart, manifests, and the lock that it may be."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import RedirectResponse, Response

from odfchain.api.snapshots import Profile, compare_profiles
from odfchain.api.view import lock_schema
from odfchain.chain.signed_lines import SnapshotKind, SnapshotLine
from odfchain.errors import InvalidIdError, OdfchainError
from odfchain.node.dataset_head import DatasetHead, head_of, render_below
from odfchain.node.pages import DATASET, Page
from odfchain.node.visit import Refused, Visit, in_time, not_found
from odfchain.odf.identity import Multihash
from odfchain.profiles.drift import Drift
from odfchain.profiles.manifests import files_of, signed_manifest
from odfchain.profiles.pages import drift_page, profile_page
from odfchain.profiles.published import object_of, published
from odfchain.query.row_formats import numeric_columns
from odfchain.transfer.slice_files import is_partial
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_ROWS, _MOST_ASSETS = 50, 100_000
"""Rows on a page, and assets of a lock that is shown [count]."""


@dataclass(frozen=True, slots=True)
class ProfilePage:
    """The profile of the rows in force at a point."""

    dataset: DatasetHead
    document: dict[str, Any] | None = None
    at: str | None = None
    points: tuple[int, ...] = ()
    """Blocks that have profiles here, newest first."""
    may_compute: bool = False
    command: str = ""


def profile(visit: Visit) -> ProfilePage | Response:
    """The profile that is kept or that the owner signed; a POST computes one that is not there."""
    files, at = visit.files, visit.asked("at")
    head = head_of(visit, files)
    if head.head is None:
        return ProfilePage(head)
    point, command = visit.at(), f"odfchain profile {head.name}" + (f"@{at}" if at else "")
    may_compute = visit.node.queries is not None and not is_partial(files)
    if visit.request.method == "POST":
        if not may_compute:
            raise Refused(403, "no profiles are computed here", hint=command)
        in_time(visit, point.profile, command)
        return RedirectResponse(str(visit.request.url.replace(scheme="", netloc="")), 303)
    found = point.known_profile()
    document = dict(found.document) if found else None
    return ProfilePage(head, document, at, profiled(files), may_compute, command)


def profiled(files: DatasetFiles) -> tuple[int, ...]:
    """The blocks of the head's chain that have profiles here, newest first."""
    names = {line.block for line in published(files, SnapshotKind.PROFILE, owners=True)}
    with suppress(OSError):
        for path in (files.folder / "info" / "profiles").iterdir():
            with suppress(InvalidIdError):
                names.add(Multihash.parse(path.name))
    top, numbers = DatasetState.read(files.chain).head, set[int]()
    for name in names:
        with suppress(OdfchainError):
            number = files.chain.get(name).sequence_number
            numbers |= {number} if files.chain.hash_at(number, top) == name else set()
    return tuple(sorted(numbers, reverse=True)[:_ROWS])


def _profile_page(visit: Visit, view: ProfilePage) -> str:
    render = render_below(visit, view, "Profile", "profile")
    return profile_page(view.document, render=render) if view.document else render("", "")


@dataclass(frozen=True, slots=True)
class DriftPage:
    """How far the profiles of two points are apart."""

    dataset: DatasetHead
    drift: dict[str, Any]
    command: str


def drift(visit: Visit) -> DriftPage:
    """The comparison of two profiles that are here; none is computed."""
    name, found = str(visit.files.alias), _drift(visit)
    command = f"odfchain diff --profile {name}@{visit.asked('a')} {name}@{visit.asked('b')}"
    return DriftPage(head_of(visit, visit.files), found.to_document(), command)


def _drift(visit: Visit) -> Drift:
    def known(side: str) -> Profile:
        if visit.asked(side) is None:
            raise Refused(400, "two points are compared: a and b", hint="each is a block, a time or a branch")
        if (found := visit.at(side).known_profile()) is None:
            point = f"{visit.files.alias}@{visit.asked(side)}"
            raise not_found(f"no profile of {point} is here", hint=f"odfchain profile {point}")
        return found

    return compare_profiles(known("a"), known("b"))


def _drift_page(visit: Visit, view: DriftPage) -> str:
    render = render_below(visit, view, "Profile", "drift")
    found = _drift(visit)
    return drift_page(view.drift, found.before, found.after, render=render)


@dataclass(frozen=True, slots=True)
class ManifestsPage:
    """Signed lines about manifests and profiles, the newest block first, and the files of one manifest."""

    dataset: DatasetHead
    lines: tuple[SnapshotLine, ...] = ()
    shown: SnapshotLine | None = None
    files: tuple[dict[str, Any], ...] = ()
    total: int = 0
    page: int = 1
    command: str = ""


def manifests(visit: Visit) -> ManifestsPage:
    """What was signed about blocks of this chain, and what the newest or a chosen manifest lists."""
    files, page, wanted = visit.files, max(1, visit.count("page", 1, 1_000_000)), visit.asked("manifest")
    head, shown = head_of(visit, files), list[dict[str, Any]]()
    if head.head is None:
        return ManifestsPage(head)
    lines = published(files)
    named = (x for x in lines if x.kind is SnapshotKind.MANIFEST and wanted in (None, str(x.object)))
    if (line := next(named, None)) is not None:
        document = in_time(visit, lambda: signed_manifest(files, line, object_of(files, line)), head.name)
        shown = [dict(each) for each in files_of(document).values()]
    some = tuple(shown[(page - 1) * _ROWS : page * _ROWS])
    command = f"odfchain manifest {head.name}"
    return ManifestsPage(head, tuple(lines[:_ROWS]), line, some, len(shown), page, command)


@dataclass(frozen=True, slots=True)
class AssetsPage:
    """Fifty rows of the asset lock that a dataset is."""

    dataset: DatasetHead
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str | None, ...], ...]
    total: int
    page: int
    command: str


def assets(visit: Visit) -> AssetsPage:
    """The lock in force."""
    dataset, page = visit.dataset, max(1, visit.count("page", 1, 1_000_000))
    command, schema = f"odfchain assets check {dataset.alias}", lock_schema(dataset)
    if (records := dataset.summary.record_count) > _MOST_ASSETS:
        raise Refused(409, f"{records:,} records of assets are too many for a page", hint=command)
    table = in_time(visit, dataset.lock, command).table
    rows = table.slice((page - 1) * _ROWS, _ROWS).to_pylist()
    texts = tuple(tuple(None if row[n] is None else str(row[n]) for n in schema.names) for row in rows)
    numeric = tuple(place in numeric_columns(schema) for place in range(len(schema)))
    head = head_of(visit, visit.files)
    return AssetsPage(head, tuple(schema.names), numeric, texts, table.num_rows, page, command)


PAGES = (
    Page(f"{DATASET}/-/profile", "profile", profile, methods=("GET", "HEAD", "POST"), made_by=_profile_page),
    Page(f"{DATASET}/-/drift", "drift", drift, made_by=_drift_page),
    Page(f"{DATASET}/-/manifests", "manifests", manifests),
    Page(f"{DATASET}/-/assets", "assets", assets, heavy=True),
)
