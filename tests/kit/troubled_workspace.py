"""A workspace with a dataset of each kind of trouble, and what is usual beside them; made without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import odfchain as odf
from odfchain.chain.statements import create_key_file
from odfchain.errors import ChainsDifferError
from odfchain.odf import events as ev
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit import derived_dataset, hostile_dataset, query_datasets, small_branches
from tests.kit.branch_rows import add
from tests.kit.lock_datasets import lock_dataset
from tests.kit.queried_workspace import add_numbers
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.signed_heads import owned, publish
from tests.kit.support import fixture
from tests.kit.upkeep_scenes import hashes

README = "# Measured\n\n[terms](terms.txt) | a\n\n" + "Water *levels* of rivers, in metres.\n\n" * 40
LONG = (README + "All work and no play.\n\n" * 48_000)[: (1 << 20) - 4_096]
"""A block, which holds it, has at most 1 MiB."""
WORDS = {
    "city": ["Zürich", "Łódź"],
    "πόλη": ["Αθήνα", "Θεσσαλονίκη"],
    "مدينة": ["القاهرة", "الإسكندرية"],
    "城市": ["東京都", "上海市"],
}
"""Columns and values in four scripts, one of which runs from right to left."""
DAMAGED = "damaged.chain"
NAMES = (
    "branched", "cities", "copied", "damaged.slice", "empty", "evil", "forked", "made", "org.example.numbers",
    "orphan", "partial", "readings", "readme", "rewound", "s2.assets", "scripts", "unsigned", "wide",
)  # fmt: skip
"""All datasets but the one whose chain cannot be read."""


def make(folder: Path) -> odf.Workspace:
    """All datasets in `folder / "here"`; others that they were pulled from are beside it and go unseen."""
    here, elsewhere = (odf.init(folder / name) for name in ("here", "elsewhere"))
    _usual(here, folder / "auditor.pem")
    add_root(here, "empty", schema_with(pa.field("city", pa.string())))
    _rows(here, "wide", {f"column-{n:03}-of-a-wide-table": [n] * 60 for n in range(300)})
    _described(_rows(here, "scripts", WORDS), " · ".join(v[0] for v in WORDS.values()), README)
    _described(_rows(here, "readme", {"city": ["A"]}), "with a README of one MiB", LONG)
    hostile_dataset.make_derivative(here, hostile_dataset.make_root(here))
    _damaged(here)
    _pulled(here, elsewhere)
    _two_histories(here, folder / "peer")
    elsewhere.close()
    return here


def _usual(here: odf.Workspace, auditor: Path) -> None:
    """Corrections, appends, a derivative, branches, a lock, a manifest, a profile, an attestation."""
    cities = query_datasets.make(here, "cities", fixture("query/cases.json")["datasets"]["x"])
    _described(cities, "Cities with their inhabitants, corrected now and then", README)
    add_numbers(here, "org.example.numbers", [70, 30, 51])
    derived_dataset.on_paper(here, derived_dataset.FIRST, derived_dataset.SECOND)
    branched = here[query_datasets.make(here, "branched", small_branches.SPEC).alias]
    for name in ("fix", "other"):
        small_branches.add(branched.create_branch(name), name)
    small_branches.merged(branched, branched.branch("fix"))
    lock_dataset(here)
    here["readings"].at(2).profile()  # beside that of its newest block
    create_key_file(auditor)
    for name in ("cities", "readings"):
        dataset = here[name]
        dataset.write_manifest()
        dataset.write_profile()
        dataset.attest(auditor)


def _rows(here: odf.Workspace, name: str, columns: dict[str, Sequence[Any]]) -> DatasetFiles:
    """A root with one slice of these columns."""
    values = [pa.array(column) for column in columns.values()]
    schema = schema_with(*(pa.field(n, v.type) for n, v in zip(columns, values, strict=True)))
    root, count = add_root(here, name, schema), len(values[0])
    append(root, records(schema, 0, [0] * count, [START] * count, *columns.values()), MADE)
    return root


def _described(dataset: DatasetFiles, description: str, readme: str) -> None:
    files = (("README.md", readme), ("terms.txt", "Be kind."))
    items = tuple(ev.AttachmentEmbedded(path=path, content=content) for path, content in files)
    add(
        dataset,
        ev.SetInfo(description=description, keywords=("cities", "made up")),
        ev.SetLicense(short_name="CC0", name="CC0 1.0", website_url="https://creativecommons.org/"),
        ev.SetAttachments(attachments=ev.AttachmentsEmbedded(items=items)),
    )


def _damaged(here: odf.Workspace) -> None:
    """A block with a flipped bit, and a slice that was cut."""
    chain = add_numbers(here, DAMAGED, [3, 3])
    block = chain.folder / "blocks" / str(hashes(chain)[2])
    block.write_bytes(block.read_bytes()[:-1] + bytes([block.read_bytes()[-1] ^ 1]))
    slices = add_numbers(here, "damaged.slice", [3, 3])
    newest = max((slices.folder / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:100])


def _pulled(here: odf.Workspace, elsewhere: odf.Workspace) -> None:
    """A copy without its older slices, one that nobody signed, one set back, one whose input is not here."""
    for name in ("partial", "unsigned", "rewound"):
        add_numbers(elsewhere, name, [3, 4, 5])
    derived_dataset.on_paper(elsewhere, derived_dataset.FIRST, derived_dataset.SECOND)
    (elsewhere["unsigned"].path / "refs" / "head.jws").unlink()
    for name, source, options in (
        ("partial", "partial", {"last": 1}),
        ("unsigned", "unsigned", {}),
        ("rewound", "rewound", {}),
        ("orphan", "copied", {}),
    ):
        here.pull(elsewhere[source].path.as_uri(), name=name, **options)
    chain = here["rewound"]._files.chain
    chain.set_ref("head", hashes(here["rewound"]._files)[-2], expected=chain.head())


def _two_histories(here: odf.Workspace, peer: Path) -> None:
    """A dataset whose owner has signed two histories: one is here, the proof of the other is kept."""
    publish(peer, owned(["note 1", "one", "two"]))
    here.pull(peer.as_uri(), name="forked")
    publish(peer, owned(["note 1", "other", "thing", "more"]))
    try:
        here.pull(peer.as_uri(), name="forked")
    except ChainsDifferError:
        return
    raise AssertionError("two histories of one owner went unnoticed")
