"""What several commands share: the workspace, completion of names, confirmation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.main import Globals
from odfchain.cli.screen import ask, echo, is_somebody_there
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain.api import Workspace
    from odfchain.model.timestamp import Timestamp

_Command = TypeVar("_Command", bound=Callable[..., Any])


def options() -> Globals:
    """The global options of the running command."""
    found = click.get_current_context().find_object(Globals)
    assert found is not None  # noqa: S101 - set by the group
    return found


def open_workspace() -> Workspace:
    """The workspace that is meant.

    Raises:
        NotAWorkspaceError: there is none.
    """
    from odfchain.api import Workspace

    workspace = Workspace.find(Path(options().workspace or "."))
    _close_to_others(workspace.path / "config.yaml")
    return workspace


def _close_to_others(path: Path) -> None:
    """Settings may hold secrets; earlier versions made the file for everybody to read."""
    try:
        mode = path.stat().st_mode & 0o777
        if not mode & 0o007:
            return
        path.chmod(0o600)
    except OSError:  # none, or somebody else's: what needs it says so
        return
    if not options().quiet:
        echo(f"note: {path} could be read by everybody; its mode is 0600 now", err=True)


class DatasetParam(click.ParamType[str]):
    """A dataset reference; completes the names of the workspace's datasets."""

    name = "dataset"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from odfchain.api import Workspace

        del param
        try:
            folder = ctx.find_root().params.get("workspace") or "."
            aliases = [str(d.alias) for d in Workspace.find(folder).datasets()]
        except OdfchainError:
            return []
        return [CompletionItem(a) for a in aliases if a.lower().startswith(incomplete.lower())]


DATASET = DatasetParam()


def merge_options(command: _Command) -> _Command:
    """The options of commands that ingest: `allow_…`, `late_edits`, `duplicate_keys`."""
    for option in reversed(
        (
            click.option(
                "--allow-empty", is_flag=True, help="Accept an empty snapshot (it retracts everything)."
            ),
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
            click.option(
                "--allow-future", is_flag=True, help="Accept rows and watermarks far in the future."
            ),
        )
    ):
        command = option(command)
    return command


_LONGEST_MS = 36_525 * 86_400_000


class DurationParam(click.ParamType[float]):
    """A length of time such as `60s`, `5m`, `1h`; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from odfchain.model.duration import Duration

        try:
            milliseconds = Duration.parse(str(value)).milliseconds
        except OdfchainError:
            milliseconds = 0
        if milliseconds == 0:
            self.fail(f"{value!r} is not a length of time like 60s, 5m or 1h", param, ctx)
        if milliseconds > _LONGEST_MS:
            self.fail(f"{value!r} is longer than a hundred years", param, ctx)
        return milliseconds / 1_000


class TimestampParam(click.ParamType[Any]):
    """A time in RFC 3339, a date (midnight UTC), or `now`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Timestamp:
        from odfchain.model.timestamp import Timestamp

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


def confirm(question: str) -> None:
    """Ask before something that cannot be undone.

    Raises:
        UsageError: the answer is no, or nobody can be asked.
    """
    if options().yes:
        return
    if not is_somebody_there():
        raise UsageError(f"{question} nobody is there to answer", hint="use -y to say yes")
    if not ask(question):
        raise UsageError("not confirmed; nothing was changed")
