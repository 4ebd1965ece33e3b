"""The public Python API: workspaces and datasets. The command line is built on nothing else."""

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace

__all__ = ["Dataset", "Workspace"]
