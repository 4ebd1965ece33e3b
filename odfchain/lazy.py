"""Arrow, Spark and the library of object stores, loaded when something of them is first used.

Arrow takes 0.1 s, Spark a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Lazy:
    """Stands for a module, or for a class of one, until something of it is asked for."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by pickle, before there is anything
            raise AttributeError(name)
        found = import_module(self._module)
        value = getattr(getattr(found, self._name) if self._name else found, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import obstore
    import obstore.exceptions
    import obstore.store
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyspark.sql import Window
    from pyspark.sql import functions as F
    from pyspark.sql import types as t
else:
    obstore = _Lazy("obstore")
    pa = _Lazy("pyarrow")
    pc = _Lazy("pyarrow.compute")
    pq = _Lazy("pyarrow.parquet")
    F = _Lazy("pyspark.sql.functions")
    t = _Lazy("pyspark.sql.types")
    Window = _Lazy("pyspark.sql", "Window")

__all__ = ["F", "Window", "obstore", "pa", "pc", "pq", "t"]
