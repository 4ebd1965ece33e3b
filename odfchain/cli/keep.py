"""`odfchain config`: the settings of the workspace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import on_branch
from odfchain.cli import parameters as cli
from odfchain.cli.context import INTEGRITY_FAULT, confirm, open_workspace, report_error, say
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import echo, echo_json, echo_lines, print_records, record
from odfchain.errors import ChainError, OdfchainError, SetBackError, UsageError
from odfchain.text import counted, human_size
from odfchain.workspace.options import GcOptions

if TYPE_CHECKING:
    from odfchain import BatchLimits, Dataset, Multihash, Workspace
    from odfchain.api.settings import Configuration, DatasetConfiguration
    from odfchain.results import Collected, CompactPlan, Dependent, FsckReport, Remote, ResetPlan, SoftPlan


_GLOBAL = "odfchain.global"


class _Settings(cli.Group):
    """`config --global NAME [VALUE]…` shows a setting of the user, or adds to it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.meta.get(_GLOBAL) and "." in args[0]:
            args = ["add" if args[1:] else "get", *args]
        return super().resolve_command(ctx, args)


def _remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_GLOBAL] = True


_of_user = click.option(
    "--global",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="The settings of the user, for every workspace: safe.workspace.",
)


@cli.group("config", kind=_Settings)
@_of_user
def config_command() -> None:
    """Show and change the settings of the workspace.

    With --global the settings are those of the user. `odfchain config --global safe.workspace PATH` trusts a
    workspace that belongs to another user, or that others may write to. PATH/* means all workspaces below it,
    and * means every one. Without that such a workspace is refused, because its settings run programs.
    """


_OF_DATASET = cli.option("The setting of this dataset, in place of the workspace's.", type=cli.DATASET)


def _configuration() -> Configuration:
    from odfchain.api.settings import Configuration

    if click.get_current_context().meta.get(_GLOBAL):
        return Configuration.of_user()
    return Configuration(open_workspace().path)


def _of(dataset: str | None) -> Configuration | DatasetConfiguration:
    if dataset is None:
        return _configuration()
    if click.get_current_context().meta.get(_GLOBAL):
        raise UsageError("--global and --dataset contradict each other", hint="leave one of them out")
    from odfchain.api.settings import DatasetConfiguration

    return DatasetConfiguration.of(open_workspace()[dataset])


def _say(configuration: Configuration | DatasetConfiguration, name: str, done: str) -> None:
    say(f"{configuration.file}: {name} {done}")


@cli.command("list", config_command)
@_of_user
def config_list(dataset: str | None = _OF_DATASET, output: str = cli.formats()) -> None:
    """List all settings. Secrets, such as the values of variables, are left out."""
    columns = ("setting", "value", "default")
    rows = [dict(zip(columns, found, strict=True)) for found in _of(dataset).all()]
    print_records(rows, columns, output)


@cli.command("get", config_command)
@_of_user
def config_get(
    name: str = cli.argument(), dataset: str | None = _OF_DATASET, output: str = cli.formats("table", "json")
) -> None:
    """Print the value of a setting, such as share.parallel."""
    value = _of(dataset).get(name)
    if output == "json" or isinstance(value, dict):
        echo_json(value, indent=None)
        return
    values = value if isinstance(value, list) else [value]
    echo_lines("" if v is None else v if isinstance(v, str) else json.dumps(v) for v in values)


@cli.command("set", config_command)
@_of_user
def config_set(
    name: str = cli.argument(), values: tuple[str, ...] = cli.argument(), dataset: str | None = _OF_DATASET
) -> None:
    """Set a setting to a value, or a list to several.

    Comments in the file stay. An invalid value changes nothing. `ingest.variables.NAME.hosts` are the only
    hosts that a variable is sent to. A dataset may have its own `snapshots.profile` and `snapshots.guard`.
    Its `pull.every` says when a node pulls it: a length of time such as 1h, or cron's five fields in UTC.
    """
    found = _of(dataset)
    _say(found, found.set(name, values), "is set")


@cli.command("add", config_command)
@_of_user
def config_add(name: str = cli.argument(), values: tuple[str, ...] = cli.argument(required=True)) -> None:
    """Add values to a list, such as audit.trustedAuditors."""
    found = _configuration()
    _say(found, found.add(name, values), "is set")


@cli.command("remove", config_command)
@_of_user
def config_remove(name: str = cli.argument(), values: tuple[str, ...] = cli.argument()) -> None:
    """Remove values from a list, or an entry by its name."""
    found = _configuration()
    _say(found, found.remove(name, values), "is without them" if values else "is removed")


@cli.command("unset", config_command)
@_of_user
def config_unset(name: str = cli.argument(), dataset: str | None = _OF_DATASET) -> None:
    """Give a setting its default again. An entry, or a part of one, is removed."""
    found = _of(dataset)
    _say(found, found.unset(name), "is unset")


@cli.command("rename")
def rename_command(dataset: str = cli.argument(cli.DATASET), name: str = cli.argument()) -> None:
    """Give a dataset another local name. Its id and its history stay."""
    open_workspace().rename(dataset, name)
    say(f"{dataset} is now {name}")


@cli.command("delete", asks=True)
def delete_command(
    datasets: tuple[str, ...] = cli.argument(cli.DATASET, required=True),
    force: bool = cli.option("Remove datasets that others refer to, or are made of."),
) -> None:
    """Remove datasets from the workspace.

    Datasets are given by names, ids or % patterns. Their private keys are kept. Without --force, a dataset
    stays if others have foreign keys to it, or are made of it.
    """
    workspace = open_workspace()
    doomed = {d.id: d for text in datasets for d in workspace.matching(text)}
    names = [str(d.alias) for d in doomed.values()]
    workspace.delete(*names, force=force, dry_run=True)  # what is refused is not asked about
    confirm(f"Delete {', '.join(names)} with all data?")
    workspace.delete(*names, force=force)
    for name in names:
        say(f"deleted {name}")


@cli.command("reset", asks=True)
def reset_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@BRANCH]"),
    block: str = cli.argument(),
    force: bool = cli.option("Drop blocks also if no repository is known to have them."),
    break_references: bool = cli.BREAK_REFERENCES,
    dry_run: bool = cli.DRY_RUN,
    output: str = cli.formats("table", "json", "ndjson"),
) -> None:
    """Move the head of a dataset back to a block.

    BLOCK is a hash or a sequence number. DATASET@BRANCH moves a branch. The old head stays under refs/ until
    `gc --drop-refs`, and a reset to it undoes this one.

    Before that, the places of the dataset are asked whether they have the blocks that would be dropped. If
    one block may be nowhere else, nothing is done without --force.

    Where datasets are in a store, the head moves there, for all machines. A machine that is ahead of the
    store may name the hash of the store's head. Then this machine follows, and the store does not change.
    """
    with open_workspace() as workspace:
        found = _opened(workspace, dataset, block)
        plan = found.plan_reset(block)
        refused = (plan.unsaved and not force) or (plan.referrers and not break_references)
        if dry_run or plan.nothing or refused or not plan.returns:
            _tell_consequences(plan.places, plan.dependents)
        if dry_run or plan.nothing:
            _print_reset(plan, "nothing to do" if plan.nothing else "would be reset", None, output)
            return
        if not refused and not plan.returns:  # of what is refused, `reset` says why
            if not plan.follows:
                _tell_of_proof(found)
            confirm(
                f"Drop {counted(len(plan.dropped), 'block')} with {counted(plan.records, 'record')} "
                f"of {plan.dataset}{' here, as the store has' if plan.follows else ''}?"
            )
        kept = found.reset(plan, force=force, break_references=break_references)
    status = "followed" if plan.follows else "returned" if plan.returns else "reset"
    _print_reset(plan, status, kept, output)


def _opened(workspace: Workspace, dataset: str, block: str) -> Dataset:
    try:
        return on_branch(workspace, dataset)
    except SetBackError as error:
        name, _, branch = dataset.partition("@")
        # a store that was rewound is followed only when the user names its head
        if block != error.head or branch not in ("", "head"):
            raise
        return workspace.last_seen(name)


def _print_reset(plan: ResetPlan, status: str, kept: str | None, output: str) -> None:
    row: dict[str, Any] = {
        "dataset": plan.dataset,
        "status": status,
        "block": plan.new_number,
        "blocks": len(plan.dropped),
        "records": plan.records,
        "unsaved": len(plan.unsaved),
        "breaks": _dependents(plan.dependents),
        **record(plan, "head:new_head", "oldHead:old_head"),
        "keptAs": kept,
        **record(plan, "dropped"),
        "places": _places(plan.places),
        "referrers": list(plan.referrers),
    }
    columns = ["dataset", "status", "block", "blocks", "records", "unsaved", "breaks"]
    print_records([row], columns, output, shown={"breaks": _names}, right=columns[2:6])


def _names(dependents: list[dict[str, Any]]) -> str:
    return ", ".join(each["dataset"] for each in dependents)


@cli.command("compact", asks=True)
def compact_command(
    dataset: str = cli.argument(cli.DATASET),
    mode: str | None = cli.one_of(
        hard="Write the history of the dataset anew.", soft="Make a new dataset with the same records (--as)."
    ),
    name: str | None = cli.option("The name of the new dataset of --soft.", "--as", "NAME"),
    metadata_only: bool = cli.option("With --hard: give up all data.", "--keep-metadata-only"),
    verify: bool = cli.option("Verify the dataset before."),
    max_slice_size: int = cli.option(
        "The largest size of merged slices.", "BYTES", least=1, default=300_000_000
    ),
    max_slice_records: int = cli.option("The most records of merged slices.", "N", least=1, default=10_000),
    force: bool = cli.option("Give up data also if no repository is known to have them."),
    break_references: bool = cli.BREAK_REFERENCES,
    dry_run: bool = cli.DRY_RUN,
    output: str = cli.formats("table", "json", "ndjson"),
) -> None:
    """Merge small slices of a dataset into larger ones.

    --soft makes a new root dataset that names its origin. Derivatives and copies stay valid. --hard changes
    the hashes of blocks, so derivatives and copies that read the old ones start over. They are listed first.
    The old head stays under refs/ until `gc --drop-refs`.
    """
    if mode is None:
        raise UsageError("say which: --hard or --soft")
    if (mode == "soft") != (name is not None):
        raise UsageError("--soft makes a new dataset: name it with --as NAME (--hard does not)")
    if mode == "soft" and (metadata_only or force or break_references):
        raise UsageError("--keep-metadata-only, --force and --break-references are for --hard")
    from odfchain import BatchLimits

    limits = BatchLimits(bytes=max_slice_size, records=max_slice_records)
    with open_workspace() as workspace:
        found = workspace[dataset]
        if verify:
            _verify(found)
        if mode == "soft":
            assert name is not None  # noqa: S101 - checked above
            _soft(found, name, limits, output, dry_run=dry_run)
            return
        plan = found.plan_compact(limits=limits, metadata_only=metadata_only)
        _tell_consequences(plan.places, plan.dependents)
        if plan.nothing or dry_run:
            status = "nothing to do" if plan.nothing else "would be compacted"
            _print_hard(plan, status, plan.old_head, output)
            return
        if plan.referrers and not break_references:
            found.compact(plan, force=force)  # says why not
        _tell_of_proof(found)
        what = "give up all data" if metadata_only else f"merge {counted(plan.slices_before, 'slice')}"
        confirm(
            f"Replace {counted(len(plan.replaced), 'block')} of {plan.dataset} ({what})? "
            "All who have read them must start over."
        )
        with TerminalProgress() as progress:
            head = found.compact(plan, force=force, break_references=break_references, progress=progress)
    _print_hard(plan, "compacted", head, output)


def _verify(dataset: Dataset) -> None:
    with TerminalProgress() as progress:
        report = dataset.verify(progress=progress)
    if report.faults:
        first = report.faults[0]
        raise ChainError(
            f"{dataset.alias}: verification found {counted(len(report.faults), 'fault')}; the first one: "
            f"{first.file}: {first.message}",
            hint=f"`odfchain verify {dataset.alias}` lists all of them",
        )


def _print_hard(plan: CompactPlan, status: str, head: Multihash, output: str) -> None:
    row: dict[str, Any] = {
        "dataset": plan.dataset,
        "status": status,
        **record(plan, "blocks:blocks_after", "slices:slices_after", "records"),
        "breaks": _dependents(plan.dependents),
        **record(plan, "blocks_before", "slices_before", "replaced", "old_head"),
        "head": str(head),
        "places": _places(plan.places),
        "referrers": list(plan.referrers),
    }
    shown = {
        "blocks": lambda after: f"{plan.blocks_before:,} to {after:,}",
        "slices": lambda after: f"{plan.slices_before:,} to {after:,}",
        "breaks": _names,
    }
    print_records([row], ["dataset", "status", "blocks", "slices", "records", "breaks"], output, shown=shown)


def _soft(dataset: Dataset, name: str, limits: BatchLimits, output: str, *, dry_run: bool) -> None:
    plan = dataset.plan_soft_compact(name, limits)
    if dry_run:
        _print_soft(plan, "would be made", None, output)
        return
    with TerminalProgress() as progress:
        made = dataset.soft_compact(plan, progress=progress)
    _print_soft(plan, "made", str(made.id), output)


def _print_soft(plan: SoftPlan, status: str, made: str | None, output: str) -> None:
    row: dict[str, Any] = {
        "dataset": str(plan.alias),
        "status": status,
        **record(plan, "from:dataset", "slices:slices_after", "records", "slices_before", "fromHead:head"),
        "id": made,
    }
    shown = {"slices": lambda after: f"{plan.slices_before:,} to {after:,}"}
    print_records([row], ["dataset", "status", "from", "slices", "records"], output, shown=shown)


@cli.command("gc")
def gc_command(
    datasets: tuple[str, ...] = cli.argument(cli.DATASET),
    chosen: dict[str, Any] = cli.keywords(GcOptions),
    output: str = cli.formats(),
) -> int:
    """Remove files that no reference needs any more.

    Leftovers of interrupted commands go, too. Nothing that is needed is removed, even while others write.
    Without DATASET all datasets are cleaned, and the workspace itself. For datasets in a store, the store is
    cleaned as well. Changes that rows of this workspace name stay, and these rows are named.
    """
    workspace = open_workspace()
    code = 0
    found: list[Collected] = []
    for dataset in _named_or_all(workspace, datasets):
        try:
            with TerminalProgress().later(f"Looking at the objects of {dataset}"):
                found.append(dataset.gc(**chosen))
        except UsageError:
            raise
        except OdfchainError as error:  # one damaged dataset must not keep the others from being cleared
            report_error(error)
            code = code or error.exit_code
    if not datasets:
        found += workspace.gc([], **chosen)
    _print_gc(found, output, dry_run=chosen.get("dry_run", False))
    return code


def _print_gc(found: list[Collected], output: str, *, dry_run: bool) -> None:
    if output in ("json", "ndjson"):
        print_records([_gc_tree(item, dry_run=dry_run) for item in found], [], output)
        return
    people = output == "table"
    rows = [
        {"dataset": item.dataset or ("(workspace)" if people else item.dataset),
         **record(kind, "kind", "files", "bytes")}
        for item in found
        for kind in item.removed
    ]  # fmt: skip
    columns = ["dataset", "kind", "files", "bytes"]
    if rows or not people:
        print_records(rows, columns, output, shown={"bytes": human_size}, right=columns[2:])
    if people:
        _tell_gc(found, dry_run=dry_run)


def _gc_tree(item: Collected, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dataset": item.dataset,
        "dryRun": dry_run,
        "removed": [record(each, "kind", "files", "bytes") for each in item.removed],
        "young": record(item.young, "files", "bytes"),
        **record(item, "droppedRefs:refs", "kept_refs", "kept_until", "referrers"),
    }


def _tell_gc(found: list[Collected], *, dry_run: bool) -> None:
    word = "would be removed" if dry_run else "removed"
    files = sum(kind.files for item in found for kind in item.removed)
    say(f"{counted(files, 'file')} {word}, {human_size(sum(item.bytes for item in found))}")
    if young := sum(item.young.files for item in found):
        size = human_size(sum(item.young.bytes for item in found))
        say(f"{counted(young, 'object')} ({size}) not needed, but too young")
    for item in found:
        for name in item.refs:
            say(f"{item.dataset}: {'would give' if dry_run else 'gave'} up refs/{name}")
        if item.referrers:
            who = ", ".join(item.referrers)
            say(f"{item.dataset}: changes stay that {who} refers to; --break-references gives them up")
    if kept := sum(len(item.kept_refs) for item in found):
        until = max((item.kept_until for item in found if item.kept_until), default=None)
        when = f"kept, the newest at least until {until};" if until else "kept;"
        say(f"{counted(kept, 'overwritten head')} {when} --drop-refs gives up the old ones")


@cli.command("fsck")
def fsck_command(
    datasets: tuple[str, ...] = cli.argument(cli.DATASET),
    source: str | None = cli.option(
        "Any copy of the dataset to repair from; it need not be trusted.", "--from", "URL"
    ),
    head: str | None = cli.option("The block (a hash) for a head that is lost, if you know it.", "BLOCK"),
    dry_run: bool = cli.DRY_RUN,
    output: str = cli.formats("table", "json", "ndjson"),
) -> int:
    """Find damaged and missing files, and repair them.

    A copy is good if it hashes to its name. It comes from other datasets here, or from --from. Damaged files
    are kept in info/quarantine of the dataset. Exit code 0: everything is good now. Exit code 6: something is
    broken.
    """
    from odfchain import Multihash

    workspace = open_workspace()
    found = _named_or_all(workspace, datasets)
    if (source is not None or head is not None) and (not datasets or len(found) != 1):
        raise UsageError(f"--from and --head are for one dataset, these are {len(found)}")
    lost = None if head is None else Multihash.parse(head)
    token = cli.token_for([workspace.sharing.url_of(source)] if source else [])
    with TerminalProgress() as progress:
        if datasets:
            reports = [
                dataset.fsck(source, head=lost, dry_run=dry_run, token=token, progress=progress)
                for dataset in found
            ]
        else:
            reports = workspace.fsck(dry_run=dry_run, progress=progress)
    _print_fsck(reports, output)
    return 0 if all(report.whole for report in reports) else INTEGRITY_FAULT


def _print_fsck(reports: list[FsckReport], output: str) -> None:
    if output != "table":
        print_records([_fsck_tree(report) for report in reports], [], output)
        return
    for report in reports:
        word, colour = ("ok    ", "green") if report.whole else ("BROKEN", "red")
        echo(f"{word} ", fg=colour, bold=True, nl=False)
        absent = f", {counted(report.absent, 'file')} not here (a partial copy)" if report.absent else ""
        echo(f"{report.dataset}: {counted(report.objects, 'object')}, {human_size(report.bytes)}{absent}")
        for finding in report.findings:
            source = f" (from {finding.source})" if finding.source else ""
            echo(f"  {finding.kind} {finding.state.value}: {finding.file}{source}")
            before = "before the repair: " if finding.state.value == "repaired" else ""
            echo(f"    {before}{finding.message.removeprefix(f'{finding.file}: ')}")
            if finding.hint and finding.state.value == "broken":
                echo(f"    {finding.hint}")
        for note in report.notes:
            echo(f"  note: {note}")


def _fsck_tree(report: FsckReport) -> dict[str, Any]:
    found = [record(f, "kind", "file", "message", "state", "source", "hint") for f in report.findings]
    told = record(report, "dataset", "whole", "objects", "bytes", "absent")
    return {**told, "findings": found, "notes": report.notes}


# Warnings before history is given up: other copies, and broken references.


def _tell_consequences(places: Sequence[Remote], dependents: Sequence[Dependent]) -> None:
    for place in places:
        known = f"has {len(place.has):,} of these blocks" if place.has else place.answer.value
        say(f"  {' and '.join(place.kinds)} {place.alias}: {place.problem or known}")
    for item in dependents:
        say(f"  breaks {item.alias}: {counted(item.transactions, 'transaction')} read what is given up")


def _tell_of_proof(dataset: Dataset) -> None:
    if dataset.has_key and dataset.ref == "head":
        say("  the old head was signed: anyone who kept it and sees the new one can prove equivocation")


def _places(places: Sequence[Remote]) -> list[dict[str, Any]]:
    return [
        {**record(each, "alias", "kinds", "answer"), "blocks": len(each.has), "problem": each.problem}
        for each in places
    ]


def _dependents(found: Sequence[Dependent]) -> list[dict[str, Any]]:
    return [{"dataset": item.alias, "transactions": item.transactions} for item in found]


def _named_or_all(workspace: Workspace, datasets: tuple[str, ...]) -> list[Dataset]:
    """The datasets that names and patterns mean, each once; all when none is named."""
    if not datasets:
        return list(workspace)
    return list({d.path: d for text in datasets for d in workspace.matching(text)}.values())
