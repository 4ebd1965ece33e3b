"""How methods take their options; and options that `odfchain.workspace.options` does not have, and their use.

`Annotated` is as there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypedDict, TypeVar

from odfchain.errors import UsageError
from odfchain.workspace.options import (
    AllowDrift,
    CommitOptions,
    Last,
    Parallel,
    Since,
    SystemTime,
    Time,
    Violations,
)

if TYPE_CHECKING:
    from odfchain.transfer.signed_statements import SignaturePolicy

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

FILE_FORMATS = ("csv", "json", "ndjson", "geojson", "ndgeojson", "shapefile", "parquet")
"""The keys of `INPUT_FORMATS`, without loading what reads them."""


class MergeKeywords(TypedDict, total=False):
    """How rows come into a root dataset; what is not said is as the workspace's settings have it."""

    allow_empty: Annotated[bool, "Accept an empty snapshot (it retracts everything)."]
    allow_retract: Annotated[bool, "Accept a snapshot that retracts most of the records."]
    max_retract_ratio: float
    """Largest share [0 to 1] of the recorded keys that a snapshot may retract."""
    late_edits: Annotated[
        str,
        "What to do with a ledger's known keys that come with other values.",
        {"choices": ["ignore", "warn", "refuse", "correct"]},
    ]
    duplicate_keys: Annotated[
        str,
        "What to do with rows of one input that have one key and other values.",
        {"choices": ["refuse", "first", "last"]},
    ]
    allow_future: Annotated[bool, "Accept rows and watermarks far in the future."]
    retries: int
    """Runs repeated when another writer was faster [count]."""
    system_time: SystemTime
    allow_drift: AllowDrift
    violations: Violations


class FrameKeywords(MergeKeywords, total=False):
    """How rows that are pushed come into a dataset."""

    source_name: Annotated[str, "Push source to use when there are several.", "NAME"]
    event_time: Annotated[Time, "Event time of rows that carry none."]


class IngestKeywords(FrameKeywords, total=False):
    """Options for reading files, and for merging their rows."""

    input_format: Annotated[
        str, "Format of the files, when it is not the source's.", {"choices": FILE_FORMATS}
    ]


class SourceKeywords(MergeKeywords, total=False):
    """How a polling source is asked."""

    fetch_uncacheable: Annotated[bool, "Pull even where rows that are recorded might come again."]
    allow_commands: Annotated[bool, "Run the commands that prepare steps name."]
    variables: Annotated[Mapping[str, str], "Value for ${{ env.NAME }}.", "-e", "--env", "NAME=VALUE"]


class TransformKeywords(TypedDict, total=False):
    """How a derivative dataset is brought up to date with its inputs."""

    reset_derivatives_on_diverged_input: Annotated[
        bool, "Compute derivative datasets anew when an input was rewritten."
    ]
    timeout: Annotated[float, "Longest time for one step of a derivative dataset, such as 10m."]
    """[s]"""


class PeerKeywords(TypedDict, total=False):
    """How a copy of a dataset elsewhere is brought here."""

    force: Annotated[bool, "Replace a copy that has other blocks than its peer."]
    metadata_only: Annotated[bool, "Bring the chain of a dataset, and none of its data."]
    since: Since
    last: Last
    parallel: Parallel
    require_signature: Annotated[
        bool,
        "Refuse a head that its owner has not signed, now and from now on.",
        "--require-signature/--no-require-signature",
        {"default": None},
    ]
    """False gives that up."""
    max_age: Annotated[float, "Refuse a head whose signature is older, such as 7d, now and from now on."]
    """[s]"""


class PullKeywords(SourceKeywords, TransformKeywords, PeerKeywords, total=False):
    """All of a pull. What is for another way than the dataset's is refused."""


# --- which keywords are for what ----------------------------------------------------------------------

_FOR_COPIES = frozenset(PeerKeywords.__annotations__) | {"name"}
_FOR_OTHERS = frozenset(SourceKeywords.__annotations__) | frozenset(TransformKeywords.__annotations__)


def check_pull_options(given: Mapping[str, str], *, copies: int, others: int) -> None:
    """Every option applies to at least one dataset of a pull; `given` says what the caller calls each.

    Raises:
        UsageError: one does not; the message names it.
    """
    for name, label in given.items():
        if name in _FOR_COPIES and not copies:
            raise UsageError(
                f"{label} applies only to datasets pulled from a URL", hint="name a URL or repository/dataset"
            )
        if name in _FOR_OTHERS and not others:
            raise UsageError(f"{label} applies only to datasets with a source or a query, not to copies")


class ServeKeywords(TypedDict, total=False):
    """How datasets are published."""

    host: str | None
    """The address to listen on."""
    port: int | None
    """0 is any that is free."""
    listening: Callable[[str], None] | None
    """Called with the URL."""
    on_request: Callable[[str], None] | None
    """Called with a line for each request."""
    on_problem: Callable[[str], None] | None
    """Called with a line for each error of the server."""
    branches: bool | Sequence[str] | None
    """Branches that are published with the heads: all, or those of these names."""
    write: Annotated[bool | None, "Let those push who have a token (odfchain token)."]
    restrict_reading: Annotated[bool | None, "Show datasets to those alone whose token is for them."]
    behind_proxy: Annotated[
        bool | None, "A proxy with TLS is in front, whose X-Forwarded fields are believed."
    ]
    allow_hosts: Annotated[
        Sequence[str] | None,
        "Answer those who ask for this host, too (share.hosts); else the address and localhost.",
        "--allow-host",
        "NAME",
    ]


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that a method does not have, as Python does where it can see them.

    Raises:
        TypeError: naming the first one.
    """
    for name in given:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {close[0]!r}?)" if close else ""
            raise TypeError(f"unexpected keyword argument {name!r}{meant}")


def takes(cls: Callable[P, T]) -> Callable[[Callable[[S, T], R]], Callable[Concatenate[S, P], R]]:
    """The method has the fields of a dataclass as its parameters, and gets the dataclass."""
    declared = inspect.signature(cls)

    def made(method: Callable[[S, T], R]) -> Callable[Concatenate[S, P], R]:
        own, _ = inspect.signature(method).parameters.values()

        @functools.wraps(method)
        def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            refuse_unknown(kwargs, declared.parameters)
            return method(self, cls(*args, **kwargs))

        called.__signature__ = inspect.signature(method).replace(  # type: ignore[attr-defined]
            parameters=[own, *declared.parameters.values()]
        )
        return called

    return made


# --- what the keywords become -------------------------------------------------------------------------


def commit_options(given: Mapping[str, Any]) -> CommitOptions:
    """Commit options: those of the given ones that are."""
    return CommitOptions(**{name: given[name] for name in ("allow_drift", "violations") if name in given})


def signature_policy(*, require: bool | None, max_age: float | None) -> SignaturePolicy | None:
    """The required signatures; None without an option.

    Raises:
        UsageError: the two contradict each other.
    """
    if require is None and max_age is None:
        return None
    if require is False and max_age is not None:
        raise UsageError("--max-age needs a signature, which --no-require-signature does without")
    from odfchain.transfer.signed_statements import SignaturePolicy

    return SignaturePolicy(require=require is not False, max_age=None if max_age is None else round(max_age))
