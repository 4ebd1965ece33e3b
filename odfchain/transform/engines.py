"""The interface of engines: a pure function from a request to files.

An engine reads the files that a request names and writes the two that it asks for, a slice and a checkpoint.
It keeps nothing between requests, so a request can be repeated, by anybody, with the same result. Source:
specification "Engine Contract", "Engine Protocol"; RFC-019.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from odfchain.errors import QueryError, TransformError
from odfchain.odf.sources import Transform
from odfchain.odf.transform_options import (
    DATAFUSION,
    OWN_ENGINE,
    is_own,
    is_own_name,
    lateness_option,
    named_version,
    split_version,
)
from odfchain.text import one_line

if TYPE_CHECKING:
    from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest
    from odfchain.odf.events import DatasetVocabulary, OffsetInterval
    from odfchain.odf.schema import DataSchema
    from odfchain.odf.times import Timestamp
    from odfchain.progress import Progress
    from odfchain.slices.writer import SliceFacts
    from odfchain.workspace.config import EnginePlace, TransformConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """Result of a step of a transformation.

    The file at `new_data_path` is there when there are rows; without rows it only shows the schema. The file
    at `new_checkpoint_path` is there when the next step needs another one than the step before left.
    """

    offset_interval: OffsetInterval | None
    """Offsets of the new records; None when there are none."""
    watermark: Timestamp | None
    """No later record of the output is older than this; None while that cannot be said."""
    facts: SliceFacts | None = None
    """Hashes and counts of the slice, where the engine computed them while it wrote."""
    keeps_checkpoint: bool = True
    """True if the checkpoint before stays in force where no new one was written."""
    takes_back_own: bool = False
    """True if every row that takes another back is known to take back one that the engine emitted."""
    version: str | None = None
    """The version that a remote engine reports; None where it reports none."""
    put_since: float = 0.0
    """The slice was put into the workspace's store after this [s, `time.monotonic`]; 0: it was not."""


class TransformEngine(Protocol):
    """Executes queries. Calls may come from several threads."""

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        """Execute the next step of a transformation.

        `schema` is what the output is declared as so far, for engines that can follow it.

        Raises:
            QueryError: the query is at fault (InvalidQuery).
            EngineError: the engine is (InternalError).
        """

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Run a query over raw files, the table `input`; the number of records. Raises as `execute`."""


@runtime_checkable
class InProcessEngine(TransformEngine, Protocol):
    """An engine of this process, which executes several steps at the same time."""

    def rows_of(self, request: TransformRequest, *, progress: Progress) -> int | None:
        """Number of records (in the order of rows) of a row-by-row query over one input; None for others."""

    def tasks(self) -> int:
        """Number of steps that are worth executing at the same time."""

    def keeping(self, slices: str) -> TransformEngine:
        """The engine, which puts slices into the workspace's store under this key where that saves a way."""


# A version names the rules of this engine, Spark's version and, where a query has them, options:
#
#     odfchain_3-spark_4.3.0
#     odfchain_3-spark_4.3.0+allowedLateness=PT86400S
#
# The rules' number changes when the same query over the same rows would give other rows, another order or
# another watermark. All earlier rules can still be executed, so recorded steps continue and are replayed by
# them. Patch releases of Spark are the same; another minor release must be declared compatible (specification
# "Engine Versioning", "Engine Deprecation"; RFC-019).

RULES = 3
"""The number of the rules that new transforms get."""

_FORM = re.compile(r"odfchain_(\d{1,9})-spark_(\d{1,9})\.(\d{1,9})(?:\.[^\s+]+)?")


@dataclass(frozen=True, slots=True)
class EngineRules:
    """The differences between versions of this engine's rules."""

    number: int = RULES
    allowed_lateness_ms: int = 0
    """Time for which a complete windowed result still takes late rows and corrections [ms]."""

    @property
    def counts_at_once(self) -> bool:
        """True if results that can be taken back count every recorded row, and not only final ones."""
        return self.number >= 2

    @property
    def takes_corrections(self) -> bool:
        """True if windowed results take retractions and corrections of their inputs."""
        return self.number >= 2

    @property
    def tells_zeros_apart(self) -> bool:
        """True if a result -0.0 is another one than 0.0, as it is in a slice."""
        return self.number >= 2

    @property
    def takes_back_equals(self) -> bool:
        """True if a row of an input takes back one that is equal, as in states: -0.0 is 0.0, NaN is NaN."""
        return self.number >= 3

    @property
    def reads_grouping_sets(self) -> bool:
        """True if the values of ROLLUP, CUBE and UNPIVOT are read; by the first rules they are null."""
        return self.number >= 2

    @property
    def version(self) -> str:
        """The version of this engine by these rules."""
        from importlib.metadata import version

        return f"odfchain_{self.number}-spark_{version('pyspark')}{lateness_option(self.allowed_lateness_ms)}"


def _parsed(version: str) -> tuple[EngineRules | None, tuple[str, str]] | None:
    # (the rules, None where they or their options are not known here; Spark's release); None for a version in
    # another form
    base, lateness = split_version(version)
    found = _FORM.fullmatch(base)
    if found is None:
        return None
    rules = EngineRules(int(found[1]), lateness)
    known = 1 <= rules.number <= RULES and (rules.takes_corrections or not lateness)
    return rules if known else None, (found[2], found[3])


def engine_version() -> str:
    """The version that new transforms get."""
    return EngineRules().version


_DATAFUSION = re.compile(r"datafusion_(\d{1,9}\.\d{1,9})\.[^\s+]+")


def datafusion_version() -> str:
    """The version that new transforms for the engine on DataFusion get."""
    from importlib.metadata import version

    return f"{DATAFUSION}_{version('datafusion')}"


def is_named_datafusion(transform: Transform) -> bool:
    """True if a transform is for an engine on DataFusion: ours, where none has an address."""
    return transform.engine.lower() == DATAFUSION


def rules_of(recorded: str | None) -> EngineRules:
    """The rules that execute a transform with this version; the newest, where it names none of its own."""
    found = _parsed(recorded) if recorded is not None else None
    return found[0] if found is not None and found[0] is not None else EngineRules()


def same_results(recorded: str | None, running: str, compatible: Collection[str] = ()) -> bool:
    """True if the running version, by the rules that `rules_of` names, may stand in for the recorded one.

    A transform without a version asks for none. `compatible` are versions that were declared to give the same
    results.
    """
    if recorded is None or recorded == running or recorded in compatible:
        return True
    if (a := _DATAFUSION.fullmatch(recorded)) and (b := _DATAFUSION.fullmatch(running)):
        return a[1] == b[1]
    one, other = _parsed(recorded), _parsed(running)
    return one is not None and one[0] is not None and other is not None and one[1] == other[1]


_KNOWS_TEMPORAL_TABLES = "flink"  # other engines than it and ours pass over them without a word


def place_of(transform: Transform, config: TransformConfig) -> EnginePlace | None:
    """Where the settings say that a transform's engine is; None where they do not."""
    # a transform recorded under this engine's former name stays its own, even if that name is now another's
    if named_version(transform) and is_own(transform):
        return config.engines.get(OWN_ENGINE)
    return config.engines.get(transform.engine.lower())


def required_place(transform: Transform, config: TransformConfig) -> EnginePlace | None:
    """As `place_of`; raises a `TransformError`, whose hint says what to do, where no engine can be had."""
    place, name = place_of(transform, config), transform.engine.lower()
    if is_own_name(name):
        return place
    if place is None and not is_named_datafusion(transform):
        raise TransformError(
            f"the transform is for the engine `{transform.engine}`, which is not this one",
            hint=f"name its address or its image in the settings: transform.engines.{name}, "
            f"or write the query for {OWN_ENGINE}",
        )
    if transform.temporal_tables and name != _KNOWS_TEMPORAL_TABLES:
        raise TransformError(
            f"the transform has temporalTables, which the engine `{transform.engine}` does not know",
            hint=f"write the query for {OWN_ENGINE}, or leave them out and join by time in the query",
        )
    return place


def check_columns(names: Sequence[str], vocabulary: DatasetVocabulary, wrong_operation: str | None) -> None:
    """A result with these columns can become a slice; the type of the operation is given if it is wrong."""
    for name in names:
        if names.count(name) > 1:
            hint = "give one of them another name: AS …"
            raise QueryError(f"the result has two columns `{name}`", hint=hint)
        if not name.strip():
            raise QueryError("the result has a column without a name", hint="give it one: AS …")
    for made in (vocabulary.offset_column, vocabulary.system_time_column):
        if made in names:
            message = f"the result has a column `{made}`, which is made when the slice is written"
            raise QueryError(message, hint="leave it out, or select the columns by name instead of *")
    if (time := vocabulary.event_time_column) not in names:
        hint = f"select it, or name a time so: … AS {time}"
        raise QueryError(f"the result has no column `{time}`: every row needs an event time", hint=hint)
    if wrong_operation is not None:
        message = f"the operation `{vocabulary.operation_type_column}` is a {wrong_operation}, not an integer"
        raise QueryError(message, hint="0 appends, 1 retracts, 2 and 3 correct")


def check_version(
    transform: Transform, config: TransformConfig, running: str | None = None, who: str = "this"
) -> None:
    """This engine, or the `running` one, gives the results asked for (specification "Engine Deprecation")."""
    running = running or (datafusion_version() if is_named_datafusion(transform) else engine_version())
    if not same_results(transform.version, running, config.compatible_versions):
        wanted = one_line(transform.version or "")
        message = f"the transform asks for engine version {wanted}, and {who} is {running}"
        hint = "if both give the same results, say so in the settings: transform.compatibleVersions"
        raise TransformError(message, hint=hint)
