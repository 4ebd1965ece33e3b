"""Files of the user that commands write."""

from __future__ import annotations

from odfchain.store.fsio import make_folder, move_folder, remove_quietly, replaced, storage_errors, temp_path

__all__ = ["make_folder", "move_folder", "remove_quietly", "replaced", "storage_errors", "temp_path"]
