"""What is set for one dataset here: `info/config`, a private manifest of kind `DatasetConfig`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.codec.tree import to_tree
from odfchain.codec.yaml_manifest import ManifestKind, read_manifest
from odfchain.codec.yaml_reader import read_document
from odfchain.codec.yaml_writer import dump_yaml
from odfchain.limits import LIMITS
from odfchain.model.sources import WatermarkRule
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.snapshot_settings import OwnSnapshots, SnapshotsConfig
from odfchain.repo.system_columns import SystemColumns
from odfchain.store import fsio


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """What the owner of a copy has set for it."""

    pull_aliases: tuple[str, ...] = ()
    """Where the dataset is pulled from: remote aliases or URLs, the preferred one first."""
    push_aliases: tuple[str, ...] = ()
    """Where the dataset is pushed to: remote aliases or URLs."""
    require_signature: bool | None = None
    """Whether pulls need the owner's signature of the head."""
    max_signature_age_seconds: int | None = None
    """How old that signature may be [s]."""
    watermarks: dict[str, WatermarkRule] = field(default_factory=dict)
    """How the watermark of each source moves, by the source's name."""
    system_columns: SystemColumns | None = None
    """Types of offsets and operations until the first schema is written; None is what the settings say."""
    snapshots: OwnSnapshots | None = None
    """What is done about profiles in this dataset; None is what the settings say."""


DATASET_CONFIG = ManifestKind("DatasetConfig", DatasetConfig, range(1, 2))


def config_path(dataset: DatasetFiles) -> Path:
    """The file, whether it is there or not."""
    return dataset.folder / "info" / "config"


def read_config(dataset: DatasetFiles) -> DatasetConfig:
    """What is set for a dataset; nothing when it has no such file."""
    path = config_path(dataset)
    data = fsio.read_start(path, LIMITS.manifest_bytes + 1)
    if data is None:
        return DatasetConfig()
    config: DatasetConfig = read_manifest(read_document(data, source=str(path)), DATASET_CONFIG, str(path))
    return config


def snapshots_of(dataset: DatasetFiles, settings: SnapshotsConfig) -> SnapshotsConfig:
    """What is done about profiles in a dataset, given what its workspace says; errors as `read_config`."""
    own = read_config(dataset).snapshots
    return settings if own is None else own.over(settings)


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
