"""The schema of a dataset: its columns, since when each is there, and the DDL."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from starlette.responses import Response

from odfchain import errors
from odfchain.node.dataset_head import DatasetHead, head_of
from odfchain.node.pages import DATASET, Page
from odfchain.node.visit import Visit
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.events import SetDataSchema
from odfchain.odf.schema import format_ddl, format_type
from odfchain.odf.tree import to_tree
from odfchain.odf.yaml import dump_yaml
from odfchain.workspace.dataset_state import DatasetState

_CHANGES = 1_000  # of the schema, that are looked at [count]


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column: its type as in DDL, and the block that declared it first."""

    name: str
    type: str
    required: bool
    key: bool
    system: bool
    since: int


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema in force at a block; no columns before it is declared."""

    dataset: DatasetHead
    at: str | None
    block: int
    columns: tuple[SchemaColumn, ...]
    ddl: tuple[str, ...]
    command: str


def schema(visit: Visit) -> Schema:
    """The columns of a dataset."""
    opened = visit.at()
    state, at = opened.summary, visit.asked("at")
    declared, since = state.schema, _since(state)
    try:
        key = state.primary_key
    except errors.SchemaError:  # the sources do not agree
        key = ()
    system = set(state.vocabulary.columns)
    columns = tuple(
        SchemaColumn(
            f.name,
            format_type(f.type, f.extra).removesuffix(" NOT NULL"),
            not f.optional,
            f.name in key,
            f.name in system,
            since.get(f.name, 0),
        )
        for f in (declared.fields if declared else ())
    )
    name = f"{opened.alias}@{at}" if at else str(opened.alias)
    return Schema(
        head_of(visit, visit.files),
        at,
        state.head_block.sequence_number,
        columns,
        tuple(format_ddl(declared)) if declared else (),
        f"odfchain inspect schema {name}",
    )


def _since(state: DatasetState) -> dict[str, int]:
    """The block that each column of the schema in force was declared by, without a gap since then."""
    found: dict[str, int] = {}
    there: set[str] | None = None
    for _, block in islice(state.chain.nearest_all(SetDataSchema.KIND, head=state.head), _CHANGES):
        event = block.event
        assert isinstance(event, SetDataSchema)  # noqa: S101 - asked for this kind
        names = set(schema_of_event(event.raw_arrow_schema, event.schema).names)
        there = names if there is None else there & names
        found |= dict.fromkeys(there, block.sequence_number)
    return found


def _yaml(_: Visit, view: Schema) -> Response:
    return Response(dump_yaml(to_tree(view)), media_type="application/yaml")


PAGES = (Page(f"{DATASET}/-/schema", "schema", schema, {"yaml": _yaml}),)
