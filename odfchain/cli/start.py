"""`odfchain add`: datasets from manifests."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain import errors
from odfchain.cli import screen
from odfchain.cli.context import open_workspace, options, print_outcome, report_error, say, silence_libraries
from odfchain.cli.parameters import argument, command, formats, keywords, one_of, option
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.limits import LIMITS
from odfchain.odf.events import DatasetSnapshot, SetTransform
from odfchain.storage.fsio import no_file
from odfchain.text import counted, printable
from odfchain.workspace.options import ImportOptions

if TYPE_CHECKING:
    from odfchain import Dataset, DatasetAlias, StateChange, SystemColumns, Workspace
    from odfchain.api.definitions import Imported
    from odfchain.ingest.fetching import Effect
    from odfchain.results import ImportPlan
    from odfchain.workspace.config import IngestConfig


@command("add")
def add_command(
    manifests: tuple[Path, ...] = argument(),
    recursive: bool = option("Take the manifests below the given folders.", "-r"),
    from_stdin: bool = option("Read manifests from standard input, as `-` does.", "--stdin"),
    name: str | None = option("Name of the dataset, instead of the one in the manifest.", "NAME"),
    update: bool = option("Record the differences between the manifest and a dataset that exists."),
    allow_commands: bool = option("Accept commands and container images."),
    hosts: tuple[str, ...] = option("Accept variables being sent to this host.", "--allow-host", "HOST"),
    rebuild: bool = option("With --update: compute the query of the manifest over everything."),
    from_now: bool = option(
        "With --update: let the old query finish, and begin the new one with the next rows."
    ),
    drop_constraints: bool = option(
        "With --update: accept attachments that drop the CONSTRAINTS.yaml in force."
    ),
    attach: tuple[str, ...] = option(
        "Attach a text file, such as README.md. Its path among the attachments is its name, or PATH.",
        "[PATH=]FILE",
    ),
    no_check: bool = option("Do not start Spark to check queries: the first pull finds their faults."),
    system_columns: str | None = option(
        "Types of offsets and operations in new datasets. The reference node can append to `reference`.",
        choices=["specification", "reference"],
    ),
) -> int:
    """Make datasets from manifests (YAML or JSON).

    A manifest is a DatasetSnapshot, or a Dataset of ODF 0.39. All manifests are checked before the first
    dataset is made. A dataset appears complete or not at all.

    With --update, a dataset that exists gets a new query, source or description. The command records the
    differences. Everything that the manifest does not mention stays. A query may remember something, such as
    open windows or running totals. Such a query is changed with --rebuild or --from-now only.

    A manifest may run commands or containers, or send variables to a host. The command shows that and asks
    first.
    """
    state = _state_change(rebuild=rebuild, from_now=from_now, update=update)
    if drop_constraints and not update:
        raise errors.UsageError("--drop-constraints says how a dataset is changed: add --update")
    found = _read_manifests(manifests, recursive=recursive, from_stdin=from_stdin)
    if name is not None and len(found) != 1:
        raise errors.UsageError(f"--name names one dataset, the manifests define {len(found)}")
    from odfchain import DatasetAlias, SystemColumns

    alias = DatasetAlias.parse(name) if name is not None else None
    with open_workspace() as workspace:
        found = _attached(workspace, found, attach, alias) if attach else found
        ask_for_effects(found, workspace, allow_commands=allow_commands, hosts=hosts)
        with TerminalProgress() as progress:
            return _add(
                workspace, progress, found, alias, SystemColumns(system_columns) if system_columns else None,
                update=update, check=not no_check, state=state, drop_constraints=drop_constraints,
            )  # fmt: skip


def _state_change(*, rebuild: bool, from_now: bool, update: bool) -> StateChange | None:
    if not rebuild and not from_now:
        return None
    if rebuild and from_now:
        raise errors.UsageError("--rebuild and --from-now exclude each other")
    if not update:
        raise errors.UsageError(
            f"--{'rebuild' if rebuild else 'from-now'} says how a query is changed: add --update"
        )
    from odfchain import StateChange

    return StateChange.REBUILD if rebuild else StateChange.FROM_NOW


def _read_manifests(
    paths: tuple[Path, ...], *, recursive: bool, from_stdin: bool
) -> list[tuple[str, DatasetSnapshot]]:
    from odfchain.api.definitions import read_given

    from_stdin, paths = from_stdin or _STDIN in paths, tuple(path for path in paths if path != _STDIN)
    if bool(paths) == from_stdin:
        raise errors.UsageError("name manifest files or use --stdin")
    for path in paths:
        if path.is_dir() and not recursive:
            raise errors.UsageError(f"{path} is a folder", hint="use -r to take the manifests in it")
        if not path.exists():
            raise no_file(path)
    if from_stdin:
        given = read_given(screen.standard_input().read(LIMITS.manifest_bytes + 1), "<stdin>")
    else:
        given = read_given(paths)
    given.say(TerminalProgress().note)
    return given.found


def _attached(
    workspace: Workspace,
    manifests: list[tuple[str, DatasetSnapshot]],
    attach: Sequence[str],
    alias: DatasetAlias | None,
) -> list[tuple[str, DatasetSnapshot]]:
    from odfchain.workspace.attachments import read_files, with_files

    files, known = read_files(attach), {dataset.alias: dataset for dataset in workspace}

    def of(snapshot: DatasetSnapshot) -> DatasetSnapshot:
        before = known.get(alias or snapshot.name)
        return with_files(snapshot, files, before.summary.attachments if before else ())

    return [(source, of(snapshot)) for source, snapshot in manifests]


def _add(
    workspace: Workspace,
    progress: TerminalProgress,
    manifests: list[tuple[str, DatasetSnapshot]],
    alias: DatasetAlias | None,
    columns: SystemColumns | None,
    *,
    update: bool,
    check: bool,
    **how: Any,
) -> int:
    from odfchain.api.definitions import check_free
    from odfchain.workspace.creation import in_creation_order

    known = {dataset.alias for dataset in workspace}
    snapshots = in_creation_order(snapshot for _, snapshot in manifests)
    if not update:
        check_free((alias or s.name for s in snapshots), known)
    new = [s for s in snapshots if (alias or s.name) not in known]

    def each(snapshots: list[DatasetSnapshot], work: Callable[[DatasetSnapshot], str | None]) -> int:
        code = 0
        for snapshot in snapshots:
            source = next(source for source, found in manifests if found is snapshot)
            try:
                done = work(snapshot)
            except errors.OdfchainError as error:
                if errors.was_interrupted(error):
                    raise KeyboardInterrupt from error
                progress.stop()
                located = error.located(source=source) if isinstance(error, errors.ManifestError) else error
                report_error(located, about=source if isinstance(error, _WITHOUT_PLACE) else "")
                code = error.exit_code
            else:
                if done is not None:
                    progress.stop()
                    say(done)
        return code

    def create(snapshot: DatasetSnapshot) -> str:
        dataset = workspace.create(snapshot, alias=alias, check=False, system_columns=columns)
        return f"added {dataset.alias} ({dataset.kind.value.lower()}){_engine_note(dataset, snapshot)}"

    def renew(snapshot: DatasetSnapshot) -> str:
        if snapshot in new:
            return create(snapshot)
        before = workspace[alias or snapshot.name].watermark_rules
        dataset, events = workspace.update(snapshot, alias=alias, check=check, progress=progress, **how)
        kinds = list(dict.fromkeys(event.KIND for event in events))
        kinds += ["watermark"] if dataset.watermark_rules != before else []
        return f"updated {dataset.alias} ({', '.join(kinds)})" if kinds else f"{dataset.alias} is up to date"

    asked = functools.partial(workspace.check, among=snapshots, queries=check, progress=progress)
    return each(new, asked) or each(snapshots, renew if update else create)


def _engine_note(dataset: Dataset, snapshot: DatasetSnapshot) -> str:
    given = [e.transform.engine for e in snapshot.metadata if isinstance(e, SetTransform)]
    transform = dataset.summary.transform if given else None
    if transform is None or transform.transform.engine == given[-1]:
        return ""
    return f"; its engine `{given[-1]}` is recorded as {transform.transform.engine}"


# Faults of what a manifest says, which do not say themselves where that was read.
_WITHOUT_PLACE = (errors.AppendError, errors.QueryError, errors.SchemaError, errors.TransformError)

_STDIN = Path("-")


@command("init")
def init_command(
    folder: Path | None = argument(),
    exists_ok: bool = option("Succeed if there is one already."),
    store: str | None = option(
        "The object store of the datasets: s3://, gs://, az://, s3+http://HOST/BUCKET/PREFIX.", "URL"
    ),
    offline_key: Path | None = option(
        "Put the identity keys of datasets into a folder that leaves the machine.", "FOLDER"
    ),
) -> None:
    """Make a workspace in a folder, or in the current one.

    A folder that is missing is made. With --store the datasets are in an object store, for every machine that
    names the same URL. The folder then has the keys, the settings, and copies of the data that was read.
    Credentials come from the environment.

    With --offline-key a dataset has its identity key in FOLDER, on a stick say. A key that is made here signs
    for it, for 90 days: `odfchain key delegate` renews that.
    """
    from odfchain import Workspace

    folder = folder or Path(options().workspace or ".")
    workspace = Workspace.init(folder, exists_ok=exists_ok, store=store)
    if offline_key is not None:
        from odfchain.api.settings import Configuration

        Configuration(workspace.path).set("datasets.offlineKeys", [str(offline_key.resolve())])
    say(f"workspace ready in {workspace.path}" + (f", datasets in {workspace.store}" if store else ""))


@command("import")
def import_command(
    file: Path = argument(),
    chosen: dict[str, Any] = keywords(
        ImportOptions,
        *("name", "key", "event_time", "merge", "input_format", "separator", "encoding"),
        *("duplicate_keys", "allow_future", "force"),
    ),
    output: str = formats("table", "json"),
) -> None:
    """Make a dataset of a file, without a manifest.

    The command infers the type of each column and prints it. It writes the types into manifests/NAME.yaml.
    Later files (`odfchain ingest`) are read strictly by that manifest. A column whose type is in doubt stays
    text.
    """
    if not file.is_file():
        raise no_file(file)
    silence_libraries()
    with open_workspace() as workspace, TerminalProgress() as progress:

        def say_inferred(plan: ImportPlan) -> None:
            progress.stop()
            _say_inferred(file, plan)

        made = workspace.import_(file, on_inferred=say_inferred, progress=progress, **chosen)
        progress.stop()
    if output == "json":
        screen.echo_json(_document(made))
    else:
        print_outcome(made.outcome, output)
    say(f"wrote {made.manifest}; later files: odfchain ingest {made.dataset.alias} FILE")


def _say_inferred(file: Path, plan: ImportPlan) -> None:
    found = plan.file
    say(f"{file}: {counted(found.rows, 'row')}, {found.read.KIND}, as dataset {plan.name}")
    for line in screen.aligned((printable(c.name), c.type, c.note or "") for c in found.columns):
        say(f"  {line}")
    by = f" by {', '.join(plan.key)}" if plan.key else ""
    when = plan.event_time or "the time of ingestion"
    say(f"  merge: {plan.merge}{by}; event time: {when}")
    for note in plan.notes:
        say(f"  note: {note}")


def _document(made: Imported) -> dict[str, object]:
    plan, (brought,) = made.inferred, made.outcome.inputs
    return {
        **screen.record(made, "dataset:dataset.alias", "id:dataset.id", "manifest"),
        "format": plan.file.read.KIND,
        "columns": [screen.record(column, "name", "type", "note") for column in plan.file.columns],
        **screen.record(plan, "merge", "key", "event_time", "notes"),
        "rows": brought.input_rows,
        "offsets": list(brought.offsets) if brought.offsets else None,
        "head": str(made.outcome.head),
    }


def manifest_template(alias: DatasetAlias, kind: str, *, first: str = "", merge: str = "Snapshot") -> str:
    """A commented manifest of a dataset that is a `root`, a `derivative`, or a lock of `assets`.

    `first` is a comment above it; `merge` how a lock meets what is recorded.
    """
    text = resources.files("odfchain").joinpath("cli", f"new_{kind}.yaml").read_text(encoding="utf-8")
    text = text.replace("{name}", str(alias)).replace("{merge}", merge)
    return f"# {first}\n{text}" if first else text


@command("new")
def new_command(
    name: str = argument(),
    kind: str | None = one_of(
        root="A root: data comes from a source.",
        derivative="A derivative: data is computed from other datasets.",
        assets="A lock of the files that STAC Items name.",
    ),
    ledger: bool = option("With --assets: the objects never change, and none is withdrawn."),
    node: str | None = option(
        "Say how to make the dataset so that this node can append to it.", "--for", choices=["kamu"]
    ),
    output: Path | None = option("The file to write; NAME.yaml if not given, - for standard output."),
) -> None:
    """Write a commented manifest to start from. The manifest is valid as it is."""
    if kind is None:
        raise errors.UsageError("say what kind of dataset: --root, --derivative or --assets")
    if ledger and kind != "assets":
        raise errors.UsageError("--ledger is for locks of assets: --assets --ledger")
    from odfchain import DatasetAlias

    alias = DatasetAlias.parse(name)
    more = "--system-columns reference " if node is not None else ""
    # no field of a manifest says it: it is chosen when the dataset is made
    first = f"For {node}: make it with `odfchain add {more.strip()}`." if more else ""
    text = manifest_template(alias, kind, first=first, merge="Ledger" if ledger else "Snapshot")
    if output is not None and str(output) == "-":
        screen.echo_document(text)
        return
    path = output or Path(f"{str(alias).rpartition('/')[2]}.yaml")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise errors.UsageError(f"{path} already exists", hint="choose another file with --output") from None
    except OSError as error:
        raise errors.UsageError(f"{path}: {error.strerror}") from None
    say(f"wrote {path}; edit it, then: odfchain add {more}{path}")


@command("help")
def help_command(
    topics: tuple[str, ...] = argument(metavar="[TOPIC]"),
    everything: bool = option("List all commands, and the options of every command.", "--all"),
) -> None:
    """Open the manual page of a command or a topic.

    Topics are start, bring, look, share, check, branches, keep and others. Without a topic the command shows
    the first screen.
    """
    root = click.get_current_context().find_root()
    group, formatter = root.command, root.make_formatter()
    assert isinstance(group, click.Group)  # noqa: S101 - the one of all commands
    if not topics:
        (click.Group if everything else type(group)).format_help(group, root, formatter)
        screen.echo_manual(formatter.getvalue().rstrip("\n"))
        return
    topic, pages = topics[0], _pages()  # a command of a group is on the page of the group
    command = group.get_command(root, topic)
    if (page := pages.get((command and command.name) or topic)) is None:
        near = difflib.get_close_matches(topic, pages, n=3)
        raise errors.UsageError(
            f"no page about {topic!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(pages))}",
        )
    screen.echo_manual(page.read_text(encoding="utf-8"))


def _pages() -> dict[str, Path]:
    package = Path(__file__).parent.parent
    shipped = package / "docs"
    # installed with the package, or in the checkout
    folder = shipped if shipped.is_dir() else package.parent / "docs"
    return {path.stem: path for path in (*folder.glob("*.md"), *folder.glob("commands/*.md"))}


# Asking before an untrusted manifest runs commands or gets variables.
# No file says who wrote it, so every manifest with effects is shown, and nothing is made before they are
# allowed: by options, settings, or an answer. Source: RFC-014.


def ask_for_effects(
    found: Sequence[tuple[str, DatasetSnapshot]],
    workspace: Workspace,
    *,
    allow_commands: bool,
    hosts: tuple[str, ...],
) -> None:
    """Show the effects of the definitions other than reads, and ask where they are not allowed yet."""
    asked = questions(found, workspace.ingest_config, allow_commands=allow_commands, hosts=hosts)
    if not asked or options().yes:
        return
    for question in asked:
        screen.echo(f"{question.source}: ingesting into {question.name}", err=True)
        for text in question.effects:
            screen.echo(f"  {text}", err=True)
    flags = _flags(asked)
    if not screen.is_interactive():
        raise errors.UsageError(
            "the manifest does what has to be allowed (see above), but standard input is not a terminal; "
            "nothing was made",
            hint=f"if you trust it, add {flags}",
        )
    if not screen.ask("Is this what you want?"):
        raise errors.UsageError("not confirmed; nothing was made", hint=f"to be asked no more, add {flags}")


def _flags(asked: Sequence[Question]) -> str:
    import shlex

    hosts = dict.fromkeys(host for question in asked for host in question.hosts)
    given = ["--allow-commands"] * any(question.commands for question in asked)
    return " ".join(given + [f"--allow-host {shlex.quote(host)}" for host in hosts])


@dataclass(frozen=True, slots=True)
class Question:
    """The effects of one manifest, of which some are not allowed yet."""

    source: str
    """Its file."""
    name: DatasetAlias
    effects: tuple[str, ...]
    """All of them, as they stand in the manifest: not safe to be printed as they are."""
    commands: bool
    """True if commands need permission."""
    hosts: tuple[str, ...]
    """Hosts to which variables would be sent."""


def questions(
    found: Iterable[tuple[str, DatasetSnapshot]],
    config: IngestConfig,
    *,
    allow_commands: bool,
    hosts: tuple[str, ...],
) -> list[Question]:
    """Effects of the definitions, each with its file, that are not allowed yet (RFC-014)."""
    from odfchain.ingest.fetching import Effect, is_admitted

    def is_allowed(effect: Effect, source: str) -> bool:
        bindings = config.bindings
        bound = [name for name in effect.variables if name in bindings]
        for name in bound:
            if effect.is_command or not is_admitted(bindings[name], effect.host, effect.port):
                only = ", ".join(bindings[name]) or "no host"
                raise errors.UsageError(
                    f"{source}: {effect.text}: the variable {name} may be sent to {only} only",
                    hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
                )
        if effect.is_command:
            return allow_commands or config.allow_commands
        return len(bound) == len(effect.variables) or is_admitted(hosts, effect.host, effect.port)

    asked = []
    for source, snapshot in found:
        effects = Effect.of(snapshot.metadata)
        if waiting := [effect for effect in effects if not is_allowed(effect, source)]:
            commands = any(effect.is_command for effect in waiting)
            to = tuple(effect.host for effect in waiting if not effect.is_command)
            texts = tuple(effect.text for effect in effects)
            asked.append(Question(source, snapshot.name, texts, commands, to))
    return asked
