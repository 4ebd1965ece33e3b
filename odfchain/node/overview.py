"""The overview of a dataset: its README, its license, its attachments, and what is missing of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from starlette.responses import Response

from odfchain.node.dataset_head import DatasetHead, head_of
from odfchain.node.pages import DATASET, Page
from odfchain.node.readme import Readme
from odfchain.node.readme import readme as shown
from odfchain.node.visit import Visit, not_found
from odfchain.odf import events as ev
from odfchain.text import one_line
from odfchain.transfer.slice_files import is_partial
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_LOOKED_AT, _SHOWN = 1_000, 20  # slices [count]
_README = re.compile(r"(?i)readme(\.\w{1,9})?")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that the dataset carries."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The facts of a dataset's first page."""

    dataset: DatasetHead
    readme: Readme | None = None
    readme_path: str | None = None
    license_url: str | None = None
    attachments: tuple[Attachment, ...] = ()
    is_empty: bool = False
    missing: tuple[tuple[int, int, int], ...] = ()
    """Of a partial copy, the newest slices that are not here: block, first and last record."""
    lost: int = 0
    """Slices that should be here [count]."""
    command: str | None = None


def overview(visit: Visit) -> Overview:
    """What a dataset is, as far as its chain can be read."""
    files = visit.files
    head = head_of(visit, files)
    if head.head is None:
        return Overview(head, command=f"odfchain fsck {head.name}")
    state = DatasetState.read(files.chain)
    terms, items, partial = files.chain.nearest_event(ev.SetLicense), state.attachments, is_partial(files)
    readme = min((i for i in items if _README.fullmatch(i.path)), key=lambda i: i.path, default=None)
    return Overview(
        head, shown(readme.content) if readme else None, readme.path if readme else None,
        getattr(terms, "website_url", None),
        tuple(Attachment(i.path, len(i.content.encode())) for i in items), state.last_offset is None,
        tuple(islice(_missing(files, state), _SHOWN)) if partial else (),
        0 if partial else _lost(visit, files), f"odfchain status {head.name}",
    )  # fmt: skip


def _lost(visit: Visit, files: DatasetFiles) -> int:
    line = visit.node.catalog.line(files.folder.name).line
    return (line.slices or 0) - (line.slices_here or 0) if line else 0


def _missing(files: DatasetFiles, state: DatasetState) -> Iterator[tuple[int, int, int]]:
    for ref in islice(state.slices_newest_first(), _LOOKED_AT):
        if not files.data.contains(ref.slice.physical_hash):
            rows = ref.slice.offset_interval
            yield ref.sequence_number, rows.start, rows.end


def attachment(visit: Visit) -> Response:
    """A file that the dataset carries, as a download of plain text: it is a stranger's."""
    path = str(visit.request.path_params["path"])
    found = next((i for i in DatasetState.read(visit.files.chain).attachments if i.path == path), None)
    if found is None:
        raise not_found(f"no attachment is called {one_line(path, 80)!r}")
    return Response(found.content, headers=download(path), media_type="text/plain; charset=utf-8")


def download(name: str) -> dict[str, str]:
    """The header that has a browser store what is sent, under a name that is harmless everywhere."""
    plain = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip(".-")[-100:] or "file"
    return {"content-disposition": f'attachment; filename="{plain}"'}


PAGES = (Page(f"{DATASET}/", "overview", overview),)
ATTACHMENTS = Page(f"{DATASET}/-/attachments/{{path:path}}", "", attachment)
"""No page: a download, and in one form only."""
