"""A folder of datasets, and the one Spark session; libraries are loaded by the methods that need them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

from odfchain import errors
from odfchain.api.dataset import Dataset
from odfchain.api.executing import Engines
from odfchain.api.view import Readable
from odfchain.limits import PORT
from odfchain.odf.events import DatasetSnapshot, MetadataEvent
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias
from odfchain.progress import SILENT, Progress
from odfchain.spark.known_errors import OwnErrors
from odfchain.storage import fsio
from odfchain.text import table_html
from odfchain.workspace import options
from odfchain.workspace.workspace_files import FOLDER, WorkspaceFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.api.definitions import Imported
    from odfchain.api.pulling import PullResult, PullTarget, PushTarget
    from odfchain.api.status import DatasetStatus
    from odfchain.audit.lineage import Graph
    from odfchain.audit.report import Report
    from odfchain.audit.verification import Auditor
    from odfchain.chain.equivocation import EvidenceStore
    from odfchain.query.answers import Answer
    from odfchain.query.resolved_tables import CheckedSlices
    from odfchain.query.results import QueryResult
    from odfchain.transfer.access_tokens import TokenFile
    from odfchain.transfer.repositories import Repositories
    from odfchain.transfer.sharing import Sharing
    from odfchain.transfer.witnesses import KnownWitness
    from odfchain.transform.validate import Definitions, StateChange
    from odfchain.upkeep.fsck import FsckReport
    from odfchain.upkeep.garbage import Collected
    from odfchain.workspace.config import IngestConfig
    from odfchain.workspace.dataset_state import SystemColumns
    from odfchain.workspace.shared_store import SharedStore


# Workspaces whose datasets are in an object store: making them, and reaching the store later.


def connect(root: Path, url: str) -> SharedStore:
    """As `odfchain.transfer.object_workspace.connect`, which is slow to load; errors as there."""
    from odfchain.transfer import object_workspace

    return object_workspace.connect(root, url)


def made(parent: Path, store: str | None, *, exists_ok: bool) -> WorkspaceFiles:
    """A workspace folder; the `store` is a workspace from now on, if it was none."""
    if store is None:
        return WorkspaceFiles.init(parent, exists_ok=exists_ok, connect=connect)
    from odfchain.storage.bucket_store import place_of
    from odfchain.storage.locations import PeerUrl
    from odfchain.transfer.object_workspace import make_workspace_at
    from odfchain.transfer.open_peer import NamedStores

    url = PeerUrl.parse(store)
    place_of(url)
    if not (parent / FOLDER).is_dir():
        make_workspace_at(url)

    def named(root: Path, text: str) -> SharedStore:  # it is the one that was given, or there was an error
        NamedStores.of_user().add(url)
        return connect(root, text)

    return WorkspaceFiles.init(parent, exists_ok=exists_ok, store=url.text, connect=named)


@dataclass(frozen=True)
class Verify(options.VerifyOptions):
    """A verification of datasets."""

    datasets: Iterable[Readable | str] | None = None


@dataclass(frozen=True)
class Pull(options.PullOptions):
    """A pull of a dataset, which is called by the name here; the token is for where it is."""

    ref: str | PullTarget
    name: str | None = field(default=None, kw_only=True)
    token: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Gc(options.GcOptions):
    """The garbage of datasets."""

    datasets: Iterable[Dataset] | None = None


class Workspace(OwnErrors):
    """A folder of datasets, and the one Spark session that works on them.

    `workspace["name"]` is one of its datasets, iterating gives all of them, ordered by alias. Use it as a
    context manager (or call `close`): a session that was started is stopped at the end.
    """

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files
        self._engines = Engines(files)
        self._checked: CheckedSlices | None = None

    @classmethod
    def init(cls, path: str | Path = ".", *, exists_ok: bool = False, store: str | None = None) -> Workspace:
        """Make a workspace in a folder; with a `store` (a URL) its datasets are there, for all who name it.

        Raises:
            NameCollisionError: there is one already (unless `exists_ok`), or it has another store.
        """
        return cls(made(Path(path), store, exists_ok=exists_ok))

    @classmethod
    def open(cls, path: str | Path = ".", *, spark: SparkSession | None = None) -> Workspace:
        """The workspace of a folder or of the nearest folder above it.

        With `spark`, a session such as the one of `spark-submit`, everything that needs Spark runs there, and
        none is started or stopped. Its settings stay as they are.

        Raises:
            NotAWorkspaceError: there is none.
        """
        found = cls(WorkspaceFiles.find(Path(path), connect))
        if spark is not None:
            found._engines.give(spark)
        return found

    @property
    def path(self) -> Path:
        """The `.odfchain` folder."""
        return self._files.root

    @property
    def store(self) -> str | None:
        """The URL of the store that the datasets are in; None where they are in the folder."""
        return self._files.shared.where

    def _current(self) -> WorkspaceFiles:
        # cached names of the store are checked again
        self._files.shared.renew()
        return self._files

    @property
    def ingest_config(self) -> IngestConfig:
        """The settings of ingestion; read anew at each call."""
        return self._files.config.ingest

    @options.takes(options.ServeOptions)
    def serve(self, asked: options.ServeOptions) -> None:
        """Publish all datasets of the workspace, to be read (`write`: pushed to), until SIGTERM or Ctrl-C."""
        from odfchain.transfer import server

        chosen = vars(asked) | {"port": PORT if asked.port is None else asked.port}
        server.RepositoryServer(self._files, **chosen).run(asked.listening)

    # --- datasets ----------------------------------------------------------------------------------

    def __getitem__(self, ref: str | DatasetId | DatasetAlias) -> Dataset:
        """The dataset that an alias or `did:odf` id names (names ignore case).

        Raises:
            DatasetNotFoundError: there is no such dataset; the hint has near names. It is a KeyError, too.
        """
        return Dataset(self, self._current().dataset(ref))

    def last_seen(self, ref: str | DatasetId | DatasetAlias) -> Dataset:
        """The dataset as this machine has it, also where the store has what cannot be taken over.

        After a `SetBackError` its `reset` to the error's `head` follows the store; or it is read.
        """
        return Dataset(self, self._current().damaged_or_not(ref))

    def __iter__(self) -> Iterator[Dataset]:
        """Every dataset, ordered by alias."""
        return (Dataset(self, files) for files in self._current().datasets())

    def __len__(self) -> int:
        return sum(1 for _ in self._current().datasets())

    def __bool__(self) -> bool:
        """A workspace without datasets is one, too."""
        return True

    def __contains__(self, ref: object) -> bool:
        """True if a dataset of this workspace has this alias or id."""
        if isinstance(ref, Dataset):
            ref = ref.id
        if not isinstance(ref, str | DatasetId | DatasetAlias):
            return False
        try:
            self._current().dataset(ref)
        except (errors.DatasetNotFoundError, errors.InvalidIdError):
            return False
        return True

    def __repr__(self) -> str:
        names = [str(dataset.alias) for dataset in self]
        shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        count = f"{len(names)} dataset{'' if len(names) == 1 else 's'}"
        return f"<Workspace {self.path.parent}: {count}{': ' if names else ''}{shown}>"

    def _repr_html_(self) -> str:
        rows = []
        for dataset in self:
            try:
                state = dataset.summary
                kind, updated = state.seed.dataset_kind.value, str(state.head_block.system_time)
                rows.append((str(dataset.alias), kind, f"{state.record_count:,}", updated))
            except errors.OdfchainError as error:
                # one damaged dataset must not hide the others
                rows.append((str(dataset.alias), "damaged", "", str(error)))
        return table_html(("dataset", "kind", "records", "updated"), rows)

    def matching(self, pattern: str) -> list[Dataset]:
        """The datasets that a reference or a `%` pattern names."""
        return [Dataset(self, files) for files in self._current().matching(pattern)]

    @options.takes(Pull)
    def pull(self, asked: Pull) -> PullResult:
        """A dataset elsewhere is here, complete and checked; or one of this workspace is up to date.

        `ref` is a URL or `repo/name`, or a name of this workspace (then as `Dataset.pull`). What was pulled
        from there before is continued, else a new dataset is called `name`, or as the URL ends. The `token`
        goes to the server that `ref` names, and to no other.
        """
        from odfchain.api.pulling import check_alone, pull

        target = asked.ref
        if isinstance(target, str):
            (target,) = self.pull_targets([target])
            check_alone(target, asked.name, asked)
        return pull(self, target, asked, name=asked.name, token=asked.token)

    def pull_targets(
        self, names: Iterable[str] | None = None, *, recursive: bool = False
    ) -> list[PullTarget]:
        """Targets of a pull of several datasets, in order.

        Names are references of this workspace, `%` patterns, URLs or `repo/name`; None is every dataset that
        can be pulled. With `recursive`, what they come from is pulled first.
        """
        from odfchain.api.pulling import targets_of

        return targets_of(self, names, recursive=recursive)

    def push_targets(
        self, names: Sequence[str] | None = None, to: str | None = None, *, recursive: bool = False
    ) -> list[PushTarget]:
        """Targets of a push of several, inputs before what is made of them; `target.dataset.push(target.to)`.

        Names are references and `%` patterns; None is every dataset, or without `to` every one that was
        pushed before. `to` is a repository, by its name or URL, below which they keep their names; for one
        name it is the place itself, as in `Dataset.push`. With `recursive`, what they come from is sent, too.
        """
        from odfchain.api.pulling import push_targets

        return push_targets(self, names, to, recursive=recursive)

    @options.takes(Verify)
    def verify(self, asked: Verify) -> list[Report]:
        """Check chains, rules, sizes and hashes, and what is computed from what; faults are in the reports.

        None is every dataset of the workspace.
        """
        named = self if asked.datasets is None else asked.datasets
        files = [(self[each] if isinstance(each, str) else each)._files for each in named]
        return self._auditor.verify(files, self._engines.of, asked)

    @property
    def _auditor(self) -> Auditor:
        from odfchain.audit.verification import Auditor

        return Auditor(self._files)

    @options.takes(options.VerifyRemote)
    def verify_remote(self, asked: options.VerifyRemote) -> Report:
        """The report of a dataset elsewhere, which does not become one of this workspace.

        Its transactions are not computed again. `source` is a URL or `repo/name`.
        """
        return self._auditor.verify_remote(asked)

    def status(self, *refs: str) -> tuple[DatasetStatus, ...]:
        """What is to be done for the datasets that references and `%` patterns name (default: all).

        Other machines are not asked, and no store. A dataset that cannot be read has a status that says so.
        """
        from odfchain.api.status import status_of

        return tuple(status_of(self._files, refs))

    def lineage(self, refs: Iterable[str] = (), *, downstream: bool = False) -> Graph:
        """The upstream or downstream graph of datasets (default: all); gaps and damage are in the graph.

        A reference may be a `%` pattern.
        """
        from odfchain.audit.lineage import lineage_of

        files = self._current()
        named = [d for ref in refs for d in files.matching(ref)]
        return lineage_of(files, named or files.datasets(), downstream=downstream)

    @options.takes(Gc)
    def gc(self, asked: Gc) -> list[Collected]:
        """Remove what datasets (default: all) do not need, and remains of interrupted commands.

        Keywords are those of `Dataset.gc`; the last result is that of the workspace itself.
        """
        from odfchain.upkeep.garbage import collect, collect_workspace

        named = self if asked.datasets is None else asked.datasets
        found = [collect(dataset._files, asked, workspace=self._files) for dataset in named]
        return [*found, collect_workspace(self._files, asked)]

    def fsck(self, *, dry_run: bool = False, progress: Progress = SILENT) -> list[FsckReport]:
        """Find damaged and missing files, and repair them where a dataset here has a good copy.

        Folders that cannot be opened as a dataset have a report, too.
        """
        from odfchain.upkeep.fsck import FsckReport

        found = [dataset.fsck(dry_run=dry_run, progress=progress) for dataset in self]
        return found + FsckReport.of_unopenable(self._files)

    # --- making and changing datasets --------------------------------------------------------------

    def add(
        self,
        manifest: str | bytes | Path | Sequence[Path],
        *,
        name: str | None = None,
        check: bool = True,
        progress: Progress = SILENT,
    ) -> list[Dataset]:
        """Make every dataset that a manifest (YAML or JSON text), or files and folders of them, define.

        All is checked before the first dataset is made, queries included (`check=False` leaves them to the
        first run); inputs are made first. `name` replaces the name in a manifest of one dataset. What is
        passed over below a folder, or not kept of a manifest, is a note of `progress`. No questions are asked
        about commands and variables (RFC-014): the caller has read the manifest.

        Raises:
            ManifestError: naming file, line and path.
            NameCollisionError: a name is taken.
        """
        from odfchain.api.definitions import check_free, read_given
        from odfchain.workspace.creation import in_creation_order

        given = read_given(manifest)
        given.say(progress.note)
        ordered = in_creation_order(snapshot for _, snapshot in given.found)
        alias = DatasetAlias.parse(name) if name is not None else None
        for snapshot in ordered:
            self.check(snapshot, among=ordered, queries=check, progress=progress)
        check_free((alias or snapshot.name for snapshot in ordered), {dataset.alias for dataset in self})
        return [self.create(snapshot, alias=alias, check=False) for snapshot in ordered]

    def check(
        self,
        snapshot: DatasetSnapshot,
        *,
        among: Sequence[DatasetSnapshot] = (),
        queries: bool = True,
        progress: Progress = SILENT,
    ) -> None:
        """A definition can be made and its queries executed, as far as that is known before there are data.

        `among` are the definitions that it will be made together with. Starts Spark if there are queries;
        without `queries` they are left to the first run.

        Raises:
            ManifestError: the definition breaks a rule, or its inputs are not known.
            QueryError, SchemaError, TransformError: a query cannot be executed, or its result not recorded.
        """
        self._definitions(progress, queries=queries).check(self._with_local_inputs(snapshot), among)

    def _with_local_inputs(self, snapshot: DatasetSnapshot) -> DatasetSnapshot:
        from odfchain.transfer.reading import names_places, with_local_inputs

        if not names_places(snapshot):
            return snapshot
        return with_local_inputs(snapshot, self._files.resolve, self.sharing.local)

    def _definitions(self, progress: Progress, *, queries: bool) -> Definitions:
        from odfchain.ingest.schema_fit import check_usable
        from odfchain.transform.validate import Checker, Definitions

        engines = self._engines
        checker = Checker(
            lambda: engines.transforms(progress),
            lambda t: engines.remote(t) is None,
            lambda: engines.datafusion(progress),
            progress,
        )
        return Definitions(self._files, checker if queries else None, progress, check_usable)

    def update(
        self,
        snapshot: DatasetSnapshot,
        *,
        alias: DatasetAlias | None = None,
        check: bool = True,
        state: StateChange | None = None,
        drop_constraints: bool = False,
        progress: Progress = SILENT,
    ) -> tuple[Dataset, list[MetadataEvent]]:
        """Append what a definition says and its dataset does not yet; returns what was appended.

        What the definition does not mention stays in force. `state` says what becomes of what a query that
        changes remembers; with `StateChange.FROM_NOW` the dataset is brought up to date first. Attachments
        without the constraints in force need `drop_constraints`. Source: specification "Query Evolution".

        Raises:
            TransformError: the query changes, it remembers something, and `state` is None.
            IngestError: the constraints in force would be dropped.
        """
        from odfchain.api.pulling import PullTarget, Way

        dataset = self[alias or snapshot.name]
        own = PullTarget(str(dataset.alias), Way.INPUTS, dataset)  # also where it is a copy
        snapshot = self._with_local_inputs(snapshot)
        files = dataset._files
        events = self._definitions(progress, queries=check).update(
            files, snapshot,
            state=state, finish=lambda: self.pull(own, progress=progress), drop_constraints=drop_constraints,
        )  # fmt: skip
        self._files.set_watermarks(files, snapshot)
        return dataset, events

    def create(
        self,
        snapshot: DatasetSnapshot,
        *,
        alias: DatasetAlias | None = None,
        system_time: options.Time | None = None,
        check: bool = True,
        system_columns: SystemColumns | None = None,
        progress: Progress = SILENT,
    ) -> Dataset:
        """Make a dataset with a new identity; it appears complete or not at all. `check` as in `add`.

        `system_columns` are the types of offsets and operations; None is what the settings say.
        """
        from odfchain.ingest.schema_fit import check_usable
        from odfchain.transform.validate import with_versions

        if check:
            self.check(snapshot, progress=progress)
        given = with_versions(self._with_local_inputs(snapshot), self._files.config.transform)
        time = options.maybe_time(system_time)
        made = self._files.create(
            given, alias=alias, system_time=time, system_columns=system_columns, check=check_usable
        )
        return Dataset(self, made)

    @options.takes(options.ImportOptions)
    def import_(self, asked: options.ImportOptions) -> Imported:
        """Make a dataset of a file and ingest it; nothing stays behind when that fails.

        The columns and their types are inferred from every value and written into `manifests/NAME.yaml` of
        the workspace's folder; `on_inferred` is called with them before anything is made. `merge` is
        `snapshot`, `ledger` (both need a `key`) or `append`; `event_time` is the column of the event time.
        `force` replaces a manifest.

        Raises:
            UsageError: the format is not known, a column is not in the file, or there is a manifest.
            NameCollisionError: there is a dataset of this name.
        """

        from odfchain.api.definitions import Imported
        from odfchain.ingest.importing import FileImport

        path, progress = Path(asked.path), asked.progress
        key = (asked.key,) if isinstance(asked.key, str) else asked.key
        given = FileImport.of(path, asked.name, key, asked.merge)
        alias = given.name
        if self._files.resolve(alias) is not None:
            raise errors.NameCollisionError(
                f"the dataset {alias} already exists",
                hint=f"bring the file into it: odfchain ingest {alias} FILE; "
                "or choose another name with --as",
            )
        manifest = self.path.parent / "manifests" / f"{alias.name}.yaml"
        taken = errors.UsageError(
            f"{manifest} already exists", hint="choose another name with --as, or replace it with --force"
        )
        if manifest.exists() and not asked.force:
            raise taken
        with tempfile.TemporaryDirectory(dir=self._files.run_folder) as scratch:
            plan = given.plan(
                Path(scratch), progress, asked.event_time, input_format=asked.input_format,
                separator=asked.separator, encoding=asked.encoding,
            )  # fmt: skip
        if asked.on_inferred is not None:
            asked.on_inferred(plan)
        dataset = self.create(plan.snapshot, progress=progress)
        try:
            recorded = {each.name: getattr(asked, each.name) for each in fields(options.RecordOptions)}
            outcome = dataset.ingest(path, **recorded)
            fsio.make_folder(manifest.parent)
            if asked.force:
                fsio.replace_file(manifest, plan.manifest.encode())
            elif not fsio.create_file(manifest, plan.manifest.encode()):
                # it was made since it was looked for
                raise taken  # noqa: TRY301
        except BaseException:
            # also the key, which is kept otherwise: nobody has seen this dataset
            self._files.delete(dataset._files, with_key=True)
            raise
        return Imported(dataset, manifest, plan, outcome)

    def rename(self, ref: str, name: str) -> None:
        """Give a dataset another alias; its id and history stay."""
        self._files.rename(self._current().dataset(ref), DatasetAlias.parse(name))

    def delete(self, *refs: str, force: bool = False, dry_run: bool = False) -> None:
        """Remove datasets from this workspace; their private keys are kept. With `dry_run` none is removed.

        Raises:
            IngestError: others have foreign keys to one, or are made of it (unless `force`); all stay.
        """
        from odfchain.upkeep.garbage import Referrers

        files = self._current()
        # what is damaged has to be removable, too
        doomed = [files.damaged_or_not(ref) for ref in refs]
        if not force:
            Referrers(files).check_datasets_go(doomed)
        for dataset in doomed if not dry_run else ():
            files.delete(dataset)

    @options.takes(options.QueryOptions)
    def sql(self, asked: options.QueryOptions) -> QueryResult:
        """The rows of one SQL query over datasets, as of the blocks that are heads now. Records nothing.

        A table is a dataset's name, quoted where it has dots, with `@POINT` for an earlier moment;
        `state('name[@POINT]'[, 'event time'[, 'key']])` is what is in force.
        """
        from odfchain.api.queries import engine, query_of

        self._current()
        return engine(self, asked).run(query_of(self, asked))

    @options.takes(options.ProofOptions)
    def prove(self, asked: options.ProofOptions) -> Answer:
        """The answer to a query with a signature, for anybody to check."""
        from odfchain.api.queries import pins
        from odfchain.query.proofs import prove

        return prove(asked, pins(self, asked))

    # --- other places, and who may read or write here ---------------------------------------------

    @property
    def sharing(self) -> Sharing:
        """Datasets elsewhere, and what references to them mean; new at each call: it holds nothing."""
        from odfchain.transfer.sharing import Sharing

        return Sharing(self._files)

    def add_witness(self, url: str, key: str, quorum: int | None = None) -> str:
        """Ask a witness, whose key is a vkey, to cosign each head that is pushed or signed; its name.

        It becomes one of those whom pulls know. `quorum` is how many of them a pull wants from now on.
        """
        from odfchain.api.settings import add_witness

        return add_witness(self.path, url, key, quorum)

    def witnesses(self) -> list[KnownWitness]:
        """The witnesses that the settings name."""
        from odfchain.transfer.witnesses import KnownWitness, known_witnesses

        trust = self._files.config.trust
        wanted = trust.witnesses.witnesses
        return [KnownWitness(key, trust.ask.get(str(key)), key in wanted) for key in known_witnesses(trust)]

    @property
    def repositories(self) -> Repositories:
        """The repositories that the workspace knows by name."""
        return self.sharing.repositories

    @property
    def evidence(self) -> EvidenceStore:
        """The proofs that owners of datasets signed two histories."""
        return self.sharing.evidence

    @property
    def tokens(self) -> TokenFile:
        """The tokens of those who may read or push here, where `serve` asks for one."""
        from odfchain.transfer.access_tokens import TokenFile

        return TokenFile(self._files.root)

    # --- Spark -------------------------------------------------------------------------------------

    def session(self) -> SparkSession:
        """The workspace's Spark session, started at the first call with the workspace's settings."""
        return self._engines.session()

    def close(self) -> None:
        """Stop the Spark session if one was started."""
        self._engines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, Exception):
                from odfchain.spark.jobs import explain, is_of_spark

                if is_of_spark(error):
                    raise explain(error) from error  # what it says is lost with the session
        finally:
            self.close()


open = Workspace.open  # noqa: A001 - as `gzip.open`: it is meant to be qualified
init = Workspace.init
