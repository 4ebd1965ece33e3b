"""One dataset of a workspace: its log, its data, and what brings it up to date.

Heavy libraries (Spark, pyarrow) are loaded by the methods that need them.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.branching import Branching, check_head_is_ours, commit_checks, latest_of
from odfchain.api.view import Readable
from odfchain.errors import OdfchainError, UsageError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import AddData, DisablePollingSource, DisablePushSource
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.schema import type_name
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, Progress
from odfchain.spark.known_errors import OwnErrors
from odfchain.storage.fsio import storage_errors
from odfchain.text import one_line, table_html
from odfchain.workspace import options
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.api.pulling import PullResult
    from odfchain.api.workspace import Workspace
    from odfchain.assets.locks import AssetLock
    from odfchain.assets.objects import StoreOptions
    from odfchain.audit.blame import Blame
    from odfchain.audit.lineage import Definition, Graph
    from odfchain.audit.report import ListedAttestation, Report
    from odfchain.audit.verification import NewAttestation
    from odfchain.chain.key_statements import Delegate, KeyHistory, Revocation
    from odfchain.chain.signed_heads import HeadSignature
    from odfchain.chain.statements import SignedHead
    from odfchain.ingest.ingesting import IngestOptions, IngestOutcome
    from odfchain.odf.identity import DatasetKey, DidKey
    from odfchain.odf.sources import WatermarkRule
    from odfchain.odf.times import Timestamp
    from odfchain.transfer.pulling import FetchOutcome
    from odfchain.transfer.pushing import PushOutcome, PushPlan
    from odfchain.transfer.slice_files import LocalSlices
    from odfchain.upkeep.compact import BatchLimits, Compaction, CompactPlan, SoftPlan
    from odfchain.upkeep.fsck import FsckReport
    from odfchain.upkeep.garbage import Collected
    from odfchain.upkeep.reset import Reset, ResetPlan


# Maintenance: the methods of `Dataset` on its files.


class Upkeep(OwnErrors):
    """Resets, garbage, repairs and compactions of a dataset."""

    _workspace: Workspace
    _files: DatasetFiles

    def plan_reset(self, block: options.Block) -> ResetPlan:
        """Plan a `reset` to a block (its hash or number); nothing is changed.

        In a workspace with a store the hash of the head there may be given, whatever was seen here: then
        `reset` follows it (`Workspace.last_seen`).
        """
        return self._reset.plan(str(block) if isinstance(block, int) else block)

    @property
    def _reset(self) -> Reset:
        from odfchain.upkeep.reset import Reset

        return Reset(self._workspace._files, self._files)

    def reset(
        self, to: options.Block | ResetPlan, *, force: bool = False, break_references: bool = False
    ) -> str | None:
        """The head is at a block, or where a plan says; returns the reference that keeps the old one.

        Raises:
            WorkspaceError: blocks that would be dropped are perhaps nowhere else (unless `force`).
            IngestError: rows name changes that would be dropped (unless `break_references`).
        """
        plan = self.plan_reset(to) if isinstance(to, Multihash | int | str) else to
        return self._reset.run(plan, force=force, break_references=break_references)

    @options.takes(options.GcOptions)
    def gc(self, asked: options.GcOptions) -> Collected:
        """Remove objects that the dataset does not need and that were not used for `grace` [s].

        `drop_refs` gives up heads that were overwritten, reset or compacted before that. Changes that rows of
        this workspace name stay, and these are named; with `break_references` they go, too. Where it cannot
        be said what is needed, nothing is removed.
        """
        from odfchain.upkeep.garbage import collect

        return collect(self._files, asked, workspace=self._workspace._files)

    def fsck(
        self,
        source: str | None = None,
        *,
        head: Multihash | None = None,
        dry_run: bool = False,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> FsckReport:
        """Find damaged and missing files, and repair them where there is a good copy.

        `source` is a URL or `repo/name` of any copy (default: the store that the dataset is in, if any); it
        need not be trusted. `head` is what a lost head is to be, when the caller knows it.
        """
        from odfchain.upkeep.fsck import Fsck

        source = source or self._files.shared.place(self._files.folder)
        opened = nullcontext() if source is None else closing(self._workspace.sharing.open(source, token))
        with opened as peer:
            files = self._workspace._files
            return Fsck(files, self._files, peer, dry_run=dry_run, head=head, progress=progress).run()

    def plan_compact(self, *, limits: BatchLimits | None = None, metadata_only: bool = False) -> CompactPlan:
        """Plan `compact`, with the datasets and branches that it breaks; nothing is changed.

        `limits` say how large a merged slice may become; `metadata_only` gives up all data.
        """
        return self._compaction.plan(limits, metadata_only=metadata_only)

    @property
    def _compaction(self) -> Compaction:
        from odfchain.upkeep.compact import Compaction

        return Compaction(self._workspace._files, self._files)

    def compact(
        self,
        plan: CompactPlan | None = None,
        *,
        force: bool = False,
        break_references: bool = False,
        progress: Progress = SILENT,
    ) -> Multihash:
        """Merge small slices and replace their blocks; returns the new head.

        Readers of the old blocks must start over; `plan_compact` names them.

        Raises:
            IngestError: rows name changes that would be replaced (unless `break_references`).
        """
        chosen = plan or self.plan_compact()
        return self._compaction.run(chosen, force=force, break_references=break_references, progress=progress)

    def plan_soft_compact(self, name: str | DatasetAlias, limits: BatchLimits | None = None) -> SoftPlan:
        """Plan `soft_compact`; nothing is changed."""
        alias = DatasetAlias.parse(name) if isinstance(name, str) else name
        return self._compaction.plan_soft(alias, limits)

    def soft_compact(self, to: str | SoftPlan, *, progress: Progress = SILENT) -> Dataset:
        """Make a new root dataset with the records of this one in few slices; this one stays."""
        plan = self.plan_soft_compact(to) if isinstance(to, str) else to
        return Dataset(self._workspace, self._compaction.run_soft(plan, progress))


@dataclass(frozen=True)
class RecordLock(options.RecordOptions):
    """A lock of assets that is recorded."""

    lock: AssetLock
    probed: bool = field(default=True, kw_only=True)


class Dataset(Branching, Readable, Upkeep):
    """One dataset of a workspace. Reading its log never starts Spark."""

    @property
    def data_size(self) -> int:
        """Size of all slice files [bytes]."""
        return sum(map(self._files.data.size, self._files.data.names()))

    @property
    def has_key(self) -> bool:
        """True if the private key is in this workspace: the dataset was made here."""
        return self._workspace._files.has_key(self.id)

    @property
    def watermark_rules(self) -> Mapping[str, WatermarkRule]:
        """The watermark rule of each source, by its name; stored with the dataset, not in its chain."""
        from odfchain.workspace.config import read_config

        return read_config(self._files).watermarks

    def __repr__(self) -> str:
        try:
            state = self.summary
        except OdfchainError as error:
            return f"<Dataset {self.alias}: damaged: {one_line(str(error))}>"
        kind = state.seed.dataset_kind.value.lower()
        found = [kind, f"{state.record_count:,} records", f"{state.head_block.sequence_number + 1:,} blocks"]
        found += [f"watermark {state.watermark}"] if state.watermark else []
        return f"<Dataset {self.alias}: {', '.join(found)}>"

    def _repr_html_(self) -> str:
        try:
            state = self.summary
            facts = [
                ("id", self.id),
                ("kind", state.seed.dataset_kind.value),
                ("records", f"{state.record_count:,}"),
                ("blocks", f"{state.head_block.sequence_number + 1:,}"),
                ("updated", state.head_block.system_time),
                ("watermark", state.watermark or ""),
                ("head", state.head),
            ]
            fields = state.schema.fields if state.schema else ()
        except OdfchainError as error:
            return table_html(("what", "value"), [("damaged", error)], str(self.alias))
        columns = table_html(("column", "type"), [(field.name, type_name(field.type)) for field in fields])
        return table_html(("what", "value"), facts, str(self.alias)) + columns

    # --- bringing data -----------------------------------------------------------------------------

    @options.takes(options.FileOptions)
    def ingest(self, asked: options.FileOptions) -> IngestOutcome:
        """Ingest files in the order given: each is one transaction, all are published together or none.

        Without a key, a file that was ingested already is passed over, unless it is to come in `again`.
        A stream is one file; it is written to disk first, to be read more than once.
        """
        progress = asked.progress
        check_head_is_ours(self._workspace, self._files, "ingest")
        start = functools.partial(self._workspace._engines.session, progress)
        chosen = self._ingest_options(asked)
        given: Any = (asked.files,) if isinstance(asked.files, str | Path) else asked.files
        if not hasattr(given, "read"):
            return self._ingest_files(start, chosen, asked, [Path(file).resolve() for file in given])
        with self._files.staging() as folder:
            path = folder / "stdin"
            progress.phase("Reading standard input")
            with storage_errors(path), path.open("xb") as out:
                shutil.copyfileobj(given, out, 4 << 20)
            named = dataclasses.replace(chosen, input_name=path.name)
            return self._ingest_files(start, named, asked, [path.resolve()])

    def _ingest_options(self, asked: options.RecordOptions) -> IngestOptions:
        from odfchain.ingest.ingesting import IngestOptions
        from odfchain.workspace.config import DuplicateKeys, LateEdits

        config = self._workspace._files.config
        known, ratio = config.ingest, 1.0 if asked.allow_retract else asked.max_retract_ratio
        return IngestOptions(
            allow_empty=asked.allow_empty,
            max_retract_ratio=known.max_retract_ratio if ratio is None else ratio,
            late_edits=options.member(LateEdits, "late_edits", asked.late_edits, known.late_edits),
            duplicate_keys=options.member(
                DuplicateKeys, "duplicate_keys", asked.duplicate_keys, known.duplicate_keys
            ),
            allow_future=asked.allow_future or known.allow_future,
            max_future=known.max_future,
            system_columns=config.system_columns_of(self._files),
            slice_bytes=config.slice.max_bytes,
            task_bytes=config.merge.task_bytes,
            source_name=getattr(asked, "source_name", None),
            input_format=getattr(asked, "input_format", None),
            again=getattr(asked, "again", None),
            event_time=options.maybe_time(getattr(asked, "event_time", None)),
            system_time=options.maybe_time(asked.system_time),
            retries=known.retries if asked.retries is None else asked.retries,
        )

    def _ingest_files(
        self,
        start: Callable[[], SparkSession],
        chosen: IngestOptions,
        asked: options.RecordOptions,
        paths: list[Path],
    ) -> IngestOutcome:
        from odfchain.ingest.ingesting import Ingestion

        known = self._workspace._engines
        with known.of(self._files, asked.progress) as engines, commit_checks(self._workspace, asked) as check:
            run = Ingestion(self._files, start, engines, chosen, asked.progress, check)
            return run.push(paths, expect_rows=known.begin)

    @options.takes(options.FrameOptions)
    def ingest_frame(self, asked: options.FrameOptions) -> IngestOutcome:
        """Ingest a Spark DataFrame of this process, or what streams Arrow, as `ingest` does a file.

        A `batch` is (name of a stream, number that grows) and comes in once.
        """
        return self._ingest_frame(asked.frame, asked, asked.batch)

    def _ingest_frame(
        self,
        frame: Any,
        asked: options.RecordOptions,
        batch: tuple[str, int] | None = None,
        *,
        name: str = "the frame",
    ) -> IngestOutcome:
        from odfchain.ingest.ingesting import known_batch
        from odfchain.ingest.polling import Batch
        from odfchain.ingest.read_formats import write_frame_file

        check_head_is_ours(self._workspace, self._files, "ingest")
        of_stream = None if batch is None else Batch(*batch)
        chosen = self._ingest_options(asked)
        chosen = dataclasses.replace(chosen, input_format="parquet", input_name=name, batch=of_stream)
        start = self._session_for(frame, asked.progress)
        if (outcome := known_batch(self._files, self.summary, chosen)) is not None:
            return outcome  # nothing of it is computed again
        with self._files.staging() as folder:
            asked.progress.phase(f"Writing {name}")
            path = write_frame_file(frame, folder)
            return self._ingest_files(start, chosen, asked, [path.resolve()])

    @options.takes(RecordLock)
    def record_lock(self, asked: RecordLock) -> IngestOutcome:
        """Record a lock of assets as one block of changes, or none where no row differs.

        Assets whose stores did not answer, or with `probed=False` were not asked, keep their recorded facts.
        """
        from odfchain.ingest.ingesting import IngestOutcome, InputOutcome

        lock, known = asked.lock, self.lock()
        if not asked.probed or lock.faults:
            lock = lock.completed_by(known, probed=asked.probed)
        # equal locks need no merge, and thus no Spark
        same = known.table.num_rows and known.table.equals(lock.table)
        if same and not options.given_options(asked, options.RecordOptions):
            state, nothing = self.summary, dict.fromkeys(("+A", "-R", "-C", "+C"), 0)
            brought = InputOutcome("the lock", lock.table.num_rows, nothing, None)
            return IngestOutcome((brought,), state.head, state.head, 0, state.watermark)
        return self._ingest_frame(lock.table, asked, name="the lock")

    def _session_for(self, frame: Any, progress: Progress) -> Callable[[], SparkSession]:
        from odfchain.ingest.read_formats import is_of_spark
        from odfchain.spark.plans import is_local
        from odfchain.spark.session import recording_session

        engines = self._workspace._engines
        if is_of_spark(frame) and not (engines.spark is not None and engines.spark.started):
            given = frame.sparkSession
            # one Spark per process: a second session in the Spark of the given frame
            files = engines.executor_files
            return functools.cache(lambda: recording_session(given, files(local=is_local(given))))
        return functools.partial(engines.session, progress)

    @options.takes(options.PullOptions)
    def pull(self, asked: options.PullOptions) -> PullResult:
        """Bring the dataset up to date: with the peer it was copied from, its inputs, or its polling source.

        Every byte of a source is ingested once, and every record of an input read once, however often this
        is interrupted: after an error all is as the last transaction left it.
        """
        from odfchain.api.pulling import check_alone, pull, target_of

        target = target_of(self)
        check_alone(target, None, asked)
        return pull(self._workspace, target, asked)

    def set_watermark(self, watermark: options.Time, *, allow_future: bool = False) -> Multihash:
        """Record a watermark without data; returns the hash of the block.

        Raises:
            UsageError: the dataset is derivative.
            AppendError: the watermark would go back.
            IngestError: it lies further in the future than the workspace's settings allow.
        """
        from odfchain.workspace.commit import commit

        files, state, mark = self._files, self.summary, options.as_time(watermark)
        if state.seed.dataset_kind is not DatasetKind.ROOT:
            raise UsageError(f"{self.alias} is a derivative dataset: its watermark comes from its inputs")
        check_head_is_ours(self._workspace, files, "pull --set-watermark TIME")
        now = state.next_system_time()
        state.check_watermark(self.alias, mark, latest_of(self._workspace, allow_future=allow_future)(now))
        recorded = state.state_of_source(POLLING_SOURCE)
        event = AddData(
            prev_offset=state.last_offset,
            prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
            new_checkpoint=state.checkpoint,
            new_watermark=mark,
            new_source_state=recorded[0] if recorded else None,
        )
        (name,) = commit(files, state, [event], [], system_time=now)
        return name

    def disable_source(
        self, name: str | None = None, *, system_time: options.Time | None = None
    ) -> tuple[DisablePollingSource | DisablePushSource, Multihash]:
        """End the source of this name, or the only one; returns the event and the hash of its block.

        Raises:
            UsageError: the dataset is derivative, no source of this name is in force, or there are several.
        """
        from odfchain.workspace.commit import commit

        state = self.summary
        if state.seed.dataset_kind is not DatasetKind.ROOT:
            raise UsageError(f"{self.alias} is a derivative dataset: it has inputs, and no sources")
        self._workspace._files.check_is_no_copy(self._files, "`odfchain pull` brings what its owner ends")
        event = self._disabling(state, name)
        now = state.next_system_time(options.maybe_time(system_time))
        (block,) = commit(self._files, state, [event], [], system_time=now)
        return event, block

    def _disabling(self, state: DatasetState, name: str | None) -> DisablePollingSource | DisablePushSource:
        pushed, polled = list(state.push_sources), state.polling_source is not None
        known = [*([POLLING_SOURCE] if polled else []), *pushed]
        hint = "`odfchain log` shows the events that define and disable sources"
        if not known:
            raise UsageError(f"{self.alias} has no source in force", hint=hint)
        if name is None and len(known) > 1:
            raise UsageError(
                f"{self.alias} has several sources: {', '.join(pushed)}", hint="choose one with --source"
            )
        if name is not None and name not in known:
            raise UsageError(
                f"{self.alias} has no source called {name!r} in force (it has {', '.join(known)})", hint=hint
            )
        return DisablePollingSource() if polled else DisablePushSource(source_name=name or pushed[0])

    # --- other places ------------------------------------------------------------------------------

    @options.takes(options.PushOptions)
    def push(self, asked: options.PushOptions) -> PushOutcome:
        """The destination has this head, or branch, and all it refers to, or its readers see what it had.

        `target` is a URL (`file`, `s3`, `gs`, `az`; `odf+https` for a node), `repo/name` or a repository's
        name; None is where it was pushed to before; the `token` is for a target that is given. A dataset that
        is made at a node is private, or `public`. `force` replaces blocks of the destination that are not
        here, without `create` only a dataset that is there is updated, `merged` sends what was merged, too,
        and `parallel` objects are sent at the same time.
        """
        from odfchain.transfer.pushing import push

        return push(self._workspace.sharing, self._files, asked)

    @options.takes(options.PushOptions)
    def plan_push(self, asked: options.PushOptions) -> PushPlan:
        """Plan `push`; nothing is written or remembered."""
        from odfchain.transfer import pushing

        return pushing.plan_push(self._workspace.sharing, self._files, asked)

    @options.takes(options.MirrorOptions)
    def fetch(self, asked: options.MirrorOptions) -> FetchOutcome:
        """Slices that are missing here are brought from any mirror, trusted by hash alone.

        `source` is a URL or `repo/name`; None is where the dataset was pulled from. `since` and `last` (the
        newest slices) bring only a part, as in `pull`; so does `where`, an SQL condition: slices that hold no
        such record stay away, by what the owner signed of them, or was found in them here before.
        """
        from odfchain.transfer.pulling import fetch_missing
        from odfchain.transfer.sharing import check_shareable
        from odfchain.transfer.slice_files import Selection

        check_shareable(self._files)
        files, sharing = self._files, self._workspace.sharing
        parallel = asked.parallel or sharing.config.parallel
        condition = None
        if asked.where is not None:
            from odfchain.slices.conditions import parse_where
            from odfchain.workspace.dataset_state import DatasetState
            from odfchain.workspace.read_slices import columns_of

            condition = parse_where(asked.where, columns_of(DatasetState.read(files.chain), None))
        part = Selection(since=options.maybe_time(asked.since), last=asked.last)
        with closing(sharing.mirror(files, asked.source, parallel, asked.token)) as peer:
            return fetch_missing(
                files, peer, part, where=condition, parallel=parallel, progress=asked.progress
            )

    def fetch_from_locks(
        self,
        locks: Sequence[AssetLock],
        *,
        stores: StoreOptions | None = None,
        parallel: int | None = None,
        progress: Progress = SILENT,
    ) -> FetchOutcome:
        """Slices that are missing here are brought from wherever locks say that they are; hashes decide."""
        from odfchain.assets.objects import StoreOptions
        from odfchain.transfer.slice_locks import LockTransport

        parallel = parallel or self._workspace.sharing.config.parallel
        transport = LockTransport(locks, self._files, stores or StoreOptions())
        return transport.bring(parallel=parallel, progress=progress)

    def slices_lock(
        self,
        at: str,
        *,
        folder: str | Path = ".",
        probe: bool = True,
        keep_going: bool = False,
        stores: StoreOptions | None = None,
        progress: Progress = SILENT,
    ) -> AssetLock:
        """The lock of the dataset's own slices and checkpoints as they lie below a folder or prefix.

        It is for a file in `folder`: files below that are named relative to it.
        """
        from odfchain.assets.locks import AssetLock
        from odfchain.assets.objects import SlicesOptions
        from odfchain.transfer.slice_files import data_objects

        sizes = {str(item.key): item.size for item in data_objects(self._files)}
        asked = SlicesOptions(
            at, folder=folder, probe=probe, keep_going=keep_going, stores=stores, progress=progress
        )
        return AssetLock.of_slices(str(self.id), sizes, asked)

    def local_slices(self) -> LocalSlices | None:
        """How many slices of a partial copy are here; None for a dataset that is meant to be whole."""
        from odfchain.transfer.slice_files import local_slices

        return local_slices(self._files)

    def aliases(self, kind: str) -> tuple[str, ...]:
        """Remote aliases of the dataset for `pull` or `push`; the last one used comes first."""
        from odfchain.transfer import sharing as known

        return known.aliases(self._files, known.AliasKind(kind))

    def add_alias(self, kind: str, text: str) -> str:
        """Remember a place, before those that are known; returned as it is written down."""
        from odfchain.transfer.sharing import AliasKind, add_alias

        self._workspace.sharing.url_of(text)
        return add_alias(self._files, AliasKind(kind), text)

    def delete_alias(self, kind: str, text: str | None = None) -> tuple[str, ...]:
        """Forget a place, or all of this kind; what was is returned."""
        from odfchain.transfer.sharing import AliasKind

        return AliasKind(kind).forget(self._files, text)

    # --- trust -------------------------------------------------------------------------------------

    @options.takes(options.CheckOptions)
    def verify(self, checks: options.CheckOptions) -> Report:
        """Check chain, rules, bytes and rows; faults are in the report (`raise_if_faulty`), not raised.

        With `replay`, the transactions of a derivative dataset are computed again; without it no engine is
        started. `after` and `upto` name blocks: only those `(after, upto]` are checked.
        """
        return self._workspace.verify([self], **vars(checks))[0]

    def keys(self) -> KeyHistory:
        """Which keys may sign for its owner."""
        return self._files.keys_history()

    def cosigned(self) -> dict[str, Timestamp]:
        """When each witness that the settings name cosigned the head."""
        from odfchain.chain.checkpoints import note_in
        from odfchain.transfer.witnesses import known_witnesses

        files, known = self._files, known_witnesses(self._workspace._files.config.trust)
        if (note := note_in(files.folder, files.id)) is None or note.checkpoint.head != files.chain.head():
            return {}
        return {key.name: time for key, time in note.times(known).items()}

    def new_key(self) -> DidKey:
        """Make a key that is to sign here, once its owner has made it a delegate; its public half."""
        return self._workspace._files.new_key(self._files)

    def say_keys(
        self, key: DatasetKey | None = None, *, delegates: Sequence[Delegate] = (),
        revoked: Sequence[Revocation] = (), successor: Multihash | None = None,
    ) -> KeyHistory:  # fmt: skip
        """Durably say who may sign for the owner, with his key, or his successor's; default is the key here.

        The head is signed anew with that key.
        """
        said = self._workspace._files.say_keys(self._files, key, delegates, revoked, successor)
        self._files.shared.publish_statements(self._files.folder)
        return said

    def sign(self) -> SignedHead:
        """Durably sign the head anew, with the time of now, and have it cosigned; returns what was signed."""
        signed = self._workspace._files.sign_head(self._files)
        self._workspace.sharing.witnesses.ask(self._files)
        self._files.shared.signed(self._files.folder, self._files.ref)
        return signed

    def signature(self, *, verified: bool = True) -> HeadSignature:
        """Check the signature of the head; without `verified` it is believed, which is fast."""
        return self._files.head_signature(verified=verified)

    @options.takes(options.Attest)
    def attest(self, asked: options.Attest) -> NewAttestation:
        """Verify the dataset, sign the outcome with an auditor's key, and store the statement with it.

        What is faulty is attested only with `faulty`: a signed accusation is not to be made by accident.
        """
        made = self._workspace._auditor.attest(self._files, self._workspace._engines.of, asked)
        self._files.shared.publish_statements(self._files.folder)
        return made

    def attestations(self) -> list[ListedAttestation]:
        """Each line of the dataset's attestations, valid or not."""
        return self._workspace._auditor.attestations(self._files)

    def add_attestation(self, text: str) -> None:
        """Keep an attestation that someone handed over, if it is valid and of a block of this dataset."""
        self._workspace._auditor.add_statement(self._files, text)
        self._files.shared.publish_statements(self._files.folder)

    # --- where data come from ----------------------------------------------------------------------

    def lineage(self, *, downstream: bool = False) -> Graph:
        """The upstream or downstream graph of the dataset; gaps and damage are in the graph."""
        from odfchain.audit.lineage import lineage_of

        return lineage_of(self._workspace._files, [self._files], downstream=downstream)

    def definitions(self) -> list[Definition]:
        """Every transform or source that the dataset has had, oldest first, and what it brought."""
        from odfchain.audit.lineage import Definition

        return Definition.all_of(self._workspace._files, self._files)

    def blame(self, first: int, last: int | None = None, *, recursive: bool = False) -> Blame:
        """The origin of the records of offsets `[first; last]` (default: one); `recursive` to the roots."""
        from odfchain.audit.blame import Blame

        return Blame.of(self._workspace._files, self._files, first, last, recursive=recursive)
