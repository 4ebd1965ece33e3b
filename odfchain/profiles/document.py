"""The profile of a dataset at a block: its columns' statistics, and what chain and publisher say of the rows.

The fields are flat and have the names of ADR-0001. What is counted is exact; what is not comes from the
sample of rows, scaled to all of them so that counts add up, and is named in `estimated`. Numbers are doubles
that were rounded once; integers stay integers. Source: RFC-040.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import rfc8785
from pyarrow import types as t

from odfchain.branches.recording import described
from odfchain.errors import OdfchainError, UsageError
from odfchain.odf.enums import OperationType
from odfchain.odf.events import AddPushSource, SetInfo, SetPollingSource, SetTransform
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes, sha3_256
from odfchain.odf.schema import DataSchema, DataTypeOption
from odfchain.odf.sources import FetchStepUrl
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import properties_of
from odfchain.profiles import reader
from odfchain.profiles.reader import DESCRIPTIVE, by_share, library
from odfchain.profiles.state_totals import profiled_columns, state_totals
from odfchain.profiles.totals import (
    LONGEST_SAMPLED,
    LONGEST_SHOWN,
    ColumnKind,
    ColumnTotals,
    Distribution,
    Totals,
    mark_of,
    rounded,
    unscaled,
)
from odfchain.progress import SILENT, Progress
from odfchain.slices.reader import PER_SECOND, open_parquet
from odfchain.storage.locations import public_name
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import ProfileOptions

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier


_KINDS = {"FetchStepUrl": "http", "FetchStepFilesGlob": "file", "FetchStepContainer": "container"}


def profile_of(
    dataset: DatasetFiles,
    state: DatasetState,
    options: ProfileOptions | None = None,
    progress: Progress = SILENT,
    *,
    totals: Totals | None = None,
) -> dict[str, Any]:
    """The profile at a state's block; `totals` are those of its rows, where they are known."""
    options = options or ProfileOptions()
    schema = profiled_columns(state)
    for name in options.hide:
        if name not in schema.names:
            raise UsageError(f"--hide {one_line(name)}: the dataset has no such column")
    if totals is None:
        totals = state_totals(dataset, state, progress, near_duplicates=options.near_duplicates)
    return profile_document(totals, facts_of(dataset, state, options))


def facts_of(dataset: DatasetFiles, state: DatasetState, options: ProfileOptions) -> ProfileFacts:
    """Facts of a profile other than its statistics."""
    block = state.head_block
    return ProfileFacts(
        dataset_id=str(dataset.id),
        snapshot=state.head,
        parent=block.prev_block_hash,
        created_at=str(block.system_time),
        sequence_number=block.sequence_number,
        records=state.record_count,
        slices=[ref.slice.physical_hash for ref in state.slices()],
        descriptive=_descriptive(dataset, state, options),
        hidden=tuple(sorted(options.hide)),
        languages=library() if options.languages else None,
        declared=nullable_columns(state.schema),
    )


def nullable_columns(schema: DataSchema | None) -> dict[str, bool]:
    """Columns by name, with true if they may be null."""
    fields = () if schema is None else schema.fields
    return {column.name: isinstance(column.type, DataTypeOption) for column in fields}


def _descriptive(dataset: DatasetFiles, state: DatasetState, options: ProfileOptions) -> dict[str, Any]:
    info = state.chain.nearest_event(SetInfo, head=state.head)
    source = state.chain.nearest_event(SetPollingSource, AddPushSource, SetTransform, head=state.head)
    changes = _changes(dataset, state)
    return {
        "created_by": options.created_by or str(dataset.id),
        "dataset_name": str(dataset.alias),
        "dataset_path": _path_of(source) or f"odf:{dataset.id}",
        "source_type": _type_of(source),
        "description": (info.description if info is not None else None) or "",
        "tags": dict(options.tags or {}),
        "pipeline_stage": options.stage or ("raw" if state.transform is None else ""),
        "transform_description": changes if options.description is None else options.description,
    }


def _changes(dataset: DatasetFiles, state: DatasetState) -> str:
    # such as `43 added, 57 corrected`; empty where the block has no rows stored here
    if (data := getattr(state.head_block.event, "new_data", None)) is None:
        return ""
    path = dataset.data.path(data.physical_hash)
    operation = state.vocabulary.operation_type_column
    counts = np.zeros(256, dtype=np.int64)
    try:
        with open_parquet(path) as file:
            for batch in file.batches([operation]):
                counts += np.bincount(batch.column(0).to_numpy(zero_copy_only=False), minlength=256)[:256]
    except (OSError, OdfchainError):
        return ""
    return described({OperationType.from_code(code).value: int(counts[code]) for code in range(4)})


def _path_of(source: Any) -> str | None:
    # without user names, passwords and values of variables
    fetch = source.fetch if isinstance(source, SetPollingSource) else None
    return public_name(fetch.url) if isinstance(fetch, FetchStepUrl) else None


def _type_of(source: Any) -> str:
    if isinstance(source, SetPollingSource):
        return _KINDS.get(type(source.fetch).__name__, "http")
    return "push" if isinstance(source, AddPushSource) else "odf"


# The document.

_MOSTLY_NULL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """Facts of a profile other than its statistics."""

    dataset_id: str
    snapshot: Multihash
    parent: Multihash | None
    created_at: str
    """The block's system time."""
    sequence_number: int
    records: int
    slices: Sequence[Multihash]
    """Physical hashes, oldest first."""
    descriptive: Mapping[str, Any]
    hidden: tuple[str, ...] = ()
    languages: str | None = None
    """The library that tells languages, and its version; None tells none."""
    declared: Mapping[str, bool] = field(default_factory=dict)
    """By column, whether it may be null."""


def profile_document(totals: Totals, facts: ProfileFacts) -> dict[str, Any]:
    """The profile of some rows."""
    statistics, kept = {}, {*properties_of(reader.Counts)}
    for column in totals.columns:
        sample = totals.sampled_values(column)
        found = column_statistics(column, sample)
        if column.kind is ColumnKind.STRING:
            found["detected_languages"] = detected_languages(sample) if facts.languages else {}
        if column.name in facts.hidden:  # counts and fractions only
            found = {name: value for name, value in found.items() if name in kept}
        statistics[column.name] = found
    columns = [
        {"name": f.name, "dtype": dtype(f.type), "nullable": facts.declared.get(f.name, f.nullable)}
        for f in totals.schema
    ]
    document = {
        "format_version": reader.FORMAT_VERSION,
        "snapshot_id": str(facts.snapshot),
        "created_at": facts.created_at,
        **{name: facts.descriptive[name] for name in DESCRIPTIVE},
        "source_hash": str(merkle_root(facts.slices)),
        "num_columns": len(columns),
        "columns": columns,
        "schema_hash": str(schema_hash(totals.schema)),
        "num_rows": totals.rows,
        "duplicate_row_fraction": totals.kmv.duplicate_fraction,
        "near_duplicate_estimate": totals.near_duplicates,
        "constant_columns": [c.name for c in totals.columns if c.rows and c.distinct + bool(c.nulls) <= 1],
        "high_null_columns": [c.name for c in totals.columns if c.rows and c.nulls / c.rows > _MOSTLY_NULL],
        "row_minhash": base64.b64encode(totals.kmv.to_bytes()).decode(),
        "row_hyperloglog": base64.b64encode(totals.hll.to_bytes()).decode(),
        "column_stats": statistics,
        "odf": {
            "dataset_id": facts.dataset_id,
            "sequence_number": facts.sequence_number,
            "num_records": facts.records,
            "rows": "state",
            "languages": facts.languages,
            "hidden": list(facts.hidden),
        },
    }
    if facts.parent is not None:
        document["parent_snapshot_id"] = str(facts.parent)
    return document


def merkle_root(slices: Sequence[Multihash]) -> Multihash:
    """The RFC 6962 tree hash over the digests of slices, by SHA3-256: leaves after 00, nodes after 01."""

    def root(digests: Sequence[bytes]) -> bytes:
        if len(digests) <= 1:
            return sha3_256(b"\x00" + digests[0] if digests else b"").digest()
        half = 1 << (len(digests) - 1).bit_length() - 1
        return sha3_256(b"\x01" + root(digests[:half]) + root(digests[half:])).digest()

    return Multihash.sha3_256(root([name.digest for name in slices]))


def schema_hash(schema: pa.Schema) -> Multihash:
    """The hash of names and types, in order; whether columns may be null is not in it."""
    return hash_bytes(bytes(rfc8785.dumps([[field.name, dtype(field.type)] for field in schema])))


def dtype(kind: pa.DataType) -> str:
    """The name of a type."""
    if t.is_dictionary(kind):
        return dtype(kind.value_type)
    if t.is_boolean(kind):
        return "bool"
    if t.is_float16(kind):
        return "float16"
    if t.is_floating(kind):
        return "float32" if t.is_float32(kind) else "float64"
    if t.is_string(kind) or t.is_large_string(kind):
        return "string"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return "bytes"
    if t.is_decimal(kind):
        return f"decimal{kind.bit_width}({kind.precision},{kind.scale})"
    if t.is_timestamp(kind):
        return f"datetime64[{kind.unit}]"
    if t.is_date(kind):
        return "datetime64[D]"
    if t.is_time(kind):
        return f"time64[{kind.unit}]"
    if t.is_map(kind):
        return f"map<{dtype(kind.key_type)},{dtype(kind.item_type)}>"
    if t.is_nested(kind) and not t.is_struct(kind):
        return f"list<{dtype(kind.value_type)}>"
    if t.is_struct(kind):
        return "struct<" + ",".join(f"{f.name}:{dtype(f.type)}" for f in kind) + ">"
    return str(kind)


# The statistics of each column (ADR-0001, "Per-Column Statistics").

LEAST_HITS = 16
"""So often a value must be in the sample to be a top value."""


def column_statistics(totals: ColumnTotals, sample: pa.ChunkedArray) -> dict[str, Any]:
    """The statistics of one column; `sample` has its values in the sample of rows."""
    found: dict[str, Any] = {
        "kind": totals.kind.value,
        "null_count": totals.nulls,
        "null_fraction": totals.nulls / totals.rows if totals.rows else 0.0,
        "num_unique": totals.distinct,
    }
    counted = totals.counts is not None
    estimated = [] if counted else ["num_unique"]
    match totals.kind:
        case ColumnKind.NUMERIC:
            found |= _numeric(totals, sample)
            estimated += [] if counted else ["percentiles", "quantiles", "histogram"]
        case ColumnKind.STRING:
            found |= _top_values(totals, sample) | _texts(totals)
            estimated += [] if counted else ["top_values", "top_values_coverage"]
        case ColumnKind.BOOLEAN:
            found |= _top_values(totals, sample)
        case ColumnKind.DATETIME:
            found |= _times(totals)
    return found | ({"estimated": sorted(estimated)} if estimated else {})


def _numeric(totals: ColumnTotals, sample: pa.ChunkedArray) -> dict[str, Any]:
    found: dict[str, Any] = {
        "mean": totals.sums.mean,
        "std": totals.sums.deviation,
        "min": _published(totals.low),
        "max": _published(totals.high),
        "percentiles": {},
        "quantiles": [],
        "histogram": {"bin_edges": [], "counts": []},
    }
    if t.is_floating(totals.type):
        found["non_finite_count"] = totals.non_finite
    if (order := _distribution(totals, sample)) is None:
        return found
    found["quantiles"] = order.quantiles(range(101))
    found["percentiles"] = {f"p{p}": found["quantiles"][p] for p in reader.PERCENTILES}
    edges, bins = order.histogram(Fraction(totals.low), Fraction(totals.high))
    found["histogram"] = {"bin_edges": edges, "counts": scaled(bins, totals.sums.count)}
    return found


def _distribution(totals: ColumnTotals, sample: pa.ChunkedArray) -> Distribution | None:
    # None without finite numbers
    if totals.counts is not None:
        keys, counts = totals.counts.keys, totals.counts.numbers
    else:
        keys = sample.drop_null().combine_chunks()
        counts = np.ones(len(keys), dtype=np.int64)
    unit = Fraction(1)
    if t.is_decimal(keys.type):
        numbers, unit = unscaled(keys), Fraction(1, 10) ** int(keys.type.scale)
    else:
        numbers = keys.to_numpy(zero_copy_only=False)
    if t.is_floating(keys.type):
        numbers = numbers.astype(np.float64)
        finite = np.isfinite(numbers)
        numbers, counts = numbers[finite], counts[finite]
    return Distribution.of(numbers, counts, unit) if len(numbers) else None


def _published(value: Any) -> int | float | None:
    return rounded(value) if isinstance(value, Fraction) else value


def _top_values(totals: ColumnTotals, sample: pa.ChunkedArray) -> dict[str, Any]:
    values = totals.values
    if totals.counts is not None:
        keys, numbers = totals.counts.keys, totals.counts.numbers
        if len(numbers) > reader.TOP_VALUES:
            # those that are rarer than the last one that is listed need no order
            common = numbers >= np.partition(numbers, -reader.TOP_VALUES)[-reader.TOP_VALUES]
            keys, numbers = keys.filter(pa.array(common)), numbers[common]
        listed = by_share(dict(zip(_shown(keys, totals), numbers.tolist(), strict=True)))
    else:
        in_sample = by_share(Counter(map(_shown_again, sample.drop_null().to_pylist())))
        hits = [n for _, n in in_sample]
        listed = [
            (text, number)
            for (text, hit), number in zip(in_sample, scaled(hits, values), strict=True)
            if hit >= LEAST_HITS
        ]
    top = listed[: reader.TOP_VALUES]
    return {
        "top_values": dict(top),
        "top_values_coverage": sum(count for _, count in top) / values if values else 0.0,
    }


def _shown_again(text: str) -> str:
    # of what the sample keeps of a text: long ones have their mark already
    if len(text) <= LONGEST_SHOWN:
        return text
    return text[:LONGEST_SHOWN] + (text[LONGEST_SAMPLED:] or mark_of(text))


def _shown(keys: pa.Array, totals: ColumnTotals) -> list[str]:
    found: list[Any] = keys.to_pylist()
    return ["true" if key else "false" for key in found] if totals.kind is ColumnKind.BOOLEAN else found


def scaled(counts: Sequence[int], total: int) -> list[int]:
    """Counts of a sample as counts of so many: by cumulative floors, so that they add up."""
    rows, seen, before = sum(counts), 0, 0
    found = []
    for count in counts:
        seen += count
        upto = seen * total // rows
        found.append(upto - before)
        before = upto
    return found


def _texts(totals: ColumnTotals) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, lengths in (("char_length", totals.characters), ("token_count", totals.tokens)):
        found[f"avg_{name}"] = lengths.total / totals.values if totals.values else None
        found[f"min_{name}"], found[f"max_{name}"] = lengths.least, lengths.largest
    return found


def _times(totals: ColumnTotals) -> dict[str, Any]:
    if totals.low is None:
        return {"min": None, "max": None, "range_days": None}
    unit = 86_400 * 10**9 if t.is_date(totals.type) else 10**9 // PER_SECOND[totals.type.unit]
    low, high = totals.low * unit, totals.high * unit
    days = rounded(Fraction(high - low, 86_400 * 10**9))
    return {"min": str(Timestamp(low)), "max": str(Timestamp(high)), "range_days": days}


# Languages of a column: the one part of a profile that depends on a library's floats.
# Of the sample, the first 1,000 texts with at least 20 letters are used, each cut to 1,000 characters; fewer
# than ten give no result. To reproduce it takes the same version of the library, within 0.005 (RFC-040).

MOST_ROWS, LEAST_ROWS = 1_000, 10
LEAST_LETTERS = 20


def detected_languages(texts: pa.ChunkedArray) -> dict[str, float]:
    """The share of each language, the commonest first; `texts` are the rows of the sample, nearest first."""
    counts, rows = Counter[str](), 0
    known: dict[str, str] = {}
    for start in _long_enough(texts):
        if start not in known:
            known[start] = _identifier().classify(start)[0]
        counts[known[start]] += 1
        rows += 1
    if rows < LEAST_ROWS:
        return {}
    return {name: count / rows for name, count in by_share(counts)[: reader.LISTED_LANGUAGES]}


def _long_enough(texts: pa.ChunkedArray) -> list[str]:
    # none where too few rows have enough letters
    candidates = texts.filter(pc.greater_equal(pc.utf8_length(texts), LEAST_LETTERS))
    found: list[str] = []
    for chunk in candidates.chunks:
        for value in chunk:
            start: str = value.as_py()[:LONGEST_SAMPLED]
            if sum(map(str.isalpha, start)) >= LEAST_LETTERS:
                found.append(start)
                if len(found) == MOST_ROWS:
                    return found
    return found if len(found) >= LEAST_ROWS else []


@lru_cache(maxsize=1)
def _identifier() -> LanguageIdentifier:
    # an instance of our own: a shared one may have been restricted to some languages
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)
