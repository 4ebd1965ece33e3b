"""The options of each verb, declared once: for the methods, the command line, and what does the work.

Of `Annotated` the first text is the line of help, the next ones how it is written where the name does not say
that, and a dictionary has more for `odfchain.cli.parameters`. Without it only methods have the option.
What is true by default has a flag that says no, numbers show their default, and collections can be repeated.

A time is a `Timestamp`, a `datetime` (UTC where it says no zone) or a text such as `2025-07-06T00:00:00Z`; of
a `date`, or a text that says less, such as `2025-07`, the first moment is meant, in UTC.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Concatenate, ParamSpec, TypeVar

from odfchain.errors import InvalidIdError, UsageError
from odfchain.limits import SHARING
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.text import one_line
from odfchain.workspace.points import parse_time

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
E = TypeVar("E", bound=Enum)

FILE_FORMATS = ("csv", "json", "ndjson", "geojson", "ndgeojson", "shapefile", "parquet")
"""The keys of `INPUT_FORMATS`, without loading what reads them."""
Time = Timestamp | dt.date | str
BlockName = Multihash | int
Block = BlockName | str
"""A block: its hash, or its sequence number."""
AnyPoint = Time | BlockName
"""A point of a history: as text `BRANCH`, `[BRANCH:]NUMBER`, `[BRANCH:]TIME` or a block hash."""
Paths = str | Path | Iterable[str | Path]
"""One file or several."""
Resolve = Annotated[
    str | Path | None,
    "Decide conflicts: ours, theirs, or a file of --conflicts, filled in.",
    "SIDE|FILE",
    {"type": str},
]
"""A conflict's side, `ours` or `theirs`, or a file of conflicts that was filled in."""
AllowDrift = Annotated[bool, "Accept rows that `snapshots.guard` would refuse."]
Violations = Annotated[
    str | Path | None, "Write the rows that break foreign keys to this file (.csv or .ndjson).", "FILE"
]
ForceOnCopy = Annotated[bool, "Write to the head of a copy, too."]
SystemTime = Annotated[Time | None, "System time of the run, for reproducible chains.", {"hidden": True}]
Since = Annotated[Time | None, "Bring only data that was recorded at this time or later."]
Last = Annotated[int | None, "Bring only the newest N slices of the data.", "N", {"least": 1}]
Parallel = Annotated[int | None, "Objects transferred at the same time.", "N", {"least": 1, "most": 100}]
BREAK_REFERENCES = "Go on even if rows refer to lost changes."
DRY_RUN = "Show the changes, and make none."
SHORTEST_GRACE = 600.0
"""The shortest grace period [s]: far longer than from storing the first object of a transaction to moving the
head, which is what it has to cover."""


def as_time(value: Time) -> Timestamp:
    """The moment that is meant."""
    if isinstance(value, Timestamp):
        return value
    if isinstance(value, dt.datetime):
        return Timestamp.from_datetime(value)
    if isinstance(value, dt.date):
        value = value.isoformat()
    return parse_time(value)


def maybe_time(value: Time | None) -> Timestamp | None:
    """The moment that is meant, if one is."""
    return None if value is None else as_time(value)


def paths(files: Paths) -> tuple[Path, ...]:
    """Files as a user names them."""
    several = (files,) if isinstance(files, str | Path) else files
    return tuple(Path(file) for file in several)


def as_block(value: Block) -> BlockName:
    """A block's hash or number, from what a user writes for it."""
    if not isinstance(value, str):
        return value
    if value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    try:
        return Multihash.parse(value)
    except InvalidIdError as error:
        raise UsageError(
            f"block {one_line(value)!r}: {error.message}",
            hint="a block is given by its hash or its sequence number; `odfchain log` lists them",
        ) from None


def takes(cls: Callable[P, T]) -> Callable[[Callable[[S, T], R]], Callable[Concatenate[S, P], R]]:
    """The method has the fields of a dataclass as its parameters, and gets the dataclass."""
    declared = inspect.signature(cls)

    def made(method: Callable[[S, T], R]) -> Callable[Concatenate[S, P], R]:
        own, _ = inspect.signature(method).parameters.values()

        @functools.wraps(method)
        def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            _refuse_unknown(kwargs, declared.parameters)
            return method(self, cls(*args, **kwargs))

        called.__signature__ = inspect.signature(method).replace(  # type: ignore[attr-defined]
            parameters=[own, *declared.parameters.values()]
        )
        return called

    return made


def _refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {close[0]!r}?)" if close else ""
            raise TypeError(f"unexpected keyword argument {name!r}{meant}")


def member(kind: type[E], name: str, value: str | None, default: E) -> E:
    """The member of an enumeration that an option of this name means; `UsageError` where there is none."""
    try:
        return default if value is None else kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
        raise UsageError(f"{name}: {one_line(str(value))!r} is not one of {known}") from None


def given_options(options: object, of: type[Any]) -> list[str]:
    """The names of the options that are not as they are by default, of those that a class has."""
    return [each.name for each in fields(of) if each.compare and getattr(options, each.name) != each.default]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What takes a while."""

    progress: Progress = field(default=SILENT, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Watched):
    """How far a verification of one dataset goes; checks 4 to 15 are about the blocks that are asked for."""

    replay: Annotated[bool, "Compute the transactions of derivative datasets again, and compare."] = False
    require_signature: Annotated[bool, "An unsigned head is a fault, not only a note."] = False
    profiles: Annotated[bool, "Compute the signed profiles of its blocks again."] = False
    trusted_by: Annotated[
        int, "With --replay: leave out datasets that N trusted auditors have replayed.", "N", {"least": 0}
    ] = 0
    jobs: Annotated[int, "Slices read, or transactions replayed, side by side.", {"least": 1}] = 2
    after: Annotated[
        BlockName | None,
        "Check the blocks after this one (hash or number).",
        "--from",
        "BLOCK",
        {"type": as_block},
    ] = None
    upto: Annotated[
        BlockName | None, "Check the blocks up to this one.", "--to", "BLOCK", {"type": as_block}
    ] = None
    last: Annotated[int | None, "Check the N newest blocks alone.", "N", {"least": 1}] = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.last is None:
            return
        if self.last < 1:
            raise UsageError(f"the number of newest blocks is at least 1, not {self.last}")
        if self.after is not None or self.upto is not None:
            raise UsageError("the newest blocks are a range: without another one")
        if self.replay:
            raise UsageError("a replay reads the whole chain; without one the newest blocks alone are read")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(CheckOptions):
    """How far a verification of several datasets goes."""

    recursive: Annotated[bool, "Verify the inputs of the datasets first.", "-r"] = False


@dataclass(frozen=True)
class VerifyRemote(VerifyOptions):
    """A verification of a dataset elsewhere, for which the token is."""

    source: str
    token: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Attest(VerifyOptions):
    """A verification whose outcome is signed."""

    key_file: str | Path
    faulty: bool = field(default=False, kw_only=True)
    now: Time | None = field(default=None, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class GcOptions:
    """How to collect garbage."""

    dry_run: Annotated[bool, DRY_RUN] = False
    grace: Annotated[
        float,
        "Keep files written or used in this time; at least 10m, for datasets in a store 1h.",
        {"default": "24h"},
    ] = 24 * 3600.0
    """[s]"""
    drop_refs: Annotated[bool, "Give up overwritten, reset and compacted heads older than the grace."] = False
    break_references: Annotated[bool, BREAK_REFERENCES] = False
    """Remove also changes that foreign keys name."""

    def __post_init__(self) -> None:
        """Refuse what would endanger running transactions."""
        if not self.grace >= SHORTEST_GRACE:
            raise UsageError(
                f"a grace period of {self.grace:g} seconds is too short for what other processes are writing",
                hint=f"the shortest one is {SHORTEST_GRACE:g} seconds",
            )


@dataclass(frozen=True, kw_only=True)
class PushOptions(Watched):
    """Where to push, and how; the token is for a place that is named."""

    target: str | None = field(default=None, kw_only=False)
    token: str | None = None
    force: Annotated[bool, "Replace blocks of the destination that are not here."] = False
    create: Annotated[bool, "Only update a dataset that is at the destination already.", "--no-create"] = True
    merged: Annotated[bool, "Leave out merged branches; no merge can then be checked.", "--no-merged"] = True
    public: bool = False
    """True if a dataset that a push makes at a node is readable by everybody."""
    parallel: Parallel = None
    """None is what the settings say."""

    @property
    def at_once(self) -> int:
        """Objects that are sent at the same time [count]."""
        return self.parallel or SHARING.parallel


@dataclass(frozen=True, kw_only=True)
class MirrorOptions(Watched):
    """A copy of a dataset that slices are brought from, for which the token is, and which slices."""

    source: Annotated[str | None, "Any copy of the dataset; it need not be trusted.", "--from", "URL"] = (
        field(default=None, kw_only=False)
    )
    since: Since = None
    last: Last = None
    where: Annotated[str | None, "Leave out slices without a record for which this is true.", "SQL"] = None
    parallel: Parallel = None
    token: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Watched):
    """Options of a profile."""

    stage: Annotated[str | None, "The stage in a pipeline: raw, cleaned, featurized, …", "TEXT"] = None
    """Roots are `raw` unless it is said."""
    description: Annotated[str | None, "The changes since the parent.", "--describe", "TEXT"] = None
    tags: Annotated[Mapping[str, str] | None, "A label; can be repeated.", "--tag", "KEY=VALUE"] = None
    hide: Annotated[Iterable[str], "Say only counts of this column; can be repeated.", "COLUMN"] = ()
    near_duplicates: Annotated[bool, "Look for near duplicates among more than 262,144 rows, too."] = False
    languages: Annotated[bool, "Do not tell the languages of texts.", "--no-languages"] = True
    created_by: str | None = None

    def __post_init__(self) -> None:
        """Keep what can be iterated once only."""
        object.__setattr__(self, "hide", tuple(self.hide))


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Watched):
    """An export in a format to a folder."""

    format: str = field(kw_only=False)
    to: str | Path = field(kw_only=False)
    rows: Annotated[str, "All records, or the rows in force.", {"choices": ["records", "state"]}] = "records"
    catalog: Annotated[str | None, "Register an Iceberg table in this catalog of PyIceberg's.", "NAME"] = None
    """None is one in the folder."""
    force: Annotated[bool, "Start an export anew that cannot be continued."] = False


@dataclass(frozen=True, kw_only=True)
class CommitOptions(Watched):
    """What is checked of rows before they are recorded."""

    allow_drift: AllowDrift = False
    violations: Violations = None


@dataclass(frozen=True, kw_only=True)
class RecordOptions(CommitOptions):
    """How rows come into a root dataset; what is not said is as the workspace's settings have it."""

    allow_empty: Annotated[bool, "Accept an empty snapshot (it retracts everything)."] = False
    allow_retract: Annotated[bool, "Accept a snapshot that retracts most of the records."] = False
    max_retract_ratio: float | None = None
    """Largest share [0 to 1] of the recorded keys that a snapshot may retract."""
    late_edits: Annotated[
        str | None,
        "The treatment of a ledger's known keys that come with other values (by default they are ignored).",
        {"choices": ["ignore", "warn", "refuse", "correct"]},
    ] = None
    duplicate_keys: Annotated[
        str | None,
        "The treatment of rows of one input that have one key and other values.",
        {"choices": ["refuse", "first", "last"]},
    ] = None
    allow_future: Annotated[bool, "Accept rows and watermarks far in the future."] = False
    retries: int | None = None
    """Runs repeated when another writer was faster [count]."""
    system_time: SystemTime = None


@dataclass(frozen=True, kw_only=True)
class PushedOptions(RecordOptions):
    """How rows that are pushed come into a dataset."""

    source_name: Annotated[
        str | None, "The push source, if there are several.", "--source", "NAME", {"also": "--source-name"}
    ] = None
    event_time: Annotated[Time | None, "Event time of rows without one."] = None


@dataclass(frozen=True, kw_only=True)
class FileOptions(PushedOptions):
    """Files whose rows are pushed, or one binary stream."""

    files: Paths | BinaryIO = field(kw_only=False)
    input_format: Annotated[str | None, "Format, if it is not the source's.", {"choices": FILE_FORMATS}] = (
        None
    )
    again: Annotated[bool, "Append files that were ingested already once more."] = False


@dataclass(frozen=True, kw_only=True)
class FrameOptions(PushedOptions):
    """A frame whose rows are pushed."""

    frame: Any = field(kw_only=False)
    batch: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ImportOptions(RecordOptions):
    """A file that becomes a dataset."""

    path: str | Path = field(kw_only=False)
    name: Annotated[str | None, "Name of the dataset, in place of the file's.", "--as", "NAME"] = None
    key: Annotated[str | Sequence[str], "Column of the primary key; can be repeated.", "COLUMN"] = ()
    event_time: Annotated[str | None, "Column with the time of the event.", "COLUMN"] = None
    merge: Annotated[
        str | None,
        "The merge of later files: snapshot (all rows) if there is a key, else append (new rows); or ledger.",
        {"choices": ["snapshot", "ledger", "append"]},
    ] = None
    input_format: Annotated[str | None, "Format, if the name does not say it.", {"choices": FILE_FORMATS}] = (
        None
    )
    separator: Annotated[str | None, "Of CSV: one character, or tab, if not seen in the header.", "C"] = None
    encoding: Annotated[str | None, "Of CSV, if not UTF-8, such as windows-1252.", "NAME"] = None
    force: Annotated[bool, "Replace a manifest that is there."] = False
    on_inferred: Callable[[Any], None] | None = None


@dataclass(frozen=True, kw_only=True)
class SourceOptions(RecordOptions):
    """How a polling source is asked."""

    fetch_uncacheable: Annotated[bool, "Pull even if recorded rows may come again."] = False
    allow_commands: Annotated[bool, "Run the commands that prepare steps name."] = False
    variables: Annotated[
        Mapping[str, str] | None, "Value for ${{ env.NAME }}.", "-e", "--env", "NAME=VALUE"
    ] = None


@dataclass(frozen=True, kw_only=True)
class InputsOptions(Watched):
    """How a derivative dataset is brought up to date with its inputs."""

    reset_derivatives_on_diverged_input: Annotated[
        bool, "Compute derivative datasets anew when an input was rewritten."
    ] = False
    timeout: Annotated[float | None, "Longest time for one step of a derivative dataset, such as 10m."] = None
    """[s]"""


@dataclass(frozen=True, kw_only=True)
class CopyOptions(Watched):
    """How a copy of a dataset elsewhere is brought here."""

    force: Annotated[bool, "Replace a copy that has other blocks than its peer."] = False
    metadata_only: Annotated[bool, "Bring the chain of a dataset, and none of its data."] = False
    since: Since = None
    last: Last = None
    parallel: Parallel = None
    require_signature: Annotated[
        bool | None,
        "Refuse a head that its owner has not signed, now and from now on.",
        "--require-signature/--no-require-signature",
        {"default": None},
    ] = None
    """False gives that up."""
    max_age: Annotated[float | None, "Refuse older signatures, such as 7d, now and from now on."] = None
    """[s]"""
    witnesses: Annotated[
        str | None, "Refuse a head that too few witnesses of FILE have cosigned, now and from now on.", "FILE"
    ] = None
    accept_successor: Annotated[bool, "Believe a succession of keys that was not announced before."] = False


@dataclass(frozen=True, kw_only=True)
class PullOptions(SourceOptions, InputsOptions, CopyOptions):
    """All of a pull. What is for another way than the dataset's is refused."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How datasets are published; None is as if it were not said."""

    host: str | None = None
    """The address to listen on."""
    port: int | None = None
    """0 is any that is free."""
    listening: Callable[[str], None] | None = None
    """Called with the URL."""
    on_request: Callable[[str], None] | None = None
    """Called with a line for each request."""
    on_problem: Callable[[str], None] | None = None
    """Called with a line for each error of the server."""
    branches: bool | Sequence[str] | None = None
    """Branches that are published with the heads: all, or those of these names."""
    write: Annotated[bool | None, "Accept pushes with a token (odfchain token)."] = None
    restrict_reading: Annotated[bool | None, "Show a dataset only to readers with a token for it."] = None
    behind_proxy: Annotated[
        bool | None, "A proxy with TLS is in front, whose X-Forwarded fields are believed."
    ] = None
    allow_hosts: Annotated[
        Sequence[str] | None,
        "Answer requests for this host, too (share.hosts); otherwise only the address and localhost.",
        "--allow-host",
        "NAME",
    ] = None


@dataclass(frozen=True, kw_only=True)
class NodeOptions(ServeOptions):
    """What a node offers beside files; None is as if it were not said."""

    pages: Annotated[bool, "Show no pages, but files and what programs ask.", "--no-pages"] = True
    sql: Annotated[bool | None, "Answer SQL of others, each query in a process behind walls."] = None
    walled: Annotated[bool | None, "--sql, but never without walls.", "--sql-walled"] = None
    flight: Annotated[
        int | None, "Answer Arrow Flight SQL on this port.", "PORT", {"least": 0, "most": 65_535}
    ] = None
    pull: Annotated[bool | None, "Pull datasets by their schedules (pull.every)."] = None
    workers: Annotated[int | None, "Processes that serve readers.", "N", {"least": 1, "most": 64}] = None
    metrics_by_dataset: Annotated[bool | None, "Name datasets in /-/metrics."] = None
    log_json: Annotated[bool | None, "Print a line of JSON for each request, to standard error."] = None
    secret: str | None = None
    """The text that opens a node of one user, once."""


@dataclass(frozen=True, kw_only=True)
class MergeOptions(CommitOptions):
    """A merge of a branch of this name, or of a plan (`MergePlan`)."""

    source: Any = field(kw_only=False)
    dry_run: Annotated[bool, DRY_RUN] = False
    fast_forward: Annotated[bool, "Move to the branch's block instead, if that is ahead.", "--ff"] = False
    by_row: Annotated[bool, "Merge no cells: other rows of one key conflict.", "--rows"] = False
    resolve: Resolve = None
    with_metadata: Annotated[bool, "Take over the branch's metadata, too."] = False
    message: Annotated[str, "Why; recorded with the merge.", "TEXT"] = ""
    force: Annotated[bool, "Merge into the head of a copy, and go another way from there."] = False


@dataclass(frozen=True, kw_only=True)
class CorrectOptions(CommitOptions):
    """Files of keys and the columns to change, and how that is recorded."""

    files: Paths = field(default=(), kw_only=False)
    remove: Annotated[Paths, "Retract the rows whose keys a file lists; can be repeated.", "FILE"] = ()
    allow_new: Annotated[bool, "Add the rows whose keys are not recorded yet."] = False
    input_format: Annotated[
        str | None, "Format of files whose names do not say it.", {"choices": ["csv", "ndjson", "parquet"]}
    ] = None
    allow_future: Annotated[bool, "Accept event times far in the future."] = False
    force: ForceOnCopy = False
    system_time: SystemTime = None

    def __post_init__(self) -> None:
        """Keep what can be iterated once only."""
        object.__setattr__(self, "files", paths(self.files))
        object.__setattr__(self, "remove", paths(self.remove))


@dataclass(frozen=True, kw_only=True)
class RevertOptions(CommitOptions):
    """A block whose changes are taken back, and how."""

    block: AnyPoint = field(kw_only=False)
    resolve: Resolve = None
    message: Annotated[str, "Why; recorded with the block.", "TEXT"] = ""
    force: ForceOnCopy = False
    system_time: SystemTime = None


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """A query, and how it is answered."""

    query: str = field(kw_only=False)
    engine: Annotated[str, "Spark is for large data.", {"choices": ["datafusion", "spark"]}] = "datafusion"
    """`datafusion` needs no Java."""
    as_at: Annotated[Time | None, "The system time of every name without a point.", "TIME", {"type": str}] = (
        None
    )
    params: Annotated[
        Mapping[str, Any] | None,
        "The value of $NAME; a text if no type is given.",
        "--param",
        "NAME[:TYPE]=VALUE",
    ] = None
    limit: Annotated[int | None, "The largest number of rows.", "N", {"least": 0}] = None
    seconds: Annotated[float | None, "Longest time for the query, like 30s.", "--timeout"] = None
    """None is as long as it needs."""
    memory: Annotated[int | None, "The most memory for rows of the query, like 2g.", {"type": "size"}] = None
    """[bytes]"""


@dataclass(frozen=True, kw_only=True)
class ProofOptions(QueryOptions):
    """A query that is answered with a signature; its limit is 100 rows unless another is given."""

    skip: int | None = None
    """Rows that are left out before."""
    data_format: str | None = None
    """`JsonAoS` (rows as objects), `JsonSoA` (columns as lists) or `JsonAoA` (rows as lists)."""
    schema_format: str | None = None
    """`ArrowJson`: the answer says the types of its columns."""
