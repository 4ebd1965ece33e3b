"""`odfchain add`: datasets from manifests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from odfchain.cli.support.consent import ask_for_effects
from odfchain.cli.support.context import open_workspace, options
from odfchain.cli.support.faults import report_error
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo, standard_input
from odfchain.errors import (
    AppendError,
    ManifestError,
    OdfchainError,
    QueryError,
    SchemaError,
    TransformError,
    UsageError,
    was_interrupted,
)
from odfchain.limits import LIMITS

if TYPE_CHECKING:
    from odfchain import Dataset, DatasetAlias, DatasetSnapshot, StateChange, Workspace


@click.command("add")
@click.argument("manifests", nargs=-1, type=click.Path(path_type=Path))
@click.option("-r", "--recursive", is_flag=True, help="Take the manifests below the given folders.")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read manifests from standard input, as `-` does.")
@click.option("--name", metavar="NAME", help="Name of the dataset, instead of the one in the manifest.")
@click.option(
    "--update", is_flag=True, help="Of datasets that exist, record what the manifest says differently."
)
@click.option("--allow-commands", is_flag=True, help="Accept commands and container images.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="HOST", help="Accept variables being sent to this host."
)
@click.option(
    "--rebuild", is_flag=True, help="With --update: compute the query of the manifest over everything."
)
@click.option(
    "--from-now",
    is_flag=True,
    help="With --update: finish what the old query can, and begin the new one with the rows that come next.",
)
@click.option(
    "--drop-constraints",
    is_flag=True,
    help="With --update: accept attachments without the CONSTRAINTS.yaml that is in force.",
)
@click.option(
    "--no-check", is_flag=True, help="Do not start Spark to check queries: the first pull finds their faults."
)
@click.option(
    "--system-columns",
    type=click.Choice(["specification", "reference"]),
    help="Types of offsets and operations in new datasets; reference: what the reference node can append to.",
)
def add_command(
    manifests: tuple[Path, ...],
    recursive: bool,
    from_stdin: bool,
    name: str | None,
    update: bool,
    allow_commands: bool,
    hosts: tuple[str, ...],
    rebuild: bool,
    from_now: bool,
    drop_constraints: bool,
    no_check: bool,
    system_columns: str | None,
) -> int:  # fmt: skip
    """Make datasets from manifests (YAML or JSON): DatasetSnapshot, or Dataset of ODF 0.39.

    All manifests are checked before the first dataset is made; a dataset appears complete or not at all. With
    --update, datasets that exist get a new query (or source, or description): what differs is recorded, and
    what the manifest does not mention stays. A query that remembers something (open windows, running totals)
    is changed with --rebuild or --from-now only.

    A manifest that runs commands or containers, or sends variables to a host, is shown and asked about first.
    """
    state = _state_change(rebuild=rebuild, from_now=from_now, update=update)
    if drop_constraints and not update:
        raise UsageError("--drop-constraints says how a dataset is changed: add --update")
    found = _read_manifests(manifests, recursive=recursive, from_stdin=from_stdin)
    if name is not None and len(found) != 1:
        raise UsageError(f"--name names one dataset, the manifests define {len(found)}")
    from odfchain import DatasetAlias

    alias = DatasetAlias.parse(name) if name is not None else None
    with open_workspace() as workspace:
        ask_for_effects(found, workspace, allow_commands=allow_commands, hosts=hosts)
        with TerminalProgress(quiet=options().quiet) as progress:
            adding = _Adding(workspace, progress, found, alias, system_columns, state, drop_constraints)
            return adding.run(update=update, check=not no_check)


def _state_change(*, rebuild: bool, from_now: bool, update: bool) -> StateChange | None:
    if not rebuild and not from_now:
        return None
    if rebuild and from_now:
        raise UsageError("--rebuild and --from-now exclude each other")
    if not update:
        raise UsageError(
            f"--{'rebuild' if rebuild else 'from-now'} says how a query is changed: add --update"
        )
    from odfchain import StateChange

    return StateChange.REBUILD if rebuild else StateChange.FROM_NOW


def _read_manifests(
    paths: tuple[Path, ...], *, recursive: bool, from_stdin: bool
) -> list[tuple[str, DatasetSnapshot]]:
    """(where it was read, the definition) of every dataset; what is not made or not kept is said."""
    from odfchain.api.manifests import read_given

    from_stdin, paths = from_stdin or _STDIN in paths, tuple(path for path in paths if path != _STDIN)
    if bool(paths) == from_stdin:
        raise UsageError("name manifest files or use --stdin")
    for path in paths:
        if path.is_dir() and not recursive:
            raise UsageError(f"{path} is a folder", hint="use -r to take the manifests in it")
        if not path.exists():
            is_url = path.parts[0] in ("http:", "https:")
            hint = "`add` reads files: download it, and add the file" if is_url else None
            raise UsageError(f"{path}: no such file", hint=hint)
    if from_stdin:
        given = read_given(standard_input().read(LIMITS.manifest_bytes + 1), "<stdin>")
    else:
        given = read_given(paths)
    given.say(TerminalProgress(quiet=options().quiet).note)
    return given.found


@dataclass(frozen=True, slots=True)
class _Adding:
    """One run of `add`; every method returns an exit code, faults are on the screen."""

    workspace: Workspace
    progress: TerminalProgress
    found: list[tuple[str, DatasetSnapshot]]
    alias: DatasetAlias | None
    system_columns: str | None
    state: StateChange | None
    drop_constraints: bool

    def run(self, *, update: bool, check: bool) -> int:
        from odfchain.api.manifests import check_free, in_creation_order

        known = {dataset.alias for dataset in self.workspace}
        snapshots = in_creation_order(snapshot for _, snapshot in self.found)
        if not update:
            check_free((self.alias or s.name for s in snapshots), known)
        new = [s for s in snapshots if (self.alias or s.name) not in known]
        if code := self._each(new, lambda s: self._check(s, snapshots, queries=check)):
            return code
        if not update:
            return self._each(snapshots, self._create)
        return self._each(snapshots, lambda s: self._create(s) if s in new else self._update(s, check=check))

    def _each(self, snapshots: list[DatasetSnapshot], work: Callable[[DatasetSnapshot], None]) -> int:

        code = 0
        for snapshot in snapshots:
            source = next(source for source, found in self.found if found is snapshot)
            try:
                work(snapshot)
            except ManifestError as error:
                self.progress.stop()
                report_error(error.located(source=source))
                code = error.exit_code
            except OdfchainError as error:
                if was_interrupted(error):
                    raise KeyboardInterrupt from error
                self.progress.stop()
                report_error(error, about=source if isinstance(error, _WITHOUT_PLACE) else "")
                code = error.exit_code
        return code

    def _check(self, snapshot: DatasetSnapshot, among: list[DatasetSnapshot], *, queries: bool) -> None:
        self.workspace.check(snapshot, among=among, queries=queries, progress=self.progress)

    def _create(self, snapshot: DatasetSnapshot) -> None:
        from odfchain import SystemColumns

        chosen = SystemColumns(self.system_columns) if self.system_columns else None
        dataset = self.workspace.create(snapshot, alias=self.alias, check=False, system_columns=chosen)
        self._say(f"added {dataset.alias} ({dataset.kind.value.lower()}){_engine_note(dataset, snapshot)}")

    def _update(self, snapshot: DatasetSnapshot, *, check: bool) -> None:
        before = self.workspace[self.alias or snapshot.name].watermark_rules
        dataset, events = self.workspace.update(
            snapshot, alias=self.alias, check=check, state=self.state,
            drop_constraints=self.drop_constraints, progress=self.progress,
        )  # fmt: skip
        kinds = list(dict.fromkeys(event.KIND for event in events))
        kinds += ["watermark"] if dataset.watermark_rules != before else []
        self._say(
            f"updated {dataset.alias} ({', '.join(kinds)})" if kinds else f"{dataset.alias} is up to date"
        )

    def _say(self, text: str) -> None:
        self.progress.stop()
        if not options().quiet:
            echo(text, err=True)


def _engine_note(dataset: Dataset, snapshot: DatasetSnapshot) -> str:
    """That a transform is recorded for another engine than the manifest says."""
    from odfchain import SetTransform

    given = [e.transform.engine for e in snapshot.metadata if isinstance(e, SetTransform)]
    transform = dataset.summary.transform if given else None
    if transform is None or transform.transform.engine == given[-1]:
        return ""
    return f"; its engine `{given[-1]}` is recorded as {transform.transform.engine}"


_WITHOUT_PLACE = (AppendError, QueryError, SchemaError, TransformError)
"""Faults of what a manifest says, which do not say themselves where that was read."""

_STDIN = Path("-")
