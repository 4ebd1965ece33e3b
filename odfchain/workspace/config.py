"""The workspace's settings: `.odfchain/config.yaml`, a manifest of kind `WorkspaceConfig`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar

from odfchain.chain.checkpoints import WitnessPolicy
from odfchain.chain.statements import parse_did
from odfchain.errors import UsageError
from odfchain.limits import LIMITS
from odfchain.odf.manifests import ManifestKind, read_manifest
from odfchain.odf.sources import WatermarkRule
from odfchain.odf.times import Duration, Recurrence
from odfchain.odf.tree import Rule, to_tree
from odfchain.odf.yaml import dump_yaml, read_document
from odfchain.storage import fsio
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import SystemColumns

# Settings of profiles, in a workspace or in one of its datasets.


class ProfileWhen(Enum):
    """When profiles are written."""

    DEMAND = "demand"
    COMMIT = "commit"
    """Whenever rows are committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsConfig:
    """How datasets are profiled, and what drift is refused."""

    profile: ProfileWhen = ProfileWhen.DEMAND
    guard: str = ""
    """A file, seen from the folder of the workspace."""

    def of(self, dataset: DatasetFiles) -> SnapshotsConfig:
        """Those in force for a dataset of the workspace; errors as `read_config`."""
        own = read_config(dataset).snapshots or OwnSnapshots()
        # not `or` for the guard: an empty text means that there is none
        return SnapshotsConfig(
            profile=own.profile or self.profile, guard=self.guard if own.guard is None else own.guard
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSnapshots:
    """What is set for one dataset; None is what the workspace says."""

    profile: ProfileWhen | None = None
    guard: str | None = None
    """Empty: none, whatever the workspace says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPull:
    """When a dataset is pulled by itself."""

    every: Recurrence | None = None
    """A length of time, or the five fields of cron in UTC; None is never."""


class SparkFiles(Enum):
    """How executors reach inputs and slices (RFC-048)."""

    AUTO = "auto"
    """By the store where there is one and Spark has executors elsewhere, by folders elsewhere."""
    SHARED = "shared"
    """By the folders of the driver, which they see under the same paths."""
    STORE = "store"
    """By the store, with credentials of their own environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    """How the Spark session is made."""

    master: str = "local[*]"
    remote: str | None = None
    driver_memory: str = "2g"
    """Heap of the driver (in local mode also of the tasks)."""
    conf: dict[str, str] = field(default_factory=dict)
    """They win over odfchain's own defaults."""
    files: SparkFiles = SparkFiles.AUTO

    @property
    def is_local(self) -> bool:
        """True if all of Spark is in processes of this machine that share memory."""
        # not `startswith`: `local-cluster[…]` has processes of its own
        return self.remote is None and self.master.partition("[")[0] == "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What stays between commands."""

    idle: Duration = field(default_factory=lambda: Duration(600_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusConfig:
    """When `status` reminds of a dataset."""

    due_after: Duration = field(default_factory=lambda: Duration(86_400_000))


class LateEdits(Enum):
    """Action when a ledger's source brings a known key with other values (RFC-009)."""

    IGNORE = "ignore"
    """Nothing, without looking: the strategy as it is specified."""
    WARN = "warn"
    """Nothing, but say how many there are."""
    REFUSE = "refuse"
    """Stop the run and name the first."""
    CORRECT = "correct"


class DuplicateKeys(Enum):
    """Action when one input of a ledger or snapshot has rows with one key and other values (RFC-009)."""

    REFUSE = "refuse"
    """Stop the run and show the first two."""
    FIRST = "first"
    """Keep the first in the order of the input."""
    LAST = "last"
    """Keep the last in the order of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A value for templates; a text alone is the value."""

    SHORT: ClassVar[str] = "value"
    value: str
    hosts: tuple[str, ...] | None = None
    """The only hosts that it may be sent to; default is every host that a manifest names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig:
    """How ingestion behaves."""

    max_retract_ratio: Annotated[float, Rule("between 0 and 1", lambda ratio: 0 <= ratio <= 1)] = 0.5
    late_edits: LateEdits = LateEdits.IGNORE
    duplicate_keys: DuplicateKeys = DuplicateKeys.REFUSE
    retries: int = 3
    variables: dict[str, Variable] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, str]:
        """The value of each variable."""
        return {name: variable.value for name, variable in self.variables.items()}

    @property
    def bindings(self) -> dict[str, tuple[str, ...]]:
        """The hosts of the variables that are bound to some."""
        return {name: v.hosts for name, v in self.variables.items() if v.hosts is not None}

    allow_commands: bool = False
    max_future: Duration = field(default_factory=lambda: Duration(86_400_000))
    allow_future: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """Bounds on fetching from polling sources."""

    deadline_seconds: int = 3_600
    """Longest time from the first request to the last byte [s]."""
    retries: int = 4
    """Attempts after the first, on failures that may pass."""
    max_bytes: int = 1 << 40
    """Largest download, and largest file after unpacking [bytes]."""
    allow_private_redirects: bool = False
    """Follow redirects to private addresses."""


class IsolationPolicy(Enum):
    """When queries run in a process without network and without the user's files."""

    STRANGERS = "strangers"
    """Queries of datasets that were not created here."""
    ALWAYS = "always"
    """Every query."""
    NEVER = "never"
    """None: queries have the gate alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Where an engine is: at an address or in an image; a text alone is the address."""

    SHORT: ClassVar[str] = "address"
    address: str | None = None
    image: str | None = None
    """It is started for each step, and has no network."""


_ONE_PLACE = Rule("either an address or an image", lambda p: bool(p.address) is not bool(p.image))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformConfig:
    """How derivative datasets are executed."""

    engines: dict[str, Annotated[EnginePlace, _ONE_PLACE]] = field(default_factory=dict)
    compatible_versions: tuple[str, ...] = ()
    isolation: IsolationPolicy = IsolationPolicy.STRANGERS
    timeout_seconds: int = 0
    isolated_seconds: int = 3_600
    isolated_memory_mib: int = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig:
    """How datasets are carried from and to peers."""

    ipfs_gateway: str = "http://localhost:8080"
    parallel: Annotated[int, range(1, 101)] = 10
    """Most objects that are transferred at the same time [count]."""
    retries: int = 3
    """Attempts after the first, on failures that may pass."""
    allow_private_redirects: bool = False
    """Follow redirects from public to private addresses."""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Whose verdicts count."""

    trusted_auditors: tuple[Annotated[str, Rule("a DID", parse_did)], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustConfig:
    """Which witnesses are asked, and whose word is wanted."""

    ask: dict[str, str] = field(default_factory=dict)
    """The witnesses that push and sign ask to cosign: the URL of each by its key."""
    cosign: bool = False
    """Heads that are pulled are cosigned here, once their chain was checked."""
    witnesses: WitnessPolicy = field(default_factory=WitnessPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetsConfig:
    """What datasets are like that are made here."""

    system_columns: SystemColumns = SystemColumns.SPECIFICATION
    offline_keys: str = ""
    """The folder of their identity keys; empty: the workspace, which then needs no delegate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetsConfig:
    """What may be asked of the stores that asset locks name."""

    trusted_endpoints: tuple[str, ...] = ()
    """Endpoints and origins, such as `https://minio.example.org`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConfig:
    """How queries are answered."""

    signing_key: str = "node.pem"
    """In the settings' folder unless it is an absolute path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchesConfig:
    """How states and branches of datasets are computed."""

    cache_bytes: int = 1 << 30
    spark_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceConfig:
    """How large slices become."""

    max_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConfig:
    """How inputs are merged."""

    task_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceConfig:
    """Settings of a workspace."""

    # what each of them is for says workspace.yaml, which is the file that people read

    spark: SparkConfig = SparkConfig()
    engine: EngineConfig = field(default_factory=EngineConfig)
    ingest: IngestConfig = field(default_factory=IngestConfig)
    fetch: FetchConfig = FetchConfig()
    transform: TransformConfig = field(default_factory=TransformConfig)
    share: ShareConfig = ShareConfig()
    audit: AuditConfig = AuditConfig()
    trust: TrustConfig = field(default_factory=TrustConfig)
    datasets: DatasetsConfig = DatasetsConfig()
    assets: AssetsConfig = field(default_factory=AssetsConfig)
    query: QueryConfig = QueryConfig()
    branches: BranchesConfig = BranchesConfig()
    snapshots: SnapshotsConfig = field(default_factory=SnapshotsConfig)
    slice: SliceConfig = SliceConfig()
    merge: MergeConfig = MergeConfig()
    status: StatusConfig = field(default_factory=StatusConfig)

    def system_columns_of(self, dataset: DatasetFiles) -> SystemColumns:
        """Types of offsets and operations of a dataset that has no schema yet; errors as `read_config`."""
        return read_config(dataset).system_columns or self.datasets.system_columns


WORKSPACE_CONFIG = ManifestKind("WorkspaceConfig", WorkspaceConfig, range(1, 2))


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A kind of `config.yaml`: its settings, and a new one."""

    kind: ManifestKind
    new: str
    """The file of the package that a new one is a copy of."""

    @property
    def text(self) -> str:
        """The text of a new one."""
        return Path(__file__).with_name(self.new).read_text(encoding="utf-8")

    def parse(self, data: bytes, source: str) -> Any:
        """The settings in the text of a file; a `ManifestError` names line and path."""
        return read_manifest(read_document(data, source=source), self.kind, source)

    def load(self, folder: Path) -> Any:
        """The settings in a folder's file, or the defaults when there is none."""
        path = folder / "config.yaml"
        return self.parse(path.read_bytes(), str(path)) if path.exists() else self.kind.content()


OF_WORKSPACE = SettingsFile(WORKSPACE_CONFIG, "workspace.yaml")


# Settings of one dataset here: `info/config`, a private manifest of kind `DatasetConfig`.


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """What the owner of a copy has set for it."""

    pull_aliases: tuple[str, ...] = ()
    """Where the dataset is pulled from: remote aliases or URLs, the preferred one first."""
    push_aliases: tuple[str, ...] = ()
    """Where the dataset is pushed to: remote aliases or URLs."""
    require_signature: bool | None = None
    """True if pulls need the owner's signature of the head."""
    max_signature_age_seconds: Annotated[int, range(1, 1 << 63)] | None = None
    """How old that signature may be [s]."""
    witnesses: WitnessPolicy | None = None
    """The witnesses that pulls want beside those that the workspace wants."""
    watermarks: dict[str, WatermarkRule] = field(default_factory=dict)
    """How the watermark of each source moves, by the source's name."""
    system_columns: SystemColumns | None = None
    """Types of offsets and operations until the first schema is written; None is what the settings say."""
    snapshots: OwnSnapshots | None = None
    """Profile settings of this dataset; None is the workspace's setting."""
    pull: OwnPull | None = None
    """What `serve --pull` and `pull --watch` do with it; None is nothing."""

    def rule_of(self, source_name: str) -> WatermarkRule:
        """How the watermark of a source moves, as its manifest says."""
        return self.watermarks.get(source_name, WatermarkRule())


DATASET_CONFIG = ManifestKind("DatasetConfig", DatasetConfig, range(1, 2))


def config_path(dataset: DatasetFiles) -> Path:
    """The file, whether it is there or not."""
    return dataset.folder / "info" / "config"


def read_config(dataset: DatasetFiles) -> DatasetConfig:
    """Read the settings of a dataset; the defaults when it has no such file."""
    path = config_path(dataset)
    # one byte more than is allowed: a file that is too long is refused, not cut
    data = fsio.read_start(path, LIMITS.manifest_bytes + 1)
    if data is None:
        return DatasetConfig()
    config: DatasetConfig = read_manifest(read_document(data, source=str(path)), DATASET_CONFIG, str(path))
    return config


def change_config(dataset: DatasetFiles, change: Callable[[DatasetConfig], DatasetConfig]) -> bool:
    """Durably set what `change` makes of what is set; False when that is the same."""
    with fsio.locked(dataset.folder / "info" / "lock"):
        config = read_config(dataset)
        changed = change(config)
        if changed == config:
            return False
        tree = to_tree(changed)
        if not changed.watermarks:
            del tree["watermarks"]  # most datasets have none
        document = {"kind": DATASET_CONFIG.name, "version": DATASET_CONFIG.versions[-1], "content": tree}
        # not for everybody: a URL may have a password in it
        fsio.replace_file(config_path(dataset), dump_yaml(document).encode(), mode=0o600)
    return True


# Settings of a user, for every workspace: a manifest of kind `UserConfig`.
#
# $XDG_CONFIG_HOME/odfchain/config.yaml       (~/.config where that is not set), mode 0600

EVERY = "*"
BELOW = "/*"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeConfig:
    """What is trusted although others could have written it."""

    workspace: tuple[str, ...] = ()
    """Folders of workspaces that are trusted with any owner: a path, `PATH/*` for all below it, or `*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """Settings of a user."""

    safe: SafeConfig = SafeConfig()

    def trusts(self, root: Path) -> bool:
        """True if the user trusts the workspace whose `.odfchain` folder is `root`."""
        real = root.resolve()
        return any(_means(text, real, root.name) for text in self.safe.workspace)


USER_CONFIG = ManifestKind("UserConfig", UserConfig, range(1, 2))

OF_USER = SettingsFile(USER_CONFIG, "user.yaml")


def user_folder() -> Path:
    """Where the settings of the user are."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or _expanded("~/.config")) / "odfchain"


def _expanded(text: str) -> Path:
    return Path(os.path.expanduser(text))  # noqa: PTH111 - `Path` fails where a user has no home


def absolute(text: str) -> str:
    """A value of `safe.workspace` that means the same in whichever folder it is read."""
    if not text.strip():
        raise UsageError("safe.workspace: a path is empty", hint="name the folder of the workspace")
    return text if text == EVERY else str(_expanded(text).absolute())


def _means(text: str, real: Path, name: str) -> bool:
    if text == EVERY:
        return True
    path = _expanded(text.removesuffix(BELOW))
    if not path.is_absolute():  # it would mean another folder wherever a command runs
        return False
    if text.endswith(BELOW):
        return real.is_relative_to(path.resolve())
    # users may name the folder of the workspace, or the settings' folder in it
    return real in (path.resolve(), (path / name).resolve())
