"""Where datasets are published when nothing else is said."""

from odfchain.serve import HOST, PORT

__all__ = ["HOST", "PORT"]
