"""Which version this is; imports nothing."""

__version__ = "0.1.0"

SPEC_VERSION = "0.34.1"
"""Version of the Open Data Fabric specification that this implements."""
