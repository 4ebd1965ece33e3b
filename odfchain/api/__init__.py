"""Workspaces, datasets, and operations on files: the public API, and all that the command line uses.

Each module is loaded on use: start-up time is part of what the command line promises.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace

__all__ = ["Dataset", "Workspace"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'odfchain.api' has no attribute {name!r}")
    import odfchain

    return getattr(odfchain, name)
