"""`ExecutorFiles` in a folder: what workers ask for is read from there, and from nowhere else."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark import cloudpickle

from odfchain.errors import ObjectNotFoundError


@dataclass(frozen=True)
class FolderFiles:
    """Fulfils `odfchain.spark.executor_files.ExecutorFiles`."""

    root: str

    def put(self, path: Path, key: str) -> None:
        target = Path(self.root) / key
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)

    def bring(self, key: str) -> Path:
        if not (path := Path(self.root) / key).exists():
            raise ObjectNotFoundError(f"{key}: there is no such file")
        return path

    def read(self, key: str, start: int, end: int) -> bytes:
        with self.bring(key).open("rb") as stream:
            stream.seek(start)
            data = stream.read(end - start)
        assert len(data) == end - start, "nobody asks for more than there is"
        return data

    def copy(self, key: str, start: int, end: int, target: Path) -> None:
        target.write_bytes(self.read(key, start, end))

    def clear(self, below: str) -> None:
        shutil.rmtree(Path(self.root) / below, ignore_errors=True)


# workers cannot import what tests are made of
cloudpickle.register_pickle_by_value(sys.modules[__name__])
