"""Arguments and options that several commands have: their types, their completion, their help."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.context import INTEGRITY_FAULT, UNCHECKED, open_workspace, options, silence_libraries
from odfchain.cli.screen import echo
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain import PeerUrl, Report, Timestamp, Workspace
    from odfchain.api.options import VerifyKeywords


_Command = TypeVar("_Command", bound=Callable[..., Any])


class NameParam(click.ParamType[str]):
    """A name or reference; completes the names that the workspace knows."""

    def __init__(self, name: str, names: Callable[[Workspace], Iterable[object]]) -> None:
        self.name = name
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from odfchain import Workspace

        del param
        try:
            workspace = Workspace.open(ctx.find_root().params.get("workspace") or ".")
            names = list(map(str, self._names(workspace)))
        except OdfchainError:
            return []
        return _completed(names, incomplete)


class PointParam(NameParam):
    """A dataset, or one as of a point; completes names, and the branches of a dataset behind its `@`."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        name, at, _ = incomplete.partition("@")
        if not at:
            return super().shell_complete(ctx, param, incomplete)
        return _completed((f"{name}@{reference}" for reference in references_of(ctx, name)), incomplete)


class BranchParam(click.ParamType[str]):
    """A branch of the dataset that an argument before it names; completes their names."""

    name = "branch"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        del param
        return _completed(references_of(ctx, _named_before(ctx))[1:], incomplete)


class DatasetsParam(NameParam):
    """One of several datasets before a branch of theirs; completes both, once a dataset is named."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        branches = _completed(references_of(ctx, _named_before(ctx))[1:], incomplete)
        return [*branches, *super().shell_complete(ctx, param, incomplete)]


def _named_before(ctx: click.Context) -> str:
    # of `DATASET… BRANCH` a single argument is parsed as the branch
    given = [ctx.params.get(name) for name in ("dataset", "datasets", "branch")]
    found = next((value for value in (*given, *ctx.args) if value), "")  # args: before an option's value
    return (found if isinstance(found, str) else str(found[0])).partition("@")[0]


def references_of(ctx: click.Context, dataset: str) -> list[str]:
    """A dataset's head and branches by name, for completion: none where it cannot be read."""
    from odfchain import Workspace

    try:
        workspace = Workspace.open(ctx.find_root().params.get("workspace") or ".")
        return ["head", *workspace[dataset].branch_names]
    except OdfchainError:
        return []


def _completed(names: Iterable[str], incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


DATASET = NameParam("dataset", lambda workspace: (dataset.alias for dataset in workspace))
DATASETS = DatasetsParam("dataset", lambda workspace: (dataset.alias for dataset in workspace))
DATASET_AT = PointParam("dataset", lambda workspace: (dataset.alias for dataset in workspace))
BRANCH = BranchParam()
TOKEN = NameParam("token", lambda workspace: (token.name for token in workspace.tokens()))
REPOSITORY = NameParam("repository", lambda workspace: (r.name for r in workspace.repositories.list()))


def given(**chosen: Any) -> Any:
    """The options that say something, as keywords of the API."""
    return {name: value for name, value in chosen.items() if value is not None and value is not False}


_LONGEST_MS = 36_525 * 86_400_000


class DurationParam(click.ParamType[float]):
    """A length of time such as `60s`, `5m`, `1h`; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from odfchain import Duration

        try:
            milliseconds = Duration.parse(str(value)).milliseconds
        except OdfchainError:
            milliseconds = 0
        if milliseconds == 0:
            self.fail(f"{value!r} is not a length of time like 60s, 5m or 1h", param, ctx)
        if milliseconds > _LONGEST_MS:
            self.fail(f"{value!r} is longer than a hundred years", param, ctx)
        return milliseconds / 1_000


_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


class SizeParam(click.ParamType[int]):
    """A number of bytes such as `500m` or `2g`, in powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(str(value).strip())
        size = int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ") if found else 0
        if not 0 < size < 1 << 62:
            self.fail(f"{value!r} is not a size like 500m or 2g", param, ctx)
        return size


class TimestampParam(click.ParamType[Any]):
    """A time in RFC 3339, a date (midnight UTC), or `now`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Timestamp:
        from odfchain import Timestamp

        if isinstance(value, Timestamp):
            return value
        text = str(value)
        if text == "now":
            return Timestamp.now()
        try:
            return Timestamp.parse(f"{text}T00:00:00Z" if len(text) == 10 else text)
        except OdfchainError as error:
            self.fail(f"{error} ({error.hint})" if error.hint else str(error), param, ctx)


TIMESTAMP = TimestampParam()
FORMATS = ("csv", "json", "ndjson", "geojson", "ndgeojson", "shapefile", "parquet")
"""Of files; the keys of `INPUT_FORMATS`, without loading what reads them."""


DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; nothing is changed.")

BREAK_REFERENCES = click.option(
    "--break-references", is_flag=True, help="Go on also if rows refer to what is lost by it."
)


def key_values(texts: Iterable[str]) -> dict[str, str]:
    """The values of a key that is named column by column, like `iata=ZRH`.

    Raises:
        UsageError: a text is no such thing, or a column is named twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not COL=VALUE", hint="write iata=ZRH")
        if name in found:
            raise UsageError(f"column {name} is given twice")
        found[name] = value
    return found


def together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Several options as one decorator, in this order."""

    def decorated(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


commit_options = together(
    click.option("--allow-drift", is_flag=True, help="Accept rows that `snapshots.guard` would refuse."),
    click.option(
        "--violations",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the rows that break foreign keys to this file (.csv or .ndjson).",
    ),
)
"""The options of commands that record rows."""
merge_options = together(
    click.option("--allow-empty", is_flag=True, help="Accept an empty snapshot (it retracts everything)."),
    click.option(
        "--allow-retract", is_flag=True, help="Accept a snapshot that retracts most of the records."
    ),
    click.option(
        "--late-edits",
        type=click.Choice(["ignore", "warn", "refuse", "correct"]),
        help="What to do with a ledger's known keys that come with other values.",
    ),
    click.option(
        "--duplicate-keys",
        type=click.Choice(["refuse", "first", "last"]),
        help="What to do with rows of one input that have one key and other values.",
    ),
    click.option("--allow-future", is_flag=True, help="Accept rows and watermarks far in the future."),
    commit_options,
)
"""The options of commands that ingest."""

PARALLEL_OPTION = click.option(
    "--parallel", type=click.IntRange(1, 100), metavar="N", help="Objects transferred at the same time."
)
part_options = together(
    click.option(
        "--since", type=TIMESTAMP, help="Of the data, bring only what was recorded at this time or later."
    ),
    click.option(
        "--last", type=click.IntRange(min=1), metavar="N", help="Of the data, bring only the newest N slices."
    ),
)
"""The options that choose the newest part of a dataset."""


# The options of commands that verify, and the exit codes of what they find.

verify_options = together(
    click.option(
        "--replay", is_flag=True, help="Compute the transactions of derivative datasets again, and compare."
    ),
    click.option("--integrity", is_flag=True, help="Compute nothing again (the default)."),
    click.option("--recursive", is_flag=True, help="Verify what the datasets come from first."),
    click.option("--require-signature", is_flag=True, help="An unsigned head is a fault, not only a note."),
    click.option("--profiles", is_flag=True, help="Compute the signed profiles of its blocks again."),
    click.option(
        "--trusted-by",
        default=0,
        metavar="N",
        type=click.IntRange(min=0),
        help="With --replay: leave out what N auditors whom the settings trust have replayed.",
    ),
    click.option(
        "--jobs",
        default=2,
        show_default=True,
        type=click.IntRange(min=1),
        help="Slices read, or transactions replayed, side by side.",
    ),
)
"""The options of every command that verifies."""


def chosen_checks(*, replay: bool, integrity: bool, **others: Any) -> VerifyKeywords:
    """The selected checks.

    Raises:
        UsageError: they contradict each other.
    """
    if replay and integrity:
        raise UsageError("--integrity and --replay exclude each other")
    if replay and not options().debug:
        silence_libraries()
    return {"replay": replay, **others}  # type: ignore[typeddict-item]  # the names of the options


def exit_code_of(reports: Iterable[Report]) -> int:
    """The exit code of the verdicts: that of the worst one."""
    verdicts = {report.verdict for report in reports}
    return INTEGRITY_FAULT if "faulty" in verdicts else UNCHECKED if "incomplete" in verdicts else 0


# Options for remote places: the token, and requirements on signatures.


def token_for(urls: Iterable[PeerUrl]) -> str | None:
    """The token for the places that the command line names; None when there is none."""
    from odfchain.api import pushing

    found = pushing.token_for(urls)
    for host in found.readable if found else ():
        said = (
            f"warning: {pushing.VARIABLE} goes to {host} over plain http: "
            "anyone on the network path can read it"
        )
        echo(said, err=True)
    return found.token if found else None


def peer_url(place: str) -> PeerUrl:
    """The place that a URL or the name of a repository means."""
    from odfchain.transfer.repositories import parse_peer_url

    if "://" in place:
        return parse_peer_url(place)
    return open_workspace().repository_url(place)
